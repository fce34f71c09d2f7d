"""Restarts, blocked tasks, migration, handover, abandoned tasks, wakes and closing (engine.md, sections 7 and 8)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from pidurable_nb import Extension, Phase, Settings, StoredTask, Task, TaskRun, Wake
from pidurable_nb.errors import InvocationEnded, StorageError
from pidurable_nb.records import Completed, Completing
from pidurable_nb.storage.protocol import PutTask
from pidurable_nb.testing import eventually

from .support import World, forever, run, world


class Loop(Task[None, None], name="t.loop"):
    """Hangs, as code that is killed every time."""

    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.memo("first", task.now())  # neither memos nor documents are progress
            await forever()


def test_a_crash_counts_a_close_does_not_and_memos_are_no_progress(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Loop).at(tmp_path)
        await w.open()
        id = await w.create(Loop)
        for crashes in (0, 1, 2, 3):
            w.harness.resume()

            async def began() -> bool:
                return bool((await w.record(id)).memos) and await w.status(id) == "running"

            await eventually(began)
            assert (await w.record(id)).restarts == crashes
            await w.reopen()
            assert ((await w.record(id)).restarts, await w.status(id)) == (crashes, "pending")
            w.harness.resume()
            await w.becomes(id, "running")
            await w.kill()
        attempts = await w.harness.storage.attempts(task=id)
        assert [attempt.end for attempt in attempts] == ["parked", "cut_off"] * 4
        await w.harness.close()

    run(main)


def test_a_limit_of_infinity_never_ends_a_task(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Loop).at(tmp_path)
        w.settings = Settings(restart_limit=float("inf"))
        await w.open()
        id = await w.create(Loop)
        for _ in range(7):
            w.harness.resume()
            await w.becomes(id, "running")
            await w.kill()
        assert (await w.record(id)).restarts == 7
        w.harness.resume()
        await w.becomes(id, "running")
        await w.harness.close()

    run(main)


def test_a_task_left_completing_is_ended_by_the_pass_after_open(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Loop, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(Loop)
        record = await w.record(id)
        await w.harness.storage.commit([PutTask(record.replaced(state=Completing(outcome=Completed(result=None))))])
        w.switch.kill()
        w.wakes.clear()
        await w.open()
        await eventually(lambda: w.wakes[-1:] == [Wake(False)])
        assert w.wakes == [Wake(True), Wake(False)]
        assert await w.status(id) == "terminal"
        await w.harness.close()

    run(main)


def test_a_failed_recovery_pass_leaves_the_host_told_that_there_is_work(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Loop, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(Loop)
        record = await w.record(id)
        await w.harness.storage.commit([PutTask(record.replaced(state=Completing(outcome=Completed(result=None))))])
        w.switch.kill()
        w.wakes.clear()
        storage = await w._storage()
        commit = storage.commit

        async def refuse(*args: Any, **kwargs: Any) -> int:
            storage.commit = commit
            raise StorageError("reset")

        storage.commit = refuse
        harness = await w.open(storage)
        end = await asyncio.wait_for(harness.wait_closed(), 5)
        assert (end.reason, str(end.error)) == ("failed", "reset")
        assert w.wakes == [Wake(True)]

    run(main)


# -- definitions that are missing, older or newer --------------------------------------------------------------------


def versioned(number: int, log: list[Any], migrate: Any = None) -> type[Task[Any, Any]]:
    class Versioned(Task[Any, Any], name="t.versioned", version=number):
        class Run(Phase):
            note: str = ""

            async def run(self, task: TaskRun[Any, Any]) -> None:
                log.append(("run", number, self.note, task.input))
                await task.complete(number)

        @classmethod
        def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
            log.append(("migrate", stored.version, stored.checkpoint))
            if migrate is None:
                raise ValueError("cannot")
            result = migrate(stored)
            return result if isinstance(result, tuple) else (stored.input, result)

        @classmethod
        async def abort(cls, task: TaskRun[Any, Any]) -> None:
            log.append(("abort", number))
            await task.aborted()

    return Versioned


async def blocked(w: World, id: int) -> str | None:
    return (await w.harness.task_graph()).tasks[id].blocked


def test_a_newer_definition_migrates_when_the_task_is_reserved() -> None:
    async def main() -> None:
        log: list[Any] = []
        async with world(versioned(1, log)) as w:
            id = await w.create(versioned(1, log), {"a": 1})
            New = versioned(3, log, lambda stored: ({"b": 2}, New.Run(note="migrated")))  # type: ignore[attr-defined]
            w.define(New)
            inspected = (await w.harness.inspect()).tasks[0].state
            assert (inspected.kind, inspected.migrates) == ("pending", True)
            assert not log  # inspecting migrates nothing
            record = await w.harness.wait_for_task(id)
            assert (record.version, record.input, record.state.outcome.result) == (3, {"b": 2}, 3)
            assert log == [("migrate", 1, {"phase": "run", "note": ""}), ("run", 3, "migrated", {"b": 2})]

    run(main)


@pytest.mark.parametrize("bad", [None, lambda stored: "no phase", lambda stored: Faulty.Other()])
def test_a_failed_migration_is_reported_once_and_tried_again_for_another_definition(bad: Any) -> None:
    async def main() -> None:
        log: list[Any] = []
        Old = versioned(1, log)
        async with world(Old, wakes=True) as w:
            id = await w.create(Old)
            New = versioned(2, log, bad)
            w.define(New)
            w.harness.resume()
            await eventually(lambda: bool(w.reports))
            await w.settled()
            assert await blocked(w, id) == "migration_failed"
            state = (await w.harness.inspect()).tasks[0].state
            error = w.reports[0].error
            assert (state.kind, state.reason, state.error) == (
                "blocked",
                "migration_failed",
                f"{type(error).__name__}: {error}",
            )
            w.registry.install(Extension("other"))  # a registry change that brings no other definition
            await w.settled()
            assert [report.kind for report in w.reports] == ["migration_failed"]
            assert len(log) == 1
            assert w.harness.wake() == Wake(False)
            Fixed = versioned(2, log, lambda stored: Fixed.Run())  # type: ignore[attr-defined]
            w.define(Fixed)
            assert (await w.outcome(id)).result == 2

    run(main)


@pytest.mark.parametrize("reason", ["missing_task", "task_too_old"])
def test_a_blocked_task_stays_and_an_abort_orphans_it(reason: str) -> None:
    async def main() -> None:
        log: list[Any] = []
        async with world() as w:
            New = versioned(2, log)
            id = await w.create(New)
            if reason == "task_too_old":
                w.define(versioned(1, log))
            w.harness.resume()
            await w.settled()
            assert await blocked(w, id) == reason
            state = (await w.harness.inspect()).tasks[0].state
            assert (state.kind, state.reason) == ("blocked", reason)
            assert w.harness.wake() == Wake(False)
            assert await w.harness.abort_task(id) == "marked"
            outcome = await w.outcome(id)
            assert (outcome.status, outcome.reason) == ("orphaned", reason)
            assert not log

    run(main)


def test_a_definition_that_goes_while_scheduling_is_paused_ends_the_wake() -> None:
    async def main() -> None:
        async with world(Loop, wakes=True) as w:
            id = await w.create(Loop)
            await eventually(lambda: w.wakes[-1:] == [Wake(True)])
            w.registry.uninstall("world")
            await eventually(lambda: w.wakes[-1] == Wake(False))
            assert await blocked(w, id) == "missing_task"
            w.define(Loop)
            await eventually(lambda: w.wakes[-1] == Wake(True))
            assert await w.status(id) == "pending"

    run(main)


def stepping(log: list[Any], gate: asyncio.Event, mark: str, number: int = 1) -> type[Task[Any, Any]]:
    class Stepping(Task[None, str], name="t.stepping", version=number):
        class One(Phase):
            async def run(self, task: TaskRun[None, str]) -> None:
                log.append((mark, "one"))
                await gate.wait()
                await task.next(Stepping.Two())

        class Two(Phase):
            async def run(self, task: TaskRun[None, str]) -> None:
                log.append((mark, "two"))
                await task.next(Stepping.Three())

        class Three(Phase):
            async def run(self, task: TaskRun[None, str]) -> None:
                await task.complete(mark)

        @classmethod
        def migrate(cls, stored: StoredTask) -> tuple[None, Phase]:
            return None, cls.load_phase(stored.checkpoint)

    return Stepping


@pytest.mark.parametrize("number", [1, 2])
def test_a_replaced_definition_takes_over_between_phases(number: int) -> None:
    async def main() -> None:
        log: list[Any] = []
        gate = asyncio.Event()
        Old = stepping(log, gate, "old")
        async with world(Old) as w:
            id = await w.create(Old)
            w.harness.resume()
            await eventually(lambda: bool(log))
            w.define(stepping(log, gate, "new", number))
            gate.set()
            assert (await w.outcome(id)).result == "new"
            assert log == [("old", "one"), ("new", "two")]
            assert not w.reports
            assert [attempt.end for attempt in await w.harness.storage.attempts(task=id)] == ["parked", "ended"]

    run(main)


def test_code_that_cannot_be_replaced_goes_on_and_is_reported_once() -> None:
    async def main() -> None:
        log: list[Any] = []
        gate = asyncio.Event()
        New = stepping(log, gate, "new", 2)
        async with world(New) as w:
            id = await w.create(New)
            w.harness.resume()
            await eventually(lambda: bool(log))
            w.define(stepping(log, gate, "older", 1))
            gate.set()
            assert (await w.outcome(id)).result == "new"
            assert [(report.kind, report.task.id, report.extension) for report in w.reports] == [
                ("task_outdated", id, "world")
            ]

    run(main)


def test_an_abandoned_task_is_given_up_by_a_later_life_only_and_before_anything_runs(tmp_path: Any) -> None:
    async def main() -> None:
        log: list[Any] = []

        class Call(Task[str, None], name="t.call"):
            class Run(Phase):
                async def run(self, task: TaskRun[str, None]) -> None:
                    log.append(("run", task.input))
                    if task.input == "top":
                        async with task.commit() as tx:
                            await tx.create_task(Call, "below", owner=task.id)
                    await forever()

            @classmethod
            async def abort(cls, task: TaskRun[str, None]) -> None:
                log.append(("abort", task.input, task.record.abort_reason))
                await task.aborted()

        w = World(Call).at(tmp_path)
        await w.open()
        id = await w.create(Call, "top", abandon_on_restart=True)
        other = await w.create(Call, "other")
        w.harness.resume()
        await eventually(lambda: len(log) == 3)
        await w.kill()
        assert not (await w.record(id)).abort_requested  # opening alone marks nothing
        log.clear()
        w.harness.resume()
        ended = await w.harness.wait_for_task(id)
        assert ended.state.outcome.status == "aborted"
        assert ended.abort_reason == "restart"
        await eventually(lambda: len(log) == 3)
        assert [line for line in log if line[0] == "abort"] == [
            ("abort", "below", "restart"),
            ("abort", "top", "restart"),
        ]
        assert ("run", "other") in log
        assert await w.status(other) == "running"
        w.harness.validate()
        await w.harness.close()

    run(main)


def test_a_real_abort_replaces_the_restart_mark_and_orphans_without_a_definition(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Loop).at(tmp_path)
        await w.open()
        id = await w.create(Loop, abandon_on_restart=True)
        await w.harness.close()
        w.registry.uninstall("world")
        await w.open()
        w.harness.resume()

        async def marked() -> bool:
            return (await w.record(id)).abort_reason == "restart"

        await eventually(marked)
        await w.settled()
        assert await blocked(w, id) == "missing_task"
        await w.harness.abort_task(id)
        ended = await w.harness.wait_for_task(id)
        assert (ended.state.outcome.status, ended.abort_reason) == ("orphaned", None)
        await w.harness.close()

    run(main)


# -- faults ----------------------------------------------------------------------------------------------------------


class Faulty(Task[str, int], name="t.faulty"):
    class Run(Phase):
        async def run(self, task: TaskRun[str, int]) -> None:
            if task.input == "raises":
                raise KeyError("lost")
            if task.input == "same":
                await task.next(Faulty.Run())
            elif task.input == "twice":
                async with task.commit() as tx:
                    tx.next(Faulty.Other())
                    tx.complete(1)
            elif task.input == "result":
                await task.complete("not a number")  # type: ignore[arg-type]
            elif task.input == "foreign":
                await task.next(Loop.Run())
            elif task.input == "cancel":
                raise asyncio.CancelledError
            elif task.input == "exit":
                raise SystemExit("enough")
            elif task.input == "after":
                await task.complete(1)
                raise RuntimeError("too late")

    class Other(Phase):
        pass


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ("raises", "KeyError: 'lost'"),
        ("nothing", "without committing anything"),
        ("same", "without committing anything"),
        ("twice", "changed its state twice"),
        ("result", "valid integer"),
        ("foreign", "not a phase of t.faulty"),
        ("cancel", "CancelledError"),
        ("exit", "SystemExit: enough"),
    ],
)
def test_code_that_breaks_faults_its_task_and_is_reported(input: str, message: str) -> None:
    async def main() -> None:
        async with world(Faulty) as w:
            id = await w.create(Faulty, input)
            outcome = await w.outcome(id)
            assert outcome.status == "faulted"
            assert message in outcome.error.message
            await eventually(lambda: bool(w.reports))
            [report] = w.reports
            assert (report.kind, report.task.id, report.task.kind, report.extension) == (
                "task_faulted",
                id,
                "t.faulty",
                "world",
            )

    run(main)


def test_a_raise_after_the_outcome_is_reported_and_changes_nothing() -> None:
    async def main() -> None:
        async with world(Faulty) as w:
            id = await w.create(Faulty, "after")
            assert (await w.outcome(id)).status == "completed"
            await eventually(lambda: bool(w.reports))
            assert [(report.kind, str(report.error)) for report in w.reports] == [("task_error", "too late")]

    run(main)


def test_an_input_that_does_not_fit_its_definition_faults() -> None:
    async def main() -> None:
        log: list[Any] = []
        async with world() as w:
            id = await w.create(versioned(1, log), {"not": "a number"})

            class Strict(Task[int, None], name="t.versioned", version=1):
                class Run(Phase):
                    async def run(self, task: TaskRun[int, None]) -> None: ...

            w.define(Strict)
            outcome = await w.outcome(id)
            assert (outcome.status, "valid integer" in outcome.error.message) == ("faulted", True)

    run(main)


def test_every_call_after_the_invocation_ended_raises() -> None:
    async def main() -> None:
        kept: list[TaskRun[Any, Any]] = []

        class Leaky(Task[None, None], name="t.leaky"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    kept.append(task)
                    await task.sleep_until(task.now() + 1e6, Leaky.Run())
                    with pytest.raises(InvocationEnded, match="not running"):
                        await task.complete()

        async with world(Leaky) as w:
            id = await w.create(Leaky)
            w.harness.resume()
            await w.becomes(id, "sleeping")
            await eventually(lambda: id not in w.harness._invocations)
            task = kept[0]
            for call in (
                lambda: task.next(Leaky.Run()),
                lambda: task.complete(),
                lambda: task.fail("x"),
                lambda: task.aborted(),
                lambda: task.wait([], Leaky.Run()),
                lambda: task.receive("x", Leaky.Run()),
                lambda: task.sleep_until(1.0, Leaky.Run()),
                lambda: task.memo("a"),
                lambda: task.memo("a", 1),
                lambda: task.task(id),
                lambda: task.outcomes([id]),
                lambda: task.owned_tasks(),
                lambda: task.wait_for_task(id),
                lambda: task.abort_owned(id),
                lambda: task.entry(1),
                lambda: task.context(),
                lambda: task.conversation(1),
                lambda: task.agent(),
                lambda: task.env(),
            ):
                with pytest.raises(InvocationEnded):
                    await call()

    run(main)


def test_memos_keep_the_first_value_until_the_outcome(tmp_path: Any) -> None:
    async def main() -> None:
        seen: list[Any] = []

        class Memo(Task[None, None], name="t.memo"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    seen.append(await task.memo("key"))
                    seen.append(await asyncio.gather(*(task.memo("key", n) for n in range(3))))
                    with pytest.raises(ValueError, match="belongs to the engine"):
                        await task.memo("pi.received", 1)
                    with pytest.raises(TypeError):
                        await task.memo("a", 1, 2)
                    if len(seen) < 4:
                        await forever()
                    await task.complete()

        w = World(Memo).at(tmp_path)
        await w.open()
        id = await w.create(Memo)
        w.harness.resume()
        await eventually(lambda: len(seen) == 2)
        await w.kill()
        ended = await w.harness.wait_for_task(id)
        assert seen == [None, [0, 0, 0], 0, [0, 0, 0]]
        assert ended.memos == {}
        await w.harness.close()

    run(main)


# -- closing, and code that holds everything up ----------------------------------------------------------------------


def test_close_waits_for_code_that_swallows_its_cancellation_and_says_so() -> None:
    async def main() -> None:
        release = asyncio.Event()

        class Deaf(Task[None, None], name="t.deaf"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    while not release.is_set():
                        try:
                            await release.wait()
                        except asyncio.CancelledError:
                            pass

        w = World(Deaf)
        harness = await w.open()
        harness.slow_stop = 0.05
        id = await w.create(Deaf)
        harness.resume()
        await w.becomes(id, "running")
        closing = asyncio.create_task(harness.close())
        try:
            await eventually(lambda: bool(w.reports))
            assert not closing.done()
            [report] = w.reports
            assert (report.kind, report.reason, report.task.id, report.extension) == (
                "task_error",
                "slow_stop",
                id,
                "world",
            )
            assert "await release.wait()" in str(report.error)
        finally:
            release.set()
            await closing
        assert harness.end is not None

    run(main)


def test_close_joins_the_threads_that_an_invocation_started() -> None:
    async def main() -> None:
        release = threading.Event()
        ended = threading.Event()

        class Threaded(Task[None, None], name="t.threaded"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    await task.in_thread(work)

        def work() -> None:
            release.wait(10)
            ended.set()

        w = World(Threaded)
        harness = await w.open()
        harness.slow_stop = 0.05
        id = await w.create(Threaded)
        harness.resume()
        await eventually(lambda: bool(harness._invocations.get(id) and harness._invocations[id].run._threads))
        closing = asyncio.create_task(harness.close())
        await eventually(lambda: bool(w.reports))
        assert "1 of its threads still run" in str(w.reports[0].error)
        assert not ended.is_set()
        release.set()
        await closing
        assert ended.is_set()

    run(main)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_stopping_joins_the_asyncio_tasks_that_a_phase_awaits(how: str) -> None:
    """What a ``TaskGroup`` and a thread take to stop is over before anything follows it."""

    async def main() -> None:
        seen: list[str] = []

        async def part(name: str) -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(0.02)
                seen.append(name)

        class Parts(Task[None, None], name="t.parts"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    def until_told() -> None:
                        while not task._told_to_stop:
                            time.sleep(0.005)

                    async with asyncio.TaskGroup() as group:
                        group.create_task(part("in a group"))
                        group.create_task(part("in a group"))
                        group.create_task(task.in_thread(until_told))

            @classmethod
            async def abort(cls, task: TaskRun[None, None]) -> None:
                seen.append("abort handler")
                await task.aborted()

        async with world(Parts) as w:
            id = await w.create(Parts)
            w.harness.resume()
            await w.becomes(id, "running")
            await eventually(lambda: w.harness._invocations[id].run._threads)
            if how == "abort":
                await w.harness.abort_task(id)
                await w.outcome(id)
                assert seen == ["in a group", "in a group", "abort handler"]
            else:
                await w.harness.close()
                assert seen == ["in a group", "in a group"]

    run(main)


def test_an_asyncio_task_left_running_cannot_commit_any_more() -> None:
    async def main() -> None:
        left: list[asyncio.Task[None]] = []
        released = asyncio.Event()

        class Leaving(Task[None, str], name="t.leaving"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, str]) -> None:
                    async def later() -> None:
                        await released.wait()
                        async with task.commit() as tx:
                            await tx.append_entry("test.late")

                    left.append(asyncio.create_task(later()))
                    await task.complete("done")

        async with world(Leaving) as w:
            id = await w.create(Leaving)
            assert (await w.outcome(id)).result == "done"
            await eventually(lambda: id not in w.harness._invocations)
            released.set()
            with pytest.raises(InvocationEnded):
                await left[0]

    run(main)


def test_a_call_that_blocks_the_loop_is_reported_with_its_stack() -> None:
    async def main() -> None:
        class Blocking(Task[float, None], name="t.blocking"):
            class Run(Phase):
                async def run(self, task: TaskRun[float, None]) -> None:
                    await asyncio.sleep(0.1)  # the watchdog has looked once
                    hold_everything_up(task.input)
                    await asyncio.sleep(0.2)
                    await task.complete()

        def hold_everything_up(seconds: float) -> None:
            time.sleep(seconds)

        async with world(Blocking) as w:
            w.harness.blocked_after = 0.2
            quick = await w.create(Blocking, 0.01)
            await w.outcome(quick)
            assert not w.reports
            id = await w.create(Blocking, 0.4)
            await w.outcome(id)
            [report] = w.reports
            assert (report.kind, report.reason, report.task.id) == ("task_error", "blocked_loop", id)
            assert "hold_everything_up" in str(report.error)

    run(main)


def test_the_host_hears_of_each_change_of_wake_once() -> None:
    async def main() -> None:
        class Nap(Task[float, None], name="t.nap"):
            class Run(Phase):
                async def run(self, task: TaskRun[float, None]) -> None:
                    await task.sleep_until(task.input, Nap.End())

            class End(Phase):
                async def run(self, task: TaskRun[float, None]) -> None:
                    await task.complete()

        async with world(Nap, wakes=True) as w:
            await eventually(lambda: w.wakes[-1:] == [Wake(False)])
            assert w.wakes == [Wake(True), Wake(False)]
            await w.create(Nap, 1100.0)
            await eventually(lambda: w.wakes[-1] == Wake(True))  # there is work, and nobody asked to run it
            w.harness.resume()
            await eventually(lambda: w.wakes[-1] == Wake(False, 1100.0))
            other = await w.create(Nap, 1050.0)
            await eventually(lambda: w.wakes[-1] == Wake(False, 1050.0))
            await w.harness.abort_task(other)
            await eventually(lambda: w.wakes[-1] == Wake(False, 1100.0))
            told = len(w.wakes)
            w.harness.resume()
            await w.harness.task_graph()
            await asyncio.sleep(0.02)
            assert len(w.wakes) == told

    run(main)


def test_a_wake_listener_that_raises_is_reported() -> None:
    async def main() -> None:
        w = World(Loop)

        def broken(wake: Wake) -> None:
            raise RuntimeError("deaf host")

        w._on_wake = broken
        await w.open()
        await eventually(lambda: bool(w.reports))
        assert (w.reports[0].kind, w.reports[0].callback) == ("host_error", "on_wake")
        await w.harness.close()

    run(main)
