"""Which submission a cell stands for (notebook.md, Running a cell again).

A *request id* is made of the text after interpolation and an *ordinal* that tells equal texts apart. A cell with an id
keeps the ordinal it first got, in a document; without cell ids the ordinal counts how often this kernel life has run
that text. So running a cell again finds what is stored, in any front end. An *attempt* is a new submission under the
same id, after a failure or with ``--again``.
"""

from __future__ import annotations

import hashlib
from collections import Counter

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

    def differences(self, now: Provenance) -> str | None:
        """What is different now, in words; ``None`` when nothing is."""
        parts = []
        if self.after != now.after:
            parts.append("what was asked before it")
        if self.model != now.model:
            parts.append(f"the model ({self.model or 'none'} then, {now.model or 'none'} now)")
        if self.tools != now.tools:
            parts.append("the tools")
        return " and ".join(parts) if parts else None


def text_digest(kind: str, text: str) -> str:
    """A short name for a text and for what is done with it."""
    return hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Ordinals:
    """The ordinals of texts run without a cell id in this kernel life."""

    def __init__(self) -> None:
        self._count: Counter[tuple[int, str]] = Counter()

    def next(self, conversation: int, digest: str) -> int:
        """The ordinal of this run of the text, from 0."""
        ordinal = self._count[(conversation, digest)]
        self._count[(conversation, digest)] += 1
        return ordinal


async def ordinal_of(tx: Tx, conversation: int, digest: str, cell: str) -> int:
    """The ordinal of a cell for a text; a cell that is new to it gets the next one."""
    state = await tx.doc(CellsState, conversation)
    cells = state.texts.setdefault(digest, [])
    if cell not in cells:
        cells.append(cell)
    return cells.index(cell)


def request_id(digest: str, ordinal: int, attempt: int) -> str:
    """The id of one attempt."""
    return f"cell:{digest}:{ordinal}" + (f"#{attempt}" if attempt > 1 else "")


def named_request_id(name: str, attempt: int) -> str:
    """The id of one attempt of a submission that was named with ``--id``."""
    return f"named:{name}" + (f"#{attempt}" if attempt > 1 else "")
