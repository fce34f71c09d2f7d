"""Notifications that a run has ended, or that it waits for a person (notebook.md, ``%durable notify``).

A *notice* is a title and a line. Where a live front end is, it goes to a widget: its page makes a notification of the
browser of it, while nobody sees the page and where the person has allowed that. In a terminal it rings the bell, and
goes out as an escape sequence that many terminals show as a notification of the desktop (OSC 9). Elsewhere nobody
waits for one.

``notify(True)`` follows the sessions that are open, and those that are opened later, until ``notify(False)``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..agent.conversation import Conversation
from ..agent.harness import Harness
from ..agent.state import LiveState
from ..errors import DurableError
from ..records import ConversationId
from ..session import Publication
from ..session.documents import instance_of
from ..values import Value
from . import frontend
from .bridge import engine
from .displays import display, replace_live
from .opened import listen, sessions
from .render import mimebundle
from .view import StatusRow, StatusView, clean_output, clip_line, compact_arguments

if TYPE_CHECKING:
    pass

__all__ = ["Notice", "notices", "notify"]


class Notice(Value):
    """What a person is told: ``title`` what happened, ``body`` in what. ``tag`` tells notices of a page apart."""

    title: str
    body: str
    tag: str


def news(before: LiveState, after: LiveState) -> Iterator[str]:
    """What a change of a conversation is worth telling, in words. A person who stopped a run knows that it ended."""
    known = {item.call for item in before.approvals}
    for item in after.approvals:
        if item.call not in known:
            arguments = compact_arguments(item.arguments, 60) if item.arguments else ""
            yield f"waits for you, to allow {item.name}({arguments})"
    ended = before.run is not None and (after.run is None or after.run.first != before.run.first)
    failure = after.run_failure if after.run is None else None
    if ended and failure is None:
        yield "the answer is there"
    elif ended and failure is not None and failure.reason != "aborted":
        yield "there is no answer"


async def notices(harness: Harness, publication: Publication) -> list[Notice]:
    """What a commit is worth telling. Conversations of tasks, of a subagent say, belong to the run that has them."""
    found: list[Notice] = []
    for address, change in publication.documents.items():
        if address.kind != LiveState.spec_.kind or change.after is None or address.scope_id is None:
            continue
        before = LiveState() if change.before is None else instance_of(LiveState, change.before)
        said = list(news(before, instance_of(LiveState, change.after)))
        if not said:
            continue
        id = ConversationId(address.scope_id)
        record = await harness._read(harness.storage.conversation(id))
        if record is None or record.owner is not None:
            continue
        run = instance_of(LiveState, change.after).run or before.run
        asked = None if run is None else await Conversation(harness, id).entry(run.first)
        body = "" if asked is None else clip_line(clean_output(asked.text), 100)
        found += [Notice(title=clean_output(title), body=body, tag=f"{harness.storage.name} {id}") for title in said]
    return found


class _Notifier:
    """What is followed, and where it is told. Its methods run on the engine thread, but for ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.widget: Any = None
        self.handle: Any = None
        self._following: dict[Harness, asyncio.Task[None]] = {}
        self._unlisten = listen(lambda chat: engine().call_soon(self.follow, chat.harness))

    def start(self) -> None:
        for chat in sessions():
            engine().call_soon(self.follow, chat.harness)

    def stop(self) -> None:
        self._unlisten()
        engine().call_soon(self._stop)

    def _stop(self) -> None:
        for task in self._following.values():
            task.cancel()
        self._following.clear()
        if self.widget is not None:
            asyncio.get_running_loop().run_in_executor(None, replace_live, self.widget, self.handle, _view(False))

    def follow(self, harness: Harness) -> None:
        """Follow a session, once."""
        if harness not in self._following and harness.end is None:
            self._following[harness] = asyncio.get_running_loop().create_task(self._follow(harness))

    async def _follow(self, harness: Harness) -> None:
        try:
            async with harness.watch_commits() as watch:
                async for change in watch:
                    for notice in await notices(harness, change.value):
                        self.tell(notice)
        except DurableError:
            return  # the session has ended, which its own displays say
        finally:
            self._following.pop(harness, None)

    def tell(self, notice: Notice) -> None:
        if self.widget is not None:
            self.widget.say({"news": notice.to_data()})
        elif frontend.in_ipython() and not frontend.in_kernel():
            ring(notice)


def ring(notice: Notice) -> None:
    """Tell it in a terminal."""
    terminal = sys.__stdout__
    if terminal is None or not terminal.isatty():
        return
    line = f"{notice.title}: {notice.body}" if notice.body else notice.title
    terminal.write(f"\x1b]9;{line}\x1b\\\a")
    terminal.flush()


_notifier: _Notifier | None = None


def _view(on: bool) -> StatusView:
    if not on:
        return StatusView(title="notifications are off", state="closed")
    what = "a run ends, or waits for you"
    where = "while this page is hidden" if frontend.live_frontend() else "in the terminal"
    return StatusView(title="notifications are on", rows=(StatusRow(name="when", value=f"{what}, {where}"),))


def notify(on: bool) -> None:
    """Tell from now on, or no longer, when a run ends or waits for a person; says so in the current cell."""
    global _notifier
    before, _notifier = _notifier, None
    if before is not None:
        before.stop()
    view = _view(on)
    if not on:
        display(mimebundle(view))
        return
    _notifier = _Notifier()
    if frontend.live_frontend():
        from .widgets_notify import NotifyWidget

        widget = NotifyWidget(view)
        bundle = widget._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        _notifier.widget, _notifier.handle = widget, display(data, metadata=metadata, handle=True)
    else:
        display(mimebundle(view))
    _notifier.start()
