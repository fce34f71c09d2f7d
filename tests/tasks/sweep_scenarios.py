"""Scenarios of tasks for the crash sweep, which kills real processes: each may be begun again where it was cut off.

What code does is noted with ``Stage.note``, so that a test can count it over all processes. A scenario finds the work
of an earlier process by its kind and creates it only when there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pidurable_nb import Extension, Harness, Phase, Registry, StoredTask, Task, TaskRun, workflow
from pidurable_nb.errors import StepInterrupted
from pidurable_nb.records import TaskRecord
from pidurable_nb.session import Report
from pidurable_nb.testing import Stage, eventually

stage: Stage
registry: Registry


async def play(
    given: Stage,
    tasks: Sequence[type[Task[Any, Any]]],
    input: Any,
    act: Callable[[Harness, TaskRecord], Awaitable[None]] | None = None,
    *,
    later: Sequence[type[Task[Any, Any]]] = (),
) -> list[Any]:
    """Run the first of the task classes to its end: its result, and how each task ended, in order of creation.

    Fails when a task ended after its owner, and notes every report. ``later`` are the classes that a process has from
    its start when it finds the work of an earlier one.
    """
    global stage, registry
    stage, registry = given, Registry()
    async with Harness.open(given.storage, registry=registry, on_report=note_report) as harness:
        root = await harness.root()
        found = [record async for record in harness.tasks(kind=tasks[0].name) if record.owner is None]
        top = [record for record in found if record.conversation_id == root.id]
        install(later if top and later else tasks)
        if not top:
            async with root.commit() as tx:
                await tx.create_task(tasks[0], input)
            top = [record async for record in harness.tasks(kind=tasks[0].name)]
        if act is not None:
            await act(harness, top[0])
        record = await harness.wait_for_task(top[0].id)
        await root.wait_for_idle()
        harness.validate()
        ended: dict[int, TaskRecord] = {task.id: task async for task in harness.tasks()}
        above: dict[int, int] = {c.id: c.owner.task async for c in harness.conversations() if c.owner is not None}
        for task in ended.values():
            owner = _owner(task, ended, above)
            assert owner is None or _end(task) <= _end(owner), f"task {task.id} ended after its owner {owner.id}"
        outcome: Any = record.state.outcome  # type: ignore[union-attr]
        statuses = [task.state.outcome.status for task in ended.values()]  # type: ignore[union-attr]
        return [getattr(outcome, "result", None), statuses]


def note_report(report: Report) -> None:
    if report.reason != "blocked_loop":  # the machine's doing
        stage.note("report", str(report))


def install(tasks: Sequence[type[Task[Any, Any]]]) -> None:
    registry.install(Extension("sweep", tasks=list(tasks)))


def _owner(task: TaskRecord, tasks: dict[int, TaskRecord], above: dict[int, int]) -> TaskRecord | None:
    """The task below which a task is ordinary work, over the conversation that it may be in."""
    owner = task.owner or above.get(task.conversation_id)
    return None if owner is None else tasks[owner]


def _end(task: TaskRecord) -> float:
    assert task.ended_at is not None
    return task.ended_at


# -- the checkout with four payments, in three forms -------------------------------------------------------------------


class Payment(Task[str, str], name="s.payment"):
    class Authorize(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            await task.next(Payment.Capture(key=f"key-{task.id}"))

    class Capture(Phase):
        key: str

        async def run(self, task: TaskRun[str, str]) -> None:
            stage.note("charged", f"{task.input} {self.key}")
            if task.input == "slow":
                await asyncio.Event().wait()
            elif task.input == "refused":
                await task.fail("refused")
            else:
                await asyncio.sleep(0.02)
                async with task.commit() as tx:
                    await tx.append_entry("s.receipt", data={"key": self.key})
                    tx.complete(task.input)

    @classmethod
    async def abort(cls, task: TaskRun[str, str]) -> None:
        stage.note("aborted", task.input)
        await task.aborted()


class Checkout(Task[list[str], list[str]], name="s.checkout"):
    class Start(Phase):
        async def run(self, task: TaskRun[list[str], list[str]]) -> None:
            async with task.commit() as tx:
                payments = [await tx.create_task(Payment, card, owner=task.id) for card in task.input]
                tx.wait(payments, Checkout.Finish(payments=[*payments]), "fail_fast")

    class Finish(Phase):
        payments: list[int]

        async def run(self, task: TaskRun[list[str], list[str]]) -> None:
            await task.complete([outcome.status for outcome in await task.outcomes(self.payments)])

    @classmethod
    async def abort(cls, task: TaskRun[list[str], list[str]]) -> None:
        stage.note("aborted", "checkout")
        await task.aborted("withdrawn")


async def checkout_with_a_refused_card(stage: Stage) -> Any:
    return await play(stage, [Checkout, Payment], ["slow", "refused", "slow", "slow"])


async def checkout_restarted_while_it_runs(stage: Stage) -> Any:
    return await play(stage, [Checkout, Payment], ["a", "b", "c", "d"])


async def checkout_aborted_while_it_runs(given: Stage) -> Any:
    async def abort(harness: Harness, record: TaskRecord) -> None:
        async def due() -> bool:
            now = await harness.task(record.id)
            assert now is not None
            live = (await harness.inspect()).tasks
            charging = [task for task in live if task.state.kind == "running" and _phase(task.record) == "capture"]
            return now.terminal or now.abort_requested or len(charging) == 4

        harness.resume()
        await eventually(due)
        given.note("ask", await harness.abort_task(record.id))

    return await play(given, [Checkout, Payment], ["slow"] * 4, abort)


def _phase(record: TaskRecord) -> Any:
    return getattr(record.state, "checkpoint", {}).get("phase")


# -- nested owners -----------------------------------------------------------------------------------------------------


class Nest(Task[list[Any], int], name="s.nest"):
    """Three levels: each creates the one below and has its own outcome next, which is held until that has ended.

    The one at the bottom works in a conversation that it owns.
    """

    class Run(Phase):
        async def run(self, task: TaskRun[list[Any], int]) -> None:
            level, ending, bottom = task.input
            stage.note("ran", str(level))
            async with task.commit() as tx:
                if level > 1:
                    await tx.create_task(Nest, [level - 1, "complete", bottom], owner=task.id)
                else:
                    conversation = await tx.create_conversation(owner=task.id)
                    await tx.create_task(Below, bottom, conversation=conversation.id)
                tx.next(Nest.Fail() if ending == "fail" else Nest.End())

    class End(Phase):
        async def run(self, task: TaskRun[list[Any], int]) -> None:
            await task.complete(task.input[0])

    class Fail(Phase):
        async def run(self, task: TaskRun[list[Any], int]) -> None:
            await eventually(lambda: bool(stage.notes("at the bottom")))
            await task.fail("changed its mind")


class Below(Task[str, None], name="s.below"):
    class Run(Phase):
        async def run(self, task: TaskRun[str, None]) -> None:
            stage.note("at the bottom")
            if task.input == "for ever":
                await asyncio.Event().wait()
            await asyncio.sleep(0.02)
            await task.complete()

    @classmethod
    async def abort(cls, task: TaskRun[str, None]) -> None:
        stage.note("aborted", "below")
        await task.aborted()


async def nested_owners(stage: Stage) -> Any:
    return await play(stage, [Nest, Below], [3, "complete", "briefly"])


async def nested_owners_that_fail(stage: Stage) -> Any:
    return await play(stage, [Nest, Below], [3, "fail", "for ever"])


# -- sleeping ----------------------------------------------------------------------------------------------------------


class Sleeper(Task[float, bool], name="s.sleeper"):
    class Run(Phase):
        async def run(self, task: TaskRun[float, bool]) -> None:
            until = task.now() + task.input
            await task.sleep_until(until, Sleeper.Awake(until=until))

    class Awake(Phase):
        until: float

        async def run(self, task: TaskRun[float, bool]) -> None:
            stage.note("woke", repr(self.until))
            await task.complete(time.time() >= self.until)


async def sleeping(stage: Stage) -> Any:
    return await play(stage, [Sleeper], 0.05)


# -- a migration -------------------------------------------------------------------------------------------------------


class Moving1(Task[str, str], name="s.moving", version=1):
    """The code of the first process: it sleeps, and gets a newer form meanwhile."""

    class First(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            await task.sleep_until(task.now() + 0.03, Moving1.Rest(seconds=7))
            install([Moving2])

    class Rest(Phase):
        seconds: int

        async def run(self, task: TaskRun[str, str]) -> None:
            stage.note("old code", "rest")
            await task.complete("by old code")


class Moving2(Task[dict[str, str], str], name="s.moving", version=2):
    """The code of every later process: another form of the input, other phases."""

    class Begin(Phase):
        async def run(self, task: TaskRun[dict[str, str], str]) -> None:
            await task.next(Moving2.Count(minutes=7))

    class Count(Phase):
        minutes: int

        async def run(self, task: TaskRun[dict[str, str], str]) -> None:
            async with task.commit() as tx:
                await tx.append_entry("s.moved", data={"minutes": self.minutes})
                tx.next(Moving2.End(minutes=self.minutes))

    class End(Phase):
        minutes: int

        async def run(self, task: TaskRun[dict[str, str], str]) -> None:
            await task.complete(f"{task.input['who']}, {self.minutes} minutes")

    @classmethod
    def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
        stage.note("migrated", f"{stored.version} {stored.checkpoint['phase']}")
        phase: Phase = Moving2.Begin()
        if stored.checkpoint["phase"] == "rest":
            phase = Moving2.Count(minutes=stored.checkpoint["seconds"])
        return {"who": stored.input}, phase


async def migration(stage: Stage) -> Any:
    return await play(stage, [Moving1], "someone", later=[Moving2])


# -- handover ----------------------------------------------------------------------------------------------------------


class Replaced(Task[None, str], name="s.replaced"):
    """Its definition is replaced while its first phase runs."""

    class First(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            install([Replacing])
            await task.next(Replaced.Second())

    class Second(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            stage.note("old code", "second")
            await task.complete("by old code")


class Replacing(Task[None, str], name="s.replaced"):
    """The same name and version, other code."""

    class First(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            await task.next(Replacing.Second())

    class Second(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            async with task.commit() as tx:
                await tx.append_entry("s.replaced", data=None)
                tx.complete("by new code")


async def handover(stage: Stage) -> Any:
    return await play(stage, [Replaced], None, later=[Replacing])


# -- a workflow --------------------------------------------------------------------------------------------------------


def effect(name: str) -> str:
    stage.note("effect", name)
    return name.upper()


@workflow("s.flow")
async def flow(run: Any, day: str) -> list[Any]:
    loaded = await run.step("load", effect, day)
    try:
        await run.step("pay", effect, "pay", replay="unsafe")
    except StepInterrupted:
        await run.step("ask whether it was paid", effect, "ask")
    await run.sleep(0.02)
    pair = await run.gather(run.step("left", effect, "left"), run.child(Payment, "in a flow"))
    answer = await run.receive("approval")
    return [loaded, pair, answer]


async def workflow_with_everything(stage: Stage) -> Any:
    async def approve(harness: Harness, record: TaskRecord) -> None:
        stage.note("signal", await harness.signal(record.id, "approval", True, request_id="once"))

    return await play(stage, [flow, Payment], "monday", approve)
