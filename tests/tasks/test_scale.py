"""Many tasks, deep trees (quality.md's figures are in the benchmark; here is what must not break or recurse)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pidurable_nb import Phase, Task, TaskRun
from pidurable_nb.records import Aborted, ConversationId, Pending, Running, Sleeping, TaskId, TaskRecord, Terminal
from pidurable_nb.tasks.core import RESERVE_AT_ONCE, Mark, Orphan, Readiness, Reserve, SchedulerCore
from pidurable_nb.tasks.rules import change
from pidurable_nb.testing import eventually

from .support import run, world

DEEP = 5000
MANY = 10_000


def core_of(*records: TaskRecord) -> SchedulerCore:
    core = SchedulerCore(lambda record: Readiness(), lambda record: record.owner)
    core.loaded(records)
    core.resume()
    return core


def record(id: int, owner: int | None = None, state: Any = None) -> TaskRecord:
    state = Pending(checkpoint={"phase": "run"}) if state is None else state
    return TaskRecord(
        id=TaskId(id),
        conversation_id=ConversationId(1),
        kind="t.k",
        version=1,
        state=state,
        owner=None if owner is None else TaskId(owner),
    )


def test_an_abort_goes_down_a_deep_chain_and_comes_up_without_recursion() -> None:
    assert sys.getrecursionlimit() < DEEP
    live = {id: record(id, id - 1 if id > 1 else None) for id in range(1, DEEP + 1)}
    core = core_of(*live.values())
    live[1] = live[1].replaced(abort_requested=True)
    core.committed([live[1]], 1.0)
    order: list[int] = []
    while live:
        instructions = core.decide(2.0)
        assert instructions, f"nothing to do for {len(live)} live tasks"
        for instruction in instructions:
            if isinstance(instruction, Mark):
                for id in instruction.tasks:
                    live[id] = live[id].replaced(abort_requested=True)
                core.committed([live[id] for id in instruction.tasks], 2.0)
            elif isinstance(instruction, Reserve):
                for id, mode in instruction.tasks:
                    assert mode == "abort"
                    running = change(live.pop(id), "reserve", Running(checkpoint={"phase": "run"}), 2.0)
                    core.committed([running], 2.0)
                    core.started(id, mode, 2.0)
                    core.committed([change(running, "outcome", Terminal(outcome=Aborted()), 2.0)], 2.0)
                    core.stopped(id, 2.0, "done")
                    order.append(id)
    assert order == list(range(DEEP, 0, -1))
    core.validate()


def test_ten_thousand_sleepers_load_at_once_and_wake_in_order() -> None:
    count = 10_000
    instants = {id: 100.0 + (id * 7919) % count for id in range(1, count + 1)}
    records = [record(id, state=Sleeping(checkpoint={"phase": "run"}, until=at)) for id, at in instants.items()]
    before = time.process_time()
    core = core_of(*records)
    assert not core.active(0.0)
    assert core.next_wake() == 100.0
    woken: list[int] = []
    while len(woken) < count:
        for instruction in core.decide(1e6):
            assert isinstance(instruction, Reserve)
            woken.extend(id for id, _ in instruction.tasks)
    assert [instants[id] for id in woken] == sorted(instants.values())
    assert time.process_time() - before < 5.0  # a fifth of a second; what is quadratic takes minutes


class Chain(Task[int, int], name="t.chain"):
    class Down(Phase):
        async def run(self, task: TaskRun[int, int]) -> None:
            if task.input == 0:
                await task.complete(0)
                return
            async with task.commit() as tx:
                child = await tx.create_task(Chain, task.input - 1, owner=task.id)
                tx.wait([child], Chain.Up(child=child))

    class Up(Phase):
        child: int

        async def run(self, task: TaskRun[int, int]) -> None:
            [outcome] = await task.outcomes([self.child])
            await task.complete(outcome.result + 1)  # type: ignore[union-attr]


def test_a_chain_of_a_thousand_owners_runs_down_and_up() -> None:
    async def main() -> None:
        async with world(Chain) as w:
            id = await w.create(Chain, 1000)
            assert (await w.outcome(id)).result == 1000

    run(main, timeout=60)


class Link(Task[None, None], name="t.link"):
    """One of a chain of owners. It sleeps until it is aborted."""

    aborted: list[int] = []

    class Sleep(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.sleep_until(1e9, self)

    @classmethod
    async def abort(cls, task: TaskRun[None, None]) -> None:
        cls.aborted.append(task.id)
        await task.aborted()


def test_a_live_chain_of_five_thousand_owners_ends_bottom_up_over_a_close_and_a_crash(tmp_path: Path) -> None:
    async def main() -> None:
        assert sys.getrecursionlimit() < DEEP
        Link.aborted.clear()
        async with world(Link, path=tmp_path) as w:
            root = await w.harness.root()
            chain: list[TaskId] = []
            async with root.commit() as tx:
                for _ in range(DEEP):
                    chain.append(await tx.create_task(Link, None, owner=chain[-1] if chain else None))
            w.harness.resume()
            await eventually(lambda: w.harness.wake().at == 1e9, timeout=60)

            await w.reopen()
            w.harness.validate()
            graph = await w.harness.task_graph()
            assert {node.status for node in graph.tasks.values()} == {"sleeping"}
            assert [graph.tasks[id].owner for id in chain] == [None, *chain[:-1]]
            assert await w.harness.abort_task(chain[0]) == "marked"
            await eventually(lambda: len(Link.aborted) > 100, timeout=60)
            assert (await w.record(chain[0])).abort_requested
            await w.kill()
            w.harness.validate()
            assert (await w.outcome(chain[0])).status == "aborted"
            once = list(dict.fromkeys(Link.aborted))
            assert once == chain[::-1]
            assert len(Link.aborted) <= DEEP + 1  # at most the one that the crash cut off ran again
            ended = [record.ended_at for record in await w.harness.tasks(kind="t.link", status="terminal").list()]
            assert len(ended) == DEEP
            assert None not in ended
            assert (await w.harness.task_graph()).tasks == {}

    run(main, timeout=240)


class Alarm(Task[float, None], name="t.alarm"):
    """Sleeps until an instant, and says that it woke."""

    woken: list[float] = []

    class Sleep(Phase):
        async def run(self, task: TaskRun[float, None]) -> None:
            await task.sleep_until(task.input, Alarm.Awake())

    class Awake(Phase):
        async def run(self, task: TaskRun[float, None]) -> None:
            Alarm.woken.append(task.input)
            await task.complete()


def test_ten_thousand_sleeping_tasks_open_and_wake_in_the_order_of_their_time(tmp_path: Path) -> None:
    async def main() -> None:
        Alarm.woken.clear()
        instants = [2000.0 + (n * 7919) % MANY for n in range(MANY)]
        async with world(Alarm, path=tmp_path, wakes=True) as w:
            root = await w.harness.root()
            async with root.commit() as tx:
                for instant in instants:
                    await tx.create_task(Alarm, instant)
            w.harness.resume()
            await eventually(lambda: w.harness.wake().at == 2000.0, timeout=60)
            await w.harness.close()

            before = time.process_time()
            await w.open()
            await w.settled()
            assert time.process_time() - before < 10.0  # a third of a second; what is quadratic takes minutes
            assert w.harness.wake().at == 2000.0
            w.harness.validate()
            half = 2000.0 + MANY // 2
            w.clock.set(half)
            w.harness.resume()
            await eventually(lambda: w.harness.wake().at == half + 1, timeout=60)
            assert Alarm.woken == [2000.0 + n for n in range(MANY // 2 + 1)]
            w.clock.set(1e6)
            w.harness.resume()
            await eventually(lambda: len(Alarm.woken) == MANY, timeout=60)
            assert Alarm.woken == sorted(instants)
            await w.settled()

    run(main, timeout=240)


def test_tasks_without_code_are_given_up_in_batches() -> None:
    gone = Readiness("missing_task")
    core = SchedulerCore(lambda record: gone, lambda record: record.owner)
    core.loaded([record(id).replaced(abort_requested=True) for id in range(1, 2 * RESERVE_AT_ONCE + 2)])
    core.resume()
    batches: list[int] = []
    while instructions := core.decide(0.0):
        [orphan] = instructions
        assert isinstance(orphan, Orphan)
        batches.append(len(orphan.tasks))
    assert batches == [RESERVE_AT_ONCE, RESERVE_AT_ONCE, 1]


class Fan(Task[int, int], name="t.fan"):
    class Make(Phase):
        async def run(self, task: TaskRun[int, int]) -> None:
            async with task.commit() as tx:
                children = [await tx.create_task(Chain, 0, owner=task.id) for _ in range(task.input)]
                tx.wait(children, Fan.Done(), "fail_fast")

    class Done(Phase):
        async def run(self, task: TaskRun[int, int]) -> None:
            await task.complete(task.input)


def test_two_thousand_owned_tasks_run() -> None:
    async def main() -> None:
        async with world(Fan, Chain) as w:
            id = await w.create(Fan, 2000)
            assert (await w.outcome(id)).result == 2000

    run(main, timeout=60)
