"""The storage protocol: what a backend does, for people who write one (engine.md, section 16).

Words. A *batch* is one commit: a list of *items* written together or not at all. A *sequence* numbers the commits of a
storage from 1 without gaps. A *base* is a document's whole value, a *delta* a list of operations on the value before.

Guarantees that a backend gives, all checked by ``pidurable_nb.testing.storage_conformance``:

- ``commit`` is atomic and durable when it returns. Calls are applied in the order in which they were made, also when a
  caller does not wait for the one before; several may share one database transaction.
- A failed commit leaves no trace. Cancelling the caller neither interrupts nor undoes what was asked.
- Ids grow monotonically over all kinds of records and are never reused, also across reopen.
- Every read returns detached values, sees all settled commits, and none that is not.
- It never runs user code.

When one commit fails, those called after it and not settled yet fail with it, since they may rest on it; the sequence
goes on without a gap. What a batch may not do, a backend refuses with ``StorageError``: store an entry, a conversation
or a document id twice, change or retire a document that does not live, create one where one lives, or give one
request id of a conversation to two submissions.

A backend may have ``abandon()``: stop as a crash would, which frees the owner lock at once, leaves the life open and
lets no call return that is under way. ``pidurable_nb.testing.KillSwitch`` uses it.

Items carry their encoded form, made when the item is made: what cannot be encoded fails there, before a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from pydantic_core import PydanticSerializationError, to_json

from ..errors import InvalidValue
from ..patch import Op
from ..records import (
    Attempt,
    AttemptEnd,
    ConversationRecord,
    DocumentId,
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
from ..values import JsonValue, Value, check_json

T = TypeVar("T")
Order: TypeAlias = Literal["ascending", "descending"]


def encode(value: Any, what: str) -> str:
    """Compact JSON text of a record or a JSON value; ``InvalidValue`` when it holds what JSON cannot."""
    try:
        if isinstance(value, Value):
            return value.to_json()
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as error:
        check_json(value.model_dump() if isinstance(value, Value) else value, what)  # names the place, where it can
        raise InvalidValue(what, "$", str(error)) from error


# -- items of a batch ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutConversation:
    """Store a new conversation."""

    record: ConversationRecord
    payload: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", encode(self.record, "a conversation"))


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Store a new entry."""

    record: Entry
    payload: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", encode(self.record, f"the entry {self.record.kind}"))


@dataclass(frozen=True, slots=True)
class PutTask:
    """Store a task, or replace the stored record of that id."""

    record: TaskRecord
    payload: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", encode(self.record, f"the task {self.record.kind}"))


@dataclass(frozen=True, slots=True)
class PutSubmission:
    """Store a submission, or replace the stored record of that id."""

    record: SubmissionRecord
    payload: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", encode(self.record, "a submission"))


@dataclass(frozen=True, slots=True)
class CreateDocument:
    """Start an incarnation with a base. ``record.created_at`` is overwritten with the sequence of this commit.

    At most one document lives at one address: kind, scope, scope id and key.
    """

    record: DocumentRecord
    version: int
    value: JsonValue
    payload: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        encode(self.record, "a document")
        object.__setattr__(self, "payload", encode(self.value, f"the document {self.record.kind}"))


@dataclass(frozen=True, slots=True)
class ChangeDocument:
    """Change a live document: by a base (``value``, with ``ops`` empty) or by a delta (``ops``).

    ``latest`` documents (``record.history``) may lose what lies before their newest base; rewindable ones keep it.
    """

    record: DocumentRecord
    version: int
    ops: Sequence[Op] = ()
    value: JsonValue = None
    payload: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        what = f"the document {self.record.kind}"
        object.__setattr__(self, "payload", encode(list(self.ops) if self.ops else self.value, what))


@dataclass(frozen=True, slots=True)
class CopyDocument:
    """Start an incarnation with another's value: at the end of commit ``at``, or as it is now when ``at`` is None.

    "Now" includes what stands before it in the same batch.
    """

    source: DocumentId
    record: DocumentRecord
    at: int | None = None

    def __post_init__(self) -> None:
        encode(self.record, "a document")


