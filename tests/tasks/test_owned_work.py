"""Held outcomes, cascades over tasks and conversations, and their borders (engine.md, section 7, Ownership)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pidurable_nb import MemoryStorage, Phase, StoredTask, Task, TaskRun
from pidurable_nb.errors import DurableError, SessionClosed
from pidurable_nb.records import Completed, Completing, ErrorInfo, Failed, TaskRecord, Terminal, Waiting
from pidurable_nb.storage.protocol import PutTask
from pidurable_nb.testing import eventually

from .support import World, forever, run, world

Code = Callable[[TaskRun[str, str]], Awaitable[None]]


class Script:
    """What the nodes of a test do, by name, and what they did. A node without a script waits for its gate."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.runs: dict[str, Code] = {}
        self.resumes: dict[str, Code] = {}
        self.aborts: dict[str, Code] = {}
        self._gates: dict[str, asyncio.Future[str]] = {}

    def gate(self, name: str) -> asyncio.Future[str]:
        return self._gates.setdefault(name, asyncio.get_running_loop().create_future())

    def open(self, name: str, how: str = "completed") -> None:
        self.gate(name).set_result(how)

    def aborted(self) -> list[str]:
        return [line for line in self.log if line.startswith("abort:")]


script = Script()


@pytest.fixture(autouse=True)
def a_fresh_script() -> None:
    script.__init__()  # type: ignore[misc]


