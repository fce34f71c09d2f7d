"""The timeline as people see it: what ran when, across the lives of a session (notebook.md, "Live widgets", 4).

Words:

- A *row* is a question or a task. A question's row spans the turns that answer it and folds them away.
- A *bar* is one attempt of a task, or the gap between two: asleep, waiting, or cut off when its process died. Bars
  follow from the storage's attempts alone.
- A *life* is one opening of the session; its beginning and its end are lines over all rows.
- The *axis* maps time to the width: it is linear where something happens, and jumps over long stretches in which
  nothing does. Such a *break* is drawn, and says how long it is.

``TimelineRows`` keeps what was read by what changed; ``view(now)`` makes the frozen ``TimelineView``. Nothing here
reads storage. Instants are epoch seconds, places on the axis fractions of its width.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from ..records import ROOT, Attempt, ConversationRecord, Life, SubmissionRecord, TaskRecord, outcome_of_task
from ..values import Value
from .graphview import task_title
from .view import TASK_BADGES, Badge, View, clean_output, clip_line, clock_time, duration_words, plural

__all__ = ["Axis", "TimelineBar", "TimelineLife", "TimelineRow", "TimelineRows", "TimelineView", "axis_of"]

LIMIT = 400
"""Tasks that a timeline holds: the newest."""

OPEN_QUESTIONS = 8
"""The newest questions are shown with their tasks, older ones folded."""

LIVES = 60
"""Lives that a timeline holds: the newest."""

SHORTEST_GAP = 0.02
"""Seconds between two attempts that are worth a bar."""

BarKind: TypeAlias = Literal["run", "asleep", "waiting", "dead", "span"]
"""An attempt; what lies between two: asleep, waiting, no process to run in; all that stands under a question."""

BAR_WORDS: dict[str, str] = {
    "parked": "stopped to go on later",
    "ended": "reached its outcome",
    "cut_off": "cut off: its process died",
    "running": "still runs",
    "asleep": "asleep",
    "idle": "asleep or waiting",
    "waiting": "waiting",
    "dead": "no process",
    "span": "all its tasks",
}
"""What the ends of attempts, and the gaps between them, are called."""

_WAITING_PHASES = frozenset({"tools", "drain", "approve"})
"""Phases of ours that begin after a wait for tasks or for a person."""
_ASLEEP_PHASES = frozenset({"retry", "poll"})
"""Phases of ours that begin after a sleep."""


class TimelineBar(Value):
    """One attempt, or a gap. ``end`` is ``None`` while it goes on, at the longest to ``until``.

    ``how`` is a key of ``BAR_WORDS``; ``phase`` is where an attempt began, ``number`` counts attempts from 1.
    """

    kind: BarKind
    start: float
    end: float | None = None
    how: str = "running"
    phase: str = ""
    number: int = 0
    until: float | None = None

    def words(self, now: float) -> str:
        """``attempt 2 at request, 3.4 s, cut off: its process died``."""
        took = duration_words((now if self.end is None else self.end) - self.start)
        if self.kind != "run":
            wakes = "" if self.until is None or self.end is not None else f", until {clock_time(self.until, date=True)}"
            return f"{BAR_WORDS[self.how]} {took}{wakes}"
        return f"attempt {self.number} at {clean_output(self.phase)}, {took}, {BAR_WORDS[self.how]}"

    def wire(self) -> list[Any]:
        """Kind, start, end, how, and more where there is more: phase and number of an attempt, or when it wakes."""
        said: list[Any] = [self.kind, round(self.start, 3), None if self.end is None else round(self.end, 3), self.how]
        if self.kind == "run":
            said += [clean_output(self.phase), self.number]
        elif self.until is not None:
            said.append(self.until)
        return said


class TimelineRow(Value):
    """A question (``s12``) or a task (``t14``). ``owner`` is the key of the row that it stands under.

    ``state`` is a key of ``TASK_BADGES``, or of a submission's states. ``folded`` says that what stands under it is
    folded away at first.
    """

    key: str
    title: str
    state: str
    owner: str | None = None
    depth: int = 0
    bars: tuple[TimelineBar, ...] = ()
    folded: bool = False

    @property
    def badge(self) -> Badge:
        found = _QUESTION_BADGES.get(self.state) or TASK_BADGES.get(self.state)
        return found or Badge("·", clean_output(self.state), "muted")

    @property
    def attempts(self) -> int:
        """How often it was run."""
        return sum(bar.kind == "run" for bar in self.bars) if self.key.startswith("t") else 0

    @property
    def start(self) -> float | None:
        return self.bars[0].start if self.bars else None

    @property
    def going_on(self) -> bool:
        """Whether its last bar has no end yet."""
        return bool(self.bars) and self.bars[-1].end is None

    def duration(self, now: float) -> float | None:
        """Seconds from its beginning to its end, or to now."""
        if not self.bars:
            return None
        end = self.bars[-1].end
        return (now if end is None else end) - self.bars[0].start

    def wire(self) -> dict[str, Any]:
        """The form that the Timeline widget sends."""
        said: dict[str, Any] = {
            "title": self.title,
            "badge": list(self.badge),
            "depth": self.depth,
            "bars": [bar.wire() for bar in self.bars],
        }
        if self.owner is not None:
            said["owner"] = self.owner
        if self.folded:
            said["folded"] = True
        return said


_QUESTION_BADGES: dict[str, Badge] = {
    "queued": Badge("○", "queued", "muted"),
    "placed": Badge("◐", "answering", "active"),
    "done": Badge("✓", "answered", "good"),
    "unanswered": Badge("✕", "not answered", "bad"),
    "stopped": Badge("■", "stopped", "muted"),
}


class TimelineLife(Value):
    """One opening of the session. ``ended`` is how it ended, ``None`` while it is open; ``end`` is when."""

    number: int
    pid: int
    start: float
    end: float | None = None
    ended: Literal["closed", "failed", "crashed"] | None = None

    @property
    def words(self) -> str:
        """``life 2: process 4242, opened 14:02:09, died 14:05:31``."""
        said = f"life {self.number}: process {self.pid}, opened {clock_time(self.start, date=True)}"
        if self.ended is None or self.end is None:
            return f"{said}, open"
        how = {"closed": "closed", "failed": "failed", "crashed": "died after"}[self.ended]
        return f"{said}, {how} {clock_time(self.end, date=True)}"


class Axis(Value):
    """Where instants lie.

    ``knots`` are pairs of an instant and its place, ``breaks`` the places where each jump begins and ends and how long
    it is in words, ``ticks`` places, labels and levels: those of level 0 fit on the whole width, the others where there
    is more room.
    """

    knots: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))
    breaks: tuple[tuple[float, float, str], ...] = ()
    ticks: tuple[tuple[float, str, int], ...] = ()

    @property
    def end(self) -> float:
        """The last instant that has a place."""
        return self.knots[-1][0]

    def place(self, at: float) -> float:
        """The place of an instant, at the nearest edge where it lies outside."""
        index = min(max(1, bisect_right(self.knots, at, key=lambda knot: knot[0])), len(self.knots) - 1)
        (before, left), (after, right) = self.knots[index - 1 : index + 1]
        share = 1.0 if after <= before else (at - before) / (after - before)
        return left + (right - left) * min(1.0, max(0.0, share))


class TimelineView(View):
    """What ``%durable timeline`` shows, as of ``now``. ``earlier`` counts older tasks that are left out."""

    now: float
    rows: tuple[TimelineRow, ...] = ()
    lives: tuple[TimelineLife, ...] = ()
    axis: Axis = Axis()
    earlier: int = 0

    @property
    def title(self) -> str:
        """What it spans."""
        tasks = sum(row.key.startswith("t") for row in self.rows)
        crashes = sum(life.ended == "crashed" for life in self.lives)
        said = [plural(tasks, "task"), "1 life" if len(self.lives) == 1 else f"{len(self.lives):,} lives"]
        if crashes:
            said.append("1 crash" if crashes == 1 else f"{crashes:,} crashes")
        return " · ".join(said)

    def newest(self, count: int) -> TimelineView:
        """Only the newest rows, without those that are folded away, on an axis of their own."""
        folded: set[str] = set()
        rows: list[TimelineRow] = []
        for row in self.rows:
            if row.owner in folded or row.folded:
                folded.add(row.key)
            if row.owner not in folded:
                rows.append(row)
        earlier = max(0, len(rows) - count)
        rows = rows[earlier:]
        since = min((row.bars[0].start for row in rows if row.bars), default=None)
        lives = (
            self.lives
            if not earlier
            else tuple(life for life in self.lives if since is None or life.end is None or life.end >= since)
        )
        left_out = self.earlier + earlier
        return self.replaced(rows=tuple(rows), lives=lives, axis=_axis(rows, lives, self.now), earlier=left_out)

    def wire(self, known: dict[str, tuple[TimelineRow, dict[str, Any]]] | None = None) -> dict[str, Any]:
        """The form that the Timeline widget sends. ``known`` keeps the forms of rows from one call to the next."""
        kept = {} if known is None else known
        rows: dict[str, Any] = {}
        for row in self.rows:
            have = kept.get(row.key)
            if have is None or have[0] != row:
                kept[row.key] = have = (row, row.wire())
            rows[row.key] = have[1]
        for key in kept.keys() - rows.keys():
            del kept[key]
        return {
            "title": self.title,
            "order": [row.key for row in self.rows],
            "rows": rows,
            "lives": [[life.number, life.start, life.end, life.ended, life.words] for life in self.lives],
            "knots": [list(knot) for knot in self.axis.knots],
            "breaks": [list(found) for found in self.axis.breaks],
            "ticks": [list(tick) for tick in self.axis.ticks],
            "earlier": self.earlier,
            "words": BAR_WORDS,
        }


# -- the axis --------------------------------------------------------------------------------------------------------

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
_BREAK = 0.05
"""The width of a break, as long as all breaks together stay below ``_BREAKS``."""
_BREAKS = 0.35
_TICKS = (8, 64)


def axis_of(busy: Iterable[tuple[float, float]], *, until: float | None = None) -> Axis:
    """The axis for these stretches of time in which something happens, and for what follows up to ``until``.

    A stretch without anything becomes a break when it is longer than a second, and than a seventh of everything that
    happens or four times what usually happens at a stretch.
    """
    stretches = sorted(busy)
    if not stretches:
        return Axis()
    apart = _merged(stretches, 0.0)
    total = sum(end - start for start, end in apart)
    gap = max(1.0, min(total / 7, 4 * total / len(apart)))
    pad = max(min(0.02 * total, 0.25 * total / len(apart)), 0.05)
    parts = _merged([(start - pad, end + pad) for start, end in stretches], gap)
    last = parts[-1][1] if until is None else max(until, parts[-1][1])
    if last - parts[-1][1] <= gap:
        parts[-1] = (parts[-1][0], last)
        last = parts[-1][1]
    ends_idle = last > parts[-1][1]
    width = min(_BREAK, _BREAKS / max(1, len(parts) - 1 + ends_idle))
    scale = (1.0 - width * (len(parts) - 1 + ends_idle)) / sum(end - start for start, end in parts)
    knots: list[tuple[float, float]] = []
    place = 0.0
    for start, end in parts:
        knots.append((start, place))
        place += (end - start) * scale
        knots.append((end, place))
        place += width
    if ends_idle:
        knots.append((last, 1.0))
    breaks = tuple(
        (before[1], after[1], f"{duration_words(after[0] - before[0])} without anything")
        for before, after in pairwise(knots)
        if after[0] - before[0] > gap and _inside(parts, before[0], after[0])
    )
    found = tuple((round(at, 3), round(place, 5)) for at, place in knots)
    return Axis(knots=found, breaks=breaks, ticks=tuple(_ticks(parts, scale, knots)))


def _merged(stretches: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Stretches in order; those that lie closer than ``gap`` are one."""
    parts: list[tuple[float, float]] = []
    for start, end in stretches:
        if parts and start - parts[-1][1] <= gap:
            parts[-1] = (parts[-1][0], max(parts[-1][1], end))
        else:
            parts.append((start, end))
    return parts


