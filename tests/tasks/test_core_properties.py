"""The scheduler's core alone, driven by random events (engine.md, sections 7 and 8).

A simulated shell commits what the core asks for, one instruction at a time, while tasks act, are aborted, sleep, lose
their definitions and crash in between. After each step the core's own invariants hold, and these, computed here from
the records alone: no run phase starts below a cancelled owner, no task ends while ordinary owned work is live, abort
handlers start bottom up, and each task runs at most once at a time. At the end everything can be brought to an end: no
wake-up was lost.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from pidurable_nb.errors import WaitCycle
from pidurable_nb.records import (
    Aborted,
    Completed,
    ConversationId,
    ErrorInfo,
    Failed,
    Orphaned,
    Outcome,
    Pending,
    Running,
    Sleeping,
    TaskId,
    TaskRecord,
    Terminal,
    Waiting,
    checkpoint_of_task,
    outcome_of_task,
)
from pidurable_nb.tasks.core import Cancel, Finalise, Instruction, Mark, Mode, Orphan, Readiness, Reserve, SchedulerCore
from pidurable_nb.tasks.rules import Cause, change, check_wait, outcome_state

ACTS = ["next", "wait", "wait", "fail_fast", "sleep", "complete", "complete", "fail"]


class Scheduler:
    """The simulated shell and its tasks; every event takes two numbers that choose."""

    def __init__(self) -> None:
        self.now = 100.0
        self.next_id = 1
        self.live: dict[int, TaskRecord] = {}
        self.ended: dict[int, TaskRecord] = {}
        self.missing: set[str] = set()
        self.invocations: dict[int, Mode] = {}
        self.queue: deque[Instruction] = deque()
        self.core = self.new_core()

    def new_core(self) -> SchedulerCore:
        return SchedulerCore(
            lambda record: Readiness("missing_task" if record.kind in self.missing else None),
            lambda record: record.owner,
        )

    # -- what the simulated shell does -------------------------------------------------------------------------------

    def put(self, *records: TaskRecord) -> None:
        for record in records:
            if record.terminal:
                assert not self.below(record.id), f"task {record.id} ended while work below it is live"
                self.live.pop(record.id, None)
                self.ended[record.id] = record
            else:
                self.live[record.id] = record
        self.core.committed(records, self.now)

    def below(self, id: int) -> list[int]:
        return [child for child, record in self.live.items() if record.owner == id]

    def all_below(self, id: int) -> list[int]:
        found = []
        stack = [id]
        while stack:
            children = self.below(stack.pop())
            found += children
            stack += children
        return found

    def cancelled(self, id: int) -> bool:
        """From the records alone: whether the task or an owner above it is marked, or failed."""
        record = self.live.get(id)
        while record is not None:
            outcome = outcome_of_task(record)
            if record.abort_requested or (outcome is not None and outcome.status != "completed"):
                return True
            record = None if record.owner is None else self.live.get(record.owner)
        return False

    def move(self, id: int, cause: Cause, state: Any) -> None:
        self.put(change(self.live[id], cause, state, self.now))

    def end(self, id: int, outcome: Outcome) -> None:
        self.move(id, "outcome", outcome_state(outcome, bool(self.below(id))))

    def perform(self, instruction: Instruction) -> None:
        if isinstance(instruction, Reserve):
            self.reserve(instruction)
        elif isinstance(instruction, Cancel):
            assert instruction.task not in self.invocations or self.live[instruction.task].abort_requested
        elif isinstance(instruction, Mark):
            self.put(*[self.marked(id, instruction.reason) for id in instruction.tasks if id in self.live])
        elif isinstance(instruction, Finalise):
            for id in instruction.tasks:
                record = self.live[id]
                outcome = outcome_of_task(record)
                assert outcome is not None
                self.move(id, "drained", Terminal(outcome))
        elif isinstance(instruction, Orphan):
            for id, reason in instruction.tasks:
                if id in self.live and outcome_of_task(self.live[id]) is None:
                    self.end(id, Orphaned(reason))

    def marked(self, id: int, reason: Any) -> TaskRecord:
        record = self.live[id]
        if record.abort_requested and not (record.abort_reason is not None and reason is None):
            return record
        return record.replaced(abort_requested=True, abort_reason=reason, restarts=0)

    def reserve(self, instruction: Reserve) -> None:
        started = []
        for id, mode in instruction.tasks:
            record = self.live.get(id)
            marked = record is not None and mode == "run" and record.abort_requested
            if record is None or outcome_of_task(record) is not None or marked or record.kind in self.missing:
                self.core.passed_over(id)
            else:
                checkpoint = checkpoint_of_task(record) or {}
                self.move(id, "reserve", Running(checkpoint=checkpoint))
                started.append((id, mode))
        for id, mode in started:
            if mode == "run" and not self.core.may_run(id):
                self.core.passed_over(id)
                continue
            assert id not in self.invocations, f"task {id} runs twice at a time"
            if mode == "run":
                assert not self.cancelled(id), f"a run phase of {id} starts below a cancelled owner"
            else:
                assert not self.all_below(id), f"the abort handler of {id} starts before the work below has ended"
            self.invocations[id] = mode
            self.core.started(id, mode, self.now)

    def step(self) -> bool:
        if not self.queue:
            self.queue.extend(self.core.decide(self.now))
            if not self.queue:
                return False
        self.perform(self.queue.popleft())
        return True

    def chosen(self, choice: int, among: Any) -> Any:
        among = sorted(among)
        return among[choice % len(among)] if among else None

    # -- what happens ------------------------------------------------------------------------------------------------

    def create(self, choice: int, other: int) -> None:
        owners = [id for id, r in self.live.items() if not r.abort_requested and outcome_of_task(r) is None]
        owner = self.chosen(choice, owners) if other % 3 else None
        record = TaskRecord(
            id=TaskId(self.next_id),
            conversation_id=ConversationId(1),
            kind="abcd"[other % 4],
            version=1,
            owner=owner,
            background=owner is None and other % 5 == 0,
            abandon_on_restart=other % 7 == 0,
            state=Pending(checkpoint={"phase": "one"}),
        )
        self.next_id += 1
        self.put(record)

    def drive(self, choice: int, other: int) -> None:
        for _ in range(1000 if choice % 2 else 1 + other % 4):
            if not self.step():
                assert self.core.overlooked(self.now) == [], "a wake-up was lost"
                return

    def run_on(self, choice: int, other: int) -> None:
        id = self.chosen(choice, self.invocations)
        if id is not None:
            self.act(id, ACTS[other % len(ACTS)], choice)
            if other % 4 and (id not in self.live or self.live[id].state.status != "running"):
                self.returned(id)

    def act(self, id: int, act: str, other: int) -> None:
        record = self.live.get(id)
        if record is None or record.state.status != "running":
            return
        if self.invocations[id] == "abort":
            self.end(id, Aborted())
        elif record.abort_requested:
            return  # the runtime raises InvocationEnded
        elif act == "next":
            self.move(id, "next", Running(checkpoint={"phase": "one", "n": other}))
        elif act in ("wait", "fail_fast"):
            self.wait(id, act, other)
        elif act == "sleep":
            self.move(id, "sleep", Sleeping(checkpoint={"phase": "one"}, until=self.now + other % 50))
        elif act == "complete":
            self.end(id, Completed())
        else:
            self.end(id, Failed(error=ErrorInfo("no")))

    def wait(self, id: int, act: str, other: int) -> None:
        policy: Any = "fail_fast" if act == "fail_fast" else "all_settled"
        everything = sorted(self.live | self.ended)
        on = tuple(TaskId(task) for task in everything if (task * 7 + other) % 3 == 0)
        if policy == "fail_fast":
            on = tuple(TaskId(task) for task in everything if (self.live | self.ended)[task].owner == id)
        try:
            check_wait(self.live[id], on, policy, self.live.get, self.below)
        except (WaitCycle, ValueError):
            return
        self.move(id, "wait", Waiting(checkpoint={"phase": "one"}, on=on, policy=policy))
        failed = [task for task in on if task in self.ended and self.failed(task)]
        if policy == "fail_fast" and failed:
            self.core.target_failed(id)

    def failed(self, id: int) -> bool:
        outcome = outcome_of_task(self.ended[id]) if id in self.ended else None
        return outcome is not None and outcome.status != "completed"

    def stop(self, choice: int, other: int) -> None:
        id = self.chosen(choice, self.invocations)
        if id is not None:
            self.returned(id)

    def returned(self, id: int) -> None:
        mode = self.invocations.pop(id)
        record = self.live.get(id)
        if record is not None and record.state.status == "running" and not (record.abort_requested and mode == "run"):
            self.move(id, "park", Pending(checkpoint=checkpoint_of_task(record) or {}))
        self.core.stopped(id, self.now, "stopped")

    def abort(self, choice: int, other: int) -> None:
        if self.live:
            self.put(self.marked(self.chosen(choice, self.live), None))

    def time_passes(self, choice: int, other: int) -> None:
        self.now += choice % 90 - 30  # clocks also go back

    def definitions_come_and_go(self, choice: int, other: int) -> None:
        self.missing ^= {"abcd"[choice % 4]}
        self.core.registry_changed()

    def resume(self, choice: int, other: int) -> None:
        self.core.resume()

    def crash(self, choice: int, other: int) -> None:
        self.queue.clear()
        self.invocations.clear()
        for id, record in list(self.live.items()):
            if record.state.status == "running":
                checkpoint = checkpoint_of_task(record) or {}
                self.live[id] = change(record, "recover", Pending(checkpoint=checkpoint), self.now)
        self.core = self.new_core()
        self.core.loaded(self.live.values())
        self.core.waits_settled(self.failed)
        if other % 2:
            self.core.resume()

    def holds(self) -> None:
        self.core.validate()
        assert self.core.nodes.keys() == self.live.keys()

    def teardown(self) -> None:
        """Everything can be brought to an end, by working on or by aborting it, and the core says so."""
        self.missing.clear()
        self.core.registry_changed()
        self.core.resume()
        if self.next_id % 3 == 0:
            for id in list(self.live):
                self.put(self.marked(id, None))
        for _ in range(3 * (len(self.live) + 2)):
            while self.step():
                self.core.validate()
            assert self.core.overlooked(self.now) == []
            for id, mode in list(self.invocations.items()):
                record = self.live.get(id)
                if record is not None and record.state.status == "running":
                    if mode == "abort":
                        self.end(id, Aborted())
                    elif not record.abort_requested:
                        self.end(id, Completed())
                self.returned(id)
            self.now += 100
        self.core.validate()
        assert not self.live, f"tasks that never end: {self.live}"
        assert not self.core.active(self.now)
        assert self.core.next_wake() is None


EVENTS = ["create"] * 5 + ["drive"] * 7 + ["run_on"] * 8 + ["stop", "abort", "time_passes", "resume"]
EVENTS += ["definitions_come_and_go", "crash"]
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000), st.integers(0, 1000)), min_size=20, max_size=120
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(events)
def test_whatever_happens_the_rules_hold_and_no_wake_up_is_lost(events: list[tuple[str, int, int]]) -> None:
    scheduler = Scheduler()
    scheduler.core.resume()
    for event, choice, other in events:
        getattr(scheduler, event)(choice, other)
        scheduler.holds()
    scheduler.teardown()
