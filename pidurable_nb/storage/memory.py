"""The reference backend: everything in memory, gone with the process.

``MemoryState`` is the state itself, without a loop: tables of stored text and the indexes over them. ``MemoryStorage``
puts the protocol on top; the JSONL backend keeps the same state beside its journal.

Records are kept as their stored text and read anew each time. So a read is detached, and what comes back is what any
other backend would give. A batch is applied in place with a list of undo steps; a failure runs them backwards.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..errors import StorageError, StorageRequestError
from ..records import (
    Attempt,
    AttemptEnd,
    ConversationRecord,
    DocumentRecord,
    DocumentScope,
    Entry,
    Life,
    SubmissionRecord,
    SubmissionStatus,
    TaskId,
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
    highest_id,
    keeps_history,
    materialise,
    new_life,
    read_record,
    statuses,
)
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
from .reading import Opening

T = TypeVar("T")
V = TypeVar("V", bound=Value)


@dataclass(slots=True)
class Row:
    """A stored record: its text, the commit that wrote it, and the fields that look-ups and filters need."""

    seq: int
    payload: str
    conversation: int = 0
    kind: str = ""
    status: str = ""
    owner: int | None = None
    owner_conversation: int | None = None
    background: bool = False
    abort_requested: bool = False
    request_id: str | None = None


@dataclass(slots=True)
class Revision:
    """One stored change of a document: a base, or a delta on what lies before it."""

    seq: int
    version: int
    base: bool
    payload: str


@dataclass(slots=True)
class DocumentRow:
    """A document and the changes that are kept of it, oldest first."""

    record: DocumentRecord
    revisions: list[Revision]


@dataclass(slots=True)
class Ids:
    """Ids in growing order, for scans."""

    ids: list[int] = field(default_factory=list)

    def add(self, id: int) -> None:
        if not self.ids or id > self.ids[-1]:
            self.ids.append(id)
        else:
            insort(self.ids, id)

    def remove(self, id: int) -> None:
        del self.ids[bisect_left(self.ids, id)]

    def walk(
        self, descending: bool, cursor: int | None, min_id: int | None = None, max_id: int | None = None
    ) -> Iterable[int]:
        """The ids between inclusive bounds, after the cursor in the given direction."""
        low = 0 if min_id is None else bisect_left(self.ids, min_id)
        high = len(self.ids) if max_id is None else bisect_right(self.ids, max_id)
        if cursor is not None:
            if descending:
                high = min(high, bisect_left(self.ids, cursor))
            else:
                low = max(low, bisect_right(self.ids, cursor))
        indexes = range(low, high)
        return (self.ids[index] for index in (reversed(indexes) if descending else indexes))


Address = tuple[str, str, "int | None", "str | None"]


class MemoryState:
    """All of a storage's content, with its reads. Not safe for threads; every change goes through ``transaction``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = 0
        self.top_id = 0
        self.commits: list[tuple[float, int]] = []
        self.touched: list[list[tuple[str, int]]] = []
        self.conversations_by_id: dict[int, Row] = {}
        self.entries_by_id: dict[int, Row] = {}
        self.tasks_by_id: dict[int, Row] = {}
        self.submissions_by_id: dict[int, Row] = {}
        self.documents_by_id: dict[int, DocumentRow] = {}
        self._lives: list[Life] = []
        self._last_of_life: dict[int, int] = {}
        self._attempts: list[Attempt] = []
        self._conversation_ids = Ids()
        self._entry_ids = Ids()
        self._task_ids = Ids()
        self._live_task_ids = Ids()
        self._submission_ids = Ids()
        self._document_ids = Ids()
        self._entries_of: dict[int, Ids] = {}
        self._heads_of: dict[int, Ids] = {}
        self._requests: dict[tuple[int, str], int] = {}
        self._live_documents: dict[Address, int] = {}
        self._open_attempts: dict[int, list[int]] = {}
        self._undo: list[Callable[[], object]] = []
        self._touched: list[tuple[str, int]] = []

    # -- writing -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        apply: Callable[[int, float], None],
        at: float,
        life: int,
        top_id: int = 0,
        undo: list[Callable[[], object]] | None = None,
    ) -> int:
        """Run ``apply(seq, at)``, which calls the methods below, as one commit. A raise leaves no trace.

        ``undo`` gets the steps that take the whole commit back, to be run backwards.
        """
        seq = self.seq + 1
        before = (self.seq, self.top_id, self._last_of_life.get(life))
        self._undo = []
        self._touched = []
        try:
            apply(seq, at)
        except BaseException:
            self._take_back(*before, life)
            raise
        self.commits.append((at, life))
        self.touched.append(self._touched)
        self.top_id = max(self.top_id, top_id)
        self.seq = self._last_of_life[life] = seq
        if undo is not None:
            steps = self._undo
            undo.append(lambda: self._take_back(*before, life, steps))
        return seq

    def _take_back(
        self, seq: int, top_id: int, last: int | None, life: int, steps: list[Callable[[], object]] | None = None
    ) -> None:
        for step in reversed(self._undo if steps is None else steps):
            step()
        del self.commits[seq:], self.touched[seq:]
        self.seq, self.top_id = seq, top_id
        if last is None:
            self._last_of_life.pop(life, None)
        else:
            self._last_of_life[life] = last

    def apply(self, items: Sequence[BatchItem], seq: int, at: float, life: int) -> None:
        """Apply the items of a batch, inside ``commit``."""
        for item in items:
            if isinstance(item, PutEntry):
                self.put_entry(item.record.id, item.record.conversation_id, item.record.head, item.payload, seq)
            elif isinstance(item, ChangeDocument):
                self.change_document(item.record.id, item.version, not item.ops, item.payload, seq)
            elif isinstance(item, PutTask):
                task = item.record
                row = Row(
                    seq,
                    item.payload,
                    task.conversation_id,
                    task.kind,
                    task.state.status,
                    task.owner,
                    background=task.background,
                    abort_requested=task.abort_requested,
                )
                self.put_task(task.id, row)
            elif isinstance(item, PutSubmission):
                submission = item.record
                self.put_submission(
                    submission.id,
                    Row(
                        seq,
                        item.payload,
                        submission.conversation_id,
                        status=submission.status,
                        request_id=submission.request_id,
                    ),
                )
            elif isinstance(item, PutConversation):
                owner = item.record.owner
                self.put_conversation(
                    item.record.id,
                    Row(
                        seq,
                        item.payload,
                        owner=None if owner is None else owner.task,
                        owner_conversation=None if owner is None else owner.conversation,
                    ),
                )
            elif isinstance(item, CreateDocument):
                self.create_document(item.record, item.version, item.payload, seq)
            elif isinstance(item, CopyDocument):
                self.copy_document(item.source, item.record, item.at, seq)
            elif isinstance(item, RetireDocument):
                self.retire_document(item.id, seq)
            elif isinstance(item, StartAttempt):
                self.start_attempt(item.task, item.phase, at, life)
            elif isinstance(item, EndAttempt):
                self.end_attempt(item.task, item.end, at)
            else:
                raise StorageError(f"{self.name}: a {type(item).__name__} cannot be part of a batch.")

    def _new(self, table: dict[int, Row], ids: Ids, what: str, id: int, row: Row) -> None:
        if id in table:
            raise StorageError(f"{self.name}: the {what} {id} is already stored; ids are never given twice.")
        table[id] = row
        ids.add(id)
        self._undo += (lambda: table.pop(id), lambda: ids.remove(id))
        self._touch(what, id)

    def _touch(self, what: str, id: int) -> None:
        self._touched.append((what, id))
        if id > self.top_id:
            self.top_id = id

    def put_conversation(self, id: int, row: Row) -> None:
        self._new(self.conversations_by_id, self._conversation_ids, "conversation", id, row)

    def put_entry(self, id: int, conversation: int, head: int | None, payload: str, seq: int) -> None:
        self._new(self.entries_by_id, self._entry_ids, "entry", id, Row(seq, payload, conversation))
        own = self._entries_of.setdefault(conversation, Ids())
        own.add(id)
        self._undo.append(lambda: own.remove(id))
        if head is not None:
            heads = self._heads_of.setdefault(conversation, Ids())
            heads.add(id)
            self._undo.append(lambda: heads.remove(id))

    def put_task(self, id: int, row: Row) -> None:
        before = self.tasks_by_id.get(id)
        if before is None:
            self._new(self.tasks_by_id, self._task_ids, "task", id, row)
        else:
            self.tasks_by_id[id] = row
            self._undo.append(lambda: self.tasks_by_id.__setitem__(id, before))
            self._touch("task", id)
        was_live = before is not None and before.status != "terminal"
        is_live = row.status != "terminal"
        if is_live and not was_live:
            self._live_task_ids.add(id)
            self._undo.append(lambda: self._live_task_ids.remove(id))
        elif was_live and not is_live:
            self._live_task_ids.remove(id)
            self._undo.append(lambda: self._live_task_ids.add(id))

    def put_submission(self, id: int, row: Row) -> None:
        if row.request_id is not None:
            key = (row.conversation, row.request_id)
            other = self._requests.get(key)
            if other is None:
                self._requests[key] = id
                self._undo.append(lambda: self._requests.pop(key))
            elif other != id:
                raise StorageError(
                    f"{self.name}: the request id {row.request_id!r} already belongs to submission {other}."
                )
        before = self.submissions_by_id.get(id)
        if before is None:
            self._new(self.submissions_by_id, self._submission_ids, "submission", id, row)
        else:
            self.submissions_by_id[id] = row
            self._undo.append(lambda: self.submissions_by_id.__setitem__(id, before))
            self._touch("submission", id)

    def create_document(self, record: DocumentRecord, version: int, payload: str, seq: int) -> None:
        id = record.id
        if id in self.documents_by_id:
            raise StorageError(f"{self.name}: the document {id} is already stored; ids are never given twice.")
        place = _address(record)
        if place in self._live_documents:
            raise StorageError(
                f"{self.name}: the document {record.kind} already lives in this place, with the id "
                f"{self._live_documents[place]}."
            )
        stored = record.replaced(created_at=seq, retired_at=None)
        self.documents_by_id[id] = DocumentRow(stored, [Revision(seq, version, True, payload)])
        self._document_ids.add(id)
        self._live_documents[place] = id
        self._undo += (
            lambda: self.documents_by_id.pop(id),
            lambda: self._document_ids.remove(id),
            lambda: self._live_documents.pop(place),
        )
        self._touch("document", id)

    def _live(self, id: int) -> DocumentRow:
        row = self.documents_by_id.get(id)
        if row is None or row.record.retired_at is not None:
            state = "does not exist" if row is None else "has retired"
            raise StorageError(f"{self.name}: the document {id} {state} and cannot be changed.")
        return row

    def change_document(self, id: int, version: int, base: bool, payload: str, seq: int) -> None:
        row = self._live(id)
        before = row.revisions
        revision = Revision(seq, version, base, payload)
        if base and not keeps_history(row.record):
            row.revisions = [revision]
            self._undo.append(lambda: setattr(row, "revisions", before))
        else:
            before.append(revision)
            self._undo.append(before.pop)
        self._touch("document", id)

    def copy_document(self, source: int, record: DocumentRecord, at: int | None, seq: int) -> None:
        try:
            stored = self.document(source, at, seq)
        except StorageRequestError as error:
            raise StorageError(f"{self.name}: the document {source} cannot be copied: {error}") from error
        if stored is None:
            raise StorageError(f"{self.name}: the document {source} does not exist at that point and cannot be copied.")
        self.create_document(record, stored.version, encode(stored.value, f"the document {record.kind}"), seq)

    def retire_document(self, id: int, seq: int) -> None:
        row = self._live(id)
        record = row.record
        row.record = record.replaced(retired_at=seq)
        place = _address(record)
        del self._live_documents[place]
        self._undo += (
            lambda: setattr(row, "record", record),
            lambda: self._live_documents.__setitem__(place, id),
        )
        self._touch("document", id)

    def start_attempt(self, task: int, phase: str, at: float, life: int) -> None:
        opened = self._open_attempts.setdefault(task, [])
        opened.append(len(self._attempts))
        self._attempts.append(Attempt(task=TaskId(task), life=life, phase=phase, started_at=at))
        self._undo += (opened.pop, self._attempts.pop)

    def end_attempt(self, task: int, end: AttemptEnd, at: float) -> None:
        """End the newest open attempt of a task. A task that has none was cut off by an earlier death: no change."""
        opened = self._open_attempts.get(task)
        if not opened:
            return
        index = opened.pop()
        before = self._attempts[index]
        self._attempts[index] = before.replaced(end=end, ended_at=at)
        self._undo += (lambda: opened.append(index), lambda: self._attempts.__setitem__(index, before))

    # -- restoring from a compacted journal --------------------------------------------------------------------------

    def restoring(self) -> None:
        """Called before rows are put outside of a commit: they are not undone, and say themselves when they changed."""
        self._undo = []
        self._touched = []

    def restore_attempts(self, attempts: list[Attempt]) -> None:
        """Attempts as they were kept."""
        for attempt in attempts:
            if attempt.end is None:
                self._open_attempts.setdefault(attempt.task, []).append(len(self._attempts))
            self._attempts.append(attempt)

    def restore_document(self, row: DocumentRow) -> None:
        """A document with the changes that were kept of it."""
        record = row.record
        self.documents_by_id[record.id] = row
        self._document_ids.add(record.id)
        if record.retired_at is None:
            self._live_documents[_address(record)] = record.id
        else:
            self.touch_at(record.retired_at, "document", record.id)
        for revision in row.revisions:
            self.touch_at(revision.seq, "document", record.id)

    def touch_at(self, seq: int, what: str, id: int) -> None:
        """Say that a commit changed a record."""
        self.touched[seq - 1].append((what, id))

    # -- lives -------------------------------------------------------------------------------------------------------

    def open_life(self, life: Life) -> None:
        """Start a life: attempts that are still open belong to dead ones and were cut off with their last commit."""
        for indexes in self._open_attempts.values():
            for index in indexes:
                attempt = self._attempts[index]
                self._attempts[index] = attempt.replaced(end="cut_off", ended_at=self._last_instant(attempt.life))
        self._open_attempts.clear()
        self._lives.append(life)

    def end_life(self, ended: Literal["closed", "failed"], at: float) -> None:
        self._lives[-1] = self._lives[-1].replaced(ended=ended, ended_at=at)

    def _last_instant(self, life: int) -> float:
        seq = self._last_of_life.get(life)
        return self._lives[life - 1].opened_at if seq is None else self.commits[seq - 1][0]

    # -- reading -----------------------------------------------------------------------------------------------------

    def _record(self, table: dict[int, Row], cls: type[V], id: int | None) -> V | None:
        row = None if id is None else table.get(id)
        return None if row is None else read_record(cls, row.payload, self.name)

    def conversation(self, id: int) -> ConversationRecord | None:
        return self._record(self.conversations_by_id, ConversationRecord, id)

    def entry(self, id: int) -> Entry | None:
        return self._record(self.entries_by_id, Entry, id)

    def task(self, id: int) -> TaskRecord | None:
        return self._record(self.tasks_by_id, TaskRecord, id)

    def submission(self, id: int) -> SubmissionRecord | None:
        return self._record(self.submissions_by_id, SubmissionRecord, id)

    def submission_by_request(self, conversation: int, request_id: str) -> SubmissionRecord | None:
        return self._record(self.submissions_by_id, SubmissionRecord, self._requests.get((conversation, request_id)))

    def latest_head(self, conversation: int, max_id: int | None) -> Entry | None:
        heads = self._heads_of.get(conversation)
        id = None if heads is None else next(iter(heads.walk(True, None, max_id=max_id)), None)
        return self._record(self.entries_by_id, Entry, id)

    def entry_commit(self, id: int) -> CommitInfo | None:
        row = self.entries_by_id.get(id)
        return None if row is None else self.commit_info(row.seq)

    def commit_info(self, seq: int) -> CommitInfo:
        at, life = self.commits[seq - 1]
        return CommitInfo(seq, at, life)

    def _page(self, table: dict[int, Row], cls: type[V], ids: Iterable[int], limit: int) -> Page[V]:
        found: list[int] = []
        for id in ids:
            if len(found) == limit:
                return Page([read_record(cls, table[one].payload, self.name) for one in found], found[-1])
            found.append(id)
        return Page([read_record(cls, table[one].payload, self.name) for one in found])

    def scan_conversations(
        self, owner_task: int | None, owner_conversation: int | None, order: Order, limit: int, cursor: int | None
    ) -> Page[ConversationRecord]:
        table = self.conversations_by_id
        ids = (
            id
            for id in self._conversation_ids.walk(check_page(order, limit), cursor)
            if (owner_task is None or table[id].owner == owner_task)
            and (owner_conversation is None or table[id].owner_conversation == owner_conversation)
        )
        return self._page(table, ConversationRecord, ids, limit)

    def scan_entries(
        self,
        conversation: int | None,
        min_id: int | None,
        max_id: int | None,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[Entry]:
        descending = check_page(order, limit)
        source = self._entry_ids if conversation is None else self._entries_of.get(conversation, Ids())
        return self._page(self.entries_by_id, Entry, source.walk(descending, cursor, min_id, max_id), limit)

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
        descending = check_page(order, limit)
        wanted = statuses(status, TASK_STATUSES)
        table = self.tasks_by_id
        source = self._task_ids if wanted is None or "terminal" in wanted else self._live_task_ids

        def fits(row: Row) -> bool:
            return (
                (conversation is None or row.conversation == conversation)
                and (kind is None or row.kind == kind)
                and (wanted is None or row.status in wanted)
                and (owner is None or row.owner == owner)
                and (abort_requested is None or row.abort_requested == abort_requested)
                and (background is None or row.background == background)
            )

        ids = (id for id in source.walk(descending, cursor) if fits(table[id]))
        return self._page(table, TaskRecord, ids, limit)

    def scan_submissions(
        self,
        conversation: int | None,
        status: SubmissionStatus | Sequence[SubmissionStatus] | None,
        order: Order,
        limit: int,
        cursor: int | None,
    ) -> Page[SubmissionRecord]:
        descending = check_page(order, limit)
        wanted = statuses(status, SUBMISSION_STATUSES)
        table = self.submissions_by_id
        ids = (
            id
            for id in self._submission_ids.walk(descending, cursor)
            if (conversation is None or table[id].conversation == conversation)
            and (wanted is None or table[id].status in wanted)
        )
        return self._page(table, SubmissionRecord, ids, limit)

    def scan_commits(self, after: int, order: Order, limit: int) -> Page[CommitInfo]:
        descending = check_page(order, limit)
        seqs = range(max(after, 0) + 1, self.seq + 1)
        chosen = (seqs[::-1] if descending else seqs)[:limit]
        infos = [self.commit_info(seq) for seq in chosen]
        return Page(infos, infos[-1].seq if len(seqs) > limit else None)

    def find_document(
        self, kind: str, scope: DocumentScope, scope_id: int | None, key: str | None, at: int | None
    ) -> DocumentRecord | None:
        check_point(at, self.seq)
        place = (kind, scope, scope_id, key)
        if at is None:
            id = self._live_documents.get(place)
            return None if id is None else self.documents_by_id[id].record
        for row in self.documents_by_id.values():
            record = row.record
            if _address(record) == place and lived(record, at):
                return record
        return None

    def document(self, id: int, at: int | None, last_seq: int | None = None) -> StoredDocument | None:
        check_point(at, self.seq if last_seq is None else last_seq)
        row = self.documents_by_id.get(id)
        if row is None or (at is not None and not lived(row.record, at)):
            return None
        end = len(row.revisions)
        while at is not None and end and row.revisions[end - 1].seq > at:
            end -= 1
        start = end - 1
        while start >= 0 and not row.revisions[start].base:
            start -= 1
        if start < 0:
            raise gone(row.record, at or 0)
        base, deltas = row.revisions[start], row.revisions[start + 1 : end]
        newest = row.revisions[end - 1]
        value = materialise(base.payload, [delta.payload for delta in deltas], row.record, self.name)
        return StoredDocument(row.record, newest.version, value, newest.seq, len(deltas))

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
        records: list[DocumentRecord] = []
        for id in self._document_ids.walk(check_page(order, limit), cursor):
            record = self.documents_by_id[id].record
            if (
                (kind is None or record.kind == kind)
                and (scope is None or record.scope == scope)
                and (scope_id is None or record.scope_id == scope_id)
                and (not live or record.retired_at is None)
            ):
                if len(records) == limit:
                    return Page(records, records[-1].id)
                records.append(record)
        return Page(records)

    def changes(self, after: int) -> Changes:
        if after < 0:
            raise StorageRequestError(f"there is no commit {after}; the first one is 1.")
        touched = {change for changes in self.touched[after:] for change in changes}
        ids: dict[str, list[int]] = {}
        for what, id in sorted(touched):
            ids.setdefault(what, []).append(id)

        def records(table: dict[int, Row], cls: type[V], what: str) -> list[V]:
            return [read_record(cls, table[id].payload, self.name) for id in ids.get(what, ())]

        documents: list[StoredDocument] = []
        retired: list[DocumentRecord] = []
        for id in ids.get("document", ()):
            record = self.documents_by_id[id].record
            if record.retired_at is not None:
                retired.append(record)
            elif (stored := self.document(id, None)) is not None:
                documents.append(stored)
        return Changes(
            self.seq,
            records(self.conversations_by_id, ConversationRecord, "conversation"),
            records(self.entries_by_id, Entry, "entry"),
            records(self.tasks_by_id, TaskRecord, "task"),
            records(self.submissions_by_id, SubmissionRecord, "submission"),
            documents,
            retired,
        )

    def lives(self) -> list[Life]:
        return [
            life.replaced(last_commit=seq, last_commit_at=self.commits[seq - 1][0])
            if (seq := self._last_of_life.get(life.id)) is not None
            else life
            for life in self._lives
        ]

    def attempts(self, task: int | None) -> list[Attempt]:
        return [attempt for attempt in self._attempts if task is None or attempt.task == task]


def _address(record: DocumentRecord) -> Address:
    return (record.kind, record.scope, record.scope_id, record.key)


def lived(record: DocumentRecord, at: int) -> bool:
    """Whether a document was live at the end of commit ``at``."""
    return record.created_at <= at and (record.retired_at is None or at < record.retired_at)


class MemoryStorage(Opening):
    """The protocol in memory: the reference that the other backends are compared with (engine.md, section 16).

    ``clock`` gives the time of commits that do not bring their own.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(":memory:")
        self._clock = clock
        self._reads = self._state = MemoryState(self.name)
        self.life = new_life(1, clock())
        self._state.open_life(self.life)

    async def commit(self, batch: Iterable[BatchItem], *, at: float | None = None) -> int:
        self._guard()
        items = list(batch)
        state = self._state
        when = self._clock() if at is None else at
        life = self.life.id
        self._next_id = highest_id(items, self._next_id)
        self.last_seq = state.commit(lambda seq, at: state.apply(items, seq, at, life), when, life, self._next_id)
        return self.last_seq

    async def _read(self, read: Callable[..., T], *args: Any) -> T:
        self._guard()
        return read(*args)

    async def backup(self, path: str | Path) -> None:
        """Not possible: raises ``StorageRequestError``, since there is no file to copy."""
        self._guard()
        raise StorageRequestError(
            "a session in memory has no file to back up; open one with a path, such as 'chat.sqlite'."
        )

    def abandon(self) -> None:
        """Stop as a crash would: nothing more is read or written."""
        self._closed = True

    async def close(self, *, ended: Literal["closed", "failed"] = "closed") -> None:
        self._closed = True
