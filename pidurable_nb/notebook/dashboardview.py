"""What the dashboard shows: a conversation, tasks, a timeline, and what the opening found."""

from __future__ import annotations

from typing import Any

from .graphview import GraphView
from .talkview import TalkView
from .timelineview import TimelineView
from .view import RecoveryView, View, clean_output

__all__ = ["DashboardView"]


class DashboardView(View):
    """A session at one moment."""

    talk: TalkView
    graph: GraphView
    timeline: TimelineView
    recovery: RecoveryView

    def wire(self, known: dict[str, Any] | None = None) -> dict[str, Any]:
        """The form that the widget sends. ``known`` keeps the forms of what does not change."""
        kept = {} if known is None else known
        return {
            "talk": self.talk.wire(kept.setdefault("talk", {})),
            "graph": self.graph.wire(kept.setdefault("graph", {})),
            "timeline": self.timeline.wire(kept.setdefault("timeline", {})),
            "recovery": _recovery(self.recovery),
        }


def _recovery(view: RecoveryView) -> dict[str, Any]:
    rows = [[row.what, row.title, row.was, row.will] for row in view.rows]
    return {
        "badge": list(view.badge),
        "lines": [clean_output(line) for line in (view.path, view.headline, view.summary) if line],
        "rows": [[clean_output(cell) for cell in row] for row in rows],
        "waits": [clean_output(f"waiting for {text}") for text in view.waiting_for],
    }
