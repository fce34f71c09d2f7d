"""The task graph's view: rows, words, folding, and what a page gets; from graphs and records alone."""

from __future__ import annotations

from typing import Any

import pytest

from pidurable_nb import patch
from pidurable_nb.notebook.graphview import KEEP_ENDED, GraphRow, GraphRows, GraphView, task_title
from pidurable_nb.notebook.render import mimebundle, to_html, to_text
from pidurable_nb.records import (
    Aborted,
    Completed,
    Completing,
    ErrorInfo,
    Failed,
    Running,
    Sleeping,
    TaskId,
    TaskRecord,
    TaskState,
    Terminal,
    Waiting,
    checkpoint_of_task,
)
from pidurable_nb.tasks import TaskGraph, TaskNode

RUNNING = Running({"phase": "work"})
DONE = Terminal(Completed())


def record(id: int, state: TaskState = RUNNING, **changes: Any) -> TaskRecord:
    fields = {"kind": "app.job", "version": 1, "conversation_id": 1, "started_at": 100.0} | changes
    if state.status == "terminal":
        fields.setdefault("ended_at", 103.5)
    return TaskRecord.model_validate({"id": id, "state": state} | fields)


def node(task: TaskRecord, **changes: Any) -> TaskNode:
    state: Any = task.state
    fields = {
        "id": task.id,
        "kind": task.kind,
        "conversation_id": task.conversation_id,
        "owner": task.owner,
        "background": task.background,
        "abort_requested": task.abort_requested,
        "status": state.status,
        "phase": (checkpoint_of_task(task) or {}).get("phase"),
        "on": getattr(state, "on", ()),
        "signal": getattr(state, "signal", None),
        "until": getattr(state, "until", None),
        "outcome": getattr(state, "outcome", None),
        "restarts": task.restarts,
        "started_at": task.started_at,
    }
    return TaskNode.model_validate(fields | changes)


def graph(*nodes: TaskNode) -> TaskGraph:
    return TaskGraph(tasks={item.id: item for item in nodes})


def rows_of(*tasks: TaskRecord, **changes: Any) -> GraphRows:
    rows = GraphRows()
    rows.update(graph(*(node(task, **changes) for task in tasks)), {task.id: task for task in tasks})
    return rows


def row(rows: GraphRows, id: int) -> GraphRow:
    return next(item for item in rows.view().rows if item.id == id)


def test_a_task_is_titled_by_what_it_does() -> None:
    assert task_title("pi.generation", None) == "turn"
    assert task_title("pi.compaction", {"reason": "manual"}) == "compaction"
    assert task_title("pi.tool", {"name": "weather", "arguments": {"city": "Paris"}}) == 'weather(city="Paris")'
    assert task_title("pi.tool", {"name": "now", "arguments": {}}) == "now()"
    assert task_title("app.job", None) == "app.job"
    assert task_title("app.job", {"page": 3}) == "app.job(page=3)"
    assert len(task_title("app.job", {"text": "x" * 500})) < 100


def test_a_row_says_phase_attempt_marks_and_why_it_does_not_go_on() -> None:
    waiting = record(3, Waiting({"phase": "join"}, (4, 5, 9)), restarts=2, background=True, abort_requested=True)
    rows = rows_of(waiting, record(4, owner=3), record(5, owner=3), record(9))
    found = row(rows, 3)
    assert found.facts == ("join", "attempt 3", "background", "being aborted", "waits for its 2 tasks, 9")
    assert found.edges == (9,)
    assert found.badge.word == "waiting"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("missing_task", "its code is not installed here"),
        ("task_too_old", "a newer version of its code stored it"),
        ("migration_failed", "its migration failed"),
    ],
)
def test_a_blocked_task_says_why_in_words(reason: str, words: str) -> None:
    found = row(rows_of(record(3), blocked=reason), 3)
    assert (found.badge.word, found.about) == ("blocked", words)


def test_waits_for_people_and_signals_are_named() -> None:
    assert row(rows_of(record(3, Waiting({"phase": "x"}, (), signal="go"))), 3).about == "waits for the signal go"
    assert row(rows_of(record(3, Waiting({"phase": "x"}, (), signal="pi.approval"))), 3).about == "waits for a person"


def test_a_sleeping_task_says_until_when_and_a_completing_one_what_holds_it() -> None:
    assert row(rows_of(record(3, Sleeping({"phase": "x"}, 500.0))), 3).until == 500.0
    assert row(rows_of(record(3, Completing(Completed()))), 3).about == "completed, waits for the tasks below it"


def test_a_request_that_is_tried_again_counts_as_an_attempt() -> None:
    again = record(3, Running({"phase": "request", "attempt": 3}), kind="pi.generation")
    assert row(rows_of(again), 3).attempt == 3


def test_an_ended_task_stays_with_its_outcome() -> None:
    rows = rows_of(record(3), record(4, owner=3))
    failed = record(4, Terminal(Failed(ErrorInfo("no\nluck"))), owner=3)
    rows.update(graph(node(record(3))), {4: failed})
    found = row(rows, 4)
    assert (found.state, found.about, found.owner, found.live) == ("failed", "no luck", 3, False)
    assert found.facts == ("no luck", "3.5 s")
    assert rows.view().title == "1 live task · 1 ended"


