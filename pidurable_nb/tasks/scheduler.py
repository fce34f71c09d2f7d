"""The scheduler's hands: it carries out what the core decides (engine.md, sections 7 and 8).

One asyncio task, the *driver*, feeds settled commits to the core and performs its instructions, each as one commit or
one asyncio task per invocation. All rules of state live in ``rules``, all decisions in ``core``.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import DurableError, SessionClosed, WouldDeadlock
from ..records import (
    ConversationId,
    ErrorInfo,
    Faulted,
    Orphaned,
    Pending,
    Running,
    TaskId,
    TaskRecord,
    Terminal,
    Waiting,
    checkpoint_of_task,
    outcome_of_task,
)
from ..session import Publication, Report, Session, Tx, Watch
from ..storage.protocol import EndAttempt, StartAttempt, Storage
from ..values import JsonValue
from .core import (
    BlockedReason,
    Cancel,
    Finalise,
    Instruction,
    Mark,
    Mode,
    Orphan,
    Readiness,
    Reserve,
    SchedulerCore,
)
from .definition import StoredTask, Task
from .graph import GraphKeeper, TaskGraph, graph_of
from .rules import change
from .runtime import TaskRun, changed, end_task, fault, is_own, put_ended
from .signals import SignalResult, deliver
from .story import tell
from .watchdog import BLOCKED, watchdog

LONGEST_NAP = 30.0
"""How long the scheduler sleeps at most before it compares the wall clock: timers stop while a laptop is suspended."""

SLOW_STOP = 5.0
"""After how many seconds a stop that still waits for an invocation says so in a report."""


_current: ContextVar[tuple[TaskSession, int] | None] = ContextVar("pidurable_nb_current_task", default=None)
"""The invocation that code is part of, child asyncio tasks included."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Whether the harness has work now, and the earliest instant at which a sleep is due."""

    active: bool
    at: float | None = None


@dataclass(slots=True)
class _Invocation:
    run: TaskRun[Any, Any]
    task: asyncio.Task[None]
    asked_to_stop: bool = False
    begun: bool = False


