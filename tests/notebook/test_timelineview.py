"""The timeline's view: bars from attempts, lives, and an axis that jumps over what is idle; from records alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pidurable_nb import patch
from pidurable_nb.notebook.render import to_html, to_text
from pidurable_nb.notebook.timelineview import Axis, TimelineRow, TimelineRows, TimelineView, axis_of
from pidurable_nb.records import (
    Attempt,
    Completed,
    ConversationRecord,
    Life,
    Pending,
    Running,
    Sleeping,
    SubmissionRecord,
    TaskRecord,
    TaskState,
    Terminal,
    Waiting,
)

T = 1_900_000_000.0
DONE = Terminal(Completed())
RUNNING = Running({"phase": "work"})


def task(id: int, state: TaskState = DONE, **changes: Any) -> TaskRecord:
    fields = {"kind": "app.job", "version": 1, "conversation_id": 1} | changes
    return TaskRecord.model_validate({"id": id, "state": state} | fields)


def life(id: int, start: float, end: float | None = None, ended: Any = None) -> Life:
    closed_at = end if ended is not None else None
    return Life(id, 4000 + id, "lab", T + start, last_commit=1, last_commit_at=None if end is None else T + end,
                ended=ended, ended_at=None if closed_at is None else T + closed_at)  # fmt: skip


def ran(id: int, life: int, phase: str, start: float, end: float | None = None, how: Any = None) -> Attempt:
    return Attempt(id, life, phase, T + start, None if end is None else T + end, how)


def bars(rows: TimelineRows, key: str, now: float = 100.0) -> list[tuple[str, float, float | None, str]]:
    found = next(row for row in rows.view(T + now).rows if row.key == key)
    return [
        (bar.kind, round(bar.start - T, 3), None if bar.end is None else round(bar.end - T, 3), bar.how)
        for bar in found.bars
    ]


def rows_of(*tasks: TaskRecord, attempts: dict[int, list[Attempt]], **given: Any) -> TimelineRows:
    rows = TimelineRows()
    rows.update(**({"lives": [life(1, -1)]} | given), tasks=tasks, attempts=attempts)
    return rows


def test_each_attempt_is_a_bar_and_a_sleep_between_two_is_hatched() -> None:
    rows = rows_of(
        task(3, kind="pi.generation"),
        attempts={3: [ran(3, 1, "prepare", 0, 2, "parked"), ran(3, 1, "retry", 10, 11, "ended")]},
    )
    assert bars(rows, "t3") == [("run", 0, 2, "parked"), ("asleep", 2, 10, "asleep"), ("run", 10, 11, "ended")]


def test_a_gap_in_which_owned_tasks_ran_is_a_wait() -> None:
    rows = rows_of(
        task(3),
        task(4, owner=3),
        attempts={
            3: [ran(3, 1, "start", 0, 1, "parked"), ran(3, 1, "join", 6, 7, "ended")],
            4: [ran(4, 1, "work", 1, 6, "ended")],
        },
    )
    assert bars(rows, "t3")[1] == ("waiting", 1, 6, "waiting")


def test_a_gap_of_which_nothing_is_known_says_so() -> None:
    rows = rows_of(task(3), attempts={3: [ran(3, 1, "a", 0, 1, "parked"), ran(3, 1, "b", 6, 7, "ended")]})
    assert bars(rows, "t3")[1] == ("asleep", 1, 6, "idle")


def test_a_crash_cuts_an_attempt_off_and_nothing_runs_until_it_is_reopened() -> None:
    rows = rows_of(
        task(3),
        attempts={3: [ran(3, 1, "work", 0, 5, "cut_off"), ran(3, 2, "work", 60, 62, "ended")]},
        lives=[life(1, -1, 5), life(2, 59)],
    )
    assert bars(rows, "t3") == [("run", 0, 5, "cut_off"), ("dead", 5, 60, "dead"), ("run", 60, 62, "ended")]
    view = rows.view(T + 70)
    assert [(found.ended, found.end) for found in view.lives] == [("crashed", T + 5), (None, None)]
    assert view.title == "1 task · 2 lives · 1 crash"


def test_a_clean_close_is_no_crash() -> None:
    rows = rows_of(
        task(3),
        attempts={3: [ran(3, 1, "work", 0, 5, "parked"), ran(3, 2, "work", 60, 62, "ended")]},
        lives=[life(1, -1, 5.2, "closed"), life(2, 59)],
    )
    assert bars(rows, "t3")[1] == ("dead", 5, 60, "dead")
    assert rows.view(T + 70).title == "1 task · 2 lives"


def test_what_goes_on_has_no_end() -> None:
    rows = rows_of(
        task(3, RUNNING),
        task(4, Sleeping({"phase": "x"}, T + 5000)),
        task(5, Waiting({"phase": "x"}, (3,))),
        attempts={
            3: [ran(3, 1, "work", 0)],
            4: [ran(4, 1, "x", 0, 2, "parked")],
            5: [ran(5, 1, "x", 0, 3, "parked")],
        },
    )
    assert bars(rows, "t3") == [("run", 0, None, "running")]
    assert bars(rows, "t4")[-1] == ("asleep", 2, None, "asleep")
    assert bars(rows, "t5")[-1] == ("waiting", 3, None, "waiting")
    view = rows.view(T + 10)
    assert view.axis.end > T + 10
    assert "until 2030" in next(row for row in view.rows if row.key == "t4").bars[-1].words(T + 10)


def test_a_dead_owner_that_nobody_followed_leaves_its_tasks_cut_off() -> None:
    rows = rows_of(task(3, RUNNING), attempts={3: [ran(3, 1, "work", 0)]}, lives=[life(1, -1, 8)], open=False)
    assert bars(rows, "t3") == [("run", 0, 8, "cut_off"), ("dead", 8, None, "dead")]


def test_turns_stand_under_the_question_that_was_placed_before_them() -> None:
    rows = rows_of(
        task(7, kind="pi.generation"),
        task(9, owner=7, kind="pi.tool", input={"name": "weather", "arguments": {}}),
        task(12, kind="pi.generation"),
        task(22, kind="pi.generation"),
        task(30),
        attempts={7: [ran(7, 1, "prepare", 0, 1, "ended")], 12: [ran(12, 1, "prepare", 2, 3, "ended")]},
        questions=[
            SubmissionRecord(5, 1, "input", "done", entry=6, answer=13),
            SubmissionRecord(10, 1, "input", "done", entry=21, answer=23),  # queued while the first was answered
            SubmissionRecord(40, 1, "input", "queued"),
            SubmissionRecord(41, 1, "write", "done", entry=42),
        ],
        prompts={5: "One?", 10: "Two?", 40: "Three?"},
    )
    view = rows.view(T + 10)
    shape = [(row.depth, row.title) for row in view.rows]
    assert shape == [
        (0, "“One?”"),
        (1, "turn"),
        (2, "weather()"),
        (1, "turn"),
        (0, "“Two?”"),
        (1, "turn"),
        (0, "app.job"),
        (0, "“Three?”"),
    ]
    span = view.rows[0].bars
    assert [(bar.kind, bar.start - T, (bar.end or 0) - T) for bar in span] == [("span", 0, 3)]
    assert [row.badge.word for row in view.rows if row.key.startswith("s")] == ["answered", "answered", "queued"]


def test_the_work_of_a_subagent_stands_under_its_task() -> None:
    rows = rows_of(
        task(4, kind="pi.tool", input={"name": "delegate", "arguments": {}}),
        task(9, kind="pi.generation", conversation_id=6),
        attempts={},
        questions=[SubmissionRecord(7, 6, "input", "done", entry=8)],
        conversations=[ConversationRecord.model_validate({"id": 6, "owner": {"conversation": 1, "task": 4}})],
    )
    assert [(row.key, row.depth) for row in rows.view(T).rows] == [("t4", 0), ("s7", 1), ("t9", 2)]


def test_only_the_newest_tasks_are_kept_and_their_questions() -> None:
    rows = TimelineRows(limit=50)
    for number in range(200):
        id = 10 * number
        rows.update(
            tasks=[task(id + 7, kind="pi.generation")],
            attempts={id + 7: [ran(id + 7, 1, "prepare", number, number + 0.5, "ended")]},
            questions=[SubmissionRecord(id + 5, 1, "input", "done", entry=id + 6, answer=id + 8)],
        )
    view = rows.view(T + 300)
    assert sum(row.key.startswith("t") for row in view.rows) == 50
    assert sum(row.key.startswith("s") for row in view.rows) == 50
    assert view.earlier == 150
    assert sum(row.folded for row in view.rows) == 42
    newest = view.newest(10)
    assert len(newest.rows) == 10
    assert newest.axis.knots[0][0] > T + 190


# -- the axis --------------------------------------------------------------------------------------------------------


def test_hours_of_nothing_become_a_break() -> None:
    axis = axis_of([(T, T + 10), (T + 7 * 3600, T + 7 * 3600 + 20)])
    ((start, end, words),) = axis.breaks
    assert words == "6 h 59 min without anything"
    assert 0.02 <= end - start <= 0.06
    # What happened keeps its scale on both sides.
    left = axis.place(T + 10) - axis.place(T)
    right = axis.place(T + 7 * 3600 + 20) - axis.place(T + 7 * 3600)
    assert right == pytest.approx(2 * left, rel=0.01)


def test_a_short_pause_is_no_break() -> None:
    assert axis_of([(T, T + 10), (T + 11, T + 20)]).breaks == ()


def test_an_open_end_gets_its_place() -> None:
    soon = axis_of([(T, T + 10)], until=T + 10.5)
    assert soon.end >= T + 10.5
    assert soon.breaks == ()
    sleeping = axis_of([(T, T + 10)], until=T + 36_000)
    assert sleeping.end == pytest.approx(T + 36_000, abs=0.01)
    assert len(sleeping.breaks) == 1
    assert sleeping.place(T + 10) > 0.9


def test_nothing_at_all_has_an_axis_too() -> None:
    assert axis_of([]) == Axis()
    assert axis_of([(T, T)]).place(T) == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 5000)), min_size=1, max_size=40),
    st.one_of(st.none(), st.floats(0, 2e6)),
)
def test_an_axis_goes_forward_and_fills_its_width(stretches: list[tuple[float, float]], until: float | None) -> None:
    busy = [(T + start, T + start + length) for start, length in stretches]
    axis = axis_of(busy, until=None if until is None else T + until)
    assert axis.knots[0][1] == 0.0
    assert axis.knots[-1][1] == pytest.approx(1.0, abs=1e-3)
    for (before, left), (after, right) in pairwise(axis.knots):
        assert before <= after
        assert left <= right + 1e-9
    assert all(axis.knots[0][0] <= start and end <= axis.end for start, end in busy)
    assert all(-1e-6 <= place <= 1.0 + 1e-3 for place, _, _ in axis.ticks)
    assert sum(level == 0 for _, _, level in axis.ticks) <= 8 + 1 + len(axis.breaks)


# -- forms -----------------------------------------------------------------------------------------------------------


def test_a_page_gets_only_what_changed() -> None:
    tasks = [task(id, RUNNING if id == 200 else DONE) for id in range(1, 201)]
    attempts = {item.id: [ran(item.id, 1, "work", item.id, item.id + 1, "ended")] for item in tasks[:-1]}
    rows = rows_of(*tasks, attempts=attempts | {200: [ran(200, 1, "work", 200)]})
    known: dict[str, tuple[TimelineRow, dict[str, Any]]] = {}
    first = rows.view(T + 201).wire(known)
    rows.update(tasks=[task(200)], attempts={200: [ran(200, 1, "work", 200, 202, "ended")]})
    second = rows.view(T + 202).wire(known)
    ops = patch.diff(first, second)
    assert patch.apply(first, ops) == second
    assert {op["path"].split("/")[2] for op in ops if op["path"].startswith("/rows/")} == {"t200"}


def test_static_forms_say_everything_in_words() -> None:
    rows = rows_of(
        task(3, Pending({"phase": "work"})),
        attempts={3: [ran(3, 1, "work", 0, 5, "cut_off"), ran(3, 2, "work", 60, 62, "parked")]},
        lives=[life(1, -1, 5), life(2, 59)],
    )
    view = rows.view(T + 70)
    lines = to_text(view).splitlines()
    assert lines[0] == "1 task · 2 lives · 1 crash"
    assert "○ app.job · pending" in lines[1]
    assert "ran 2 times · cut off by a crash" in lines[1]
    assert "process 4001" in lines[2]
    assert "died after" in lines[2]
    html = to_html(view)
    assert "cut off by a crash" in html
    assert "<script" not in html
    assert len(html) < 6000


def test_no_text_becomes_markup() -> None:
    bad = "</td><script>x</script>\x1b[31m"
    rows = rows_of(
        task(3, kind=bad, input={bad: bad}),
        attempts={3: [ran(3, 1, bad, 0, 1, "ended")]},
        questions=[SubmissionRecord(1, 1, "input", "queued")],
        prompts={1: bad},
    )
    view = rows.view(T + 5)
    assert "<script" not in to_html(view)
    assert "\x1b" not in to_html(view) + to_text(view) + str(view.wire())


def test_an_empty_session_has_a_form() -> None:
    assert to_text(TimelineView(now=T)) == "0 tasks · 0 lives"
