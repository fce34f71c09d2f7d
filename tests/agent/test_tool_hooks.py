"""Hooks of tools, and how calls are stopped (engine.md, sections 10 and 12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pidurable_nb import (
    Block,
    Extension,
    GenerationHooks,
    Replace,
    Settings,
    ToolContext,
    ToolHooks,
    ToolResult,
    tool,
)
from pidurable_nb.errors import DurableError, InvocationEnded

from .support import Chat, bounded, call, calls, codes, forever, one_call, results


@bounded
async def test_before_tool_chains_replacements_and_the_first_block_wins() -> None:
    seen: list[Any] = []

    @tool
    def add(a: int, b: int = 0) -> int:
        return a + b

    def first(info: Any, ctx: Any) -> Any:
        seen.append((info.name, info.id, dict(info.arguments), info.parent, ctx.conversation_id))
        return Replace({"a": info.arguments["a"] + 10})

    async def second(info: Any, _ctx: Any) -> Any:
        seen.append(dict(info.arguments))
        return Block("too much") if info.arguments["a"] > 100 else None

    def third(_info: Any, _ctx: Any) -> Any:
        seen.append("third")

    chat = Chat(calls(call("add", {"a": 1}, "c1"), call("add", {"a": 100}, "c2")), "done")
    chat.settings = Settings(tool_execution="sequential")
    chat.install(add, hooks=[ToolHooks(before_tool=first)])
    chat.registry.install(Extension("b", hooks=[ToolHooks(before_tool=second), ToolHooks(before_tool=third)]))
    async with chat.open() as (_, root):
        await root.ask("go")
        assert [m.text for m in await results(root)] == ["11", "The call was blocked: too much"]
        assert await codes(root) == [None, "blocked"]
        assert seen == [
            ("add", "c1", {"a": 1}, None, root.id),
            {"a": 11},
            "third",
            ("add", "c2", {"a": 100}, None, root.id),
            {"a": 110},
        ]


@bounded
async def test_replaced_arguments_are_validated_again_and_a_raising_hook_blocks() -> None:
    @tool
    def add(a: int) -> int:
        return a

    def bad(info: Any, _ctx: Any) -> Any:
        if info.arguments["a"] == 1:
            return Replace({"a": "not a number"})
        raise LookupError("hook broke")

    chat = Chat(calls(call("add", {"a": 1}, "c1"), call("add", {"a": 2}, "c2")), "done")
    chat.settings = Settings(tool_execution="sequential")
    chat.install(add, name="ext", hooks=[ToolHooks(before_tool=bad)])
    async with chat.open() as (_, root):
        await root.ask("go")
        assert await codes(root) == ["invalid_arguments", "blocked"]
        assert "LookupError: hook broke" in (await results(root))[1].text
        assert chat.reported() == [("extension_error", "before_tool")]
        assert chat.reports[0].extension == "ext"


@bounded
async def test_after_tool_chains_replacements_and_a_raise_is_reported() -> None:
    @tool
    def work() -> str:
        return "raw"

    def shout(_info: Any, result: Any, _ctx: Any) -> Any:
        return ToolResult(result.text.upper())

    def broken(_info: Any, _result: Any, _ctx: Any) -> Any:
        raise LookupError

    def unstorable(_info: Any, _result: Any, _ctx: Any) -> Any:
        return ToolResult("lost", details=object())

    async def more(_info: Any, result: Any, _ctx: Any) -> Any:
        return result.text + "!"

    chat = Chat(calls("work"), "done")
    chat.install(work, hooks=[ToolHooks(after_tool=hook) for hook in (shout, broken, unstorable, more)])
    async with chat.open() as (_, root):
        await root.ask("go")
        assert [m.text for m in await results(root)] == ["RAW!"]
        assert chat.reported() == [("extension_error", "after_tool")] * 2


@bounded
async def test_on_abort_may_replace_the_aborted_result_and_a_raise_is_reported() -> None:
    entered = asyncio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        await ctx.output("so far")
        entered.set()
        await forever()
        return "never"

    def broken(_info: Any, _result: Any, _ctx: Any) -> Any:
        raise LookupError

    def replace(_info: Any, result: Any, _ctx: Any) -> Any:
        return ToolResult(f"[{result.text}]", is_error=True)

    chat = Chat(calls("work"), "done")
    chat.install(work, hooks=[ToolHooks(on_abort=hook) for hook in (replace, broken, lambda *_: None, replace)])
    async with chat.open() as (_, root):
        await root.submit("go")
        await entered.wait()
        await root.abort()
        [message] = await results(root)
        assert message.text == "[[The call was aborted.\nOutput so far:\nso far]]"
        assert await codes(root) == ["aborted"]
        assert chat.reported() == [("extension_error", "on_abort")]


@bounded
async def test_what_on_abort_makes_of_a_nested_call_reaches_its_caller_and_after_tools_sees_stopped_calls() -> None:
    """Section 10, ``on_abort`` and ``after_tools``; section 12, nested calls."""
    entered = asyncio.Event()
    rounds: list[list[str]] = []

    @tool
    async def slow() -> None:
        entered.set()
        await forever()

    @tool
    async def outer(ctx: ToolContext) -> str:
        result = await ctx.call_tool("slow")
        return f"{result.code} {result.is_error}: {result.text} {result.details}"

    def replace(info: Any, _result: Any, _ctx: Any) -> Any:
        return ToolResult(f"stopped {info.name}", is_error=True, details={"parent": info.parent is not None})

    def look(_message: Any, found: Any, _ctx: Any) -> None:
        rounds.append([f"{result.code}: {result.text}" for result in found])

    chat = Chat(calls("outer"), calls("absent", "slow"), "done")
    chat.install(outer, slow, hooks=[ToolHooks(on_abort=replace), GenerationHooks(after_tools=look)])
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        for name in ("nested", "of the model"):
            await entered.wait()
            entered.clear()
            [task] = [t async for t in harness.tasks(kind="pi.tool", status="running") if t.input["name"] == "slow"]
            assert await harness.abort_task(task.id) == "marked", name
        assert (await submission.wait()).status == "done"
        told = "aborted True: stopped slow {'parent': True}"
        assert rounds == [
            [f"None: {told}"],
            ["tool_unavailable: There is no tool named 'absent' here.", "aborted: stopped slow"],
        ]
        assert [message.text for message in await results(root)][::2] == [told, "stopped slow"]


@bounded
async def test_aborting_one_call_lets_the_run_go_on() -> None:
    entered = asyncio.Event()

    @tool
    async def work() -> None:
        entered.set()
        await forever()

    chat = Chat(calls("work"), "went on")
    chat.install(work)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        await entered.wait()
        [task] = await harness.tasks(kind="pi.tool").list()
        assert await harness.abort_task(task.id) == "marked"
        assert (await submission.wait()).status == "done"
        assert await codes(root) == ["aborted"]
        assert await harness.abort_task(task.id) == "terminal"


@bounded
async def test_everything_a_call_has_ends_with_it() -> None:
    kept: list[ToolContext] = []

    @tool
    async def work(ctx: ToolContext) -> str:
        kept.append(ctx)
        return "done"

    chat = Chat(calls("work"), "done")
    chat.install(work)
    async with chat.open() as (_, root):
        await root.ask("go")
        [ctx] = kept
        for use in (lambda: ctx.output("x"), lambda: ctx.details(1), lambda: ctx.diagnostic("x"), ctx.commit):
            with pytest.raises(InvocationEnded):
                use()
        for wait in (ctx.memo("x"), ctx.agent(), ctx.call_tool("work"), ctx.create_conversation()):
            with pytest.raises(DurableError):
                await wait


@bounded
async def test_a_tool_for_the_kernels_thread_needs_a_kernel() -> None:
    @tool(in_kernel=True)
    def work() -> str:
        return "in the kernel"

    message, data = await one_call(Chat(), work)
    assert data["code"] == "tool_error"
    assert "no kernel" in message.text
