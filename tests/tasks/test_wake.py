"""What a host is told, what starts scheduling, and the pass that follows an opening (engine.md, sections 7 and 8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Phase, StoredTask, Task, TaskRun, Wake
from pidurable_nb.records import Completed, Running, Sleeping, Terminal, Waiting
from pidurable_nb.storage.protocol import PutTask

from .support import World, run, world


class Quiet(Task[Any, None], name="t.quiet", version=2):
    """Notes whatever runs of it."""

    log: list[str] = []

    class Run(Phase):
        async def run(self, task: TaskRun[Any, None]) -> None:
            Quiet.log.append("run")
            await task.complete()

    @classmethod
    def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
        Quiet.log.append("migrate")
        return None, cls.Run()

    @classmethod
    async def abort(cls, task: TaskRun[Any, None]) -> None:
        Quiet.log.append("abort")
        await task.aborted()


@pytest.fixture(autouse=True)
def a_fresh_log() -> None:
    Quiet.log.clear()


CHECKPOINT: dict[str, Any] = {"phase": "run"}


async def opened(w: World, **changes: Any) -> int:
    """Reopen a session with one task that was left as the changes say; nothing has asked to run it."""
    id = await w.create(Quiet)
    record = (await w.record(id)).replaced(**changes)
    await w.harness.storage.commit([PutTask(record)])
    await w.kill()
    await w.settled_recovery()
    return id


@pytest.mark.parametrize(
    ("changes", "wake"),
    [
        ({}, Wake(True)),
        ({"state": Running(checkpoint=CHECKPOINT)}, Wake(True)),  # what a dead process left
        ({"state": Waiting(checkpoint=CHECKPOINT, on=())}, Wake(True)),  # settled
        ({"state": Sleeping(checkpoint=CHECKPOINT, until=1000.0)}, Wake(True)),  # due
        ({"state": Sleeping(checkpoint=CHECKPOINT, until=1000.5)}, Wake(False, 1000.5)),
        ({"state": Waiting(checkpoint=CHECKPOINT, on=(), signal="go", until=1001.0)}, Wake(False, 1001.0)),
        ({"state": Waiting(checkpoint=CHECKPOINT, on=(), signal="go")}, Wake(False)),
        ({"state": Sleeping(checkpoint=CHECKPOINT, until=5000.0), "abort_requested": True}, Wake(True)),  # drained
        ({"kind": "t.unknown"}, Wake(False)),  # blocked
        ({"version": 3}, Wake(False)),
        ({"version": 1}, Wake(True)),
    ],
)
def test_a_paused_session_says_whether_there_is_work(tmp_path: Path, changes: dict[str, Any], wake: Wake) -> None:
    async def main() -> None:
        async with world(Quiet, path=tmp_path, wakes=True) as w:
            id = await opened(w, **changes)
            before = await w.record(id)
            assert w.harness.wake() == wake
            assert w.wakes[-1] == wake
            assert (await w.harness.inspect()).scheduling == "paused"
            # Neither the pass after the opening nor reading has migrated, ended or started anything.
            await asyncio.sleep(0.02)
            assert (await w.record(id), Quiet.log) == (before, [])

    run(main)


def test_waits_are_active_as_soon_as_what_they_wait_for_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(Quiet, path=tmp_path, wakes=True) as w:
            other = await w.create(Quiet)
            id = await w.create(Quiet)
            target, waiting = await w.record(other), await w.record(id)
            on = Waiting(checkpoint=CHECKPOINT, on=(target.id,))
            asleep = target.replaced(state=Sleeping(checkpoint=CHECKPOINT, until=9000.0))
            await w.harness.storage.commit([PutTask(waiting.replaced(state=on)), PutTask(asleep)])
            await w.kill()
            await w.settled_recovery()
            assert w.harness.wake() == Wake(False, 9000.0)
            gone = target.replaced(state=Terminal(outcome=Completed(result=None)), ended_at=1.0)
            await w.harness.storage.commit([PutTask(gone)])
            await w.kill()
            await w.settled_recovery()
            assert w.harness.wake() == Wake(True)

    run(main)


async def submit(w: World) -> None:
    await (await w.harness.root()).submit("hi")


async def compact(w: World) -> None:
    await (await w.harness.root()).compact()


async def abort_another(w: World) -> None:
    other = next(task.id for task in w.harness._committed.tasks.values() if task.input == "another")
    await w.harness.abort_task(other)


async def abort_conversation(w: World) -> None:
    await (await w.harness.create_conversation()).abort()


async def wait_for_idle(w: World) -> None:
    await (await w.harness.root()).wait_for_idle()


async def wait_for_all(w: World) -> None:
    await w.harness.wait_for_idle()


async def wait_for_another(w: World) -> None:
    await w.harness.wait_for_task(next(iter(w.harness._committed.tasks.values())).id)


@pytest.mark.parametrize(
    "ask", [submit, compact, abort_another, abort_conversation, wait_for_idle, wait_for_all, wait_for_another]
)
def test_asking_for_progress_starts_scheduling(ask: Any) -> None:
    async def main() -> None:
        async with world(Quiet, wakes=True) as w:
            id = await w.create(Quiet)
            await w.create(Quiet, "another")
            assert (await w.harness.inspect()).scheduling == "paused"
            await ask(w)
            assert (await w.harness.inspect()).scheduling == "running"
            assert (await w.outcome(id)).status == "completed"

    run(main)


def test_reading_never_starts_scheduling() -> None:
    async def main() -> None:
        async with world(Quiet, wakes=True) as w:
            id = await w.create(Quiet)
            harness, root = w.harness, await w.harness.root()
            await harness.task(id)
            await harness.tasks().list()
            await harness.submissions().list()
            await harness.conversations().list()
            await harness.task_graph()
            await harness.story(id)
            await harness.usage()
            await root.view()
            await root.context()
            await root.agent()
            await root.entries().list()
            async with root.watch(), root.watch_events(), harness.watch_task_graph(), harness.watch_commits():
                pass
            assert harness.wake() == Wake(True)
            await asyncio.sleep(0.02)
            assert (await w.status(id), Quiet.log) == ("pending", [])
            assert (await harness.inspect()).scheduling == "paused"

    run(main)


def test_with_a_host_a_sleep_ends_only_when_it_resumes(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(Quiet, path=tmp_path, wakes=True) as w:
            id = await opened(w, state=Sleeping(checkpoint=CHECKPOINT, until=1000.01))
            w.harness.resume()
            await asyncio.sleep(0.02)  # the driver has looked
            assert w.wakes[-1] == Wake(False, 1000.01)
            w.clock.set(2000.0)
            await asyncio.sleep(0.05)  # a timer of ours would have rung
            assert (await w.status(id), Quiet.log) == ("sleeping", [])
            w.harness.resume()
            assert (await w.outcome(id)).status == "completed"

    run(main)


def test_a_session_that_closes_tells_its_host_nothing_more() -> None:
    async def main() -> None:
        async with world(Quiet, wakes=True) as w:
            await w.settled_recovery()
            told = list(w.wakes)
            root = await w.harness.root()
            entered, release = asyncio.Event(), asyncio.Event()

            async def create() -> None:
                async with root.commit() as tx:
                    await tx.create_task(Quiet, None)
                    entered.set()
                    await release.wait()

            creating = asyncio.create_task(create())
            await entered.wait()
            closing = asyncio.create_task(w.harness.close())
            await asyncio.sleep(0)
            release.set()  # what was admitted before the close still lands, and makes work
            await asyncio.gather(creating, closing)
            assert told[-1] == Wake(False)
            assert w.wakes == told

    run(main)
