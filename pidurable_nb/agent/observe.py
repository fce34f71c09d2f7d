"""Observing a session from another process: read-only and live (engine.md, section 14; api.md, Observing).

An *observer* follows a session that another process works on: conversations, the task graph, inbox and usage, as
committed, within 0.3 s. It writes nothing, holds up nobody, and goes on when the owner dies and the next one starts.

Inside it is a harness that commits nothing: instead of settling commits of its own, it adopts what the storage says
that others committed. So views, watches and scans are the harness's own. Several commits that arrive together become
one publication, with each record in its newest form.

What depends on code is the owner's to know: an observer says neither that a task is blocked nor what is unresolved.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any, TypeVar

from ..patch import Op, diff
from ..records import (
    ROOT,
    Attempt,
    ConversationId,
    ConversationRecord,
    Entry,
    EntryId,
    Life,
    SubmissionRecord,
    TaskRecord,
)
from ..session import Document, DocumentChange, Opening, Publication, Report, Scan, Session, SessionEnd, Tx, Watch
from ..session.documents import Address, DocumentState
from ..session.mirror import Staged
from ..session.session import _Sealed
from ..storage.following import FollowedStorage
from ..storage.protocol import Changes, CommitInfo, Order
from ..tasks.core import Node, Readiness
from ..tasks.graph import TaskGraph, graph_of
from .conversation import Conversation, ConversationView
from .harness import Harness, InspectedTask, Inspection
from .state import UsageState

D = TypeVar("D", bound=Document)

__all__ = ["Observer", "Owner", "observe"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who works on a session: its process, its machine, and since when (epoch seconds).

    A field is ``None`` for the moment in which an owner has taken the session and not yet written who it is.
    """

    pid: int | None
    host: str | None
    since: float | None


def observe(path: str | os.PathLike[str]) -> Opening[Observer]:
    """Follow a session without owning it: ``async with observe("chat.sqlite") as observer``, or ``await`` it.

    ``path`` is the file of an SQLite session, ``jsonl:DIR`` or the folder of a journal. The owner may be this process,
    another one, dead, or change meanwhile.

    Raises ``StorageRequestError`` for what cannot be observed, such as ``":memory:"``, ``StorageError`` where there is
    no session, ``StorageCorrupt`` and ``SchemaTooNew``.
    """

    async def open_observer() -> Observer:
        storage = await FollowedStorage.open(path)
        follower = _Follower(storage)
        try:
            await follower._load()
        except BaseException:
            follower._unsubscribe()
            await storage.close()
            raise
        return Observer(follower, storage)

    return Opening(open_observer)