@dataclass(frozen=True, slots=True)
class RetireDocument:
    """End an incarnation with this commit."""

    id: DocumentId


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """An invocation of a task starts with this commit (engine.md, rule 1.10)."""

    task: TaskId
    phase: str


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The open attempt of a task ends with this commit. Nothing happens when it has none: it was cut off before."""

    task: TaskId
    end: AttemptEnd


BatchItem: TypeAlias = (
    PutConversation
    | PutEntry
    | PutTask
    | PutSubmission
    | CreateDocument
    | ChangeDocument
    | CopyDocument
    | RetireDocument
    | StartAttempt
    | EndAttempt
)


# -- what reads return -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a scan; ``next`` is the cursor of the following page, ``None`` at the end."""

    items: list[T]
    next: int | None = None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A materialised document: its value, the version of the class that wrote it, the sequence of its newest change,
    and how many deltas lie behind it since its base."""

    record: DocumentRecord
    version: int
    value: JsonValue
    seq: int
    deltas: int


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """The sequence, time and life of one commit."""

    seq: int
    at: float
    life: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that changed after a sequence, each record in its newest form, up to commit ``seq``."""

    seq: int
    conversations: list[ConversationRecord]
    entries: list[Entry]
    tasks: list[TaskRecord]
    submissions: list[SubmissionRecord]
    documents: list[StoredDocument]
    retired: list[DocumentRecord]


@runtime_checkable
class Storage(Protocol):
    """One opened storage. ``name`` is what errors and people call it: a path or ``:memory:``.

    ``life`` is the opening that this object is; the backend wrote it in its own opening step (engine.md, rule 1.10).
    ``last_seq`` is the sequence of the newest settled commit, 0 when there is none.
    """

    name: str
    life: Life
    last_seq: int

    def mint_id(self) -> int:
        """The next id of the storage's one namespace. An id that is never stored may be given again after a reopen."""
        ...

    async def commit(self, batch: Iterable[BatchItem], *, at: float | None = None) -> int:
        """Store a batch atomically and return its sequence. ``at`` is its time, the backend's clock when not given."""
        ...

    # -- look-ups ---------------------------------------------------------------------------------------------------

    async def conversation(self, id: int) -> ConversationRecord | None: ...
    async def entry(self, id: int) -> Entry | None: ...
    async def task(self, id: int) -> TaskRecord | None: ...
    async def submission(self, id: int) -> SubmissionRecord | None: ...
    async def submission_by_request(self, conversation: int, request_id: str) -> SubmissionRecord | None: ...

    async def latest_head(self, conversation: int, *, max_id: int | None = None) -> Entry | None:
        """The newest entry of this conversation alone (not its parents) that carries a head, up to ``max_id``."""
        ...

    async def entry_commit(self, id: int) -> CommitInfo | None:
        """The commit that wrote an entry."""
        ...

    # -- scans: by id, which is by creation --------------------------------------------------------------------------

    async def scan_conversations(
        self,
        *,
        owner_task: int | None = None,
        owner_conversation: int | None = None,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[ConversationRecord]: ...

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
        """Entries of one conversation (not its parents) or of all. Bounds are inclusive."""
        ...

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
    ) -> Page[TaskRecord]: ...

    async def scan_submissions(
        self,
        *,
        conversation: int | None = None,
        status: SubmissionStatus | Sequence[SubmissionStatus] | None = None,
        order: Order = "ascending",
        limit: int = 100,
        cursor: int | None = None,
    ) -> Page[SubmissionRecord]: ...

    async def scan_commits(self, *, after: int = 0, order: Order = "ascending", limit: int = 1000) -> Page[CommitInfo]:
        """Commits with a sequence greater than ``after``; the cursor to go on is the last sequence."""
        ...

    # -- documents ---------------------------------------------------------------------------------------------------

    async def find_document(
        self,
        kind: str,
        scope: DocumentScope,
        scope_id: int | None = None,
        key: str | None = None,
        *,
        at: int | None = None,
    ) -> DocumentRecord | None:
        """The live incarnation at this address, or the one that was live at the end of commit ``at``."""
        ...

    async def document(self, id: int, *, at: int | None = None) -> StoredDocument | None:
        """A document as it is, or as it was at the end of commit ``at``; ``None`` when it did not live then.

        Without ``at``, a retired document is given as it was last. Raises ``StorageRequestError`` for a point that a
        ``latest`` document no longer keeps.
        """
        ...

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
    ) -> Page[DocumentRecord]: ...

    # -- history and life --------------------------------------------------------------------------------------------

    async def changes(self, after: int) -> Changes:
        """What changed after commit ``after``: the commit feed (engine.md, section 14)."""
        ...

    async def lives(self) -> list[Life]:
        """Every opening, oldest first; this one is the last."""
        ...

    async def attempts(self, *, task: int | None = None) -> list[Attempt]:
        """Every attempt, or those of one task, in the order in which they started."""
        ...

    async def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the live storage to a new path."""
        ...

    async def close(self, *, ended: Literal["closed", "failed"] = "closed") -> None:
        """End this life, release the owner lock and stop. Closing twice is allowed."""
        ...
