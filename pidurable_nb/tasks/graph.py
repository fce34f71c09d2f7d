"""The task graph: live tasks as a person sees them (engine.md, section 14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from ..patch import Op, diff
from ..records import Outcome, TaskId, TaskRecord, TaskStatus, WaitPolicy, checkpoint_of_task, outcome_of_task
from ..values import Value
from .core import BlockedReason, Node, SchedulerCore


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
        return [
            op
            for id in sorted(before.tasks.keys() | self.tasks.keys())
            for op in node_ops(id, before.tasks.get(id), self.tasks.get(id))
        ]


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


def node_ops(id: int, old: TaskNode | None, new: TaskNode | None) -> list[Op]:
    """The operations that lead from one form of a node to another; ``None`` when it is not live."""
    path = f"/tasks/{id}"
    if new is None:
        return [] if old is None else [{"op": "remove", "path": path}]
    if old is None:
        return [{"op": "add", "path": path, "value": new.to_data()}]
    if old is new or old == new:
        return []
    return [{**op, "path": path + op["path"]} for op in diff(old.to_data(), new.to_data())]


class GraphKeeper:
    """The graph that watches follow, kept by what changed: each look costs what it touches.

    ``conversations`` maps a task to the conversations that it owns.
    """

    def __init__(self, core: SchedulerCore, conversations: Mapping[int, set[int]]) -> None:
        self._core = core
        self._conversations = conversations
        self.graph = graph_of(core.nodes.values(), conversations)
        core.seen_changes = set()

    def look(self, also: Iterable[int] = ()) -> list[Op]:
        """Move on to the graph as it is now; returns the operations that lead there, none when nothing changed.

        ``also`` names tasks of which something changed that the core does not know of.
        """
        changed, self._core.seen_changes = self._core.seen_changes or set(), set()
        changed.update(also)
        ops: list[Op] = []
        tasks = dict(self.graph.tasks) if changed else {}
        for id in sorted(changed):
            old = tasks.get(TaskId(id))
            node = self._core.nodes.get(id)
            new = None if node is None else node_of(node, self._conversations.get(id, ()))
            if new is not None:
                tasks[TaskId(id)] = new
            elif old is not None:
                del tasks[TaskId(id)]
            ops.extend(node_ops(id, old, new))
        if ops:
            self.graph = TaskGraph.model_construct(tasks=tasks)  # every node was validated when it was made
        return ops

    def close(self) -> None:
        """Nobody follows any more."""
        self._core.seen_changes = None
