"""Signals, stories and the task graph (engine.md, sections 7 and 14)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pidurable_nb import Phase, Task, TaskRun
from pidurable_nb.agent.harness import TaskWaiting
from pidurable_nb.errors import DurableError, InvalidTransition, InvalidValue
from pidurable_nb.tasks.signals import Kept, KeptSignal
from pidurable_nb.testing import eventually

from .support import World, forever, run, world


class Approval(Task[float | None, Any], name="t.approval"):
    """Waits for a signal, with the timeout of its input."""

    gate: Any = None

    class Run(Phase):
        async def run(self, task: TaskRun[Any, Any]) -> None:
            if Approval.gate is not None:
                await Approval.gate.wait()
            await task.receive("approval", Approval.Done(), timeout=task.input)

    class Done(Phase):
        async def run(self, task: TaskRun[Any, Any]) -> None:
            await task.complete(None if task.received is None else [task.received.name, task.received.value])


def test_a_signal_ends_the_wait_for_its_name_also_in_another_process(tmp_path: Any) -> None:
    async def main() -> None:
        Approval.gate = None
        w = World(Approval, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(Approval)
        w.harness.resume()
        await w.becomes(id, "waiting")
        await w.kill()
        w.harness.resume()
        await w.settled()
        assert w.harness.wake().at is None
        assert (await w.harness.task_graph()).tasks[id].signal == "approval"
        assert await w.harness.signal(id, "other", 1) == "kept"
        assert await w.status(id) == "waiting"
        assert await w.harness.signal(id, "approval", {"by": "me"}) == "delivered"
        ended = await w.harness.wait_for_task(id)
        assert ended.state.outcome.result == ["approval", {"by": "me"}]
        assert ended.memos == {}
        assert await w.harness.signal(id, "approval", 2) == "terminal"
        await w.harness.close()

    run(main)


def test_a_signal_sent_before_the_wait_is_kept_through_a_crash(tmp_path: Any) -> None:
    async def main() -> None:
        Approval.gate = asyncio.Event()
        w = World(Approval).at(tmp_path)
        await w.open()
        id = await w.create(Approval)
        assert await w.harness.signal(id, "approval", "first") == "kept"
        assert await w.harness.signal(id, "approval", "second") == "kept"
        await w.becomes(id, "running")
        await w.kill()
        Approval.gate.set()
        assert (await w.outcome(id)).result == ["approval", "first"]
        await w.harness.close()

    run(main)


def test_a_request_id_counts_once_also_after_a_restart(tmp_path: Any) -> None:
    async def main() -> None:
        values: list[Any] = []

        class Counter(Task[None, None], name="t.counter"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    if task.received is not None:
                        values.append(task.received.value)
                    await task.receive("n", Counter.Run)

        w = World(Counter).at(tmp_path)
        await w.open()
        id = await w.create(Counter)
        w.harness.resume()
        await w.becomes(id, "waiting")
        assert await w.harness.signal(id, "n", 1, request_id="a") == "delivered"
        await eventually(lambda: values == [1])
        await w.becomes(id, "waiting")
        assert await w.harness.signal(id, "n", 1, request_id="a") == "duplicate"
        await w.kill()
        assert await w.harness.signal(id, "n", 1, request_id="a") == "duplicate"
        assert await w.harness.signal(id, "n", 2, request_id="b") == "delivered"
        for n in range(3, 6):
            assert await w.harness.signal(id, "n", n) in ("kept", "delivered")
        await eventually(lambda: values == [1, 2, 3, 4, 5])
        await w.harness.close()

    run(main)


def test_a_wait_ends_without_a_signal_when_its_time_is_up(tmp_path: Any) -> None:
    async def main() -> None:
        Approval.gate = None
        w = World(Approval, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(Approval, 60.0)
        w.harness.resume()
        await w.becomes(id, "waiting")
        await w.reopen()
        w.harness.resume()
        await w.settled()
        assert w.harness.wake().at == 1060.0
        w.clock.set(1060.0)
        w.harness.resume()
        assert (await w.outcome(id)).result is None
        await w.harness.close()

    run(main)


def test_a_timeout_after_an_earlier_signal_tells_of_no_signal() -> None:
    async def main() -> None:
        class Two(Task[None, Any], name="t.two"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, Any]) -> None:
                    await task.receive("a", Two.Second())

            class Second(Phase):
                async def run(self, task: TaskRun[None, Any]) -> None:
                    assert task.received is not None
                    await task.receive("b", Two.Last(), timeout=0)

            class Last(Phase):
                async def run(self, task: TaskRun[None, Any]) -> None:
                    await task.complete(task.received is None)

        async with world(Two) as w:
            id = await w.create(Two)
            await w.harness.signal(id, "a", 1)
            assert (await w.outcome(id)).result is True

    run(main)


def test_signals_that_cannot_be_sent_are_refused() -> None:
    async def main() -> None:
        async with world(Approval) as w:
            id = await w.create(Approval)
            with pytest.raises(DurableError, match="there is no task 999"):
                await w.harness.signal(999, "a", 1)
            with pytest.raises(InvalidValue, match="the signal a"):
                await w.harness.signal(id, "a", object())

    Approval.gate = None
    run(main)


# -- stories ---------------------------------------------------------------------------------------------------------


class Story(Task[None, None], name="t.story"):
    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.sleep_until(2000.0, Story.Later())

    class Later(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.fail("no luck")


def test_a_story_tells_attempts_of_all_lives_and_what_this_process_saw(tmp_path: Any) -> None:
    async def main() -> None:
        w = World(Story, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(Story)
        w.harness.resume()
        await w.becomes(id, "sleeping")
        story = await w.harness.story(id)
        assert f"task {id} (t.story, version 1) in conversation 1: sleeps until 2000.000" in story
        assert "attempt 1 began at run (process " in story
        assert "attempt 1 stopped, to go on later" in story
        assert "run invocation began" in story
        await w.kill()
        w.clock.set(2000.0)
        w.harness.resume()
        await w.outcome(id)
        story = await w.harness.story(id)
        assert "error: no luck" in story
        assert "attempt 2 began at later" in story
        assert story.splitlines()[-1].endswith("ended failed")
        assert story.count("ended failed") == 1
        assert "1970-01-01 00:00:00.000" not in story
        assert "created as" not in story
        assert "1970-01-01 00:33:20.000" in story
        with pytest.raises(DurableError, match="no task 999"):
            await w.harness.story(999)
        await w.harness.close()

    run(main)


def test_an_illegal_transition_raises_with_the_story() -> None:
    async def main() -> None:
        from pidurable_nb.records import Sleeping
        from pidurable_nb.session import Tx
        from pidurable_nb.tasks.runtime import changed

        async with world(Story) as w:
            id = await w.create(Story)
            record = await w.record(id)
            with pytest.raises(InvalidTransition) as error:
                async with w.harness._commit(lambda: Tx(w.harness, None)) as tx:
                    await changed(tx, record, "sleep", Sleeping(checkpoint={"phase": "run"}, until=1.0))
            assert f"task {id} (t.story) cannot go from pending to sleeping by sleep" in str(error.value)
            assert "created as pending" in str(error.value)

    run(main)


# -- the graph -------------------------------------------------------------------------------------------------------


class Parent(Task[int, None], name="t.parent"):
    class Run(Phase):
        async def run(self, task: TaskRun[int, None]) -> None:
            async with task.commit() as tx:
                children = [await tx.create_task(Approval, None, owner=task.id) for _ in range(task.input)]
                conversation = await tx.create_conversation(owner=task.id)
                assert conversation.id
                tx.wait(children, Parent.End())

    class End(Phase):
        async def run(self, task: TaskRun[int, None]) -> None:
            await task.complete()


def test_the_graph_shows_every_live_task_and_a_watch_follows_it() -> None:
    async def main() -> None:
        Approval.gate = None
        async with world(Parent, Approval) as w, w.harness.watch_task_graph() as watch:
            assert watch.value.tasks == {}
            id = await w.create(Parent, 3)
            w.harness.resume()
            await eventually(lambda: settled(w))
            graph = await w.harness.task_graph()
            parent = graph.tasks[id]
            assert (parent.status, parent.phase, parent.policy) == ("waiting", "end", "all_settled")
            assert len(parent.on) == 3
            assert len(parent.conversations) == 1
            assert [graph.tasks[child].owner for child in parent.on] == [id] * 3
            while watch.value != graph:
                change = await asyncio.wait_for(anext(watch), 5)
                assert change.ops
            for child in parent.on:
                await w.harness.signal(child, "approval", True)
            await w.outcome(id)
            while watch.value.tasks:
                await asyncio.wait_for(anext(watch), 5)

    def settled(w: World) -> bool:
        states = [task.state.status for task in w.harness._committed.tasks.values()]
        return len(states) == 4 and set(states) == {"waiting"}

    run(main)


def test_the_operations_of_a_graph_watch_lead_from_value_to_value() -> None:
    async def main() -> None:
        from pidurable_nb.patch import apply

        Approval.gate = None
        async with world(Parent, Approval) as w, w.harness.watch_task_graph() as watch:
            data = {"tasks": {}, **watch.value.to_data()}
            id = await w.create(Parent, 5)
            w.harness.resume()
            await eventually(lambda: len(w.harness._committed.tasks) == 6)
            await w.harness.abort_task(id)
            await w.outcome(id)
            while watch.value.tasks or watch._frames:
                change = await asyncio.wait_for(anext(watch), 5)
                data = apply(data, change.ops)
                assert data == {"tasks": {}, **change.value.to_data()}

    run(main)


def test_inspection_names_each_scheduling_state() -> None:
    async def main() -> None:
        class Hang(Task[None, None], name="t.hang"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    await forever()

        class Lost(Task[None, None], name="t.lost"):
            class Run(Phase):
                pass

        Approval.gate = None
        async with world(Hang, Approval, Story) as w:
            assert (await w.harness.inspect()).scheduling == "paused"
            ids = {kind: await w.create(kind) for kind in (Hang, Approval, Story, Lost)}
            before = {task.record.id: task.state.kind for task in (await w.harness.inspect()).tasks}
            assert before == dict(zip(ids.values(), ["pending", "pending", "pending", "blocked"], strict=True))
            w.harness.resume()
            await w.becomes(ids[Approval], "waiting")
            await w.becomes(ids[Story], "sleeping")
            await w.becomes(ids[Hang], "running")
            inspection = await w.harness.inspect()
            after = {task.record.id: task.state.kind for task in inspection.tasks}
            assert after == dict(zip(ids.values(), ["running", "waiting", "sleeping", "blocked"], strict=True))
            assert inspection.scheduling == "running"

    run(main)


def test_inspection_tells_which_signal_a_task_waits_for_and_until_when() -> None:
    async def main() -> None:
        Approval.gate = None
        async with world(Approval) as w:
            patient, hurried = await w.create(Approval, None), await w.create(Approval, 60.0)
            w.harness.resume()
            await w.becomes(patient, "waiting")
            await w.becomes(hurried, "waiting")
            states = {task.record.id: task.state for task in (await w.harness.inspect()).tasks}
            assert states[patient] == TaskWaiting(signal="approval")
            assert states[hurried] == TaskWaiting(signal="approval", until=w.clock() + 60)

    run(main)


def test_a_watch_of_the_graph_hears_of_code_that_comes_and_goes() -> None:
    async def main() -> None:
        Approval.gate = None
        async with world(Approval) as w, w.harness.watch_task_graph() as watch:
            id = await w.create(Approval, None)

            async def until(blocked: str | None) -> None:
                while id not in watch.value.tasks or watch.value.tasks[id].blocked != blocked:
                    await asyncio.wait_for(anext(watch), 15)

            await until(None)
            before = w.harness.storage.last_seq
            w.define()
            await until("missing_task")
            w.define(Approval)
            await until(None)
            assert w.harness.storage.last_seq == before  # nothing was committed for it

    run(main)


def test_signals_that_an_earlier_version_kept_are_read() -> None:
    old = {"signals": [["go", 1], ["stop", None], ["go", 2]], "requests": ["a"]}
    kept = Kept.model_validate(Kept.migrate(old, 1))
    assert kept.requests == ("a",)
    assert kept.taken("stop") == KeptSignal("stop")
    assert [kept.taken("go"), kept.taken("go"), kept.taken("go")] == [KeptSignal("go", 1), KeptSignal("go", 2), None]
