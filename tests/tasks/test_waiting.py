"""Waiting for tasks and sleeping (engine.md, sections 7 and 8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pidurable_nb import Phase, Task, TaskRun
from pidurable_nb.errors import DurableError, WaitCycle, WouldDeadlock
from pidurable_nb.tasks import scheduler
from pidurable_nb.testing import ManualClock, eventually

from .support import World, forever, run, world


class Part(Task[str, str], name="t.part"):
    """Does what its input says at once, or waits to be aborted."""

    class Run(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            if task.input == "fail":
                await task.fail("no")
            elif task.input == "hang":
                await forever()
            elif task.input == "raise":
                raise RuntimeError("broken")
            elif task.input == "slow":
                await asyncio.sleep(0.05)
                await task.complete("slow")
            else:
                await task.complete(task.input)


class Whole(Task[dict[str, Any], list[str]], name="t.whole"):
    class Run(Phase):
        async def run(self, task: TaskRun[Any, Any]) -> None:
            async with task.commit() as tx:
                parts = [await tx.create_task(Part, input, owner=task.id) for input in task.input["parts"]]
                if not task.input.get("late"):
                    tx.wait(parts, Whole.Read(parts=parts), task.input["policy"])
                    return
            for part in parts:
                if task.input["parts"][parts.index(part)] != "hang":
                    await task.wait_for_task(part)
            await task.wait(parts, Whole.Read(parts=parts), policy=task.input["policy"])

    class Read(Phase):
        parts: list[int]

        async def run(self, task: TaskRun[Any, Any]) -> None:
            await task.complete([outcome.status for outcome in await task.outcomes(self.parts)])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("policy", "parts", "statuses"),
    [
        ("all_settled", ["a", "fail", "raise"], ["completed", "failed", "faulted"]),
        ("fail_fast", ["a", "b"], ["completed", "completed"]),
        ("fail_fast", ["hang", "fail", "hang"], ["aborted", "failed", "aborted"]),
        ("fail_fast", ["raise", "hang"], ["faulted", "aborted"]),
        ("all_settled", [], []),
    ],
)
def test_a_wait_ends_by_its_policy(policy: str, parts: list[str], statuses: list[str], late: bool) -> None:
    async def main() -> None:
        async with world(Whole, Part) as w:
            id = await w.create(Whole, {"parts": parts, "policy": policy, "late": late})
            assert (await w.outcome(id)).result == statuses

    run(main)


def test_a_wait_that_was_rolled_back_leaves_nothing_behind() -> None:
    async def main() -> None:
        class Twice(Task[None, list[str]], name="t.again"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, list[str]]) -> None:
                    async with task.commit() as tx:
                        bad = await tx.create_task(Part, "fail", owner=task.id)
                        good = [await tx.create_task(Part, input, owner=task.id) for input in ("slow", "slow")]
                    await task.wait_for_task(bad)
                    with pytest.raises(WaitCycle):
                        await task.wait([bad, 99999], Twice.Read(parts=[]), policy="fail_fast")
                    await task.wait(good, Twice.Read(parts=good), policy="fail_fast")

            class Read(Phase):
                parts: list[int]

                async def run(self, task: TaskRun[None, list[str]]) -> None:
                    await task.complete([outcome.status for outcome in await task.outcomes(self.parts)])

        async with world(Twice, Part) as w:
            id = await w.create(Twice)
            w.harness.resume()
            await w.becomes(id, "waiting")
            assert (await w.outcome(id)).result == ["completed", "completed"]

    run(main)


def test_a_failed_target_found_at_open_aborts_the_rest(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Whole, Part).at(tmp_path)
        await w.open()
        id = await w.create(Whole, {"parts": ["hang", "fail"], "policy": "all_settled"})
        w.harness.resume()
        waiting = await w.becomes(id, "waiting")
        await w.becomes(waiting.state.on[1], "terminal")
        # As if the crash came after the failure was stored and before the rest was marked.
        from pidurable_nb.storage.protocol import PutTask

        fail_fast = waiting.replaced(state=waiting.state.replaced(policy="fail_fast"))
        await w.harness.storage.commit([PutTask(fail_fast)])
        await w.kill()
        assert (await w.outcome(id)).result == ["aborted", "failed"]
        await w.harness.close()

    run(main)


class Waiter(Task[dict[str, Any], str], name="t.waiter"):
    """Waits for the tasks of its input and reports how that went."""

    class Run(Phase):
        async def run(self, task: TaskRun[Any, Any]) -> None:
            for _ in range(20):
                try:
                    await task.wait(task.input["on"], Waiter.Done(), policy=task.input.get("policy", "all_settled"))
                    return
                except (WaitCycle, ValueError) as error:
                    await task.complete(f"{type(error).__name__}: {error}")
                    return

    class Done(Phase):
        async def run(self, task: TaskRun[Any, Any]) -> None:
            await task.complete("waited")


def test_impossible_waits_are_refused_and_named() -> None:
    async def main() -> None:
        async with world(Waiter, Part) as w:
            part = await w.create(Part, "hang")
            missing = await w.create(Waiter, {"on": [99999]})
            foreign = await w.create(Waiter, {"on": [part], "policy": "fail_fast"})
            assert "task 99999, which does not exist" in (await w.outcome(missing)).result
            assert f"does not own task {part}" in (await w.outcome(foreign)).result
            first = await w.create(Waiter, {"on": [part]})
            await w.becomes(first, "waiting")
            # A cycle over two waits: the part cannot wait, so another waiter closes it.
            second = await w.create(Waiter, {"on": [first]})
            await w.becomes(second, "waiting")
            await w.harness.abort_task(part)
            assert (await w.outcome(second)).result == "waited"

    run(main)


def test_two_tasks_that_wait_for_each_other_are_refused() -> None:
    async def main() -> None:
        ids: list[int] = []
        messages: list[str] = []

        class Mutual(Task[int, None], name="t.mutual"):
            class Run(Phase):
                async def run(self, task: TaskRun[int, None]) -> None:
                    other = ids[1 - task.input]
                    if task.input == 1:
                        await eventually(lambda: w.harness._committed.tasks[ids[0]].state.status == "waiting")
                    try:
                        await task.wait([other], Mutual.Done())
                    except WaitCycle as error:
                        messages.append(str(error))
                        await task.complete()

            class Done(Phase):
                async def run(self, task: TaskRun[int, None]) -> None:
                    await task.complete()

        async with world(Mutual) as w:
            ids += [await w.create(Mutual, 0), await w.create(Mutual, 1)]
            for id in ids:
                assert (await w.outcome(id)).status == "completed"
            assert messages == [f"task {ids[1]} would wait for itself: {ids[1]} → {ids[0]} → {ids[1]}"]

    run(main)


def test_waiting_in_memory_for_what_depends_on_oneself_would_deadlock() -> None:
    async def main() -> None:
        seen: list[str] = []

        class Selfish(Task[None, None], name="t.selfish"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    for call in (
                        lambda: task.wait_for_task(task.id),
                        lambda: w.harness.wait_for_task(task.id),
                        lambda: asyncio.gather(w.harness.wait_for_task(task.id)),
                        lambda: w.harness.close(),
                    ):
                        with pytest.raises(WouldDeadlock) as error:
                            await call()
                        seen.append(str(error.value))
                    await task.complete()

        async with world(Selfish) as w:
            id = await w.create(Selfish)
            assert (await w.outcome(id)).status == "completed"
            assert len(seen) == 4

    run(main)


def test_outcomes_of_tasks_that_have_none_are_refused() -> None:
    async def main() -> None:
        class Early(Task[None, str], name="t.early"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, str]) -> None:
                    try:
                        await task.outcomes([task.id])
                    except DurableError as error:
                        await task.complete(str(error))

        async with world(Early) as w:
            assert "has no outcome yet" in (await w.outcome(await w.create(Early))).result

    run(main)


# -- sleeping --------------------------------------------------------------------------------------------------------


class Alarm(Task[float, float], name="t.alarm"):
    class Run(Phase):
        async def run(self, task: TaskRun[float, float]) -> None:
            await task.sleep_until(task.input, Alarm.Awake())

    class Awake(Phase):
        async def run(self, task: TaskRun[float, float]) -> None:
            await task.complete(task.now())


def test_a_sleep_survives_reopening_and_ends_at_its_time(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Alarm, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(Alarm, 5000.0)
        w.harness.resume()
        await w.becomes(id, "sleeping")
        for restart in (w.reopen, w.kill, w.reopen):
            await restart()
            w.harness.resume()
            await w.settled()
            assert w.harness.wake().at == 5000.0
            assert await w.status(id) == "sleeping"
        w.clock.set(4999.9)
        w.harness.resume()
        await w.settled()
        assert await w.status(id) == "sleeping"  # woken too early, it sleeps on
        w.clock.set(5000.0)
        assert w.harness.wake().active
        w.harness.resume()
        assert (await w.outcome(id)).result == 5000.0
        assert (await w.record(id)).restarts == 0
        await w.harness.close()

    run(main)


def test_a_clock_that_jumps_back_and_forth_loses_no_sleep() -> None:
    async def main() -> None:
        async with world(Alarm, wakes=True) as w:
            id = await w.create(Alarm, 2000.0)
            w.harness.resume()
            await w.becomes(id, "sleeping")
            w.clock.set(2500.0)
            assert w.harness.wake().active  # the alarm rings
            w.clock.set(1500.0)  # and the clock goes back before anybody looks
            w.harness.resume()
            await w.settled()
            assert (await w.status(id), w.harness.wake().at) == ("sleeping", 2000.0)
            w.clock.set(2000.0)
            w.harness.resume()
            assert (await w.outcome(id)).status == "completed"

    run(main)


def test_without_a_host_the_wall_clock_is_compared_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(scheduler, "LONGEST_NAP", 0.01)
        async with world(Alarm) as w:
            id = await w.create(Alarm, 100_000.0)
            w.harness.resume()
            await w.becomes(id, "sleeping")
            w.clock.set(100_000.0)  # the laptop slept: no timer has run, and nobody calls resume
            assert (await asyncio.wait_for(w.harness.wait_for_task(id), 5)).state.outcome.status == "completed"

    assert scheduler.LONGEST_NAP == 30.0
    run(main)


def test_many_sleeps_wake_in_order_of_their_time() -> None:
    async def main() -> None:
        order: list[int] = []

        class Ordered(Task[int, None], name="t.ordered"):
            class Run(Phase):
                async def run(self, task: TaskRun[int, None]) -> None:
                    await task.sleep_until(2000.0 + task.input, Ordered.Awake())

            class Awake(Phase):
                async def run(self, task: TaskRun[int, None]) -> None:
                    order.append(task.input)
                    await task.complete()

        async with world(Ordered, wakes=True, clock=ManualClock(1000.0)) as w:
            ids = [await w.create(Ordered, n) for n in (5, 1, 4, 2, 3)]
            w.harness.resume()
            for id in ids:
                await w.becomes(id, "sleeping")
            w.clock.set(3000.0)
            w.harness.resume()
            for id in ids:
                await w.outcome(id)
            assert order == [1, 2, 3, 4, 5]

    run(main)
