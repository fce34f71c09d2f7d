"""A crash right before and right after every commit: whatever it hits, the work ends as it would have without it.

The storage dies as a process would (``KillSwitch``), and the file is opened again. Real processes are killed by the
crash sweep; this one is fast enough to try every commit of every scenario.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Phase, SqliteStorage, StoredTask, Task, TaskRun, workflow
from pidurable_nb.records import Attempt
from pidurable_nb.storage.protocol import BatchItem
from pidurable_nb.testing import KillSwitch, ManualClock, eventually

from .support import World, run


class Dying(KillSwitch):
    """Dies at its n-th commit, before or after it is stored."""

    def __init__(self, storage: Any, at: int | None, stored: bool) -> None:
        super().__init__(storage)
        self.commits = 0
        self._at = at
        self._stored = stored

    async def commit(self, batch: Iterable[BatchItem], *, at: float | None = None) -> int:
        self.commits += 1
        if self.commits != self._at:
            return await super().commit(batch, at=at)
        if self._stored:
            await self._storage.commit(batch, at=at)
        self.kill()
        return await super().commit(batch, at=at)


# -- scenarios -------------------------------------------------------------------------------------------------------

aborted: list[str] = []


class Payment(Task[str, str], name="c.payment"):
    class Authorize(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            await task.next(Payment.Capture(key=f"key-{task.id}"))

    class Capture(Phase):
        key: str

        async def run(self, task: TaskRun[str, str]) -> None:
            if task.input == "refused":
                await task.fail("refused")
            elif task.input == "slow":
                await task.sleep_until(task.now() + 1000, Payment.Capture(key="late"))
            else:
                async with task.commit() as tx:
                    await tx.append_entry("c.receipt", data={"card": task.input})
                    tx.complete(task.input)

    @classmethod
    async def abort(cls, task: TaskRun[str, str]) -> None:
        aborted.append(task.input)
        await task.aborted()


class Checkout(Task[list[str], list[str]], name="c.checkout"):
    class Start(Phase):
        async def run(self, task: TaskRun[list[str], list[str]]) -> None:
            async with task.commit() as tx:
                payments = [await tx.create_task(Payment, card, owner=task.id) for card in task.input]
                tx.wait(payments, Checkout.Finish(payments=payments), "fail_fast")

    class Finish(Phase):
        payments: list[int]

        async def run(self, task: TaskRun[list[str], list[str]]) -> None:
            await task.complete([outcome.status for outcome in await task.outcomes(self.payments)])


class Nest(Task[int, list[int]], name="c.nest"):
    """Owns a task below it and ends before that does; the one at the bottom works in a conversation that it owns."""

    class Run(Phase):
        async def run(self, task: TaskRun[int, list[int]]) -> None:
            async with task.commit() as tx:
                if task.input:
                    await tx.create_task(Nest, task.input - 1, owner=task.id)
                else:
                    conversation = await tx.create_conversation(owner=task.id)
                    await tx.create_task(Payment, "below", conversation=conversation.id)
                tx.next(Nest.End())

    class End(Phase):
        async def run(self, task: TaskRun[int, list[int]]) -> None:
            await task.complete([task.input])


class Moving(Task[None, str], name="c.moving", version=2):
    class Rest(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            await task.sleep_until(task.now() + 50, Moving.Last())

    class Last(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            await task.complete("moved")

    @classmethod
    def migrate(cls, stored: StoredTask) -> tuple[None, Phase]:
        assert stored.version == 1
        return None, Moving.Rest()


class OldMoving(Task[None, str], name="c.moving", version=1):
    class First(Phase):
        pass


async def double(n: int) -> int:
    return n * 2


@workflow("c.flow")
async def flow(run: Any) -> list[Any]:
    first = await run.step("double", double, 4)
    await run.sleep(30)
    pair = await run.gather(run.step("a", double, 1), run.child(Payment, "in a flow"))
    return [first, pair, await run.receive("go")]


async def abort_it(w: World, id: int) -> None:
    def asleep() -> bool:
        return [task.state.status for task in w.harness._committed.tasks.values()] == [
            "waiting",
            "sleeping",
            "sleeping",
        ]

    async def ready() -> bool:
        return (await w.record(id)).abort_requested or asleep()

    await eventually(ready)
    await w.harness.abort_task(id)


async def say_go(w: World, id: int) -> None:
    await w.harness.signal(id, "go", "gone", request_id="once")


SCENARIOS: dict[str, tuple[Any, Any, Any, Callable[[World, int], Any] | None]] = {
    "four payments": (Checkout, ["a", "b", "c", "d"], ("completed", ["completed"] * 4), None),
    "nested owners": (Nest, 3, ("completed", [3]), None),
    "a migration and a sleep": (OldMoving, None, ("completed", "moved"), None),
    "a workflow and a signal": (flow, None, ("completed", [8, [2, "in a flow"], "gone"]), say_go),
    "an abort while payments run": (Checkout, ["slow", "slow"], ("aborted", None), abort_it),
    "fail fast": (Checkout, ["slow", "refused", "slow"], ("completed", ["aborted", "failed", "aborted"]), None),
}


async def play(w: World, scenario: str) -> Any:
    """Create the scenario's task unless it is stored, and run it to its end; ``None`` when the storage died."""
    task, input, _, act = SCENARIOS[scenario]
    found = [record async for record in w.harness.tasks() if record.owner is None and record.conversation_id == 1]
    id = found[0].id if found else await w.create(task, input)
    w.harness.resume()
    if act is not None:
        await act(w, id)
    while not (record := await w.record(id)).terminal:
        w.harness.resume()
        wake = w.harness.wake()
        if wake.at is not None and scenario not in ("fail fast", "an abort while payments run"):
            w.clock.set(wake.at)
        await asyncio.sleep(0.001)
    return record


