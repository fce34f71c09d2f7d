"""Calls that were interrupted: what runs again, and what does not (engine.md, section 12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import (
    Harness,
    LiveState,
    Replace,
    SqliteStorage,
    Tool,
    ToolContext,
    ToolHooks,
    tool,
)
from pidurable_nb.testing import KillSwitch

from .support import Chat, bounded, call, calls, codes, eventually, forever, live, results


@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("stored", ["safe", "unsafe"])
@pytest.mark.parametrize("present", ["safe", "unsafe"])
@bounded
async def test_a_call_runs_again_only_when_both_policies_say_safe(
    tmp_path: Path, how: str, stored: Any, present: Any
) -> None:
    path = tmp_path / "s.sqlite"
    asked: list[Any] = []
    runs: list[Any] = []
    started = asyncio.Event()

    def define(replay: Any) -> Tool:
        @tool(replay=replay)
        async def effect(ctx: ToolContext, n: int) -> str:
            runs.append((n, ctx.retained_output()))
            await ctx.output("progress")
            if len(runs) == 1:
                started.set()
                await forever()
            return "complete"

        return effect

    def before(info: Any, _ctx: Any) -> Any:
        asked.append(info.arguments)
        return Replace({"n": info.arguments["n"] + 1})

    chat = Chat(calls(call("effect", {"n": 1})), lambda request: "saw " + request.messages[-1].text, path=path)
    chat.install(define(stored), name="effect", hooks=[ToolHooks(before_tool=before)])
    switch = KillSwitch(await SqliteStorage.open(path))
    first = await Harness.open(switch, models=chat.model, registry=chat.registry)
    submission = await (await first.root()).submit("go")
    await started.wait()
    if how == "close":
        await first.close()
    else:
        switch.kill()
    chat.install(define(present), name="effect", hooks=[ToolHooks(before_tool=before)])
    async with chat.open() as (harness, root):
        found = await harness.submission(submission.id)
        assert found is not None
        assert (await found.wait()).status == "done"
        [message] = await results(root)
        assert asked == [{"n": 1}]
        if stored == present == "safe":
            assert runs == [(2, ""), (2, "")]
            assert message.text == "complete"
        else:
            assert runs == [(2, "")]
            assert message.is_error
            assert "interrupted" in message.text
            assert "progress" in message.text
            assert await codes(root) == ["interrupted"]


@bounded
async def test_a_call_that_runs_again_starts_from_empty_output(tmp_path: Path) -> None:
    begun: list[Any] = []

    @tool(replay="safe")
    async def work(ctx: ToolContext) -> str:
        state = await ctx.snapshot(LiveState, ctx.conversation_id)
        [shown] = state.tools
        begun.append((shown.output, shown.details, len(shown.diagnostics)))
        if len(begun) == 1:
            ctx.diagnostic("odd")
            ctx.details({"step": 1})
            await ctx.output("progress")
            await forever()
        return "complete"

    chat = Chat(calls("work"), "done", path=tmp_path / "s.sqlite")
    chat.install(work)
    async with chat.open() as (harness, root):
        await root.submit("go", request_id="r")

        async def progress() -> bool:
            state = await live(harness, root)
            return bool(state.tools) and state.tools[0].output == "progress"

        await eventually(progress)
        await harness.close()
    async with chat.open() as (harness, root):
        assert (await live(harness, root)).tools[0].output == "progress"
        await (await root.submit("go", request_id="r")).wait()
        assert begun == [("", None, 0)] * 2


@bounded
async def test_a_call_that_was_cut_off_before_its_intent_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    entered = asyncio.Event()
    looks: list[int] = []
    runs: list[int] = []

    async def before(_info: Any, _ctx: Any) -> None:
        looks.append(1)
        if len(looks) == 1:
            entered.set()
            await forever()

    @tool
    def effect() -> str:
        runs.append(1)
        return "complete"

    chat = Chat(calls("effect"), "done", path=path)
    chat.install(effect, hooks=[ToolHooks(before_tool=before)])
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        await entered.wait()
        await harness.close()
    async with chat.open() as (harness, root):
        found = await harness.submission(submission.id)
        assert found is not None
        await found.wait()
        assert (len(looks), len(runs)) == (2, 1)
        assert await codes(root) == [None]
