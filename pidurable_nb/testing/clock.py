"""Time in tests: a clock that is set by hand, and waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

POLL = 0.005
"""Seconds between two looks of ``eventually``."""


class ManualClock:
    """A clock for ``clock=``: calling it gives the instant, in epoch seconds, that was set last."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)

    def __call__(self) -> float:
        return self._now

    def set(self, t: float) -> None:
        """Move to the instant ``t``, forwards or backwards."""
        self._now = float(t)

    def advance(self, s: float) -> None:
        """Move ``s`` seconds on."""
        self._now += s

    def __repr__(self) -> str:
        return f"ManualClock({self._now!r})"


async def eventually(predicate: Callable[[], T | Awaitable[T]], timeout: float = 5.0) -> T:
    """Wait until ``predicate()``, sync or async, returns something true, and return that.

    Raises ``AssertionError`` when that takes longer than ``timeout`` real seconds; a raise of the predicate passes.
    """
    deadline = time.monotonic() + timeout
    value: Any = None
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            try:
                value = await asyncio.wait_for(value, max(deadline - time.monotonic(), POLL))
            except TimeoutError:
                raise AssertionError(f"{_named(predicate)} did not answer within {timeout:g} s") from None
        if value:
            return value  # type: ignore[no-any-return]
        if time.monotonic() >= deadline:
            raise AssertionError(f"{_named(predicate)} did not come true within {timeout:g} s; it last gave {value!r}")
        await asyncio.sleep(POLL)


def _named(predicate: Callable[..., Any]) -> str:
    code = getattr(predicate, "__code__", None)
    name = getattr(predicate, "__qualname__", repr(predicate))
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
