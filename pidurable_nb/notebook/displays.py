"""Putting something below the running cell: what tells one execution from another, and displays that change later."""

from __future__ import annotations

from typing import Any

from . import frontend
from .render import mimebundle
from .view import AnswerView

__all__ = ["display", "replace_live", "request_name"]


def request_name() -> str | None:
    """What tells the execution of one cell from another's; ``None`` outside of IPython."""
    header = frontend.request().get("header")
    if isinstance(header, dict):
        return str(header.get("msg_id"))
    if not frontend.in_ipython():
        return None
    from IPython import get_ipython

    return str(get_ipython().execution_count)


def display(data: dict[str, Any], *, metadata: dict[str, Any] | None = None, handle: bool = False) -> Any:
    """Show a bundle in the current cell; outside of IPython print its text."""
    if not frontend.in_ipython():
        print(data.get("text/plain", ""))
        return None
    from IPython import display as displays

    return displays.display(data, metadata=metadata or {}, raw=True, display_id=True if handle else None)  # type: ignore[no-untyped-call]


def replace_live(widget: Any, handle: Any, view: AnswerView) -> None:
    """Put the static form in place of a live display that has ended; a page that misses this asks the widget for it."""
    static = mimebundle(view)
    widget.flush()
    if handle is not None:
        handle.update(static, raw=True)
    widget.finish(static)
