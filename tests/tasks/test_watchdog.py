"""The watchdog outlives loops that stop or close, and never takes one for blocked (engine.md, section 7)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pidurable_nb.tasks.watchdog import Watchdog


def test_a_loop_that_is_stopped_is_not_blocked_and_a_closed_one_is_forgotten() -> None:
    watchdog = Watchdog()
    told: list[Any] = []
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        watchdog.watch("one", lambda task, stack, seconds: told.append(stack), bound=0.04)
        await asyncio.sleep(0.03)

    async def go_on() -> None:
        await asyncio.sleep(0.03)

    loop.run_until_complete(begin())
    time.sleep(0.15)  # nobody runs the loop: its queue must not grow either
    assert len(loop._ready) <= 1  # type: ignore[attr-defined]
    loop.run_until_complete(go_on())
    loop.close()
    deadline = time.monotonic() + 5
    while watchdog._watched and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not watchdog._watched
    assert not told


def test_a_blocked_loop_is_told_of_once_it_is_free() -> None:
    watchdog = Watchdog()
    told: list[Any] = []

    async def main() -> None:
        watchdog.watch("one", lambda task, stack, seconds: told.append((task, stack, seconds)), bound=0.08)
        await asyncio.sleep(0.05)
        hold()
        assert not told
        await asyncio.sleep(0.05)
        watchdog.unwatch("one")
        assert told[0][0] is asyncio.current_task()

    def hold() -> None:
        time.sleep(0.3)

    asyncio.run(main())
    [(_, stack, seconds)] = told
    assert "in hold" in stack
    assert 0.2 < seconds < 5
