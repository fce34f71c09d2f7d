"""The default backend: one SQLite file, through aiosqlite's worker thread (engine.md, section 16).

A commit's rows are made where it is called; storing it is one call on the worker and one SQL transaction, which it
shares with what was queued meanwhile (see ``queued``). SQLite's log is in WAL mode, so that observers read while the
owner writes.

aiosqlite gives the thread and its queue. Calls are queued there directly, because a result must find its way home
even when the loop closed meanwhile (see ``worker``), and because one call must cover a whole transaction.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Literal, TypeVar

import aiosqlite

from ..errors import DurableError, StorageCorrupt, StorageError, StorageRequestError
from ..faults import reach
from ..records import (
    DocumentRecord,
)
from .common import StorageWarning, check_in_place, keeps_history, new_life
from .lock import OwnerLock, warn_about_network
from .protocol import (
    BatchItem,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    EndAttempt,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    StartAttempt,
    encode,
)
from .queued import QueuedStorage, Sealed, raise_translated
from .readonly import log_of
from .sqlite_reads import SqliteReads, is_binding, key_column
from .sqlite_schema import check_file, create_file, migrate
from .worker import Abandoned, Worker, call_once

T = TypeVar("T")
Synchronous = Literal["normal", "full"]

BUSY_TIMEOUT = 10.0
"""Seconds for which a database that another connection holds is tried again (engine.md, section 16)."""

CLOSING_PATIENCE = 1.0
"""Seconds for which closing waits for readers before it leaves a log behind."""

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


class _Sealed(Sealed):
    """A commit as the rows that it writes, made when it was called."""

    __slots__ = ("entries", "rows", "steps", "touched")

    def __init__(self, items: Iterable[BatchItem], seq: int, at: float, life: int, top_id: int, name: str) -> None:
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
                continue
            elif isinstance(item, (StartAttempt, EndAttempt)):
                self.steps.append(item)
                continue
            else:
                raise StorageError(f"{name}: a {type(item).__name__} cannot be part of a batch.")
            if id > top_id:
                top_id = id
        super().__init__(seq, at, life, top_id)
        touched = [f'"e":{first_entry}'] if first_entry else []
        for letter, ids in (("t", tasks), ("s", submissions), ("c", conversations), ("d", documents)):
            if ids:
                touched.append(f'"{letter}":{ids}')
        self.touched = f"{{{','.join(touched)}}}".replace(" ", "") if touched else None

    def store(self, cursor: sqlite3.Cursor, reads: SqliteReads, name: str) -> None:
        """Write everything but entries and the commit's own row, inside a transaction, on the worker."""
        seq = self.seq
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


