"""What a phase works with: its transaction and its run (engine.md, section 7).

An *invocation* is one in-memory execution of a task's phases. It can commit only while it is active: after it was
cancelled, after its task's outcome, and, for a run invocation, after an abort mark, every call raises
``InvocationEnded``.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ..errors import DurableError, InvalidTransition, InvocationEnded, OwnerEnded, WaitCycle, WouldDeadlock
from ..records import (
    Aborted,
    Checkpoint,
    Completed,
    ConversationId,
    Entry,
    EntryId,
    ErrorInfo,
    Failed,
    Faulted,
    Outcome,
    Running,
    Sleeping,
    TaskId,
    TaskRecord,
    TaskState,
    Terminal,
    Waiting,
    WaitPolicy,
    checkpoint_of_task,
    outcome_of_task,
)
from ..session import ContextView, Document, Tx, Watch
from ..session.documents import address_of, check_name
from ..session.session import CommitBlock, _place
from ..storage.protocol import EndAttempt
from ..values import JsonValue, check_json, check_text
from .core import Mode
from .definition import Phase, Task
from .rules import Cause, change, check_wait, outcome_state
from .signals import Kept, Received, received, take

if TYPE_CHECKING:
    from .scheduler import TaskSession

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound=Document)


class TaskTx(Tx):
    """A transaction of an invocation: ``Tx`` plus the changes of its own task's state, at most one in a commit."""

    def __init__(self, run: TaskRun[Any, Any]) -> None:
        super().__init__(run._session, run.conversation_id, run.id)
        self._run = run
        self._next: tuple[Cause, Running | Waiting | Sleeping | Completed | Failed | Aborted] | None = None
        self._memos: dict[str, JsonValue] = {}

    def next(self, phase: Phase) -> None:
        """Go on at another phase."""
        self._change("next", Running(checkpoint=self._checkpoint(phase)))

    def wait(self, on: Sequence[TaskId], then: Phase, policy: WaitPolicy = "all_settled") -> None:
        """Wait for tasks, then go on at ``then`` (engine.md, section 7, Waiting).

        With ``fail_fast`` the first that does not complete aborts the rest. When the block ends it raises ``WaitCycle``
        for a missing task and for a wait that could never end, and ``ValueError`` for a fail-fast wait on foreign work.
        """
        self._no_new_work("wait")
        self._change("wait", Waiting(checkpoint=self._checkpoint(then), on=tuple(on), policy=policy))

    def receive(self, name: str, then: Phase | type[Phase], *, timeout: float | None = None) -> None:
        """Wait for a signal, at most ``timeout`` seconds, then go on at ``then``, where ``task.received`` tells what
        came. A signal of that name that was kept ends the wait at once."""
        self._no_new_work("wait for a signal")
        check_text(name, "the name of a signal")
        phase = then() if isinstance(then, type) else then
        until = None if timeout is None else self._session.clock() + float(timeout)
        self._change("wait", Waiting(checkpoint=self._checkpoint(phase), on=(), signal=name, until=until))

    def _suspend(self, on: Sequence[TaskId], then: Phase, until: float | None, signal: str | None) -> None:
        """What a workflow waits for, all at once: tasks, a signal, an instant."""
        checkpoint = self._checkpoint(then)
        if on or signal is not None or until is None:
            self._change("wait", Waiting(checkpoint=checkpoint, on=tuple(on), signal=signal, until=until))
        else:
            self._change("sleep", Sleeping(checkpoint=checkpoint, until=until))

    def _has_kept_signals(self, task: int) -> bool:
        address = address_of(Kept, task, None)
        return address in self._drafts or address in self._session._sealed.task_documents.get(task, ())

    async def _check_wait(self, record: TaskRecord, state: Waiting) -> None:
        failed = False
        for task in state.on:
            target = await self.task(task)
            if target is None:
                raise WaitCycle(f"task {record.id} would wait for task {task}, which does not exist")
            outcome = outcome_of_task(target)
            failed = failed or (outcome is not None and outcome.status != "completed")
        known = self._run._session._failed_targets
        known.discard(record.id)  # of a commit that was rolled back
        if failed and state.policy == "fail_fast":
            known.add(record.id)
        mirror = self._session._sealed
        staged_children: dict[int, list[int]] = {}
        for staged in self._staged.tasks.values():
            owner = _owner_in(self, staged)
            if owner is not None:
                staged_children.setdefault(owner, []).append(staged.id)

        def find(id: int) -> TaskRecord | None:
            return self._staged.tasks.get(id) or mirror.tasks.get(id)

        def children(id: int) -> Iterable[int]:
            return (*mirror.children.get(id, ()), *staged_children.get(id, ()))

        check_wait(record, state.on, state.policy, find, children)

    def sleep(self, until: float, then: Phase) -> None:
        """Sleep until an instant on the harness clock, then go on at ``then``."""
        self._no_new_work("sleep")
        self._change("sleep", Sleeping(checkpoint=self._checkpoint(then), until=float(until)))

    def complete(self, result: Any = None) -> None:
        """End with a result of the task's result type."""
        self._change("outcome", Completed(result=self._run.definition.dump_result(result)))

    def fail(self, message: str, detail: JsonValue = None) -> None:
        """End as failed, by the task's own decision."""
        self._change("outcome", Failed(error=ErrorInfo(message, check_json(detail, "the error's detail"))))

    def aborted(self, reason: str | None = None, *, result: Any = None) -> None:
        """End as aborted; ``result`` is what there is of one, in the task's result type."""
        stored = None if result is None else self._run.definition.dump_result(result)
        self._change("outcome", Aborted(reason=reason, result=stored))

    async def create_task(self, task: Any, input: Any, **options: Any) -> TaskId:
        """As ``Tx.create_task``. An abort handler cannot create work that its own task owns."""
        if options.get("owner") == self._run.id:
            self._no_new_work("create owned tasks")
        return await super().create_task(task, input, **options)

    def _no_new_work(self, what: str) -> None:
        if self._run.mode == "abort":
            raise OwnerEnded(f"the abort handler of task {self._run.id} cannot {what}: it can only clean up and end it")

    def _refuse_new_work(self, record: TaskRecord) -> None:
        """A task that ends in this commit is no owner for what the same commit creates."""
        tasks = (task.id for task in self._staged.tasks.values() if task.owner == record.id)
        known = self._session._sealed.tasks
        conversations = self._staged.conversations.values()
        if any(id not in known for id in tasks) or any(
            conversation.owner is not None and conversation.owner.task == record.id for conversation in conversations
        ):
            raise OwnerEnded(
                f"task {record.id} ({record.kind}) is completing in this commit, so it cannot own new work: "
                "create the work in an earlier commit, or wait for it"
            )

    def _checkpoint(self, phase: Phase) -> Checkpoint:
        if self._run.definition.phases.get(phase.phase_name()) is not type(phase):
            raise ValueError(f"{type(phase).__name__} is not a phase of {self._run.definition.name}")
        return phase.checkpoint()

    def _change(self, cause: Cause, state: Running | Waiting | Sleeping | Completed | Failed | Aborted) -> None:
        self._check()
        if self._next is not None:
            raise DurableError(f"task {self._run.id} changed its state twice in one commit; a commit holds one change")
        self._next = (cause, state)

    async def _own_record(self) -> TaskRecord:
        record = await self.task(self._run.id)
        if record is None:
            raise DurableError(f"task {self._run.id} does not exist")
        return record

    async def _finish(self) -> None:
        """Inside the commit, after the body: apply the change of state to the record as the line has it now."""
        self._run._check_may_commit()
        record = await self._own_record()
        if self._memos:
            record = record.replaced(memos=record.memos | self._memos)
            self._put_task(record)
        if self._next is None:
            return
        cause, state = self._next
        if isinstance(state, Completed | Failed | Aborted):
            self._refuse_new_work(record)
            await end_task(self, record, state)
            return
        after: TaskState = state
        if isinstance(state, Waiting):
            await self._check_wait(record, state)
            if state.signal is not None:
                record, cause, after = await take(self, record, state)
        self._put_task(await changed(self, record, cause, after))
        if after.status != "running":
            self._add(EndAttempt(record.id, "parked"))


