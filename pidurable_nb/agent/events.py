"""Agent events: what happens in a conversation, as deltas, commit by commit (engine.md, section 14).

Events derive from commits and from nothing else: each commit gives one tuple of them, in a fixed order. Text and output
come as what was added; a late joiner starts from a snapshot, and one that falls too far behind gets a new one.

The order within a commit follows how a run goes: first what goes on or ends, from the inside out (the message, the
tools, the turn, its submissions, the run), then what begins (the entries that were placed, the run, the turn).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..messages import AssistantMessage, Usage
from ..records import ConversationId, Entry, EntryId, Outcome, SubmissionId, SubmissionRecord, TaskId, outcome_of_task
from ..session import Address, Publication, Watch
from ..session.documents import instance_of
from ..session.watch import MAX_FRAMES
from ..values import JsonValue, Value
from .conversation import ConversationView
from .state import (
    AgentState,
    CompactionFailure,
    InboxItem,
    InboxState,
    LiveCompaction,
    LiveState,
    LiveTool,
    RunFailure,
    UsageState,
)

if TYPE_CHECKING:
    from .harness import Harness


class Snapshot(Value):
    """The whole conversation: for a watcher that fell too far behind."""

    view: ConversationView
    type: Literal["snapshot"] = "snapshot"


class RunStart(Value):
    """A run began, at the entry ``first``."""

    task: TaskId
    inputs: tuple[SubmissionId, ...]
    first: EntryId
    type: Literal["run_start"] = "run_start"


class RunEnd(Value):
    """A run ended; ``failure`` says why when it has no answer."""

    task: TaskId
    answer: EntryId | None = None
    failure: RunFailure | None = None
    type: Literal["run_end"] = "run_end"


class TurnStart(Value):
    """A turn began: ``task`` is its generation, ``turn`` counts from 1 within the run."""

    task: TaskId
    turn: int
    type: Literal["turn_start"] = "turn_start"


class TurnEnd(Value):
    """A turn ended."""

    task: TaskId
    turn: int
    type: Literal["turn_end"] = "turn_end"


class MessageStart(Value):
    """An answer began to arrive."""

    task: TaskId
    attempt: int
    model: str | None = None
    type: Literal["message_start"] = "message_start"


class MessageUpdate(Value):
    """What an answer grew by: ``text`` and ``thinking`` are added to what came before."""

    task: TaskId
    text: str = ""
    thinking: str = ""
    type: Literal["message_update"] = "message_update"


class MessageEnd(Value):
    """A message was stored: an answer, one that calls tools, a failed attempt, or one that was cut off."""

    task: TaskId | None
    entry: Entry
    type: Literal["message_end"] = "message_end"


class ToolStart(Value):
    """A call was asked for."""

    call: str
    name: str
    arguments: dict[str, JsonValue]
    task: TaskId
    type: Literal["tool_start"] = "tool_start"


class ToolUpdate(Value):
    """A call goes on: ``output`` was added, or with ``reset`` replaces what came before; ``details`` as they are."""

    call: str
    task: TaskId
    status: Literal["pending", "running", "done"]
    output: str = ""
    reset: bool = False
    details: JsonValue = None
    type: Literal["tool_update"] = "tool_update"


class ToolEnd(Value):
    """A call has its result."""

    call: str
    name: str
    task: TaskId
    entry: EntryId
    is_error: bool
    type: Literal["tool_end"] = "tool_end"


class CompactionStart(Value):
    """A compaction began."""

    task: TaskId
    reason: str
    type: Literal["compaction_start"] = "compaction_start"


class CompactionEnd(Value):
    """A compaction ended; ``failure`` says why it came to nothing."""

    task: TaskId
    failure: CompactionFailure | None = None
    type: Literal["compaction_end"] = "compaction_end"


class Retry(Value):
    """A request failed and is tried again at an instant."""

    at: float
    error: str
    attempt: int
    type: Literal["retry"] = "retry"


class Deferred(Value):
    """The answer comes later; the provider is asked for it at an instant."""

    at: float
    model: str
    type: Literal["deferred"] = "deferred"


class InboxChange(Value):
    """The inbox changed."""

    added: tuple[InboxItem, ...] = ()
    removed: tuple[SubmissionId, ...] = ()
    type: Literal["inbox"] = "inbox"


class SubmissionChange(Value):
    """A submission was admitted, placed or settled."""

    record: SubmissionRecord
    type: Literal["submission"] = "submission"


class UsageChange(Value):
    """What was spent with this commit, per model and per tool."""

    models: dict[str, Usage] = Field(default_factory=dict)
    tools: dict[str, Usage] = Field(default_factory=dict)
    type: Literal["usage"] = "usage"


class AgentChanged(Value):
    """The conversation runs with something else from now on."""

    agent: AgentState
    type: Literal["agent"] = "agent"


class EntryAdded(Value):
    """An entry that is not an assistant's message: input, system change, tool result, or an application's own."""

    entry: Entry
    type: Literal["entry"] = "entry"


class TaskFailed(Value):
    """A task of the conversation ended otherwise than completed or aborted."""

    task: TaskId
    kind: str
    outcome: Outcome
    type: Literal["task_failed"] = "task_failed"


AgentEvent: TypeAlias = Annotated[
    Snapshot
    | RunStart
    | RunEnd
    | TurnStart
    | TurnEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | ToolStart
    | ToolUpdate
    | ToolEnd
    | CompactionStart
    | CompactionEnd
    | Retry
    | Deferred
    | InboxChange
    | SubmissionChange
    | UsageChange
    | AgentChanged
    | EntryAdded
    | TaskFailed,
    Field(discriminator="type"),
]
"""One event."""


class EventWatch(Watch[tuple[AgentEvent, ...]]):
    """Follow a conversation's events: ``async with conversation.watch_events() as events``, then ``async for batch in
    events``: one tuple per commit. ``events.snapshot`` is the conversation at attachment."""

    def __init__(self, harness: Harness, conversation: ConversationId) -> None:
        super().__init__(self._attach_events, harness._unfollow, lambda batch: [event.to_data() for event in batch])
        self._harness = harness
        self._conversation = conversation
        self.snapshot: ConversationView

    async def _attach_events(self, _watch: Watch[tuple[AgentEvent, ...]]) -> tuple[AgentEvent, ...]:
        harness, id = self._harness, self._conversation
        harness._check_line()
        harness._check_open()
        self.snapshot = self._view = await harness._conversation_view(id)
        harness._follow(self, self._deliver)
        return ()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return (await super().__anext__()).value

    def _deliver(self, publication: Publication) -> None:
        before = self._view
        after = view_after(before, publication)
        batch = tuple(events_of(before, after, publication))
        self._view = after
        if not batch:
            return
        if len(self._frames) >= MAX_FRAMES:
            batch = (Snapshot(after),)
        self._push(batch, [])


_DOCUMENTS = (("agent", AgentState), ("live", LiveState), ("inbox", InboxState), ("usage", UsageState))


def view_after(view: ConversationView, publication: Publication) -> ConversationView:
    """A conversation's view after a commit."""
    changes: dict[str, Any] = {}
    for field, doc in _DOCUMENTS:
        change = publication.documents.get(Address(doc.spec_.kind, view.record.id))
        if change is not None and change.after is not None:
            changes[field] = instance_of(doc, change.after)
    entries = [entry for entry in publication.entries.values() if entry.conversation_id == view.record.id]
    if entries:
        kept = view.entries
        for entry in entries:
            if entry.head is not None:
                kept = tuple(earlier for earlier in kept if earlier.id >= entry.head)
        changes["entries"] = (*kept, *entries)
    return view.replaced(**changes) if changes else view


