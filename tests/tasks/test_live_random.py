"""Random trees of tasks on a live session, aborted, signalled, closed and killed at random (engine.md, section 7).

Where the core's property test checks decisions, this one checks that the shell carries them out: every task of every
tree ends, what is in memory agrees at each look, and no task ended before the work below it.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Phase, Task, TaskRun
from pidurable_nb.errors import DurableError
from pidurable_nb.records import TaskRecord

from .support import World, run


class Any_(Task[int, int], name="r.any"):
    """Does what chance says: the input is its depth, and each phase draws from its id and a counter."""

    class Run(Phase):
        turn: int = 0

        async def run(self, task: TaskRun[int, int]) -> None:
            chance = random.Random(f"{task.id}/{self.turn}/{task.input}")
            then = Any_.Run(turn=self.turn + 1)
            act = chance.choice(["spawn", "spawn", "sleep", "receive", "next", "yield", "end"])
            if self.turn > 3:
                act = "end"
            if act == "spawn" and task.input < 3:
                async with task.commit() as tx:
                    where: dict[str, Any] = {"owner": task.id}
                    if chance.random() < 0.3:
                        conversation = await tx.create_conversation(owner=task.id)
                        where = {"conversation": conversation.id, "background": chance.random() < 0.3}
                    children = [
                        await tx.create_task(Any_, task.input + 1, **where) for _ in range(chance.randint(1, 4))
                    ]
                    how = chance.choice(["wait", "fail_fast", "end", "next"])
                    if how == "wait":
                        tx.wait(children, then)
                    elif how == "fail_fast" and "owner" in where:
                        tx.wait(children, then, "fail_fast")
                    elif how == "end":
                        tx.next(Any_.Run(turn=4))
                    else:
                        tx.next(then)
            elif act == "sleep":
                await task.sleep_until(task.now() + chance.random() * 20, then)
            elif act == "receive":
                await task.receive("go", then, timeout=chance.random() * 20)
            elif act == "end":
                how = chance.choice(["complete", "complete", "fail", "raise"])
                if how == "complete":
                    await task.complete(self.turn)
                elif how == "fail":
                    await task.fail("by chance")
                else:
                    raise RuntimeError("by chance")
            else:
                if act == "yield":
                    await asyncio.sleep(chance.random() * 0.003)
                await task.next(then)

    @classmethod
    async def abort(cls, task: TaskRun[int, int]) -> None:
        await asyncio.sleep(0)
        if random.Random(task.id).random() < 0.1:
            raise RuntimeError("a broken abort handler")
        await task.aborted()


@pytest.mark.parametrize("seed", range(12))
def test_every_task_of_random_trees_ends_and_none_before_its_work(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        w = World(Any_, wakes=True).at(tmp_path)
        await w.open()
        for _ in range(6):
            await w.create(Any_, 0)
        w.harness.resume()
        for _ in range(40):
            live = sorted(w.harness._committed.tasks)
            act = chance.choice(["wait", "wait", "time", "time", "abort", "signal", "create", "reopen", "kill"])
            if act == "wait":
                await asyncio.sleep(0.002)
            elif act == "time":
                w.clock.advance(chance.random() * 15)
            elif act == "create":
                await w.create(Any_, 1)
            elif act == "reopen" and chance.random() < 0.5:
                await w.reopen()
            elif act == "kill" and chance.random() < 0.5:
                await w.kill()
            elif live and act == "abort":
                await w.harness.abort_task(chance.choice(live))
            elif live and act == "signal":
                try:
                    await w.harness.signal(chance.choice(live), "go", 1)
                except DurableError:
                    raise
            w.harness.resume()
            w.harness.validate()
        async with asyncio.timeout(15):
            while w.harness._committed.tasks:
                w.clock.advance(25)
                w.harness.resume()
                await asyncio.sleep(0.003)
        w.harness.validate()
        await check_ends(w)
        await w.harness.close()

    async def check_ends(w: World) -> None:
        records: dict[int, TaskRecord] = {record.id: record async for record in w.harness.tasks()}
        conversations = {record.id: record async for record in w.harness.conversations()}
        for record in records.values():
            above = record.owner
            if above is None and not record.background:
                owner = conversations[record.conversation_id].owner
                above = None if owner is None else owner.task
            if above is not None:
                assert record.ended_at is not None
                assert records[above].ended_at is not None
                assert record.ended_at <= records[above].ended_at, f"{above} ended before {record.id}, which it owns"
        for attempt in await w.harness.storage.attempts():
            assert attempt.end is not None

    run(main, timeout=40)
