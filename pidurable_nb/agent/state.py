"""The engine's own documents: what runs, what waits, what was spent, and with what a conversation runs.

``LiveState`` (``pi.live``) shows the present of a conversation and is empty when nothing runs; ``InboxState``
(``pi.inbox``) holds what waits; ``UsageState`` (``pi.usage``) counts; ``AgentState`` (``pi.agent``) stores names only;
``ProviderState`` (``pi.provider``) keeps the provider's session id (engine.md, sections 2, 9, 10 and 11).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ..messages import AssistantMessage, ContentBlock, Message, Usage
from ..patch import Op
from ..records import ConversationId, EntryEdit, EntryId, SubmissionId, SubmissionType, TaskId
from ..session import Document
from ..session.documents import DELTAS_PER_BASE
from ..values import JsonValue, Value


class OutputSpec(Value):
    """The form of a typed answer: a JSON Schema of an object. ``wrapped`` when the value is its field ``value``."""

    parameters: dict[str, JsonValue]
    wrapped: bool = False


class LiveRun(Value):
    """The run that is going on: its present generation task, its inputs, its finished turns, its first entry."""

    task: TaskId
    first: EntryId
    inputs: tuple[SubmissionId, ...] = ()
    turns: int = 0
    after_run: bool = False
    output: OutputSpec | None = None
    spent: Usage = Field(default_factory=Usage)


class LiveRetry(Value):
    """A request that failed and is tried again at an instant."""

    at: float
    error: str


class LiveDeferred(Value):
    """A request whose answer comes later; ``at`` is when it is asked for next."""

    at: float
    model: str


class LiveGeneration(Value):
    """The request that is going on; ``message`` is the committed part of its answer."""

    attempt: int = 1
    model: str | None = None
    started_at: float | None = None
    message: AssistantMessage | None = None
    retry: LiveRetry | None = None
    deferred: LiveDeferred | None = None


class Diagnostic(Value):
    """A remark of or about a tool: shown to the model in one closing block, and stored as data."""

    message: str
    severity: Literal["info", "warn", "error"] = "info"
    code: str | None = None


class LiveTool(Value):
    """A tool call that is going on or has just ended. ``call`` is the provider's call id, ``entry`` its result."""

    call: str
    name: str
    task: TaskId
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    status: Literal["pending", "running", "done"] = "pending"
    replay: Literal["safe", "unsafe"] | None = None
    started_at: float | None = None
    output: str = ""
    dropped_chars: int = 0
    dropped_lines: int = 0
    details: JsonValue = None
    diagnostics: tuple[Diagnostic, ...] = ()
    entry: EntryId | None = None


class LiveApproval(Value):
    """A call that waits for a person; ``call`` is what ``Conversation.decide`` takes.

    ``conversation`` is set for a call of a subagent that the run waits for: where the call is.
    """

    call: str
    name: str
    at: float
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    conversation: ConversationId | None = None


class NestedTool(Value):
    """A call that a tool made; ``parent`` is the task of its caller."""

    parent: TaskId
    key: str
    name: str
    task: TaskId
    status: Literal["pending", "running", "done"] = "pending"


class LiveCompaction(Value):
    """A compaction that is going on."""

    task: TaskId
    reason: Literal["manual", "threshold", "overflow"]


class RunFailure(Value):
    """Why the last run ended without an answer, and what a retry goes on from: its first entry, the form of its answer,
    its finished turns and what it spent."""

    reason: str
    first: EntryId
    detail: JsonValue = None
    output: OutputSpec | None = None
    turns: int = 0
    spent: Usage = Field(default_factory=Usage)


class CompactionFailure(Value):
    """Why the last compaction failed."""

    message: str


class LiveState(Document, kind="pi.live", scope="conversation"):
    """What a conversation is doing now; equal to ``LiveState()`` when it is idle."""

    compact_ = True

    @classmethod
    def checkpoint_when(cls, value: dict[str, Any], ops: list[Op], deltas_since_base: int) -> bool:
        """A base holds every nested call: with many of them bases are rarer, so that they do not cost the most."""
        return deltas_since_base >= max(DELTAS_PER_BASE, len(value.get("nested_tools", ())))

    run: LiveRun | None = None
    generation: LiveGeneration | None = None
    tools: tuple[LiveTool, ...] = ()
    nested_tools: tuple[NestedTool, ...] = ()
    approvals: tuple[LiveApproval, ...] = ()
    compactions: tuple[LiveCompaction, ...] = ()
    compaction_failure: CompactionFailure | None = None
    run_failure: RunFailure | None = None


class InboxItem(Value):
    """Something that waits to be placed. Its submission is ``queued``; its content lives here until then."""

    submission: SubmissionId
    type: SubmissionType
    mode: Literal["follow_up", "steer", "write", "reset"]
    content: tuple[ContentBlock, ...] = ()
    kind: str | None = None
    data: JsonValue = None
    messages: tuple[Message, ...] = ()
    head: EntryId | Literal["self"] | None = None
    edits: tuple[EntryEdit, ...] = ()
    handoff: str | None = None
    output: OutputSpec | None = None
    submitted_at: float | None = None


class InboxState(Document, kind="pi.inbox", scope="conversation"):
    """What waits in a conversation, oldest first."""

    compact_ = True

    items: tuple[InboxItem, ...] = ()


class UsageState(Document, kind="pi.usage", scope="conversation"):
    """Tokens and cost: per model and per tool."""

    compact_ = True

    models: dict[str, Usage] = Field(default_factory=dict)
    tools: dict[str, Usage] = Field(default_factory=dict)
    requests: int = 0

    @property
    def total(self) -> Usage:
        """Everything together."""
        total = Usage()
        for usage in (*self.models.values(), *self.tools.values()):
            total = total + usage
        return total


class AgentState(Document, kind="pi.agent", scope="conversation", history="rewindable", fork="as_of"):
    """What a conversation chose to run with, by name; ``None`` follows the settings (engine.md, section 10)."""

    compact_ = True

    model: str | None = None
    thinking: str | None = None
    extensions: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    model_tools: tuple[str, ...] | None = None
    instructions: str | None = None
    cwd: str | None = None


class ProviderState(Document, kind="pi.provider", scope="conversation"):
    """The id under which a provider keeps its caches of this conversation."""

    compact_ = True

    session_id: str = ""
