"""A conversation as its live widget shows it (notebook.md, "Live widgets", 2).

A *talk* is the newest part of a transcript with what is going on, what waits, and what was spent. It is made of
*blocks*: one for each entry, and one for the response that is being made. The results of tools stand in the cards of
their calls. A block has a key that stays when its response is stored, so that a page keeps what is on screen, and what
was streamed is not sent again.

``talk_view`` is pure: committed state goes in, the view comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ..agent.conversation import ConversationView
from ..agent.state import InboxItem, LiveState
from ..messages import AssistantMessage, ToolResultMessage, text_of
from ..records import Entry
from ..values import Value
from .present import answer_items, approval_words, results_of, stopping_words, transcript_view
from .view import (
    AnswerStatus,
    AnswerView,
    Badge,
    TranscriptEntry,
    View,
    clean_output,
    clip,
    clock_time,
    plural,
)

__all__ = ["Block", "Chip", "TalkState", "TalkView", "talk_view"]

TalkState: TypeAlias = Literal["idle", "running", "retrying", "deferred", "waiting", "paused", "failed", "over"]

_BADGES: dict[str, Badge] = {
    "idle": Badge("✓", "ready", "good"),
    "running": Badge("◐", "answering", "active"),
    "retrying": Badge("↻", "retrying", "warn"),
    "deferred": Badge("◷", "at the provider", "active"),
    "waiting": Badge("!", "waits for you", "warn"),
    "paused": Badge("!", "paused", "warn"),
    "failed": Badge("✕", "no answer", "bad"),
    "over": Badge("○", "closed", "muted"),
}

_MODES = {"follow_up": "follows", "steer": "steers", "write": "note", "reset": "new context"}

TEXT_LIMIT = 20_000
"""Characters of an entry that is no answer; the record keeps all of it."""


class Block(Value):
    """One entry as people read it, or the response that is going on, which has no ``said`` yet.

    A response has its parts in ``answer``; every other entry has its text in ``said``. ``task`` is what wrote it.
    """

    key: str
    said: TranscriptEntry | None = None
    answer: AnswerView | None = None
    task: int | None = None

    @property
    def who(self) -> str:
        return self.said.who if self.said is not None else "answer"

    @property
    def facts(self) -> tuple[str, ...]:
        """What stands beside the name: its id, its model, its time, and how it ended if not well."""
        if self.said is not None:
            return self.said.facts
        return (self.answer.model,) if self.answer is not None and self.answer.model else ()

    def wire(self) -> dict[str, Any]:
        """The form that a page gets."""
        said, answer = self.said, self.answer
        text = "" if answer is not None or said is None else said.text
        where = f"%durable show {said.id}" if said is not None else None
        return {
            "role": "assistant" if said is None else said.role,
            "who": clean_output(self.who),
            "facts": [clean_output(fact) for fact in self.facts],
            "entry": None if said is None else said.id,
            "task": self.task,
            "text": clip(text if said is None or said.role == "user" else clean_output(text), TEXT_LIMIT, where),
            "struck": said is not None and said.struck and answer is None,
            "items": [] if answer is None else [answer.wire_item(item) for item in answer.items],
        }


class Chip(Value):
    """Something that waits in the inbox: its submission, what it does, and what it says."""

    submission: int
    mode: str
    text: str


class TalkView(View):
    """A conversation at one moment.

    ``name`` is that of a branch. ``earlier`` says that there is more before the first block. ``origin`` is the
    conversation and the entry that it was forked from. ``problem`` says why it waits, failed or is over, ``stopping``
    what a stop waits for; ``writes`` is false where the session is only observed.
    """

    conversation: int
    name: str | None = None
    state: TalkState = "idle"
    blocks: tuple[Block, ...] = ()
    earlier: bool = False
    waiting: tuple[Chip, ...] = ()
    model: str | None = None
    origin: tuple[int, int] | None = None
    problem: str | None = None
    stopping: str | None = None
    writes: bool = True
    started_at: float | None = None
    retry_at: float | None = None
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0

    @property
    def badge(self) -> Badge:
        return _BADGES[self.state]

    @property
    def busy(self) -> bool:
        """Whether a run is going on: what is sent now steers it or follows it."""
        return self.state in ("running", "retrying", "deferred", "waiting")

    @property
    def facts(self) -> tuple[str, ...]:
        """What the header says after the state."""
        where = f"conversation {self.conversation}" if self.name is None else f"branch {self.name}"
        facts = [where, self.model or "no model"]
        if self.origin is not None:
            facts.append(f"forked from {self.origin[0]} at #{self.origin[1]}")
        return tuple(facts)

    @property
    def usage(self) -> tuple[str, ...]:
        """Requests, tokens and cost of the conversation, in words."""
        if not self.requests:
            return ()
        facts = [plural(self.requests, "request"), f"{self.tokens:,} tokens"]
        if self.cost:
            facts.append(f"${self.cost:.4f}" if self.cost < 1 else f"${self.cost:,.2f}")
        return tuple(facts)

    def wire(self, known: dict[str, tuple[Block, dict[str, Any]]] | None = None) -> dict[str, Any]:
        """The form that the widget sends. ``known`` keeps the forms of blocks that do not change, by key."""
        known = {} if known is None else known
        blocks: dict[str, dict[str, Any]] = {}
        for block in self.blocks:
            before = known.get(block.key)
            blocks[block.key] = before[1] if before is not None and before[0] == block else block.wire()
        known.clear()
        known |= {block.key: (block, blocks[block.key]) for block in self.blocks}
        return {
            "order": [block.key for block in self.blocks],
            "blocks": blocks,
            "earlier": self.earlier,
            "state": self.state,
            "badge": list(self.badge),
            "busy": self.busy,
            "writes": self.writes,
            "facts": [clean_output(fact) for fact in self.facts],
            "origin": None if self.origin is None else self.origin[0],
            "problem": None if self.problem is None else clean_output(self.problem),
            "stopping": self.stopping,
            "waiting": [{"id": chip.submission, "mode": chip.mode, "text": chip.text} for chip in self.waiting],
            "usage": list(self.usage),
            "started_at": self.started_at,
            "retry_at": self.retry_at,
        }


def talk_view(
    view: ConversationView,
    entries: Sequence[Entry],
    *,
    earlier: bool = False,
    held: str | None = None,
    stopped: Collection[int] = (),
    stopping: bool = False,
    model: str | None = None,
    over: str | None = None,
    name: str | None = None,
    writes: bool = True,
) -> TalkView:
    """A conversation as it is now. ``entries`` are its newest ones, oldest first; ``earlier`` that there are more.

    ``held`` says why scheduling is held back, ``over`` why the session has ended here. ``stopped`` are the entries of
    inputs whose run a person stopped, ``stopping`` that a stop was heard. ``model`` is the one that answers now,
    ``name`` that of a branch, ``writes`` whether the session may be written to.
    """
    live, parent = view.live, view.record.parent
    generation = live.generation
    state, problem = _state(live, held=held, over=over)
    retry = generation.retry if generation is not None else None
    total = view.usage.total
    return TalkView(
        conversation=view.record.id,
        name=name,
        state=state,
        blocks=tuple(_blocks(entries, live, stopped)),
        earlier=earlier,
        waiting=tuple(_chip(item) for item in view.inbox.items),
        model=model,
        origin=None if parent is None else (parent.conversation, parent.at),
        problem=problem,
        stopping=stopping_words(live) if stopping and live.run is not None else None,
        writes=writes,
        started_at=generation.started_at if generation is not None else None,
        retry_at=retry.at if retry is not None and state == "retrying" else None,
        requests=view.usage.requests,
        tokens=total.total_tokens,
        cost=total.cost,
    )


def _state(live: LiveState, *, held: str | None, over: str | None) -> tuple[TalkState, str | None]:
    if over is not None:
        return "over", over
    if held is not None:
        return "paused", held
    if live.run is None:
        failure = live.run_failure
        if failure is None or failure.reason == "aborted":
            return "idle", None
        why = failure.detail.get("message") if isinstance(failure.detail, dict) else None
        reason = AnswerView(status="unanswered", reason=failure.reason, detail_text=str(why) if why else None)
        return "failed", reason.problem
    if live.approvals:
        return "waiting", approval_words(live.approvals)
    generation = live.generation
    if generation is not None and generation.retry is not None:
        return "retrying", generation.retry.error
    if generation is not None and generation.deferred is not None:
        return "deferred", f"asked for again at {clock_time(generation.deferred.at)}"
    return "running", None


def _chip(item: InboxItem) -> Chip:
    text = text_of(item.content) or " ".join(message.text for message in item.messages) or item.kind or ""
    return Chip(submission=item.submission, mode=_MODES[item.mode], text=clean_output(clip(text, 200)))


def _blocks(entries: Sequence[Entry], live: LiveState, stopped: Collection[int]) -> list[Block]:
    said = transcript_view(entries, stopped=stopped).entries
    results = results_of(entries)
    folded = {entry.id for found in results for entry, _ in found.values()}
    newest = max((i for i, entry in enumerate(entries) if _response(entry) is not None), default=-1)
    tools = {tool.call: tool for tool in live.tools} if live.run is not None else {}
    asked = {item.call for item in live.approvals}
    blocks: list[Block] = []
    anchor, count, responses = 0, 0, 0
    for index, (entry, shown) in enumerate(zip(entries, said, strict=True)):
        message = _response(entry)
        if message is not None:
            last = index == newest
            answer = _answer(message, shown, results[responses], tools if last else {}, asked if last else set())
            blocks.append(Block(key=f"{anchor}.{count}", said=shown, answer=answer, task=entry.by_task))
            count, responses = count + 1, responses + 1
        elif entry.id not in folded:
            if entry.kind == "pi.user":
                anchor, count = entry.id, 0
            blocks.append(Block(key=f"{entry.id}", said=shown, task=entry.by_task))
    generation = live.generation
    if live.run is not None and generation is not None:
        items = () if generation.message is None else answer_items(0, generation.message, {}, {}, set(), streaming=True)
        answer = AnswerView(status="running", model=generation.model or "", items=tuple(items))
        blocks.append(Block(key=f"{anchor}.{count}", answer=answer, task=live.run.task))
    return blocks


def _response(entry: Entry) -> AssistantMessage | None:
    message = entry.messages[0] if entry.messages else None
    return message if isinstance(message, AssistantMessage) else None


def _answer(
    message: AssistantMessage,
    shown: TranscriptEntry,
    results: Mapping[str, tuple[Entry, ToolResultMessage]],
    tools: Mapping[str, Any],
    asked: Collection[str],
) -> AnswerView:
    """The parts of a stored response. What a crash cut off is struck through, what a person stopped is not."""
    status: AnswerStatus = "done"
    if message.stop_reason == "error":
        status = "unanswered"
    elif message.stop_reason == "aborted":
        status = "aborted" if "stopped, kept" in shown.markers else "running"
    items = answer_items(0, message, results, tools, asked)
    return AnswerView(submission=shown.id, status=status, model=message.model, items=tuple(items))
