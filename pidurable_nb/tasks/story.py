"""The story of a task: what happened to it, as a person reads it (engine.md, section 7).

It is told from what is stored (the record, its attempts, the lives of the storage) and from what this process saw (the
scheduler's events). Lines are in order of time; of an earlier process only what is stored can be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from ..records import Attempt, Life, TaskRecord, outcome_of_task
from .core import StoryEvent, describe

ENDS = {
    "parked": "stopped, to go on later",
    "ended": "reached its outcome",
    "cut_off": "was cut off: its process died",
    None: "still runs",
}


def tell(record: TaskRecord, attempts: Iterable[Attempt], lives: Iterable[Life], events: Iterable[StoryEvent]) -> str:
    """The account, one line per happening."""
    heading = f"task {record.id} ({record.kind}, version {record.version}) in conversation {record.conversation_id}"
    if record.owner is not None:
        heading += f", owned by task {record.owner}"
    if record.background:
        heading += ", in the background"
    lines = [f"{heading}: {describe(record)}"]
    if record.abort_requested:
        why = "its owner's process ended" if record.abort_reason == "restart" else "asked for"
        lines.append(f"  abort: {why}")
    if record.restarts:
        lines.append(f"  cut off {record.restarts} times without progress")
    outcome = outcome_of_task(record)
    error = getattr(outcome, "error", None)
    if error is not None:
        lines.append(f"  error: {error.message}")
    by_id = {life.id: life for life in lives}
    told: list[tuple[float, int, str]] = []
    for number, attempt in enumerate(attempts, 1):
        life = by_id.get(attempt.life)
        where = f" (process {life.pid})" if life is not None else ""
        told.append((attempt.started_at, 0, f"attempt {number} began at {attempt.phase}{where}"))
        ended = attempt.ended_at if attempt.ended_at is not None else attempt.started_at
        told.append((ended, 2, f"attempt {number} {ENDS[attempt.end]}"))
    told.extend((at, 1, what) for at, task, what in events if task == record.id)
    if record.ended_at is not None:
        told.append((record.ended_at, 3, f"ended {outcome.status if outcome else ''}"))
    lines.extend(f"  {_clock(at)}  {what}" for at, _, what in sorted(told, key=lambda line: line[:2]))
    return "\n".join(lines)


def _clock(at: float) -> str:
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):  # an instant that no calendar has: a test's clock, or a broken one
        return f"{at:.3f}"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
