"""What shows notices in a page (notebook.md, ``%durable notify``)."""

from __future__ import annotations

from typing import Any

from .view import StatusView
from .widgets import ViewWidget, css, esm, packed

__all__ = ["NotifyWidget"]


class NotifyWidget(ViewWidget):
    """A line that says that notifications are on, and asks the browser for its permission.

    ``say({"news": NOTICE})`` has its pages tell it, those that nobody sees.
    """

    _esm = packed(esm("live.js", "parts.js", "notify.js"))
    _css = css("base.css", "notify.css")

    def _wire(self, view: StatusView) -> dict[str, Any]:
        return {"title": view.title, "words": " · ".join(row.value for row in view.rows)}
