"""Following a session that another process works on, from this notebook (notebook.md, ``%durable open --observe``).

Nothing can be written through what is observed: everything that would raises ``StorageRequestError``, before anything
has happened. The owner may die and come back meanwhile; when nobody has the session, ``open`` takes it over.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from ..agent.observe import Observer, Owner, observe as observe_file
from ..agent.settings import RunLimits, Settings
from ..errors import NotebookError, SessionClosed
from . import frontend
from .branches import BranchesState
from .bridge import Bridge, engine
from .chat import Chat
from .displays import display, request_name
from .opened import check_name, mains, opened, session_name
from .opening import close_at_shutdown, real_path
from .opensession import OpenSession
from .render import mimebundle
from .view import StatusRow, StatusView, clock_time

__all__ = ["ObservedChat", "observe"]

LOOK_AGAIN = 0.5
"""Seconds after which a wait looks whether anybody still has the session open."""


class ObservedChat(Chat):
    """A session that another process has open, read and followed here.

    ``observer`` is the engine's object, for ``watch``, ``watch_task_graph``, ``lives`` and more; use it on the engine
    thread, through ``run``.
    """

    observed = True

    def __init__(
        self, session: OpenSession, name: str, *, line: Sequence[int], observer: Observer, label: str = ""
    ) -> None:
        super().__init__(session, name, label=label, line=line)
        self.observer = observer

    def _beside(self, name: str, label: str, line: Sequence[int]) -> Chat:
        return ObservedChat(self._session, name, line=line, observer=self.observer, label=label)

    def __repr__(self) -> str:
        return f"<ObservedChat {self.name} on {self.path}{' (closed)' if self.closed else ''}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return mimebundle(self.status())

    @property
    def owner(self) -> Owner | None:
        """Who has the session open now: pid, host and since when; ``None`` for nobody."""
        return self.observer.owner

    async def _wait(self) -> None:
        """Wait until the conversation is idle. Raises ``NotebookError`` when nobody has the session open."""
        async with self.conversation.watch() as watch:
            while watch.value.live.run is not None or any(item.type == "input" for item in watch.value.inbox.items):
                if self.owner is None:
                    raise NotebookError(f"nothing would end: nobody has {self.path} open")
                try:
                    await asyncio.wait_for(anext(watch), LOOK_AGAIN)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    raise SessionClosed(f"{self.path} is not observed any more") from None

    async def _stop(self, background: bool = False) -> bool:
        self.observer._storage.refuse()

    def status(self) -> StatusView:
        if not self.closed:
            self._check_open()
        return super().status()

    def _check_open(self) -> None:
        """Before anything is read: what is shown is the newest commit."""
        super()._check_open()
        self._bridge.run(self.observer.catch_up)

    async def _status(self) -> StatusView:
        view = await super()._status()
        if self.owner is None and view.state in ("running", "waiting"):
            return view.replaced(state="paused")  # what a dead process left goes on at the next opening
        return view

    async def _owner_rows(self) -> list[StatusRow]:
        owner = self.owner
        if owner is not None:
            who = "another process" if owner.pid is None else f"process {owner.pid} on {owner.host}"
            since = "" if owner.since is None else f", since {clock_time(owner.since)}"
            told = StatusRow(name="owner", value=f"{who}{since}")
        else:
            last = (await self.observer.lives())[-1]
            ended = {None: "was killed", "closed": "closed it", "failed": "lost it to an error"}[last.ended]
            told = StatusRow(name="owner", value=f"nobody · process {last.pid} {ended}", tone="warn")
        return [told, StatusRow(name="here", value="observed: it is read and followed, and nothing can be written")]

    def limit(self, **caps: float | int | None) -> RunLimits:
        """Refused: raises ``StorageRequestError``."""
        self.observer._storage.refuse()


def observe(path: str | os.PathLike[str], *, name: str | None = None, show: bool | None = None) -> ObservedChat:
    """Follow a session that another process has open, or that nobody has: it shows who, and what runs; blocking.

    ``path`` is a SQLite file or ``jsonl:DIR``. What is read is always the newest commit. A session that is observed
    here already is returned. Raises ``NotebookError`` for one that this kernel has open itself, and what
    ``pidurable_nb.observe`` raises.
    """
    text = os.fspath(path)
    key = name or session_name(text)
    bridge = engine()
    same = next((chat for chat in mains() if chat.path != ":memory:" and real_path(chat.path) == real_path(text)), None)
    if same is None:
        check_name(key)
        chat = bridge.run(_observe, bridge, text, key)
        close_at_shutdown(bridge)
    elif isinstance(same, ObservedChat):
        chat, key = same, same.name
    else:
        raise NotebookError(f"{text} is open here already, as {same.name}: it is seen there, and need not be observed")
    opened(chat, key)
    if show if show is not None else frontend.in_ipython():
        chat._shown_in = request_name()
        display(mimebundle(chat.status()))
    return chat


async def _observe(bridge: Bridge, path: str, name: str) -> ObservedChat:
    observer = await observe_file(path)
    try:
        harness = observer._follower
        if await harness.conversation(1) is None:
            raise NotebookError(f"{path} has no conversation yet: ask something where it is open, then observe it")
        branches = await harness.snapshot(BranchesState) or BranchesState()
        return ObservedChat(OpenSession(bridge, harness, Settings()), name, line=branches.line(""), observer=observer)
    except BaseException:
        await observer.close()
        raise
