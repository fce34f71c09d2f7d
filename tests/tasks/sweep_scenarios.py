"""Scenarios of tasks for the crash sweep, which kills real processes: each may be begun again where it was cut off."""

from __future__ import annotations

from typing import Any

from pidurable_nb import Extension, Harness, Phase, Registry, Task, TaskRun, workflow
from pidurable_nb.testing import Stage

stage_of_process: Stage


class Payment(Task[str, str], name="s.payment"):
    class Authorize(Phase):
        async def run(self, task: TaskRun[str, str]) -> None:
            await task.next(Payment.Capture(key=f"key-{task.id}"))

    class Capture(Phase):
        key: str

        async def run(self, task: TaskRun[str, str]) -> None:
            stage_of_process.note("charged", self.key)
            if task.input == "refused":
                await task.fail("refused")
            else:
                await task.complete(task.input)


class Checkout(Task[list[str], list[str]], name="s.checkout"):
    class Start(Phase):
        async def run(self, task: TaskRun[list[str], list[str]]) -> None:
            async with task.commit() as tx:
                payments = [await tx.create_task(Payment, card, owner=task.id) for card in task.input]
                tx.wait(payments, Checkout.Finish(payments=payments))

    class Finish(Phase):
        payments: list[int]

        async def run(self, task: TaskRun[list[str], list[str]]) -> None:
            await task.complete([outcome.status for outcome in await task.outcomes(self.payments)])


def effect(name: str) -> str:
    stage_of_process.note("effect", name)
    return name.upper()


@workflow("s.flow")
async def flow(run: Any, day: str) -> list[Any]:
    loaded = await run.step("load", effect, day)
    await run.sleep(0.01)
    pair = await run.gather(run.step("left", effect, "left"), run.child(Payment, "in a flow"))
    answer = await run.receive("approval")
    return [loaded, pair, answer]


async def _play(stage: Stage, task: Any, input: Any) -> Any:
    global stage_of_process
    stage_of_process = stage
    registry = Registry()
    registry.install(Extension("sweep", tasks=[Payment, Checkout, flow]))
    async with Harness.open(stage.storage, registry=registry) as harness:
        root = await harness.root()
        found = await harness.tasks(kind=task.name).list()
        if found:
            id = found[0].id
        else:
            async with root.commit() as tx:
                id = await tx.create_task(task, input)
        if task is flow:
            await harness.signal(id, "approval", True, request_id="once")
        record = await harness.wait_for_task(id)
        harness.validate()
        outcome = record.state.outcome  # type: ignore[union-attr]
        return [outcome.status, getattr(outcome, "result", None)]


async def checkout(stage: Stage) -> Any:
    return await _play(stage, Checkout, ["a", "b", "refused", "d"])


async def workflow_with_signal(stage: Stage) -> Any:
    return await _play(stage, flow, "monday")
