"""A session: one opened storage and its single line of commits (engine.md, sections 1, 3, 4, 14 and 15).

Words. The *line* is a lock that one commit's body holds at a time. A commit is *sealed* when its body ended well and
its batch was encoded: from then on it will be stored, and the next body may run on what it decided. It is *settled*
when storage has it: only then does committed state move, and only then does anything that depends on it reach a
caller. A *publication* is what a settled commit changed.

Guarantees. Sealing encodes, so a commit that cannot be encoded fails its caller and nothing else. Storage is asked in
the order of sealing. A storage error ends the session: every commit in flight and every later call gets
``SessionFailed``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

from ..errors import (
    CommitReentered,
    DocumentMissing,
    DurableError,
    SessionClosed,
    SessionFailed,
    SessionForked,
    StorageRequestError,
)
from ..faults import reach
from ..records import (
    ROOT,
    ConversationId,
    ConversationRecord,
    Entry,
    EntryId,
    SubmissionRecord,
    TaskRecord,
)
from ..storage.protocol import BatchItem, Order, Page, Storage
from ..storage.queued import QueuedStorage
from .context import ContextView, ConversationContext
from .documents import Address, Document, DocumentState, address_of, dump, instance_of, read
from .mirror import DocumentChange, Mirror, Staged
from .report import Report, ReportedTask, ReportKind
from .transaction import Tx
from .watch import Watch, WatchEnd

T = TypeVar("T")
D = TypeVar("D", bound=Document)
X = TypeVar("X", bound=Tx)

ATTENDANCE = 0.05
"""Every how many seconds a session looks whether commits are still under way."""

FAILED_CLOSE = 10.0
"""How many seconds a storage that failed may take to close."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended: ``closed``, or ``failed`` with the storage's error."""

    reason: Literal["closed", "failed"]
    error: BaseException | None = None


class Publication(NamedTuple):
    """What one settled commit changed."""

    seq: int
    at: float
    conversations: dict[int, ConversationRecord]
    entries: dict[int, Entry]
    tasks: dict[int, TaskRecord]
    submissions: dict[int, SubmissionRecord]
    documents: dict[Address, DocumentChange]


@dataclass(slots=True)
class _Sealed:
    """A commit between sealing and settling."""

    staged: Staged
    at: float
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    seq: int | None = None  # known once storage stored it
    settled: bool = False
    error: BaseException | None = None


@dataclass(slots=True)
class _ContextLoad:
    """A context that is being read: what commits add meanwhile, and who else waits for it."""

    later: list[Entry] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


_open_commit: ContextVar[CommitBlock[Any] | None] = ContextVar("pidurable_nb_open_commit", default=None)
"""The commit whose body runs, as the body's own code sees it (engine.md, rule 1.8)."""


class CommitBlock(Generic[X]):
    """``async with session.commit() as tx``: takes the line, runs the body, seals, waits for storage."""

    __slots__ = ("_make", "_prepare", "_token", "_tx", "open", "place", "session")

    def __init__(
        self, session: Session, make: Callable[[], X], place: str, prepare: Callable[[X], Awaitable[None]] | None = None
    ) -> None:
        self.session = session
        self.place = place
        self.open = False
        self._make = make
        self._prepare = prepare

    async def __aenter__(self) -> X:
        session = self.session
        session._check_line()
        await session._line.acquire()
        try:
            session._check_alive()
            reach("commit.line", session.storage.name)
            self._tx = self._make()
        except BaseException:
            session._line.release()
            raise
        self.open = True
        self._token = _open_commit.set(self)
        return self._tx

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        session, tx = self.session, self._tx
        sealed: _Sealed | None = None
        refused: BaseException | None = None
        try:
            if error is None:
                reach("commit.ended", session.storage.name)
                if self._prepare is not None:
                    await self._prepare(tx)  # still inside: rules that look at everything the body staged
                sealed = session._seal(tx)
        except BaseException as raised:
            refused = raised
        finally:
            self._leave()
        if sealed is not None:
            await session._wait_settled(sealed)
        else:
            # What the body read or decided may rest on commits that storage has not settled; nothing escapes before.
            await session._drained()
        if refused is not None:
            raise refused

    def _leave(self) -> None:
        self.open = False
        try:
            _open_commit.reset(self._token)
        except ValueError:  # the block was left in another context than it was entered, as a generator's clean-up does
            _open_commit.set(None)
        self._tx._close()
        self.session._line.release()