def events_of(before: ConversationView, after: ConversationView, publication: Publication) -> Iterator[AgentEvent]:
    """The events of one commit, in order."""
    conversation = after.record.id
    old, new = before.live, after.live
    entries = [entry for entry in publication.entries.values() if entry.conversation_id == conversation]
    submissions = [record for record in publication.submissions.values() if record.conversation_id == conversation]
    answers = [entry for entry in entries if _is_answer(entry)]
    run = new.run or old.run
    task = (old.run or new.run).task if run is not None else None  # type: ignore[union-attr]

    if before.agent != after.agent:
        yield AgentChanged(after.agent)
    if before.inbox != after.inbox:
        yield _inbox_change(before.inbox, after.inbox)
    yield from (SubmissionChange(record) for record in submissions if not record.settled)
    ended = old.run is not None and (new.run is None or new.run.first != old.run.first)
    began = new.run is not None and (old.run is None or ended)

    # What ends: the answer's parts, the round of tools, the turn, the run.
    yield from _growth(old, new)
    for entry in answers:
        yield from _ending(old, entry, task)
    yield from _tool_changes(old, new, entries)
    yield from (EntryAdded(entry) for entry in entries if entry.kind == "pi.tool-result")
    yield from _sleeps(old, new)
    yield from _spent(before.usage, after.usage)
    turned = (
        old.run is not None
        and not old.run.after_run  # its last turn has ended before
        and (ended or (new.run is not None and new.run.turns > old.run.turns))
    )
    if turned and old.run is not None:
        yield TurnEnd(old.run.task, old.run.turns + 1)
    yield from (SubmissionChange(record) for record in submissions if record.settled)
    if ended and old.run is not None:
        answer = next((record.answer for record in submissions if record.answer is not None), None)
        if old.run.after_run:  # it was stored before the tasks that followed it
            by = (entry.id for entry in reversed(before.entries) if entry.by_task == task and _is_answer(entry))
            answer = next(by, None)
        yield RunEnd(old.run.task, answer, new.run_failure if new.run is None else None)

    # What begins: the entries that were placed, the run, the turn.
    yield from (EntryAdded(entry) for entry in entries if not _is_answer(entry) and entry.kind != "pi.tool-result")
    if began and new.run is not None:
        yield RunStart(new.run.task, new.run.inputs, new.run.first)
    if new.run is not None and (began or turned) and not new.run.after_run:
        yield TurnStart(new.run.task, new.run.turns + 1)
    yield from _compactions(old, new)
    for record in publication.tasks.values():
        outcome = outcome_of_task(record)
        broke = record.terminal and outcome is not None and outcome.status in ("failed", "faulted", "orphaned")
        if broke and outcome is not None and record.conversation_id == conversation:
            yield TaskFailed(record.id, record.kind, outcome)


