"""The task graph: live tasks as a person sees them (engine.md, section 14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from ..patch import Op, diff
from ..records import Outcome, TaskId, TaskRecord, TaskStatus, WaitPolicy, checkpoint_of_task, outcome_of_task
from ..values import Value
from .core import BlockedReason, Node


class TaskNode(Value):
    """One live task. ``owner`` is the task that owns it, ``on`` and ``signal`` what it waits for, ``until`` when it
    wakes,
    ``conversations`` those that it owns, ``blocked`` why its definition cannot take it."""

    id: TaskId
    kind: str
    conversation_id: int
    status: TaskStatus
    owner: TaskId | None = None
    background: bool = False
    abort_requested: bool = False
    phase: str | None = None
    on: tuple[TaskId, ...] = ()
    policy: WaitPolicy | None = None
    signal: str | None = None
    until: float | None = None
    outcome: Outcome | None = None
    conversations: tuple[int, ...] = ()
    blocked: BlockedReason | None = None
    restarts: int = 0
    started_at: float | None = None


class TaskGraph(Value):
    """Every live task by id; ownership is a tree, waits are edges across it."""

    tasks: dict[TaskId, TaskNode] = Field(default_factory=dict)

    def ops_from(self, before: TaskGraph) -> list[Op]:
        """The operations that lead from an earlier graph to this one; only nodes that changed are compared."""
        ops: list[Op] = []
        for id in before.tasks:
            if id not in self.tasks:
                ops.append({"op": "remove", "path": f"/tasks/{id}"})
        for id, node in self.tasks.items():
            old = before.tasks.get(id)
            if old is None:
                ops.append({"op": "add", "path": f"/tasks/{id}", "value": node.to_data()})
            elif old is not node and old != node:
                for op in diff(old.to_data(), node.to_data()):
                    ops.append({**op, "path": f"/tasks/{id}{op['path']}"})
        return ops


def node_of(node: Node, conversations: Iterable[int] = ()) -> TaskNode:
    """One node of the graph from what the scheduler knows."""
    record: TaskRecord = node.record
    state: Any = record.state
    checkpoint = checkpoint_of_task(record)
    return TaskNode(
        id=record.id,
        kind=record.kind,
        conversation_id=record.conversation_id,
        owner=record.owner,
        background=record.background,
        abort_requested=record.abort_requested,
        status=state.status,
        phase=None if checkpoint is None else str(checkpoint.get("phase")),
        on=getattr(state, "on", ()),
        policy=getattr(state, "policy", None),
        signal=getattr(state, "signal", None),
        until=getattr(state, "until", None),
        outcome=outcome_of_task(record),
        conversations=tuple(sorted(conversations)),
        blocked=node.blocked,
        restarts=record.restarts,
        started_at=record.started_at,
    )


def graph_of(nodes: Iterable[Node], conversations: Mapping[int, set[int]]) -> TaskGraph:
    """The graph of all live tasks."""
    tasks = {node.record.id: node_of(node, conversations.get(node.record.id, ())) for node in nodes}
    return TaskGraph(tasks=dict(sorted(tasks.items())))