def test_only_what_changed_is_asked_for() -> None:
    one, two = record(3), record(4)
    rows = rows_of(one, two)
    before = rows.view()
    moved = record(4, Running({"phase": "next"}))
    after = graph(node(one), node(moved), node(record(5)))
    assert rows.changed(after) == ([4, 5], [])
    rows.update(after, {4: moved, 5: record(5)})
    assert rows.view().rows[0] is before.rows[0]
    assert rows.changed(graph(node(moved))) == ([], [3, 5])


def test_ended_tasks_are_forgotten_when_there_are_many_but_not_below_a_live_one() -> None:
    owner = record(1)
    rows = rows_of(owner)
    below = [record(id, DONE, owner=1) for id in range(2, 2 + 3 * KEEP_ENDED)]
    others = [record(id, DONE) for id in range(1000, 1000 + 3 * KEEP_ENDED)]
    rows.update(graph(node(owner)), {}, [*below, *others])
    view = rows.view()
    assert sum(item.owner == 1 for item in view.rows) == 3 * KEEP_ENDED
    kept = [item.id for item in view.rows if item.id >= 1000]
    assert kept == [task.id for task in others[-KEEP_ENDED:]]
    assert view.hidden == 2 * KEEP_ENDED


def test_an_owner_stays_with_what_stands_below_it() -> None:
    rows = GraphRows()
    tree = [record(1, DONE), record(500, DONE, owner=1)]
    rows.update(TaskGraph(), {}, [*tree, *(record(id, DONE) for id in range(2, 2 + KEEP_ENDED))])
    kept = [item.id for item in rows.view().rows]
    assert kept == [1, *range(3, 2 + KEEP_ENDED), 500]


def test_the_first_task_of_an_owned_conversation_stands_under_its_owner() -> None:
    owner = record(3, kind="pi.tool", input={"name": "delegate", "arguments": {}})
    inner = record(8, kind="pi.generation", conversation_id=7)
    rows = GraphRows()
    rows.update(graph(node(owner, conversations=(7,)), node(inner)), {3: owner, 8: inner})
    assert row(rows, 8).owner == 3


def test_the_work_of_a_branch_says_so() -> None:
    assert row(rows_of(record(8, conversation_id=7)), 8).marks == ("conversation 7",)


def test_lines_go_from_owners_to_owned_and_fold_what_is_many() -> None:
    children = tuple(
        GraphRow(id, "page", f"page {id}", "blocked" if id == 90 else "running", owner=1) for id in range(2, 102)
    )
    view = GraphView(rows=(GraphRow(1, "batch", "batch", "waiting"), *children, GraphRow(200, "x", "last", "running")))
    lines = list(view.lines())
    assert lines[0] == (0, view.rows[0])
    assert [item.id for _, item in lines if isinstance(item, GraphRow)] == [1, *range(2, 13), 90, 200]
    assert (1, "88 more: 88 running") in lines


def test_a_page_gets_only_what_changed() -> None:
    tasks = [record(id, owner=None if id == 1 else 1) for id in range(1, 300)]
    rows = rows_of(*tasks)
    known: dict[int, tuple[GraphRow, dict[str, Any]]] = {}
    first = rows.view().wire(known)
    assert list(first["nodes"])[:2] == ["1", "2"]
    ended = record(7, DONE, owner=1)
    rows.update(graph(*(node(task) for task in tasks if task.id != 7)), {7: ended})
    second = rows.view().wire(known)
    assert second["nodes"]["8"] is first["nodes"]["8"]
    ops = patch.diff(first, second)
    assert {op["path"].split("/")[2] for op in ops if op["path"].startswith("/nodes/")} == {"7"}
    assert patch.apply(first, ops) == second
    assert len(ops) <= 6


def test_static_forms_say_the_tree() -> None:
    view = rows_of(
        record(9, Waiting({"phase": "tools"}, (12,)), kind="pi.generation"),
        record(12, kind="pi.tool", owner=9, input={"name": "weather", "arguments": {"city": "Paris"}}),
    ).view(held="waits for tool `weather`")
    assert to_text(view).splitlines() == [
        "2 live tasks",
        "! waits for tool `weather`",
        "  9 turn · ◷ waiting · tools · waits for its 1 task",
        '    12 weather(city="Paris") · ◐ running · work',
    ]
    html = to_html(view)
    assert "<code" in html
    assert "weather(city=&quot;Paris&quot;)" in html
    assert "<script" not in html
    assert set(mimebundle(view)) == {"text/plain", "text/html"}


def test_no_text_of_a_task_becomes_markup() -> None:
    bad = "</td><script>x</script>\x1b[31m"
    aborted = record(4, Terminal(Aborted(bad)), kind=bad)
    rows = rows_of(record(3, Running({"phase": bad}), kind=bad, input={bad: bad}))
    rows.update(graph(node(record(3, Running({"phase": bad}), kind=bad))), {}, [aborted])
    view = rows.view(held=bad)
    html, text = to_html(view), to_text(view)
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\x1b" not in text
    assert "\x1b" not in str(view.wire())


def test_ids_of_the_graph_are_those_of_the_rows() -> None:
    rows = rows_of(record(3))
    assert rows.changed(TaskGraph()) == ([], [3])
    rows.update(TaskGraph(), {})
    assert rows.view().rows == ()
    assert TaskId(3) not in TaskGraph().tasks
