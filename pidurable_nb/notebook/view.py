"""What is shown, as data: one frozen model per thing that a person sees, with its words.

A *view* holds what a display needs and nothing of the engine. Who makes one reads records and live documents; who shows
one (``render`` for the static forms, ``widgets`` for the live ones) reads only the view. The *words* of a view (its
badge, its line of facts, the labels of its parts) are made here, once, so that the static and the live form say the
same. ``AnswerView.wire()`` is the form that a widget sends to its page: JSON with every word made, and the Markdown as
it came.

Instants are epoch seconds on the harness clock, durations seconds. Colour never carries a state alone: a *tone* names
a colour, and always comes with an icon and a word.
"""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field

from ..values import JsonValue, Value

__all__ = [
    "TASK_BADGES",
    "AnswerItem",
    "AnswerStatus",
    "AnswerView",
    "Badge",
    "ErrorView",
    "NoticeItem",
    "RecoveryRow",
    "RecoveryView",
    "StatusRow",
    "StatusView",
    "TaskRow",
    "TasksView",
    "TextItem",
    "ThinkingItem",
    "ToolItem",
    "TranscriptEntry",
    "TranscriptView",
    "View",
    "clean_output",
    "clip",
    "clock_time",
    "compact_arguments",
    "duration_words",
    "plural",
]

Tone: TypeAlias = Literal["muted", "active", "good", "warn", "bad"]
"""The colour of a state: grey, blue, green, orange, red."""


class Badge(NamedTuple):
    """A state as people see it: a sign, a word and a colour, in this order of weight."""

    icon: str
    word: str
    tone: Tone


# -- words ---------------------------------------------------------------------------------------------------------

ARGUMENTS_LIMIT = 160
"""Characters of a call's arguments in its one-line form."""

RESULT_LIMIT = 20_000
"""Characters of a tool's result or running output that a display holds; the record keeps all of it."""


