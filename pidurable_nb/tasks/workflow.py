"""Workflows: durable tasks for people who think in functions (engine.md, section 7).

A *workflow* is one task whose function starts again from the top each time it goes on, and finds what it did before
stored. An *operation* is a step, a sleep, a wait for a signal or a child task; each is stored in a document of the task
under its place in the order in which the function asked for them. An operation that is stored returns what it returned
before; the first one that is not is carried out.

So between operations the function must do the same each time: no clock, no random numbers, no reads of the outside
world except in steps. An order of operations that differs from the stored one raises ``WorkflowChanged``. What a step
returns is what a later run reads from storage: plain JSON, or the type of the function's return annotation.

A workflow that sleeps or waits holds no coroutine: its function is left by ``Suspended``, which is no ``Exception``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

from ..errors import DurableError, InvocationEnded, StepInterrupted, WorkflowChanged
from ..records import Completed, TaskId, outcome_of_task
from ..session import Document
from ..values import JsonValue, check_json
from .definition import Phase, StoredTask, Task, adapter
from .runtime import TaskRun, TaskTx
from .signals import Kept

R = TypeVar("R")
T = TypeVar("T")

OperationKind = Literal["step", "sleep", "receive", "child"]


class Backoff(Protocol):
    """How often a failed step is tried again, and after how many seconds; ``pidurable_nb.RetryPolicy`` is one."""

    @property
    def max_retries(self) -> int: ...

    def delay(self, attempt: int) -> float: ...


@dataclass(frozen=True, slots=True)
class _Times:
    """So many retries, after 1, 2, 4, … and at most 60 seconds."""

    max_retries: int

    def delay(self, attempt: int) -> float:
        return float(min(2 ** min(attempt - 1, 6), 60))


class StepFailed(DurableError):
    """A step raised and has no retries left, or a child ended without completing. The message says what happened.

    It is raised in place of the step's own error, which is its cause at first, since a later run knows only its text.
    """


class Operation(Document, kind="pi.step", scope="task", family=True):
    """One stored operation. ``started`` is an unsafe step whose end is not known."""

    kind: OperationKind = "step"
    name: str = ""
    status: Literal["started", "waiting", "done", "failed"] = "done"
    result: Any = None
    error: str | None = None
    attempt: int = 0
    until: float | None = None
    task: int | None = None


Stage = Callable[[TaskTx], Awaitable[int | None]]


class Suspended(BaseException):
    """Leaves a workflow's function until what it waits for has come; never caught by ``except Exception``."""

    def __init__(
        self,
        *,
        stages: Sequence[Stage] = (),
        on: Sequence[int] = (),
        until: float | None = None,
        signal: str | None = None,
    ) -> None:
        super().__init__("the workflow goes on later")
        self.stages = list(stages)
        self.on = list(on)
        self.until = until
        self.signal = signal


@dataclass
class _Place:
    """Where in the order of operations one stands, and what is stored there."""

    index: int
    kind: OperationKind
    name: str
    stored: Operation | None


