"""Watches: committed state, followed (engine.md, section 14).

A *watch* starts from the committed state and delivers every later change, in order, one at a time. A *frame* is a
change not yet delivered; at most 100 are kept, then they become one that holds the newest value. Commits never wait for
a watcher: the session hands frames over and goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Generic, Literal, Self, TypeVar

from ..errors import DurableError
from ..patch import Op, Ops
from ..values import JsonValue

T = TypeVar("T")

MAX_FRAMES = 100


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A new value, and the operations that led to it from the one before (``pidurable_nb.patch``)."""

    value: T
    ops: Ops


@dataclass(frozen=True, slots=True)
class WatchEnd:
    """Why a watch ended; ``error`` is the session's or the watcher's where there was one."""

    reason: Literal["stopped", "cancelled", "closed", "failed", "retired"]
    error: BaseException | None = None


class Watch(Generic[T]):
    """Follow a value: ``async with harness.watch_…() as watch``, then ``async for change in watch``.

    ``watch.value`` is the state at attachment and moves with each change. A watch is its own iterator: iteration can
    stop and go on. It ends when the block is left, and when the session closes or fails; ``watch.end`` says why.
    """

    def __init__(
        self,
        attach: Callable[[Watch[T]], T] | Callable[[Watch[T]], Awaitable[T]],
        detach: Callable[[Watch[T]], None],
        dump: Callable[[T], JsonValue],
    ) -> None:
        self._attach = attach
        self._detach = detach
        self._dump = dump
        self._frames: deque[Change[T]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._value: T
        self.address: object = None  # the document that it keeps in memory
        self.end: WatchEnd | None = None

    @property
    def value(self) -> T:
        """The newest value that was delivered, at first the one at attachment."""
        return self._value

    async def __aenter__(self) -> Self:
        value = self._attach(self)
        self._value = (await value) if isawaitable(value) else value
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        self._finish(WatchEnd("cancelled" if cancelled else "stopped"))

    def __aiter__(self) -> AsyncIterator[Change[T]]:
        return self

    async def __anext__(self) -> Change[T]:
        if not hasattr(self, "_value"):
            raise DurableError("this watch is not attached: use `async with … as watch` around the iteration")
        while not self._frames:
            if self.end is not None:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        change = self._frames.popleft()
        self._value = change.value
        return change

    def _push(self, value: T, ops: list[Op]) -> None:
        """Hand over a frame (called by the session, on its loop)."""
        if self.end is not None:
            return
        if len(self._frames) >= MAX_FRAMES:
            self._frames.clear()
            ops = [{"op": "replace", "path": "", "value": self._dump(value)}]
        self._frames.append(Change(value, ops))
        self._wake()

    def _finish(self, end: WatchEnd) -> None:
        """End the watch once; frames that were handed over are still delivered."""
        if self.end is None:
            self.end = end
            self._detach(self)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
