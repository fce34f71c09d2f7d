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
from .sqlite_schema import APPLICATION_ID, check_version

__all__ = ["look", "owner_of"]

T = TypeVar("T")


def owner_of(path: str | os.PathLike[str]) -> LockHolder | None:
    """Who has the session at ``path`` open now: pid, host and since when (epoch seconds); ``None`` for nobody."""
    real = Path(os.path.realpath(path))
    return holder(real.with_name(real.name + ".lock"))


def look(path: str | os.PathLike[str], read: Callable[[SqliteReads], T]) -> T:
    """What ``read`` makes of the session at ``path``, as of one commit; its owner may work on meanwhile.

    Call it from another process than the owner's. ``read`` may be called twice. Raises ``StorageError`` where there is
    no file, ``StorageCorrupt`` for one that is not a session, and ``SchemaTooNew``.
    """
    name = os.fspath(path)
    real = Path(os.path.realpath(path))
    if not real.exists():
        raise StorageError(f"{name} does not exist: there is no session to look at. Check the path.")
    if real.is_dir():
        raise StorageError(f"{name} is a folder: only SQLite sessions can be looked at without opening them.")
    log = real.with_name(real.name + "-wal")
    try:
        if not log.exists():
            found = _look(real, name, read, "mode=ro&immutable=1")
            if not log.exists():  # else an owner opened it meanwhile, and what was read may be of two moments
                return found
        return _look(real, name, read, "mode=ro")
    except sqlite3.OperationalError as error:
        raise StorageError(f"{name} cannot be read now ({error}). Nothing was changed.") from error
    except sqlite3.DatabaseError as error:
        raise StorageCorrupt(
            f"{name} is not a session: it cannot be read as an SQLite file ({error}). Nothing was changed."
        ) from error


def _look(real: Path, name: str, read: Callable[[SqliteReads], T], how: str) -> T:
    with closing(sqlite3.connect(f"{real.as_uri()}?{how}", uri=True, timeout=10.0, isolation_level=None)) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StorageCorrupt(f"{name} is not a session but a file of something else. Nothing was changed.")
        check_version(connection, name)
        connection.execute("BEGIN")  # one snapshot for everything that is read
        try:
            return read(SqliteReads(connection, name))
        finally:
            connection.execute("ROLLBACK")