@dataclass
class WorkflowRun:
    """What a workflow's function gets as its first argument: its operations."""

    task: TaskRun[Any, Any]
    _stored: dict[int, Operation]
    _names: list[str] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)
    _progress: int = 0

    @property
    def id(self) -> TaskId:
        """The task that the workflow is."""
        return self.task.id

    # -- operations --------------------------------------------------------------------------------------------------

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        replay: Literal["safe", "unsafe"] = "safe",
        retry: int | Backoff | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Run a function once and store its result; a later run returns that.

        The function may be async; a plain one runs in a thread. It runs at least once: a process that dies in the
        middle runs it again, unless it is ``replay="unsafe"``, which raises ``StepInterrupted`` then. ``retry`` is a
        number of retries with exponential back-off, or a ``RetryPolicy``; the back-off is a durable sleep. Raises
        ``StepFailed`` when it failed for good, and ``ValueError`` for another ``replay``.
        """
        if replay not in ("safe", "unsafe"):
            raise ValueError(f"the step {name} has replay={replay!r}; it is 'safe' or 'unsafe'")
        place = self._place("step", name)
        backoff = _Times(retry or 0) if retry is None or isinstance(retry, int) else retry
        return self._step(place, functools.partial(function, *args), function, replay == "unsafe", backoff)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep, durably; the seconds count from the first time this is reached."""
        return self._sleep(self._place("sleep", "sleep"), seconds)

    def receive(self, name: str, timeout: float | None = None) -> Coroutine[Any, Any, JsonValue]:
        """Wait for a signal and return its value; ``None`` when ``timeout`` seconds have passed without one."""
        return self._receive(self._place("receive", f"receive {name}"), name, timeout)

    def child(self, task: Any, input: Any = None) -> Coroutine[Any, Any, Any]:
        """Create a task that this one owns, wait for it, and return its result.

        Raises ``StepFailed`` when it ended without completing.
        """
        return self._child(self._place("child", f"child {task.name}"), task, input)

    async def gather(self, *operations: Awaitable[Any]) -> list[Any]:
        """Carry out operations of this workflow at the same time; returns their results in order.

        All of them are carried out to their end; then the first error is raised. At most one may be a ``receive``.
        """
        results = await asyncio.gather(*operations, return_exceptions=True)
        parked = [result for result in results if isinstance(result, Suspended)]
        if parked:
            signals = [part.signal for part in parked if part.signal is not None]
            if len(signals) > 1:
                raise ValueError("a gather can wait for one signal at a time")
            times = [part.until for part in parked if part.until is not None]
            raise Suspended(
                stages=[stage for part in parked for stage in part.stages],
                on=[task for part in parked for task in part.on],
                until=min(times, default=None),
                signal=signals[0] if signals else None,
            )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    # -- carrying them out -------------------------------------------------------------------------------------------

    def _place(self, kind: OperationKind, name: str) -> _Place:
        index = len(self._names)
        self._seen[name] += 1
        label = name if self._seen[name] == 1 else f"{name}#{self._seen[name]}"
        self._names.append(label)
        stored = self._stored.get(index)
        if stored is not None and (stored.kind, stored.name) != (kind, label):
            raise self._changed(f"operation {index + 1} is now {label!r} and is stored as {stored.name!r}")
        return _Place(index, kind, label, stored)

    def _changed(self, what: str) -> WorkflowChanged:
        stored = ", ".join(self._stored[index].name for index in sorted(self._stored))
        return WorkflowChanged(
            f"the workflow {self.task.definition.name} (task {self.id}) changed while it was under way: {what}. "
            f"Stored: {stored}. Now: {', '.join(self._names) or 'nothing'}. Give back the old order, or a new name "
            "to the changed workflow and abort this task."
        )

    def _ended(self) -> None:
        """The function returned: everything stored must have been asked for."""
        if any(index >= len(self._names) for index in self._stored):
            raise self._changed(f"it now ends after {len(self._names)} operations")

    async def _put(self, tx: TaskTx, place: _Place, **fields: Any) -> None:
        operation = await tx.doc(
            Operation, self.id, key=str(place.index), seed={"kind": place.kind, "name": place.name}
        )
        for name, value in fields.items():
            setattr(operation, name, value)

    async def _store(self, place: _Place, **fields: Any) -> None:
        """Store the progress of an operation. The checkpoint moves on with it, so that it counts as progress."""
        async with self.task.commit() as tx:
            await self._put(tx, place, **fields)
            self._move(tx)

    def _move(self, tx: TaskTx) -> None:
        self._progress += 1
        tx.next(self._phase())

    def _phase(self) -> Phase:
        phase = self.task.definition.phases["run"]
        return phase(steps=self._progress)  # type: ignore[call-arg]

    async def _step(
        self, place: _Place, call: Callable[[], Any], function: Callable[..., Any], unsafe: bool, backoff: Backoff
    ) -> Any:
        stored = place.stored
        kind = _returned(function)
        if stored is not None:
            if stored.status == "done":
                return adapter(kind).validate_python(stored.result)
            if stored.status == "failed":
                raise StepFailed(stored.error)
            if stored.status == "started":
                raise StepInterrupted(
                    f"the unsafe step {place.name!r} of task {self.id} was cut off: whether it took effect is unknown. "
                    "Find out in another step, and go on from there."
                )
            if stored.until is not None and self.task.now() < stored.until:
                raise Suspended(until=stored.until)
        attempt = 1 + (0 if stored is None else stored.attempt)
        if unsafe:
            await self._store(place, status="started", attempt=attempt)
        try:
            if inspect.iscoroutinefunction(function):
                value = await call()
            else:
                value = await self.task.in_thread(call)
                if inspect.isawaitable(value):
                    value = await value
            dumped = adapter(kind).dump_python(value, mode="json")
            result = check_json(dumped, f"the result of the step {place.name}")
        except InvocationEnded:
            raise
        except Exception as error:
            text = f"the step {place.name!r} failed: {type(error).__name__}: {error}"
            if attempt <= backoff.max_retries:
                until = self.task.now() + backoff.delay(attempt)
                await self._store(place, status="waiting", attempt=attempt, until=until, error=text)
                raise Suspended(until=until) from None
            await self._store(place, status="failed", attempt=attempt, until=None, error=text)
            raise StepFailed(text) from error
        await self._store(place, status="done", attempt=attempt, until=None, error=None, result=result)
        return adapter(kind).validate_python(result)

    async def _sleep(self, place: _Place, seconds: float) -> None:
        until = place.stored.until if place.stored is not None else None
        if until is None:
            until = self.task.now() + float(seconds)

            async def stage(tx: TaskTx) -> None:
                await self._put(tx, place, status="waiting", until=until)

            raise Suspended(until=until, stages=[stage])
        if self.task.now() < until:
            raise Suspended(until=until)

    async def _receive(self, place: _Place, name: str, timeout: float | None) -> JsonValue:
        stored = place.stored
        if stored is not None and stored.status == "done":
            return stored.result
        arrived = self.task.received if stored is not None else None
        if arrived is not None and arrived.name == name:
            await self._store(place, status="done", result=arrived.value)
            return arrived.value
        found, value = await self._take_kept(place, name)
        if found:
            return value
        until = stored.until if stored is not None else None
        if stored is not None and until is not None and self.task.now() >= until:
            await self._store(place, status="done", result=None)
            return None
        if stored is not None:
            raise Suspended(until=until, signal=name)
        until = None if timeout is None else self.task.now() + float(timeout)

        async def stage(tx: TaskTx) -> None:
            await self._put(tx, place, status="waiting", until=until)

        raise Suspended(until=until, signal=name, stages=[stage])

    async def _take_kept(self, place: _Place, name: str) -> tuple[bool, JsonValue]:
        async with self.task.commit() as tx:
            if not tx._has_kept_signals(self.id):
                return False, None
            kept = await tx.doc(Kept, self.id)
            signal = kept.taken(name)
            if signal is None:
                return False, None
            await self._put(tx, place, status="done", result=signal.value)
            self._move(tx)
        return True, signal.value

    async def _child(self, place: _Place, definition: type[Task[Any, Any]], input: Any) -> Any:
        if place.stored is None or place.stored.task is None:

            async def stage(tx: TaskTx) -> int:
                child = await tx.create_task(definition, input, owner=self.id)
                await self._put(tx, place, status="waiting", task=child)
                return child

            raise Suspended(stages=[stage])
        record = await self.task.task(place.stored.task)
        if record is None or not record.terminal:
            raise Suspended(on=[place.stored.task])
        outcome = outcome_of_task(record)
        if isinstance(outcome, Completed):
            return adapter(definition.result_type).validate_python(outcome.result)
        error = getattr(outcome, "error", None)
        raise StepFailed(
            f"task {record.id} ({record.kind}) ended {outcome.status if outcome else ''}"
            + (f": {error.message}" if error is not None else "")
        )


