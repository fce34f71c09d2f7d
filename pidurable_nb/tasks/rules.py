"""How a task's record may change: every transition is a row of one table (engine.md, section 7).

``change`` is the only place where a task's state is replaced. It looks the transition up, stamps the times, and keeps
or clears what the state calls for; an illegal transition raises with what the record was, and the engine adds the
task's story to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..errors import InvalidTransition, WaitCycle
from ..records import (
    Completing,
    Outcome,
    TaskRecord,
    TaskState,
    Terminal,
    Waiting,
)

Cause: TypeAlias = Literal[
    "reserve", "next", "wait", "sleep", "receive", "signal", "outcome", "drained", "park", "recover"
]


@dataclass(frozen=True, slots=True)
class Row:
    """One transition: what causes it, from which status to which, and when."""

    cause: Cause
    before: str
    after: str
    when: str


TABLE: tuple[Row, ...] = (
    Row("reserve", "pending", "running", "the scheduler starts an invocation"),
    Row("reserve", "waiting", "running", "what it waited on has settled, its time has come, or it is aborted"),
    Row("reserve", "sleeping", "running", "its time has come, or it is aborted"),
    Row("reserve", "running", "running", "its run invocation was cancelled and its abort handler starts"),
    Row("next", "running", "running", "a phase leads to the next one"),
    Row("wait", "running", "waiting", "a phase waits for other tasks"),
    Row("sleep", "running", "sleeping", "a phase sleeps until an instant"),
    Row("receive", "running", "pending", "a phase asks for a signal that is already there"),
    Row("signal", "waiting", "pending", "the signal that it waits for arrives"),
    Row("outcome", "running", "completing", "an outcome while ordinary owned work is live"),
    Row("outcome", "running", "terminal", "an outcome, and nothing below is live"),
    Row("outcome", "pending", "completing", "ended by the scheduler: restart limit or missing code"),
    Row("outcome", "pending", "terminal", "ended by the scheduler: restart limit or missing code"),
    Row("outcome", "waiting", "completing", "ended by the scheduler: missing code"),
    Row("outcome", "waiting", "terminal", "ended by the scheduler: missing code"),
    Row("outcome", "sleeping", "completing", "ended by the scheduler: missing code"),
    Row("outcome", "sleeping", "terminal", "ended by the scheduler: missing code"),
    Row("drained", "completing", "terminal", "the last live owned work below has ended"),
    Row("park", "running", "pending", "close or handover stops the invocation"),
    Row("recover", "running", "pending", "an opening finds what a dead process left"),
)

_ALLOWED = {(row.cause, row.before, row.after) for row in TABLE}


def change(record: TaskRecord, cause: Cause, state: TaskState, now: float) -> TaskRecord:
    """The record after a transition. Raises ``InvalidTransition`` when the table has no row for it."""
    before = record.state
    if (cause, before.status, state.status) not in _ALLOWED:
        raise InvalidTransition(
            f"task {record.id} ({record.kind}) cannot go from {before.status} to {state.status} by {cause}: "
            f"it was started at {record.started_at}, restarted {record.restarts} times, "
            f"and its state is {before.to_json()}"
        )
    changes: dict[str, object] = {"state": state}
    if state.status == "running" and record.started_at is None:
        changes["started_at"] = now
    if cause == "recover":
        changes["restarts"] = record.restarts + 1
    elif record.restarts and cause not in ("reserve", "park") and _progress(before, state):
        changes["restarts"] = 0
    if state.status == "terminal":
        changes |= {"ended_at": now, "memos": {}, "restarts": 0}
    elif state.status == "completing":
        changes |= {"memos": {}, "restarts": 0}
    return record.replaced(**changes)


def _progress(before: TaskState, after: TaskState) -> bool:
    """A state that differs from the current one; the same checkpoint again is not progress."""
    return before != after


def outcome_state(outcome: Outcome, has_live_work: bool) -> TaskState:
    """An outcome is held while ordinary owned work below is live."""
    return Completing(outcome) if has_live_work else Terminal(outcome)


def check_wait(
    task: TaskRecord,
    on: Iterable[int],
    policy: str,
    find: Callable[[int], TaskRecord | None],
    children: Callable[[int], Iterable[int]],
) -> None:
    """Refuse a wait that could never end (engine.md, section 7, Waiting).

    A task depends on what it waits for and on its ordinary owned work, without which it cannot end. ``find`` gives live
    records, ``children`` live ordinary work. Raises ``WaitCycle`` and names the cycle, and ``ValueError`` for a
    ``fail_fast`` wait on work that the task does not own.
    """
    for target in on:
        record = find(target)
        if policy == "fail_fast" and record is not None and record.owner != task.id:
            raise ValueError(
                f"task {task.id} does not own task {target}, so it can only wait for it with policy 'all_settled'"
            )
    came_from: dict[int, int] = {target: task.id for target in on}
    stack = list(came_from)
    while stack:
        current = stack.pop()
        if current == task.id:
            raise WaitCycle(f"task {task.id} would wait for itself: {_path(came_from, task.id)}")
        record = find(current)
        if record is None:
            continue
        waits = record.state.on if isinstance(record.state, Waiting) else ()
        for following in (*waits, *children(current)):
            if following not in came_from:
                came_from[following] = current
                stack.append(following)


def _path(came_from: dict[int, int], task: int) -> str:
    steps = [task]
    current = came_from[task]
    while current != task:
        steps.append(current)
        current = came_from[current]
    steps.append(task)
    return " → ".join(str(step) for step in reversed(steps))
