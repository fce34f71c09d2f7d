"""Following a session from outside: its storage read-only, live, while its owner works (engine.md, section 14).

``FollowedStorage`` is the reading half of the protocol over a file that somebody else owns. ``follow`` makes it hand
over what every later commit changed.

Guarantees. It writes nothing, takes no lock that an owner would wait for, and reads in transactions that end at once.
Every read is of one commit, and everything up to that commit was handed over before the read returns: so what is read
and what is handed over never disagree about order. A poll looks for news at least every ``IDLE`` seconds. It goes on
over the owner's death and the next opening. A file that is busy, being recovered or being closed is tried again for
``PATIENCE`` seconds.

The polls and reads run on one daemon thread, which ends with ``close``, with the event loop, and with the object.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar

from ..errors import DurableError, StorageCorrupt, StorageError, StorageRequestError
from ..faults import reach
from .jsonl import JOURNAL, replay
from .lock import LockHolder, holder, warn_about_network
from .memory import MemoryState
from .protocol import BatchItem, Changes, CommitInfo
from .reading import Opening
from .readonly import PATIENCE, connect, lock_of, log_of, not_a_session
from .sqlite_reads import SqliteReads, is_binding
from .sqlite_schema import check_version
from .worker import Worker, deliver

if TYPE_CHECKING:
    from .reading import Reader

T = TypeVar("T")

ACTIVE = 0.05
"""Seconds between two polls while commits arrive."""

IDLE = 0.15
"""Seconds between two polls while none do."""

OnChanges = Callable[[Changes, CommitInfo], object]
OnFailure = Callable[[BaseException], object]


class Source(Protocol):
    """A file that is read while others write it. Used on one thread."""

    def stamp(self) -> Hashable:
        """Something that is another whenever a commit was stored since; cheap."""
        ...

    def snapshot(self) -> Any:
        """A context manager with a reader of the newest commit."""
        ...

    def forget(self) -> None:
        """Let go of what is open; the next use opens it again."""
        ...


class Moved(Exception):
    """What was read may be of two moments: read it again."""


# -- SQLite ----------------------------------------------------------------------------------------------------------


class SqliteSource:
    """An SQLite session, over a connection that can only read.

    A connection is kept while there is a log. Without one nobody writes, and SQLite would make a log to read the file;
    so it is read as it lies, over a connection for each read, and read again where it changed meanwhile.
    """

    def __init__(self, real: Path, name: str) -> None:
        self._real = real
        self._name = name
        self._log = log_of(real)
        self._lock = lock_of(real)
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._connections = 0

    def _look(self) -> tuple[tuple[int, int], Hashable]:
        """Which file lies there, and how it lies."""
        try:
            status = self._real.stat()
        except FileNotFoundError as error:
            raise StorageError(f"{self._name} is gone: there is no session to follow.") from error
        return (status.st_dev, status.st_ino), (status.st_ino, status.st_mtime_ns, status.st_size)

    def _has_log(self) -> bool:
        try:
            size = self._log.stat().st_size
        except FileNotFoundError:
            return False
        # A log that its owner emptied when it closed, while somebody read.
        return size > 0 or holder(self._lock) is not None

    def _current(self) -> sqlite3.Connection | None:
        """The connection to what is being written, ``None`` for a file that lies still."""
        file, _ = self._look()
        if self._connection is not None and (file != self._file or not self._has_log()):
            self.forget()
        if self._connection is None and self._has_log():
            self._connection = connect(self._real, self._name, still=False, timeout=1.0)
            self._file = file
            self._connections += 1
        return self._connection

    def stamp(self) -> Hashable:
        connection = self._current()
        if connection is None:
            return self._look()
        return self._connections, connection.execute("PRAGMA data_version").fetchone()

    @contextmanager
    def snapshot(self) -> Iterator[SqliteReads]:
        connection = self._current()
        if connection is not None:
            connection.execute("BEGIN")
            try:
                check_version(connection, self._name)  # the next owner may be of a newer version
                yield SqliteReads(connection, self._name)
            finally:
                connection.execute("ROLLBACK")
            return
        before = self._look()
        connection = connect(self._real, self._name, still=True)
        try:
            yield SqliteReads(connection, self._name)
        except (sqlite3.Error, StorageCorrupt) as error:
            if self._has_log() or self._look() != before:
                raise Moved from error
            raise
        finally:
            connection.close()
        if self._has_log() or self._look() != before:
            raise Moved

    def forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# -- JSONL -----------------------------------------------------------------------------------------------------------


class JournalSource:
    """A journal, read to its last whole line. A journal that was compacted, or cut, is read anew from its start."""

    def __init__(self, real: Path, name: str) -> None:
        self._journal = real / JOURNAL
        self._name = name
        self._state = MemoryState(str(self._journal))
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._lines = 0

    def stamp(self) -> Hashable:
        try:
            status = self._journal.stat()
        except FileNotFoundError as error:
            raise StorageError(f"{self._journal} is gone: there is no session to follow.") from error
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    @contextmanager
    def snapshot(self) -> Iterator[MemoryState]:
        try:
            self._catch_up()
        except FileNotFoundError as error:
            raise StorageError(f"{self._journal} is gone: there is no session to follow.") from error
        yield self._state

    def _catch_up(self) -> None:
        with open(self._journal, "rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity == self._file and status.st_size >= self._offset:
                file.seek(self._offset)
                try:
                    self._read(file.read())
                    return
                except StorageCorrupt:
                    file.seek(0)  # a line that was refused and cut off may have been read; read what is there now
            self.forget()
            self._read(file.read())
            self._file = identity

    def _read(self, content: bytes) -> None:
        if self._lines == 0 and b"\n" not in content:
            raise StorageError(f"{self._journal} has no header yet: there is no session to follow.")
        end = content.rfind(b"\n") + 1
        self._lines += replay(self._state, content, end, self._journal, first=self._lines + 1)
        self._offset += end

    def forget(self) -> None:
        self._state = MemoryState(str(self._journal))
        self._file = None
        self._offset = self._lines = 0


# -- the storage -----------------------------------------------------------------------------------------------------


class FollowedStorage(Opening):
    """A session's storage as an observer sees it: its reads, and what changes. Made by ``open``."""

    def __init__(self, name: str, real: Path, source: Source) -> None:
        super().__init__(name)
        self._reads = MemoryState(name)  # empty: a read is known by its name, and the reader is the snapshot's
        self._lock_path = lock_of(real)
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._on_changes: OnChanges | None = None
        self._on_failure: OnFailure | None = None
        self._seen: CommitInfo | None = None  # the newest commit that was handed over
        self._stamp: Hashable = None
        self._handed_over = 0  # how often news was handed over, counted by the thread
        self._taken = 0  # and how often the loop has taken it; each is written on one side only
        self._pause = ACTIVE
        self._failed_since: float | None = None
        self._broken = False
        queue: SimpleQueue[Any] = SimpleQueue()
        arguments = (queue, weakref.ref(self), source)
        thread = threading.Thread(target=_patrol, args=arguments, name=f"observe {name}")
        self._worker = Worker(queue, thread, lambda: queue.put_nowait((None, None)))

    @classmethod
    async def open(cls, where: str | os.PathLike[str]) -> FollowedStorage:
        """Start to read the session at a path, ``jsonl:DIR`` or a folder with a journal.

        Raises ``StorageRequestError`` for what cannot be followed, ``StorageError`` where there is no session,
        ``StorageCorrupt`` and ``SchemaTooNew``.
        """
        name, real, journal = _place(where)
        warn_about_network(name, real, reading=True)
        storage = cls(name, real, JournalSource(real, name) if journal else SqliteSource(real, name))
        storage._worker.start()
        try:
            lives = await storage.lives()
            if not lives:
                raise StorageError(f"{name} holds no session yet: somebody is creating it right now. Try again.")
            storage.life = lives[-1]
            storage.last_seq = 0 if storage._seen is None else storage._seen.seq
        except BaseException:
            await storage.close()
            raise
        return storage

    def follow(self, on_changes: OnChanges, on_failure: OnFailure) -> None:
        """Hand over what commits after ``last_seq`` change: each record in its newest form, with the newest commit.

        Both are called on the event loop that opened it. ``on_failure`` is called at most once, when the file can no
        longer be read.
        """
        self._on_changes = on_changes
        self._on_failure = on_failure

    @property
    def owner(self) -> LockHolder | None:
        """Who has the session open at this moment, ``None`` for nobody."""
        return holder(self._lock_path)

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _poll(self) -> float:
        """Look for news once; returns in how many seconds to look again."""
        if self._on_changes is None or self._handed_over != self._taken or self._broken:
            return ACTIVE  # the loop has not taken what it was given: there is no hurry
        try:
            if self._source.stamp() == self._stamp:
                self._pause = min(IDLE, self._pause * 1.3)
            else:
                self._look(lambda reads: None)
                self._pause = ACTIVE
            self._failed_since = None
        except Exception as error:
            self._source.forget()
            now = time.monotonic()
            self._failed_since = self._failed_since or now
            if not _may_pass(error) or now - self._failed_since > PATIENCE:
                self._broken = True
                self._source.forget()
                deliver(self._loop, self._fail, self._translated(error))
        return self._pause

    def _look(self, read: Callable[[Reader], T]) -> T:
        """One read of the newest commit, after everything up to that commit was handed over."""
        reach("follow.look", self.name)
        stamp = self._source.stamp()
        with self._source.snapshot() as reads:
            seq = reads.seq if isinstance(reads, MemoryState) else reads.last_seq()
            newest = self._newest(reads, seq)
            changes = None
            if self._on_changes is not None and seq > (0 if self._seen is None else self._seen.seq):
                changes = reads.changes(0 if self._seen is None else self._seen.seq)
            found = read(reads)
        self._stamp = stamp
        self._seen = newest
        if changes is not None and newest is not None:
            self._handed_over += 1
            deliver(self._loop, self._arrived, changes, newest)
        return found

    def _newest(self, reads: Reader, seq: int) -> CommitInfo | None:
        """The newest commit, after a check that the history still is the one that was followed so far."""
        seen = self._seen
        if seen is None:
            return None if seq == 0 else reads.scan_commits(seq - 1, "ascending", 1).items[0]
        infos = reads.scan_commits(seen.seq - 1, "ascending", 1).items
        if not infos or infos[0] != seen:
            raise StorageError(
                f"{self.name} holds another history than before: it was replaced by an older copy or another session. "
                "Observe it anew."
            )
        return seen if seq == seen.seq else reads.scan_commits(seq - 1, "ascending", 1).items[0]

    def _attempt(self, read: Callable[[Reader], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._look(read)
            except Exception as error:
                if isinstance(error, StorageRequestError):
                    raise
                if is_binding(error):
                    raise TypeError(str(error)) from error
                self._source.forget()
                if not _may_pass(error) or self._closed or time.monotonic() > deadline:
                    translated = self._translated(error)
                    if translated is error:
                        raise
                    raise translated from error
                time.sleep(0.02)

    def _translated(self, error: Exception) -> BaseException:
        if isinstance(error, DurableError):
            return error
        damaged = isinstance(error, (sqlite3.DatabaseError, UnicodeDecodeError))
        if damaged and not isinstance(error, sqlite3.OperationalError):
            return not_a_session(self.name, error)
        if "unable to open" in str(error):
            return StorageError(
                f"{self.name} cannot be read ({error}). Nothing was changed. Reading the log that a process left "
                "beside it needs a folder that may be written to: copy both to one, and observe the copy."
            )
        return StorageError(f"{self.name} cannot be read now ({error}). Nothing was changed. Observe it again.")

    # -- on the loop -------------------------------------------------------------------------------------------------

    def _arrived(self, changes: Changes, newest: CommitInfo) -> None:
        self._taken += 1
        self.last_seq = changes.seq
        if self._on_changes is not None and not self._closed:
            try:
                self._on_changes(changes, newest)
            except Exception as error:  # what was not taken in would be missing for good
                self._broken = True
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._on_failure is not None and not self._closed:
            self._on_failure(error)

    async def _read(self, read: Callable[..., T], *args: Any) -> T:
        self._guard()
        name = read.__name__
        return await self._worker.call(lambda: self._attempt(lambda reads: getattr(reads, name)(*args)))

    async def catch_up(self) -> None:
        """Return when everything that is committed by now was handed over."""
        self._guard()
        await self._worker.call(lambda: self._attempt(lambda reads: None))

    # -- what an observer does not do --------------------------------------------------------------------------------

    def refuse(self) -> NoReturn:
        """Raise the ``StorageRequestError`` of everything that would write."""
        self._guard()
        raise StorageRequestError(
            f"{self.name} is only observed here, so nothing can be written: that is its owner's to do."
        )

    def mint_id(self) -> int:
        """Refused: raises ``StorageRequestError``."""
        self.refuse()

    async def commit(self, batch: Iterable[BatchItem], *, at: float | None = None) -> int:
        """Refused: raises ``StorageRequestError``."""
        self.refuse()

    async def backup(self, path: str | Path) -> None:
        """Refused: raises ``StorageRequestError``."""
        self.refuse()

    async def close(self, *, ended: Literal["closed", "failed"] = "closed") -> None:
        """Stop following. Closing twice is allowed."""
        if self._closed:
            return
        self._guard()
        self._closed = True

        def end() -> None:
            self._source.forget()
            self._worker.stop()

        await self._worker.call(end)


def _may_pass(error: BaseException) -> bool:
    """Whether an error may come from the moment: a file that is being opened, recovered, closed or copied."""
    return isinstance(error, (sqlite3.OperationalError, OSError, Moved))


def _patrol(queue: SimpleQueue[Any], storage: weakref.ref[FollowedStorage], source: Source) -> None:
    """The thread of a followed storage: calls as they come, polls in between. It keeps the storage from nothing."""
    pause = ACTIVE
    due = time.monotonic() + pause
    while True:
        try:
            _, call = queue.get(timeout=max(0.0, due - time.monotonic()))
        except Empty:
            found = storage()
            if found is None or found._loop.is_closed():
                source.forget()
                return
            due = time.monotonic() + found._poll()
            del found
            continue
        if call is None:
            return
        call()
        del call


def _place(where: str | os.PathLike[str]) -> tuple[str, Path, bool]:
    """The name and the real path of what is to be followed, and whether it is a journal."""
    if not isinstance(where, (str, os.PathLike)) or not isinstance(os.fspath(where), str):
        raise StorageRequestError(
            f"a session to observe is named by a path, not by a {type(where).__name__}. One that this process has "
            "open has watches of its own."
        )
    text = os.fspath(where)
    if not text.strip():
        raise StorageRequestError("an empty text names no session; give a path, such as 'chat.sqlite'.")
    journal = False
    if isinstance(where, str):
        if text == ":memory:":
            raise StorageRequestError(
                "a session in memory cannot be observed: it has no file, and only its own process sees it. Give it a "
                "path, such as 'chat.sqlite'."
            )
        if text.startswith("jsonl:"):
            journal, text = True, text.removeprefix("jsonl:")
        elif "://" in text:
            raise StorageRequestError(f"{text} cannot be observed; give the path of a session's file or folder.")
    real = Path(os.path.realpath(text))
    if not real.exists():
        raise StorageError(f"{text} does not exist: there is no session to observe. Check the path.")
    if not os.access(real, os.R_OK):
        raise StorageError(f"{text} cannot be observed: this user may not read it. Nothing was changed.")
    return text, real, journal or real.is_dir()
