"""What live views of tasks cost: bytes to the browser, and the processor's time in Python, for each update."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from statistics import median
from typing import Any
from unittest import mock

import comm
from comm.base_comm import BaseComm

from pidurable_nb.notebook.graphview import GraphRows
from pidurable_nb.notebook.timelineview import TimelineRows
from pidurable_nb.notebook.widgets import Publisher, ViewWidget
from pidurable_nb.notebook.widgets_tasks import GraphWidget, TimelineWidget
from pidurable_nb.records import Attempt, Completed, Life, Running, TaskId, TaskRecord, Terminal
from pidurable_nb.tasks import TaskGraph, TaskNode

from .figures import Figure

TASKS = 1_000
UPDATES = 50


class _Counting(BaseComm):
    """A comm that counts the bytes of its messages in place of sending them."""

    sent = 0

    def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
        type(self).sent += len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())


def _record(id: int, ended: float | None = None) -> TaskRecord:
    return TaskRecord(
        id=TaskId(id),
        conversation_id=1,  # type: ignore[arg-type]  # ids are whole numbers
        kind="app.page",
        version=1,
        input={"number": id},
        owner=None if id == 1 else TaskId(1),
        state=Running({"phase": "fetch"}) if ended is None else Terminal(Completed()),
        started_at=1e9,
        ended_at=ended,
    )


def _node(record: TaskRecord) -> TaskNode:
    return TaskNode(record.id, record.kind, record.conversation_id, "running", record.owner, phase="fetch")


def _graph_steps() -> Iterator[tuple[Any, ViewWidget]]:
    """A graph of a thousand tasks of which one ends with each update."""
    records = {id: _record(id) for id in range(1, TASKS + 1)}
    nodes = {record.id: _node(record) for record in records.values()}
    rows = GraphRows()
    rows.update(TaskGraph.model_construct(tasks=dict(nodes)), records)
    widget = GraphWidget(rows.view(), publish=Publisher(interval=60))
    for id in range(2, 2 + UPDATES):

        def step(id: int = id) -> None:
            del nodes[TaskId(id)]
            rows.update(TaskGraph.model_construct(tasks=dict(nodes)), {id: _record(id, 1e9 + id)})
            widget.show(rows.view())

        yield step, widget


def _timeline_steps() -> Iterator[tuple[Any, ViewWidget]]:
    """A timeline at its limit of tasks, of which one ends with each update."""
    rows = TimelineRows()
    ids = range(1, 401)
    attempts = {id: [Attempt(TaskId(id), 1, "fetch", 1e9 + id)] for id in ids}
    rows.update(lives=[Life(1, 1, "here", 1e9)], tasks=[_record(id) for id in ids], attempts=attempts)
    widget = TimelineWidget(rows.view(1e9 + 500), publish=Publisher(interval=60))
    for id in range(2, 2 + UPDATES):

        def step(id: int = id) -> None:
            ended = attempts[id][0].replaced(ended_at=1e9 + 500, end="ended")
            rows.update(tasks=[_record(id, 1e9 + 500)], attempts={id: [ended]})
            widget.show(rows.view(1e9 + 500))

        yield step, widget


def _measured(steps: Iterator[tuple[Any, ViewWidget]]) -> tuple[int, int, float]:
    """Bytes at first, bytes for each update, and seconds of processor time for each update."""
    with mock.patch.object(comm, "create_comm", lambda **options: _Counting(**options)):
        _Counting.sent = 0
        first, spent, before = 0, [], 0
        for step, widget in steps:
            first = first or _Counting.sent
            before = before or first
            start = time.process_time()
            step()
            widget.publish()
            spent.append(time.process_time() - start)
        return first, (_Counting.sent - before) // UPDATES, median(spent)


def live_figures() -> Iterator[Figure]:
    """The graph of a thousand tasks, and a timeline of four hundred."""
    for name, steps in (("graph of 1,000 tasks", _graph_steps()), ("timeline of 400 tasks", _timeline_steps())):
        first, each, spent = _measured(steps)
        yield Figure(f"{name}: opened, with its module", first / 1000, "kB", "below 300", first < 300_000)
        yield Figure(f"{name}: one task ends", float(each), "bytes", "below 1,000", each < 1_000)
        yield Figure(f"{name}: one task ends, Python", spent * 1000, "ms", "below 20", spent < 0.02)
