"""Resets: a new context, at once or at the next boundary (engine.md, section 9)."""

from __future__ import annotations

import asyncio
from typing import Any

from pidurable_nb import Extension, Harness, LiveState, Registry, tool
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel


def test_an_idle_conversation_starts_anew_at_once_with_the_note() -> None:
    async def main() -> None:
        model = ScriptedModel(["one", "two"])
        async with Harness.open(":memory:", models=model) as harness:
            root = await harness.root()
            await root.ask("first")
            await root.reset("the user likes tea", request_id="r")
            await root.reset("the user likes tea", request_id="r")
            await root.ask("second")
            assert [message.text for message in model.requests[1].messages] == ["the user likes tea", "second"]
            kinds = [entry.kind async for entry in root.entries(order="ascending")]
            assert kinds == ["pi.user", "pi.assistant", "pi.reset", "pi.user", "pi.assistant"]

    asyncio.run(main())


def run_with_a_reset(after: Any) -> tuple[list[tuple[str, str | None]], list[list[str]], list[str]]:
    """A run whose tool waits while a reset is admitted, and then ``after(root)``: submissions, requests, kinds."""

    async def main() -> tuple[list[tuple[str, str | None]], list[list[str]], list[str]]:
        started, go = asyncio.Event(), asyncio.Event()

        @tool
        async def slow() -> str:
            started.set()
            await go.wait()
            return "slow result"

        registry = Registry()
        registry.install(Extension("slow", tools=[slow]))
        call = Reply(tool_calls=[ToolCall(id="c", name="slow", arguments={})])
        model = ScriptedModel([call, "after"])
        async with Harness.open(":memory:", models=model, registry=registry) as harness:
            root = await harness.root()
            await root.submit("work")
            await started.wait()
            await root.reset("start over")
            await after(root)
            assert (await root.view()).inbox.items[0].mode == "reset"
            go.set()
            await root.wait_for_idle()
            settled = [(r.type, r.reason) for r in await harness.submissions().list()]
            requests = [[message.role for message in request.messages] for request in model.requests]
            assert (await root.view()).live == LiveState()
            return settled, requests, [entry.kind async for entry in root.entries(order="ascending")]

    return asyncio.run(main())


def test_a_reset_between_two_turns_ends_the_run() -> None:
    async def nothing(_root: Any) -> None:
        return None

    settled, requests, kinds = run_with_a_reset(nothing)
    assert settled == [("input", "reset"), ("write", None)]
    assert len(requests) == 1
    assert kinds[-2:] == ["pi.tool-result", "pi.reset"]


def test_what_was_admitted_behind_a_reset_comes_after_it() -> None:
    async def more(root: Any) -> None:
        await root.write("app.note", data={"n": 1})  # changes no context, and still waits behind the reset
        await root.submit("next")

    settled, requests, kinds = run_with_a_reset(more)
    assert settled == [("input", "reset"), ("write", None), ("write", None), ("input", None)]
    assert kinds.index("pi.reset") < kinds.index("app.note")
    assert kinds[-2:] == ["pi.system", "pi.assistant"]
    assert requests[1] == ["system", "user", "user"]
