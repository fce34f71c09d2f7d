"""The reading half of the protocol, the same for every backend (engine.md, section 16).

A backend brings a *reader*, whose methods are plain calls over settled state, and says in ``_read`` where they run: at
once in memory, on the worker thread where a file is involved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..errors import SessionClosed, SessionForked
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
from .protocol import Changes, CommitInfo, Order, Page, StoredDocument

if TYPE_CHECKING:
    from .memory import MemoryState
    from .sqlite_reads import SqliteReads

    Reader: TypeAlias = MemoryState | SqliteReads

T = TypeVar("T")


class Opening:
    """One opened storage: its name and life, its ids, its reads, and the check that a call may still go through.

    Calls are refused after ``close``, and in a forked child, so that a child never uses what it inherited.
    """

    name: str
    life: Life
    last_seq: int
    _reads: Reader

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_seq = 0
        self._next_id = 0
        self._pid = os.getpid()
        self._closed = False

    def _guard(self) -> None:
        """Raise ``SessionClosed`` after ``close``, ``SessionForked`` in a child made by ``os.fork``."""
        if self._closed:
            raise SessionClosed(f"{self.name} was closed; open it again to go on.")
        if os.getpid() != self._pid:
            raise SessionForked(
                f"{self.name} was opened by process {self._pid}, and this is its forked child {os.getpid()}. "
                "Only the process that opened a session may use it: open another file here, or read this one "
                "with observe()."
            )

    def mint_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def _read(self, read: Callable[..., T], *args: Any) -> T:
        """Run a method of the reader where it belongs."""
        raise NotImplementedError

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
