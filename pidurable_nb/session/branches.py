"""Branches: conversations with a common beginning, compared entry by entry (engine.md, section 6).

A fork sees the very entries of its parent through the point where it was made, so that what two conversations share is
always a beginning of both, and told by ids alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ..records import Entry, EntryId


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two branches. ``at`` is the last entry that both see, ``None`` when they share none; ``ours`` and ``theirs`` are
    what each sees after it, oldest first."""

    at: EntryId | None
    ours: tuple[Entry, ...]
    theirs: tuple[Entry, ...]

    def pairs(self) -> Iterator[tuple[Entry | None, Entry | None]]:
        """What follows ``at`` side by side, ``None`` where one branch has ended."""
        return zip_longest(self.ours, self.theirs)


def compare_entries(ours: Iterable[Entry], theirs: Iterable[Entry]) -> Comparison:
    """Compare the entries that two conversations see, both from the first on and oldest first."""
    mine, other = tuple(ours), tuple(theirs)
    shared = 0
    for left, right in zip(mine, other, strict=False):
        if left.id != right.id:
            break
        shared += 1
    return Comparison(mine[shared - 1].id if shared else None, mine[shared:], other[shared:])


def last_shared(ours: Iterable[tuple[int, int | None]], theirs: Iterable[tuple[int, int | None]]) -> int | None:
    """The last entry that two different conversations both see, from their ancestries.

    An ancestry is the conversation and its ancestors, each with the last entry of it that is visible (``None`` for the
    conversation itself: all of it).
    """
    limits = dict(theirs)
    for conversation, limit in ours:
        if conversation in limits:
            return min(bound for bound in (limit, limits[conversation]) if bound is not None)
    return None
