"""The task graph as people see it: rows of a tree, with every word made (notebook.md, "Live widgets", 3).

A *row* is one task: live, or ended while somebody watched or shortly before. ``GraphRows`` keeps rows by what changed,
so that an update costs what it touches, and ``view()`` gives all of them as a frozen ``GraphView``: owners before what
they own. Ownership is the tree; a wait that crosses it is an *edge*, ``GraphRow.edges``. The first tasks of a
conversation that belongs to a task stand under that task.

Nothing here reads storage: whoever follows a session hands over the graph and the records of what changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..records import ROOT, TaskId, TaskRecord, checkpoint_of_task, outcome_of_task
from ..tasks import TaskGraph, TaskNode
from ..values import JsonValue, Value
from .present import BLOCKED, wait_words
from .view import TASK_BADGES, Badge, View, clean_output, clock_time, compact_arguments, duration_words, plural

__all__ = ["GraphRow", "GraphRows", "GraphView", "task_title"]

KEEP_ENDED = 40
"""Ended tasks that stay when everything around them has ended."""

KEEP_BELOW = 2_000
"""Ended tasks that stay because a task above them is live."""

TITLE_LIMIT = 80
"""Characters of a task's title."""

_OUTCOMES = frozenset({"completed", "failed", "faulted", "aborted", "orphaned"})

SIBLINGS = 12
"""A static form shows so many tasks of one owner; the rest are counted."""


def task_title(kind: str, input: JsonValue) -> str:
    """What a task is, in one line: the call of a tool, else its kind and what it was given."""
    if kind == "pi.generation":
        return "turn"
    if kind == "pi.compaction":
        return "compaction"
    if kind == "pi.tool" and isinstance(input, dict):
        arguments = input.get("arguments")
        return clean_output(f"{input.get('name')}({compact_arguments(arguments, TITLE_LIMIT) if arguments else ''})")
    given = "" if input is None or input == {} else f"({compact_arguments(input, TITLE_LIMIT)})"
    return clean_output(f"{kind}{given}")


class GraphRow(Value):
    """One task. ``owner`` is the row that it stands under, ``state`` a key of ``TASK_BADGES``.

    ``about`` says why it does not go on, ``edges`` are the tasks outside of its own that it waits for, ``until`` is
    when it wakes. ``attempt`` counts the times that its process died, and for a turn its requests.
    """

    id: int
    kind: str
    title: str
    state: str
    phase: str | None = None
    owner: int | None = None
    edges: tuple[int, ...] = ()
    until: float | None = None
    attempt: int = 1
    about: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    background: bool = False
    aborting: bool = False
    conversation: int = ROOT

    @property
    def live(self) -> bool:
        """Whether it has not ended yet."""
        return self.state not in _OUTCOMES

    @property
    def badge(self) -> Badge:
        return TASK_BADGES.get(self.state, Badge("·", clean_output(self.state), "muted"))

    @property
    def marks(self) -> tuple[str, ...]:
        """What it is beside its state, in words."""
        found = []
        if self.attempt > 1:
            found.append(f"attempt {self.attempt}")
        if self.background:
            found.append("background")
        if self.owner is None and self.conversation != ROOT:
            found.append(f"conversation {self.conversation}")
        if self.aborting and self.live:
            found.append("being aborted")
        return tuple(found)

    @property
    def facts(self) -> tuple[str, ...]:
        """Everything that a line says after title and state; times as they are now."""
        found = [self.phase] if self.phase else []
        found.extend(self.marks)
        if self.about:
            found.append(self.about)
        if self.live and self.until is not None:
            found.append(f"until {clock_time(self.until, date=True)}")
        if not self.live and self.started_at is not None and self.ended_at is not None:
            found.append(duration_words(self.ended_at - self.started_at))
        return tuple(found)

    def wire(self) -> dict[str, Any]:
        """The form that the Graph widget sends: what is usual is left out."""
        said: dict[str, Any] = {"kind": clean_output(self.kind), "title": self.title, "state": self.state}
        if self.state not in TASK_BADGES:
            said["badge"] = list(self.badge)
        for name in ("phase", "owner", "until", "started_at", "ended_at"):
            if (value := getattr(self, name)) is not None:
                said[name] = clean_output(value) if isinstance(value, str) else value
        if self.edges:
            said["edges"] = list(self.edges)
        if self.about:
            said["about"] = clean_output(self.about)
        if self.marks:
            said["marks"] = list(self.marks)
        return said


