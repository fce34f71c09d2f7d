"""A call from its resolution to its result, and rounds of calls (engine.md, section 12)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pidurable_nb import (
    Extension,
    Harness,
    LiveState,
    Settings,
    SqliteStorage,
    Tool,
    ToolContext,
    ToolControl,
    ToolResult,
    UsageState,
    tool,
)
from pidurable_nb.agent.state import Diagnostic
from pidurable_nb.agent.tool import OutputLimits
from pidurable_nb.messages import ImageBlock, TextBlock, Usage
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.testing import KillSwitch, ManualClock

from .support import Chat, bounded, call, calls, codes, eventually, forever, kinds, live, one_call, results


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("text", "text"),
        (None, ""),
        ({"a": [1, 2.5, None]}, '{"a":[1,2.5,null]}'),
        ([1, 2], "[1,2]"),
        (True, "true"),
        (TextBlock("one"), "one"),
        ([TextBlock("one"), TextBlock("two")], "one\ntwo"),
        (ToolResult("content"), "content"),
        ("bell \x07 and \x1b[31mred\x1b[0m\r\nline", "bell  and red\nline"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
    ],
)
@bounded
async def test_whatever_a_tool_returns_becomes_text_for_the_model(returned: Any, text: str) -> None:
    @tool
    def answer() -> Any:
        return returned

    message, data = await one_call(Chat(), answer)
    assert (message.text, message.is_error, data) == (text, False, {"diagnostics": []})


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (object(), "not JSON"),
        (ToolResult("x", details=object()), "details"),
        (ToolResult([1]), "validation error"),  # type: ignore[list-item]
        (ToolResult("x", structured={1: 2, "y": float("nan")}), "structured"),
    ],
)
@bounded
async def test_what_cannot_be_stored_is_an_error_of_the_tool_and_the_run_goes_on(returned: Any, words: str) -> None:
    @tool
    async def answer() -> Any:
        return returned

    message, data = await one_call(Chat(), answer)
    assert message.is_error
    assert words in message.text
    assert data["code"] == "tool_error"


@bounded
async def test_images_pass() -> None:
    @tool
    async def look() -> Any:
        return [TextBlock("see"), ImageBlock("image/png", "aGk=")]

    message, _ = await one_call(Chat(), look)
    assert message.content == [TextBlock("see"), ImageBlock("image/png", "aGk=")]


class Where(BaseModel):
    city: str
    days: int = 1


@bounded
async def test_arguments_are_validated_converted_and_handed_over() -> None:
    seen: list[Any] = []

    def forecast(where: Where) -> str:
        seen.append(where)
        return where.city

    message, _ = await one_call(
        Chat(), Tool("forecast", "", Where, execute=forecast), arguments={"city": "Paris", "days": "3"}
    )
    assert message.text == "Paris"
    assert seen == [Where(city="Paris", days=3)]


@pytest.mark.parametrize("arguments", [{}, {"city": 1}, {"city": "x", "extra": 1}, {"city": "x", "days": "many"}])
@bounded
async def test_bad_arguments_are_told_to_the_model(arguments: Any) -> None:
    ran: list[int] = []

    @tool
    def forecast(city: str, days: int = 1) -> str:
        ran.append(1)
        return city

    message, data = await one_call(Chat(), forecast, arguments=arguments)
    assert message.is_error
    assert "Invalid arguments for forecast" in message.text
    assert data["code"] == "invalid_arguments"
    assert not ran


@bounded
async def test_arguments_can_be_repaired_before_validation() -> None:
    @tool(prepare_arguments=lambda arguments: {"city": arguments.get("town")})
    def forecast(city: str) -> str:
        return city

    message, _ = await one_call(Chat(), forecast, arguments={"town": "Paris"})
    assert message.text == "Paris"


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("error", [ValueError("no such city"), SystemExit(3), StopIteration("over"), KeyError()])
@bounded
async def test_a_raise_is_an_error_result_with_the_output_so_far(plain: bool, error: BaseException) -> None:
    if plain:

        @tool
        def broken(ctx: ToolContext) -> None:
            ctx.output("half way")
            raise error
    else:

        @tool
        async def broken(ctx: ToolContext) -> None:
            await ctx.output("half way")
            raise error

    message, data = await one_call(Chat(), broken)
    assert message.is_error
    assert data["code"] == "tool_error"
    assert "half way" in message.text
    expected = "StopIteration" if isinstance(error, StopIteration) else type(error).__name__
    assert expected in message.text


@pytest.mark.parametrize("error", [KeyboardInterrupt("mine"), GeneratorExit("mine")])
@bounded
async def test_what_a_thread_raises_is_its_own_doing_even_an_interrupt(error: BaseException) -> None:
    @tool
    def broken() -> None:
        raise error

    message, data = await one_call(Chat(), broken)
    assert (message.is_error, data["code"]) == (True, "tool_error")
    assert type(error).__name__ in message.text


def test_an_interrupt_that_a_tool_raises_on_a_loop_beside_the_main_thread_is_its_own_doing() -> None:
    @tool
    async def broken() -> None:
        raise KeyboardInterrupt("mine")

    with ThreadPoolExecutor(1) as pool:
        message, data = pool.submit(lambda: asyncio.run(asyncio.wait_for(one_call(Chat(), broken), 60))).result()
    assert (message.is_error, data["code"]) == (True, "tool_error")
    assert message.text == "KeyboardInterrupt: mine"


@bounded
async def test_a_tool_that_cancels_itself_is_an_error_of_the_tool() -> None:
    @tool
    async def odd() -> None:
        task = asyncio.create_task(forever())
        task.cancel()
        await task

    message, data = await one_call(Chat(), odd)
    assert (message.text, data["code"]) == ("CancelledError", "tool_error")


@bounded
async def test_a_tool_that_was_not_offered_is_refused_without_a_task() -> None:
    @tool
    def known() -> str:
        return "known"

    chat = Chat(calls("unknown", "known"), "done")
    chat.install(known)
    async with chat.open() as (harness, root):
        await (await root.submit("go")).wait()
        assert await codes(root) == ["tool_unavailable", None]
        assert [m.text for m in await results(root)] == ["There is no tool named 'unknown' here.", "known"]
        assert [task.kind async for task in harness.tasks(kind="pi.tool")] == ["pi.tool"]


@bounded
async def test_a_tool_that_vanished_after_it_was_offered_is_unavailable() -> None:
    @tool
    def known() -> str:
        return "known"

    chat = Chat()

    def answer(request: Any) -> Any:
        if any(message.role == "tool_result" for message in request.messages):
            return "done"
        chat.registry.uninstall("gone")
        return calls("known")

    chat.model = chat.models = ScriptedModel(answer)
    chat.install(known, name="gone")
    async with chat.open() as (_, root):
        await (await root.submit("go")).wait()
        assert await codes(root) == ["tool_unavailable"]


@bounded
async def test_structured_results_are_validated_against_the_declared_type() -> None:
    @tool(structured=Where)
    def good() -> Any:
        return {"city": "Paris", "days": "2"}

    @tool(structured=Where)
    def bad() -> Any:
        return {"town": "Paris"}

    message, _ = await one_call(Chat(), good)
    assert message.text == '{"city":"Paris","days":2}'
    message, data = await one_call(Chat(), bad)
    assert data["code"] == "tool_error"
    assert "city" in message.text


@bounded
async def test_diagnostics_are_shown_in_one_closing_block_and_stored() -> None:
    @tool
    async def remark(ctx: ToolContext) -> ToolResult:
        ctx.diagnostic("from the context", severity="warn", code="c1")
        return ToolResult("text", diagnostics=[Diagnostic("from the result")])

    message, data = await one_call(Chat(), remark)
    assert message.content[-1] == TextBlock(
        "<diagnostics>\n[warn] from the context\n[info] from the result\n</diagnostics>"
    )
    assert data["diagnostics"] == [
        {"message": "from the context", "severity": "warn", "code": "c1"},
        {"message": "from the result", "severity": "info"},
    ]


@bounded
async def test_details_are_for_user_interfaces_only_and_usage_is_counted() -> None:
    @tool
    async def work(ctx: ToolContext) -> ToolResult:
        await ctx.details({"step": 1})
        ctx.details({"step": 2})
        return ToolResult("text", usage=Usage(input_tokens=5, cost=0.25))

    chat = Chat(calls("work"), "done")
    chat.install(work)
    async with chat.open() as (harness, root):
        await (await root.submit("go")).wait()
        [message] = await results(root)
        assert message.details == {"step": 2}
        assert message.text == "text"
        usage = await harness.snapshot(UsageState, root.id)
        assert usage is not None
        assert usage.tools == {"work": Usage(input_tokens=5, cost=0.25)}
        assert (await harness.usage()).total.cost == 0.25


@bounded
async def test_the_live_state_shows_all_of_a_call_while_it_runs_and_until_the_round_ends() -> None:
    looked, go = asyncio.Event(), asyncio.Event()

    @tool(output_limits=OutputLimits(lines=2, keep="tail"))
    async def work(ctx: ToolContext, n: int) -> str:
        for line in range(5):
            ctx.output(f"line {line}\n")
        ctx.diagnostic("odd", severity="warn", code="w")
        await ctx.details({"step": 1})
        looked.set()
        await go.wait()
        return "finished"

    @tool
    async def waits(ctx: ToolContext) -> str:
        async def other_is_done() -> bool:
            state = await ctx.snapshot(LiveState, ctx.conversation_id)
            done.extend(item for item in state.tools if item.status == "done")
            return bool(done)

        await eventually(other_is_done)
        return "saw it"

    done: list[Any] = []
    clock = ManualClock(50.0)
    chat = Chat(calls(call("work", {"n": 1}), "waits"), "answer", clock=clock)
    chat.install(work, waits)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        await looked.wait()
        state = await live(harness, root)
        assert state.run is not None
        assert (state.run.inputs, state.run.turns, state.run.after_run) == ((submission.id,), 0, False)
        assert state.run.first == (await submission.status()).entry
        shown = state.tools[0]
        assert (shown.call, shown.name, shown.arguments, shown.status) == ("call-work", "work", {"n": 1}, "running")
        assert (shown.output, shown.dropped_lines, shown.dropped_chars) == ("line 3\nline 4\n", 3, 21)
        assert (shown.details, shown.replay, shown.started_at, shown.entry) == ({"step": 1}, "unsafe", 50.0, None)
        assert [(d.message, d.severity, d.code) for d in shown.diagnostics] == [("odd", "warn", "w")]
        assert [task.id for task in await harness.tasks(kind="pi.tool").list()] == [t.task for t in state.tools]
        go.set()
        await submission.wait()
        entry = await root.entry(done[0].entry)
        assert entry is not None
        assert entry.text.startswith("finished")
        assert [d.code for d in done[0].diagnostics] == ["w", "truncated"]
        assert (await root.view()).live == LiveState() == await live(harness, root)


@bounded
async def test_usage_is_counted_per_tool_over_nested_calls_and_conversations() -> None:
    @tool
    async def inner() -> ToolResult:
        return ToolResult("x", usage=Usage(cost=0.5))

    @tool
    async def outer(ctx: ToolContext) -> ToolResult:
        await ctx.call_tool("inner")
        await ctx.call_tool("inner")
        return ToolResult("y", usage=Usage(input_tokens=3, cost=0.25))

    spent = Usage(input_tokens=10, output_tokens=1, cost=1.0)

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return Reply("done", usage=spent) if last.role == "tool_result" else calls("outer")

    chat = Chat(answer)
    chat.install(inner, outer)
    async with chat.open() as (harness, root):
        other = await harness.create_conversation()
        for conversation in (root, other):
            await conversation.ask("go")
            counted = (await conversation.view()).usage
            assert counted.tools == {"inner": Usage(cost=1.0), "outer": Usage(input_tokens=3, cost=0.25)}
            assert (counted.models["scripted:demo"].cost, counted.requests) == (1.0, 2)
        total = await harness.usage()
        assert total.tools["inner"].cost == 2.0
        assert (total.models["scripted:demo"].cost, total.requests, total.total.cost) == (2.0, 4, 4.5)


@bounded
async def test_a_call_whose_task_faults_still_gives_the_model_its_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_args: Any) -> Any:
        raise LookupError("a bug of ours")

    @tool
    async def work() -> str:
        return "lost"

    monkeypatch.setattr("pidurable_nb.agent.toolrun._after_tool", broken)
    message, data = await one_call(Chat(), work)
    assert (message.is_error, data["code"]) == (True, "tool_error")
    assert "a bug of ours" in message.text


@bounded
async def test_a_call_that_kills_its_process_again_and_again_is_given_up_as_interrupted(tmp_path: Path) -> None:
    started: list[Any] = []

    @tool(replay="safe")
    async def poison(ctx: ToolContext) -> str:
        await ctx.output("so far")
        started.append(ctx)
        await forever()
        return "never"

    chat = Chat(calls("poison"), "done", path=tmp_path / "s.sqlite")
    chat.settings = Settings(restart_limit=2)
    chat.install(poison)
    for life in (1, 2):
        switch = KillSwitch(await SqliteStorage.open(tmp_path / "s.sqlite"))
        harness = await Harness.open(
            switch, models=chat.model, registry=chat.registry, settings=chat.settings, on_report=chat.reports.append
        )
        await (await harness.root()).submit("go", request_id="r")
        await eventually(lambda life=life: len(started) == life)
        switch.kill()
    async with chat.open() as (harness, root):
        record = await (await root.submit("go", request_id="r")).wait()
        assert record.status == "done"
        [message] = await results(root)
        assert (message.is_error, await codes(root), len(started)) == (True, ["interrupted"], 2)
        assert "so far" in message.text


@bounded
async def test_a_tool_that_is_replaced_while_it_runs_ends_as_it_began_and_the_next_call_is_the_new_one() -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @tool(name="work", description="old")
    async def old() -> str:
        running.set()
        await go.wait()
        return "old result"

    @tool(name="work", description="new")
    async def new() -> str:
        return "new result"

    chat = Chat(calls("work"), calls(call("work", id="again")), "done")
    chat.install(old, name="ext")
    async with chat.open() as (_, root):
        submission = await root.submit("go")
        await running.wait()
        chat.registry.install(Extension("ext", tools=[new]))
        go.set()
        assert (await submission.wait()).status == "done"
        assert [message.text for message in await results(root)] == ["old result", "new result"]
        assert [request.tools[0].description for request in chat.model.requests] == ["old", "new", "new"]


# -- rounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["parallel", "settings", "tool"])
@bounded
async def test_a_round_runs_in_parallel_unless_settings_or_a_tool_say_sequential(how: str) -> None:
    running: list[str] = []
    most: list[int] = []

    async def work(name: str) -> str:
        running.append(name)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.remove(name)
        return name

    @tool(execution="sequential" if how == "tool" else "parallel")
    async def a() -> str:
        return await work("a")

    @tool
    async def b() -> str:
        return await work("b")

    chat = Chat(calls("a", "missing", "b"), "done")
    chat.install(a, b)
    chat.settings = Settings(tool_execution="sequential" if how == "settings" else "parallel")
    async with chat.open() as (_, root):
        await root.ask("go")
        assert max(most) == (2 if how == "parallel" else 1)
        read = [m for m in chat.model.requests[-1].messages if m.role == "tool_result"]
        assert [m.call_id for m in read] == ["call-a", "call-missing", "call-b"]


@pytest.mark.parametrize("how", ["stopped", "faulted"])
@bounded
async def test_every_call_of_a_round_that_ends_before_its_turn_has_its_one_result(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 12: exactly one result entry per call, also for those of a sequential round that were not begun."""
    entered = asyncio.Event()

    @tool(execution="sequential")
    async def work(n: int) -> str:
        entered.set()
        if how == "stopped" and n == 2:
            await forever()
        return f"worked {n}"

    async def broken(*_args: Any) -> None:
        raise LookupError("a bug of ours")

    if how == "faulted":
        monkeypatch.setattr("pidurable_nb.agent.generation._after_round", broken)
    chat = Chat(calls(*(call("work", {"n": n}, id=f"c{n}") for n in (1, 2, 3)), "absent"), "went on")
    chat.install(work)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        if how == "stopped":
            await eventually(lambda: _second_runs(harness, root))
            await root.abort()
        await submission.wait()
        found = {message.call_id: code for message, code in zip(await results(root), await codes(root), strict=True)}
        assert found == {
            "call-absent": "tool_unavailable",
            "c1": None,
            "c2": "aborted",
            "c3": "aborted",
        }
        [asked] = [entry async for entry in root.entries() if entry.kind == "pi.assistant"]
        if how == "stopped":
            assert (await root.ask("go on")).text == "went on"
            read = [message.role for message in chat.model.requests[-1].messages if message.role != "system"]
            assert read == ["user", "assistant", *["tool_result"] * 4, "user"]
        assert asked.messages[0].stop_reason == "tool_use"  # type: ignore[union-attr]