class Workflow(Task[Any, Any]):
    """The base of what ``@workflow`` makes. ``function`` is the decorated function."""

    function: ClassVar[Callable[..., Awaitable[Any]]]

    @classmethod
    def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
        """A newer version goes on with what is stored: the order of its operations decides whether it can."""
        return cls.load_input(stored.input), cls.load_phase(stored.checkpoint)


def workflow(name: str, *, version: int = 1) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], type[Task[Any, R]]]:
    """Make a task class of an async function whose first parameter is a ``WorkflowRun``::

        @workflow("nightly.report", version=1)
        async def report(run, day: str) -> str:
            rows = await run.step("load", load_rows, day)
            await run.sleep(3600)
            return await run.step("send", send, rows, replay="unsafe")

    The input holds the other parameters by name; for a function with one of them its bare value does too, and a list
    for several. The name and the version are those of the task. Raises ``TypeError`` for a function that is not async,
    and without a name.
    """
    if not isinstance(name, str):
        raise TypeError(f'a workflow is stored under a name: @workflow("shop.order"), not @workflow of {name!r}')

    def decorate(function: Callable[..., Coroutine[Any, Any, R]]) -> type[Task[Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is not an async function: a workflow awaits its steps")
        hints = _hints(function)

        class Run(Phase):
            """The function, from the top; ``steps`` counts what it stored."""

            steps: int = 0

            async def run(self, task: TaskRun[Any, Any]) -> None:
                await _go_on(task, function, self.steps)

        def body(namespace: dict[str, Any]) -> None:
            namespace.update(
                __doc__=function.__doc__,
                __module__=function.__module__,
                __qualname__=function.__qualname__,
                Run=Run,
                function=staticmethod(function),
                input_type=_input_type(function, hints),
                result_type=hints.get("return", Any),
            )

        made = types.new_class(function.__name__, (Workflow,), {"name": name, "version": version}, body)
        return cast("type[Task[Any, R]]", made)

    return decorate


async def _go_on(task: TaskRun[Any, Any], function: Callable[..., Coroutine[Any, Any, Any]], progress: int) -> None:
    """Run a workflow's function from the top, and store where it stands when it is left."""
    session = task._session
    stored: dict[int, Operation] = {}
    for address in session._committed.task_documents.get(task.id, ()):
        if address.kind == Operation.spec_.kind and address.key is not None:
            operation = await session.snapshot(Operation, task.id, key=address.key)
            if operation is not None:
                stored[int(address.key)] = operation
    run = WorkflowRun(task, stored, _progress=progress)
    arguments: BaseModel = task.input
    try:
        result = await function(run, **{name: getattr(arguments, name) for name in type(arguments).model_fields})
        run._ended()
    except Suspended as suspended:
        async with task.commit() as tx:
            on = list(suspended.on)
            for stage in suspended.stages:
                created = await stage(tx)
                if created is not None:
                    on.append(created)
            run._progress += 1
            tx._suspend([TaskId(id) for id in on], run._phase(), suspended.until, suspended.signal)
        return
    await task.complete(result)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # annotations of names that exist only for type checkers
        return {}


def _returned(function: Callable[..., Any]) -> Any:
    """The type of a step's result: its return annotation, or any JSON."""
    target = function.func if isinstance(function, functools.partial) else function
    return _hints(target).get("return", Any)


def _input_type(function: Callable[..., Any], hints: dict[str, Any]) -> Any:
    """A model of the parameters after the first, which also takes a bare value for one, or a list for several."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise TypeError(f"the workflow {function.__name__} needs a first parameter for its run")
    fields: dict[str, Any] = {}
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"the workflow {function.__name__} cannot take {parameter}: name its parameters")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    model = create_model(f"{function.__name__}_input", __config__=ConfigDict(extra="forbid"), **fields)
    names = list(fields)

    def by_name(value: Any) -> Any:
        if isinstance(value, model) or (isinstance(value, dict) and value and value.keys() <= fields.keys()):
            return value
        if value is None and not any(info.is_required() for info in model.model_fields.values()):
            return {}
        if len(names) == 1:
            return {names[0]: value}
        if isinstance(value, list | tuple) and len(value) <= len(names):
            return dict(zip(names, value, strict=False))
        return value

    return Annotated[model, BeforeValidator(by_name)]
