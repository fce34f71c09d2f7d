"""The reads of an SQLite session over any connection to it: its owner's, or a read-only one of an observer.

Every method is a plain call on the thread of the connection. Values are detached: they are made from the stored text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic_core import from_json

from ..errors import StorageCorrupt, StorageRequestError
from ..records import (
    ROOT,
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
from ..values import Value
from .common import (
    SUBMISSION_STATUSES,
    TASK_STATUSES,
    check_page,
    check_point,
    gone,
    materialise,
    read_record,
    statuses,
)
from .protocol import Changes, CommitInfo, Order, Page, StoredDocument

V = TypeVar("V", bound=Value)

_DOCUMENT = "id, kind, scope, scope_id, key, history, fork, created_at, retired_at"
_LIVE_TASK = "status <> 'terminal'"
_OPEN_SUBMISSION = "status <> 'done' AND status <> 'unanswered'"


def key_column(key: str | None) -> str | bytes:
    """A document's key as its column holds it."""
    return b"" if key is None else key


class SqliteReads:
    """Look-ups, scans and feeds over one connection."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    def needs_log(self) -> bool:
        """Whether the newest commits may lie in a log beside the file (see ``readonly.log_is_missing``)."""
        row = self._connection.execute("SELECT logged FROM lives ORDER BY id DESC LIMIT 1").fetchone()
        return row is not None and bool(row[0])

    def last_seq(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(seq), 0) FROM commits").fetchone()[0])

    # -- look-ups ----------------------------------------------------------------------------------------------------

    def _record(self, cls: type[V], sql: str, *parameters: Any) -> V | None:
        row = self._connection.execute(sql, parameters).fetchone()
        return None if row is None else read_record(cls, row[0], self._name)

    def conversation(self, id: int) -> ConversationRecord | None:
        return self._record(ConversationRecord, "SELECT payload FROM conversations WHERE id = ?", id)

    def entry(self, id: int) -> Entry | None:
        return self._record(Entry, "SELECT payload FROM entries WHERE id = ?", id)

    def task(self, id: int) -> TaskRecord | None:
        return self._record(TaskRecord, "SELECT payload FROM tasks WHERE id = ?", id)

    def submission(self, id: int) -> SubmissionRecord | None:
        return self._record(SubmissionRecord, "SELECT payload FROM submissions WHERE id = ?", id)

    def submission_by_request(self, conversation: int, request_id: str) -> SubmissionRecord | None:
        sql = "SELECT payload FROM submissions WHERE conversation_id = ? AND request_id = ?"
        return self._record(SubmissionRecord, sql, conversation, request_id)

    def latest_head(self, conversation: int, max_id: int | None) -> Entry | None:
        sql = (
            "SELECT payload FROM entries INDEXED BY entries_head "
            "WHERE conversation_id = ? AND head IS NOT NULL AND id <= ? ORDER BY id DESC LIMIT 1"
        )
        return self._record(Entry, sql, conversation, 2**63 - 1 if max_id is None else max_id)

    def entry_commit(self, id: int) -> CommitInfo | None:
        sql = "SELECT c.seq, c.at, c.life FROM entries e JOIN commits c ON c.seq = e.seq WHERE e.id = ?"
        row = self._connection.execute(sql, (id,)).fetchone()
        return None if row is None else CommitInfo(*row)

    # -- scans -------------------------------------------------------------------------------------------------------

    def _scan(
        self,
        columns: str,
        source: str,
        conditions: list[tuple[str, tuple[Any, ...]]],
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> tuple[list[Any], int | None]:
        """One page of rows, whose first column is the id, and the cursor of the next."""
        descending = check_page(order, limit)
        if cursor is not None:
            conditions.append(("id < ?" if descending else "id > ?", (cursor,)))
        where = "".join(f" {'AND' if index else 'WHERE'} {text}" for index, (text, _) in enumerate(conditions))
        sql = f"SELECT {columns} FROM {source}{where} ORDER BY id {'DESC' if descending else 'ASC'} LIMIT ?"
        parameters = [value for _, values in conditions for value in values]
        rows = self._connection.execute(sql, (*parameters, limit + 1)).fetchall()
        if len(rows) > limit:
            rows.pop()
            return rows, rows[-1][0]
        return rows, None

    def _records(
        self,
        cls: type[V],
        source: str,
        conditions: list[tuple[str, tuple[Any, ...]]],
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[V]:
        rows, following = self._scan("id, payload", source, conditions, order, limit, cursor)
        return Page([read_record(cls, row[1], self._name) for row in rows], following)

    def scan_conversations(
        self, owner_task: int | None, owner_conversation: int | None, order: Order, limit: int, cursor: int | None
    ) -> Page[ConversationRecord]:
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        if owner_task is not None:
            conditions.append(("owner_task = ?", (owner_task,)))
        if owner_conversation is not None:
            conditions.append(("owner_conversation = ?", (owner_conversation,)))
        return self._records(ConversationRecord, "conversations", conditions, order, limit, cursor)

    def scan_entries(
        self,
        conversation: int | None,
        min_id: int | None,
        max_id: int | None,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[Entry]:
        source = "entries"
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        if conversation == ROOT:
            source = "entries NOT INDEXED"  # in order of id, see sqlite_schema
            conditions.append(("conversation_id = ?", (conversation,)))
        elif conversation is not None:
            source = "entries INDEXED BY entries_conversation"
            conditions.append(("conversation_id = ? AND conversation_id <> 1", (conversation,)))
        if min_id is not None:
            conditions.append(("id >= ?", (min_id,)))
        if max_id is not None:
            conditions.append(("id <= ?", (max_id,)))
        return self._records(Entry, source, conditions, order, limit, cursor)

    def scan_tasks(
        self,
        conversation: int | None,
        kind: str | None,
        status: TaskStatus | Sequence[TaskStatus] | None,
        owner: int | None,
        abort_requested: bool | None,
        background: bool | None,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[TaskRecord]:
        check_page(order, limit)
        wanted = statuses(status, TASK_STATUSES)
        if wanted == []:
            return Page([])
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        source = "tasks"
        if conversation is not None:
            source = "tasks INDEXED BY tasks_conversation"
            conditions.append(("conversation_id = ?", (conversation,)))
        if wanted is not None:
            conditions.append(_one_of("status", wanted))
            if "terminal" not in wanted:
                source = "tasks INDEXED BY tasks_live"
                conditions.append((_LIVE_TASK, ()))
        if owner is not None:
            source = "tasks INDEXED BY tasks_owner"
            conditions.append(("owner = ?", (owner,)))
        for column, value in (("kind", kind), ("abort_requested", abort_requested), ("background", background)):
            if value is not None:
                conditions.append((f"{column} = ?", (value,)))
        return self._records(TaskRecord, source, conditions, order, limit, cursor)

    def scan_submissions(
        self,
        conversation: int | None,
        status: SubmissionStatus | Sequence[SubmissionStatus] | None,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[SubmissionRecord]:
        check_page(order, limit)
        wanted = statuses(status, SUBMISSION_STATUSES)
        if wanted == []:
            return Page([])
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        source = "submissions"
        if conversation is not None:
            source = "submissions INDEXED BY submissions_conversation"
            conditions.append(("conversation_id = ?", (conversation,)))
        if wanted is not None:
            conditions.append(_one_of("status", wanted))
            if "done" not in wanted and "unanswered" not in wanted:
                source = "submissions INDEXED BY submissions_open"
                conditions.append((_OPEN_SUBMISSION, ()))
        return self._records(SubmissionRecord, source, conditions, order, limit, cursor)

    def scan_commits(self, after: int, order: Order, limit: int) -> Page[CommitInfo]:
        direction = "DESC" if check_page(order, limit) else "ASC"
        sql = f"SELECT seq, at, life FROM commits WHERE seq > ? ORDER BY seq {direction} LIMIT ?"
        rows = self._connection.execute(sql, (after, limit + 1)).fetchall()
        infos = [CommitInfo(*row) for row in rows[:limit]]
        return Page(infos, infos[-1].seq if len(rows) > limit else None)

    # -- documents ---------------------------------------------------------------------------------------------------

    def find_document(
        self, kind: str, scope: DocumentScope, scope_id: int | None, key: str | None, at: int | None
    ) -> DocumentRecord | None:
        place = (scope_id or 0, scope, kind, key_column(key))
        if at is None:
            sql = (
                f"SELECT {_DOCUMENT} FROM documents INDEXED BY documents_live "
                "WHERE scope_id = ? AND scope = ? AND kind = ? AND key = ? AND retired_at IS NULL"
            )
            row = self._connection.execute(sql, place).fetchone()
        else:
            check_point(at, self.last_seq())
            sql = (
                f"SELECT {_DOCUMENT} FROM documents INDEXED BY documents_place "
                "WHERE scope_id = ? AND scope = ? AND kind = ? AND key = ? AND created_at <= ? "
                "AND (retired_at IS NULL OR retired_at > ?)"
            )
            row = self._connection.execute(sql, (*place, at, at)).fetchone()
        return None if row is None else self._document_record(row)

    def _document_record(self, row: Any) -> DocumentRecord:
        try:
            return DocumentRecord(
                id=row[0],
                kind=row[1],
                scope=row[2],
                scope_id=row[3] or None,
                key=None if row[4] == b"" else row[4],
                history=row[5],
                fork=row[6],
                created_at=row[7],
                retired_at=row[8],
            )
        except ValueError as error:
            raise StorageCorrupt(
                f"{self._name} holds a document ({row[0]}) that this version cannot read: {error}. Nothing was changed."
            ) from error

    def document_record(self, id: int) -> DocumentRecord | None:
        row = self._connection.execute(f"SELECT {_DOCUMENT} FROM documents WHERE id = ?", (id,)).fetchone()
        return None if row is None else self._document_record(row)

    def document(self, id: int, at: int | None, last_seq: int | None = None) -> StoredDocument | None:
        """``last_seq`` is the newest commit that ``at`` may name, the newest stored one when not given."""
        if at is not None:
            check_point(at, self.last_seq() if last_seq is None else last_seq)
        record = self.document_record(id)
        if record is None:
            return None
        if at is not None and not (record.created_at <= at and (record.retired_at is None or at < record.retired_at)):
            return None
        sql = (
            "SELECT seq, version, base, payload FROM revisions WHERE document = ? AND seq <= ? "
            "ORDER BY seq DESC, part DESC"
        )
        deltas: list[str] = []
        newest: Any = None
        cursor = self._connection.execute(sql, (id, 2**63 - 1 if at is None else at))
        for row in cursor:
            newest = newest or row
            if row[2]:
                cursor.close()
                value = materialise(row[3], deltas[::-1], record, self._name)
                return StoredDocument(record, newest[1], value, newest[0], len(deltas))
            deltas.append(row[3])
        if at is not None:
            raise gone(record, at)
        raise StorageCorrupt(f"{self._name} has lost the base of the document {record.kind} ({id}). Restore a copy.")

    def scan_documents(
        self,
        kind: str | None,
        scope: DocumentScope | None,
        scope_id: int | None,
        live: bool,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[DocumentRecord]:
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        for column, value in (("scope_id", scope_id), ("scope", scope), ("kind", kind)):
            if value is not None:
                conditions.append((f"{column} = ?", (value,)))
        if live:
            conditions.append(("retired_at IS NULL", ()))
        rows, following = self._scan(_DOCUMENT, "documents", conditions, order, limit, cursor)
        return Page([self._document_record(row) for row in rows], following)

    # -- history and life --------------------------------------------------------------------------------------------

    def changes(self, after: int) -> Changes:
        if after < 0:
            raise StorageRequestError(f"there is no commit {after}; the first one is 1.")
        ids: dict[str, set[int]] = {"c": set(), "t": set(), "s": set(), "d": set()}
        seq, first_entry = after, None
        for seq, touched in self._connection.execute(  # noqa: B007 - the last sequence is wanted
            "SELECT seq, touched FROM commits WHERE seq > ? ORDER BY seq", (after,)
        ):
            for what, found in from_json(touched or "{}").items():
                if what == "e":
                    first_entry = found if first_entry is None else min(first_entry, found)
                else:
                    ids[what].update(found)
        entries: list[Entry] = []
        if first_entry is not None:
            sql = "SELECT payload FROM entries WHERE id >= ? AND seq > ? ORDER BY id"
            rows = self._connection.execute(sql, (first_entry, after)).fetchall()
            entries = [read_record(Entry, row[0], self._name) for row in rows]
        documents: list[StoredDocument] = []
        retired: list[DocumentRecord] = []
        for id in sorted(ids["d"]):
            stored = self.document(id, None)
            if stored is None:
                continue
            if stored.record.retired_at is None:
                documents.append(stored)
            else:
                retired.append(stored.record)
        return Changes(
            seq if seq > after else min(after, self.last_seq()),
            [found for id in sorted(ids["c"]) if (found := self.conversation(id)) is not None],
            entries,
            [found for id in sorted(ids["t"]) if (found := self.task(id)) is not None],
            [found for id in sorted(ids["s"]) if (found := self.submission(id)) is not None],
            documents,
            retired,
        )

    def lives(self) -> list[Life]:
        sql = "SELECT id, pid, host, kernel, opened_at, after_seq, ended, ended_at FROM lives ORDER BY id"
        rows = self._connection.execute(sql).fetchall()
        last = self.last_seq()
        lives: list[Life] = []
        for index, (id, pid, host, kernel, opened_at, after_seq, ended, ended_at) in enumerate(rows):
            newest = rows[index + 1][5] if index + 1 < len(rows) else last
            at = None
            if newest > after_seq:
                (at,) = self._connection.execute("SELECT at FROM commits WHERE seq = ?", (newest,)).fetchone()
            lives.append(
                Life(
                    id=id,
                    pid=pid,
                    host=host,
                    kernel=kernel,
                    opened_at=opened_at,
                    last_commit=newest if newest > after_seq else None,
                    last_commit_at=at,
                    ended=ended,
                    ended_at=ended_at,
                )
            )
        return lives

    def attempts(self, task: int | None) -> list[Attempt]:
        where, parameters = ("", ()) if task is None else (" WHERE task = ?", (task,))
        sql = f'SELECT task, life, phase, started_at, ended_at, "end" FROM attempts{where} ORDER BY id'
        return [
            Attempt(task=task, life=life, phase=phase, started_at=started_at, ended_at=ended_at, end=end)
            for task, life, phase, started_at, ended_at, end in self._connection.execute(sql, parameters)
        ]


def _one_of(column: str, values: list[str]) -> tuple[str, tuple[Any, ...]]:
    return f"{column} IN ({', '.join('?' * len(values))})", tuple(values)


def is_binding(error: BaseException) -> bool:
    """Whether SQLite was asked with a value that it cannot hold: the request's fault, not the file's."""
    return isinstance(error, sqlite3.Error) and "binding parameter" in str(error)
