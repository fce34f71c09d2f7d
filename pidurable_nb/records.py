"""What is stored: the records of engine.md, section 2.

Every record is immutable. Ids of everything come from one growing namespace per storage and are never reused
(engine.md, rule 1.4); instants are epoch seconds on the harness clock.
"""

from __future__ import annotations

from typing import Annotated, Literal, NewType, TypeAlias

from pydantic import Field

from .messages import Message
from .values import JsonValue, Value

ConversationId = NewType("ConversationId", int)
EntryId = NewType("EntryId", int)
TaskId = NewType("TaskId", int)
SubmissionId = NewType("SubmissionId", int)
DocumentId = NewType("DocumentId", int)

ROOT = ConversationId(1)
"""The id of the root conversation."""


# -- conversations and entries ---------------------------------------------------------------------------------------


class ForkPoint(Value):
    """Where a conversation was forked: it sees its parent's entries through ``at``."""

    conversation: ConversationId
    at: EntryId


class ConversationOwner(Value):
    """The task whose work a conversation is."""

    conversation: ConversationId
    task: TaskId


class ConversationRecord(Value):
    """A transcript. ``parent`` says what history it inherits, ``owner`` whose work it is."""

    id: ConversationId
    parent: ForkPoint | None = None
    owner: ConversationOwner | None = None


class EntryEdit(Value):
    """A change of what the model reads in place of an earlier entry; the entry itself stays as it is."""

    target: EntryId
    action: Literal["omit", "replace"] = "omit"
    messages: tuple[Message, ...] = ()


class Entry(Value):
    """One immutable record of a transcript. ``head`` names the entry from which the model's context now starts."""

    id: EntryId
    conversation_id: ConversationId
    kind: str
    messages: tuple[Message, ...] = ()
    data: JsonValue = None
    head: EntryId | None = None
    edits: tuple[EntryEdit, ...] = ()
    by_task: TaskId | None = None

    @property
    def text(self) -> str:
        """The text of its messages, joined by line breaks."""
        return "\n".join(text for message in self.messages if (text := message.text))


# -- submissions -----------------------------------------------------------------------------------------------------

SubmissionType: TypeAlias = Literal["input", "write", "continue"]
SubmissionStatus: TypeAlias = Literal["queued", "placed", "done", "unanswered"]


class SubmissionRecord(Value):
    """An input or a passive write handed to a conversation, and what became of it (engine.md, section 9).

    ``digest`` identifies its content, so that a request id used for other content is noticed.
    """

    id: SubmissionId
    conversation_id: ConversationId
    type: SubmissionType
    status: SubmissionStatus
    request_id: str | None = None
    entry: EntryId | None = None
    answer: EntryId | None = None
    reason: str | None = None
    detail: JsonValue = None
    digest: str | None = None

    @property
    def settled(self) -> bool:
        """Whether it is ``done`` or ``unanswered``."""
        return self.status in ("done", "unanswered")


# -- tasks -----------------------------------------------------------------------------------------------------------


class ErrorInfo(Value):
    """An error as it is stored: text for people, and JSON for programs."""

    message: str
    detail: JsonValue = None


class Completed(Value):
    """The task did its work; ``result`` is plain JSON."""

    result: JsonValue = None
    status: Literal["completed"] = "completed"


class Failed(Value):
    """The task decided that it failed."""

    error: ErrorInfo
    result: JsonValue = None
    status: Literal["failed"] = "failed"


class Aborted(Value):
    """The task was aborted and its abort handler ended it."""

    reason: str | None = None
    result: JsonValue = None
    status: Literal["aborted"] = "aborted"


class Orphaned(Value):
    """The task was aborted while its code was missing; ``reason`` is why it was blocked."""

    reason: str
    status: Literal["orphaned"] = "orphaned"


class Faulted(Value):
    """The task's code broke: it raised, did nothing, or was cut off too often."""

    error: ErrorInfo
    status: Literal["faulted"] = "faulted"


Outcome: TypeAlias = Annotated[Completed | Failed | Aborted | Orphaned | Faulted, Field(discriminator="status")]

Checkpoint: TypeAlias = dict[str, JsonValue]
"""A stored phase: ``{"phase": name, ...fields}`` without absent fields."""

WaitPolicy: TypeAlias = Literal["all_settled", "fail_fast"]