def duration_words(seconds: float) -> str:
    """``40 ms``, ``0.4 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min``: at most two units."""
    seconds = max(0.0, seconds)
    if seconds < 0.0995:
        return f"{int(seconds * 1000 + 0.5)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock_time(at: float, *, date: bool = False) -> str:
    """The local time of ``at`` (epoch seconds) as ``14:02:09``, with ``date`` as ``2031-04-05 14:02:09``."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", time.localtime(at))


def compact_arguments(arguments: JsonValue, limit: int = ARGUMENTS_LIMIT) -> str:
    """The arguments of a call on one line, as ``city="Paris", days=3``, cut after ``limit`` characters."""
    if isinstance(arguments, dict):
        text = ", ".join(f"{name}={_compact_json(value)}" for name, value in arguments.items())
    else:
        text = _compact_json(arguments)
    text = clean_output(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _compact_json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and terminal links
    r"|\x1b[@-Z\\-_]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]"  # other controls; overrides of the reading order
)
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n|$)")


def clean_output(text: str) -> str:
    """``text`` of a tool as a terminal would leave it: no escape sequences, overwritten lines (``\\r``) removed."""
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n")).replace("\r", "")
    return _ESCAPES.sub("", text)


def _cleaned(value: JsonValue) -> JsonValue:
    """``value`` with ``clean_output`` done to its texts."""
    if isinstance(value, str):
        return clean_output(value)
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def clip(text: str, limit: int, where: str | None = None) -> str:
    """``text`` cut after ``limit`` characters, with a line that says how much is missing and where it is."""
    if len(text) <= limit:
        return text
    rest = f"… {len(text) - limit:,} more characters"
    return f"{text[:limit]}\n{rest}{f' ({where})' if where else ''}"


def clip_line(text: str, limit: int = 60) -> str:
    """A text on one line, cut after ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plural(count: int, noun: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class View(Value):
    """What shows itself: every view is its own display."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from .render import mimebundle  # the layer above, which knows how each view looks

        return mimebundle(self)


# -- the parts of an answer ----------------------------------------------------------------------------------------

PartState: TypeAlias = Literal["streaming", "done", "aborted", "error"]


class _Part(Value):
    key: str
    """Stable over the life of the answer: a page keeps what is on screen for as long as the key stays."""


class TextItem(_Part):
    """Markdown that the model said. ``label`` replaces the words that an ``aborted`` or ``error`` part gets."""

    text: str
    state: PartState = "done"
    label: str | None = None
    kind: Literal["text"] = "text"


class ThinkingItem(_Part):
    """Reasoning that the model showed; folded on screen."""

    text: str
    state: PartState = "done"
    label: str | None = None
    kind: Literal["thinking"] = "thinking"

    @property
    def title(self) -> str:
        """``thinking · 214 words``."""
        words = plural(len(self.text.split()), "word")
        return f"{'thinking…' if self.state == 'streaming' else 'thinking'} · {words}"


ToolStatus: TypeAlias = Literal["pending", "approval", "running", "done", "error", "interrupted", "blocked", "aborted"]

_TOOL_BADGES: dict[str, Badge] = {
    "pending": Badge("○", "waits its turn", "muted"),
    "approval": Badge("!", "waits for you", "warn"),
    "running": Badge("◐", "running", "active"),
    "done": Badge("✓", "done", "good"),
    "error": Badge("✕", "failed", "bad"),
    "interrupted": Badge("!", "interrupted", "warn"),
    "blocked": Badge("!", "blocked", "warn"),
    "aborted": Badge("■", "stopped", "muted"),
}


class ToolItem(_Part):
    """One call. ``output`` is the tail of what it printed, after ``dropped`` characters that are no longer held.

    ``call`` is the id that a decision about it names, ``replay`` its policy after a crash, ``duration`` in seconds,
    ``result`` the text that the model gets, ``pictures`` its images as ``data:`` addresses, ``details_text`` more for
    people, ``diagnostics`` pairs of severity and message.
    """

    name: str
    call: str | None = None
    arguments: JsonValue = None
    output: str = ""
    dropped: int = 0
    status: ToolStatus = "pending"
    replay: Literal["safe", "unsafe"] | None = None
    duration: float | None = None
    result: str | None = None
    pictures: tuple[str, ...] = ()
    details_text: str | None = None
    diagnostics: tuple[tuple[str, str], ...] = ()
    kind: Literal["tool"] = "tool"

    @property
    def badge(self) -> Badge:
        return _TOOL_BADGES[self.status]

    @property
    def policy(self) -> str | None:
        """What a crash would mean for this call, in words."""
        if self.replay is None:
            return None
        return "safe to repeat" if self.replay == "safe" else "not repeated after a crash"

    @property
    def facts(self) -> tuple[str, ...]:
        """What stands at the right of its line: state, duration and policy."""
        facts = [self.badge.word]
        if self.duration is not None:
            facts.append(duration_words(self.duration))
        if self.policy is not None:
            facts.append(self.policy)
        return tuple(facts)

    @property
    def shown_output(self) -> str:
        """The output as it is shown: cleaned, cut from the front, and said to be so."""
        text = clean_output(self.output)
        dropped = self.dropped
        if len(text) > RESULT_LIMIT:
            dropped += len(text) - RESULT_LIMIT
            text = text[-RESULT_LIMIT:]
        return f"… {dropped:,} earlier characters\n{text}" if dropped else text


NoticeLevel: TypeAlias = Literal["info", "warn", "error"]

_LEVEL_BADGES: dict[str, Badge] = {
    "info": Badge("·", "note", "muted"),
    "warn": Badge("!", "warning", "warn"),
    "error": Badge("✕", "error", "bad"),
}


class NoticeItem(_Part):
    """Something that happened between the parts, in words: ``kernel died here, attempt 2``."""

    text: str
    level: NoticeLevel = "info"
    kind: Literal["notice"] = "notice"

    @property
    def badge(self) -> Badge:
        return _LEVEL_BADGES[self.level]


AnswerItem: TypeAlias = Annotated[TextItem | ThinkingItem | ToolItem | NoticeItem, Field(discriminator="kind")]
"""One part of an answer, in the order in which it happened."""


# -- the answer ----------------------------------------------------------------------------------------------------

AnswerStatus: TypeAlias = Literal[
    "queued", "running", "retrying", "deferred", "waiting", "done", "unanswered", "aborted"
]

_ANSWER_BADGES: dict[str, Badge] = {
    "queued": Badge("○", "queued", "muted"),
    "running": Badge("◐", "answering", "active"),
    "retrying": Badge("↻", "retrying", "warn"),
    "deferred": Badge("◷", "at the provider", "active"),
    "waiting": Badge("!", "waiting", "warn"),
    "done": Badge("✓", "done", "good"),
    "unanswered": Badge("✕", "no answer", "bad"),
    "aborted": Badge("■", "stopped", "muted"),
}

_REASONS = {
    "no_model": "the conversation has no model: %durable model NAME sets one",
    "model_error": "the model failed",
    "aborted": "it was stopped",
    "faulted": "its task failed",
    "limit": "a spending limit was reached",
    "reset": "the conversation was reset",
    "stale": "the conversation moved on before it",
    "run_failed": "the run before it failed",
    "withdrawn": "it was withdrawn",
    "tool_unavailable": "a tool it needs is missing",
}


class AnswerView(View):
    """One submission and its answer, at one moment (notebook.md, "Live widgets", 1).

    ``reason`` is the stored reason of an ``unanswered`` submission or of a ``waiting`` one, in the engine's word or in
    words of its own; ``detail_text`` says more. ``note`` is the line under a stored answer. ``show_prompt`` repeats
    the prompt, for a display that is not under the cell that asks. ``stopping`` says what a stop waits for that was
    heard. ``cost`` is in US dollars.
    """

    submission: int | None = None
    conversation: int | None = None
    prompt: str = ""
    status: AnswerStatus = "queued"
    reason: str | None = None
    detail_text: str | None = None
    items: tuple[AnswerItem, ...] = ()
    attempt: int = 1
    retry_at: float | None = None
    retry_error: str | None = None
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    note: str | None = None
    can_stop: bool = False
    stopping: str | None = None
    show_prompt: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.status in ("done", "unanswered", "aborted")

    @property
    def badge(self) -> Badge:
        return _ANSWER_BADGES[self.status]

    @property
    def text(self) -> str:
        """The Markdown of the answer: the text parts that were not cut off, as one document."""
        kept = [item for item in self.items if isinstance(item, TextItem) and not self.superseded(item)]
        return "\n\n".join(item.text.strip("\n") for item in kept if item.text.strip())

    @property
    def reason_text(self) -> str | None:
        """Why there is no answer, or what it waits for, in words."""
        return None if self.reason is None else _REASONS.get(self.reason, self.reason)

    @property
    def problem(self) -> str | None:
        """The line under the header: why it failed, waits or is tried again."""
        if self.status == "retrying":
            return self.retry_error
        if self.status in ("unanswered", "waiting", "deferred", "aborted", "queued"):
            reason = self.reason_text if not (self.status == "aborted" and self.reason == "aborted") else None
            return ": ".join(part for part in (reason, self.detail_text) if part) or None
        return self.detail_text

    @property
    def elapsed(self) -> float | None:
        """Seconds from start to end, ``None`` while it runs."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)

    @property
    def facts(self) -> tuple[str, ...]:
        """What the header says after the state, without the time, which a page counts by itself."""
        facts = []
        if self.model:
            facts.append(self.model)
        if self.attempt > 1:
            facts.append(f"attempt {self.attempt}")
        return tuple(facts)

    @property
    def usage(self) -> tuple[str, ...]:
        """Tokens and cost, in words."""
        facts = []
        if self.input_tokens:
            facts.append(f"{self.input_tokens:,} tokens in")
        if self.output_tokens:
            facts.append(f"{self.output_tokens:,} {'out' if self.input_tokens else 'tokens out'}")
        if self.cost:
            facts.append(f"${self.cost:.4f}" if self.cost < 1 else f"${self.cost:,.2f}")
        return tuple(facts)

    def superseded(self, item: AnswerItem) -> bool:
        """Whether ``item`` is a cut-off part that something replaced: struck through, and not part of the answer."""
        if not isinstance(item, TextItem | ThinkingItem) or item.state not in ("aborted", "error"):
            return False
        if not self.settled or self.status == "done":
            return True
        last = next((other for other in reversed(self.items) if isinstance(other, TextItem)), None)
        return item is not last and not (isinstance(item, ThinkingItem) and last is None)

    def label(self, item: AnswerItem) -> str | None:
        """The words on a part that did not end well."""
        if not isinstance(item, TextItem | ThinkingItem) or item.state not in ("aborted", "error"):
            return None
        if item.label is not None:
            return item.label
        if item.state == "error":
            return "cut off by an error · kept"
        return "cut off when its process ended · kept" if self.superseded(item) else "stopped here · kept"

    def wire(self) -> dict[str, Any]:
        """The form that the Answer widget sends: plain JSON, every word made, growing texts as they are."""
        said: dict[str, Any] = {
            "status": self.status,
            "settled": self.settled,
            "badge": list(self.badge),
            "facts": list(self.facts),
            "problem": self.problem,
            "prompt": self.prompt if self.show_prompt else None,
            "items": [self.wire_item(item) for item in self.items],
            "usage": list(self.usage),
            "note": self.note,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "retry_at": self.retry_at if self.status == "retrying" else None,
            "can_stop": self.can_stop and not self.settled,
            "stopping": None if self.settled else self.stopping,
        }
        return {name: value if name == "items" else _cleaned(value) for name, value in said.items()}

    def wire_item(self, item: AnswerItem) -> dict[str, Any]:
        """The form of one part."""
        if isinstance(item, TextItem | ThinkingItem):
            return {
                "kind": item.kind,
                "key": item.key,
                "text": item.text,
                "state": item.state,
                "label": _cleaned(self.label(item)),
                "struck": self.superseded(item),
            }
        if isinstance(item, NoticeItem):
            return {"kind": item.kind, "key": item.key, "text": clean_output(item.text), "badge": list(item.badge)}
        where = f"%durable show {self.submission}" if self.submission is not None else None
        return {
            "kind": item.kind,
            "key": item.key,
            "name": clean_output(item.name),
            "arguments": compact_arguments(item.arguments) if item.arguments else "",
            "arguments_full": full_arguments(item.arguments),
            "badge": list(item.badge),
            "facts": list(item.facts[1:]),
            "output": item.shown_output,
            "result": None if item.result is None else clip(clean_output(item.result), RESULT_LIMIT, where),
            "pictures": list(item.pictures),
            "details": None if item.details_text is None else clip(clean_output(item.details_text), RESULT_LIMIT),
            "diagnostics": _cleaned([list(pair) for pair in item.diagnostics]),
            "asks": _asks(item),
        }


def _asks(item: ToolItem) -> dict[str, str] | None:
    """What the buttons of a card need that wait for a person; arguments are edited as JSON."""
    if item.status != "approval" or item.call is None:
        return None
    arguments = json.dumps(item.arguments or {}, ensure_ascii=False, indent=2)
    return {"call": item.call, "arguments": arguments}


def full_arguments(arguments: JsonValue) -> str | None:
    """All the arguments, indented, where the one-line form does not show all of them; else ``None``."""
    if not arguments or len(compact_arguments(arguments, RESULT_LIMIT)) <= 60:
        return None
    return clip(json.dumps(arguments, ensure_ascii=False, indent=2), RESULT_LIMIT)


# -- recovery ------------------------------------------------------------------------------------------------------

RecoveryKind: TypeAlias = Literal["submission", "request", "tool", "sleep", "task", "queued"]


class RecoveryRow(Value):
    """One thing that was in flight: its ``title``, what it ``was`` doing, and what ``will`` happen to it, in words."""

    what: RecoveryKind
    title: str
    was: str
    will: str
    level: NoticeLevel = "info"


class RecoveryView(View):
    """What ``open`` found (notebook.md, "Live widgets", 5).

    ``previous`` is how the last owner ended; the ``previous_*`` fields say who it was, where that is known.
    ``waiting_for`` names what keeps the session paused, each with its remedy.
    """

    path: str
    opened_at: float | None = None
    previous: Literal["closed", "crashed", "failed", "new"] = "new"
    previous_pid: int | None = None
    previous_host: str | None = None
    previous_opened_at: float | None = None
    previous_commit_at: float | None = None
    rows: tuple[RecoveryRow, ...] = ()
    paused: bool = False
    waiting_for: tuple[str, ...] = ()

    @property
    def badge(self) -> Badge:
        if self.waiting_for or self.paused:
            return Badge("!", "paused", "warn")
        if self.previous == "new":
            return Badge("✓", "new session", "good")
        if self.previous == "closed" and not self.rows:
            return Badge("✓", "opened", "good")
        return Badge("↻", "recovered", "active")

    @property
    def headline(self) -> str:
        """How the last owner ended, in one sentence."""
        if self.previous == "new":
            return "Nothing was stored here before."
        owner = "The last owner"
        if self.previous_pid is not None:
            owner += f" (process {self.previous_pid}{f' on {self.previous_host}' if self.previous_host else ''})"
        ending = {
            "closed": "closed it cleanly",
            "crashed": "died without closing it",
            "failed": "ended with a storage error",
        }[self.previous]
        times = []
        if self.previous_opened_at is not None:
            times.append(f"opened {clock_time(self.previous_opened_at, date=True)}")
        if self.previous_commit_at is not None:
            commit = clock_time(self.previous_commit_at, date=True)
            # The date is said once where both are of the same day.
            same = bool(times) and times[0].endswith(commit[:10], 0, len("opened ") + 10)
            times.append(f"last commit {commit[11:] if same else commit}")
        return f"{owner} {ending}.{' ' + _capital(', '.join(times)) + '.' if times else ''}"

    @property
    def summary(self) -> str:
        """What was found, counted."""
        if not self.rows:
            return "Nothing was in flight." if self.previous != "new" else ""
        return f"{plural(len(self.rows), 'thing')} {'was' if len(self.rows) == 1 else 'were'} in flight:"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- small cards ---------------------------------------------------------------------------------------------------


class ErrorView(View):
    """A failure of a magic: what happened (``message``), what to do (``remedy``), and more for who wants it."""

    message: str
    remedy: str | None = None
    detail_text: str | None = None

    @property
    def badge(self) -> Badge:
        return Badge("✕", "error", "bad")


class StatusRow(Value):
    """One fact of a status: a name and its value, with a tone where the value is a state."""

    name: str
    value: str
    tone: Tone = "muted"


class StatusView(View):
    """What ``%durable status`` says of one session: its state as a badge, then facts in order.

    Other lists of facts look the same, and have no state when they tell none.
    """

    title: str
    state: Literal["idle", "running", "paused", "waiting", "done", "closed", "failed"] | None = None
    rows: tuple[StatusRow, ...] = ()
    current: bool = True
    """Whether it is the session that the magics use now."""

    @property
    def badge(self) -> Badge | None:
        if self.state is None:
            return None
        return {
            "idle": Badge("✓", "idle", "good"),
            "running": Badge("◐", "running", "active"),
            "paused": Badge("!", "paused", "warn"),
            "waiting": Badge("!", "waiting", "warn"),
            "done": Badge("✓", "done", "good"),
            "closed": Badge("○", "closed", "muted"),
            "failed": Badge("✕", "failed", "bad"),
        }[self.state]


TASK_BADGES: dict[str, Badge] = {
    "ready": Badge("○", "ready", "muted"),
    "pending": Badge("○", "pending", "muted"),
    "running": Badge("◐", "running", "active"),
    "sleeping": Badge("◷", "sleeping", "active"),
    "waiting": Badge("◷", "waiting", "active"),
    "completing": Badge("◐", "completing", "active"),
    "blocked": Badge("!", "blocked", "warn"),
    "completed": Badge("✓", "completed", "good"),
    "failed": Badge("✕", "failed", "bad"),
    "faulted": Badge("✕", "faulted", "bad"),
    "aborted": Badge("■", "aborted", "muted"),
    "orphaned": Badge("!", "orphaned", "warn"),
}
"""How the states of a task look; ``ready`` and ``blocked`` are states of live ones, the last five are outcomes."""


class TaskRow(Value):
    """One task: ``depth`` is its distance from a task without owner; ``about`` says what it does or waits for."""

    id: int
    kind: str
    status: str
    phase: str | None = None
    attempt: int = 1
    depth: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    about: str = ""
    background: bool = False

    @property
    def badge(self) -> Badge:
        return TASK_BADGES.get(self.status, Badge("·", self.status, "muted"))

    @property
    def time(self) -> str:
        """Its duration once it ended, else when it started."""
        if self.started_at is None:
            return ""
        if self.ended_at is not None:
            return duration_words(self.ended_at - self.started_at)
        return f"since {clock_time(self.started_at)}"


class TasksView(View):
    """What ``%durable tasks`` lists, owners before what they own. ``hidden`` is how many more there are."""

    rows: tuple[TaskRow, ...] = ()
    all: bool = False
    hidden: int = 0

    @property
    def title(self) -> str:
        if not self.rows:
            return "no tasks yet" if self.all else "no live tasks · --all lists those that ended"
        return plural(len(self.rows) + self.hidden, "task" if self.all else "live task")


class TranscriptEntry(Value):
    """One entry of a transcript: who (``role``), when, what. ``markers`` are words such as ``aborted``.

    ``text`` is Markdown for ``user`` and ``assistant``, plain for every other role.
    """

    id: int
    role: Literal["user", "assistant", "tool", "system", "note", "marker"]
    text: str
    title: str | None = None
    at: float | None = None
    model: str | None = None
    markers: tuple[str, ...] = ()
    struck: bool = False

    @property
    def who(self) -> str:
        return self.title or {"assistant": "answer", "user": "you"}.get(self.role, self.role)

    @property
    def facts(self) -> tuple[str, ...]:
        facts = [f"#{self.id}"]
        if self.model:
            facts.append(self.model)
        if self.at is not None:
            facts.append(clock_time(self.at))
        return (*facts, *self.markers)


class TranscriptView(View):
    """What ``%durable history`` shows, oldest first. ``earlier`` is how many entries come before the first."""

    entries: tuple[TranscriptEntry, ...] = ()
    conversation: int | None = None
    earlier: int = 0

    @property
    def title(self) -> str:
        count = plural(len(self.entries), "entry").replace("entrys", "entries")
        name = "" if self.conversation is None else f"conversation {self.conversation} · "
        return f"{name}{count}" if self.entries else f"{name}no entries yet"


class ConversationRow(Value):
    """One conversation: ``at`` is the entry that it was forked at, ``task`` the task that owns it, ``said`` what was
    asked last in it since, ``name`` that of a branch. ``depth`` counts the forks above it."""

    id: int
    depth: int = 0
    name: str | None = None
    at: int | None = None
    task: int | None = None
    said: str = ""
    current: bool = False
    busy: bool = False

    @property
    def title(self) -> str:
        return f"{self.id} {self.name}" if self.name else str(self.id)

    @property
    def facts(self) -> tuple[str, ...]:
        facts = ["you are here"] if self.current else []
        facts += ["busy"] if self.busy else []
        facts += [f"from #{self.at}"] if self.at is not None else []
        return (*facts, f"of task {self.task}") if self.task is not None else tuple(facts)


class ConversationsView(View):
    """What ``%durable conversations`` lists: each conversation below the one that it was forked from."""

    rows: tuple[ConversationRow, ...] = ()

    @property
    def title(self) -> str:
        return plural(len(self.rows), "conversation")


class ComparisonView(View):
    """Two branches side by side: how many entries both see, through which (``at``), and what each has after it."""

    left: str
    right: str
    at: int | None = None
    shared: int = 0
    ours: tuple[TranscriptEntry, ...] = ()
    theirs: tuple[TranscriptEntry, ...] = ()

    @property
    def title(self) -> str:
        if self.at is None:
            return "they share nothing"
        count = plural(self.shared, "entry").replace("entrys", "entries")
        return f"they share {count}, through #{self.at}"
