"""What the model reads: the entries in range and the messages derived from them (engine.md, section 5).

A *context* is kept in memory for each conversation in use and extended by each commit; it never rereads its history.
The messages before the last unanswered tool call never change again until a head or an edit arrives, so they are
derived once (the *settled* part) and only the rest is derived at each request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ..messages import AssistantMessage, Message, TextBlock, ToolDeclaration, ToolResultMessage
from ..records import Entry, EntryEdit

LEFT_OUT = ("aborted", "error", "deferred")
"""Stop reasons of assistant messages that stay out of what the model reads."""

MISSING_RESULT = "The call was interrupted before it gave a result."


@dataclass(frozen=True)
class ContextView:
    """What a request reads: the entry that set the head, every entry in range, and the messages for the model."""

    head: Entry | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolDeclaration, ...] = ()


@dataclass(slots=True)
class Shown:
    """The prompt as the transcript tells it: section texts and tool declarations since the head.

    ``baseline`` says that a head came and no system message after it: the next one restates everything.
    """

    head: Entry | None = None
    sections: dict[str, str] = field(default_factory=dict)
    tools: dict[str, ToolDeclaration] = field(default_factory=dict)
    baseline: bool = False

    def __post_init__(self) -> None:
        self.baseline = self.head is not None

    def extend(self, entry: Entry, messages: Sequence[Message] | None = None) -> None:
        """Take an entry in; ``messages`` are what an edit made of its own."""
        if self.head is not None and entry.id <= self.head.id:
            return
        for message in entry.messages if messages is None else messages:
            if message.role == "system":
                self.baseline = False
                for key, text in message.sections.items():
                    if text is None:
                        self.sections.pop(key, None)
                    else:
                        self.sections[key] = text
                for name in message.tools_removed:
                    self.tools.pop(name, None)
                for tool in message.tools_added:
                    self.tools[tool.name] = tool


def derive(head: Entry | None, entries: Sequence[Entry]) -> tuple[Message, ...]:
    """The messages of the entries in range, by the five rules of engine.md, section 5."""
    return tuple(_lead(_order(_edited(head, entries)), _baseline(head, entries)))


def _baseline(head: Entry | None, entries: Sequence[Entry]) -> Message | None:
    """The first system message that was written after the head."""
    if head is not None:
        edits = _edits(entries)
        for entry in entries:
            if entry.id > head.id:
                for message in _messages_of(entry, edits.get(entry.id)):
                    if message.role == "system":
                        return message
    return None


def _edits(entries: Sequence[Entry]) -> dict[int, EntryEdit]:
    """Rule 1: the newest edit of each target. The head lies in its own range, so its edits are among them."""
    return {edit.target: edit for entry in entries for edit in entry.edits}


def _messages_of(entry: Entry, edit: EntryEdit | None) -> Sequence[Message]:
    if edit is None:
        return entry.messages
    return edit.messages if edit.action == "replace" else ()


def read_entries(head: Entry | None, entries: Sequence[Entry]) -> Iterator[tuple[Entry, list[Message]]]:
    """The entries that are read, the head first, each with what is read of it: rules 1, 2 and 4 of section 5.

    Edits are applied; entries that carry a head and unfinished answers are left out.
    """
    edits = _edits(entries)
    for entry in chain(() if head is None else (head,), (entry for entry in entries if entry.head is None)):
        yield (
            entry,
            [
                message
                for message in _messages_of(entry, edits.get(entry.id))
                if message.role != "assistant" or message.stop_reason not in LEFT_OUT
            ],
        )


def _edited(head: Entry | None, entries: Sequence[Entry]) -> list[Message]:
    """Rules 1, 2 and 4: edits applied, entries that carry a head left out, unfinished answers left out."""
    return [message for _, messages in read_entries(head, entries) for message in messages]


def _order(messages: Iterable[Message]) -> list[Message]:
    """Rule 3: results follow their call directly, in call order; missing ones are made up, stray ones dropped."""
    ordered: list[Message] = []
    waiting: AssistantMessage | None = None
    results: dict[str, ToolResultMessage] = {}
    between: list[Message] = []

    def flush() -> None:
        nonlocal waiting
        if waiting is not None:
            for call in waiting.tool_calls:
                found = results.get(call.id)
                ordered.append(
                    found
                    or ToolResultMessage(
                        content=[TextBlock(MISSING_RESULT)], call_id=call.id, tool_name=call.name, is_error=True
                    )
                )
            ordered.extend(between)
            waiting = None
            results.clear()
            between.clear()

    for message in messages:
        if message.role == "assistant":
            flush()
            ordered.append(message)
            if message.tool_calls:
                waiting = message
        elif message.role == "tool_result":
            if waiting is not None and any(call.id == message.call_id for call in waiting.tool_calls):
                results.setdefault(message.call_id, message)
        elif waiting is not None:
            between.append(message)
        else:
            ordered.append(message)
    flush()
    return ordered


def _lead(messages: list[Message], baseline: Message | None) -> list[Message]:
    """Rule 5: the first system message leads when only user messages precede it, or as the baseline after a head."""
    for index, message in enumerate(messages):
        if message.role == "system":
            if index and (message is baseline or all(earlier.role == "user" for earlier in messages[:index])):
                return [message, *messages[:index], *messages[index + 1 :]]
            return messages
    return messages


class ConversationContext:
    """The context of one conversation, extended entry by entry."""

    def __init__(self, head: Entry | None, entries: list[Entry]) -> None:
        self._start(head, entries)

    def _start(self, head: Entry | None, entries: list[Entry]) -> None:
        self.head = head
        self.entries = entries
        self._settled: list[Message] = []
        self._settled_entries = 0
        self._view: ContextView | None = None
        self._shown = Shown(head)
        edits = _edits(entries)
        for entry in entries:
            self._shown.extend(entry, _messages_of(entry, edits.get(entry.id)))

    @property
    def last_id(self) -> int:
        return self.entries[-1].id if self.entries else 0

    def extend(self, entry: Entry) -> bool:
        """Take a new entry in. ``False`` when its head lies outside what is loaded: the context must be read anew."""
        if entry.head is not None:
            if entry.head != entry.id and (not self.entries or entry.head < self.entries[0].id):
                return False
            kept = [earlier for earlier in self.entries if earlier.id >= entry.head]
            self._start(entry, [*kept, entry])
            return True
        self.entries.append(entry)
        if entry.edits:
            self._start(self.head, self.entries)
        else:
            self._shown.extend(entry)
        self._view = None
        return True

    @property
    def shown(self) -> Shown:
        return self._shown

    def view(self) -> ContextView:
        """The context as it is now."""
        if self._view is None:
            tools = tuple(self._shown.tools.values())
            self._view = ContextView(self.head, tuple(self.entries), self._messages(), tools)
        return self._view

    def view_at(self, at: int) -> ContextView:
        """The context without what came after entry ``at``, which must lie in range and after the head."""
        if at >= self.last_id:
            return self.view()
        return ConversationContext(self.head, [entry for entry in self.entries if entry.id <= at]).view()

    def _messages(self) -> tuple[Message, ...]:
        if self._settled:
            read = _edited(None, self.entries[self._settled_entries :])
            messages = (*self._settled, *_order(read))
        else:
            read = _edited(self.head, self.entries)
            messages = tuple(_lead(_order(read), _baseline(self.head, self.entries)))
        # Once something other than a user message leads (after a head: a system message), the order of what is there
        # is final; an edit or a head starts over in `extend`.
        decisive = ("system",) if self.head is not None else ("system", "assistant")
        if _closed(read) and any(message.role in decisive for message in messages):
            self._settled = list(messages)
            self._settled_entries = len(self.entries)
        return messages


def _closed(messages: Sequence[Message]) -> bool:
    """Whether every tool call in these messages has its result in them."""
    results: set[str] = set()
    for message in reversed(messages):  # calls before the last answer got their results, or made-up ones, before it
        if message.role == "assistant":
            return all(call.id in results for call in message.tool_calls)
        if message.role == "tool_result":
            results.add(message.call_id)
    return True