class Pending(Value):
    """Ready to be reserved."""

    checkpoint: Checkpoint
    status: Literal["pending"] = "pending"


class Running(Value):
    """Reserved by an invocation of this process, or of one that died."""

    checkpoint: Checkpoint
    status: Literal["running"] = "running"


class Waiting(Value):
    """Waits for other tasks or a signal, at the longest until an instant, then goes on at the checkpoint."""

    checkpoint: Checkpoint
    on: tuple[TaskId, ...]
    policy: WaitPolicy = "all_settled"
    signal: str | None = None
    until: float | None = None
    status: Literal["waiting"] = "waiting"


class Sleeping(Value):
    """Sleeps until an instant, then goes on at the checkpoint."""

    checkpoint: Checkpoint
    until: float
    status: Literal["sleeping"] = "sleeping"


class Completing(Value):
    """Reached an outcome and waits for its owned work to drain."""

    outcome: Outcome
    status: Literal["completing"] = "completing"


class Terminal(Value):
    """Ended: the record is now the receipt."""

    outcome: Outcome
    status: Literal["terminal"] = "terminal"


TaskState: TypeAlias = Annotated[
    Pending | Running | Waiting | Sleeping | Completing | Terminal, Field(discriminator="status")
]
TaskStatus: TypeAlias = Literal["pending", "running", "waiting", "sleeping", "completing", "terminal"]


class TaskRecord(Value):
    """A durable state machine (engine.md, sections 2 and 7). ``owner`` is a task, or ``None`` for its conversation."""

    id: TaskId
    conversation_id: ConversationId
    kind: str
    version: int
    state: TaskState
    input: JsonValue = None
    owner: TaskId | None = None
    background: bool = False
    abort_requested: bool = False
    abort_reason: Literal["restart"] | None = None
    abandon_on_restart: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    restarts: int = 0
    memos: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        return self.state.status == "terminal"


def outcome_of_task(record: TaskRecord) -> Outcome | None:
    """The outcome of a task that has one, held or final."""
    state = record.state
    return state.outcome if isinstance(state, Completing | Terminal) else None


def checkpoint_of_task(record: TaskRecord) -> Checkpoint | None:
    """The checkpoint of a task that has one."""
    state = record.state
    return None if isinstance(state, Completing | Terminal) else state.checkpoint


# -- documents -------------------------------------------------------------------------------------------------------

DocumentScope: TypeAlias = Literal["session", "conversation", "task"]
DocumentHistory: TypeAlias = Literal["latest", "rewindable"]
ForkPolicy: TypeAlias = Literal["initial", "current", "as_of"]


class DocumentRecord(Value):
    """One incarnation of a document: it lives while ``created_at <= seq < retired_at``.

    ``scope_id`` is the conversation or the task, ``None`` for the session; ``key`` the member of a family.
    """

    id: DocumentId
    kind: str
    scope: DocumentScope
    created_at: int
    scope_id: int | None = None
    key: str | None = None
    history: DocumentHistory = "latest"
    fork: ForkPolicy = "initial"
    retired_at: int | None = None


# -- lives and attempts ----------------------------------------------------------------------------------------------

AttemptEnd: TypeAlias = Literal["parked", "ended", "cut_off"]


class Life(Value):
    """One opening of a storage (engine.md, rule 1.10).

    ``kernel`` is the Jupyter kernel's id where there is one. ``ended`` is ``closed`` when the owner closed it,
    ``failed`` when a storage error ended it, and ``None`` while it is open, or for ever when its process died;
    ``last_commit`` and ``last_commit_at`` are the sequence and time of its newest commit.
    """

    id: int
    pid: int
    host: str
    opened_at: float
    kernel: str | None = None
    last_commit: int | None = None
    last_commit_at: float | None = None
    ended: Literal["closed", "failed"] | None = None
    ended_at: float | None = None


class Attempt(Value):
    """One invocation of a task, written in the commits that reserve it and that park or end it (engine.md, rule 1.10).

    ``phase`` is where it started. ``end`` is ``parked`` when the task waits, sleeps or goes back to pending, ``ended``
    when it reached its outcome, and ``cut_off`` when a later opening found it still running; ``None`` while it runs.
    """

    task: TaskId
    life: int
    phase: str
    started_at: float
    ended_at: float | None = None
    end: AttemptEnd | None = None
