"""Looking into a session's file without owning it and without disturbing who does (engine.md, section 16).

A look takes no lock that a writer would wait for, changes nothing, and leaves no file behind. SQLite makes its log
beside a file that it opens, even for reading; where there is no log, all is in the file, and it is read as it lies.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from ..errors import StorageCorrupt, StorageError
from .lock import LockHolder, holder
from .sqlite_reads import SqliteReads
from .sqlite_schema import APPLICATION_ID, MIGRATIONS, check_version

__all__ = ["connect", "lock_of", "log_is_missing", "log_of", "look", "owner_of"]

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds for which a file that is being recovered or closed by its owner is tried again."""


def lock_of(path: str | os.PathLike[str]) -> Path:
    """The lock file of the session at ``path``: beside an SQLite file, inside the folder of a journal."""
    real = Path(os.path.realpath(path))
    return real / "owner.lock" if real.is_dir() else real.with_name(real.name + ".lock")


def log_of(real: Path) -> Path:
    """SQLite's write-ahead log of a file."""
    return real.with_name(real.name + "-wal")


def owner_of(path: str | os.PathLike[str]) -> LockHolder | None:
    """Who has the session at ``path`` open now: pid, host and since when (epoch seconds); ``None`` for nobody."""
    return holder(lock_of(path))


def look(path: str | os.PathLike[str], read: Callable[[SqliteReads], T]) -> T:
    """What ``read`` makes of the session at ``path``, as of one commit; its owner may work on meanwhile.

    ``read`` may be called twice. Raises ``StorageError`` where there is no file, ``StorageCorrupt`` for one that is not
    a session, and ``SchemaTooNew``.
    """
    name = os.fspath(path)
    real = Path(os.path.realpath(path))
    if not real.exists():
        raise StorageError(f"{name} does not exist: there is no session to look at. Check the path.")
    if real.is_dir():
        raise StorageError(f"{name} is a folder: only SQLite sessions can be looked at without opening them.")
    log = log_of(real)
    try:
        if not log.exists():
            found = _look(real, name, read, still=True)
            if not log.exists():  # else an owner opened it meanwhile, and what was read may be of two moments
                return found
        return _look(real, name, read, still=False)
    except sqlite3.OperationalError as error:
        raise StorageError(f"{name} cannot be read now ({error}). Nothing was changed.") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite quotes damaged text in its messages
        raise not_a_session(name, error) from error


def log_is_missing(path: str | os.PathLike[str]) -> bool:
    """Whether the file at ``path`` may lack its newest commits: it is a copy that was made without the log.

    An opening notes in the file itself that a log lies beside it from now on; closing, and a backup, take the note
    back. A file with the note and without a log was copied alone while it was open, or after its process had died.
    Raises what ``look`` raises.
    """
    real = Path(os.path.realpath(path))
    return owner_of(path) is None and look(path, SqliteReads.needs_log) and not log_of(real).exists()


def not_a_session(name: str, error: Exception) -> StorageCorrupt:
    return StorageCorrupt(
        f"{name} is not a session: it cannot be read as an SQLite file ({error}). Nothing was changed."
    )


def connect(real: Path, name: str, *, still: bool, timeout: float = PATIENCE) -> sqlite3.Connection:
    """A connection that can only read. ``still`` reads the file as it lies, for one that nobody writes and that has
    no log. Raises ``StorageCorrupt``, ``SchemaTooNew``, ``StorageError`` for an older schema, and ``sqlite3.Error``."""
    how = "mode=ro&immutable=1" if still else "mode=ro"
    connection = sqlite3.connect(
        f"{real.as_uri()}?{how}", uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StorageCorrupt(f"{name} is not a session but a file of something else. Nothing was changed.")
        if check_version(connection, name) < len(MIGRATIONS):
            raise StorageError(
                f"{name} was written by an older version of pidurable_nb, and reading does not change it. Open it "
                "once with this version, or read it with the version that wrote it."
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _look(real: Path, name: str, read: Callable[[SqliteReads], T], *, still: bool) -> T:
    with closing(connect(real, name, still=still)) as connection:
        connection.execute("BEGIN")  # one snapshot for everything that is read
        try:
            return read(SqliteReads(connection, name))
        finally:
            connection.execute("ROLLBACK")
