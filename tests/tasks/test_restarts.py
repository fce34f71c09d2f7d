"""The limit of restarts, what counts and what clears it, and tasks abandoned by a restart (engine.md, section 7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Document, Phase, Settings, Task, TaskRun
from pidurable_nb.records import Completed, Completing, ErrorInfo, Failed, Running, Terminal, Waiting
from pidurable_nb.storage.protocol import PutTask
from pidurable_nb.tasks.rules import change
from pidurable_nb.testing import eventually

from .support import World, forever, run

LIMIT = 3


class Count(Document, kind="test.restarts", scope="task"):
    n: int = 0


class Killer(Task[str, str], name="t.killer"):
    """Is cut off wherever its input says; ``calm`` makes it end."""

    calm = False
    log: list[str] = []

    class Run(Phase):
        turn: int = 0

        async def run(self, task: TaskRun[str, str]) -> None:
            Killer.log.append(f"run {self.turn}")
            if Killer.calm:
                await task.complete("at last")
            elif task.input == "same again":
                async with task.commit() as tx:  # a document, a memo and the same checkpoint are no progress
                    (await tx.doc(Count)).n += 1
                    tx.next(self)
                await task.memo("seen", self.turn)
            elif task.input == "progress" and self.turn % 2 == 0:
                await task.next(Killer.Run(turn=self.turn + 1))
                return
            Killer.log.append("hangs")
            await forever()

    @classmethod
    async def abort(cls, task: TaskRun[str, str]) -> None:
        Killer.log.append("abort")
        if task.input == "abort hangs" and not Killer.calm:
            Killer.log.append("hangs")
            await forever()
        await task.aborted()


@pytest.fixture(autouse=True)
def a_fresh_killer() -> None:
    Killer.calm = False
    Killer.log.clear()


async def opened(path: Path) -> World:
    w = World(Killer, wakes=True).at(path)
    w.settings = Settings(restart_limit=LIMIT)
    await w.open()
    return w


async def crash(w: World, times: int) -> None:
    """Let the task run until it hangs, and kill the process, so often."""
    for _ in range(times):
        Killer.log.clear()
        w.harness.resume()
        await eventually(lambda: "hangs" in Killer.log, timeout=15)
        await w.kill()


def limit_error(id: int) -> dict[str, Any]:
    return {
        "message": f"Task {id} (t.killer) was cut off {LIMIT} times without progress",
        "detail": {"reason": "restart_limit"},
    }


@pytest.mark.parametrize("input", ["hangs", "same again"])
def test_a_task_cut_off_too_often_is_not_run_again_but_faulted_when_it_is_reserved(tmp_path: Path, input: str) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, input)
        await crash(w, LIMIT)
        await w.settled_recovery()
        record = await w.record(id)
        assert (record.state.status, record.restarts) == ("pending", LIMIT)
        assert w.harness.wake().active  # it stays what it is until it is reserved
        Killer.log.clear()
        ended = await w.harness.wait_for_task(id)
        assert ended.state.outcome.status == "faulted"
        assert ended.state.outcome.error.to_data() == limit_error(id)
        assert (Killer.log, ended.restarts, ended.memos) == ([], 0, {})
        await eventually(lambda: bool(w.reports))
        [report] = w.reports
        assert (report.kind, report.reason, report.task.id, report.extension) == (
            "task_faulted",
            "restart_limit",
            id,
            "world",
        )
        await w.harness.close()

    run(main, timeout=60)


def test_the_limit_is_read_when_the_task_is_reserved(tmp_path: Path) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, "hangs")
        await crash(w, LIMIT)
        w.settings = Settings(restart_limit=LIMIT + 1)
        Killer.calm = True
        assert (await w.outcome(id)).result == "at last"
        assert not w.reports
        await w.harness.close()

    run(main, timeout=60)


def test_a_state_that_differs_starts_the_count_over(tmp_path: Path) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, "progress")  # turn 0 leads to turn 1, which hangs
        await crash(w, LIMIT - 1)
        assert (await w.record(id)).restarts == LIMIT - 1
        await w.harness.close()
        record = await progressed(w, id)
        assert record.restarts == 1
        await w.harness.close()

    async def progressed(w: World, id: int) -> Any:
        """As if the phase that hung had led on before its next crash."""
        storage = await w._storage()
        record = await storage.task(id)
        running = change(record, "reserve", Running(checkpoint={"phase": "run", "turn": 1}), 1.0)
        assert running.restarts == LIMIT - 1
        moved = change(running, "next", Running(checkpoint={"phase": "run", "turn": 2}), 1.0)
        assert moved.restarts == 0
        await storage.commit([PutTask(moved)])
        await storage.close()
        await w.open()
        return await w.record(id)

    run(main, timeout=60)


def test_an_abort_starts_the_count_over_and_still_runs_the_handler(tmp_path: Path) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, "hangs")
        await crash(w, LIMIT)
        Killer.log.clear()
        assert await w.harness.abort_task(id) == "marked"
        ended = await w.harness.wait_for_task(id)
        assert (ended.state.outcome.status, Killer.log) == ("aborted", ["abort"])
        await w.harness.close()

    run(main, timeout=60)


def test_an_abort_handler_that_is_cut_off_too_often_ends_its_task_the_same_way(tmp_path: Path) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, "abort hangs")
        await crash(w, 1)
        await w.harness.abort_task(id)
        assert (await w.record(id)).restarts == 0
        await crash(w, LIMIT)
        assert (await w.record(id)).restarts == LIMIT
        Killer.log.clear()
        outcome = await w.outcome(id)
        assert (outcome.status, outcome.error.to_data(), Killer.log) == ("faulted", limit_error(id), [])
        await w.harness.close()

    run(main, timeout=60)


def test_close_keeps_an_abort_mark_that_was_admitted_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, "abort hangs")
        w.harness.resume()
        await eventually(lambda: "hangs" in Killer.log)
        Killer.log.clear()
        await w.harness.abort_task(id)
        await eventually(lambda: "hangs" in Killer.log)
        await w.reopen()
        record = await w.record(id)
        assert (record.state.status, record.abort_requested, record.restarts) == ("pending", True, 0)
        Killer.calm = True
        Killer.log.clear()
        assert (await w.outcome(id)).status == "aborted"
        assert Killer.log == ["abort"]
        await w.harness.close()

    run(main, timeout=60)


@pytest.mark.parametrize("late", [False, True])
def test_an_abandoned_task_without_its_definition_waits_for_one(tmp_path: Path, late: bool) -> None:
    async def main() -> None:
        w = await opened(tmp_path)
        id = await w.create(Killer, "hangs", abandon_on_restart=True)
        await w.harness.close()
        if late:
            w.registry.uninstall("world")
        await w.open()
        w.harness.resume()
        if late:

            async def blocked() -> bool:
                return (await w.harness.task_graph()).tasks[id].blocked == "missing_task"

            await eventually(blocked)
            await w.settled()
            assert (await w.record(id)).abort_reason == "restart"
            w.define(Killer)
        ended = await w.harness.wait_for_task(id)
        assert (ended.state.outcome.status, ended.abort_reason, Killer.log) == ("aborted", "restart", ["abort"])
        await w.harness.close()

    run(main, timeout=60)


class Dormant(Task[None, None], name="t.dormant"):
    """Runs until it is aborted."""

    class Work(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await forever()


class Missing(Task[None, None], name="t.missing"):
    """Is never installed."""

    class Work(Phase):
        async def run(self, task: TaskRun[None, None]) -> None: ...


async def reopened(w: World, *records: Any) -> None:
    """As if a crash had left these records."""
    await w.harness.storage.commit([PutTask(record) for record in records])
    await w.kill()


def test_a_request_of_abort_stands_above_a_restart_mark_all_the_way_down(tmp_path: Path) -> None:
    async def main() -> None:
        w = World(Dormant).at(tmp_path)
        await w.open()
        top = await w.create(Dormant)
        middle = await w.create(Dormant, owner=top, abandon_on_restart=True)
        leaf = await w.create(Missing, owner=middle)
        await w.kill()
        w.harness.resume()

        async def waits_for_its_definition() -> bool:
            return (await w.harness.task_graph()).tasks[leaf].blocked == "missing_task"

        await eventually(waits_for_its_definition)
        assert (await w.record(leaf)).abort_reason == "restart"
        await w.harness.abort_task(top)
        assert (await w.outcome(leaf)).status == "orphaned"
        assert (await w.outcome(middle)).status == "aborted"
        assert (await w.outcome(top)).status == "aborted"
        assert [(await w.record(id)).abort_reason for id in (top, middle, leaf)] == [None] * 3
        w.harness.validate()
        await w.harness.close()

    run(main, timeout=60)


@pytest.mark.parametrize("marked", [True, False])
def test_a_fail_fast_wait_stands_above_a_restart_mark(tmp_path: Path, marked: bool) -> None:
    async def main() -> None:
        w = World(Dormant).at(tmp_path)
        await w.open()
        owner = await w.create(Dormant, abandon_on_restart=True)
        failed = await w.create(Dormant, owner=owner)
        child = await w.create(Missing, owner=owner)
        waiting = Waiting(checkpoint={"phase": "work"}, on=(failed, child), policy="fail_fast")
        record = (await w.record(owner)).replaced(state=waiting)
        if marked:
            record = record.replaced(abort_requested=True, abort_reason="restart")
        outcome = Failed(error=ErrorInfo("no"))
        ended = (await w.record(failed)).replaced(state=Terminal(outcome=outcome), ended_at=1.0)
        await reopened(w, record, ended)
        w.harness.resume()
        # A restart mark would have it wait for its code; a request orphans it.
        assert (await w.outcome(child)).status == "orphaned"
        assert (await w.outcome(owner)).status == "aborted"
        assert (await w.record(owner)).abort_reason == "restart"
        await w.harness.close()

    run(main, timeout=60)


def test_a_restart_mark_that_a_crash_cut_off_cascades_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        w = World(Dormant).at(tmp_path)
        await w.open()
        owner = await w.create(Dormant)
        child = await w.create(Missing, owner=owner)
        await reopened(w, (await w.record(owner)).replaced(abort_requested=True, abort_reason="restart"))

        async def marked() -> bool:
            return (await w.record(child)).abort_requested

        await eventually(marked)
        assert (await w.record(child)).abort_reason == "restart"
        await w.harness.close()

    run(main, timeout=60)


def test_an_abandoned_task_that_holds_its_outcome_keeps_it_and_its_work_is_aborted(tmp_path: Path) -> None:
    async def main() -> None:
        w = World(Dormant).at(tmp_path)
        await w.open()
        holder = await w.create(Dormant, abandon_on_restart=True)
        child = await w.create(Dormant, owner=holder)
        await reopened(w, (await w.record(holder)).replaced(state=Completing(outcome=Completed(result=None))))
        w.harness.resume()
        assert (await w.outcome(child)).status == "aborted"
        ended = await w.harness.wait_for_task(holder)
        assert (ended.state.outcome.status, ended.abort_reason) == ("completed", "restart")
        await w.harness.close()

    run(main, timeout=60)
