"""The default backend: one SQLite file, through aiosqlite's worker thread (engine.md, section 16).

A commit's rows are made where it is called; storing it is one call on the worker and one SQL transaction. What was
queued while the worker was busy shares one transaction (*group commit*): each batch keeps its own sequence and its own
result. When one of a group fails, those before it are stored, it and all called after it fail, and nothing of them
stays. SQLite's log is in WAL mode, so that observers read while the owner writes.

aiosqlite gives the thread and its queue. Calls are queued there directly, because a result must find its way home
even when the loop closed meanwhile (see ``worker``), and because one call must cover a whole transaction.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar
from warnings import warn

import aiosqlite

from ..errors import DurableError, StorageCorrupt, StorageError, StorageRequestError
from ..records import (
    Attempt,
    ConversationRecord,
    DocumentRecord,
    DocumentScope,
    Entry,
    Life,
    SubmissionRecord,
    SubmissionStatus,
    TaskRecord,
    TaskStatus,
)
from .common import Opening, keeps_history, new_life
from .lock import OwnerLock, network_file_system
from .protocol import (
    BatchItem,
    ChangeDocument,
    Changes,
    CommitInfo,
    CopyDocument,
    CreateDocument,
    EndAttempt,
    Order,
    Page,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    StartAttempt,
    StoredDocument,
    encode,
)
from .sqlite_reads import SqliteReads, key_column
from .sqlite_schema import check_file, create_file, migrate
from .worker import Abandoned, Worker, deliver

T = TypeVar("T")
Synchronous = Literal["normal", "full"]

BUSY_TIMEOUT = 10.0
"""Seconds for which a database that another connection holds is tried again (engine.md, section 16)."""

GROUP_LIMIT = 256
"""The most commits that share a transaction."""

_COMMIT = "INSERT INTO commits (seq, at, life, top_id, touched) VALUES (?, ?, ?, ?, ?)"
_CONVERSATION = "INSERT INTO conversations (seq, id, owner_task, owner_conversation, payload) VALUES (?, ?, ?, ?, ?)"
_ENTRY = "INSERT INTO entries (seq, id, conversation_id, head, payload) VALUES (?, ?, ?, ?, ?)"
_TASK = (
    "INSERT INTO tasks (seq, id, conversation_id, kind, status, owner, background, abort_requested, payload) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, "
    "status = excluded.status, background = excluded.background, abort_requested = excluded.abort_requested, "
    "payload = excluded.payload"
)
_SUBMISSION = (
    "INSERT INTO submissions (seq, id, conversation_id, status, request_id, payload) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, status = excluded.status, payload = excluded.payload"
)
_DOCUMENT = (
    "INSERT INTO documents (id, kind, scope, scope_id, key, history, fork, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_REVISION = "INSERT INTO revisions (document, seq, part, version, base, payload) VALUES (?, ?, ?, ?, ?, ?)"
_CHANGE = (
    "INSERT INTO revisions (document, seq, part, version, base, payload) "
    "SELECT ?, ?, ?, ?, ?, ? FROM documents WHERE id = ? AND retired_at IS NULL"
)
_RECLAIM = "DELETE FROM revisions WHERE document = ? AND (seq, part) < (?, ?)"
_RETIRE = "UPDATE documents SET retired_at = ? WHERE id = ? AND retired_at IS NULL"
_START_ATTEMPT = "INSERT INTO attempts (task, life, phase, started_at) VALUES (?, ?, ?, ?)"
_END_ATTEMPT = (
    'UPDATE attempts SET "end" = ?, ended_at = ? '
    'WHERE id = (SELECT max(id) FROM attempts WHERE task = ? AND "end" IS NULL)'
)


class _Sealed:
    """One commit on its way: its rows, made when it was called, and the future of its caller."""

    __slots__ = ("at", "entries", "future", "life", "rows", "seq", "steps", "top_id", "touched")

    def __init__(
        self,
        items: Iterable[BatchItem],
        seq: int,
        at: float,
        life: int,
        top_id: int,
        name: str,
        future: asyncio.Future[int],
    ) -> None:
        self.seq = seq
        self.at = at
        self.life = life
        self.future = future
        self.entries: list[tuple[Any, ...]] = []
        self.rows: list[tuple[str, tuple[Any, ...]]] = []
        self.steps: list[BatchItem] = []
        first_entry = 0
        tasks: list[int] = []
        submissions: list[int] = []
        conversations: list[int] = []
        documents: list[int] = []
        for item in items:
            if isinstance(item, PutEntry):
                entry = item.record
                self.entries.append((seq, entry.id, entry.conversation_id, entry.head, item.payload))
                if not first_entry or entry.id < first_entry:
                    first_entry = entry.id
                if entry.id > top_id:
                    top_id = entry.id
                continue
            if isinstance(item, PutTask):
                task = item.record
                self.rows.append(
                    (
                        _TASK,
                        (
                            seq,
                            task.id,
                            task.conversation_id,
                            task.kind,
                            task.state.status,
                            task.owner,
                            task.background,
                            task.abort_requested,
                            item.payload,
                        ),
                    )
                )
                tasks.append(task.id)
                id: int = task.id
            elif isinstance(item, PutSubmission):
                submission = item.record
                self.rows.append(
                    (
                        _SUBMISSION,
                        (
                            seq,
                            submission.id,
                            submission.conversation_id,
                            submission.status,
                            submission.request_id,
                            item.payload,
                        ),
                    )
                )
                submissions.append(submission.id)
                id = submission.id
            elif isinstance(item, PutConversation):
                record, owner = item.record, item.record.owner
                self.rows.append(
                    (
                        _CONVERSATION,
                        (seq, record.id, owner and owner.task, owner and owner.conversation, item.payload),
                    )
                )
                conversations.append(record.id)
                id = record.id
            elif isinstance(item, (CreateDocument, ChangeDocument, CopyDocument)):
                self.steps.append(item)
                documents.append(item.record.id)
                id = item.record.id
            elif isinstance(item, RetireDocument):
                self.steps.append(item)
                documents.append(item.id)
                id = item.id
            elif isinstance(item, (StartAttempt, EndAttempt)):
                self.steps.append(item)
                continue
            else:
                raise StorageError(f"{name}: a {type(item).__name__} cannot be part of a batch.")
            if id > top_id:
                top_id = id
        self.top_id = top_id
        touched = [f'"e":{first_entry}'] if first_entry else []
        for letter, ids in (("t", tasks), ("s", submissions), ("c", conversations), ("d", documents)):
            if ids:
                touched.append(f'"{letter}":{ids}')
        self.touched = f"{{{','.join(touched)}}}".replace(" ", "") if touched else None

    def store(self, cursor: sqlite3.Cursor, reads: SqliteReads, name: str) -> None:
        """Write everything, inside a transaction, on the worker."""
        seq = self.seq
        if len(self.entries) == 1:
            cursor.execute(_ENTRY, self.entries[0])
        elif self.entries:
            cursor.executemany(_ENTRY, self.entries)
        for sql, row in self.rows:
            cursor.execute(sql, row)
        for part, step in enumerate(self.steps):
            if isinstance(step, ChangeDocument):
                base = not step.ops
                id = step.record.id
                cursor.execute(_CHANGE, (id, seq, part, step.version, base, step.payload, id))
                if cursor.rowcount != 1:
                    raise _not_live(name, id, "changed")
                if base and not keeps_history(step.record):
                    cursor.execute(_RECLAIM, (id, seq, part))
            elif isinstance(step, CreateDocument):
                _create(cursor, step.record, seq, part, step.version, step.payload)
            elif isinstance(step, CopyDocument):
                _copy(cursor, reads, step, seq, part, name)
            elif isinstance(step, RetireDocument):
                cursor.execute(_RETIRE, (seq, step.id))
                if cursor.rowcount != 1:
                    raise _not_live(name, step.id, "retired")
            elif isinstance(step, StartAttempt):
                cursor.execute(_START_ATTEMPT, (step.task, self.life, step.phase, self.at))
            elif isinstance(step, EndAttempt):
                cursor.execute(_END_ATTEMPT, (step.end, self.at, step.task))
        cursor.execute(_COMMIT, (seq, self.at, self.life, self.top_id, self.touched))


def _create(cursor: sqlite3.Cursor, record: DocumentRecord, seq: int, part: int, version: int, payload: str) -> None:
    row = (record.id, record.kind, record.scope, record.scope_id or 0, key_column(record.key), record.history)
    cursor.execute(_DOCUMENT, (*row, record.fork, seq))
    cursor.execute(_REVISION, (record.id, seq, part, version, True, payload))


def _copy(cursor: sqlite3.Cursor, reads: SqliteReads, step: CopyDocument, seq: int, part: int, name: str) -> None:
    try:
        source = reads.document(step.source, step.at, seq)
    except StorageRequestError as error:
        raise StorageError(f"{name}: the document {step.source} cannot be copied: {error}") from error
    if source is None:
        raise StorageError(f"{name}: the document {step.source} does not exist at that point and cannot be copied.")
    payload = encode(source.value, f"the document {step.record.kind}")
    _create(cursor, step.record, seq, part, source.version, payload)


def _not_live(name: str, id: int, what: str) -> StorageError:
    return StorageError(f"{name}: the document {id} does not exist or has retired and cannot be {what}.")


class _Outcome:
    """What became of a group: the sealed commits that are stored, those that failed, and why."""

    __slots__ = ("breaking", "error", "failed", "stored")

    def __init__(self) -> None:
        self.stored: list[_Sealed] = []
        self.failed: list[_Sealed] = []
        self.error: StorageError | None = None
        self.breaking = False


class SqliteStorage(Opening):
    """One SQLite file, owned by this process while it is open (engine.md, section 16). Made by ``open``."""

    _connection: sqlite3.Connection
    _cursor: sqlite3.Cursor
    _reads: SqliteReads
    _lock: OwnerLock

    def __init__(self, path: str | os.PathLike[str], synchronous: Synchronous, clock: Callable[[], float]) -> None:
        super().__init__(os.fspath(path))
        self.path = Path(os.path.realpath(path))
        self._synchronous = synchronous
        self._clock = clock
        self._next_id = 0
        self._sealed_seq = 0
        self._queue: deque[_Sealed] = deque()
        self._broken: StorageError | None = None
        self._abandoned = False
        self._storing = threading.Lock()
        self._worker = _aiosqlite_worker()

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "normal",
        clock: Callable[[], float] = time.time,
    ) -> SqliteStorage:
        """Open a session's file and own it, or make a new one with mode 0600.

        ``synchronous="full"`` also survives a power cut right after a commit; ``"normal"`` may then lose the last
        ones, and never the file. ``clock`` gives the time of this life and of commits that do not bring their own.

        Raises ``SessionInUse`` while it is open elsewhere, ``SchemaTooNew``, ``StorageCorrupt`` for a file that is
        not a session, and ``StorageError`` where the file system refuses. None of them changes anything.
        """
        if synchronous not in ("normal", "full"):
            raise StorageRequestError(f"synchronous={synchronous!r} is neither 'normal' nor 'full'.")
        storage = cls(path, synchronous, clock)
        remote = network_file_system(storage.path)
        if remote is not None:
            warn(
                f"{storage.name} is on a network file system ({remote}), whose locks cannot be trusted: two machines "
                "could write to it at once. Keep sessions on a local disk.",
                stacklevel=2,
            )
        storage._worker.start()
        opening = storage._worker.call(storage._open)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            storage.abandon()
            raise
        return storage

    def _open(self) -> None:
        """Everything that opening does, on the worker."""
        opened_at = self._clock()
        self._lock = OwnerLock.acquire(self.path.with_name(self.path.name + ".lock"), self.name, opened_at)
        connection: sqlite3.Connection | None = None
        try:
            if not check_file(self.path, self.name):
                create_file(self.path)
            connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None)
            self._prepare(connection, opened_at)
            with self._storing:
                if self._abandoned:
                    raise Abandoned
        except BaseException as error:
            if connection is not None:
                connection.close()
            self._lock.release()
            self._worker.stop()
            raise _translated(error, self.name) from error
        self._connection = connection
        self._cursor = connection.cursor()
        self._reads = SqliteReads(connection, self.name)
        self._finalizer = weakref.finalize(self, _forgotten, self._worker, connection, self._lock)
        self._finalizer.atexit = False

    def _prepare(self, connection: sqlite3.Connection, opened_at: float) -> None:
        connection.execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{self.name} cannot be opened: its file system does not support SQLite's write-ahead log. "
                "Move it to a local disk."
            )
        connection.execute("PRAGMA cache_size = -8000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        migrate(connection, self.name)
        connection.execute("BEGIN IMMEDIATE")
        seq, at, top_id = connection.execute(
            "SELECT seq, at, top_id FROM commits ORDER BY seq DESC LIMIT 1"
        ).fetchone() or (0, None, 0)
        before = connection.execute(
            "SELECT id, opened_at, after_seq, after_attempt FROM lives ORDER BY id DESC LIMIT 1"
        ).fetchone()
        if before is not None:
            _, before_opened, after_seq, after_attempt = before
            connection.execute(
                """UPDATE attempts SET "end" = 'cut_off', ended_at = ? WHERE id > ? AND "end" IS NULL""",
                (at if seq > after_seq else before_opened, after_attempt),
            )
        self.life = life = new_life(1 if before is None else before[0] + 1, opened_at)
        connection.execute(
            "INSERT INTO lives (id, pid, host, kernel, opened_at, after_seq, after_attempt) "
            "VALUES (?, ?, ?, ?, ?, ?, (SELECT coalesce(max(id), 0) FROM attempts))",
            (life.id, life.pid, life.host, life.kernel, life.opened_at, seq),
        )
        connection.execute("COMMIT")
        self.last_seq = self._sealed_seq = seq
        self._next_id = top_id

    # -- commits -----------------------------------------------------------------------------------------------------

    def mint_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def commit(self, batch: Iterable[BatchItem], *, at: float | None = None) -> int:
        self._guard()
        when = self._clock() if at is None else at
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        sealed = _Sealed(batch, self._sealed_seq + 1, when, self.life.id, self._next_id, self.name, future)
        self._sealed_seq = sealed.seq
        self._next_id = sealed.top_id
        self._queue.append(sealed)
        self._worker.post(self._store_queued)
        return await future

    def _store_queued(self) -> None:
        """Store what is queued, in one transaction; on the worker."""
        with self._storing:
            group: list[_Sealed] = []
            while self._queue and len(group) < GROUP_LIMIT:
                group.append(self._queue.popleft())
            if not group or self._abandoned:
                return
            outcome = self._store(group)
        deliver(group[0].future.get_loop(), self._settle, outcome)

    def _store(self, group: list[_Sealed]) -> _Outcome:
        outcome = _Outcome()
        if self._broken is not None:
            outcome.failed, outcome.error = group, self._broken
            return outcome
        try:
            self._transaction(group)
            outcome.stored = group
            return outcome
        except Exception as error:
            if len(group) == 1:
                outcome.failed, outcome.error = group, self._failure(error)
        if not outcome.failed:
            # Which one failed is found by storing them one by one; those before it are good.
            for index, sealed in enumerate(group):
                try:
                    self._transaction([sealed])
                    outcome.stored.append(sealed)
                except Exception as error:
                    outcome.failed, outcome.error = group[index:], self._failure(error)
                    break
            else:
                return outcome
        outcome.breaking = True
        self._broken = outcome.error
        return outcome

    def _transaction(self, group: list[_Sealed]) -> None:
        cursor = self._cursor
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for sealed in group:
                sealed.store(cursor, self._reads, self.name)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    def _failure(self, error: Exception) -> StorageError:
        translated = _translated(error, self.name)
        if isinstance(translated, StorageError):
            return translated
        failure = StorageError(f"{self.name} could not store a commit: {translated!r}")
        failure.__cause__ = translated
        return failure

    def _settle(self, outcome: _Outcome) -> None:
        """Hand out the results of a group; on the loop."""
        for sealed in outcome.stored:
            self.last_seq = sealed.seq
            if not sealed.future.done():
                sealed.future.set_result(sealed.seq)
        if outcome.error is None:
            return
        failed = outcome.failed
        if outcome.breaking:
            # What was called meanwhile counted on the failed commit; what is called from now on does not.
            with self._storing:
                failed = failed + list(self._queue)
                self._queue.clear()
                self._broken = None
            self._sealed_seq = self.last_seq
        first = failed[0] if outcome.breaking else None
        for sealed in failed:
            if not sealed.future.done():
                sealed.future.set_exception(outcome.error if sealed is first else _after(outcome.error, self.name))

    # -- reads -------------------------------------------------------------------------------------------------------

    async def _read(self, read: Callable[..., T], *args: Any) -> T:
        self._guard()

        def call() -> T:
            if self._abandoned:
                raise Abandoned
            try:
                return read(*args)
            except sqlite3.Error as error:
                raise _translated(error, self.name) from error

        return await self._worker.call(call)

    async def conversation(self, id: int) -> ConversationRecord | None:
        return await self._read(self._reads.conversation, id)

    async def entry(self, id: int) -> Entry | None:
        return await self._read(self._reads.entry, id)

    async def task(self, id: int) -> TaskRecord | None:
        return await self._read(self._reads.task, id)

    async def submission(self, id: int) -> SubmissionRecord | None:
        return await self._read(self._reads.submission, id)

    async def submission_by_request(self, conversation: int, request_id: str) -> SubmissionRecord | None:
        return await self._read(self._reads.submission_by_request, conversation, request_id)

    async def latest_head(self, conversation: int, *, max_id: int | None = None) -> Entry | None:
        return await self._read(self._reads.latest_head, conversation, max_id)

    async def entry_commit(self, id: int) -> CommitInfo | None:
        return await self._read(self._reads.entry_commit, id)

    async def scan_conversations(
        self,
        *,
        owner_task: int | None = None,
        owner_conversation: int | None = None,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[ConversationRecord]:
        return await self._read(self._reads.scan_conversations, owner_task, owner_conversation, order, limit, cursor)

    async def scan_entries(
        self,
        *,
        conversation: int | None = None,
        min_id: int | None = None,
        max_id: int | None = None,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[Entry]:
        return await self._read(self._reads.scan_entries, conversation, min_id, max_id, order, limit, cursor)

    async def scan_tasks(
        self,
        *,
        conversation: int | None = None,
        kind: str | None = None,
        status: TaskStatus | Sequence[TaskStatus] | None = None,
        owner: int | None = None,
        abort_requested: bool | None = None,
        background: bool | None = None,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[TaskRecord]:
        return await self._read(
            self._reads.scan_tasks,
            conversation,
            kind,
            status,
            owner,
            abort_requested,
            background,
            order,
            limit,
            cursor,
        )

    async def scan_submissions(
        self,
        *,
        conversation: int | None = None,
        status: SubmissionStatus | Sequence[SubmissionStatus] | None = None,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[SubmissionRecord]:
        return await self._read(self._reads.scan_submissions, conversation, status, order, limit, cursor)

    async def scan_commits(self, *, after: int = 0, order: Order = "ascending", limit: int = 1000) -> Page[CommitInfo]:
        return await self._read(self._reads.scan_commits, after, order, limit)

    async def find_document(
        self,
        kind: str,
        scope: DocumentScope,
        scope_id: int | None = None,
        key: str | None = None,
        *,
        at: int | None = None,
    ) -> DocumentRecord | None:
        return await self._read(self._reads.find_document, kind, scope, scope_id, key, at)

    async def document(self, id: int, *, at: int | None = None) -> StoredDocument | None:
        return await self._read(self._reads.document, id, at)

    async def scan_documents(
        self,
        *,
        kind: str | None = None,
        scope: DocumentScope | None = None,
        scope_id: int | None = None,
        live: bool = True,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[DocumentRecord]:
        return await self._read(self._reads.scan_documents, kind, scope, scope_id, live, order, limit, cursor)

    async def changes(self, after: int) -> Changes:
        return await self._read(self._reads.changes, after)

    async def lives(self) -> list[Life]:
        return await self._read(self._reads.lives)

    async def attempts(self, *, task: int | None = None) -> list[Attempt]:
        return await self._read(self._reads.attempts, task)

    # -- copies and the end ------------------------------------------------------------------------------------------

    async def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the live session to a new file; commits queue while it is copied.

        Raises ``StorageRequestError`` when the path is taken or cannot be written.
        """

        def copy() -> None:
            target = Path(os.path.realpath(path))
            if target.exists():
                raise StorageRequestError(f"{path} exists already; a backup needs a new path.")
            draft = target.with_name(target.name + ".new")
            try:
                os.close(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
                self._connection.execute("VACUUM INTO ?", (str(draft),))
                os.rename(draft, target)
            except OSError as error:
                raise StorageRequestError(f"a backup cannot be written to {path}: {error.strerror}.") from error
            finally:
                draft.unlink(missing_ok=True)

        await self._read(copy)

    def abandon(self) -> None:
        """Stop as a crash would: nothing more is stored, no call that is under way returns, and the owner lock is free.

        For tests and the kill switch: the life stays open, as a dead process leaves it.
        """
        with self._storing:
            if self._abandoned:
                return
            self._abandoned = True
        self._closed = True
        if hasattr(self, "_finalizer") and self._finalizer.detach() is not None:
            _forgotten(self._worker, self._connection, self._lock)

    async def close(self, *, ended: Literal["closed", "failed"] = "closed") -> None:
        if self._closed:
            return
        self._guard()
        self._closed = True
        ended_at = self._clock()
        self._finalizer.detach()

        def end() -> None:
            try:
                with closing(self._connection):
                    self._connection.execute(
                        "UPDATE lives SET ended = ?, ended_at = ? WHERE id = ?", (ended, ended_at, self.life.id)
                    )
            except sqlite3.Error as error:
                if ended == "closed":
                    raise _translated(error, self.name) from error
            finally:
                self._lock.release()
                self._worker.stop()

        await asyncio.shield(self._worker.call(end))


def _aiosqlite_worker() -> Worker:
    """aiosqlite's thread and queue, not started. It never connects itself, so it has nothing to warn about."""

    def connect() -> sqlite3.Connection:
        raise AssertionError("the connection is made by the storage's own opening step")

    connection = aiosqlite.Connection(connect, 64)
    # Called on the worker's thread, which has no event loop, stop() makes no future that nobody would await.
    return Worker(connection._tx, connection._thread, connection.stop)


def _forgotten(worker: Worker, connection: sqlite3.Connection, lock: OwnerLock) -> None:
    """End a storage that nobody closed; its life stays open."""
    lock.release()

    def end() -> None:
        connection.close()
        worker.stop()

    worker.post(end)


def _translated(error: BaseException, name: str) -> BaseException:
    """An error of SQLite or the file system as ours, with the file's name and what can be done."""
    if isinstance(error, DurableError):
        return error
    if isinstance(error, sqlite3.IntegrityError):
        return StorageError(f"{name} refused a commit: {error}. What is stored already is never stored twice.")
    if isinstance(error, sqlite3.OperationalError):
        text = str(error)
        if "full" in text:
            remedy = "Make room on its disk and open it again; what was committed is safe."
        elif "locked" in text or "busy" in text:
            remedy = f"Another program held it for more than {BUSY_TIMEOUT:g} s; end that program and open it again."
        elif "readonly" in text:
            remedy = "It or its folder cannot be written; check its permissions."
        else:
            remedy = "Open it again; what was committed is safe."
        return StorageError(f"{name}: {text}. {remedy}")
    if isinstance(error, sqlite3.DatabaseError):
        return StorageCorrupt(f"{name} is damaged ({error}). Keep the file, and restore a copy.")
    if isinstance(error, sqlite3.Error):
        return StorageError(f"{name}: {error}.")
    if isinstance(error, OSError):
        return StorageError(f"{name} cannot be opened ({error.strerror}).")
    return error


def _after(error: StorageError, name: str) -> StorageError:
    later = StorageError(f"{name}: a commit before this one failed, so this one was not stored either: {error}")
    later.__cause__ = error
    return later