async def _second_runs(harness: Any, root: Any) -> bool:
    return [item.status for item in (await live(harness, root)).tools] == ["done", "running"]


@bounded
async def test_controls_add_tools_end_the_run_and_hand_off() -> None:
    @tool(deferred=True)
    def hidden() -> str:
        return "found"

    @tool
    def reveal() -> ToolResult:
        return ToolResult("revealed", control=ToolControl(add_tools=["hidden", "nonsense"]))

    @tool
    def stop() -> ToolResult:
        return ToolResult("stopped", control=ToolControl(terminate=True))

    @tool
    def hand() -> ToolResult:
        return ToolResult("handed", control=ToolControl(handoff="carry on from here"))

    chat = Chat(calls("reveal"), calls("hidden", "stop"), calls("stop"), "fresh", calls("hand"), "new start")
    chat.install(hidden, reveal, stop, hand)
    async with chat.open() as (_, root):
        settled = await (await root.submit("go")).wait()
        assert settled.status == "done"
        answer = await root.entry(settled.answer)  # type: ignore[arg-type]
        assert answer is not None
        assert [block.type for block in answer.messages[0].content] == ["tool_call"]  # type: ignore[union-attr]
        offered = [sorted(t.name for t in request.tools) for request in chat.model.requests]
        assert offered == [
            ["hand", "reveal", "stop"],
            ["hand", "hidden", "reveal", "stop"],
            ["hand", "hidden", "reveal", "stop"],
        ]
        assert await codes(root) == [None] * 4
        await root.ask("and now?")
        record = await (await root.submit("hand over")).wait()
        assert record.status == "done"
        assert (await kinds(root))[-1] == "pi.reset"
        await root.ask("go on")
        assert [text for text in chat.asked() if not text.startswith("system")] == [
            "user: carry on from here",
            "user: go on",
        ]
