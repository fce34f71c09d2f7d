"""What a session's file says about itself, counted from its records alone.

A *request* is one asking of a model: each left an assistant entry, cut-off ones as an aborted entry, and one that is
under way lies in ``pi.live``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..messages import AssistantMessage
from ..records import Attempt, ConversationRecord, Entry, Life, SubmissionRecord, TaskRecord, TaskStatus
from ..storage.protocol import Page
from ..storage.readonly import look
from ..storage.sqlite_reads import SqliteReads

__all__ = ["Stored", "read_stored"]

_LIVE: tuple[TaskStatus, ...] = ("pending", "running", "waiting", "sleeping", "completing")
_PAGE = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """The records of one session as of one commit. ``entries`` counts by kind; ``assistants`` are the answers."""

    commits: int
    lives: list[Life]
    attempts: list[Attempt]
    conversations: list[ConversationRecord]
    entries: Counter[str]
    assistants: list[tuple[Entry, AssistantMessage]]
    results: list[Entry]
    live_tasks: list[TaskRecord]
    open_submissions: list[SubmissionRecord]

    @property
    def aborted(self) -> list[tuple[Entry, AssistantMessage]]:
        """The answers that were cut off and kept."""
        return [(entry, message) for entry, message in self.assistants if message.stop_reason == "aborted"]

    def died(self, life: Life) -> bool:
        """Whether a life ended without a word: it was not closed, and another one followed."""
        return life.ended is None and life.id != self.lives[-1].id


def read_stored(path: str) -> Stored:
    """Read a session's records without owning it. Raises what ``look`` raises."""
    return look(path, _read)


def _read(reads: SqliteReads) -> Stored:
    entries: Counter[str] = Counter()
    assistants: list[tuple[Entry, AssistantMessage]] = []
    results: list[Entry] = []

    def count(entry: Entry) -> None:
        entries[entry.kind] += 1
        if entry.kind == "pi.tool-result":
            results.append(entry)
        assistants.extend((entry, message) for message in entry.messages if message.role == "assistant")

    _each(lambda cursor: reads.scan_entries(None, None, None, "ascending", _PAGE, cursor), count)
    conversations: list[ConversationRecord] = []
    _each(lambda cursor: reads.scan_conversations(None, None, "ascending", _PAGE, cursor), conversations.append)
    tasks: list[TaskRecord] = []
    _each(
        lambda cursor: reads.scan_tasks(None, None, _LIVE, None, None, None, "ascending", _PAGE, cursor), tasks.append
    )
    submissions: list[SubmissionRecord] = []
    _each(
        lambda cursor: reads.scan_submissions(None, ("queued", "placed"), "ascending", _PAGE, cursor),
        submissions.append,
    )
    return Stored(
        commits=reads.last_seq(),
        lives=reads.lives(),
        attempts=reads.attempts(None),
        conversations=conversations,
        entries=entries,
        assistants=assistants,
        results=results,
        live_tasks=tasks,
        open_submissions=submissions,
    )


def _each(page: Callable[[int | None], Page[T]], use: Callable[[T], object]) -> None:
    cursor: int | None = None
    while True:
        found = page(cursor)
        for item in found.items:
            use(item)
        if found.next is None:
            return
        cursor = found.next