class SqliteStorage(QueuedStorage[_Sealed]):
    """One SQLite file, owned by this process while it is open (engine.md, section 16). Made by ``open``."""

    _connection: sqlite3.Connection
    _opened: os.stat_result
    _cursor: sqlite3.Cursor
    _reads: SqliteReads

    def __init__(self, path: str | os.PathLike[str], synchronous: Synchronous, clock: Callable[[], float]) -> None:
        super().__init__(os.fspath(path), clock)
        self.path = Path(os.path.realpath(path))
        self._synchronous = synchronous
        self._worker = _aiosqlite_worker()
        self._had_log = False
        self.log_is_missing = False
        """Whether the file was a copy made without its log when it was opened: its newest commits may be lacking."""

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
        warn_about_network(storage.name, storage.path)
        storage._worker.start()
        try:
            await storage._worker.call(storage._open)
        except asyncio.CancelledError:
            storage.abandon()
            raise
        if storage.log_is_missing:
            warnings.warn(
                f"{storage.name} was not closed by its last process, and the log that lay beside it "
                f"({log_of(storage.path).name}) is missing. If this is a copy, the newest commits stayed behind: copy "
                "the log with it, or use backup().",
                StorageWarning,
                stacklevel=2,
            )
        return storage

    def _open(self) -> None:
        """Everything that opening does, on the worker."""
        opened_at = self._clock()
        try:
            self._lock = OwnerLock.acquire(self.path.with_name(self.path.name + ".lock"), self.name, opened_at)
        except BaseException:
            self._worker.stop()
            raise
        connection: sqlite3.Connection | None = None
        stored = False
        try:
            if not check_file(self.path, self.name):
                create_file(self.path, self.name)
            self._had_log = log_of(self.path).exists()
            connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None)
            self._prepare(connection, opened_at)
            stored = True
            self._opened = self.path.stat()
            reach("open.stored", self.name)
            with self._storing:
                if self._abandoned:
                    raise Abandoned
                self._connection = connection
                self._cursor = connection.cursor()
                self._reads = SqliteReads(connection, self.name)
                self._when_forgotten(partial(_close_forgotten, connection, self.life.id))
                _open.add(self)
        except BaseException as error:
            if connection is not None:
                with closing(connection):
                    if stored:
                        _take_back_note(connection, self.life.id)
            self._lock.release()
            self._worker.stop()
            raise_translated(error, _translated(error, self.name))

    def _prepare(self, connection: sqlite3.Connection, opened_at: float) -> None:
        connection.execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{self.name} cannot be opened: its file system does not support SQLite's write-ahead log. "
                "Move it to a local disk."
            )
        connection.execute("PRAGMA cache_size = -8000")
        # Pages that change with every commit are copied back once for many commits, and so is the disk waited for.
        connection.execute("PRAGMA wal_autocheckpoint = 8000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        migrate(connection, self.name)
        connection.execute("BEGIN IMMEDIATE")
        seq, at, top_id = connection.execute(
            "SELECT seq, at, top_id FROM commits ORDER BY seq DESC LIMIT 1"
        ).fetchone() or (0, None, 0)
        before = connection.execute(
            "SELECT id, opened_at, after_seq, after_attempt, logged FROM lives ORDER BY id DESC LIMIT 1"
        ).fetchone()
        if before is not None:
            _, before_opened, after_seq, after_attempt, logged = before
            self.log_is_missing = bool(logged) and not self._had_log
            connection.execute(
                """UPDATE attempts SET "end" = 'cut_off', ended_at = ? WHERE id > ? AND "end" IS NULL""",
                (at if seq > after_seq else before_opened, after_attempt),
            )
        self.life = life = new_life(1 if before is None else before[0] + 1, opened_at)
        connection.execute(
            "INSERT INTO lives (id, pid, host, kernel, opened_at, after_seq, after_attempt, logged) "
            "VALUES (?, ?, ?, ?, ?, ?, (SELECT coalesce(max(id), 0) FROM attempts), 1)",
            (life.id, life.pid, life.host, life.kernel, life.opened_at, seq),
        )
        reach("open.life", self.name)
        connection.execute("COMMIT")
        # The life goes into the file itself: a copy that is made without the log then says that it lacks it.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.last_seq = self._sealed_seq = seq
        self._next_id = top_id

    # -- commits -----------------------------------------------------------------------------------------------------

    def _seal(self, batch: Iterable[BatchItem], seq: int, at: float, life: int, top_id: int) -> _Sealed:
        return _Sealed(batch, seq, at, life, top_id, self.name)

    def _translated(self, error: BaseException) -> BaseException:
        return _translated(error, self.name)

    def _transaction(self, group: list[_Sealed]) -> None:
        cursor = self._cursor
        reach("store.begun", self.name)
        check_in_place(self.path, self._opened, self.name)
        cursor.execute("BEGIN IMMEDIATE")
        try:
            entries = group[0].entries if len(group) == 1 else [row for sealed in group for row in sealed.entries]
            if len(entries) == 1:
                cursor.execute(_ENTRY, entries[0])
            elif entries:
                cursor.executemany(_ENTRY, entries)
            for sealed in group:
                sealed.store(cursor, self._reads, self.name)
            commits = [(sealed.seq, sealed.at, sealed.life, sealed.top_id, sealed.touched) for sealed in group]
            if len(commits) == 1:
                cursor.execute(_COMMIT, commits[0])
            else:
                cursor.executemany(_COMMIT, commits)
            reach("store.written", self.name)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    # -- copies and the end ------------------------------------------------------------------------------------------

    async def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the live session to a new file, without holding up its commits.

        Raises ``StorageRequestError`` when the path is taken or cannot be written.
        """
        self._guard()

        def copy() -> None:
            target = Path(os.path.realpath(path))
            draft: Path | None = None
            if os.path.lexists(target):
                raise StorageRequestError(f"{path} exists already; a backup needs a new path.")
            check_in_place(self.path, self._opened, self.name)
            try:
                file, name = mkstemp(prefix=f".{target.name}-", dir=target.parent)  # with mode 0600
                os.close(file)
                draft = Path(name)
                with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None)) as connection:
                    connection.execute("VACUUM INTO ?", (str(draft),))
                with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                    connection.execute("UPDATE lives SET logged = 0")  # everything is in the copy
                reach("backup.copied", self.name)
                os.rename(draft, target)
            except (OSError, sqlite3.Error) as error:
                raise StorageRequestError(f"a backup of {self.name} cannot be written to {path}: {error}.") from error
            finally:
                if draft is not None:
                    draft.unlink(missing_ok=True)

        await call_once(copy, "backup")

    def _end(self, ended: Literal["closed", "failed"], ended_at: float) -> None:
        try:
            # Where a statement failed, its cursor would keep the file open until both are collected.
            with closing(self._connection) as connection, closing(self._cursor):
                try:
                    self._write_end(connection, ended, ended_at)
                except BaseException:
                    _take_back_note(connection, self.life.id)
                    raise
        except sqlite3.Error:
            check_in_place(self.path, self._opened, self.name)
            # A disk that was full may have room for it now: closing has merged the log, and removed it.
            with closing(sqlite3.connect(self.path, timeout=CLOSING_PATIENCE, isolation_level=None)) as connection:
                self._write_end(connection, ended, ended_at)

    def _write_end(self, connection: sqlite3.Connection, ended: Literal["closed", "failed"], ended_at: float) -> None:
        reach("close.end", self.name)
        connection.execute(
            "UPDATE lives SET ended = ?, ended_at = ?, logged = 0 WHERE id = ?", (ended, ended_at, self.life.id)
        )
        # SQLite keeps the log when an observer is there. Emptied, it holds nothing that a copy would lack.
        connection.execute(f"PRAGMA busy_timeout = {int(CLOSING_PATIENCE * 1000)}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# SQLite merges and removes the log when it closes the file, also where nobody asked for it: when the storage is thrown
# away, and when the interpreter ends. The life then stays open, as after a crash, but its log is not missing.

_open: weakref.WeakSet[SqliteStorage] = weakref.WeakSet()

EXIT_PATIENCE = 0.2
"""Seconds that the end of the interpreter may be held up."""


def _take_back_note(connection: sqlite3.Connection, life: int) -> None:
    try:
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("UPDATE lives SET logged = 0 WHERE id = ?", (life,))
    except sqlite3.Error:
        pass  # a disk that is full or failing, or another owner by now: the note stays, and somebody is warned


def _close_forgotten(connection: sqlite3.Connection, life: int) -> None:
    with closing(connection):
        _take_back_note(connection, life)


@atexit.register
def _at_exit() -> None:
    done: list[threading.Event] = []

    def post(storage: SqliteStorage) -> None:
        connection, life, event = storage._connection, storage.life.id, threading.Event()

        def call() -> None:
            _take_back_note(connection, life)
            event.set()

        storage._worker.post(call)
        done.append(event)

    for storage in list(_open):
        if not storage._closed and os.getpid() == storage._pid:
            post(storage)
    deadline = time.monotonic() + EXIT_PATIENCE
    for event in done:
        event.wait(max(0.0, deadline - time.monotonic()))


def _aiosqlite_worker() -> Worker:
    """aiosqlite's thread and queue, not started. It never connects itself, so it has nothing to warn about."""

    def connect() -> sqlite3.Connection:
        raise AssertionError("the connection is made by the storage's own opening step")

    connection = aiosqlite.Connection(connect, 64)
    # Called on the worker's thread, which has no event loop, stop() makes no future that nobody would await.
    return Worker(connection._tx, connection._thread, connection.stop)


def _translated(error: BaseException, name: str) -> BaseException:
    """An error of SQLite or the file system as ours, with the file's name and what can be done."""
    if isinstance(error, DurableError):
        return error
    if is_binding(error):
        return TypeError(str(error))
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
    if isinstance(error, (sqlite3.DatabaseError, UnicodeDecodeError)):  # SQLite quotes damaged text in its messages
        return StorageCorrupt(f"{name} is damaged ({error}). Keep the file, and restore a copy.")
    if isinstance(error, sqlite3.Error):
        return StorageError(f"{name}: {error}.")
    if isinstance(error, OSError):
        return StorageError(f"{name} cannot be opened ({error.strerror}).")
    return error
