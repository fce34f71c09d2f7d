"""The table of transitions: every row holds, every other pair raises (engine.md, section 7)."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from pidurable_nb.errors import InvalidTransition, WaitCycle
from pidurable_nb.records import (
    Completed,
    Completing,
    ConversationId,
    ErrorInfo,
    Failed,
    Pending,
    Running,
    Sleeping,
    TaskId,
    TaskRecord,
    TaskStatus,
    Terminal,
    Waiting,
)
from pidurable_nb.tasks.rules import TABLE, Cause, change, check_wait

STATES: dict[str, Any] = {
    "pending": Pending(checkpoint={"phase": "a"}),
    "running": Running(checkpoint={"phase": "b"}),
    "waiting": Waiting(checkpoint={"phase": "c"}, on=(TaskId(3),)),
    "sleeping": Sleeping(checkpoint={"phase": "d"}, until=5.0),
    "completing": Completing(outcome=Completed(result=1)),
    "terminal": Terminal(outcome=Completed(result=1)),
}
ROWS = {(row.cause, row.before, row.after) for row in TABLE}
PAIRS = list(itertools.product(get_args(Cause), STATES, STATES))


def record(id: int = 2, **fields: Any) -> TaskRecord:
    fields.setdefault("state", STATES["pending"])
    return TaskRecord(id=TaskId(id), conversation_id=ConversationId(1), kind="t.kind", version=1, **fields)


def test_the_table_speaks_of_known_states_only() -> None:
    assert set(STATES) == set(get_args(TaskStatus))
    assert {row.cause for row in TABLE} == set(get_args(Cause))
    assert len(ROWS) == len(TABLE)


@pytest.mark.parametrize(("cause", "before", "after"), [pair for pair in PAIRS if pair in ROWS])
def test_a_row_is_a_change(cause: Cause, before: str, after: str) -> None:
    changed = change(record(state=STATES[before]), cause, STATES[after], 7.0)
    assert changed.state == STATES[after]
    assert changed.ended_at == (7.0 if after == "terminal" else None)
    assert changed.started_at == (7.0 if after == "running" else None)


def test_every_other_pair_raises_and_says_what_the_record_was() -> None:
    illegal = [pair for pair in PAIRS if pair not in ROWS]
    assert len(illegal) == len(PAIRS) - len(TABLE)
    for cause, before, after in illegal:
        with pytest.raises(
            InvalidTransition, match=rf"task 2 \(t\.kind\) cannot go from {before} to {after} by {cause}"
        ):
            change(record(state=STATES[before]), cause, STATES[after], 7.0)


def test_nothing_follows_a_terminal_state_and_only_terminal_follows_completing() -> None:
    assert not [row for row in TABLE if row.before == "terminal"]
    assert [row.after for row in TABLE if row.before == "completing"] == ["terminal"]


def test_the_first_start_is_kept() -> None:
    first = change(record(), "reserve", STATES["running"], 1.0)
    parked = change(first, "park", STATES["pending"], 2.0)
    assert change(parked, "reserve", STATES["running"], 3.0).started_at == 1.0


def test_a_receipt_loses_memos_and_restarts() -> None:
    live = record(state=STATES["running"], memos={"a": 1}, restarts=2, input={"kept": True})
    ended = change(live, "outcome", STATES["terminal"], 9.0)
    assert (ended.memos, ended.restarts, ended.input, ended.ended_at) == ({}, 0, {"kept": True}, 9.0)


@pytest.mark.parametrize(
    ("cause", "before", "after", "restarts"),
    [
        ("recover", Running(checkpoint={"phase": "a"}), Pending(checkpoint={"phase": "a"}), 3),
        ("park", Running(checkpoint={"phase": "a"}), Pending(checkpoint={"phase": "a"}), 2),
        ("reserve", Pending(checkpoint={"phase": "a"}), Running(checkpoint={"phase": "a"}), 2),
        ("next", Running(checkpoint={"phase": "a"}), Running(checkpoint={"phase": "a"}), 2),
        ("next", Running(checkpoint={"phase": "a"}), Running(checkpoint={"phase": "a", "n": 1}), 0),
        ("wait", Running(checkpoint={"phase": "a"}), Waiting(checkpoint={"phase": "a"}, on=()), 0),
        ("sleep", Running(checkpoint={"phase": "a"}), Sleeping(checkpoint={"phase": "a"}, until=1.0), 0),
    ],
)
def test_only_a_dead_process_counts_and_only_progress_clears(
    cause: Cause, before: Any, after: Any, restarts: int
) -> None:
    assert change(record(state=before, restarts=2), cause, after, 1.0).restarts == restarts


# -- waits that could never end --------------------------------------------------------------------------------------


class Tasks:
    """Some live tasks: ``waits`` and ``owns`` map ids."""

    def __init__(self, waits: dict[int, tuple[int, ...]], owns: dict[int, tuple[int, ...]]) -> None:
        owners = {child: owner for owner, children in owns.items() for child in children}
        ids = set(waits) | set(owns) | set(owners) | {target for on in waits.values() for target in on}
        self.owns = owns
        self.records = {
            id: record(
                id,
                owner=owners.get(id),
                state=Waiting(checkpoint={"phase": "w"}, on=waits[id]) if id in waits else STATES["pending"],
            )
            for id in ids
        }

    def check(self, task: int, *on: int, policy: str = "all_settled") -> None:
        check_wait(self.records[task], on, policy, self.records.get, lambda id: self.owns.get(id, ()))


@pytest.mark.parametrize(
    ("waits", "owns", "task", "on", "cycle"),
    [
        ({}, {5: ()}, 5, 5, "5 → 5"),
        ({6: (5,)}, {5: ()}, 5, 6, "5 → 6 → 5"),
        ({7: (6,), 6: (5,)}, {5: ()}, 5, 7, "5 → 7 → 6 → 5"),
        ({}, {4: (5,)}, 5, 4, "5 → 4 → 5"),  # a child cannot wait for its owner, which cannot end before it
        ({6: (4,)}, {4: (5,)}, 5, 6, "5 → 6 → 4 → 5"),
        ({7: (5,)}, {6: (7,), 5: ()}, 5, 6, "5 → 6 → 7 → 5"),  # over the work below a target
    ],
)
def test_a_cycle_over_waits_and_ownership_is_named(
    waits: dict[int, Any], owns: dict[int, Any], task: int, on: int, cycle: str
) -> None:
    with pytest.raises(WaitCycle, match=cycle):
        Tasks(waits, owns).check(task, on)


def test_a_diamond_is_no_cycle() -> None:
    Tasks({7: (8,), 6: (8,)}, {5: (6, 7, 8)}).check(5, 6, 7, 8)


def test_fail_fast_is_for_owned_work_only() -> None:
    tasks = Tasks({}, {5: (6,), 7: ()})
    tasks.check(5, 6, policy="fail_fast")
    with pytest.raises(ValueError, match="task 5 does not own task 7"):
        tasks.check(5, 6, 7, policy="fail_fast")


def test_a_chain_of_thousands_needs_no_recursion() -> None:
    chain = {n: (n + 1,) for n in range(10, 6000)}
    tasks = Tasks(chain, {5: ()})
    tasks.check(5, 10)
    with pytest.raises(WaitCycle, match="5 → 10 → 11 "):
        Tasks({**chain, 6000: (5,)}, {5: ()}).check(5, 10)


def test_an_outcome_of_failure_is_a_state_like_any_other() -> None:
    failed = Failed(error=ErrorInfo("no"))
    assert (
        change(record(state=STATES["running"]), "outcome", Completing(outcome=failed), 1.0).state.status == "completing"
    )
