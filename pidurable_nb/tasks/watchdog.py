"""The watchdog: notices code that blocks the engine's event loop (engine.md, section 7).

One daemon thread per process looks after every loop on which invocations run, and sleeps while there is none. Each look
asks the loop for a sign of life; a sign that is overdue means that something blocks the loop, and the stack of the
loop's thread says what. The report is made on the loop, once it is free again. A loop that stays blocked for
``GIVE_UP`` seconds is also named in the log, since it may never be free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

BLOCKED = 1.0
"""Seconds after which a call that blocks the loop is reported."""

GIVE_UP = 10.0
"""Seconds after which a blocked loop is named in the log as well."""

Blocked = Callable[["asyncio.Task[object] | None", str, float], None]
"""What is told: the asyncio task that ran, the stack, and for how long the loop was blocked."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    loop: asyncio.AbstractEventLoop
    thread: int
    blocked: Blocked
    bound: float
    asked_at: float | None = None
    stack: str | None = None
    task: asyncio.Task[object] | None = None
    logged: bool = False


@dataclass
class Watchdog:
    """Looks after loops. ``watch`` and ``unwatch`` are called on the loop's own thread, and are cheap."""

    _watched: dict[Hashable, _Watched] = field(default_factory=dict)
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def watch(self, key: Hashable, blocked: Blocked, bound: float = BLOCKED) -> None:
        """Look after the running loop until ``unwatch(key)``."""
        watched = _Watched(asyncio.get_running_loop(), threading.get_ident(), blocked, bound)
        with self._condition:
            self._watched[key] = watched
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="pidurable-watchdog", daemon=True)
                self._thread.start()
            self._condition.notify()

    def unwatch(self, key: Hashable) -> None:
        """Stop looking."""
        with self._condition:
            self._watched.pop(key, None)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._watched:
                    self._condition.wait()
                watched = list(self._watched.values())
            now = time.monotonic()
            for one in watched:
                self._look(one, now)
            time.sleep(min(one.bound for one in watched) / 4)

    def _look(self, one: _Watched, now: float) -> None:
        asked_at = one.asked_at  # the loop clears it at any time
        if asked_at is None:
            one.asked_at = now
            try:
                one.loop.call_soon_threadsafe(self._alive, one)
            except RuntimeError:  # the loop is closed, and its session was not
                self._forget(one)
            return
        if not one.loop.is_running():  # a loop that was stopped is not blocked
            one.asked_at = now
            if one.loop.is_closed():
                self._forget(one)
            return
        late = now - asked_at
        if late >= one.bound / 2 and one.stack is None:
            frame = sys._current_frames().get(one.thread)
            if frame is not None:
                one.stack = "".join(traceback.format_stack(frame))
                one.task = asyncio.current_task(one.loop)
        if late >= GIVE_UP and one.stack is not None and not one.logged:
            one.logged = True
            logger.warning("the event loop has been blocked for %.0f s by:\n%s", late, one.stack)

    def _forget(self, one: _Watched) -> None:
        with self._condition:
            for key in [key for key, kept in self._watched.items() if kept is one]:
                del self._watched[key]

    def _after_fork(self) -> None:
        """A forked child has neither the thread nor the loops, and perhaps a lock that nobody will release."""
        self._watched = {}
        self._condition = threading.Condition()
        self._thread = None

    @staticmethod
    def _alive(one: _Watched) -> None:
        """On the loop: the sign of life, and the report of what held it up."""
        late = time.monotonic() - (one.asked_at or 0.0)
        stack, task = one.stack, one.task
        one.stack = one.task = None
        one.logged = False
        one.asked_at = None
        if stack is not None and late >= one.bound * 3 / 4:  # it was asked up to a quarter after the loop was blocked
            one.blocked(task, stack, late)


watchdog = Watchdog()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog._after_fork)
