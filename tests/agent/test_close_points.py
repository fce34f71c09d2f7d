"""A close at every commit of a turn: nothing is lost, nothing unsafe runs twice, no restart is counted (section 7)."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Harness, Phase, ProgressPolicy, Settings, SqliteStorage, Task, TaskRun, ToolContext, tool
from pidurable_nb.errors import DurableError
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.records import outcome_of_task
from pidurable_nb.testing import Faults, check_stored

from .support import Chat, bounded, calls


class Turn:
    """One turn with a slow answer and two tools, closed at one commit and gone on with in a second opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: list[str] = []
        self.requests = 0
        self.chat = Chat()
        self.chat.settings = Settings(progress=ProgressPolicy(partial_interval=0.001, output_interval=0.001))
        self.chat.models = ScriptedModel([self._calls, self._answer], by="transcript")

        @tool(replay="safe")
        async def safe(ctx: ToolContext) -> str:
            await ctx.output("working")
            self.done.append("safe")
            return "safe result"

        @tool
        async def unsafe(ctx: ToolContext) -> str:
            self.done.append("unsafe")
            await ctx.output("working")
            return "unsafe result"

        self.chat.install(safe, unsafe)

    def _calls(self, _request: Any) -> Any:
        self.requests += 1
        return Reply("let me see", tool_calls=calls("safe", "unsafe").tool_calls, tokens_per_second=2000)

    def _answer(self, _request: Any) -> Any:
        self.requests += 1
        return Reply("the answer " * 10, tokens_per_second=2000)

    async def run(self, at: int | None) -> tuple[int, str | None]:
        """Run until the close or the end: how many commits there were, and how the input ended."""
        harness = await Harness.open(
            str(self.path), models=self.chat.models, registry=self.chat.registry, settings=self.chat.settings
        )
        closing: list[asyncio.Task[None]] = []

        def close() -> None:
            outside = contextvars.Context()  # code of a task may not close what waits for it
            closing.append(asyncio.get_running_loop().create_task(harness.close(), context=outside))

        status: str | None = None
        with Faults() as faults:
            if at is not None:
                faults.call("commit.stored", close, at=at)
            try:
                root = await harness.root()
                status = (await (await root.submit("go", request_id="r")).wait()).status
                await root.wait_for_idle()
            except DurableError:
                assert closing
            await asyncio.gather(*closing)
            await harness.close()
            return faults.reached["commit.stored"], status


@pytest.mark.parametrize("part", range(4))
@bounded
async def test_a_turn_goes_on_after_a_close_at_any_commit(tmp_path: Path, part: int) -> None:
    whole = Turn(tmp_path / "whole.sqlite")
    commits, status = await whole.run(None)
    assert (status, whole.requests, sorted(whole.done)) == ("done", 2, ["safe", "unsafe"])
    assert commits >= 12
    stopped = 0
    for at in range(1 + part, commits + 1, 4):
        turn = Turn(tmp_path / f"{at}.sqlite")
        _, status = await turn.run(at)
        stopped += status is None
        _, status = await turn.run(None)
        assert status == "done", f"closed at commit {at}"
        assert turn.done.count("unsafe") <= 1, f"closed at commit {at}"
        assert turn.done.count("safe") <= 2, f"closed at commit {at}"
        assert turn.requests <= 3, f"closed at commit {at}"
        storage = await SqliteStorage.open(turn.path)
        stored = await check_stored(storage)
        kinds = [
            entry.kind
            for entry in stored.entries
            if not any(m.role == "assistant" and m.stop_reason == "aborted" for m in entry.messages)
        ]
        assert kinds == ["pi.user", "pi.system", "pi.assistant", "pi.tool-result", "pi.tool-result", "pi.assistant"]
        assert all(task.restarts == 0 for task in stored.tasks.values())
        assert "cut_off" not in {attempt.end for attempt in await storage.attempts()}
        await storage.close()
    assert stopped >= 2


@bounded
async def test_code_that_reads_just_as_the_session_closes_goes_on_later(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class Reading(Task[None, str], name="test.reading", version=1):
        class Start(Phase):
            async def run(self, task: TaskRun[None, str]) -> None:
                begun.set()
                await go.wait()
                await task.task(task.id)
                await task.complete("read")

    chat = Chat(path=tmp_path / "session.sqlite")
    chat.install(tasks=[Reading])
    async with chat.open() as (harness, root):
        async with root.commit() as tx:
            id = await tx.create_task(Reading, None)
        harness.resume()
        await begun.wait()
        go.set()  # it wakes before the close has begun to stop what runs
        await harness.close()
    async with chat.open() as (harness, _):
        outcome = outcome_of_task(await harness.wait_for_task(id))
        assert outcome is not None
        assert outcome.status == "completed"