class TaskSession(Session):
    """A session that runs tasks. ``Harness`` adds conversations and agents.

    Subclasses say where definitions come from (``_definition``) and which settings hold (``_restart_limit``).
    """

    registry: Any = None
    models: Any = None
    env: Any = None
    slow_stop: float = SLOW_STOP
    """After how many seconds a close that still waits for code says so in a report."""
    blocked_after: float = BLOCKED
    """After how many seconds a call that blocks the event loop is reported, with its stack."""

    invocation_context: Callable[[TaskRecord], Context | None] | None = None
    """A host's say in which context an invocation runs: a notebook shows what tools print under the cell that asked."""

    hold: bool = False
    """Whether only ``resume()`` itself starts scheduling: a notebook waits so for tools that recovered work needs."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], float],
        on_report: Callable[[Report], None] | None,
        on_wake: Callable[[Wake], None] | None = None,
    ) -> None:
        super().__init__(storage, clock=clock, on_report=on_report)
        self._core = SchedulerCore(self._readiness, self._committed.owner_of)
        self._on_wake = on_wake
        self._last_wake: Wake | None = None
        self._driver: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._reconciling = True
        self._invocations: dict[int, _Invocation] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._failed_migrations: dict[int, tuple[type[Task[Any, Any]], Exception]] = {}
        self._failed_targets: set[int] = set()  # sealed fail-fast waits one of whose targets had already failed
        self._task_waiters: dict[int, dict[asyncio.Future[None], None]] = {}
        self._graph_watches: set[Watch[TaskGraph]] = set()
        self._graph_keeper: GraphKeeper | None = None

    # -- what the layer above provides -------------------------------------------------------------------------------

    def _definition(self, kind: str) -> tuple[type[Task[Any, Any]], str | None] | None:
        """The definition of a task kind, and the extension it is from."""
        return None

    def _settings(self) -> Any:
        return None

    def _restart_limit(self) -> float:
        return 5

    async def _cancelled_conversation(self, tx: Tx, conversation: ConversationId) -> None:
        """A cascade reached a conversation: its queued inputs are not going to be answered."""

    async def conversation(self, id: int) -> Any:
        raise NotImplementedError

    async def _agent(self, conversation: int) -> Any:
        raise NotImplementedError

    # -- opening and driving -----------------------------------------------------------------------------------------

    async def _load(self) -> None:
        await super()._load()
        await self._recover()
        self._core.loaded(sorted(self._committed.tasks.values(), key=lambda task: task.id))
        self._driver = self._loop.create_task(self._drive())
        self._driver.add_done_callback(self._driver_ended)

    async def _recover(self) -> None:
        """Write what a dead process left running back to pending, one restart more (engine.md, section 7)."""
        left = [task for task in self._sealed.tasks.values() if task.state.status == "running"]
        if not left:
            return
        async with self._commit(lambda: Tx(self, None)) as tx:
            for task in left:
                state = Pending(checkpoint=checkpoint_of_task(task) or {})
                tx._put_task(change(task, "recover", state, self.clock()))

    def _driver_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())  # type: ignore[arg-type]

    async def _drive(self) -> None:
        """Perform what the core decides, until the session ends. A raise here fails the session."""
        await self._reconcile()
        while True:
            self._nudge.clear()
            await self._work()
            until = self._core.next_wake() if self._on_wake is None and self._core.resumed else None
            timer = None
            if until is not None:
                nap = max(0.0, min(LONGEST_NAP, until - self.clock()))
                timer = self._loop.call_later(nap, self._nudge.set)
            try:
                await self._nudge.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def _reconcile(self) -> None:
        """The pass that follows an opening: held outcomes, cascades, and fail-fast waits (engine.md, section 7)."""
        failed: dict[int, bool] = {}
        for task in list(self._committed.tasks.values()):
            if isinstance(task.state, Waiting) and task.state.policy == "fail_fast":
                for target in task.state.on:
                    if target not in self._committed.tasks:
                        record = await self._read(self.storage.task(target))
                        outcome = None if record is None else outcome_of_task(record)
                        failed[target] = outcome is not None and outcome.status != "completed"
        self._core.waits_settled(lambda target: failed.get(target, False))
        self._tell_wake()
        await self._work()
        self._reconciling = False
        self._tell_wake()

    async def _work(self) -> None:
        while True:
            instructions = self._core.decide(self.clock())
            if not instructions:
                break
            for instruction in instructions:
                await self._perform(instruction)
        self._tell_wake()
        self._graph_changed()

    def _stir(self) -> None:
        """Let the driver look again."""
        self._nudge.set()

    async def _perform(self, instruction: Instruction) -> None:
        if isinstance(instruction, Reserve):
            await self._reserve(instruction)
        elif isinstance(instruction, Cancel):
            self._cancel_invocation(instruction.task)
        elif isinstance(instruction, Mark):
            await self._mark(instruction.tasks, instruction.reason)
        elif isinstance(instruction, Finalise):
            await self._finalise(instruction)
        else:
            await self._orphan(instruction)

    async def _mark(self, tasks: tuple[int, ...], reason: Literal["restart"] | None) -> None:
        for id in tasks:
            invocation = self._invocations.get(id)
            if invocation is not None:
                await invocation.run.flush()
        async with self._commit(lambda: Tx(self, None)) as tx:
            for id in tasks:
                await self._stage_mark(tx, id, reason)

    async def _stage_mark(self, tx: Tx, id: int, reason: Literal["restart"] | None) -> Literal["marked", "terminal"]:
        record = await tx.task(id)
        if record is None:
            raise DurableError(f"there is no task {id}")
        if record.terminal:
            return "terminal"
        if not record.abort_requested or (record.abort_reason is not None and reason is None):
            tx._put_task(record.replaced(abort_requested=True, abort_reason=reason, restarts=0))
            for conversation in sorted(self._sealed.owned_conversations.get(id, ())):
                await self._cancelled_conversation(tx, ConversationId(conversation))
        return "marked"

    async def _finalise(self, instruction: Finalise) -> None:
        async with self._commit(lambda: Tx(self, None)) as tx:
            for id in instruction.tasks:
                record = await tx.task(id)
                outcome = None if record is None else outcome_of_task(record)
                if record is not None and record.state.status == "completing" and outcome is not None:
                    await put_ended(tx, await changed(tx, record, "drained", Terminal(outcome)))

    async def _orphan(self, instruction: Orphan) -> None:
        async with self._commit(lambda: Tx(self, None)) as tx:
            for id, reason in instruction.tasks:
                record = await tx.task(id)
                if record is not None and outcome_of_task(record) is None:
                    await self._end_for(tx, record, Orphaned(reason))

    async def _end_for(
        self, tx: Tx, record: TaskRecord, outcome: Orphaned | Faulted, *, attempted: bool = False
    ) -> None:
        """End a task whose code cannot; the definition's ``settle`` writes what its readers need."""
        ended = await end_task(tx, record, outcome, attempted=attempted)
        found = self._definition(record.kind)
        if found is not None:
            await found[0].settle(tx, ended)  # type: ignore[arg-type]

    # -- reserving and running ---------------------------------------------------------------------------------------

    def _readiness(self, record: TaskRecord) -> Readiness:
        found = self._definition(record.kind)
        if found is None:
            return Readiness("missing_task")
        definition = found[0]
        if definition.version < record.version:
            return Readiness("task_too_old")
        migrates = definition.version > record.version
        failed = self._failed_migrations.get(record.id)
        if migrates and failed is not None and failed[0] is definition:
            return Readiness("migration_failed")
        return Readiness(None, migrates)

    async def _reserve(self, instruction: Reserve) -> None:
        started: list[tuple[TaskRecord, type[Task[Any, Any]], Mode, str | None]] = []
        passed_over: list[tuple[int, BlockedReason | None]] = []
        faulted: list[tuple[TaskRecord, str | None]] = []
        limit = self._restart_limit()
        async with self._commit(lambda: Tx(self, None)) as tx:
            for id, mode in instruction.tasks:
                record = await tx.task(id)
                if record is None or outcome_of_task(record) is not None or (mode == "run" and record.abort_requested):
                    passed_over.append((id, None))
                    continue
                readiness = self._readiness(record)
                found = self._definition(record.kind)
                if readiness.blocked is not None or found is None:
                    passed_over.append((id, None))
                    continue
                definition, extension = found
                if record.restarts and record.restarts >= limit:
                    await self._end_for(tx, record, _cut_off(record))
                    faulted.append((record, extension))
                    continue
                if readiness.migrates:
                    migrated = self._migrated(record, definition, extension)
                    if migrated is None:
                        passed_over.append((id, "migration_failed"))
                        continue
                    record = migrated
                checkpoint = checkpoint_of_task(record) or {}
                if record.state.status == "running":  # its run invocation was cancelled; now its abort handler starts
                    tx._add(EndAttempt(record.id, "parked"))
                reserved = await changed(tx, record, "reserve", Running(checkpoint=checkpoint))
                tx._put_task(reserved)
                tx._add(StartAttempt(record.id, str(checkpoint.get("phase")) if mode == "run" else "abort"))
                started.append((reserved, definition, mode, extension))
        for record, extension in faulted:
            self._report("task_faulted", task=record, extension=extension, reason="restart_limit")
        for id, blocked in passed_over:
            self._core.passed_over(id, blocked)
        for record, definition, mode, extension in started:
            if mode == "run" and not self._core.may_run(record.id):
                self._core.passed_over(record.id)  # ended, or cancelled while the commit was being stored
            elif record.id in self._core.nodes and not self._core.closing:
                self._start(record, definition, mode, extension)

    def _migrated(
        self, record: TaskRecord, definition: type[Task[Any, Any]], extension: str | None
    ) -> TaskRecord | None:
        """The record in the form of a newer definition, ``None`` when its migration raised."""
        stored = StoredTask(record.version, record.input, dict(checkpoint_of_task(record) or {}))
        try:
            input, phase = definition.migrate(stored)
            changes = {"input": definition.dump_input(input), "version": definition.version}
            checkpoint = phase.checkpoint()
            definition.load_phase(checkpoint)
        except Exception as error:
            self._failed_migrations[record.id] = (definition, error)
            self._report("migration_failed", error, task=record, extension=extension)
            return None
        return record.replaced(**changes, state=record.state.replaced(checkpoint=checkpoint))

    def _start(self, record: TaskRecord, definition: type[Task[Any, Any]], mode: Mode, extension: str | None) -> None:
        self._core.started(record.id, mode, self.clock())
        run: TaskRun[Any, Any]
        try:
            run = TaskRun(self, record, definition, mode, extension)
        except Exception as error:  # the stored input does not fit the definition
            self._spawn_end(record, extension, error)
            return
        run._last_record = record
        context = self.invocation_context(record) if self.invocation_context is not None else None
        task = self._loop.create_task(self._invoke(run), name=f"{record.kind}#{record.id}", context=context)
        if not self._invocations:
            watchdog.watch(self, self._loop_blocked, self.blocked_after)
        self._invocations[record.id] = _Invocation(run, task)

    def _loop_blocked(self, task: asyncio.Task[object] | None, stack: str, seconds: float) -> None:
        """The watchdog's report: something held up the event loop (engine.md, section 7)."""
        culprit = next((found.run for found in self._invocations.values() if found.task is task), None)
        self._report(
            "task_error",
            DurableError(
                f"a call blocked the engine's event loop for {seconds:.1f} s, and with it every task and timer: "
                f"await it, or run it in a thread\n{stack}"
            ),
            task=None if culprit is None else culprit.record,
            extension=None if culprit is None else culprit.extension,
            reason="blocked_loop",
        )

    def _ended_invocation(self, id: int) -> None:
        self._invocations.pop(id, None)
        if not self._invocations:
            watchdog.unwatch(self)

    def _spawn_end(self, record: TaskRecord, extension: str | None, error: BaseException) -> None:
        async def end() -> None:
            await self._fault(record.id, error, extension, "abort")
            self._core.stopped(record.id, self.clock(), "its input does not fit its definition")
            self._stir()

        task = self._loop.create_task(end())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _invoke(self, run: TaskRun[Any, Any]) -> None:
        """Run phases in sequence, and leave the record in a state that the next look at it understands."""
        why = "stopped before it began"
        invocation = self._invocations[run.id]
        invocation.begun = True
        _current.set((self, run.id))
        try:
            if not invocation.asked_to_stop:
                why = await self._phases(run)
        except asyncio.CancelledError:
            if not invocation.asked_to_stop:
                self._ended_invocation(run.id)
                raise  # the loop is being torn down: as a crash
            why = "invocation was cancelled"
        finally:
            run._active = False
        await self._join(run)
        try:
            await self._leave(run)
        except DurableError as error:
            if self._failure is None and not isinstance(error, SessionClosed):
                self._fail(error)
        self._ended_invocation(run.id)
        self._core.stopped(run.id, self.clock(), why)
        self._stir()

    async def _phases(self, run: TaskRun[Any, Any]) -> str:
        """The loop of one invocation; each round applies the first rule that fits (engine.md, section 7)."""
        while True:
            before = run.checkpoint
            error: BaseException | None = None
            try:
                if run.mode == "abort":
                    await run.definition.abort(run)
                else:
                    await run.definition.load_phase(before).run(run)
            except asyncio.CancelledError as cancelled:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
                error = cancelled  # the code raised it itself; nobody asked for it
            except BaseException as raised:
                if not is_own(raised):
                    raise
                error = raised
            record = self._committed.tasks.get(run.id)
            if record is None or record.state.status != "running":
                if error is not None:
                    run._last_record = record or run._last_record
                    self._report("task_error", error, task=run._last_record, extension=run.extension)
                return "left by its own commit"
            if self._closing is not None or self._core.closing or run._stopped:
                return "stopped"  # an error is then what the close made of its reads: it runs again at the next opening
            if run.mode == "run" and not self._core.may_run(run.id):
                return "stopped by an abort mark"
            if error is not None:
                await self._fault(run.id, error, run.extension, run.mode)
                return f"raised {type(error).__name__}"
            checkpoint = checkpoint_of_task(record) or {}
            if run.mode == "abort":
                error = DurableError("the abort handler returned without an outcome")
                await self._fault(run.id, error, run.extension, run.mode)
                return "the abort handler returned without an outcome"
            if checkpoint == before:
                error = DurableError(
                    f"the phase {before.get('phase')!r} returned without committing anything that goes on from it"
                )
                await self._fault(run.id, error, run.extension, run.mode)
                return "returned without progress"
            run.checkpoint = checkpoint
            run.resumed = False
            found = self._definition(record.kind)
            if found is not None and found[0] is not run.definition:
                if self._readiness(record).blocked is None:
                    return "handed over to a new definition"
                if run._outdated_by is not found[0]:
                    run._outdated_by = found[0]
                    self._report("task_outdated", task=record, extension=found[1])

    async def _fault(self, id: int, error: BaseException, extension: str | None, mode: Mode) -> None:
        """End a task whose code broke; an abort mark that landed meanwhile comes first."""
        async with self._commit(lambda: Tx(self, None)) as tx:
            record = await tx.task(id)
            if record is None or record.state.status != "running" or (mode == "run" and record.abort_requested):
                return
            await self._end_for(tx, record, fault(error), attempted=True)
        if record is not None:
            self._report("task_faulted", error, task=record, extension=extension)

    async def _leave(self, run: TaskRun[Any, Any]) -> None:
        """A record that is still running after its invocation goes back to pending, uncounted (handover).

        One that was abort-marked stays: its abort handler is reserved from there.
        """
        if self._core.closing or run.id not in self._sealed.tasks:
            return  # closing parks every task that is still running in one commit
        async with self._commit(lambda: Tx(self, None)) as tx:
            record = await tx.task(run.id)
            if record is None or record.state.status != "running":
                return
            if not (record.abort_requested and run.mode == "run"):
                await self._park(tx, record)

    async def _park(self, tx: Tx, record: TaskRecord) -> None:
        state = Pending(checkpoint=checkpoint_of_task(record) or {})
        tx._put_task(await changed(tx, record, "park", state))
        tx._add(EndAttempt(record.id, "parked"))

    async def _park_all(self) -> None:
        """At close: what was running goes back to pending, uncounted, with an abort mark that was admitted before."""
        if not any(task.state.status == "running" for task in self._sealed.tasks.values()):
            return
        async with self._commit(lambda: Tx(self, None)) as tx:
            for record in [task for task in self._sealed.tasks.values() if task.state.status == "running"]:
                await self._park(tx, record)

    async def _join(self, run: TaskRun[Any, Any]) -> None:
        """Wait for the worker threads that the invocation started."""
        while run._threads:
            run._told_to_stop = True
            await asyncio.wait(set(run._threads))

    def _cancel_invocation(self, id: int) -> None:
        invocation = self._invocations.get(id)
        if invocation is not None and not invocation.asked_to_stop:
            invocation.asked_to_stop = True
            invocation.run._stopped = True
            invocation.run._told_to_stop = True
            if invocation.begun and invocation.run._active:
                invocation.task.cancel()
            # One that has not begun looks at the flag, and one that has ended only waits for its threads: cancelling
            # either would skip its clean-up.

    def _check_open(self) -> None:
        """As ``Session``; but the code of a task goes on until it is cancelled, and never sees a close as an error."""
        current = _current.get()
        if self._closing is not None and current is not None and current[0] is self:
            invocation = self._invocations.get(current[1])
            if invocation is not None and not invocation.run._stopped:
                self._check_alive()
                return
        super()._check_open()

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def _stopping(self) -> None:
        self._core.close()
        if self._driver is not None and self._failure is None:
            self._driver.remove_done_callback(self._driver_ended)
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
        if self._failure is None:
            for invocation in list(self._invocations.values()):
                try:
                    await invocation.run.flush()
                except DurableError as error:
                    self._report("task_error", error, task=invocation.run.record)
        for id in list(self._invocations):
            self._cancel_invocation(id)
        pending = {invocation.task for invocation in self._invocations.values()} | self._background
        reported = False
        while pending:
            _, pending = await asyncio.wait(pending, timeout=self.slow_stop)
            if pending and not reported:
                reported = True
                for invocation in self._invocations.values():
                    where = _where(invocation)
                    self._report(
                        "task_error",
                        DurableError(f"closing waits for code that does not stop when it is cancelled: {where}"),
                        task=invocation.run.record,
                        extension=invocation.run.extension,
                        reason="slow_stop",
                    )
        if self._failure is None:
            async with self._line:  # what was admitted before the close began has its say first
                pass
            await self._park_all()
        for waiters in self._task_waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        watchdog.unwatch(self)

    def _failing(self) -> None:
        super()._failing()
        self._core.close()
        if self._driver is not None:
            self._driver.cancel()

    # -- what hosts ask ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start scheduling, and make sleeps that are due runnable (engine.md, section 8)."""
        self._check_open()
        self._core.resume()
        self._stir()

    def _implied_resume(self) -> None:
        """What submitting, aborting and waiting imply, unless a host holds scheduling back."""
        if self.hold:
            self._check_open()
        else:
            self.resume()

    def wake(self) -> Wake:
        """Whether there is work now, and when the next sleep is due; answered from memory (engine.md, section 8)."""
        active = self._reconciling or self._core.active(self.clock())
        return Wake(active, None if active else self._core.next_wake())

    def _tell_wake(self) -> None:
        if self._on_wake is None or self._core.closing:
            return
        wake = self.wake()
        if wake != self._last_wake:
            self._last_wake = wake
            try:
                self._on_wake(wake)
            except Exception as error:
                self._report("host_error", error, callback="on_wake")

    async def task(self, id: int) -> TaskRecord | None:
        """A task record, live or ended."""
        self._check_line()
        self._check_open()
        return self._committed.tasks.get(id) or await self._read(self.storage.task(id))

    async def wait_for_task(self, id: TaskId) -> TaskRecord:
        """Wait until a task has ended, and return its record. Starts scheduling.

        Raises ``DurableError`` for a task that does not exist, ``WouldDeadlock`` from code that the task waits for,
        ``SessionClosed`` or ``SessionFailed`` when the session ends first.
        """
        self._check_line()
        inside = self._inside()
        if inside is not None and self._depends_on(id, inside):
            raise WouldDeadlock(f"task {id} cannot end before the task {inside} that this code is part of")
        self._implied_resume()
        while True:
            self._check_open()
            record = await self.task(id)
            if record is None:
                raise DurableError(f"there is no task {id}")
            if record.terminal:
                return record
            await self._end_of(id)

    async def _end_of(self, id: int) -> None:
        """Wait for the end of a live task, or of the session."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiters = self._task_waiters.setdefault(id, {})
        waiters[waiter] = None
        try:
            await waiter
        finally:
            waiters.pop(waiter, None)

    async def _ends_of(self, tasks: Iterable[int]) -> None:
        """Wait until none of these tasks is live. Raises when the session ends first."""
        for id in tasks:
            self._check_open()
            while id in self._committed.tasks:
                await self._end_of(id)
                self._check_open()

    def _inside(self) -> int | None:
        """The task whose invocation the calling code is part of, while that goes on."""
        current = _current.get()
        return current[1] if current is not None and current[0] is self and current[1] in self._invocations else None

    async def close(self) -> None:
        """As ``Session.close``. Raises ``WouldDeadlock`` from code of a task, which it would wait for."""
        self._check_line()
        inside = self._inside()
        if inside is not None and self.end is None:
            raise WouldDeadlock(f"closing waits for task {inside}, whose code asks for it: close from outside")
        await super().close()

    async def signal(
        self, task: TaskId, name: str, value: JsonValue = None, *, request_id: str | None = None
    ) -> SignalResult:
        """Send a named value to a task; returns when it is stored. Starts scheduling.

        ``delivered`` when the task waited for it, ``kept`` until it asks for the name, ``duplicate`` when it was sent
        the same request id before, ``terminal`` when the task has its outcome and will ask for nothing. Raises
        ``DurableError`` for a task that does not exist, and ``InvalidValue`` for a value that is not strict JSON.
        """
        self._check_line()
        self._implied_resume()
        async with self._commit(lambda: Tx(self, None)) as tx:
            return await deliver(tx, task, name, value, request_id)

    async def story(self, id: TaskId) -> str:
        """What happened to a task, live or ended, as a person reads it: one line per happening, oldest first.

        It is told from the stored record and attempts, and from what this process saw. Raises ``DurableError`` for a
        task that does not exist.
        """
        record = await self.task(id)
        if record is None:
            raise DurableError(f"there is no task {id}")
        return await self._story(record)

    async def _story(self, record: TaskRecord) -> str:
        attempts = await self._read(self.storage.attempts(task=record.id))
        lives = await self._read(self.storage.lives())
        return tell(record, attempts, lives, self._core.events)

    def validate(self) -> None:
        """Check that what is live in memory agrees: the scheduler's core, and the committed records.

        Raises ``AssertionError`` naming the first thing that does not.
        """
        self._core.validate()
        tasks = self._committed.tasks
        assert self._core.nodes.keys() == tasks.keys(), "the scheduler and the committed records list other live tasks"
        for id, node in self._core.nodes.items():
            assert node.record is tasks[id], f"the scheduler has another record of task {id} than the committed one"
            children = {child for child in self._committed.children.get(id, ()) if child in tasks}
            assert node.children.keys() == children, (
                f"task {id} owns {sorted(children)}, the scheduler has {node.children}"
            )
            if node.invocation is not None and self._failure is None and self.end is None:
                assert id in self._invocations or self._background, f"task {id} counts as running without an invocation"

    async def abort_task(self, id: TaskId) -> Literal["marked", "terminal"]:
        """Ask for the abort of a task and all its ordinary owned work; returns when the mark is stored.

        ``terminal`` says that it had ended before. Raises ``DurableError`` for a task that does not exist.
        """
        self._check_line()
        self._implied_resume()
        await self._flush(id)
        async with self._commit(lambda: Tx(self, None)) as tx:
            return await self._stage_mark(tx, id, None)

    async def _flush(self, id: TaskId) -> None:
        """Have a running task commit what has arrived, before it is stopped."""
        invocation = self._invocations.get(id)
        if invocation is not None:
            await invocation.run.flush()

    def _depends_on(self, task: int, other: int) -> bool:
        """Whether ``task`` cannot end before ``other``: it is it, waits for it, or owns it, over any steps."""
        seen = {task}
        stack = [task]
        while stack:
            current = stack.pop()
            if current == other:
                return True
            record = self._committed.tasks.get(current)
            waits = record.state.on if record is not None and isinstance(record.state, Waiting) else ()
            for following in (*waits, *self._committed.children.get(current, ())):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return False

    def _published(self, publication: Publication) -> None:
        super()._published(publication)
        if publication.tasks and self._driver is not None:  # what open itself writes is loaded with all the rest
            self._core.committed(publication.tasks.values(), publication.at)
            for id, record in publication.tasks.items():
                invocation = self._invocations.get(id)
                if invocation is not None:
                    invocation.run._last_record = record
                if id in self._failed_targets and isinstance(record.state, Waiting):
                    self._failed_targets.discard(id)
                    self._core.target_failed(id)
                if record.terminal:
                    self._failed_migrations.pop(id, None)
                    for waiter in self._task_waiters.pop(id, ()):
                        if not waiter.done():
                            waiter.set_result(None)
            self._stir()

    def _registry_changed(self) -> None:
        """The registry's listener."""
        if self.end is None and not self._core.closing:
            self._core.registry_changed()
            self._stir()

    # -- the task graph ----------------------------------------------------------------------------------------------

    async def task_graph(self) -> TaskGraph:
        """Every live task, with its owner, phase, waits, and why it is blocked (engine.md, section 14)."""
        self._check_line()
        self._check_open()
        return self._graph()

    def _graph(self) -> TaskGraph:
        self._core.active(self.clock())  # considers what changed since the driver last looked
        return graph_of(self._core.nodes.values(), self._committed.owned_conversations)

    def watch_task_graph(self) -> Watch[TaskGraph]:
        """Follow the task graph over commits, registry changes and failed migrations."""
        self._check_open()

        def attach(watch: Watch[TaskGraph]) -> TaskGraph:
            if self._graph_keeper is None:
                self._graph_keeper = GraphKeeper(self._core, self._committed.owned_conversations)
            else:
                self._graph_changed()  # the others see what happened before this one comes
            self._follow(watch, follow)
            self._graph_watches.add(watch)
            return self._graph_keeper.graph

        def follow(publication: Publication) -> None:
            owners = [record.owner.task for record in publication.conversations.values() if record.owner is not None]
            if publication.tasks or owners:
                self._graph_changed(owners)

        def detach(watch: Watch[TaskGraph]) -> None:
            self._graph_watches.discard(watch)
            self._unfollow(watch)
            if not self._graph_watches and self._graph_keeper is not None:
                self._graph_keeper.close()
                self._graph_keeper = None

        return Watch(attach, detach, TaskGraph.to_data)

    def _graph_changed(self, also: Iterable[int] = ()) -> None:
        """Show the watches of the graph what changed since they were last shown something."""
        if self._graph_keeper is None:
            return
        self._core.active(self.clock())  # considers what changed since the driver last looked
        ops = self._graph_keeper.look(also)
        if ops:
            for watch in list(self._graph_watches):
                watch._push(self._graph_keeper.graph, ops)


def _where(invocation: _Invocation) -> str:
    """What an invocation is doing: its stack, or that it waits for threads that it started."""
    if invocation.run._threads:
        return f"{len(invocation.run._threads)} of its threads still run; ctx.cancelled tells them to stop"
    lines: list[str] = []
    awaited: Any = invocation.task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:  # a task's own stack shows the outermost only
        lines.extend(traceback.format_list(traceback.StackSummary.extract([(frame, frame.f_lineno)])))
        awaited = awaited.cr_await
    return "\n" + "".join(lines)


def _cut_off(record: TaskRecord) -> Faulted:
    """The outcome of a task at its restart limit."""
    return Faulted(
        error=ErrorInfo(
            f"Task {record.id} ({record.kind}) was cut off {record.restarts} times without progress",
            {"reason": "restart_limit"},
        )
    )