def _inside(parts: Sequence[tuple[float, float]], start: float, end: float) -> bool:
    """Whether nothing happens between two knots."""
    return not any(part == (start, end) for part in parts)


def _ticks(
    parts: Sequence[tuple[float, float]], scale: float, knots: Sequence[tuple[float, float]]
) -> Iterable[tuple[float, str, int]]:
    """Round times for the whole width, finer ones for where there is room, and where each stretch begins."""
    shown = sum(end - start for start, end in parts)
    found: dict[float, int] = {}
    for level, count in enumerate(_TICKS):
        step = next((step for step in _STEPS if shown / step <= count), _STEPS[-1])
        for start, end in parts:
            offset = time.localtime(start).tm_gmtoff
            first = math.ceil((start + offset) / step)
            last = math.floor((end + offset) / step)
            for number in range(first, last + 1):
                found.setdefault(round(number * step - offset, 3), level)
    for start, end in parts:
        found.setdefault(float(math.ceil(start)) if math.ceil(start) <= end else round(start, 3), len(_TICKS))
    starts = [start for start, _ in parts]
    today = time.localtime(parts[-1][1])[:3]
    for at, level in sorted(found.items()):
        index = max(0, bisect_right(starts, at) - 1)
        moment = time.localtime(at)
        day = "" if moment[:3] == today else time.strftime("%b %d ", moment)
        part = f"{at % 1:.1f}"[1:] if 0.05 <= at % 1 < 0.95 else ""
        place = knots[2 * index][1] + (at - starts[index]) * scale
        yield round(min(1.0, max(0.0, place)), 5), f"{day}{clock_time(at)}{part}", level