class GraphView(View):
    """What ``%durable graph`` shows: rows in the order of their ids. ``hidden`` counts ended tasks that are left out.

    ``held`` says why nothing runs. ``can_abort`` is false for whoever only observes.
    """

    rows: tuple[GraphRow, ...] = ()
    hidden: int = 0
    held: str | None = None
    can_abort: bool = True

    @property
    def title(self) -> str:
        """How many tasks there are."""
        live = sum(row.live for row in self.rows)
        said = [plural(live, "live task") if live else "no live tasks"]
        if live < len(self.rows):
            said.append(f"{len(self.rows) - live:,} ended")
        return " · ".join(said)

    def children(self) -> dict[int | None, list[GraphRow]]:
        """The rows below each row, and below none."""
        known = {row.id for row in self.rows}
        found: dict[int | None, list[GraphRow]] = {}
        for row in self.rows:
            found.setdefault(row.owner if row.owner in known else None, []).append(row)
        return found

    def lines(self, *, siblings: int = SIBLINGS) -> Iterator[tuple[int, GraphRow | str]]:
        """The tree from top to bottom: depths, and rows or the words for rows that are folded away."""
        children = self.children()
        stack: list[tuple[int, GraphRow | str]] = list(reversed(_some(children.get(None, []), 0, siblings)))
        while stack:
            depth, item = stack.pop()
            yield depth, item
            if isinstance(item, GraphRow):
                stack.extend(reversed(_some(children.get(item.id, []), depth + 1, siblings)))

    def wire(self, known: dict[int, tuple[GraphRow, dict[str, Any]]] | None = None) -> dict[str, Any]:
        """The form that the Graph widget sends. ``known`` keeps the forms of rows from one call to the next."""
        kept = {} if known is None else known
        nodes: dict[str, Any] = {}
        for row in self.rows:
            have = kept.get(row.id)
            if have is None or have[0] is not row:
                kept[row.id] = have = (row, row.wire())
            nodes[str(row.id)] = have[1]
        for id in kept.keys() - {row.id for row in self.rows}:
            del kept[id]
        return {
            "title": self.title,
            "nodes": nodes,
            "hidden": self.hidden,
            "held": None if self.held is None else clean_output(self.held),
            "can_abort": self.can_abort,
            "badges": {state: list(badge) for state, badge in TASK_BADGES.items()},
        }


def _some(rows: Sequence[GraphRow], depth: int, limit: int) -> list[tuple[int, GraphRow | str]]:
    """All rows of one owner, or those that need attention and the first of the others, and how many more there are."""
    if len(rows) <= limit:
        return [(depth, row) for row in rows]
    urgent = [row for row in rows if row.badge.tone in ("warn", "bad")][: limit - 3]
    chosen = {row.id for row in urgent}
    chosen.update(row.id for row in [row for row in rows if row.id not in chosen][: limit - len(chosen)])
    counts = Counter(row.badge.word for row in rows if row.id not in chosen)
    more = f"{len(rows) - len(chosen):,} more: " + ", ".join(f"{count:,} {word}" for word, count in counts.items())
    return [*((depth, row) for row in rows if row.id in chosen), (depth, more)]


