"""Which submission a cell stands for (notebook.md, Running a cell again).

A *request id* is made of the text after interpolation and an *ordinal* that tells equal texts apart. A cell with an id
of its own keeps the ordinal it first got, in a document; without such ids the ordinal counts how often this kernel life
has run that text. So running a cell again finds what is stored, in any front end. An *attempt* is a new submission
under the same id, after a failure or with ``--again``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import Field

from ..session import Document, Tx
from ..values import Value


class CellsState(Document, kind="notebook.cells", scope="conversation"):
    """For each text, by digest, the ids of the cells that ran it; a cell's place in the list is its ordinal."""

    texts: dict[str, list[str]] = Field(default_factory=dict)


class Provenance(Value):
    """What a submission from a cell was asked with: stored as the data of its entry."""

    after: int | None = None
    model: str | None = None
    tools: tuple[str, ...] = ()

    def differences(self, now: Provenance, *, moved: bool) -> str | None:
        """What is different now, in words; ``None`` when nothing is. ``moved``: something else precedes it."""
        parts = []
        if moved:
            parts.append("what was asked before it")
        if self.model != now.model:
            parts.append(f"the model ({self.model or 'none'} then, {now.model or 'none'} now)")
        if self.tools != now.tools:
            parts.append("the tools")
        return " and ".join(parts) if parts else None


def lasting(cell: str) -> bool:
    """Whether a cell has its id for good. VS Code names a cell by an address, which counts the cells of a notebook as
    they were when it was opened; opened again, the same cell may have another one."""
    return not cell.startswith("vscode-")


def text_digest(kind: str, text: str) -> str:
    """A short name for a text and for what is done with it."""
    return hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Ordinals:
    """What tells equal texts apart in this kernel life."""

    def __init__(self) -> None:
        self._count: Counter[tuple[int, str]] = Counter()
        self._passing: dict[tuple[int, str, str], int] = {}
        self._execution: str | None = None
        self._repeats: Counter[tuple[str, str]] = Counter()

    def look(self, conversation: int, digest: str, cell: str | None, cells: Sequence[str]) -> int:
        """The ordinal that a text has, or would get, in this run; ``cells`` are those stored for it."""
        if cell is not None and lasting(cell):
            return cells.index(cell) if cell in cells else len(cells)
        known = None if cell is None else self._passing.get((conversation, digest, cell))
        return self._count[conversation, digest] if known is None else known

    def take(self, conversation: int, digest: str, cell: str | None) -> bool:
        """Give this run the ordinal that ``look`` gave. Whether the cell is to be stored for it."""
        if cell is not None and lasting(cell):
            return True
        if cell is None or (conversation, digest, cell) not in self._passing:
            if cell is not None:
                self._passing[conversation, digest, cell] = self._count[conversation, digest]
            self._count[conversation, digest] += 1
        return False

    def repeated(self, execution: str | None, cell: str, digest: str) -> int:
        """How often this execution of the cell has asked that text before."""
        if execution != self._execution:
            self._execution = execution
            self._repeats.clear()
        count = self._repeats[(cell, digest)]
        self._repeats[(cell, digest)] += 1
        return count


class Order:
    """What preceded what in this kernel life, as the cells ran.

    A stored submission has *moved* when what precedes it now is not what preceded it when it was asked: at its first
    run in this life the submission before it, later any of those before it whose cell came to stand for another one.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.began = False
        self._before: dict[int, int | None] = {}
        self._moved: set[int] = set()
        self._cells: dict[str, int] = {}
        self._ticks = 0
        self._entered: dict[int, int] = {}
        self._replaced: dict[int, int] = {}

    def go_back(self, submission: int | None) -> None:
        """The notebook was rewound: what comes next comes after that submission."""
        self.last, self.began = submission, True

    def asked(self, submission: int, cell: str | None) -> None:
        """A cell asked anew."""
        self._enter(submission, cell)

    def found(self, submission: int, cell: str | None, *, after: int | None, known: bool) -> bool:
        """A cell found what it asked before, then after the submission ``after``. Whether that has moved."""
        if submission not in self._before and known and self.began and after != self.last:
            self._moved.add(submission)
        self._enter(submission, cell)
        since = self._entered[submission]
        replaced = any(self._replaced.get(earlier, since) > since for earlier in self._chain(submission))
        return replaced or submission in self._moved

    def _enter(self, submission: int, cell: str | None) -> None:
        self._ticks += 1
        if submission not in self._before:
            self._before[submission] = self.last
            self._entered[submission] = self._ticks
        if cell is not None:
            old = self._cells.get(cell)
            if old is not None and old != submission:
                self._replaced[old] = self._ticks
            self._cells[cell] = submission
            self._replaced.pop(submission, None)
        self.last, self.began = submission, True

    def _chain(self, submission: int) -> Iterator[int]:
        earlier = self._before.get(submission)
        while earlier is not None:
            yield earlier
            earlier = self._before.get(earlier)


async def ordinal_of(tx: Tx, conversation: int, digest: str, cell: str) -> int:
    """The ordinal of a cell for a text; a cell that is new to it gets the next one."""
    state = await tx.doc(CellsState, conversation)
    cells = state.texts.setdefault(digest, [])
    if cell not in cells:
        cells.append(cell)
    return cells.index(cell)


def request_id(digest: str, ordinal: int) -> str:
    """The id of what a cell asks for."""
    return f"cell:{digest}:{ordinal}"


def attempt_id(request: str, attempt: int) -> str:
    """The id of one attempt; the first has the request's own."""
    return request + (f"#{attempt}" if attempt > 1 else "")
