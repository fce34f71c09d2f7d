"""Ownership, held outcomes and the abort cascade (engine.md, section 7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pidurable_nb import Document, Phase, Task, TaskRun
from pidurable_nb.errors import DurableError, InvocationEnded, OwnerEnded
from pidurable_nb.testing import eventually

from .support import World, forever, run, world


class Note(Document, kind="test.note", scope="task"):
    text: str = ""


class Log:
    """What the tasks of a test did, in order."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.gate = asyncio.Event()


def leaf(log: Log) -> type[Task[str, str]]:
    class Leaf(Task[str, str], name="t.leaf"):
        """Runs until the gate opens, then does what its input says."""

        class Run(Phase):
            async def run(self, task: TaskRun[str, str]) -> None:
                log.lines.append(("run", task.id))
                await log.gate.wait()
                if task.input == "fail":
                    await task.fail("as asked", {"why": 1})
                else:
                    await task.complete(task.input)

        @classmethod
        async def abort(cls, task: TaskRun[str, str]) -> None:
            log.lines.append(("abort", task.id))
            await task.aborted("stopped")

    return Leaf


def owner(log: Log, leaf: Any) -> type[Task[Any, Any]]:
    class Owner(Task[dict[str, Any], Any], name="t.owner"):
        """Creates leaves, then ends as its input says."""

        class Run(Phase):
            async def run(self, task: TaskRun[Any, Any]) -> None:
                async with task.commit() as tx:
                    note = await tx.doc(Note)
                    note.text = "kept"
                    for input in task.input["leaves"]:
                        await tx.create_task(leaf, input, owner=task.id)
                async with task.commit() as tx:
                    await tx.append_entry("test.created")
                    if task.input["then"] == "complete":
                        tx.complete("mine")
                    elif task.input["then"] == "fail":
                        tx.fail("owner failed")
                await forever()

        @classmethod
        async def abort(cls, task: TaskRun[Any, Any]) -> None:
            log.lines.append(("abort", task.id))
            await task.aborted()

    return Owner


def test_an_outcome_is_held_until_ordinary_owned_work_has_ended() -> None:
    async def main() -> None:
        log = Log()
        Leaf = leaf(log)
        Owner = owner(log, Leaf)
        async with world(Leaf, Owner) as w:
            id = await w.create(Owner, {"leaves": ["a", "b"], "then": "complete"})
            w.harness.resume()
            held = await w.becomes(id, "completing")
            await eventually(lambda: len(log.lines) == 2)
            root = await w.harness.root()
            assert "test.created" in [entry.kind async for entry in root.entries()]  # its entries are written now
            assert held.ended_at is None
            assert (await w.harness.snapshot(Note, id)).text == "kept"
            with pytest.raises(OwnerEnded, match="is completing"):
                await w.create(Leaf, "late", owner=id)
            log.gate.set()
            ended = await w.harness.wait_for_task(id)
            assert (ended.state.outcome.status, ended.state.outcome.result) == ("completed", "mine")
            assert ended.ended_at is not None
            assert await w.harness.snapshot(Note, id) is None
            with pytest.raises(OwnerEnded, match="is terminal"):
                await w.create(Leaf, "late", owner=id)

    run(main)


def test_a_held_failure_aborts_what_is_below_it() -> None:
    async def main() -> None:
        log = Log()
        Leaf = leaf(log)
        Owner = owner(log, Leaf)
        async with world(Leaf, Owner) as w:
            id = await w.create(Owner, {"leaves": ["a"], "then": "fail"})
            assert (await w.outcome(id)).status == "failed"
            [child] = [task async for task in w.harness.tasks(kind="t.leaf")]
            assert child.state.outcome.status == "aborted"
            assert child.ended_at is not None

    run(main)


