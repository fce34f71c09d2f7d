"""Putting something below the running cell: what tells one execution from another, and displays that change later."""

from __future__ import annotations

import time
from typing import Any

from . import frontend
from .render import mimebundle
from .view import View

__all__ = ["Changing", "display", "replace_live", "request_name"]


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


def replace_live(widget: Any, handle: Any, view: View) -> None:
    """Put the static form in place of a live display that has ended; a page that misses this asks the widget for it."""
    static = mimebundle(view)
    widget.flush()
    if handle is not None:
        handle.update(static, raw=True)
    widget.finish(static)


class Changing:
    """A display for work that its cell waits for: where somebody watches it says how long that has taken, and at its
    end, there and everywhere else, what came of it."""

    interval = 0.5
    """Seconds from one look to the next."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._handle: Any = None
        self._began = time.monotonic()

    def __enter__(self) -> Changing:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None and self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)  # the error says how it ended

    @property
    def begun(self) -> bool:
        """Whether anything was shown."""
        return self._handle is not None

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def change(self, view: View) -> None:
        """Show how it stands, where somebody watches."""
        if self._shown and frontend.live_frontend():
            self._show(view)

    def end(self, view: View) -> None:
        """Show what came of it."""
        if self._shown:
            self._show(view)

    def _show(self, view: View) -> None:
        if self._handle is None:
            self._handle = display(mimebundle(view), handle=True)
        else:
            self._handle.update(mimebundle(view), raw=True)