class Node(Task[str, str], name="t.node"):
    class Run(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            script.log.append(f"run:{task.input}")
            await script.runs.get(task.input, at_its_gate)(task)

    class Resume(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            script.log.append(f"resume:{task.input}")
            await script.resumes.get(task.input, complete)(task)

    @classmethod
    async def abort(cls, task: TaskRun[str, str]) -> None:
        script.log.append(f"abort:{task.input}")
        if task.input in script.aborts:
            await script.aborts[task.input](task)
        await task.aborted()


async def at_its_gate(task: TaskRun[str, str]) -> None:
    how = await asyncio.shield(script.gate(task.input))
    if how == "completed":
        await task.complete(task.input)
    elif how == "failed":
        await task.fail("as asked")
    else:
        raise RuntimeError("as asked")


async def complete(task: TaskRun[str, str]) -> None:
    await task.complete(task.input)


async def fail(task: TaskRun[str, str]) -> None:
    await task.fail("as asked")


async def hang(task: TaskRun[str, str]) -> None:
    await forever()


def held_back(name: str) -> Code:
    """An abort handler that goes on when its gate opens."""

    async def handler(task: TaskRun[str, str]) -> None:
        await asyncio.shield(script.gate(f"abort {name}"))

    return handler


def creates(*names: str, then: str = "next", policy: Any = "all_settled", found: list[Any] | None = None) -> Code:
    """A phase that creates nodes as its own work, and goes on to ``Resume`` or waits for them."""

    async def create(task: TaskRun[str, str]) -> None:
        async with task.commit() as tx:
            ids = [await tx.create_task(Node, name, owner=task.id) for name in names]
            if then == "wait":
                tx.wait(ids, Node.Resume(), policy)
            else:
                tx.next(Node.Resume())
        if found is not None:
            found.extend(ids)

    return create


def converses(*names: str, background: bool = False) -> Code:
    """A phase that creates nodes in a conversation that it owns, and goes on to ``Resume``."""

    async def create(task: TaskRun[str, str]) -> None:
        async with task.commit() as tx:
            conversation = await tx.create_conversation(owner=task.id)
            for name in names:
                await tx.create_task(Node, name, conversation=conversation.id, background=background)
            tx.next(Node.Resume())

    return create


async def tasks(w: World) -> dict[str, TaskRecord]:
    """The newest task of each name, live or ended."""
    return {str(task.input): task async for task in w.harness.tasks(order="ascending")}


async def status(w: World, name: str) -> str | None:
    found = (await tasks(w)).get(name)
    return None if found is None else found.state.status


async def becomes(w: World, name: str, wanted: str) -> TaskRecord:
    async def reached() -> bool:
        return await status(w, name) == wanted

    await eventually(reached, timeout=15)
    return (await tasks(w))[name]


async def outcome(w: World, name: str) -> Any:
    return await w.outcome((await tasks(w))[name].id)


async def start(w: World, name: str, **options: Any) -> int:
    id = await w.create(Node, name, **options)
    w.harness.resume()
    return id


async def said(line: str) -> None:
    await eventually(lambda: line in script.log, timeout=15)


# -- held outcomes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["child first", "outcome first"])
@pytest.mark.parametrize("what", ["task", "conversation"])
def test_the_commit_that_ends_a_task_cannot_give_it_new_work(order: str, what: str) -> None:
    async def finish(task: TaskRun[str, str]) -> None:
        async with task.commit() as tx:
            if order == "outcome first":
                tx.complete("too eager")
            if what == "task":
                await tx.create_task(Node, "never", owner=task.id)
            else:
                await tx.create_conversation(owner=task.id)
            if order == "child first":
                tx.complete("too eager")

    async def main() -> None:
        script.runs["eager"] = finish
        async with world(Node) as w:
            await start(w, "eager")
            ended = await outcome(w, "eager")
            assert ended.status == "faulted"
            assert "is completing" in ended.error.message
            assert list(await tasks(w)) == ["eager"]  # the commit that was refused wrote nothing
            assert await w.harness.conversations(owner_task=(await tasks(w))["eager"].id).list() == []

    run(main)


def test_work_that_it_starts_in_a_conversation_of_its_own_holds_its_outcome() -> None:
    async def ends(task: TaskRun[str, str]) -> None:
        [conversation] = await task._session.conversations(owner_task=task.id).list()  # type: ignore[attr-defined]
        async with task.commit() as tx:
            await tx.create_task(Node, "inner", conversation=conversation.id)
            tx.complete("host")

    async def main() -> None:
        script.runs["host"], script.resumes["host"] = converses(), ends
        async with world(Node) as w:
            id = await start(w, "host")
            await becomes(w, "host", "completing")
            root = await w.harness.root()
            waiting = asyncio.create_task(w.harness.wait_for_task(id))
            idle = asyncio.create_task(root.wait_for_idle())
            [shown] = [task for task in (await w.harness.inspect()).tasks if task.record.id == id]
            assert shown.state.kind == "completing"
            await said("run:inner")
            assert not waiting.done()
            assert not idle.done()
            script.open("inner")
            assert (await waiting).state.outcome.result == "host"
            await idle

    run(main)


def test_work_that_comes_during_the_hold_is_waited_for_too() -> None:
    async def main() -> None:
        script.runs["parent"] = converses("first")
        async with world(Node) as w:
            id = await start(w, "parent")
            await becomes(w, "parent", "completing")
            [conversation] = await w.harness.conversations(owner_task=id).list()
            await w.create(Node, "second", conversation=conversation.id)
            script.open("first")
            await becomes(w, "first", "terminal")
            await said("run:second")
            assert await status(w, "parent") == "completing"
            script.open("second")
            assert (await outcome(w, "parent")).status == "completed"

    run(main)


@pytest.mark.parametrize("how", ["abort_task", "conversation.abort"])
def test_an_abort_of_a_held_outcome_aborts_what_is_below_and_leaves_it(how: str) -> None:
    async def main() -> None:
        script.runs["held"] = creates("child")
        async with world(Node) as w:
            id = await start(w, "held")
            await becomes(w, "held", "completing")
            await said("run:child")
            if how == "abort_task":
                assert await w.harness.abort_task(id) == "marked"
            else:
                await (await w.harness.root()).abort()
            ended = await w.harness.wait_for_task(id)
            assert (ended.state.outcome.status, ended.state.outcome.result) == ("completed", "held")
            assert ended.abort_requested
            assert script.aborted() == ["abort:child"]
            assert await w.harness.abort_task(id) == "terminal"

    run(main)


def test_a_held_outcome_counts_as_none_for_those_who_wait_or_ask() -> None:
    async def asks(task: TaskRun[str, str]) -> None:
        held = next(record.id for record in task._session._committed.tasks.values() if record.input == "held")
        with pytest.raises(DurableError, match="has no outcome yet"):
            await task.outcomes([held])
        await task.wait([held], Node.Resume())

    async def main() -> None:
        script.runs |= {"held": creates("child"), "reader": asks}
        async with world(Node) as w:
            await start(w, "held")
            await becomes(w, "held", "completing")
            await start(w, "reader")
            await becomes(w, "reader", "waiting")
            script.open("child")
            assert (await outcome(w, "reader")).status == "completed"

    run(main)


@pytest.mark.parametrize("how", ["failed", "raises"])
def test_a_fail_fast_wait_ends_at_a_held_failure(how: str) -> None:
    async def raises(task: TaskRun[str, str]) -> None:
        raise RuntimeError("broken")

    async def main() -> None:
        found: list[int] = []

        async def fans(task: TaskRun[str, str]) -> None:
            async with task.commit() as tx:
                ids = [await tx.create_task(Node, name, owner=task.id) for name in ("p1", "p2")]
                await tx.create_task(Node, "outside", owner=task.id)
                tx.wait(ids, Node.Resume(), "fail_fast")
            found.extend(ids)

        script.runs |= {"parent": fans, "p1": creates("grandchild")}
        script.resumes["p1"] = fail if how == "failed" else raises
        script.aborts["grandchild"] = held_back("grandchild")
        async with world(Node) as w:
            await start(w, "parent")
            assert (await becomes(w, "p2", "terminal")).state.outcome.status == "aborted"
            assert await status(w, "p1") == "completing"  # its work has not drained
            assert await status(w, "parent") == "waiting"
            script.open("abort grandchild")
            await becomes(w, "parent", "completing")
            all_tasks = await tasks(w)
            marked = {name for name, task in all_tasks.items() if task.abort_requested}
            assert marked == {"p2", "grandchild"}  # neither the failed one, nor the owner, nor work outside the wait
            assert all_tasks["p1"].state.outcome.status == ("failed" if how == "failed" else "faulted")
            assert all_tasks["outside"].state.status == "running"
            script.open("outside")
            assert (await outcome(w, "parent")).status == "completed"

    run(main)


def test_a_fail_fast_wait_for_what_holds_a_failure_already_aborts_the_rest() -> None:
    async def main() -> None:
        found: list[Any] = []

        async def late(task: TaskRun[str, str]) -> None:
            await becomes(w, "p1", "completing")
            await task.wait(found, Node.Resume(), policy="fail_fast")

        async def next_late(task: TaskRun[str, str]) -> None:
            await creates("p1", "p2", found=found)(task)

        script.runs |= {"parent": next_late, "p1": creates("grandchild")}
        script.resumes |= {"p1": fail}
        script.aborts["grandchild"] = held_back("grandchild")
        resumed = iter([late, complete])

        async def resume(task: TaskRun[str, str]) -> None:
            await next(resumed)(task)

        script.resumes["parent"] = resume
        async with world(Node) as w:
            await start(w, "parent")
            assert (await becomes(w, "p2", "terminal")).state.outcome.status == "aborted"
            script.open("abort grandchild")
            assert (await outcome(w, "parent")).status == "completed"

    run(main)


def test_a_held_outcome_is_not_migrated() -> None:
    async def main() -> None:
        def holder(version: int) -> type[Task[Any, Any]]:
            class Holder(Task[None, str], name="t.holder", version=version):
                class Run(Phase):
                    async def run(self, task: TaskRun[None, str]) -> None:
                        async with task.commit() as tx:
                            await tx.create_task(Node, "child", owner=task.id)
                        await task.complete("held")

                @classmethod
                def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
                    raise AssertionError("a held outcome is not migrated")

            return Holder

        async with world(holder(1), Node) as w:
            id = await w.create(holder(1))
            w.harness.resume()
            await w.becomes(id, "completing")
            w.define(holder(2), Node)
            script.open("child")
            ended = await w.harness.wait_for_task(id)
            assert (ended.state.outcome.result, ended.version, w.reports) == ("held", 1, [])

    run(main)


# -- the order of an abort -------------------------------------------------------------------------------------------


def test_an_abort_does_not_wait_for_what_the_task_waits_for_but_does_not_own() -> None:
    async def main() -> None:
        async def waits(task: TaskRun[str, str]) -> None:
            await task.wait([other], Node.Resume())

        script.runs["parent"] = waits
        async with world(Node) as w:
            other = await start(w, "other")
            id = await start(w, "parent")
            await becomes(w, "parent", "waiting")
            await w.harness.abort_task(id)
            assert (await outcome(w, "parent")).status == "aborted"
            assert await status(w, "other") == "running"

    run(main)


def test_a_task_without_code_is_orphaned_only_after_its_work_has_drained() -> None:
    async def main() -> None:
        class Unknown(Task[str, str], name="t.unknown"):
            class Run(Phase):
                async def run(self, task: TaskRun[str, str]) -> None: ...

        async with world(Node) as w:
            root = await w.harness.root()
            async with root.commit() as tx:
                owner = await tx.create_task(Unknown, "owner")
                await tx.create_task(Node, "child", owner=owner)
            script.aborts["child"] = held_back("child")
            w.harness.resume()
            await said("run:child")
            assert await w.harness.abort_task(owner) == "marked"
            await said("abort:child")
            [shown] = [task for task in (await w.harness.inspect()).tasks if task.record.id == owner]
            assert (shown.state.kind, shown.state.on) == ("waiting", ((await tasks(w))["child"].id,))
            script.open("abort child")
            assert (await outcome(w, "owner")).status == "orphaned"
            assert (await tasks(w))["child"].state.outcome.status == "aborted"

    run(main)


def test_a_waiting_task_without_code_stays_blocked_and_goes_on_migrated() -> None:
    async def main() -> None:
        def waiter(version: int) -> type[Task[Any, Any]]:
            class Waiter(Task[Any, str], name="t.waits", version=version):
                class Run(Phase):
                    async def run(self, task: TaskRun[Any, str]) -> None:
                        await task.wait([task.input], Waiter.Resume())

                class Resume(Phase):
                    async def run(self, task: TaskRun[Any, str]) -> None:
                        await task.complete(f"version {version}")

                @classmethod
                def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
                    return stored.input, cls.load_phase(stored.checkpoint)

            return Waiter

        async with world(waiter(1), Node) as w:
            other = await start(w, "other")
            waiting, gone = await w.create(waiter(1), other), await w.create(waiter(1), other)
            for id in (waiting, gone):
                await w.becomes(id, "waiting")
            w.define(Node)
            assert await w.harness.abort_task(gone) == "marked"
            assert (await w.outcome(gone)).status == "orphaned"  # at once: what it waits for is not its own
            assert await status(w, "other") == "running"
            script.open("other")
            await becomes(w, "other", "terminal")
            await w.settled()
            assert await w.status(waiting) == "waiting"
            assert (await w.harness.task_graph()).tasks[waiting].blocked == "missing_task"
            w.define(waiter(2), Node)
            assert (await w.outcome(waiting)).result == "version 2"

    run(main)


# -- borders ---------------------------------------------------------------------------------------------------------


def test_conversation_abort_crosses_into_background_work_only_when_asked_to() -> None:
    async def background(task: TaskRun[str, str]) -> None:
        async with task.commit() as tx:
            child = await tx.create_task(Node, "child", owner=task.id)
            conversation = await tx.create_conversation(owner=task.id)
            await tx.create_task(Node, "below", conversation=conversation.id)
            tx.wait([child], Node.Resume())

    async def main() -> None:
        script.runs["background"] = background
        async with world(Node) as w:
            root = await w.harness.root()
            await start(w, "foreground")
            await start(w, "background", background=True)
            await said("run:child")
            await said("run:below")
            await root.abort()
            found = await tasks(w)
            assert found["foreground"].state.outcome.status == "aborted"
            assert {found[name].state.status for name in ("child", "below")} == {"running"}
            script.aborts["child"] = held_back("child")
            aborting = asyncio.create_task(root.abort(background=True))
            await said("abort:child")
            await start(w, "later", background=True)  # what comes after the request is not meant
            script.open("abort child")
            await aborting
            found = await tasks(w)
            for name in ("background", "child", "below"):
                assert found[name].state.outcome.status == "aborted", name
            assert found["later"].state.status in ("pending", "running")
            assert not found["later"].abort_requested

    run(main)


def test_a_cascade_reaches_new_work_of_owned_conversations_and_stops_at_the_background() -> None:
    async def main() -> None:
        script.aborts["owner"] = held_back("owner")
        async with world(Node) as w:
            root = await w.harness.root()
            async with root.commit() as tx:
                owner = await tx.create_task(Node, "owner")
                outer = await tx.create_conversation(owner=owner)
                background = await tx.create_task(Node, "background", conversation=outer.id, background=True)
                inner = await tx.create_conversation(owner=background)
            w.harness.resume()
            await said("run:background")
            await w.harness.abort_task(owner)
            await said("abort:owner")  # at once: background work is not its ordinary work
            await w.create(Node, "shielded", conversation=inner.id)
            await w.create(Node, "exposed", conversation=outer.id)
            assert (await outcome(w, "exposed")).status == "aborted"
            await said("run:shielded")
            assert not (await tasks(w))["shielded"].abort_requested
            assert "run:exposed" not in script.log
            await w.harness.abort_task(background)
            assert (await outcome(w, "background")).status == "aborted"
            assert (await tasks(w))["shielded"].state.outcome.status == "aborted"
            script.open("abort owner")
            assert (await outcome(w, "owner")).status == "aborted"

    run(main)


def test_a_conversation_whose_owner_has_ended_runs_new_work() -> None:
    async def main() -> None:
        script.runs["agent"], script.resumes["agent"] = converses(), hang
        async with world(Node) as w:
            id = await start(w, "agent")
            await said("resume:agent")
            await w.harness.abort_task(id)
            assert (await outcome(w, "agent")).status == "aborted"
            [conversation] = await w.harness.conversations(owner_task=id).list()
            await start(w, "question", conversation=conversation.id)
            script.open("question")
            assert (await outcome(w, "question")).status == "completed"

    run(main)


def test_a_background_ancestor_that_has_ended_stays_a_border_over_a_reopen(tmp_path: Any) -> None:
    async def main() -> None:
        script.runs |= {"background": creates("child", then="wait"), "child": converses()}
        async with world(Node, path=tmp_path) as w:
            await start(w, "background", background=True)
            assert (await outcome(w, "background")).status == "completed"
            child = (await tasks(w))["child"].id
            await w.reopen()
            [conversation] = await w.harness.conversations(owner_task=child).list()
            await start(w, "below", conversation=conversation.id)
            await said("run:below")
            root = await w.harness.root()
            await root.wait_for_idle()
            await root.abort()
            assert await status(w, "below") == "running"
            await root.abort(background=True)
            assert (await outcome(w, "below")).status == "aborted"

    run(main)


# -- after a crash ---------------------------------------------------------------------------------------------------


async def seeded(w: World, *children: str) -> tuple[TaskRecord, list[TaskRecord]]:
    """A parent with children, none of which has run; ``left`` makes of them what a crash leaves."""
    root = await w.harness.root()
    async with root.commit() as tx:
        parent = await tx.create_task(Node, "parent")
        ids = [await tx.create_task(Node, name, owner=parent) for name in children]
    return await w.record(parent), [await w.record(id) for id in ids]


async def left(w: World, *records: TaskRecord) -> None:
    await w.harness.storage.commit([PutTask(record) for record in records])
    await w.kill()


def waits_for(children: list[TaskRecord], policy: Any = "all_settled") -> Waiting:
    return Waiting(checkpoint={"phase": "resume"}, on=tuple(child.id for child in children), policy=policy)


def ended(record: TaskRecord, outcome: Any) -> TaskRecord:
    return record.replaced(state=Terminal(outcome=outcome), ended_at=1.0)


def test_a_wait_whose_tasks_ended_before_the_crash_goes_on(tmp_path: Any) -> None:
    async def main() -> None:
        async with world(Node, path=tmp_path) as w:
            parent, [child] = await seeded(w, "child")
            await left(w, ended(child, Completed(result="x")), parent.replaced(state=waits_for([child])))
            assert (await outcome(w, "parent")).status == "completed"
            assert script.log == ["resume:parent"]

    run(main)


@pytest.mark.parametrize("how", ["ended", "held"])
def test_a_fail_fast_wait_that_a_crash_cut_off_aborts_the_rest_before_it_runs(tmp_path: Any, how: str) -> None:
    async def main() -> None:
        failed = Failed(error=ErrorInfo("declined"))
        async with world(Node, path=tmp_path) as w:
            parent, [one, two] = await seeded(w, "one", "two")
            root = await w.harness.root()
            async with root.commit() as tx:
                below = await tx.create_task(Node, "below", owner=one.id)
            first = ended(one, failed) if how == "ended" else one.replaced(state=Completing(outcome=failed))
            records = [first, parent.replaced(state=waits_for([one, two], "fail_fast"))]
            if how == "ended":
                records.append(ended(await w.record(below), Completed(result="x")))
            script.aborts["below"] = held_back("below")
            await left(w, *records)
            w.harness.resume()
            assert (await becomes(w, "two", "terminal")).state.outcome.status == "aborted"
            if how == "held":
                assert await status(w, "one") == "completing"
                script.open("abort below")
            assert (await outcome(w, "parent")).status == "completed"
            assert not [line for line in script.log if line.startswith("run:")]

    run(main)


def test_a_held_failure_that_a_crash_cut_off_aborts_what_is_below(tmp_path: Any) -> None:
    async def main() -> None:
        async with world(Node, path=tmp_path) as w:
            parent, _ = await seeded(w, "child")
            await left(w, parent.replaced(state=Completing(outcome=Failed(error=ErrorInfo("no")))))
            assert (await outcome(w, "parent")).status == "failed"
            assert script.log == ["abort:child"]

    run(main)


def test_a_held_outcome_whose_work_lives_stays_held_over_reopens(tmp_path: Any) -> None:
    async def main() -> None:
        async with world(Node, path=tmp_path) as w:
            parent, _ = await seeded(w, "child")
            await left(w, parent.replaced(state=Completing(outcome=Completed(result="parent"))))
            w.harness.resume()
            await said("run:child")
            assert await status(w, "parent") == "completing"
            await w.reopen()
            script.open("child")
            assert (await outcome(w, "parent")).result == "parent"

    run(main)


def test_a_marked_owner_waits_for_work_in_its_conversation_before_scheduling_starts(tmp_path: Any) -> None:
    async def main() -> None:
        async with world(Node, path=tmp_path) as w:
            root = await w.harness.root()
            async with root.commit() as tx:
                owner = await tx.create_task(Node, "owner")
                conversation = await tx.create_conversation(owner=owner)
                inner = await tx.create_task(Node, "inner", conversation=conversation.id)
            await left(w, (await w.record(owner)).replaced(abort_requested=True))
            [shown] = [task for task in (await w.harness.inspect()).tasks if task.record.id == owner]
            assert (shown.state.kind, shown.state.on) == ("waiting", (inner,))
            w.harness.resume()
            assert (await outcome(w, "owner")).status == "aborted"
            assert script.log == ["abort:inner", "abort:owner"]

    run(main)


def test_the_root_is_busy_with_work_deep_below_it_also_after_a_reopen(tmp_path: Any) -> None:
    async def main() -> None:
        script.runs |= {"parent": creates("child", then="wait"), "child": converses("inner")}
        async with world(Node, path=tmp_path) as w:
            await start(w, "parent")
            await said("run:inner")
            await w.reopen()
            root = await w.harness.root()
            idle = asyncio.create_task(root.wait_for_idle())
            await becomes(w, "inner", "running")
            assert not idle.done()
            script.open("inner")
            await idle
            assert (await outcome(w, "parent")).status == "completed"

    run(main)


class HeldMarks(MemoryStorage):
    """Holds the commit that marks a task, until it is released."""

    target: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self.release = asyncio.Event()

    async def commit(self, batch: Any, **options: Any) -> int:
        items = list(batch)
        for item in items:
            if isinstance(item, PutTask) and item.record.id == self.target and item.record.abort_requested:
                self.reached.set()
                await self.release.wait()
        return await super().commit(items, **options)


def test_no_phase_starts_below_a_marked_owner_before_the_cascade_has_landed() -> None:
    async def advances(task: TaskRun[str, str]) -> None:
        await asyncio.shield(script.gate("advance"))
        await task.next(Node.Resume())

    async def main() -> None:
        storage = HeldMarks()
        w = World(Node)
        harness = await w.open(storage)
        script.runs |= {"parent": hang, "child": advances}
        parent = await w.create(Node, "parent")
        storage.target = await w.create(Node, "child", owner=parent)
        harness.resume()
        await said("run:parent")
        await said("run:child")
        aborting = asyncio.create_task(harness.abort_task(parent))
        await asyncio.wait_for(storage.reached.wait(), 15)
        script.open("advance", "")
        await asyncio.sleep(0.05)
        assert "resume:child" not in script.log
        storage.release.set()
        assert await aborting == "marked"
        assert (await w.outcome(parent)).status == "aborted"
        assert script.log == ["run:parent", "run:child", "abort:child", "abort:parent"]
        await harness.close()

    run(main)


# -- asking twice, and waiting for idleness --------------------------------------------------------------------------


def test_a_second_abort_leaves_a_handler_that_runs_alone_and_its_outcome_counts() -> None:
    async def handler(task: TaskRun[str, str]) -> None:
        await asyncio.shield(script.gate("handler"))
        await task.aborted("once")
        raise RuntimeError("after the outcome")

    async def main() -> None:
        script.runs["task"], script.aborts["task"] = hang, handler
        async with world(Node) as w:
            id = await start(w, "task")
            await said("run:task")
            assert await w.harness.abort_task(id) == "marked"
            await said("abort:task")
            assert await w.harness.abort_task(id) == "marked"
            script.open("handler")
            ended = await w.harness.wait_for_task(id)
            assert (ended.state.outcome.status, ended.state.outcome.reason) == ("aborted", "once")
            assert script.log == ["run:task", "abort:task"]
            await eventually(lambda: [report.kind for report in w.reports] == ["task_error"])

    run(main)


def test_a_mark_that_lands_while_a_phase_goes_on_starts_no_further_phase() -> None:
    async def deaf(task: TaskRun[str, str]) -> None:
        await task.next(Node.Resume())
        script.log.append("went on")
        while True:
            try:
                await asyncio.shield(script.gate("return"))
                return
            except asyncio.CancelledError:
                script.log.append("was cancelled")

    async def main() -> None:
        script.runs["task"] = deaf
        async with world(Node) as w:
            id = await start(w, "task")
            await said("went on")
            await w.harness.abort_task(id)
            await said("was cancelled")
            script.open("return")
            assert (await w.harness.wait_for_task(id)).state.outcome.status == "aborted"
            assert script.log == ["run:task", "went on", "was cancelled", "abort:task"]

    run(main)


def test_idleness_counts_work_that_is_blocked_and_leaves_out_the_background() -> None:
    async def main() -> None:
        class Unknown(Task[None, None], name="t.unknown"):
            class Run(Phase):
                async def run(self, task: TaskRun[None, None]) -> None: ...

        async with world(Node) as w:
            root = await w.harness.root()
            await root.wait_for_idle()
            await w.harness.wait_for_idle()
            other = await w.harness.create_conversation()
            await start(w, "foreground")
            await start(w, "background", background=True)
            await start(w, "elsewhere", conversation=other.id)
            blocked = await w.create(Unknown)
            idle, all_idle = (asyncio.create_task(wait) for wait in (root.wait_for_idle(), w.harness.wait_for_idle()))
            script.open("foreground")
            await becomes(w, "foreground", "terminal")

            async def blocked_now() -> bool:
                return (await w.harness.task_graph()).tasks[blocked].blocked == "missing_task"

            await eventually(blocked_now)
            assert not idle.done()  # what is blocked is live
            await w.harness.abort_task(blocked)
            await idle
            assert not all_idle.done()
            script.open("elsewhere")
            await all_idle
            assert await status(w, "background") == "running"

    run(main)


@pytest.mark.parametrize("what", ["task", "idle", "conversation"])
def test_whoever_waits_hears_of_a_close_before_the_code_has_stopped(what: str) -> None:
    async def deaf(task: TaskRun[str, str]) -> None:
        while True:
            try:
                await asyncio.shield(script.gate("return"))
                return
            except asyncio.CancelledError:
                script.log.append("was cancelled")

    async def main() -> None:
        script.runs["task"] = deaf
        async with world(Node) as w:
            id = await start(w, "task")
            await said("run:task")
            root = await w.harness.root()
            waits = {"task": w.harness.wait_for_task, "idle": lambda _: w.harness.wait_for_idle()}
            waiting = asyncio.create_task(waits.get(what, lambda _: root.wait_for_idle())(id))
            await asyncio.sleep(0)
            closing = asyncio.create_task(w.harness.close())
            await said("was cancelled")
            with pytest.raises(SessionClosed):
                await asyncio.wait_for(waiting, 15)
            assert not closing.done()
            script.open("return")
            await closing

    run(main)
