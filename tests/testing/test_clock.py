"""A clock set by hand, and waiting for a condition (api.md, "Testing")."""

from __future__ import annotations

import asyncio

import pytest

from pidurable_nb.testing import ManualClock, eventually


def test_a_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock()
    assert clock() == clock() == 0.0
    clock.advance(1.5)
    assert clock() == 1.5
    clock.set(100)
    assert clock() == 100.0
    clock.set(7.0)
    assert clock() == 7.0
    assert ManualClock(start=3)() == 3.0
    assert repr(clock) == "ManualClock(7.0)"


def test_eventually_returns_what_became_true() -> None:
    async def main() -> None:
        found: list[int] = []
        asyncio.get_running_loop().call_later(0.03, found.append, 7)
        assert await eventually(lambda: found) == [7]

        async def asked() -> str | None:
            await asyncio.sleep(0)
            return "yes" if found else None

        assert await eventually(asked) == "yes"

    asyncio.run(main())


def test_eventually_says_what_did_not_come_true() -> None:
    async def never() -> int:
        return 0

    async def hangs() -> int:
        await asyncio.sleep(60)
        return 1

    async def main() -> None:
        with pytest.raises(AssertionError, match=r"never \(.*test_clock\.py:\d+\) did not come true.*last gave 0"):
            await eventually(never, timeout=0.02)
        with pytest.raises(AssertionError, match=r"hangs .*did not answer within 0\.02 s"):
            await eventually(hangs, timeout=0.02)
        with pytest.raises(ZeroDivisionError):
            await eventually(lambda: 1 / 0)

    asyncio.run(main())