def _is_answer(entry: Entry) -> bool:
    return bool(entry.messages) and entry.messages[0].role == "assistant"


def _inbox_change(before: InboxState, after: InboxState) -> InboxChange:
    had = {item.submission for item in before.items}
    has = {item.submission for item in after.items}
    added = tuple(item for item in after.items if item.submission not in had)
    return InboxChange(added, tuple(id for item in before.items if (id := item.submission) not in has))


def _ending(old: LiveState, entry: Entry, task: TaskId | None) -> Iterator[AgentEvent]:
    """The end of a message: what was not shown of it yet, then the message as it is stored."""
    message = entry.messages[0]
    shown = old.generation.message if old.generation is not None else None
    if task is not None and message.role == "assistant" and message.stop_reason != "aborted":
        if shown is None:
            attempt = old.generation.attempt if old.generation is not None else 1
            yield MessageStart(task, attempt, message.model)
        text, thinking = _added(shown, message, "text"), _added(shown, message, "thinking")
        if text or thinking:
            yield MessageUpdate(task, text, thinking)
    yield MessageEnd(task, entry)


def _growth(old: LiveState, new: LiveState) -> Iterator[AgentEvent]:
    message = new.generation.message if new.generation is not None else None
    if message is None or new.run is None or new.generation is None:
        return
    earlier = old.generation.message if old.generation is not None else None
    if earlier is None:
        yield MessageStart(new.run.task, new.generation.attempt, new.generation.model)
    text = _added(earlier, message, "text")
    thinking = _added(earlier, message, "thinking")
    if text or thinking:
        yield MessageUpdate(new.run.task, text, thinking)


def _added(before: AssistantMessage | None, after: AssistantMessage, kind: str) -> str:
    """The text of a kind that was added; blocks of text follow each other without a break, as in the stream."""
    old = "" if before is None else "".join(b.text for b in before.content if b.type == kind)  # type: ignore[union-attr]
    new = "".join(b.text for b in after.content if b.type == kind)  # type: ignore[union-attr]
    return new[len(old) :]


def _tool_changes(old: LiveState, new: LiveState, entries: list[Entry]) -> Iterator[AgentEvent]:
    known = {tool.task: tool for tool in old.tools}
    errors = {entry.id: entry.messages[0].is_error for entry in entries if entry.kind == "pi.tool-result"}  # type: ignore[union-attr]
    for tool in new.tools:
        earlier = known.get(tool.task)
        if earlier is None:
            yield ToolStart(tool.call, tool.name, tool.arguments, tool.task)
            earlier = LiveTool(call=tool.call, name=tool.name, task=tool.task)
        changed = (earlier.status, earlier.output, earlier.details) != (tool.status, tool.output, tool.details)
        if changed and tool.entry is None:
            grew = tool.output.startswith(earlier.output)
            yield ToolUpdate(
                tool.call,
                tool.task,
                tool.status,
                tool.output[len(earlier.output) :] if grew else tool.output,
                not grew,
                tool.details,
            )
        if tool.entry is not None and earlier.entry is None:
            yield ToolEnd(tool.call, tool.name, tool.task, tool.entry, errors.get(tool.entry, False))


def _sleeps(old: LiveState, new: LiveState) -> Iterator[AgentEvent]:
    generation = new.generation
    earlier = old.generation
    if generation is None:
        return
    if generation.retry is not None and (earlier is None or earlier.retry != generation.retry):
        yield Retry(generation.retry.at, generation.retry.error, generation.attempt)
    if generation.deferred is not None and (earlier is None or earlier.deferred != generation.deferred):
        yield Deferred(generation.deferred.at, generation.deferred.model)


def _spent(before: UsageState, after: UsageState) -> Iterator[AgentEvent]:
    models = _difference(before.models, after.models)
    tools = _difference(before.tools, after.tools)
    if models or tools:
        yield UsageChange(models, tools)


def _difference(before: dict[str, Usage], after: dict[str, Usage]) -> dict[str, Usage]:
    return {
        name: Usage(
            input_tokens=usage.input_tokens - earlier.input_tokens,
            output_tokens=usage.output_tokens - earlier.output_tokens,
            cache_read_tokens=usage.cache_read_tokens - earlier.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens - earlier.cache_write_tokens,
            cost=usage.cost - earlier.cost,
        )
        for name, usage in after.items()
        if usage != (earlier := before.get(name, Usage()))
    }


def _compactions(old: LiveState, new: LiveState) -> Iterator[AgentEvent]:
    had: dict[TaskId, LiveCompaction] = {item.task: item for item in old.compactions}
    has = {item.task: item for item in new.compactions}
    for task in had:
        if task not in has:
            failed = new.compaction_failure if new.compaction_failure != old.compaction_failure else None
            yield CompactionEnd(task, failed)
    for task, item in has.items():
        if task not in had:
            yield CompactionStart(task, item.reason)
