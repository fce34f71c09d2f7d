"""Output of tools, and tools that are plain functions (engine.md, section 12)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from pidurable_nb import (
    ProgressPolicy,
    Settings,
    ToolContext,
    tool,
)
from pidurable_nb.agent.output import OutputBuffer, clean
from pidurable_nb.agent.tool import OutputLimits
from pidurable_nb.errors import InvocationEnded
from pidurable_nb.messages import TextBlock

from .support import Chat, bounded, calls, codes, eventually, live, one_call, results


@bounded
async def test_output_is_committed_when_it_is_awaited_and_becomes_the_result() -> None:
    seen: list[str] = []

    @tool
    async def work(ctx: ToolContext) -> None:
        for n in range(3):
            await ctx.output(f"line {n}\n")
            found = await ctx.snapshot(type(state), ctx.conversation_id)
            seen.append(found.tools[0].output)
        assert ctx.retained_output() == seen[-1]

    chat = Chat(calls("work"), "done")
    chat.install(work)
    async with chat.open() as (harness, root):
        state = await live(harness, root)
        await (await root.submit("go")).wait()
        assert seen == ["line 0\n", "line 0\nline 1\n", "line 0\nline 1\nline 2\n"]
        assert [m.text for m in await results(root)] == [seen[-1]]


@bounded
async def test_output_without_await_is_committed_by_the_throttle_and_costs_few_commits() -> None:
    @tool
    async def chatty(ctx: ToolContext) -> None:
        for n in range(2000):
            ctx.output(f"{n} ")
            if n % 100 == 0:
                await asyncio.sleep(0.001)

    chat = Chat(calls("chatty"), "done")
    chat.install(chatty)
    async with chat.open() as (harness, root):
        before = harness.storage.last_seq
        await (await root.submit("go")).wait()
        assert harness.storage.last_seq - before < 25
        [message] = await results(root)
        assert message.text.split() == [str(n) for n in range(2000)]


@bounded
async def test_the_pause_after_a_commit_of_output_grows_with_what_it_wrote() -> None:
    """A commit of what was added is small; one of an output that lost its beginning writes all of it again."""
    pauses: dict[str, list[float]] = {"added": [], "rewritten": [], "details": []}

    @tool(output_limits=OutputLimits(bytes=20_000, lines=100_000, keep="tail"))
    async def long(ctx: ToolContext) -> None:
        async def shown() -> float:
            def nothing_waits() -> bool:
                return not ctx._dirty

            await eventually(nothing_waits)
            return asyncio.get_running_loop().time()

        async def times(what: str, rounds: int, output: str, details: str | None = None) -> None:
            last = await shown()
            for n in range(rounds):
                ctx.output(output)
                if details is not None:
                    ctx.details(f"{n}{details}")
                now = await shown()
                pauses[what].append(now - last)
                last = now

        await times("added", 10, "a line\n")
        ctx.output("y" * 20_000)
        await times("rewritten", 2, "a line\n")
        await times("details", 2, "", "z" * 20_000)

    chat = Chat()
    chat.settings = Settings(progress=ProgressPolicy(output_interval=0.001))
    await one_call(chat, long)
    assert min(pauses["added"]) < 0.1
    assert min(pauses["rewritten"]) > 0.15  # 20,000 characters at 100,000 a second
    assert pauses["details"][1] > 0.15


@pytest.mark.parametrize("keep", ["head", "tail"])
@bounded
async def test_output_is_bounded_and_says_so(keep: Any) -> None:
    @tool(output_limits=OutputLimits(bytes=1000, lines=20, keep=keep))
    async def long(ctx: ToolContext) -> None:
        for n in range(100):
            ctx.output(f"line {n}\n")

    message, data = await one_call(Chat(), long)
    lines = message.text.splitlines()
    if keep == "head":
        assert lines[:20] == [f"line {n}" for n in range(20)]
    else:
        assert lines[19] == "line 99"
        assert "line 0" not in lines
    assert data["diagnostics"][0]["code"] == "truncated"
    assert data["diagnostics"][0]["severity"] == "warn"


@bounded
async def test_a_huge_returned_result_is_cut_for_the_model() -> None:
    @tool
    async def huge() -> Any:
        return [TextBlock("é" * 30_000), TextBlock("b" * 60_000)]

    message, data = await one_call(Chat(), huge)
    assert len(message.text.encode()) < 52_000
    assert data["diagnostics"][0]["code"] == "truncated"


def test_cleaning_takes_control_characters_out_also_over_chunks() -> None:
    assert clean("a\x1b]0;title\x07b\x1b[2Kc\x00\x7f\r\nd\re\tf") == "abc\nd\ne\tf"
    text = "x\x1b[31mred\x1b[0m\r\ny\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\r\nend"
    for size in range(1, len(text)):
        buffer = OutputBuffer(OutputLimits())
        for start in range(0, len(text), size):
            buffer.append(text[start : start + size])
        assert buffer.text == clean(text), size


def test_a_buffer_counts_what_it_drops() -> None:
    for keep in ("head", "tail"):
        buffer = OutputBuffer(OutputLimits(bytes=10, lines=100, keep=keep))  # type: ignore[arg-type]
        for _ in range(10):
            buffer.append("héllo")
        assert len(buffer.text.encode()) <= 10
        assert len(buffer.text) + buffer.dropped_chars == 50


# -- threads ---------------------------------------------------------------------------------------------------------


@bounded
async def test_a_plain_function_runs_in_a_thread_and_uses_its_context_from_there() -> None:
    seen: dict[str, Any] = {}

    @tool
    def work(ctx: ToolContext) -> str:
        seen["thread"] = threading.current_thread()
        ctx.output("from a thread\n")
        seen["memo"] = ctx.memo("key", {"n": 1})
        seen["again"] = ctx.memo("key", {"n": 2})
        seen["agent"] = ctx.agent().model
        ctx.details({"d": 1})
        seen["nested"] = ctx.call_tool("inner", {"n": 2}).text
        seen["now"] = ctx.now()
        return "done"

    @tool
    def inner(n: int) -> int:
        return n * 21

    chat = Chat(calls("work"), "done")
    chat.install(work, inner)
    async with chat.open() as (_, root):
        await root.ask("go")
        assert seen.pop("thread") is not threading.main_thread()
        assert seen.pop("now") > 0
        assert seen == {"memo": {"n": 1}, "again": {"n": 1}, "agent": "scripted:demo", "nested": "42"}
        assert [m.details for m in await results(root)] == [{"d": 1}]


@bounded
async def test_a_plain_function_sees_that_it_is_cancelled_and_close_waits_for_it() -> None:
    running, left = threading.Event(), threading.Event()

    @tool
    def work(ctx: ToolContext) -> str:
        running.set()
        while not ctx.cancelled:
            time.sleep(0.002)
        with pytest.raises(InvocationEnded):  # noqa: PT012
            for _ in range(1000):
                ctx.output("too late")
                time.sleep(0.002)
        left.set()
        return "ignored"

    chat = Chat(calls("work"), "done")
    chat.install(work)
    async with chat.open() as (_, root):
        submission = await root.submit("go")
        await eventually(running.is_set)
        await root.abort()
        assert left.is_set()
        record = await submission.status()
        assert (record.status, record.reason) == ("unanswered", "aborted")
        assert await codes(root) == ["aborted"]


def test_half_characters_become_replacement_characters_and_pairs_whole_ones() -> None:
    assert clean("a\ud800b \ud83d\ude00 é") == "a\ufffdb \U0001f600 é"
