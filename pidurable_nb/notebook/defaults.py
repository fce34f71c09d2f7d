"""What magics do when a cell does not say: ``%durable config`` (notebook.md, ``%durable``).

Defaults belong to the kernel, as those of plotting libraries do: a cell at the top of a notebook sets them, and the
notebook that is run elsewhere behaves the same. They are not stored in a session, and end with the kernel.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ValidationError

from ..errors import NotebookError
from ..values import Value

__all__ = ["Defaults", "config", "defaults"]


class Defaults(Value):
    """``model`` is that of sessions which are created; ``format`` how a waiting cell shows its answer; ``once`` whether
    a cell that is run again finds what is stored; ``interpolation`` whether ``{name}`` inserts a value; ``wait``
    whether a cell keeps running until its answer is there."""

    model: str | None = None
    format: Literal["rich", "text"] = "rich"
    once: bool = True
    interpolation: bool = True
    wait: bool = False


_now = Defaults()


def defaults() -> Defaults:
    """The defaults of this kernel."""
    return _now


def config(**changes: Any) -> Defaults:
    """Change defaults, fields of ``Defaults``; ``None`` brings back how a field was at first. Returns those in force.

    Raises ``NotebookError`` for an unknown field or value, and then changes nothing.
    """
    global _now
    unknown = changes.keys() - Defaults.model_fields.keys()
    if unknown:
        known = ", ".join(Defaults.model_fields)
        raise NotebookError(f"there is no default {', '.join(sorted(unknown))}; there are {known}")
    kept = {name: value for name, value in (_now.to_data() | changes).items() if value is not None}
    try:
        _now = Defaults.model_validate(kept, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0])
        takes = {"model": "a name", "format": "rich or text"}.get(name, "on or off")
        raise NotebookError(f"{name} takes {takes}, not {wrong['input']!r}") from None
    return _now
