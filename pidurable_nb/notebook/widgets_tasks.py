"""The live forms of the task graph and of the timeline (notebook.md, "Live widgets", 3 and 4)."""

from __future__ import annotations

from typing import Any

from .graphview import GraphRow, GraphView
from .timelineview import TimelineRow, TimelineView
from .widgets import Publisher, ViewWidget, css, esm, packed

__all__ = ["GraphWidget", "TimelineWidget"]


class GraphWidget(ViewWidget):
    """The live form of a ``GraphView``.

    Its actions are ``select`` and ``abort``, each with ``task``; a page expects texts by name in answer to the first.
    """

    _esm = packed(esm("live.js", "parts.js", "tree.js", "graph.js"))
    _css = css("base.css", "tree.css", "graph.css")

    def __init__(self, view: GraphView, *, publish: Publisher | None = None) -> None:
        self._known: dict[int, tuple[GraphRow, dict[str, Any]]] = {}
        super().__init__(view, publish=publish)

    def _wire(self, view: GraphView) -> dict[str, Any]:
        return view.wire(self._known)


class TimelineWidget(ViewWidget):
    """The live form of a ``TimelineView``."""

    _esm = packed(esm("live.js", "parts.js", "tree.js", "timeline.js"))
    _css = css("base.css", "tree.css", "timeline.css")

    def __init__(self, view: TimelineView, *, publish: Publisher | None = None) -> None:
        self._known: dict[str, tuple[TimelineRow, dict[str, Any]]] = {}
        super().__init__(view, publish=publish)

    def _wire(self, view: TimelineView) -> dict[str, Any]:
        return view.wire(self._known)