# -- rows ------------------------------------------------------------------------------------------------------------


class TimelineRows:
    """What a timeline is made of, kept by what changed."""

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lives: tuple[Life, ...] = ()
        self._open = True
        self._ends: dict[int, float] = {}
        self._tasks: dict[int, TaskRecord] = {}
        self._attempts: dict[int, tuple[Attempt, ...]] = {}
        self._questions: dict[int, SubmissionRecord] = {}
        self._prompts: dict[int, str] = {}
        self._holders: dict[int, int] = {}
        self._earlier = 0

    def update(
        self,
        *,
        lives: Sequence[Life] | None = None,
        open: bool = True,
        tasks: Iterable[TaskRecord] = (),
        attempts: Mapping[int, Sequence[Attempt]] | None = None,
        questions: Iterable[SubmissionRecord] = (),
        prompts: Mapping[int, str] | None = None,
        conversations: Iterable[ConversationRecord] = (),
    ) -> None:
        """Take in what was read: ``attempts`` by task, ``prompts`` by submission.

        ``open`` says whether the last of the lives goes on.
        """
        if lives is not None:
            self._lives, self._open = tuple(lives), open
            self._ends = {
                life.id: life.ended_at or life.last_commit_at or life.opened_at
                for life in (self._lives[:-1] if open else self._lives)
            }
        self._tasks.update((task.id, task) for task in tasks)
        self._attempts.update((id, tuple(found)) for id, found in (attempts or {}).items())
        self._questions.update((item.id, item) for item in questions if item.type != "write")
        self._prompts.update(prompts or {})
        self._holders.update((item.id, item.owner.task) for item in conversations if item.owner is not None)
        for id in sorted(self._tasks)[: max(0, len(self._tasks) - self._limit)]:
            del self._tasks[id]
            self._attempts.pop(id, None)
            self._earlier += 1
        if self._earlier and self._tasks:
            oldest = min(self._tasks)
            for id, item in list(self._questions.items()):
                if item.settled and (item.answer or item.entry or item.id) < oldest:
                    del self._questions[id]
                    self._prompts.pop(id, None)

    @property
    def unread(self) -> list[SubmissionRecord]:
        """The questions whose text is not known yet."""
        return [item for id, item in self._questions.items() if id not in self._prompts]

    def view(self, now: float) -> TimelineView:
        """The rows, lives and axis as they are now."""
        children = self._children()
        below = {
            int(key[1:]): [int(child[1:]) for child in found if child.startswith("t")]
            for key, found in children.items()
            if key is not None and key.startswith("t")
        }
        opened = set(sorted(self._questions)[-OPEN_QUESTIONS:])
        rows: list[TimelineRow] = []
        stack: list[tuple[str, int, str | None]] = [(key, 0, None) for key in reversed(children.get(None, []))]
        while stack:
            key, depth, owner = stack.pop()
            id = int(key[1:])
            made = self._task_row(id, below) if key.startswith("t") else self._question_row(id, id in opened)
            rows.append(made.replaced(depth=depth, owner=owner))
            stack.extend((child, depth + 1, key) for child in reversed(children.get(key, [])))
        under: dict[str, list[TimelineBar]] = {}
        for row in reversed(rows):  # what is owned comes after its owner
            if row.owner is not None:
                under.setdefault(row.owner, []).extend([*row.bars, *under.get(row.key, ())])
        shown = tuple(row.replaced(bars=_span(under.get(row.key, ()))) if row.key[0] == "s" else row for row in rows)
        lives = self._shown_lives(min((row.bars[0].start for row in shown if row.bars), default=None))
        axis = _axis(shown, lives, now)
        return TimelineView(now=now, rows=shown, lives=lives, axis=axis, earlier=self._earlier)

    def _children(self) -> dict[str | None, list[str]]:
        """The rows below each row. A turn stands under the question that was placed last before it."""
        placed: dict[int, list[tuple[int, int]]] = {}
        for item in self._questions.values():
            if item.entry is not None:
                placed.setdefault(item.conversation_id, []).append((item.entry, item.id))
        for found in placed.values():
            found.sort()
        children: dict[str | None, list[tuple[int, str]]] = {}
        for item in self._questions.values():
            children.setdefault(self._holder(item.conversation_id), []).append((item.id, f"s{item.id}"))
        for task in self._tasks.values():
            owner = f"t{task.owner}" if task.owner in self._tasks else None
            if owner is None:
                owner = self._holder(task.conversation_id)
                before = placed.get(task.conversation_id, [])
                index = bisect_right(before, (task.id, 0)) - 1
                if task.kind == "pi.generation" and index >= 0:
                    owner = f"s{before[index][1]}"
            children.setdefault(owner, []).append((task.id, f"t{task.id}"))
        return {owner: [key for _, key in sorted(found)] for owner, found in children.items()}

    def _holder(self, conversation: int) -> str | None:
        """The row of the task whose work a conversation is."""
        task = self._holders.get(conversation)
        return f"t{task}" if task in self._tasks else None

    def _question_row(self, id: int, opened: bool) -> TimelineRow:
        record = self._questions[id]
        text = clip_line(clean_output(self._prompts.get(id, "")))
        title = f"“{text}”" if text else "continued" if record.type == "continue" else f"question {id}"
        stopped = record.status == "unanswered" and record.reason == "aborted"
        state = "stopped" if stopped else str(record.status)
        if record.conversation_id != ROOT and self._holder(record.conversation_id) is None:
            title += f" in conversation {record.conversation_id}"
        return TimelineRow(key=f"s{id}", title=title, state=state, folded=record.settled and not opened)

    def _task_row(self, id: int, below: Mapping[int, Sequence[int]]) -> TimelineRow:
        record = self._tasks[id]
        outcome = outcome_of_task(record) if record.terminal else None
        state = str(record.state.status) if outcome is None else outcome.status
        bars = tuple(self._bars(id, below))
        return TimelineRow(key=f"t{id}", title=task_title(record.kind, record.input), state=state, bars=bars)

    def _bars(self, id: int, below: Mapping[int, Sequence[int]]) -> list[TimelineBar]:
        """The attempts of a task, and what lies between them and after them."""
        record = self._tasks[id]
        bars: list[TimelineBar] = []
        before: Attempt | None = None
        for number, attempt in enumerate(self._attempts.get(id, ()), 1):
            if before is not None:
                bars.extend(self._gap(before, bars[-1], attempt, below.get(id, ())))
            if attempt.end is None and attempt.life in self._ends:  # its owner died, and nobody opened it since
                ended_at = max(attempt.started_at, self._ends[attempt.life])
                attempt = attempt.replaced(end="cut_off", ended_at=ended_at)
            bars.append(
                TimelineBar(
                    kind="run",
                    start=attempt.started_at,
                    end=attempt.ended_at,
                    how=attempt.end or "running",
                    phase=attempt.phase,
                    number=number,
                )
            )
            before = attempt
        if before is not None and before.end is not None and not record.terminal:
            state, end = record.state, bars[-1].end or before.started_at
            if state.status == "sleeping":
                bars.append(TimelineBar(kind="asleep", start=end, how="asleep", until=state.until))
            elif before.end == "cut_off" or (state.status == "pending" and not self._open):
                bars.append(TimelineBar(kind="dead", start=end, how="dead"))
            else:
                until = state.until if state.status == "waiting" else None
                bars.append(TimelineBar(kind="waiting", start=end, how="waiting", until=until))
        return bars

    def _gap(self, before: Attempt, bar: TimelineBar, after: Attempt, below: Sequence[int]) -> Iterable[TimelineBar]:
        """What a task did between two attempts, as far as the attempts tell."""
        start, end = bar.end or before.started_at, after.started_at
        if end - start < SHORTEST_GAP:
            return
        closed = self._ends.get(before.life)
        if before.end == "cut_off" or (before.life != after.life and closed is not None and start >= closed - 1.0):
            kind, how = "dead", "dead"
        elif after.phase in _WAITING_PHASES or self._busy(below, start, end):
            kind, how = "waiting", "waiting"
        else:
            kind, how = "asleep", "asleep" if after.phase in _ASLEEP_PHASES else "idle"
        yield TimelineBar.model_validate({"kind": kind, "start": start, "end": end, "how": how})

    def _busy(self, tasks: Sequence[int], start: float, end: float) -> bool:
        """Whether one of the tasks ran within a stretch of time."""
        return any(
            attempt.started_at < end and (attempt.ended_at is None or attempt.ended_at > start)
            for task in tasks
            for attempt in self._attempts.get(task, ())
        )

    def _shown_lives(self, since: float | None) -> tuple[TimelineLife, ...]:
        """The newest lives that have anything to do with what is shown."""
        found: list[TimelineLife] = []
        for number, life in enumerate(self._lives, 1):
            end = self._ends.get(life.id)
            if since is not None and end is not None and end < since and number < len(self._lives):
                continue
            ended = None if end is None else life.ended or "crashed"
            found.append(TimelineLife(number=number, pid=life.pid, start=life.opened_at, end=end, ended=ended))
        return tuple(found[-LIVES:])