class Observer:
    """A session seen from outside. Made by ``observe``; used on the event loop that opened it.

    Every read is of the newest commit. ``watch…`` methods give a ``Watch``, which ends ``closed`` with the observer,
    and ``failed`` when the file can no longer be read.
    """

    def __init__(self, follower: _Follower, storage: FollowedStorage) -> None:
        self._follower = follower
        self._storage = storage

    def __repr__(self) -> str:
        return f"<Observer of {self._storage.name} at commit {self._storage.last_seq}>"

    @property
    def name(self) -> str:
        """What was given to ``observe``."""
        return self._storage.name

    @property
    def owner(self) -> Owner | None:
        """Who has the session open at this moment, ``None`` when nobody has."""
        found = self._storage.owner
        return None if found is None else Owner(found.pid, found.host, found.since)

    @property
    def last_seq(self) -> int:
        """The newest commit that was seen."""
        return self._storage.last_seq

    @property
    def end(self) -> SessionEnd | None:
        """How observing ended, ``None`` while it goes on."""
        return self._follower.end

    # -- following ---------------------------------------------------------------------------------------------------

    def watch(self, conversation: int = ROOT) -> Watch[ConversationView]:
        """Follow a conversation. Entering raises ``DurableError`` when there is none of that id."""
        return self._conversation(conversation).watch()

    def watch_task_graph(self) -> Watch[TaskGraph]:
        """Follow the live tasks."""
        return self._follower.watch_task_graph()

    def watch_doc(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> Watch[D | None]:
        """Follow a document, as ``Session.watch_doc``."""
        return self._follower.watch_doc(doc, scope, key=key)

    def watch_commits(self) -> Watch[Publication]:
        """Follow everything. A publication may stand for several commits; its ``seq`` is the newest of them."""
        return self._follower.watch_commits()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def catch_up(self) -> int:
        """Take in everything that is committed by now, as each read does; the sequence of the newest commit."""
        self._follower._check_open()
        await self._follower._read(self._storage.catch_up())
        return self._storage.last_seq

    async def view(self, conversation: int = ROOT) -> ConversationView:
        """A conversation's record, active entries and built-in documents."""
        await self.catch_up()
        return await self._conversation(conversation).view()

    def entries(
        self,
        conversation: int = ROOT,
        *,
        min_id: int | None = None,
        max_id: int | None = None,
        order: Order = "descending",
    ) -> Scan[Entry]:
        """The entries that a conversation sees, newest first unless ``order="ascending"``."""
        return self._conversation(conversation).entries(min_id=min_id, max_id=max_id, order=order)

    async def entry(self, id: int) -> Entry | None:
        """Any entry of the session."""
        self._follower._check_open()
        return await self._follower._read(self._storage.entry(id))

    async def task_graph(self) -> TaskGraph:
        """Every live task, with owner, phase and waits."""
        await self.catch_up()
        return await self._follower.task_graph()

    async def inspect(self) -> Inspection:
        """Live tasks with their state, and open submissions. ``scheduling`` is ``paused`` when nobody has it open."""
        await self.catch_up()
        return await self._follower.inspect()

    async def usage(self) -> UsageState:
        """Tokens and cost of the whole session, per model and per tool."""
        await self.catch_up()
        return await self._follower.usage()

    async def snapshot(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> D | None:
        """The value of a document, as ``Session.snapshot``."""
        await self.catch_up()
        return await self._follower.snapshot(doc, scope, key=key)

    async def snapshot_as_of(
        self, doc: type[D], conversation: ConversationId, *, at: EntryId, key: str | None = None
    ) -> D | None:
        """The value of a document at an entry, as ``Session.snapshot_as_of``."""
        return await self._follower.snapshot_as_of(doc, conversation, at=at, key=key)

    def conversations(
        self,
        *,
        owner_task: int | None = None,
        owner_conversation: int | None = None,
        order: Order = "ascending",
    ) -> Scan[ConversationRecord]:
        """Conversation records, all or those of an owner."""
        return self._follower.conversations(owner_task=owner_task, owner_conversation=owner_conversation, order=order)

    async def task(self, id: int) -> TaskRecord | None:
        """A task record, live or ended."""
        return await self._follower.task(id)

    def tasks(self, **filters: Any) -> Scan[TaskRecord]:
        """Task records, by the filters of ``Harness.tasks``."""
        return self._follower.tasks(**filters)

    def submissions(self, **filters: Any) -> Scan[SubmissionRecord]:
        """Submission records, by the filters of ``Harness.submissions``."""
        return self._follower.submissions(**filters)

    async def lives(self) -> list[Life]:
        """Every opening of the session, oldest first."""
        self._follower._check_open()
        return await self._follower._read(self._storage.lives())

    async def attempts(self, *, task: int | None = None) -> list[Attempt]:
        """Every invocation of tasks, or those of one, in the order in which they started."""
        self._follower._check_open()
        return await self._follower._read(self._storage.attempts(task=task))

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop observing; watches end ``closed``. Closing twice is allowed."""
        await self._follower.close()

    async def wait_closed(self) -> SessionEnd:
        """Wait until observing has ended, and say how."""
        return await self._follower.wait_closed()

    async def __aenter__(self) -> Observer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _conversation(self, id: int) -> Conversation:
        self._follower._check_open()
        return Conversation(self._follower, ConversationId(id))


class _Follower(Harness):
    """The harness inside an observer: it adopts the commits of others, and runs and commits nothing."""

    storage: FollowedStorage

    def __init__(self, storage: FollowedStorage) -> None:
        super().__init__(
            storage,
            models=(),
            registry=None,
            settings=None,
            env=None,
            conversation_created=None,
            clock=time.time,
            on_report=_ignored,
            on_wake=None,
        )

    async def _load(self) -> None:
        """Read what is live, then take in what was committed since the reading began."""
        early: list[tuple[Changes, CommitInfo]] = []
        self.storage.follow(lambda changes, newest: early.append((changes, newest)), self._fail)
        await Session._load(self)
        self.storage.follow(self._take, self._fail)
        for changes, newest in early:
            self._take(changes, newest)

    def _take(self, changes: Changes, newest: CommitInfo) -> None:
        """Adopt the commits of others as one."""
        if self._failure is not None or self.end is not None:
            return
        staged = Staged(
            conversations={record.id: record for record in changes.conversations},
            entries={record.id: record for record in changes.entries},
            tasks={record.id: record for record in changes.tasks},
            submissions={record.id: record for record in changes.submissions},
        )
        for record in changes.retired:
            address = Address(record.kind, record.scope_id, record.key)
            before = self._committed.documents.get(address)
            if before is None or before.record.id == record.id:
                staged.documents[address] = DocumentChange(before, None, [_replaced(None)])
        for stored in changes.documents:
            address = Address(stored.record.kind, stored.record.scope_id, stored.record.key)
            before = self._committed.documents.get(address)
            after = DocumentState(stored.record, stored.version, stored.value, stored.deltas)
            if before is None or before.record.id != after.record.id:
                ops: list[Op] = [_replaced(stored.value)]
            elif not (ops := diff(before.value, after.value)):
                continue  # a read has brought it already
            staged.documents[address] = DocumentChange(before, after, ops)
        self._sealed.apply(staged)
        self._adopt(_Sealed(staged, newest.at, seq=newest.seq))

    def _published(self, publication: Publication) -> None:
        Session._published(self, publication)  # no scheduler hears of it

    # What would write is refused before anything has happened.

    def _seal(self, tx: Tx) -> _Sealed | None:
        if tx._seal():
            self.storage.refuse()
        return None

    def resume(self) -> None:
        self.storage.refuse()

    def _implied_resume(self) -> None:
        self._check_open()

    # What a scheduler would know is made from the records.

    def _nodes(self) -> list[Node]:
        return [Node(record, None) for _, record in sorted(self._committed.tasks.items())]

    def _readiness(self, record: TaskRecord) -> Readiness:
        return Readiness()

    def _graph(self) -> TaskGraph:
        return graph_of(self._nodes(), self._committed.owned_conversations)

    def watch_task_graph(self) -> Watch[TaskGraph]:
        self._check_open()
        shown = TaskGraph()

        def attach(watch: Watch[TaskGraph]) -> TaskGraph:
            nonlocal shown
            self._follow(watch, lambda publication: follow(watch, publication))
            shown = self._graph()
            return shown

        def follow(watch: Watch[TaskGraph], publication: Publication) -> None:
            nonlocal shown
            if publication.tasks or publication.conversations:
                before, shown = shown, self._graph()
                ops = _graph_ops(before, shown)
                if ops:
                    watch._push(shown, ops)

        return Watch(attach, self._unfollow, TaskGraph.to_data)

    async def inspect(self) -> Inspection:
        self._check_open()
        return Inspection(
            scheduling="paused" if self.storage.owner is None else "running",
            tasks=tuple(InspectedTask(record=node.record, state=self._scheduling(node)) for node in self._nodes()),
            submissions=tuple(record for _, record in sorted(self._committed.submissions.items())),
        )

    async def _stopping(self) -> None:
        """Nothing runs here, and the tasks that do are the owner's."""
        self._unsubscribe()
        self._wake_all()
        if self._background:
            await asyncio.wait(self._background)


def _ignored(report: Report) -> None:
    """Reports are the owner's. What fails an observer is told by its end and by its watches."""


def _graph_ops(before: TaskGraph, after: TaskGraph) -> list[Op]:
    """The operations that lead from one graph to a later one; only nodes that changed are compared in full."""
    ops: list[Op] = [{"op": "remove", "path": f"/tasks/{id}"} for id in before.tasks if id not in after.tasks]
    for id, node in after.tasks.items():
        old = before.tasks.get(id)
        if old is None:
            ops.append({"op": "add", "path": f"/tasks/{id}", "value": node.to_data()})
        elif old != node:
            ops.extend({**op, "path": f"/tasks/{id}{op['path']}"} for op in diff(old.to_data(), node.to_data()))
    return ops


def _replaced(value: Any) -> Op:
    return {"op": "replace", "path": "", "value": value}
