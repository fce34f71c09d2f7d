"""On which branch a notebook goes on, and which branches its cells made (notebook.md, ``fork`` and ``rewind``).

A *branch* is a conversation that was forked from another one. A notebook has one line of branches: where it began, and
each branch that it moved to by rewinding. It is stored, so that the next life of the kernel goes on where this one was.
A branch with a name has a line of its own.

What a cell made is stored under its request id, in the commit that makes it: running the cell again finds it.
"""

from __future__ import annotations

from pydantic import Field

from ..records import ROOT
from ..session import Document

__all__ = ["BranchesState", "made_key"]


class BranchesState(Document, kind="notebook.branches", scope="session"):
    """``heads`` names the conversation where each line goes on, the notebook's own under ``""``; ``came_from`` says
    from which conversation a branch was moved to. ``made`` holds what cells made, by conversation and request id: a
    branch or the task of a compaction."""

    heads: dict[str, int] = Field(default_factory=dict)
    came_from: dict[str, int] = Field(default_factory=dict)
    made: dict[str, int] = Field(default_factory=dict)

    def line(self, name: str, start: int = ROOT) -> list[int]:
        """The conversations of a line, from the one where it began to the one where it goes on."""
        found = [self.heads.get(name, start)]
        while (before := self.came_from.get(str(found[0]))) is not None:
            found.insert(0, before)
        return found

    def label_of(self, conversation: int) -> str | None:
        """The name of the line that goes on in a conversation; the notebook's own has none."""
        return next((name for name, head in self.heads.items() if name and head == conversation), None)


def made_key(conversation: int, request_id: str) -> str:
    """Under which key ``made`` holds what a request of a conversation made."""
    return f"{conversation} {request_id}"