class Opening(Generic[T]):
    """A session that is being opened: ``await`` it, or use it in ``async with``, which also closes it."""

    def __init__(self, open: Callable[[], Awaitable[T]]) -> None:
        self._open = open
        self._session: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._session = await self._open()
        return self._session  # type: ignore[no-any-return]

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()


def _place(depth: int = 2) -> str:
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Session:
    """One opened storage, its commit line, its documents and its watches.

    Made by ``Session.open``; agents live in ``Harness``, which extends it.
    """

    def __init__(
        self, storage: Storage, *, clock: Callable[[], float], on_report: Callable[[Report], None] | None
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.end: SessionEnd | None = None
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._line = asyncio.Lock()
        self._sealed = Mirror()
        self._committed = Mirror()
        self._inflight: deque[_Sealed] = deque()
        self._failure: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None
        self._end_waiters: list[asyncio.Future[None]] = []
        self._watches: dict[Watch[Any], Callable[[Publication], None]] = {}
        self._contexts: dict[int, ConversationContext] = {}
        self._context_loads: dict[int, _ContextLoad] = {}
        self._context_used: dict[int, float] = {}
        self._document_used: dict[Address, float] = {}
        self._swept = time.monotonic()
        self._stores: set[asyncio.Task[Any]] = set()
        self._attending: asyncio.Task[None] | None = None
        self._pid = os.getpid()

    @classmethod
    def open(
        cls,
        storage: Storage | str,
        *,
        settings: Any = None,
        clock: Callable[[], float] = time.time,
        on_report: Callable[[Report], None] | None = None,
    ) -> Opening[Self]:
        """Open a storage without agents: ``await`` it, or use it in ``async with``.

        ``storage`` is a ``Storage`` or text as for ``open_storage``. Raises ``SessionInUse`` when it has an owner, and
        ``StorageError`` when it cannot be read (engine.md, section 16).
        """

        async def open_session() -> Self:
            opened = await as_storage(storage, clock)
            try:
                session = cls(opened, clock=clock, on_report=on_report)
                await session._load()
            except BaseException:
                await opened.close(ended="failed")
                raise
            return session

        return Opening(open_session)

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self) -> CommitBlock[Tx]:
        """Take the line for one atomic commit: ``async with session.commit() as tx`` (engine.md, section 3).

        The body must not run effects. Leaving it normally stores everything or nothing and returns when it is stored;
        an exception rolls back. Raises ``CommitReentered`` inside an open commit of this session, ``SessionClosed``
        and ``SessionFailed``.
        """
        self._check_open()
        return CommitBlock(self, lambda: Tx(self, None), _place())

    def _commit(
        self, make: Callable[[], X], place: str = "", prepare: Callable[[X], Awaitable[None]] | None = None
    ) -> CommitBlock[X]:
        return CommitBlock(self, make, place or _place(), prepare)

    def _seal(self, tx: Tx) -> _Sealed | None:
        items = tx._seal()
        if not items:
            return None
        sealed = _Sealed(tx._staged, self.clock())
        self._sealed.sealed(tx._staged)
        self._sealed.apply(tx._staged)
        self._inflight.append(sealed)
        self._store(sealed, items)
        return sealed

    def _store(self, sealed: _Sealed, items: list[BatchItem]) -> None:
        """Ask storage, which cancelling the committer must not reach.

        A queue is asked at once. It spares each commit a task of its own, which costs as much as the commit itself.
        """

        def settled(seq: int | None, error: BaseException | None) -> None:
            sealed.seq, sealed.error = seq, error
            self._settle()

        def stored(asked: asyncio.Future[int]) -> None:
            if asked.cancelled():
                self._torn_down(sealed)
            elif (error := asked.exception()) is not None:
                settled(None, error)
            else:
                settled(asked.result(), None)

        storage = self.storage
        try:
            reach("commit.sealed", storage.name)
            if not isinstance(storage, QueuedStorage):
                store = self._loop.create_task(_commit_to(storage, items, sealed.at))
                self._stores.add(store)
                store.add_done_callback(self._stores.discard)
                store.add_done_callback(stored)
                return
            storage.enqueue(items, settled, at=sealed.at)
        except Exception as error:
            self._fail(error, sealed)  # at once: the next body would run on what is not going to be stored
        if self._attending is None:
            self._attending = self._loop.create_task(self._attend())

    async def _attend(self) -> None:
        """Be there while commits are under way, to hear when the event loop is torn down meanwhile.

        It looks again from time to time, so that one task serves a whole stream of commits.
        """
        try:
            while self._inflight and self._failure is None:  # noqa: ASYNC110 (an event for each commit costs more)
                await asyncio.sleep(ATTENDANCE)
        except asyncio.CancelledError:
            if self._inflight and self.end is None:
                self._torn_down(self._inflight[0])
            raise
        finally:
            self._attending = None

    def _torn_down(self, sealed: _Sealed) -> None:
        """The event loop ends under a commit: as in a crash, there is nobody to close for."""
        sealed.error = SessionFailed("the event loop ended while a commit was being stored")
        self._fail(sealed.error, sealed, torn_down=True)

    def _settle(self) -> None:
        """Adopt what storage has settled, in the order of sealing."""
        while self._inflight and self._failure is None:
            sealed = self._inflight[0]
            if sealed.error is not None:
                self._fail(sealed.error, sealed)
                return
            if sealed.seq is None:
                return
            self._inflight.popleft()
            self._adopt(sealed)

    def _adopt(self, sealed: _Sealed) -> None:
        staged, name = sealed.staged, self.storage.name
        publication = Publication(
            sealed.seq or 0,
            sealed.at,
            staged.conversations,
            staged.entries,
            staged.tasks,
            staged.submissions,
            staged.documents,
        )
        try:
            reach("commit.stored", name)
            self._committed.apply(staged)
            self._sealed.settled(staged)
            reach("commit.adopted", name)
            self._published(publication)
            for watch, deliver in list(self._watches.items()):
                try:
                    deliver(publication)
                except Exception as error:
                    watch._finish(WatchEnd("failed", error))
            reach("commit.published", name)
        except Exception as error:  # a raise in the engine's own listeners fails the session (engine.md, section 15)
            self._fail(error, sealed)
            return
        sealed.settled = True
        for waiter in sealed.waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_settled(self, sealed: _Sealed, *, own: bool = True) -> None:
        """Return when a sealed commit is settled. A cancellation is kept until then (engine.md, section 3)."""
        cancelled: asyncio.CancelledError | None = None
        while not sealed.settled and self._failure is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            sealed.waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        if not sealed.settled:
            if own and sealed.error is not None and sealed.error is self._failure:
                raise sealed.error
            raise self._failed_error()

    async def _drained(self) -> None:
        """Wait until storage holds everything that the line has sealed."""
        if self._inflight:
            await self._wait_settled(self._inflight[-1], own=False)

    # -- what engine layers above override ---------------------------------------------------------------------------

    def _published(self, publication: Publication) -> None:
        """The engine's own listener: called for each settled commit, before watches and callers hear of it."""
        for entry in publication.entries.values():
            context = self._contexts.get(entry.conversation_id)
            if context is not None and not context.extend(entry):
                del self._contexts[entry.conversation_id]
            loading = self._context_loads.get(entry.conversation_id)
            if loading is not None:
                loading.later.append(entry)
        self._sweep()

    async def _conversation_created(self, tx: Tx, record: ConversationRecord) -> None:
        """What a new conversation gets in its creating commit."""

    async def _configure(self, tx: Tx, conversation: int, change: dict[str, Any]) -> None:
        raise DurableError("a session without agents has nothing to configure: open a Harness")

    async def _stopping(self) -> None:
        """End everything that runs, before the storage closes."""

    def _failing(self) -> None:
        """Cancel everything that runs, after a storage error."""

    # -- reads -------------------------------------------------------------------------------------------------------

    async def _read(self, request: Awaitable[T]) -> T:
        """A storage read. Its error fails the session, except an invalid request's (engine.md, section 15).

        One that asks with what no storage can look up, such as a record in place of its id, is an invalid request too.
        """
        try:
            return await request
        except StorageRequestError:
            raise
        except (TypeError, OverflowError) as error:
            raise StorageRequestError(
                f"a read asked with a value of a wrong kind ({error}): ids are the ints of records, such as entry.id."
            ) from error
        except Exception as error:
            if not (isinstance(error, SessionClosed) and self._closing is not None):
                self._fail(error)  # a read that comes too late for the close that is going on is no failure
            raise

    async def _sealed_conversation(self, id: int) -> ConversationRecord | None:
        found = self._sealed.conversations.get(id)
        if found is None and isinstance(unsettled := self._sealed.in_flight.get(id), ConversationRecord):
            return unsettled
        if found is None:
            found = await self._read(self.storage.conversation(id))
            if found is not None:
                self._sealed.put_conversation(found)
                self._committed.put_conversation(found)
        return found

    async def _sealed_entry(self, id: int) -> Entry | None:
        found = self._sealed.in_flight.get(id)
        if found is not None:
            return found if isinstance(found, Entry) else None
        return await self._read(self.storage.entry(id))

    async def _sealed_task(self, id: int) -> TaskRecord | None:
        found = self._sealed.tasks.get(id) or self._sealed.in_flight.get(id)
        if found is not None:
            return found if isinstance(found, TaskRecord) else None
        return await self._read(self.storage.task(id))

    async def _sealed_submission(self, id: int) -> SubmissionRecord | None:
        found = self._sealed.submissions.get(id) or self._sealed.in_flight.get(id)
        if found is not None:
            return found if isinstance(found, SubmissionRecord) else None
        return await self._read(self.storage.submission(id))

    async def _sealed_submission_by_request(self, conversation: int, request_id: str) -> SubmissionRecord | None:
        found = self._sealed.requests.get((conversation, request_id))
        if found is not None:
            return self._sealed.submissions[found]
        for record in self._sealed.in_flight.values():  # those that settled, and storage does not show yet
            if (
                isinstance(record, SubmissionRecord)
                and record.conversation_id == conversation
                and record.request_id == request_id
            ):
                return record
        return await self._read(self.storage.submission_by_request(conversation, request_id))

    async def _sealed_document(self, address: Address) -> DocumentState | None:
        if address not in self._sealed.documents:
            await self._load_document(address)
        self._document_used[address] = time.monotonic()
        return self._sealed.documents[address]

    async def _committed_document(self, address: Address) -> DocumentState | None:
        if address not in self._committed.documents:
            await self._load_document(address)
        self._document_used[address] = time.monotonic()
        return self._committed.documents[address]

    async def _load_document(self, address: Address) -> None:
        state = await self._read(self._stored_document(address))
        # A commit that settled while storage was read knows better.
        for mirror in (self._sealed, self._committed):
            if address not in mirror.documents:
                mirror.put_document(address, state)

    async def _stored_document(self, address: Address) -> DocumentState | None:
        reach("read.document", self.storage.name)
        for scope in self._scopes(address):
            record = await self.storage.find_document(address.kind, scope, address.scope_id, address.key)
            if record is not None:
                found = await self.storage.document(record.id)
                return None if found is None else DocumentState(found.record, found.version, found.value, found.deltas)
        return None

    @staticmethod
    def _scopes(address: Address) -> tuple[Literal["session", "conversation", "task"], ...]:
        return ("session",) if address.scope_id is None else ("conversation", "task")

    def _sweep(self) -> None:
        """Let documents and contexts that nothing used for a while leave memory (engine.md, section 4)."""
        if self._inflight:
            return
        documents, contexts = self._retention()
        now = time.monotonic()
        if now - self._swept < min(documents, contexts) / 4:
            return
        self._swept = now
        watched = {getattr(watch, "address", None) for watch in self._watches}
        for address in list(self._sealed.documents.keys() | self._committed.documents.keys()):
            if now - self._document_used.setdefault(address, now) > documents and address not in watched:
                del self._document_used[address]
                self._sealed.documents.pop(address, None)
                self._committed.documents.pop(address, None)
        for conversation in list(self._contexts):
            if now - self._context_used.setdefault(conversation, now) > contexts:
                del self._context_used[conversation]
                del self._contexts[conversation]

    def _retention(self) -> tuple[float, float]:
        """For how many seconds unused documents and unused contexts stay in memory."""
        return 600.0, 600.0

    async def snapshot(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> D | None:
        """The committed value of a document, ``None`` when there is none; it never creates (engine.md, section 4).

        ``scope`` is the conversation or the task, ``key`` the member of a family. Raises ``DocumentVersionError``,
        ``InvalidDocument``, ``CommitReentered``.
        """
        self._check_line()
        self._check_open()
        state = await self._committed_document(address_of(doc, scope, key))
        return None if state is None else instance_of(doc, state)

    async def snapshot_as_of(
        self, doc: type[D], conversation: ConversationId, *, at: EntryId, key: str | None = None
    ) -> D | None:
        """The value at the end of the commit that wrote entry ``at``, found through the conversation's ancestry.

        ``None`` when the document did not exist then, or the conversation does not see the entry. Raises
        ``ValueError`` for a document that keeps no history (engine.md, section 4).
        """
        self._check_line()
        self._check_open()
        if doc.spec_.history != "rewindable":
            raise ValueError(f"{doc.__name__} keeps no history: declare history='rewindable'")
        async with self._commit(lambda: Tx(self, conversation)) as tx:
            visible = await tx._visible(conversation, at)
        entry = await self._read(self.storage.entry(at)) if visible else None
        if entry is None:
            return None
        commit = await self._read(self.storage.entry_commit(at))
        address = address_of(doc, entry.conversation_id, key)
        if commit is None:
            return None
        record = await self._read(
            self.storage.find_document(address.kind, "conversation", address.scope_id, address.key, at=commit.seq)
        )
        stored = None if record is None else await self._read(self.storage.document(record.id, at=commit.seq))
        return None if stored is None else read(doc, stored.version, stored.value)

    # -- the model's context -----------------------------------------------------------------------------------------

    async def _context(self, conversation: int) -> ConversationContext:
        """The committed context of a conversation, loaded once and then extended."""
        while (context := self._contexts.get(conversation)) is None:
            load = self._context_loads.get(conversation)
            if load is not None:  # another caller reads it
                waiter: asyncio.Future[None] = self._loop.create_future()
                load.waiters.append(waiter)
                await waiter
                continue
            load = self._context_loads[conversation] = _ContextLoad()
            try:
                head, entries = await self._read_context(conversation, None)
                await self._drained()  # storage may hold what is not adopted yet, and comes among the later ones
                context = ConversationContext(head, entries)
                last = max(context.last_id, head.id if head is not None else 0)
                if all(context.extend(entry) for entry in load.later if entry.id > last):
                    self._contexts[conversation] = context
            finally:
                del self._context_loads[conversation]
                for waiter in load.waiters:
                    if not waiter.done():
                        waiter.set_result(None)
        self._context_used[conversation] = time.monotonic()
        return context

    async def _active_from(self, conversation: int) -> EntryId | None:
        """The entry from which the model reads, as the line has it now, where a head was set.

        For bodies of commits: a head before it would be stale (engine.md, section 9).
        """
        newest: Entry | None = None
        for record in self._sealed.in_flight.values():
            if isinstance(record, Entry) and record.conversation_id == conversation and record.head is not None:
                newest = record  # in the order of sealing
        if newest is None:
            newest = (await self._context(conversation)).head
        return None if newest is None else newest.head

    async def _ancestry(self, conversation: int) -> list[tuple[int, int | None]]:
        """The conversation and its ancestors, each with the last entry of it that is visible."""
        chain: list[tuple[int, int | None]] = []
        current: int | None = conversation
        limit: int | None = None
        while current is not None:
            chain.append((current, limit))
            record = await self._sealed_conversation(current)
            if record is None or record.parent is None:
                break
            limit = record.parent.at if limit is None else min(limit, record.parent.at)
            current = record.parent.conversation
        return chain

    async def _visible_page(
        self,
        conversation: int,
        *,
        min_id: int | None,
        max_id: int | None,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[Entry]:
        """A page of the entries that a conversation sees, its ancestors' included; the cursor is the last id."""
        segments = await self._ancestry(conversation)
        ascending = order == "ascending"
        if ascending:
            segments.reverse()
            if cursor is not None:
                min_id = cursor + 1 if min_id is None else max(min_id, cursor + 1)
        elif cursor is not None:
            max_id = cursor - 1 if max_id is None else min(max_id, cursor - 1)
        items: list[Entry] = []
        for segment, until in segments:
            high = min((bound for bound in (max_id, until) if bound is not None), default=None)
            following: int | None = None
            while len(items) < limit:
                page = await self._read(
                    self.storage.scan_entries(
                        conversation=segment,
                        min_id=min_id,
                        max_id=high,
                        order=order,
                        limit=limit - len(items),
                        cursor=following,
                    )
                )
                items.extend(page.items)
                following = page.next
                if following is None:
                    break
        return Page(items, items[-1].id if items and len(items) >= limit else None)

    async def _context_at(self, conversation: int, at: int | None) -> ContextView:
        self._check_line()
        context = await self._context(conversation)
        if at is None:
            return context.view()
        in_range = bool(context.entries) and at >= context.entries[0].id
        if in_range and (context.head is None or at >= context.head.id):
            return context.view_at(at)
        head, entries = await self._read_context(conversation, at)
        return ConversationContext(head, entries).view()

    async def _read_context(self, conversation: int, at: int | None) -> tuple[Entry | None, list[Entry]]:
        """The newest visible head and the entries from it on, as of one moment."""
        while True:
            head, entries = await self._read_range(conversation, at)
            known = 0 if head is None else head.id
            if not any(entry.head is not None and entry.id > known for entry in entries):
                return head, entries  # else a head was stored between the two reads

    async def _read_range(self, conversation: int, at: int | None) -> tuple[Entry | None, list[Entry]]:
        """A head and the entries from it on: one look-up and one scan per ancestor in range."""
        segments: list[tuple[int, int | None]] = []
        current: int | None = conversation
        limit = at
        head: Entry | None = None
        while current is not None:
            segments.append((current, limit))
            head = await self._read(self.storage.latest_head(current, max_id=limit))
            record = await self._sealed_conversation(current)
            if head is not None or record is None or record.parent is None:
                break
            limit = record.parent.at if limit is None else min(limit, record.parent.at)
            current = record.parent.conversation
        first = head.head if head is not None else None
        # The head may point before its own segment: the earlier entries lie in ancestors.
        while current is not None and first is not None:
            record = await self._sealed_conversation(current)
            oldest = await self._read(self.storage.scan_entries(conversation=current, limit=1))
            if record is None or record.parent is None or (oldest.items and oldest.items[0].id <= first):
                break
            limit = record.parent.at if limit is None else min(limit, record.parent.at)
            current = record.parent.conversation
            segments.append((current, limit))
        entries: list[Entry] = []
        with contextlib.ExitStack() as long:
            for segment, until in reversed(segments):
                cursor: int | None = None
                while True:
                    page = await self._read(
                        self.storage.scan_entries(
                            conversation=segment, min_id=first, max_id=until, limit=5000, cursor=cursor
                        )
                    )
                    entries.extend(page.items)
                    if page.next is None:
                        break
                    if cursor is None:
                        long.enter_context(_uncollected())
                    cursor = page.next
        return head, entries

    # -- watches -----------------------------------------------------------------------------------------------------

    def watch_doc(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> Watch[D | None]:
        """Follow a document. Entering raises ``DocumentMissing`` when it does not exist; the watch ends ``retired``
        when it is retired, with a last value of ``None`` (engine.md, sections 4 and 14)."""
        self._check_open()
        address = address_of(doc, scope, key)

        async def attach(watch: Watch[D | None]) -> D | None:
            self._check_line()
            self._check_open()
            state = await self._committed_document(address)
            if state is None:
                raise DocumentMissing(
                    f"there is no document {address.kind} here to watch: create it with tx.doc() in a commit first"
                )

            def deliver(publication: Publication) -> None:
                change = publication.documents.get(address)
                if change is None:
                    return
                if change.after is None or change.after.record.id != state.record.id:  # another incarnation began
                    watch._push(None, [{"op": "replace", "path": "", "value": None}])
                    watch._finish(WatchEnd("retired"))
                else:
                    watch._push(instance_of(doc, change.after), change.ops)

            watch.address = address
            self._follow(watch, deliver)
            return instance_of(doc, state)

        return Watch(attach, self._unfollow, lambda value: None if value is None else dump(value))

    def watch_commits(self) -> Watch[Publication]:
        """Follow publications; ``value`` is at first an empty one with the newest settled sequence."""
        self._check_open()

        def attach(watch: Watch[Publication]) -> Publication:
            self._follow(watch, lambda publication: watch._push(publication, []))
            return Publication(self.storage.last_seq, self.clock(), {}, {}, {}, {}, {})

        return Watch(attach, self._unfollow, lambda value: value.seq)

    def _follow(self, watch: Watch[Any], deliver: Callable[[Publication], None]) -> None:
        self._check_open()
        self._watches[watch] = deliver

    def _unfollow(self, watch: Watch[Any]) -> None:
        self._watches.pop(watch, None)

    # -- reports -----------------------------------------------------------------------------------------------------

    def _report(
        self,
        kind: ReportKind,
        error: BaseException | None = None,
        *,
        task: TaskRecord | None = None,
        extension: str | None = None,
        conversation: int | None = None,
        reason: str | None = None,
        callback: str | None = None,
    ) -> None:
        """Tell the host. A callback that raises is dropped: there is nobody left to tell."""
        if self._on_report is None:
            return
        about = None if task is None else ReportedTask(task.id, task.kind, task.conversation_id)
        if conversation is None and task is not None:
            conversation = task.conversation_id
        report = Report(kind, error, about, extension, conversation, reason, callback)
        try:
            self._on_report(report)
        except Exception as raised:
            self._on_report = None
            self._loop.call_exception_handler(
                {"message": "on_report raised and is not called again", "exception": raised}
            )

    # -- the end -----------------------------------------------------------------------------------------------------

    def _check_line(self) -> None:
        """Refuse what would queue on the line from inside an open commit of this session (engine.md, rule 1.8)."""
        current = _open_commit.get()
        if current is not None and current.open and current.session is self:
            raise CommitReentered(
                f"this would wait for the commit that it is part of, opened at {current.place}: "
                "use the transaction's own methods inside the block, or call this after it"
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SessionForked(
                f"the session on {self.storage.name} belongs to process {self._pid}: a forked child must open its own, "
                "after the parent has closed it"
            )

    def _check_alive(self) -> None:
        self._check_process()
        if self._failure is not None:
            raise self._failed_error()
        if self.end is not None:
            raise SessionClosed(f"the session on {self.storage.name} is closed: open it again to go on")

    def _check_open(self) -> None:
        self._check_alive()
        if self._closing is not None:
            raise SessionClosed(
                f"the session on {self.storage.name} is closing: what runs in it must return first, then open it again"
            )

    def _failed_error(self) -> SessionFailed:
        error = SessionFailed(
            f"the session on {self.storage.name} ended because its storage failed ({self._failure}): "
            "open it again to recover"
        )
        error.__cause__ = self._failure
        return error

    def _fail(self, error: BaseException, first: _Sealed | None = None, *, torn_down: bool = False) -> None:
        """End the session because storage failed; reopening recovers (engine.md, section 15)."""
        if self._failure is not None or self.end is not None:
            return
        self._failure = error
        if first is not None:
            first.error = error
        for sealed in (*self._inflight, *(() if first is None else (first,))):
            for waiter in sealed.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._failing()
        for watch in list(self._watches):
            watch._finish(WatchEnd("failed", error))
        self._report("session_failed", error)
        if torn_down:
            self._ended(SessionEnd("failed", error))
        elif self._closing is None:
            self._closing = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        """The one way out, closed or failed: stop what runs, let the line settle, release the storage."""
        try:
            reach("close.begun", self.storage.name)
            await self._stopping()
            if self._failure is None:
                async with self._line:  # commits that were admitted before have left it
                    pass
                await self._drained()
        except Exception as error:
            self._fail(error)
        if self._failure is None:
            for watch in list(self._watches):
                watch._finish(WatchEnd("closed"))
            try:
                await self.storage.close()
            except Exception as error:
                self._failure = error
                self._report("session_failed", error, reason="close")
        else:
            try:
                await asyncio.wait_for(self.storage.close(ended="failed"), FAILED_CLOSE)
            except Exception as error:  # the error that failed the session is the one that counts
                self._report("session_failed", error, reason="close")
        self._ended(SessionEnd("closed") if self._failure is None else SessionEnd("failed", self._failure))

    def _ended(self, end: SessionEnd) -> None:
        self.end = end
        if self._attending is not None:
            self._attending.cancel()
        for waiter in self._end_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._end_waiters.clear()

    async def close(self) -> None:
        """Stop what runs, keep what was committed, release the storage. Closing twice is allowed.

        Tasks that it stops go on at the next opening. Raises ``CommitReentered`` inside an open commit, and
        ``SessionFailed`` when the storage fails while it closes; a session that had failed before closes quietly.
        """
        self._check_line()
        self._check_process()
        failed_before = self._failure is not None
        if self._closing is None and self.end is None:
            self._closing = self._loop.create_task(self._finish())
        if self._closing is not None:
            await asyncio.shield(self._closing)
        if self._failure is not None and not failed_before:
            raise self._failed_error()

    async def wait_closed(self) -> SessionEnd:
        """Wait until the session has ended, and say how."""
        while self.end is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._end_waiters.append(waiter)
            await waiter
        return self.end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- opening -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Read what is live into both mirrors."""
        mirror = self._sealed
        storage = self.storage
        reach("open.load", storage.name)
        conversations: set[int] = {ROOT}
        live: list[TaskRecord] = []
        cursor: int | None = None
        while True:
            tasks = await storage.scan_tasks(
                status=("pending", "running", "waiting", "sleeping", "completing"), limit=5000, cursor=cursor
            )
            live.extend(tasks.items)
            cursor = tasks.next
            if cursor is None:
                break
        conversations.update(task.conversation_id for task in live)
        unread = list(conversations)
        while unread:
            id = unread.pop()
            record = await storage.conversation(id)
            if record is not None:
                mirror.put_conversation(record)
                if record.owner is not None and record.owner.conversation not in conversations:  # whose work it is
                    conversations.add(record.owner.conversation)
                    unread.append(record.owner.conversation)
            cursor = None
            while True:
                owned = await storage.scan_conversations(owner_conversation=id, limit=5000, cursor=cursor)
                for record in owned.items:
                    mirror.put_conversation(record)
                cursor = owned.next
                if cursor is None:
                    break
        staged = Staged(tasks={task.id: task for task in live})
        cursor = None
        while True:
            submissions = await storage.scan_submissions(status=("queued", "placed"), limit=5000, cursor=cursor)
            staged.submissions.update((record.id, record) for record in submissions.items)
            cursor = submissions.next
            if cursor is None:
                break
        mirror.apply(staged)
        cursor = None
        while True:
            documents = await storage.scan_documents(scope="task", limit=5000, cursor=cursor)
            for document in documents.items:
                mirror.task_documents[document.scope_id or 0].add(
                    Address(document.kind, document.scope_id, document.key)
                )
            cursor = documents.next
            if cursor is None:
                break
        self._committed.load(mirror)

    def _mint(self) -> int:
        id = self.storage.mint_id()
        return id if id != ROOT else self.storage.mint_id()  # the root conversation's id is its own


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Hold up the garbage collector while a long history is read.

    All of it stays, and the collector would walk it again for each quarter by which it grew, which takes four times as
    long as the reading. What others leave in cycles meanwhile is collected a second later.
    """
    if not gc.isenabled():  # by the user's choice, or by another reading
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _commit_to(storage: Storage, items: list[BatchItem], at: float) -> int:
    return await storage.commit(items, at=at)


async def as_storage(storage: Any, clock: Callable[[], float]) -> Storage:
    """A storage from what ``open`` takes: an object that is one already, or text."""
    if hasattr(storage, "scan_entries"):
        return storage  # type: ignore[no-any-return]
    from ..storage import open_storage

    return await open_storage(storage, clock=clock)
