"""A session at one glance: its conversation, tasks, timeline and what was found (notebook.md, "Live widgets", 6).

``dashboard(chat)`` gives a ``LiveView`` of all four. Each is followed as it is alone, and all of them are one widget,
whose page shows one at a time, in tabs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..agent.harness import Harness
from ..records import TaskId
from ..values import JsonValue
from . import talk
from .dashboardview import DashboardView
from .following import Follower, GraphFollower, TimelineFollower, task_details
from .live import LiveView, session_of
from .pressed import connect, number

if TYPE_CHECKING:
    from .chat import Chat
    from .widgets import ViewWidget

__all__ = ["DashboardFollower", "dashboard"]


class DashboardFollower(Follower[DashboardView]):
    """Follows the parts, each by itself."""

    session: Harness

    def __init__(self, chat: Chat) -> None:
        super().__init__(chat.harness)
        self._chat = chat
        self.talk = talk.follower(chat)
        self._graph = GraphFollower(session_of(chat), held=chat.held)
        self._timeline = TimelineFollower(session_of(chat))
        self.view = self._made()

    async def load(self) -> DashboardView:
        for part in (self.talk, self._graph, self._timeline):
            await part.load()
        self.view = self._made()
        return self.view

    async def follow(self, show: Callable[[DashboardView], object]) -> None:
        def changed(_: object) -> None:
            self.view = self._made()
            show(self.view)

        parts = [asyncio.ensure_future(part.follow(changed)) for part in (self.talk, self._graph, self._timeline)]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()

    def _made(self) -> DashboardView:
        return DashboardView(
            talk=self.talk.view,
            graph=self._graph.view,
            timeline=self._timeline.view,
            recovery=self._chat.recovery,
        )


def dashboard(chat: Chat) -> LiveView[DashboardView]:
    """The four in tabs, followed; blocking until their first forms are read."""
    follower = DashboardFollower(chat)

    async def select(message: Mapping[str, Any]) -> JsonValue:
        return await task_details(session_of(chat), number(message, "task"))

    async def abort(message: Mapping[str, Any]) -> JsonValue:
        return await chat.harness.abort_task(TaskId(number(message, "task")))

    def widget(view: DashboardView) -> ViewWidget:
        from .widgets_talk import DashboardWidget

        made = DashboardWidget(view)
        connect(chat._bridge, made, {**talk.actions(chat, follower.talk), "select": select, "abort": abort})
        return made

    chat._bridge.run(follower.load)
    return LiveView(chat._bridge, follower, widget, f"dashboard of {chat.name}")