async def changed(tx: Tx, record: TaskRecord, cause: Cause, state: TaskState) -> TaskRecord:
    """The record after a transition; an illegal one raises with the task's story."""
    session = tx._session
    try:
        return change(record, cause, state, session.clock())
    except InvalidTransition as error:
        story = getattr(session, "_story", None)
        if story is None:
            raise
        raise InvalidTransition(f"{error}\n{await story(record)}") from None


async def end_task(tx: Tx, record: TaskRecord, outcome: Outcome, *, attempted: bool = True) -> TaskRecord:
    """Give a task its outcome: held while ordinary owned work is live, else terminal with its documents retired."""
    ended = await changed(tx, record, "outcome", outcome_state(outcome, _has_live_work(tx, record.id)))
    await put_ended(tx, ended)
    if attempted:
        tx._add(EndAttempt(record.id, "ended"))
    return ended


def _has_live_work(tx: Tx, task: int) -> bool:
    """Whether any ordinary owned work of a task is live once this commit is stored."""
    staged = tx._staged.tasks
    for child in tx._session._sealed.children.get(task, ()):
        if child not in staged or not staged[child].terminal:
            return True
    return any(not other.terminal and _owner_in(tx, other) == task for other in staged.values())


def _owner_in(tx: Tx, task: TaskRecord) -> int | None:
    """The task whose ordinary work this is, as ``Mirror.owner_of``, with conversations of this same commit."""
    staged = tx._staged.conversations.get(task.conversation_id)
    if staged is None or task.owner is not None or task.background:
        return tx._session._sealed.owner_of(task)
    return None if staged.owner is None else staged.owner.task