class Tree(Task[int, None], name="t.tree"):
    """A chain of tasks, each owning the next; the last creates a conversation that it owns and works in it."""

    log: Any = None

    class Run(Phase):
        async def run(self, task: TaskRun[int, None]) -> None:
            Tree.log.append(("run", task.input))
            if task.input:
                async with task.commit() as tx:
                    child = await tx.create_task(Tree, task.input - 1, owner=task.id)
                    tx.wait([child], Tree.Done())
            else:
                async with task.commit() as tx:
                    conversation = await tx.create_conversation(owner=task.id)
                    await tx.create_task(Work, None, conversation=conversation.id)
                    await tx.create_task(Work, "background", conversation=conversation.id, background=True)
                await forever()

    class Done(Phase):
        async def run(self, task: TaskRun[int, None]) -> None:
            Tree.log.append(("done", task.input))
            await task.complete()

    @classmethod
    async def abort(cls, task: TaskRun[int, None]) -> None:
        Tree.log.append(("abort", task.input))
        await task.aborted()


class Work(Task[str | None, None], name="t.work"):
    class Run(Phase):
        async def run(self, task: TaskRun[str | None, None]) -> None:
            Tree.log.append(("work", task.input))
            await forever()

    @classmethod
    async def abort(cls, task: TaskRun[str | None, None]) -> None:
        Tree.log.append(("work aborted", task.input))
        await task.aborted()


def test_an_abort_reaches_everything_below_bottom_up_and_stops_at_background_work() -> None:
    async def main() -> None:
        Tree.log = []
        async with world(Tree, Work) as w:
            id = await w.create(Tree, 3)
            w.harness.resume()
            await eventually(lambda: ("work", "background") in Tree.log and ("work", None) in Tree.log)
            Tree.log.clear()
            assert await w.harness.abort_task(id) == "marked"
            assert (await w.outcome(id)).status == "aborted"
            assert Tree.log == [("work aborted", None), *[("abort", n) for n in range(4)]]
            graph = await w.harness.task_graph()
            assert [(node.kind, node.background) for node in graph.tasks.values()] == [("t.work", True)]
            background = next(iter(graph.tasks))
            assert await w.harness.abort_task(background) == "marked"
            assert (await w.outcome(background)).status == "aborted"
            assert await w.harness.abort_task(background) == "terminal"

    run(main)


def test_an_abort_below_a_task_leaves_its_owner_running() -> None:
    async def main() -> None:
        Tree.log = []
        async with world(Tree, Work) as w:
            id = await w.create(Tree, 1)
            w.harness.resume()
            await eventually(lambda: ("work", None) in Tree.log)
            child = next(task for task in (await w.harness.task_graph()).tasks.values() if task.owner == id)
            await w.harness.abort_task(child.id)
            assert (await w.outcome(id)).status == "completed"
            assert ("done", 1) in Tree.log

    run(main)


class Patient(Task[str, None], name="t.patient"):
    """Goes where its input says and stays there."""

    log: Any = None

    class Run(Phase):
        async def run(self, task: TaskRun[str, None]) -> None:
            if task.input == "sleep":
                await task.sleep_until(task.now() + 1e6, Patient.Never())
            elif task.input == "receive":
                await task.receive("never", Patient.Never())
            elif task.input == "wait":
                async with task.commit() as tx:
                    child = await tx.create_task(Patient, "run", owner=task.id)
                    tx.wait([child], Patient.Never())
            else:
                await forever()

    class Never(Phase):
        async def run(self, task: TaskRun[str, None]) -> None:
            Patient.log.append(("never", task.id))
            await task.complete()

    @classmethod
    async def abort(cls, task: TaskRun[str, None]) -> None:
        Patient.log.append((task.input, task.mode, task.checkpoint["phase"]))
        await task.aborted()


@pytest.mark.parametrize(
    ("input", "status", "seen"),
    [
        ("sleep", "sleeping", [("sleep", "abort", "never")]),
        ("receive", "waiting", [("receive", "abort", "never")]),
        ("wait", "waiting", [("run", "abort", "run"), ("wait", "abort", "never")]),
        ("run", "running", [("run", "abort", "run")]),
    ],
)
def test_an_abort_ends_a_task_wherever_it_is(input: str, status: str, seen: list[Any]) -> None:
    async def main() -> None:
        Patient.log = []
        async with world(Patient) as w:
            id = await w.create(Patient, input)
            w.harness.resume()
            await w.becomes(id, status)
            await w.harness.abort_task(id)
            assert (await w.outcome(id)).status == "aborted"
            assert Patient.log == seen

    run(main)


