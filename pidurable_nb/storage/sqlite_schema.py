"""The SQLite schema: its migrations, and the check that a file is a session before anything touches it.

Tables. ``commits`` numbers the commits and lists what each touched, for the commit feed. ``entries``, ``tasks``,
``submissions`` and ``conversations`` keep a record's JSON beside the columns that look-ups need. ``documents`` keeps
one row per incarnation, ``revisions`` its bases and deltas. ``lives`` and ``attempts`` are rule 1.10's; a life is
``logged`` while the newest commits may lie in the log beside the file, so that a copy without it can be recognised.

The root conversation's entries have no index of their own: most entries are its, so that reading the table in order
finds them as quickly, and a commit then writes one page less.

Pages are of 2 kB. A commit writes each page that it changes to the log as a whole, and it changes few bytes of each:
with SQLite's 4 kB, committing an entry and a document takes a sixth longer. Long texts lie in chains of pages anyway.

A document's ``scope_id`` is 0 for the session, and its ``key`` the empty blob for none, so that unique indexes, which
hold NULLs different from each other, can keep two documents from living in one place.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from ..errors import SchemaTooNew, StorageCorrupt, StorageError
from ..faults import reach

APPLICATION_ID = 0x70694E62
"""``piNb`` in ``PRAGMA application_id``: what makes an SQLite file one of ours."""

PAGE_SIZE = 2048

MIGRATIONS: list[list[str]] = [
    [
        """CREATE TABLE commits (
            seq INTEGER PRIMARY KEY, at REAL NOT NULL, life INTEGER NOT NULL, top_id INTEGER NOT NULL, touched TEXT)""",
        """CREATE TABLE conversations (
            id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, owner_task INTEGER, owner_conversation INTEGER,
            payload TEXT NOT NULL)""",
        "CREATE INDEX conversations_owner ON conversations (owner_task) WHERE owner_task IS NOT NULL",
        "CREATE INDEX conversations_owned ON conversations (owner_conversation) WHERE owner_conversation IS NOT NULL",
        """CREATE TABLE entries (
            id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, conversation_id INTEGER NOT NULL, head INTEGER,
            payload TEXT NOT NULL)""",
        "CREATE INDEX entries_conversation ON entries (conversation_id) WHERE conversation_id <> 1",
        "CREATE INDEX entries_head ON entries (conversation_id) WHERE head IS NOT NULL",
        """CREATE TABLE tasks (
            id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, conversation_id INTEGER NOT NULL, kind TEXT NOT NULL,
            status TEXT NOT NULL, owner INTEGER, background INTEGER NOT NULL, abort_requested INTEGER NOT NULL,
            payload TEXT NOT NULL)""",
        "CREATE INDEX tasks_conversation ON tasks (conversation_id)",
        "CREATE INDEX tasks_owner ON tasks (owner) WHERE owner IS NOT NULL",
        "CREATE INDEX tasks_live ON tasks (id) WHERE status <> 'terminal'",
        """CREATE TABLE submissions (
            id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, conversation_id INTEGER NOT NULL, status TEXT NOT NULL,
            request_id TEXT, payload TEXT NOT NULL)""",
        "CREATE INDEX submissions_conversation ON submissions (conversation_id)",
        "CREATE INDEX submissions_open ON submissions (id) WHERE status <> 'done' AND status <> 'unanswered'",
        """CREATE UNIQUE INDEX submissions_request ON submissions (conversation_id, request_id)
            WHERE request_id IS NOT NULL""",
        """CREATE TABLE documents (
            id INTEGER PRIMARY KEY, kind TEXT NOT NULL, scope TEXT NOT NULL, scope_id INTEGER NOT NULL,
            key NOT NULL, history TEXT NOT NULL, fork TEXT NOT NULL, created_at INTEGER NOT NULL,
            retired_at INTEGER)""",
        "CREATE INDEX documents_place ON documents (scope_id, scope, kind, key)",
        """CREATE UNIQUE INDEX documents_live ON documents (scope_id, scope, kind, key)
            WHERE retired_at IS NULL""",
        """CREATE TABLE revisions (
            document INTEGER NOT NULL, seq INTEGER NOT NULL, part INTEGER NOT NULL, version INTEGER NOT NULL,
            base INTEGER NOT NULL, payload TEXT NOT NULL, PRIMARY KEY (document, seq, part)) WITHOUT ROWID""",
        """CREATE TABLE lives (
            id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, kernel TEXT, opened_at REAL NOT NULL,
            after_seq INTEGER NOT NULL, after_attempt INTEGER NOT NULL, ended TEXT, ended_at REAL,
            logged INTEGER NOT NULL)""",
        """CREATE TABLE attempts (
            id INTEGER PRIMARY KEY, task INTEGER NOT NULL, life INTEGER NOT NULL, phase TEXT NOT NULL,
            started_at REAL NOT NULL, ended_at REAL, "end" TEXT)""",
        "CREATE INDEX attempts_task ON attempts (task)",
    ],
]
"""The statements of each version, in order. A migration and the record of it (``user_version``) are one transaction."""


def check_file(path: Path, name: str) -> bool:
    """Whether ``path`` holds a session already; ``False`` when it is absent or an empty file.

    Raises ``StorageCorrupt`` for any other file, ``SchemaTooNew`` for a newer schema and ``StorageError`` where it
    cannot be read. Reads without locks and without making a log beside the file, so that it changes nothing.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StorageError(f"{name} cannot be created: there is no folder {path.parent}. Make it first.") from None
        return False
    except OSError as error:
        raise StorageError(f"{name} cannot be read ({error.strerror}). Nothing was changed.") from error
    if stat.S_ISDIR(status.st_mode):
        raise StorageError(f"{name} is a folder, not a file. For a journal in a folder, write jsonl:{name}.")
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{name} is not a regular file, so it cannot hold a session. Nothing was changed.")
    if status.st_size == 0:
        return False
    if not os.access(path, os.R_OK | os.W_OK):
        raise StorageError(f"{name} cannot be opened: this user may not read and write it. Nothing was changed.")
    logged = _logged(path)  # before it is read: a connection that is being closed copies its log into it meanwhile
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            check_version(connection, name)
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes damaged text in its messages
        if logged or _logged(path):
            # A kill in the middle of a checkpoint leaves a header that counts pages which only the log has, and a file
            # that is being copied into reads as damaged. SQLite mends or waits for that when it opens the file with
            # its log, and says so if it cannot.
            return True
        raise StorageCorrupt(
            f"{name} is not a session: it cannot be read as an SQLite file ({error}). Nothing was changed. "
            "Choose another path, or restore a copy."
        ) from error
    if application != APPLICATION_ID:
        raise StorageCorrupt(
            f"{name} is an SQLite file of another program, not a session. Nothing was changed. Choose another path."
        )
    logged = logged or _logged(path)
    size = path.stat().st_size  # after the log: a connection that is being closed grows the file, then removes the log
    if size < pages * page_size and not logged:
        raise StorageCorrupt(
            f"{name} was cut short: it has {size} bytes of {pages * page_size}. Nothing was changed. Restore a copy."
        )
    return True


def _logged(path: Path) -> bool:
    """Whether a log with content lies beside the file."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def check_version(connection: sqlite3.Connection, name: str) -> int:
    """The schema version of a file. Raises ``SchemaTooNew`` when it is newer than this code."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise SchemaTooNew(
            f"{name} was written by a newer version of pidurable_nb (its schema is {version}, this version knows "
            f"{len(MIGRATIONS)}). Nothing was changed. Upgrade the package to open it."
        )
    return version


def migrate(connection: sqlite3.Connection, name: str) -> None:
    """Bring a file up to the newest schema, one transaction for each version."""
    version = check_version(connection, name)
    while version < len(MIGRATIONS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            version += 1
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def create_file(path: Path, name: str) -> None:
    """Make a complete, empty session at ``path``. It gets its name last, so there is never half a file of that name.

    The caller holds the owner lock.
    """
    draft = path.with_name(f".{path.name}.pidurable-new")  # a name of ours: one that a killed process left goes
    for leftover in (draft, draft.with_name(draft.name + "-journal")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(connection, name)
        reach("open.file", name)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
