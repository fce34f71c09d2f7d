"""The scheduler's decisions: events in, instructions out, nothing else (engine.md, sections 7 and 8).

The core knows the committed records of live tasks and which of them this process runs. *Events* (methods whose names
are past participles) tell it what happened; ``decide`` returns the *instructions* that follow. It performs no input or
output, keeps no clock, and calls no user code, so everything it does can be driven and checked by a test.

Words. A task is *cancelled* when it or something above it is abort-marked or ended otherwise than completed: no run
phase of it may start. It is *drained* when nothing of its ordinary owned work is live. It is *ready* when an invocation
could start, and *blocked* when its definition cannot take it. It is *queued* when it is ready and was not handed out
yet, and *reserving* from the instruction that hands it out until the shell says that it started or was passed over.

Every decision about a task is made in one place, ``_assess``, from its record and a handful of flags; events only say
whose turn it is to be assessed again. Each step costs what it touches, so many tasks stay linear. That holds for the
garbage collector too, which walks all that is live again and again: sets of ids are kept as the keys of a dictionary,
and happenings as plain tuples, because it need not look into either.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

from ..records import Sleeping, TaskRecord, Waiting, outcome_of_task

BlockedReason: TypeAlias = Literal["missing_task", "task_too_old", "migration_failed"]
Mode: TypeAlias = Literal["run", "abort"]
MarkReason: TypeAlias = Literal["restart"] | None
"""Why a task is marked: a restart gave it up, or an abort was asked for, which stands above a restart."""

RESERVE_AT_ONCE = 64
"""How many ready tasks one commit reserves, or orphans."""

STORY_EVENTS = 20_000
"""How many events of this process are kept for stories."""


@dataclass(slots=True)
class Node:
    """A live task, as the core sees it."""

    record: TaskRecord
    owner: int | None
    children: dict[int, None] = field(default_factory=dict)
    invocation: Mode | None = None
    cancelled: bool = False
    unsettled: dict[int, None] = field(default_factory=dict)  # what a waiting task still waits for
    failed_fast: bool = False  # its wait has aborted the rest
    alarm: float | None = None  # its newest entry among the sleepers
    rung: float | None = None  # the alarm that rang: sleepers go on in the order of their alarms
    blocked: BlockedReason | None = None
    migrates: bool = False


# -- instructions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """Commit abort marks: a cascade, a fail-fast wait, or tasks abandoned by a restart."""

    tasks: tuple[int, ...]
    reason: MarkReason = None


@dataclass(frozen=True, slots=True)
class Finalise:
    """Commit the held outcomes of completing tasks that have drained."""

    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Orphan:
    """End abort-marked tasks whose code is missing; each with the reason for which it was blocked."""

    tasks: tuple[tuple[int, BlockedReason], ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Commit tasks to running and start their invocations."""

    tasks: tuple[tuple[int, Mode], ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a running invocation whose task was abort-marked."""

    task: int


Instruction: TypeAlias = Mark | Finalise | Orphan | Reserve | Cancel


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a definition can take a task: ``blocked`` says why not, ``migrates`` that it is of an older version."""

    blocked: BlockedReason | None = None
    migrates: bool = False


StoryEvent: TypeAlias = tuple[float, int, str]
"""One thing that happened to a task in this process: when, to which one, and what."""


class SchedulerCore:
    """Decides what happens to live tasks.

    ``readiness`` answers for a record from the registry as it is now; ``owner_of`` names the task whose ordinary work a
    task is (see ``Mirror``).
    """

    def __init__(
        self, readiness: Callable[[TaskRecord], Readiness], owner_of: Callable[[TaskRecord], int | None]
    ) -> None:
        self._readiness = readiness
        self._owner_of = owner_of
        self.nodes: dict[int, Node] = {}
        self.resumed = False
        self.closing = False
        self._waiters: dict[int, dict[int, None]] = {}
        self._ready: deque[int] = deque()
        self._sleepers: list[tuple[float, int]] = []
        self._to_mark: dict[int, MarkReason] = {}
        self._to_finalise: dict[int, None] = {}
        self._to_orphan: dict[int, BlockedReason] = {}
        self._to_cancel: dict[int, None] = {}
        self._dirty: dict[int, None] = {}
        self._blocked: set[int] = set()
        self._queued: set[int] = set()  # in the ready queue
        self._reserving: set[int] = set()  # handed out by Reserve, neither started nor passed over
        self._marking: dict[int, MarkReason] = {}  # the newest abort mark that was asked for and has not landed
        self._ending: set[int] = set()  # asked to be finalised or orphaned
        self._running = 0
        self._from_earlier_life: set[int] = set()
        self.events: deque[StoryEvent] = deque(maxlen=STORY_EVENTS)
        self.seen_changes: set[int] | None = None
        """Tasks whose node looks different since this was last emptied; ``None`` when nobody follows."""

    # -- events ------------------------------------------------------------------------------------------------------

    def loaded(self, records: Iterable[TaskRecord]) -> None:
        """An opening found these live tasks; they belong to earlier lives."""
        found = list(records)
        self._from_earlier_life.update(record.id for record in found if record.abandon_on_restart)
        self.committed(found, 0.0)
        self.events.clear()  # that they are known now is nothing that happened to them

    def committed(self, records: Iterable[TaskRecord], at: float) -> None:
        """A settled commit changed these records."""
        records = sorted(records, key=lambda record: record.id)  # owners come before what they own
        new = [record for record in records if not record.terminal and record.id not in self.nodes]
        for record in new:  # all of them first: a record may wait for another of the same commit
            self._added(record)
            self._note(at, record.id, f"created as {record.state.status}")
        for record in records:
            node = self.nodes.get(record.id)
            if record.terminal:
                if node is not None:
                    self._ended(node, record, at)
                continue
            if node is not None:
                self._changed(node, record, at)

    def _changed(self, node: Node, record: TaskRecord, at: float) -> None:
        before = node.record
        if before.state is not record.state and before.state != record.state:
            self._note(at, record.id, describe(record))
        if record.abort_requested:
            if record.abort_reason is None or self._marking.get(record.id) == record.abort_reason:
                self._marking.pop(record.id, None)  # the mark of a restart does not answer a request behind it
            if not before.abort_requested:
                self._note(at, record.id, f"abort mark{f' ({record.abort_reason})' if record.abort_reason else ''}")
        self._unwait(node)
        node.record = record
        self._show(record.id)
        self._wait(node)
        outcome = outcome_of_task(record)
        if record.abort_requested or (outcome is not None and outcome.status != "completed"):
            self._cancel_below(node, self._reason_below(node))
        if outcome is not None and outcome.status != "completed":
            self._target_failed(record.id)
        self._touch(record.id)

    def started(self, task: int, mode: Mode, at: float) -> None:
        """An invocation of a reserved task began."""
        node = self.nodes[task]
        assert node.invocation is None, f"task {task} already has an invocation"
        self._reserving.discard(task)
        node.invocation = mode
        self._running += 1
        self._note(at, task, f"{mode} invocation began")
        self._touch(task)

    def stopped(self, task: int, at: float, why: str) -> None:
        """The invocation of a task ended; its record says how it left it."""
        node = self.nodes.get(task)
        self._note(at, task, why)
        if node is not None and node.invocation is not None:
            self._running -= 1
            node.invocation = None
            self._touch(task)

    def passed_over(self, task: int, blocked: BlockedReason | None = None) -> None:
        """A reserve did not start a task: its record had changed, it may not run any more, or its migration failed."""
        node = self.nodes.get(task)
        self._reserving.discard(task)
        if node is not None:
            if blocked is not None:
                self._block(node, blocked)
            self._touch(task)

    def registry_changed(self) -> None:
        """Definitions may have come, gone or changed: whatever is blocked or ready is considered again."""
        self._ending.difference_update(self._to_orphan)
        self._to_orphan.clear()
        self._ready.clear()
        self._queued.clear()
        for task in self.nodes:
            self._touch(task)

    def resume(self) -> None:
        """Scheduling starts; tasks that earlier lives awaited only in memory are given up first."""
        if not self.resumed:
            self.resumed = True
            for task in sorted(self._from_earlier_life):
                node = self.nodes.get(task)
                if node is not None and not node.record.abort_requested:
                    self._cancel(node, "restart")
                    if node.record.state.status == "completing":  # only marked: its outcome stays
                        self._ask_mark(node, "restart")
            self._from_earlier_life.clear()

    def close(self) -> None:
        """Nothing new starts from now on."""
        self.closing = True

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Instruction]:
        """What is to be done now, in this order: cancellations, marks, ends, starts."""
        self._look(now)
        instructions: list[Instruction] = []
        if self.closing:
            return instructions
        if self._to_cancel:
            instructions.extend(Cancel(task) for task in self._to_cancel)
            self._to_cancel.clear()
        if self._to_mark:
            for reason in ("restart", None):
                marks = tuple(task for task, why in self._to_mark.items() if why == reason)
                if marks:
                    instructions.append(Mark(marks, "restart" if reason else None))
            self._to_mark.clear()
        if self._to_finalise:
            instructions.append(Finalise(tuple(self._to_finalise)))
            self._to_finalise.clear()
        if self.resumed:
            if self._to_orphan:
                orphans = tuple(islice(self._to_orphan.items(), RESERVE_AT_ONCE))
                instructions.append(Orphan(orphans))
                for task, _ in orphans:
                    del self._to_orphan[task]
            reserve: list[tuple[int, Mode]] = []
            while self._ready and len(reserve) < RESERVE_AT_ONCE:
                task = self._ready.popleft()
                node = self.nodes.get(task)
                if node is None or task not in self._queued:
                    continue
                self._queued.discard(task)
                mode = self._may_start(node, now)
                if mode is not None:
                    self._reserving.add(task)
                    reserve.append((task, mode))
                else:  # the clock went back
                    self._assess(node, now)
            if reserve:
                instructions.append(Reserve(tuple(reserve)))
        return instructions

    def may_run(self, task: int) -> bool:
        """Whether a run phase of a reserved or running task may start now: neither it nor an owner is cancelled."""
        node = self.nodes.get(task)
        return node is not None and not node.cancelled and not node.record.abort_requested

    def active(self, now: float) -> bool:
        """Whether a task can run or runs now (engine.md, section 8)."""
        self._look(now)
        return bool(
            self._running or self._queued or self._reserving or self._marking or self._ending or self._to_cancel
        )

    def next_wake(self) -> float | None:
        """The earliest instant at which a sleep is due."""
        while self._sleepers:
            until, task = self._sleepers[0]
            node = self.nodes.get(task)
            if node is not None and _until(node.record) == until == node.alarm:
                if not node.record.abort_requested and not node.cancelled:
                    return until
                node.alarm = None
            heapq.heappop(self._sleepers)
        return None

    def _look(self, now: float) -> None:
        """Assess what changed, and then the tasks whose alarm rings by now, in the order of their alarms."""
        self._assess_dirty(now)
        while self._sleepers and self._sleepers[0][0] <= now:
            until, task = heapq.heappop(self._sleepers)
            node = self.nodes.get(task)
            if node is not None and node.alarm == until:
                node.alarm = None
                node.rung = until
                self._touch(task)
        self._assess_dirty(now)

    # -- assessment --------------------------------------------------------------------------------------------------

    def _assess_dirty(self, now: float) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for task in dirty:
                node = self.nodes.get(task)
                if node is not None:
                    self._assess(node, now)

    def _assess(self, node: Node, now: float) -> None:
        """Decide what is next for one task."""
        record = node.record
        if node.invocation is not None and record.state.status != "completing":
            if record.abort_requested and node.invocation == "run":
                self._to_cancel[record.id] = None
            return
        if record.id in self._reserving or record.id in self._ending:
            return
        if record.id in self._queued:
            if self._may_start(node, now) is not None:
                return
            self._queued.discard(record.id)
        if record.state.status == "completing":
            if not node.children:
                self._ending.add(record.id)
                self._to_finalise[record.id] = None
            return
        until = _until(record)
        if until is not None:
            if until > now:
                node.rung = None  # the clock went back
            if until not in (node.alarm, node.rung):
                node.alarm = until
                heapq.heappush(self._sleepers, (until, record.id))
        if self._may_start(node, now) is None:
            self._unblock(node)
            return
        readiness = self._readiness(record)
        node.migrates = readiness.migrates
        if readiness.blocked is None:
            self._unblock(node)
            self._queued.add(record.id)
            self._ready.append(record.id)
        elif record.abort_requested and record.abort_reason is None:
            self._ending.add(record.id)
            self._to_orphan[record.id] = readiness.blocked
        else:
            self._block(node, readiness.blocked)

    def _may_start(self, node: Node, now: float) -> Mode | None:
        """Which invocation the record calls for, leaving aside whether its code is there."""
        record = node.record
        state = record.state
        if node.invocation is not None or record.id in self._marking:
            return None
        if record.abort_requested:
            return "abort" if not node.children else None
        if node.cancelled:
            return None
        if state.status == "pending":
            return "run"
        if isinstance(state, Waiting):
            settled = state.signal is None and not node.unsettled and (bool(state.on) or state.until is None)
            due = state.until is not None and state.until <= now and node.rung == state.until
            return "run" if settled or due else None
        if state.status == "sleeping":
            return "run" if state.until <= now and node.rung == state.until else None
        return None

    def _block(self, node: Node, reason: BlockedReason) -> None:
        if node.blocked != reason:
            self._show(node.record.id)
            node.blocked = reason
            self._blocked.add(node.record.id)

    def _unblock(self, node: Node) -> None:
        if node.blocked is not None:
            self._show(node.record.id)
            node.blocked = None
            self._blocked.discard(node.record.id)

    # -- keeping the indexes -----------------------------------------------------------------------------------------

    def _added(self, record: TaskRecord) -> Node:
        owner = self._owner_of(record)
        node = self.nodes[record.id] = Node(record, owner)
        self._show(record.id)
        above = self.nodes.get(owner) if owner is not None else None
        if above is not None:
            above.children[record.id] = None
            outcome = outcome_of_task(above.record)
            if above.cancelled or above.record.abort_requested or (outcome and outcome.status != "completed"):
                self._cancel(node, self._reason_below(above))
        return node

    def _ended(self, node: Node, record: TaskRecord, at: float) -> None:
        outcome = outcome_of_task(record)
        if record.ended_at is None:  # else the record tells it
            self._note(at, record.id, f"ended {outcome.status if outcome else ''}")
        self._unwait(node)
        self._unblock(node)
        if node.invocation is not None:
            self._running -= 1  # its code may run on for a moment; the task itself has ended
            node.invocation = None
        del self.nodes[record.id]
        self._show(record.id)
        for flags in (self._queued, self._reserving, self._ending):
            flags.discard(record.id)
        for asked in (self._marking, self._to_mark, self._to_finalise, self._to_orphan, self._to_cancel):
            asked.pop(record.id, None)
        above = self.nodes.get(node.owner) if node.owner is not None else None
        if above is not None:
            above.children.pop(record.id, None)
            if not above.children:
                self._touch(above.record.id)
        if outcome is not None and outcome.status != "completed":
            self._target_failed(record.id)
        for waiter in self._waiters.pop(record.id, ()):
            waiting = self.nodes.get(waiter)
            if waiting is None:
                continue
            waiting.unsettled.pop(record.id, None)
            if not waiting.unsettled:
                self._touch(waiter)

    def _wait(self, node: Node) -> None:
        state = node.record.state
        if isinstance(state, Waiting):
            node.unsettled = dict.fromkeys(task for task in state.on if task in self.nodes)
            for task in node.unsettled:
                self._waiters.setdefault(task, {})[node.record.id] = None

    def _unwait(self, node: Node) -> None:
        for task in node.unsettled:
            waiters = self._waiters.get(task)
            if waiters is not None:
                waiters.pop(node.record.id, None)
                if not waiters:
                    del self._waiters[task]
        node.unsettled = {}
        node.failed_fast = False

    def waits_settled(self, failed: Callable[[int], bool]) -> None:
        """After an opening, when ends before it are known: fail-fast waits with a failed target abort the rest."""
        for node in self.nodes.values():
            state = node.record.state
            if not isinstance(state, Waiting) or state.policy != "fail_fast":
                continue
            if any(failed(task) if task not in self.nodes else self._holds_failure(task) for task in state.on):
                self._fail_fast(node)

    def target_failed(self, task: int) -> None:
        """A fail-fast wait was committed when one of its targets already had an outcome other than completed."""
        node = self.nodes.get(task)
        if node is not None and isinstance(node.record.state, Waiting):
            self._fail_fast(node)

    def _target_failed(self, target: int) -> None:
        """A task reached an outcome other than completed, held or final: fail-fast waits for it abort the rest."""
        for waiter in self._waiters.get(target, ()):
            waiting = self.nodes.get(waiter)
            if (
                waiting is not None
                and isinstance(waiting.record.state, Waiting)
                and waiting.record.state.policy == "fail_fast"
            ):
                self._fail_fast(waiting)

    def _holds_failure(self, task: int) -> bool:
        outcome = outcome_of_task(self.nodes[task].record)
        return outcome is not None and outcome.status != "completed"

    def _fail_fast(self, node: Node) -> None:
        if node.failed_fast:
            return
        node.failed_fast = True
        for task in sorted(node.unsettled):
            rest = self.nodes.get(task)
            if rest is not None:
                self._cancel(rest, None)

    def _cancel(self, node: Node, reason: MarkReason) -> None:
        """Forbid run phases of a task and below it, at once, and ask for the marks that make it durable."""
        node.cancelled = True
        if node.record.state.status != "completing":
            self._ask_mark(node, reason)
        self._touch(node.record.id)
        self._cancel_below(node, reason)

    def _cancel_below(self, top: Node, reason: MarkReason) -> None:
        """The same for everything below a task. It stops where an earlier cascade did the same or more."""
        stack = [top]
        while stack:
            for id in stack.pop().children:
                node = self.nodes.get(id)
                if node is None or (node.cancelled and (reason is not None or self._abort_asked(node))):
                    continue
                node.cancelled = True
                if node.record.state.status != "completing":
                    self._ask_mark(node, reason)
                self._touch(id)
                stack.append(node)

    def _ask_mark(self, node: Node, reason: MarkReason) -> None:
        """Ask for an abort mark, unless one that stands above it or is the same is stored or under way."""
        id = node.record.id
        known = node.record.abort_requested or id in self._marking
        if not known or (reason is None and not self._abort_asked(node)):
            self._marking[id] = self._to_mark[id] = reason

    def _abort_asked(self, node: Node) -> bool:
        """Whether a real request of abort has marked a task, or is about to."""
        record = node.record
        return (record.abort_requested and record.abort_reason is None) or self._marking.get(record.id, "no") is None

    def _reason_below(self, node: Node) -> MarkReason:
        """With which reason a cancelled task cancels what is below it."""
        record = node.record
        outcome = outcome_of_task(record)
        if outcome is not None and outcome.status != "completed":
            return None
        return record.abort_reason if record.abort_requested else self._marking.get(record.id)

    def _show(self, task: int) -> None:
        if self.seen_changes is not None:
            self.seen_changes.add(task)

    def _touch(self, task: int) -> None:
        self._dirty[task] = None

    def _note(self, at: float, task: int, what: str) -> None:
        self.events.append((at, task, what))

    # -- checks ------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check the invariants; raises ``AssertionError`` naming the first that is broken."""
        running = 0
        alarms = set(self._sleepers)
        for id, node in self.nodes.items():
            record = node.record
            assert id == record.id, f"task {record.id} is kept as {id}"
            assert not record.terminal, f"task {id} is kept although it ended"
            running += node.invocation is not None
            for child in node.children:
                assert child in self.nodes, f"task {id} counts child {child}, which has ended"
                assert self.nodes[child].owner == id, f"task {child} is not owned by {id}"
            above = self.nodes.get(node.owner) if node.owner is not None else None
            if above is not None:
                assert id in above.children, f"task {id} is missing below {node.owner}"
                outcome = outcome_of_task(above.record)
                if above.cancelled or above.record.abort_requested or (outcome and outcome.status != "completed"):
                    assert node.cancelled, f"task {id} may run although its owner {node.owner} is cancelled"
            if node.cancelled and not record.abort_requested and record.state.status != "completing":
                assert id in self._marking, f"task {id} is cancelled, and no mark of it is under way"
            if node.invocation == "abort":
                assert not node.children, f"the abort handler of {id} runs while work below is live"
            if node.alarm is not None:
                assert (node.alarm, id) in alarms, f"the alarm of {id} is lost"
            for target in node.unsettled:
                assert target in self.nodes, f"task {id} waits for {target}, which has ended"
                assert id in self._waiters.get(target, ()), f"task {id} would not hear of the end of {target}"
            assert (node.blocked is not None) == (id in self._blocked), f"task {id} is wrongly listed as blocked or not"
            elsewhere = [id in flags for flags in (self._queued, self._reserving, self._ending)]
            runs = node.invocation is not None and record.state.status != "completing"  # its code may run on
            assert elsewhere.count(True) + runs <= 1, f"task {id} is in two places at once"
        assert running == self._running, f"{running} invocations run, {self._running} were counted"
        for what, ids in (("queued", self._queued), ("reserving", self._reserving), ("marking", set(self._marking))):
            assert ids <= self.nodes.keys(), f"{what} tasks are not live: {sorted(ids - self.nodes.keys())}"
        assert self._queued <= set(self._ready), f"queued, not in the queue: {self._queued - set(self._ready)}"

    def overlooked(self, now: float) -> list[int]:
        """Tasks that could go on and that nothing is under way for: a lost wake-up. Empty after ``decide``."""
        busy = self._queued | self._reserving | self._ending | self._marking.keys() | self._dirty.keys()
        lost: list[int] = []
        for id, node in self.nodes.items():
            state = node.record.state
            runs = node.invocation is not None and state.status != "completing"
            if id in busy or runs or node.blocked is not None:
                continue
            if (
                self._may_start(node, now) is not None
                or (state.status == "completing" and not node.children)
                or ((until := _until(node.record)) is not None and until not in (node.alarm, node.rung))
            ):
                lost.append(id)
        return lost


def _until(record: TaskRecord) -> float | None:
    """When a sleep or a bounded wait is due."""
    state = record.state
    return state.until if isinstance(state, Sleeping | Waiting) else None


def describe(record: TaskRecord) -> str:
    """The state of a record in words."""
    state = record.state
    if state.status == "waiting":
        return _describe_wait(state)
    if state.status == "sleeping":
        return f"sleeps until {state.until:.3f}"
    if state.status == "completing":
        return f"holds its outcome {state.outcome.status} until its work has drained"
    return f"{state.status} at {state.checkpoint.get('phase')}" if state.status != "terminal" else "ended"


def _describe_wait(state: Waiting) -> str:
    what = []
    if state.on:
        shown = ", ".join(map(str, state.on[:10])) + (f" and {len(state.on) - 10} more" if len(state.on) > 10 else "")
        what.append(f"on {shown} ({state.policy})")
    if state.signal is not None:
        what.append(f"for the signal {state.signal!r}")
    if state.until is not None:
        what.append(f"until {state.until:.3f}")
    return f"waits {' '.join(what)}" if what else "waits for nothing"