def _span(bars: Sequence[TimelineBar]) -> tuple[TimelineBar, ...]:
    """One bar over all of these."""
    if not bars:
        return ()
    ends = [bar.end for bar in bars]
    end = None if None in ends else max(end for end in ends if end is not None)
    return (TimelineBar(kind="span", start=min(bar.start for bar in bars), end=end, how="span"),)


def _axis(rows: Sequence[TimelineRow], lives: Sequence[TimelineLife], now: float) -> Axis:
    """The axis for these rows and lives, with room for what still goes on."""
    bars = [bar for row in rows for bar in row.bars]
    busy = [(bar.start, now if bar.end is None else bar.end) for bar in bars if bar.kind == "run"]
    points = [at for life in lives for at in (life.start, life.end) if at is not None]
    stretches = [*busy, *((at, at) for at in points)]
    open_bars = [bar for bar in bars if bar.end is None and bar.kind != "span"]
    until: float | None = None
    if any(bar.kind == "run" for bar in open_bars):
        began = _merged(sorted(stretches), max(1.0, sum(end - start for start, end in busy) / 7))[-1][0]
        stretches.append((now, now + max(2.0, (now - began) / 4)))
    elif open_bars:
        until = now + max(10.0, (now - max(bar.start for bar in open_bars)) / 4)
        wakes = [bar.until for bar in open_bars if bar.until is not None and bar.until > now]
        until = max(wakes, default=until)
    return axis_of(stretches, until=until)
