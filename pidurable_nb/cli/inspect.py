"""``inspect``: what a session's file holds, read without owning it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ..records import SubmissionRecord, TaskRecord, checkpoint_of_task
from ..storage.readonly import log_is_missing, owner_of
from .summary import Stored, read_stored
from .terminal import Terminal, when

_SHOWN = 20
"""How many lives, tasks and submissions are listed; the rest are counted."""


def inspect(path: str, *, as_json: bool = False) -> int:
    """Print the summary. Raises ``StorageError`` for what is not a session."""
    stored = read_stored(path)
    owner = owner_of(path)
    warnings = _warnings(path)
    if as_json:
        found = _as_json(path, stored, warnings)
        found["owner"] = None if owner is None else {"pid": owner.pid, "host": owner.host, "since": owner.since}
        print(json.dumps(found, indent=2))
        return 0
    terminal = Terminal(sys.stdout)
    terminal.line(f"{path}", "bold")
    if owner is None:
        terminal.line("  nobody has it open")
    else:
        terminal.line(f"  open in process {owner.pid} on {owner.host} since {when(owner.since)}")
    for warning in warnings:
        terminal.line(f"  warning: {warning}", "yellow")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(stored.entries.items()))
    terminal.line(
        f"  {stored.commits} commits, {_count(len(stored.conversations), 'conversation')}, {kinds or 'no entries'}"
    )
    answers = _count(len(stored.assistants), "answer")
    terminal.line(f"  {answers} of models, {len(stored.aborted)} of them cut off or aborted")
    _lives(terminal, stored, owned=owner is not None)
    _list(terminal, "live tasks", [_task(record) for record in stored.live_tasks])
    _list(terminal, "open submissions", [_submission(record) for record in stored.open_submissions])
    return 0


def _lives(terminal: Terminal, stored: Stored, *, owned: bool) -> None:
    lines = []
    for life in stored.lives:
        # What a dead process ran is marked by the next opening; until then it only looks as if it ran.
        running = "running" if owned and life is stored.lives[-1] else "cut_off"
        attempts = Counter(attempt.end or running for attempt in stored.attempts if attempt.life == life.id)
        if life.ended is not None:
            ended = f"{life.ended} {when(life.ended_at)}"
        elif owned and life is stored.lives[-1]:
            ended = "open"
        else:
            ended = f"died, last commit {when(life.last_commit_at)}"
        done = ", ".join(f"{count} {end.replace('_', ' ')}" for end, count in sorted(attempts.items()))
        lines.append(f"{life.id}: process {life.pid}, {when(life.opened_at)}, {ended}{f' ({done})' if done else ''}")
    _list(terminal, "lives", lines, newest=True)


def _list(terminal: Terminal, title: str, lines: list[str], *, newest: bool = False) -> None:
    if not lines:
        terminal.line(f"  no {title}")
        return
    terminal.line(f"  {title}:")
    hidden = len(lines) - _SHOWN
    if hidden > 0 and newest:
        terminal.line(f"    … {hidden} earlier")
    for line in lines[-_SHOWN:] if newest else lines[:_SHOWN]:
        terminal.line(f"    {line}")
    if hidden > 0 and not newest:
        terminal.line(f"    … {hidden} more")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _task(record: TaskRecord) -> str:
    phase = (checkpoint_of_task(record) or {}).get("phase")
    state = record.state
    more = f", {state.status}"
    if state.status == "sleeping":
        more += f" until {when(state.until)}"
    elif state.status == "waiting":
        more += f" for {', '.join(map(str, state.on))}"
    if record.restarts:
        more += f", cut off {record.restarts} times without progress"
    if record.abort_requested:
        more += ", to be aborted"
    return f"{record.id}: {record.kind}{f' in {phase}' if phase else ''}, conversation {record.conversation_id}{more}"


def _submission(record: SubmissionRecord) -> str:
    name = f" {record.request_id!r}" if record.request_id is not None else ""
    return f"{record.id}: {record.type}{name}, conversation {record.conversation_id}, {record.status}"


def _warnings(path: str) -> list[str]:
    """What a person should know before trusting what is shown."""
    if not log_is_missing(path):
        return []
    return [
        f"{Path(path).name}-wal is missing, and the newest commits may lie in it: this looks like a copy of the file "
        "alone. Copy a live session with its backup, or together with its log."
    ]


def _as_json(path: str, stored: Stored, warnings: list[str]) -> dict[str, Any]:
    return {
        "path": path,
        "warnings": warnings,
        "commits": stored.commits,
        "conversations": [record.to_data() for record in stored.conversations],
        "entries": dict(stored.entries),
        "answers": len(stored.assistants),
        "aborted": len(stored.aborted),
        "lives": [life.to_data() for life in stored.lives],
        "attempts": [attempt.to_data() for attempt in stored.attempts],
        "live_tasks": [record.to_data() for record in stored.live_tasks],
        "open_submissions": [record.to_data() for record in stored.open_submissions],
    }
