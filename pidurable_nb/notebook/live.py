"""Views that go on: the task graph and the timeline of a session, live where somebody watches (notebook.md).

``graph(chat)`` and ``timeline(chat)`` give a ``LiveView``. It shows itself as the last value of a cell: as a live
widget where a front end is, which follows the session until that ends or its cell runs again; elsewhere once, as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..agent.harness import Harness
from ..agent.observe import Observer
from ..errors import DurableError
from ..records import TaskId
from ..values import JsonValue
from . import frontend, pressed
from .bridge import Bridge
from .displays import display, replace_live, request_name
from .following import Follower, GraphFollower, TimelineFollower, task_details
from .graphview import GraphView
from .render import mimebundle, to_text
from .timelineview import LIMIT, TimelineView
from .view import View

if TYPE_CHECKING:
    from .chat import Chat
    from .widgets import ViewWidget

__all__ = ["LiveView", "graph", "session_of", "timeline"]

V = TypeVar("V", bound=View)

_log = logging.getLogger(__name__)

_shown: dict[tuple[str, str], LiveView[Any]] = {}
"""What each cell shows: when it runs again, its earlier views need not go on."""


class LiveView(Generic[V]):
    """Something of a session, followed. ``view`` is its newest form."""

    def __init__(self, bridge: Bridge, follower: Follower[V], widget: Callable[[V], ViewWidget], name: str) -> None:
        self._bridge = bridge
        self._follower = follower
        self._make_widget = widget
        self._name = name
        self._shown_in: str | None = None
        self._widget: ViewWidget | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def view(self) -> V:
        """What is committed, as of the last look."""
        return self._follower.view

    def __repr__(self) -> str:
        return to_text(self.view)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return mimebundle(self.view)

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != request_name():
            self.show()

    def show(self) -> None:
        """Display it in the current cell: live where a front end is, else as it is now."""
        self._shown_in = request_name()
        if not frontend.live_frontend():
            display(mimebundle(self.view))
            return
        if (cell := frontend.cell_id()) is not None:
            before = _shown.get((cell, self._name))
            if before is not None:
                before.stop()
            _shown[cell, self._name] = self
        self._widget = widget = self._make_widget(self.view)
        bundle = widget._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        self._bridge.call_soon(self._start, widget, display(data, metadata=metadata, handle=True))

    def stop(self) -> None:
        """Follow no longer; what is shown stays as it is."""
        self._bridge.call_soon(self._stop)

    def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()

    def _start(self, widget: ViewWidget, handle: Any) -> None:
        self._stop()
        self._following = asyncio.get_running_loop().create_task(self._follow(widget, handle))

    async def _follow(self, widget: ViewWidget, handle: Any) -> None:
        try:
            await self._follower.follow(widget.show)
        except asyncio.CancelledError:
            _log.debug("%s is followed no longer", self._name)
        except DurableError as error:  # the session was closed or has failed, which its own displays say
            _log.debug("%s is followed no longer", self._name, exc_info=error)
        finally:
            asyncio.get_running_loop().run_in_executor(None, replace_live, widget, handle, self.view)


def session_of(chat: Chat) -> Harness | Observer:
    """What is followed: the session itself, or the observer of another process's."""
    from .observing import ObservedChat

    return chat.observer if isinstance(chat, ObservedChat) else chat.harness


def graph(chat: Chat) -> LiveView[GraphView]:
    """The tasks of a session as a tree, followed; blocking until the first form is read."""
    session = session_of(chat)

    async def select(message: Mapping[str, Any]) -> JsonValue:
        return await task_details(session, pressed.number(message, "task"))

    async def abort(message: Mapping[str, Any]) -> JsonValue:
        return await chat.harness.abort_task(TaskId(pressed.number(message, "task")))

    def widget(view: GraphView) -> ViewWidget:
        from .widgets_tasks import GraphWidget

        made = GraphWidget(view)
        pressed.connect(chat._bridge, made, {"select": select, "abort": abort})
        return made

    def held() -> str | None:
        words = chat.held()
        return None if words is None else f"the session {words}"

    follower = GraphFollower(session, held=held)
    chat._bridge.run(follower.load)
    return LiveView(chat._bridge, follower, widget, f"graph of {chat.name}")


def timeline(chat: Chat, limit: int = LIMIT) -> LiveView[TimelineView]:
    """What ran when in a session, followed; blocking until the first form is read. ``limit`` bounds its tasks."""

    def widget(view: TimelineView) -> ViewWidget:
        from .widgets_tasks import TimelineWidget

        return TimelineWidget(view)

    follower = TimelineFollower(session_of(chat), limit=limit)
    chat._bridge.run(follower.load)
    return LiveView(chat._bridge, follower, widget, f"timeline of {chat.name}")