def test_an_abort_before_the_first_reservation_runs_only_the_abort_handler() -> None:
    async def main() -> None:
        Patient.log = []
        async with world(Patient) as w:
            id = await w.create(Patient, "run")
            await w.harness.abort_task(id)
            ended = await w.harness.wait_for_task(id)
            assert Patient.log == [("run", "abort", "run")]
            assert ended.state.outcome.status == "aborted"

    run(main)


def test_an_abort_between_the_reservation_and_the_first_phase_runs_no_phase() -> None:
    async def main() -> None:
        ran: list[int] = []

        class Eager(Task[None, None], name="t.eager"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    ran.append(task.id)
                    await forever()

        async with world(Eager) as w:
            ids = [await w.create(Eager) for _ in range(10)]
            w.harness.resume()
            await asyncio.gather(*(w.harness.abort_task(id) for id in ids))
            for id in ids:
                assert (await w.outcome(id)).status == "aborted"
            for id in ids:
                attempts = await w.harness.storage.attempts(task=id)
                assert [attempt.phase for attempt in attempts][-1] == "abort"
                assert all(attempt.end in ("parked", "ended") for attempt in attempts)

    run(main)


def test_an_abort_handler_can_only_clean_up_and_end() -> None:
    async def main() -> None:
        refused: list[str] = []

        class Greedy(Task[None, None], name="t.greedy"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    await forever()

            @classmethod
            async def abort(cls, task: TaskRun[None, None]) -> None:
                for attempt in (
                    lambda: task.sleep_until(task.now() + 1, Greedy.Run()),
                    lambda: task.wait([], Greedy.Run()),
                    lambda: task.receive("x", Greedy.Run()),
                    lambda: create(task),
                    lambda: conversation(task),
                ):
                    with pytest.raises(OwnerEnded) as error:
                        await attempt()
                    refused.append(str(error.value))
                async with task.commit() as tx:
                    await tx.append_entry("test.cleaned")
                    tx.aborted()

        async def create(task: TaskRun[None, None]) -> None:
            async with task.commit() as tx:
                await tx.create_task(Greedy, None, owner=task.id)

        async def conversation(task: TaskRun[None, None]) -> None:
            async with task.commit() as tx:
                await tx.create_conversation(owner=task.id)

        async with world(Greedy) as w:
            id = await w.create(Greedy)
            w.harness.resume()
            await w.becomes(id, "running")
            await w.harness.abort_task(id)
            assert (await w.outcome(id)).status == "aborted"
            assert len(refused) == 5
            assert not w.reports

    run(main)


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_an_abort_handler_without_an_outcome_is_a_fault(how: str) -> None:
    async def main() -> None:
        class Bad(Task[None, None], name="t.bad"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    await forever()

            @classmethod
            async def abort(cls, task: TaskRun[None, None]) -> None:
                if how == "raises":
                    raise ValueError("broken handler")

        async with world(Bad) as w:
            id = await w.create(Bad)
            await w.harness.abort_task(id)
            outcome = await w.outcome(id)
            assert outcome.status == "faulted"
            assert ("broken handler" if how == "raises" else "without an outcome") in outcome.error.message
            await eventually(lambda: w.reports)
            assert [(report.kind, report.task.id, report.extension) for report in w.reports] == [
                ("task_faulted", id, "world")
            ]

    run(main)


def test_nothing_that_cancelled_code_returns_or_commits_is_kept() -> None:
    async def main() -> None:
        errors: list[BaseException] = []

        class Stubborn(Task[None, int], name="t.stubborn"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, int]) -> None:
                    try:
                        await forever()
                    except asyncio.CancelledError:
                        try:
                            await task.complete(1)
                        except InvocationEnded as error:
                            errors.append(error)
                        try:
                            await task.memo("a")
                        except InvocationEnded as error:
                            errors.append(error)

        async with world(Stubborn) as w:
            id = await w.create(Stubborn)
            w.harness.resume()
            await w.becomes(id, "running")
            await w.harness.abort_task(id)
            assert (await w.outcome(id)).status == "aborted"
            assert len(errors) == 2

    run(main)


def test_a_run_invocation_cannot_commit_after_its_abort_mark() -> None:
    async def main() -> None:
        result: list[Any] = []

        class Racing(Task[None, None], name="t.racing"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None:
                    await gate.wait()
                    try:
                        async with task.commit() as tx:
                            await tx.append_entry("test.late")
                            tx.complete()
                    except InvocationEnded as error:
                        result.append(str(error))
                        raise

        async def hold(w: World, release: asyncio.Event) -> None:
            async with w.harness.commit():
                await release.wait()

        gate = asyncio.Event()
        async with world(Racing) as w:
            id = await w.create(Racing)
            w.harness.resume()
            await w.becomes(id, "running")
            root = await w.harness.root()
            release = asyncio.Event()
            holding = asyncio.create_task(hold(w, release))
            await eventually(lambda: w.harness._line.locked())
            marking = asyncio.create_task(w.harness.abort_task(id))
            await asyncio.sleep(0)
            gate.set()  # the task's commit queues behind the mark
            for _ in range(5):
                await asyncio.sleep(0)
            release.set()
            await holding
            assert await marking == "marked"
            assert (await w.outcome(id)).status == "aborted"
            assert "test.late" not in [entry.kind async for entry in root.entries()]
            assert not [report for report in w.reports if report.kind == "task_faulted"]

    run(main)


def test_only_conversations_own_background_work_and_only_live_tasks_own_anything() -> None:
    async def main() -> None:
        async with world(Patient) as w:
            id = await w.create(Patient, "sleep")
            with pytest.raises(ValueError, match="background"):
                await w.create(Patient, "run", owner=id, background=True)
            with pytest.raises(OwnerEnded, match="does not exist"):
                await w.create(Patient, "run", owner=999)
            with pytest.raises(DurableError, match="there is no task 999"):
                await w.harness.abort_task(999)
            with pytest.raises(DurableError, match="there is no task 999"):
                await w.harness.wait_for_task(999)

    run(main)


def test_abort_owned_is_for_owned_tasks() -> None:
    async def main() -> None:
        seen: list[Any] = []

        class Boss(Task[int, None], name="t.boss"):
            class Run(Phase):
                async def run(self, task: TaskRun[int, None]) -> None:
                    async with task.commit() as tx:
                        child = await tx.create_task(Patient, "sleep", owner=task.id)
                    assert [owned.id for owned in await task.owned_tasks()] == [child]
                    with pytest.raises(ValueError, match="does not own"):
                        await task.abort_owned(task.input)
                    seen.append(await task.abort_owned(child))
                    seen.append((await task.wait_for_task(child)).state.status)
                    await task.complete()

        Patient.log = []
        async with world(Boss, Patient) as w:
            other = await w.create(Patient, "sleep")
            id = await w.create(Boss, other)
            assert (await w.outcome(id)).status == "completed"
            assert seen == ["marked", "terminal"]

    run(main)


def test_a_crash_between_a_mark_and_its_cascade_is_made_good_at_open(tmp_path: Any) -> None:
    async def main() -> None:
        Tree.log = []
        w = World(Tree, Work).at(tmp_path)
        await w.open()
        id = await w.create(Tree, 2)
        w.harness.resume()
        await eventually(lambda: ("work", None) in Tree.log)
        # The mark alone reaches storage, as when the process dies right after it.
        storage = w.harness.storage
        from pidurable_nb.storage.protocol import PutTask

        record = await w.record(id)
        await storage.commit([PutTask(record.replaced(abort_requested=True))])
        await w.kill()
        await eventually(lambda: all(task.abort_requested or task.background for task in live(w)))
        Tree.log.clear()
        assert (await w.outcome(id)).status == "aborted"
        assert not [line for line in Tree.log if line[0] == "run"]
        w.harness.validate()
        await w.harness.close()

    def live(w: World) -> list[Any]:
        return list(w.harness._committed.tasks.values())

    run(main)
