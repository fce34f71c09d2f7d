"""Workflows: functions whose steps are stored (engine.md, section 7)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

from pidurable_nb import RetryPolicy, workflow
from pidurable_nb.tasks import StepFailed
from pidurable_nb.testing import eventually

from .support import World, forever, run, world


class Row(pydantic.BaseModel):
    name: str
    n: int = 0


calls: list[Any] = []


def load(day: str) -> list[Row]:
    calls.append(("load", day))
    return [Row(name=day, n=1)]


async def send(rows: list[Row]) -> str:
    calls.append(("send", [type(row).__name__ for row in rows]))
    return f"sent {len(rows)}"


@workflow("t.report", version=1)
async def report(run: Any, day: str, copies: int = 1) -> str:
    """Loads, sleeps and sends."""
    rows = await run.step("load", load, day)
    await run.sleep(3600)
    return str(await run.step("send", send, rows * copies))


@pytest.mark.parametrize("input", ["monday", {"day": "monday"}, ["monday", 2], {"day": "monday", "copies": 2}])
def test_steps_run_once_and_a_sleeping_workflow_holds_no_coroutine(tmp_path: Path, input: Any) -> None:
    async def main() -> None:
        calls.clear()
        w = World(report, wakes=True).at(tmp_path)
        await w.open()
        if input == "monday":
            with pytest.raises(pydantic.ValidationError):
                await w.create(report, input)  # two parameters: a bare value is ambiguous
            await w.harness.close()
            return
        id = await w.create(report, input)
        w.harness.resume()
        await w.becomes(id, "sleeping")
        await eventually(lambda: not w.harness._invocations)
        await w.kill()
        w.clock.advance(3600)
        w.harness.resume()
        copies = 2 if len(input) == 2 else 1
        assert (await w.outcome(id)).result == f"sent {copies}"
        assert calls == [("load", "monday"), ("send", ["Row"] * copies)]
        assert report.name == "t.report"
        assert report.__doc__ == "Loads, sleeps and sends."
        await w.harness.close()

    run(main)


def test_the_same_name_twice_gets_an_ordinal_and_one_parameter_takes_a_bare_value() -> None:
    async def main() -> None:
        seen: list[int] = []

        @workflow("t.twice")
        async def twice(run: Any, n: int) -> list[int]:
            results = [await run.step("add", add, n + k) for k in range(3)]
            await run.sleep(0)
            return results

        def add(n: int) -> int:
            seen.append(n)
            return n + 1

        async with world(twice) as w:
            id = await w.create(twice, 5)
            assert (await w.outcome(id)).result == [6, 7, 8]
            assert seen == [5, 6, 7]

    run(main)


def test_a_changed_order_of_steps_raises_and_shows_both() -> None:
    async def main() -> None:
        def define(*names: str, ends: bool = False) -> Any:
            @workflow("t.order")
            async def order(run: Any) -> None:
                for name in names:
                    await run.step(name, str)
                if not ends:
                    await run.sleep(100)

            return order

        async with world(define("a", "b"), wakes=True) as w:
            first = await w.create(define("a", "b"))
            second = await w.create(define("a", "b"))
            w.harness.resume()
            await w.becomes(first, "sleeping")
            await w.becomes(second, "sleeping")
            w.define(define("a", "c", "b"))
            w.clock.advance(200)
            w.harness.resume()
            outcome = await w.outcome(first)
            assert outcome.status == "faulted"
            assert "WorkflowChanged: the workflow t.order" in outcome.error.message
            assert "operation 2 is now 'c' and is stored as 'b'" in outcome.error.message
            assert "Stored: a, b, sleep. Now: a, c." in outcome.error.message

    run(main)


def test_a_workflow_that_ends_before_its_stored_steps_has_changed() -> None:
    async def main() -> None:
        def define(steps: int) -> Any:
            @workflow("t.shorter")
            async def shorter(run: Any) -> None:
                for _ in range(steps):
                    await run.step("s", str)
                if steps == 2:
                    await run.sleep(100)

            return shorter

        async with world(define(2), wakes=True) as w:
            id = await w.create(define(2))
            w.harness.resume()
            await w.becomes(id, "sleeping")
            w.define(define(1))
            w.clock.advance(200)
            w.harness.resume()
            assert (
                "it now ends after 1 operations. Stored: s, s#2, sleep. Now: s." in (await w.outcome(id)).error.message
            )

    run(main)


def test_gathered_steps_run_at_the_same_time_and_keep_their_order() -> None:
    async def main() -> None:
        running = 0
        most = 0

        async def work(n: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01 * (3 - n))
            running -= 1
            return n

        @workflow("t.gather")
        async def gathered(run: Any) -> list[Any]:
            results: list[Any] = await run.gather(*(run.step("work", work, n) for n in range(3)))
            await run.sleep(0)
            return results

        async with world(gathered) as w:
            assert (await w.outcome(await w.create(gathered))).result == [0, 1, 2]
            assert most == 3

    run(main)


@pytest.mark.parametrize("retry", [2, RetryPolicy(max_retries=2, base_delay=1.0)])
def test_a_failing_step_is_tried_again_after_durable_pauses(tmp_path: Path, retry: Any) -> None:
    async def main() -> None:
        tries: list[float] = []

        def flaky() -> str:
            tries.append(w.clock())
            if len(tries) < 3:
                raise OSError("busy")
            return "at last"

        @workflow("t.flaky")
        async def patient(run: Any) -> Any:
            return await run.step("flaky", flaky, retry=retry)

        w = World(patient, wakes=True).at(tmp_path)
        await w.open()
        id = await w.create(patient)
        w.harness.resume()
        await w.becomes(id, "sleeping")
        await w.kill()
        for _ in range(2):
            w.harness.resume()
            await w.settled()
            at = w.harness.wake().at
            assert at is not None
            w.clock.set(at)
        w.harness.resume()
        assert (await w.outcome(id)).result == "at last"
        assert tries == [1000.0, 1001.0, 1003.0]
        await w.harness.close()

    run(main)


def test_a_step_that_failed_for_good_fails_the_same_way_each_time() -> None:
    async def main() -> None:
        tries: list[int] = []

        def broken() -> None:
            tries.append(1)
            raise ValueError("no such day")

        @workflow("t.broken")
        async def caught(run: Any) -> str:
            try:
                await run.step("broken", broken)
            except StepFailed as error:
                await run.sleep(0)
                return str(error)
            return "not reached"

        @workflow("t.uncaught")
        async def uncaught(run: Any) -> None:
            await run.step("broken", broken)

        async with world(caught, uncaught) as w:
            message = "the step 'broken' failed: ValueError: no such day"
            assert (await w.outcome(await w.create(caught))).result == message
            assert len(tries) == 1
            outcome = await w.outcome(await w.create(uncaught))
            assert (outcome.status, outcome.error.message) == ("faulted", f"StepFailed: {message}")

    run(main)


def test_workflows_receive_signals_and_wait_for_children() -> None:
    async def main() -> None:
        @workflow("t.inner")
        async def inner(run: Any, n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return n * 2

        @workflow("t.outer")
        async def outer(run: Any) -> list[Any]:
            first = await run.receive("approval")
            children = await run.gather(run.child(inner, 1), run.child(inner, 2))
            late = await run.receive("never", timeout=10)
            both = await run.gather(run.receive("more"), run.child(inner, 3))
            try:
                await run.child(inner, -1)
            except StepFailed as error:
                return [first, children, late, both, "negative" in str(error)]
            return []

        async with world(inner, outer, wakes=True) as w:
            id = await w.create(outer)
            assert await w.harness.signal(id, "approval", {"ok": True}) == "kept"
            w.harness.resume()
            await eventually(lambda: w.harness.wake().at is not None)
            assert (await w.record(id)).state.signal == "never"
            w.clock.advance(10)
            w.harness.resume()

            async def asks_for_more() -> bool:
                return getattr((await w.record(id)).state, "signal", None) == "more"

            await eventually(asks_for_more)
            assert await w.harness.signal(id, "more", 7) == "delivered"
            assert (await w.outcome(id)).result == [{"ok": True}, [2, 4], None, [7, 6], True]

    run(main)


def test_an_abort_reaches_a_workflow_and_its_children() -> None:
    async def main() -> None:
        @workflow("t.hang")
        async def hang(run: Any) -> None:
            await run.step("hang", forever)

        @workflow("t.over")
        async def over(run: Any) -> None:
            await run.child(hang)

        async with world(hang, over) as w:
            id = await w.create(over)
            w.harness.resume()
            await w.becomes(id, "waiting")
            await w.harness.abort_task(id)
            assert (await w.outcome(id)).status == "aborted"
            assert not (await w.harness.task_graph()).tasks

    run(main)


def test_each_stored_step_is_progress(tmp_path: Path) -> None:
    async def main() -> None:
        async def work(n: int) -> None:
            if n == reached:
                await forever()

        @workflow("t.long")
        async def long(run: Any) -> None:
            for n in range(9):
                await run.step("work", work, n)

        w = World(long).at(tmp_path)
        await w.open()
        id = await w.create(long)
        for reached in range(9):  # cut off once at each step: more often than the limit, and never twice at one

            async def stored(reached: int = reached) -> bool:
                state = (await w.record(id)).state
                return state.status == "running" and state.checkpoint["steps"] == reached

            w.harness.resume()
            await eventually(stored)
            await w.kill()
            assert (await w.record(id)).restarts == 1
        reached = 99
        assert (await w.outcome(id)).status == "completed"
        await w.harness.close()

    run(main)


def test_functions_that_cannot_be_workflows_are_refused() -> None:
    with pytest.raises(TypeError, match="not an async function"):
        workflow("t.plain")(lambda run: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(TypeError, match="needs a first parameter"):

        @workflow("t.none")
        async def none() -> None: ...

    with pytest.raises(TypeError, match="name its parameters"):

        @workflow("t.star")
        async def star(run: Any, *args: int) -> None: ...


# -- real processes --------------------------------------------------------------------------------------------------

SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path
from pidurable_nb import Extension, Harness, Registry, workflow
from pidurable_nb.errors import StepInterrupted

here = Path(sys.argv[1])
replay, kill_at = sys.argv[2], sys.argv[3]

def effect(name):
    with open(here / "effects", "a") as file:
        file.write(name + "\\n")
    if name == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return name.upper()

@workflow("t.killed")
async def killed(run) -> list:
    done = [await run.step("one", effect, "one", replay=replay)]
    try:
        done.append(await run.step("two", effect, "two", replay=replay))
    except StepInterrupted as error:
        done.append("interrupted" if "whether it took effect" in str(error) else "?")
    done.append(await run.step("three", effect, "three", replay=replay))
    return done

async def main():
    registry = Registry()
    registry.install(Extension("w", tasks=[killed]))
    async with Harness.open(here / "session.sqlite", registry=registry) as harness:
        root = await harness.root()
        tasks = await harness.tasks().list()
        if tasks:
            id = tasks[0].id
        else:
            async with root.commit() as tx:
                id = await tx.create_task(killed, None)
        print((await harness.wait_for_task(id)).state.outcome.to_json())

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("replay", "effects", "result"),
    [
        ("safe", ["one", "two", "two", "three"], '["ONE","TWO","THREE"]'),
        ("unsafe", ["one", "two", "three"], '["ONE","interrupted","THREE"]'),
    ],
)
def test_a_killed_process_repeats_a_safe_step_and_never_an_unsafe_one(
    tmp_path: Path, replay: str, effects: list[str], result: str
) -> None:
    def start(kill_at: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), replay, kill_at]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=os.environ, check=False)

    assert start("two").returncode == -signal.SIGKILL
    again = start("nowhere")
    assert again.returncode == 0, again.stderr
    assert f'"result":{result}' in again.stdout
    assert (tmp_path / "effects").read_text().split() == effects


def test_a_step_is_safe_or_unsafe_and_nothing_else(tmp_path: Path) -> None:
    paid: list[int] = []

    @workflow("t.misspelt")
    async def misspelt(run: Any) -> None:
        await run.step("pay", paid.append, 1, replay="un-safe")

    async def main() -> None:
        w = World(misspelt).at(tmp_path)
        await w.open()
        outcome = (await w.harness.wait_for_task(await w.create(misspelt, None))).state.outcome
        assert "the step pay has replay='un-safe'; it is 'safe' or 'unsafe'" in outcome.error.message
        assert paid == []
        await w.harness.close()

    run(main)


def test_a_workflow_without_a_name_is_refused() -> None:
    async def order(run: Any) -> None:
        await run.sleep(1)

    with pytest.raises(TypeError, match="a workflow is stored under a name"):
        workflow(order)  # type: ignore[arg-type]
