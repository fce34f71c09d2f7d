"""The live forms of a conversation and of the dashboard (notebook.md, "Live widgets", 2 and 6)."""

from __future__ import annotations

from typing import Any

from .dashboardview import DashboardView
from .talkview import Block, TalkView
from .widgets import Publisher, ViewWidget, css, esm, packed

__all__ = ["ConversationWidget", "DashboardWidget"]


class ConversationWidget(ViewWidget):
    """The live form of a ``TalkView``. Its buttons do nothing by themselves: ``pressed.connect`` gives them acts."""

    _esm = packed(esm("markdown.js", "live.js", "parts.js", "items.js", "conversation.js"))
    _css = css("base.css", "answer.css", "conversation.css")

    def __init__(self, view: TalkView, *, publish: Publisher | None = None) -> None:
        self._known: dict[str, tuple[Block, dict[str, Any]]] = {}
        super().__init__(view, publish=publish)

    def _wire(self, view: TalkView) -> dict[str, Any]:
        return view.wire(self._known)


class DashboardWidget(ViewWidget):
    """The live form of a ``DashboardView`` (notebook.md, "Live widgets", 6): the widgets of its parts, in tabs."""

    _esm = packed(
        esm(
            "markdown.js",
            "live.js",
            "parts.js",
            "items.js",
            "conversation.js",
            "tree.js",
            "graph.js",
            "timeline.js",
            "dashboard.js",
        )
    )
    _css = css("base.css", "answer.css", "conversation.css", "tree.css", "graph.css", "timeline.css", "dashboard.css")

    def __init__(self, view: DashboardView, *, publish: Publisher | None = None) -> None:
        self._known: dict[str, Any] = {}
        super().__init__(view, publish=publish)

    def _wire(self, view: DashboardView) -> dict[str, Any]:
        return view.wire(self._known)