class GraphRows:
    """The rows of a session, kept by what changed."""

    def __init__(self, *, can_abort: bool = True) -> None:
        self._can_abort = can_abort
        self._graph = TaskGraph()
        self._rows: dict[int, GraphRow] = {}
        self._holders: dict[int, int] = {}
        self._hidden = 0

    def changed(self, graph: TaskGraph) -> tuple[list[int], list[int]]:
        """The tasks of which ``update`` needs the records: those that are new or different, and those that ended."""
        before = self._graph.tasks
        different = [id for id, node in graph.tasks.items() if before.get(id) is not node and before.get(id) != node]
        return [int(id) for id in different], [int(id) for id in before if id not in graph.tasks]

    def update(self, graph: TaskGraph, records: Mapping[int, TaskRecord], ended: Iterable[TaskRecord] = ()) -> None:
        """Move on to ``graph``. ``records`` are those of what changed, ``ended`` those of ended tasks to show too."""
        _, gone = self.changed(graph)
        self._graph = graph
        for node in graph.tasks.values():
            for conversation in node.conversations:
                self._holders[conversation] = node.id
        for id, record in records.items():
            if (found := graph.tasks.get(TaskId(id))) is not None:
                self._rows[id] = self._live(found, record)
        for id in gone:
            if id in records:
                self._end(records[id])
            else:
                self._rows.pop(id, None)
        for record in ended:
            self._end(record)
        self._prune()

    def view(self, *, held: str | None = None) -> GraphView:
        """The rows as they are now."""
        rows = tuple(self._rows[id] for id in sorted(self._rows))
        # Every row was validated when it was made.
        return GraphView.model_construct(rows=rows, hidden=self._hidden, held=held, can_abort=self._can_abort)

    def _owner(self, record: TaskRecord) -> int | None:
        return record.owner if record.owner is not None else self._holders.get(record.conversation_id)

    def _live(self, node: TaskNode, record: TaskRecord) -> GraphRow:
        state, about = str(node.status), ""
        edges: tuple[int, ...] = ()
        if node.status == "waiting":
            edges = tuple(id for id in node.on if self._owner_of(id) != node.id)
            own = len(node.on) - len(edges)
            about = wait_words([*([f"its {plural(own, 'task')}"] if own else []), *edges], node.signal, None, "waits")
        elif node.status == "completing" and node.outcome is not None:
            about = f"{node.outcome.status}, waits for the tasks below it"
        if node.blocked is not None:
            state, about = "blocked", BLOCKED[node.blocked]
        requests = (checkpoint_of_task(record) or {}).get("attempt") if node.kind == "pi.generation" else None
        return GraphRow(
            id=node.id,
            kind=node.kind,
            title=task_title(node.kind, record.input),
            state=state,
            phase=node.phase,
            owner=self._owner(record),
            edges=edges,
            until=node.until,
            attempt=max(node.restarts + 1, requests if isinstance(requests, int) else 1),
            about=about,
            started_at=node.started_at,
            background=node.background,
            aborting=node.abort_requested,
            conversation=node.conversation_id,
        )

    def _owner_of(self, id: TaskId) -> int | None:
        node, row = self._graph.tasks.get(id), self._rows.get(id)
        return node.owner if node is not None else row.owner if row is not None else None

    def _end(self, record: TaskRecord) -> None:
        outcome = outcome_of_task(record)
        if outcome is None or not record.terminal:
            return
        error = getattr(outcome, "error", None)
        reason = error.message if error is not None else getattr(outcome, "reason", None)
        before = self._rows.get(record.id)
        self._rows[record.id] = GraphRow(
            id=record.id,
            kind=record.kind,
            title=task_title(record.kind, record.input),
            state=outcome.status,
            owner=self._owner(record),
            attempt=1 if before is None else before.attempt,
            about="" if reason is None else " ".join(clean_output(str(reason)).split()),
            started_at=record.started_at,
            ended_at=record.ended_at,
            background=record.background,
            conversation=record.conversation_id,
        )

    def _prune(self) -> None:
        """Forget the oldest ended tasks when there are too many."""
        ended = [id for id in sorted(self._rows) if not self._rows[id].live]
        if len(ended) <= KEEP_ENDED:
            return
        live: dict[int, bool] = {}
        below = [id for id in ended if self._root_lives(id, live)]
        over = set(below[: max(0, len(below) - KEEP_BELOW)])
        rest = [id for id in ended if not live[id]]
        kept = set(rest[-KEEP_ENDED:])
        for id in reversed(rest):  # an owner comes before what it owns, and stays with it
            if id in kept and (owner := self._rows[id].owner) is not None:
                kept.add(owner)
        over.update(id for id in rest if id not in kept)
        for id in over:
            del self._rows[id]
        self._hidden += len(over)

    def _root_lives(self, id: int, known: dict[int, bool]) -> bool:
        """Whether a task above ``id`` is live."""
        path: list[int] = []
        at: int | None = id
        while at is not None and at in self._rows and at not in known and not self._rows[at].live:
            path.append(at)
            at = self._rows[at].owner
        lives = at is not None and at in self._rows and known.get(at, self._rows[at].live)
        known.update(dict.fromkeys(path, lives))
        return lives