async def dies(w: World, work: Any) -> Any:
    """The result of work, or ``None`` once the storage is dead."""
    task = asyncio.ensure_future(work)
    while not task.done() and not w.switch.killed:
        await asyncio.wait([task], timeout=0.005)
    if task.done():
        return task.result()
    task.cancel()
    return None


async def once(path: Path, scenario: str, at: int | None, stored: bool) -> tuple[Any, int, list[Attempt]]:
    w = World(Checkout, Payment, Nest, Moving, flow, clock=ManualClock(1000.0), wakes=True)
    w._path = path
    await open_dying(w, at, stored)
    record = await dies(w, play(w, scenario))
    commits = w.switch.commits  # type: ignore[attr-defined]
    if w.switch.killed:
        await open_dying(w, None, False)
        record = await play(w, scenario)
    w.harness.validate()
    ids = [task.id async for task in w.harness.tasks()]
    assert ids == sorted(set(ids))
    assert all([task.terminal async for task in w.harness.tasks()])
    attempts = await w.harness.storage.attempts()
    assert not w.reports, [str(report) for report in w.reports]
    await w.harness.close()
    return record, commits, attempts


async def open_dying(w: World, at: int | None, stored: bool) -> None:
    from pidurable_nb import Harness

    w.switch = Dying(await SqliteStorage.open(w._path), at, stored)
    w.harness = await Harness.open(
        w.switch, registry=w.registry, clock=w.clock, on_report=w.reports.append, on_wake=w.wakes.append
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_crash_at_any_commit_changes_nothing_in_the_end(tmp_path: Path, scenario: str) -> None:
    async def main() -> None:
        _, commits, _ = await once(tmp_path / "whole.sqlite", scenario, None, False)
        assert 5 < commits < 60
        for at in range(1, commits + 1):
            for stored in (False, True):
                record, _, attempts = await once(tmp_path / f"{at}-{stored}.sqlite", scenario, at, stored)
                outcome = record.state.outcome
                told = (outcome.status, getattr(outcome, "result", None))
                assert told == SCENARIOS[scenario][2], f"killed {'after' if stored else 'before'} commit {at}"
                assert all(attempt.end is not None for attempt in attempts), f"killed at commit {at}"

    run(main, timeout=120)