async def put_ended(tx: Tx, ended: TaskRecord) -> None:
    """Stage a record with an outcome; a terminal one retires its documents in the same commit."""
    tx._put_task(ended)
    if ended.terminal:
        opened = {address for address, draft in tx._drafts.items() if draft.record.scope == "task"}
        for address in tx._session._sealed.task_documents.get(ended.id, set()) | opened:
            if address.scope_id == ended.id:
                await tx._retire(address)


class TaskRun(Generic[I, R]):
    """What a phase's ``run`` gets: its task, and everything it may do (engine.md, section 7).

    ``input`` is an instance of the task's input type; ``mode`` is ``run``, or ``abort`` in the abort handler.
    """

    def __init__(
        self, session: TaskSession, record: TaskRecord, definition: type[Task[I, R]], mode: Mode, extension: str | None
    ) -> None:
        self._session = session
        self.id: TaskId = record.id
        self.conversation_id: ConversationId = record.conversation_id
        self.definition = definition
        self.extension = extension
        self.mode = mode
        self.input: I = definition.load_input(record.input)
        self.checkpoint: Checkpoint = checkpoint_of_task(record) or {}
        self.resumed = True
        """Whether an earlier invocation may have begun the present phase: false once this one committed it."""
        self._active = True
        self._stopped = False
        self._outdated_by: Any = None
        self._flushers: list[Callable[[], Awaitable[None]]] = []
        self._threads: set[asyncio.Future[Any]] = set()
        self._told_to_stop = False
        """What threads look at: nobody can cancel them."""

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def record(self) -> TaskRecord:
        """The committed record as it is now."""
        return self._session._committed.tasks.get(self.id) or self._last_record

    _last_record: TaskRecord

    @property
    def settings(self) -> Any:
        """The harness settings as they are now."""
        return self._session._settings()

    @property
    def models(self) -> Any:
        """The models of the harness."""
        return self._session.models

    @property
    def registry(self) -> Any:
        """The registry of the harness."""
        return self._session.registry

    def now(self) -> float:
        """The harness clock, epoch seconds."""
        return self._session.clock()

    def report(self, error: BaseException) -> None:
        """Tell the host about an error that does not end the task: a report of kind ``task_error``."""
        self._session._report("task_error", error, task=self.record, extension=self.extension)

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self) -> CommitBlock[TaskTx]:
        """One commit bound to this task and its conversation.

        Raises ``InvocationEnded`` once the task may not commit, and ``InvalidTransition``, with the task's story, for a
        change of state that the rules do not have.
        """
        self._check_active()
        return self._session._commit(lambda: TaskTx(self), _place(), TaskTx._finish)

    async def next(self, phase: Phase) -> None:
        """Commit the next phase."""
        async with self.commit() as tx:
            tx.next(phase)

    async def complete(self, result: R | None = None) -> None:
        """Commit the outcome ``completed``."""
        async with self.commit() as tx:
            tx.complete(result)

    async def fail(self, message: str, detail: JsonValue = None) -> None:
        """Commit the outcome ``failed``."""
        async with self.commit() as tx:
            tx.fail(message, detail)

    async def aborted(self, reason: str | None = None) -> None:
        """Commit the outcome ``aborted``."""
        async with self.commit() as tx:
            tx.aborted(reason)

    async def sleep_until(self, until: float, then: Phase) -> None:
        """Commit a durable sleep until an instant; the task goes on at ``then``, in this or another process."""
        async with self.commit() as tx:
            tx.sleep(until, then)

    async def wait(self, on: Sequence[TaskId], then: Phase, *, policy: WaitPolicy = "all_settled") -> None:
        """Commit a wait for tasks; the task goes on at ``then`` when they have settled."""
        async with self.commit() as tx:
            tx.wait(on, then, policy)

    async def receive(self, name: str, then: Phase | type[Phase], *, timeout: float | None = None) -> None:
        """Commit a wait for a signal; the task goes on at ``then`` when one of this name arrives, was kept from before,
        or ``timeout`` seconds have passed. There, ``received`` tells what came. The wait survives any process."""
        async with self.commit() as tx:
            tx.receive(name, then, timeout=timeout)

    @property
    def received(self) -> Received | None:
        """What ended the newest ``receive``: a signal's name and value, ``None`` after a timeout."""
        return received(self.record)

    async def memo(self, name: str, *candidate: JsonValue) -> JsonValue:
        """The memo of this name: without a candidate the stored one or ``None``; with one, the first writer's.

        Raises ``ValueError`` for a name of the engine's, which begin with ``pi.``.
        """
        self._check_active()
        if len(candidate) > 1:
            raise TypeError("memo takes a name and at most one candidate")
        check_name(name, "a memo", f"{self.definition.__module__}.")
        stored = self.record.memos
        if name in stored or not candidate:
            return stored.get(name)
        value = check_json(candidate[0], f"the memo {name}")
        async with self.commit() as tx:
            record = await tx._own_record()
            if name in record.memos:
                return record.memos[name]
            tx._memos[name] = value
        return value

    # -- other tasks -------------------------------------------------------------------------------------------------

    async def task(self, id: int) -> TaskRecord | None:
        """A task record."""
        self._check_active()
        return await self._session.task(id)

    async def outcomes(self, ids: Sequence[int]) -> list[Outcome]:
        """The outcomes of ended tasks, in order. Raises ``DurableError`` for one that has none, or still holds it."""
        found: list[Outcome] = []
        for id in ids:
            record = await self.task(id)
            if record is None or not isinstance(record.state, Terminal):
                raise DurableError(f"task {id} has no outcome yet: wait for it first")
            found.append(record.state.outcome)
        return found

    async def owned_tasks(self) -> list[TaskRecord]:
        """The live tasks that this one owns."""
        self._check_active()
        tasks = self._session._committed.tasks
        return [tasks[id] for id in sorted(self._session._committed.children.get(self.id, ())) if id in tasks]

    async def wait_for_task(self, id: TaskId) -> TaskRecord:
        """Wait in memory for the end of a task that does not depend on this one.

        Raises ``WouldDeadlock`` when it could only end after this task. A wait that outlives the process is ``wait``.
        """
        self._check_active()
        if self._session._depends_on(id, self.id):
            raise WouldDeadlock(f"task {self.id} would wait for task {id}, which cannot end before it")
        return await self._session.wait_for_task(id)

    async def abort_owned(self, id: TaskId) -> Literal["marked", "terminal"]:
        """Ask for the abort of a task that this one owns. Raises ``ValueError`` for any other."""
        record = await self.task(id)
        if record is None or record.owner != self.id:
            raise ValueError(f"task {self.id} does not own task {id}")
        return await self._session.abort_task(id)

    # -- reads -------------------------------------------------------------------------------------------------------

    async def entry(self, id: int) -> Entry | None:
        """An entry of any conversation."""
        self._check_active()
        self._session._check_line()
        return await self._session._read(self._session.storage.entry(id))

    async def context(self, conversation: int | None = None, *, at: EntryId | None = None) -> ContextView:
        """The model's context of a conversation, by default the task's own."""
        self._check_active()
        return await self._session._context_at(conversation or self.conversation_id, at)

    async def conversation(self, id: int) -> Any:
        """A handle of a conversation, ``None`` when there is none."""
        self._check_active()
        return await self._session.conversation(id)

    async def agent(self) -> Any:
        """The resolved agent of the task's conversation."""
        self._check_active()
        return await self._session._agent(self.conversation_id)

    async def env(self) -> Any:
        """The execution environment that the harness was opened with."""
        self._check_active()
        return self._session.env

    async def snapshot(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> D | None:
        """As ``Session.snapshot``; the scope defaults to this task or its conversation."""
        self._check_active()
        return await self._session.snapshot(doc, self._scope(doc, scope), key=key)

    async def snapshot_as_of(
        self, doc: type[D], conversation: ConversationId, *, at: EntryId, key: str | None = None
    ) -> D | None:
        """As ``Session.snapshot_as_of``."""
        self._check_active()
        return await self._session.snapshot_as_of(doc, conversation, at=at, key=key)

    def watch_doc(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> Watch[D | None]:
        """As ``Session.watch_doc``; the scope defaults to this task or its conversation."""
        self._check_active()
        return self._session.watch_doc(doc, self._scope(doc, scope), key=key)

    def _scope(self, doc: type[Document], scope: int | None) -> int | None:
        if scope is None and doc.spec_.scope != "session":
            return self.id if doc.spec_.scope == "task" else self.conversation_id
        return scope

    # -- for the engine's own tasks ----------------------------------------------------------------------------------

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function in a daemon thread; abort and close wait for it to end (engine.md, section 7)."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                result = context.run(function, *args)
            except BaseException as error:  # handed to the waiter, whatever it is
                _post(loop, future, None, error)
            else:
                _post(loop, future, result, None)

        self._threads.add(future)
        future.add_done_callback(self._threads.discard)
        threading.Thread(target=call, name=f"pidurable-task-{self.id}", daemon=True).start()
        return await asyncio.shield(future)

    def flush_before_stop(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Call ``flush`` before an abort mark or a close stops this invocation, so that it commits what has arrived."""
        self._flushers.append(flush)

    async def flush(self) -> None:
        """Run the flushers once. An invocation that ends meanwhile has committed what it had."""
        flushers, self._flushers = self._flushers, []
        try:
            for flush in flushers:
                await flush()
        except InvocationEnded:
            pass

    def _check_active(self) -> None:
        if not self._active or self._stopped:
            raise InvocationEnded(
                f"the invocation of task {self.id} has ended: its code must stop when it is cancelled or has committed "
                "an outcome, a wait or a sleep"
            )

    def _check_may_commit(self) -> None:
        self._check_active()
        record = self._session._sealed.tasks.get(self.id)
        if record is None or record.state.status != "running":
            raise InvocationEnded(f"task {self.id} is not running, so its code cannot commit any more")
        if self.mode == "run" and record.abort_requested:
            raise InvocationEnded(f"task {self.id} is being aborted, so its run phases cannot commit any more")


def _post(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    """Settle a future of another thread's loop; a loop that is gone has nobody waiting."""

    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, (StopIteration, KeyboardInterrupt, GeneratorExit)):
            # A future cannot hold the first, and the others would be about this loop here. No person interrupts a
            # thread of ours, so they are the function's own.
            future.set_exception(RuntimeError(f"the function raised {type(error).__name__}"))
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        if not loop.is_closed():
            raise


def is_own(error: BaseException) -> bool:
    """Whether an error belongs to the code that raised it, rather than to the process or the loop.

    Python interrupts the main thread alone, so a ``KeyboardInterrupt`` anywhere else was raised by that code itself.
    """
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is not threading.main_thread()
    return not isinstance(error, GeneratorExit)


def fault(error: BaseException) -> Faulted:
    """The outcome of code that raised."""
    return Faulted(error=ErrorInfo(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__))
