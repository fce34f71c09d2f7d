"""Tool calls (engine.md, section 12)."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import pydoc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pidurable_nb import (
    Block,
    Extension,
    GenerationHooks,
    Harness,
    LiveState,
    ProgressPolicy,
    Replace,
    Settings,
    SqliteStorage,
    Tool,
    ToolContext,
    ToolControl,
    ToolHooks,
    ToolResult,
    UsageState,
    tool,
)
from pidurable_nb.agent import toolrun
from pidurable_nb.agent.output import OutputBuffer, clean
from pidurable_nb.agent.state import Diagnostic
from pidurable_nb.agent.tool import OutputLimits
from pidurable_nb.errors import DurableError, InvalidValue, InvocationEnded, RegistryError
from pidurable_nb.messages import ImageBlock, TextBlock, ToolResultMessage, Usage
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.testing import KillSwitch, ManualClock

from .support import Chat, bounded, call, calls, eventually, forever, kinds, live


async def results(conversation: Any) -> list[ToolResultMessage]:
    found = []
    async for entry in conversation.entries(order="ascending"):
        if entry.kind == "pi.tool-result":
            found.append(entry.messages[0])
    return found


async def codes(conversation: Any) -> list[str | None]:
    return [
        entry.data.get("code")
        async for entry in conversation.entries(order="ascending")
        if entry.kind == "pi.tool-result"
    ]


async def one_call(chat: Chat, *tools: Any, arguments: dict[str, Any] | None = None) -> tuple[ToolResultMessage, Any]:
    """Have the model call the first tool once; its result message, and the result entry's data."""
    chat.model._steps = (calls(call(tools[0].name, arguments)), "done")
    if tools:
        chat.install(*tools)
    async with chat.open() as (_, root):
        settled = await (await root.submit("go")).wait()
        assert settled.status == "done"
        [message] = await results(root)
        [data] = [e.data async for e in root.entries() if e.kind == "pi.tool-result"]
        assert chat.model.requests[-1].messages[-1] == message
        return message, data


# -- definition --------------------------------------------------------------------------------------------------------


def test_a_function_gives_name_description_and_schema() -> None:
    @tool(replay="safe")
    async def weather(city: str, units: str = "c", *, ctx: ToolContext) -> str:
        """Current weather of a city."""
        return city

    declared = weather.declaration
    assert (declared.name, declared.description) == ("weather", "Current weather of a city.")
    assert declared.parameters == {
        "additionalProperties": False,
        "properties": {"city": {"type": "string"}, "units": {"type": "string", "default": "c"}},
        "required": ["city"],
        "type": "object",
    }
    assert weather.replay == "safe"


@pytest.mark.parametrize(
    "options",
    [{"replay": "maybe"}, {"execution": "sometimes"}, {"callers": "nobody"}, {"name": ""}, {"approval": "yes"}],
)
def test_options_that_make_no_sense_are_refused(options: Any) -> None:
    with pytest.raises(RegistryError):
        Tool(**({"name": "x", "execute": lambda: None} | options))


def test_signatures_that_no_json_object_can_fill_are_refused() -> None:
    with pytest.raises(RegistryError, match="by name"):

        @tool
        def stars(*args: int) -> None: ...


def test_help_shows_the_function_behind_a_tool_and_every_option_of_the_decorator() -> None:
    @tool(replay="safe")
    async def weather(city: str, units: str = "c") -> str:
        """Current weather of a city."""
        return f"{city} {units}"

    assert str(inspect.signature(weather)) == "(city: 'str', units: 'str' = 'c') -> 'str'"
    assert inspect.getdoc(weather) == "Current weather of a city."
    assert "async def weather(city" in inspect.getsource(inspect.unwrap(weather))
    shown = pydoc.plain(pydoc.render_doc(weather, renderer=pydoc.plaintext))
    assert "<Tool weather(city: 'str', units: 'str' = 'c') -> 'str'>" in shown
    assert "Current weather of a city." in shown
    assert inspect.signature(weather.replaced(replay="unsafe")) == inspect.signature(weather)
    by_hand = Tool("raw", "What it does.", execute=lambda arguments: "x")
    assert (repr(by_hand), inspect.getdoc(by_hand)) == ("<Tool raw(arguments)>", "What it does.")
    assert repr(Tool("built in", execute=print)).startswith("<Tool built in(")
    offered = set(inspect.signature(tool).parameters) - {"function"}
    options = {field.name for field in dataclasses.fields(Tool) if field.init and field.name not in ("parameters",)}
    assert offered == options - {"execute", "function"}


# -- the pipeline ------------------------------------------------------------------------------------------------------


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
        ("lone \ud800 surrogate", "lone ? surrogate"),
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


PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "units": {"enum": ["c", "f"]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
        "at": {"anyOf": [{"type": "object", "required": ["lat"]}, {"type": "string"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["arguments: 'city' is a required property"]),
        ({"city": 3}, ["city: 3 is not of type 'string'"]),
        ({"city": "Bonn", "units": "k"}, ["units: 'k' is not one of ['c', 'f']"]),
        ({"city": "Bonn", "days": [1, 0, "x"]}, ["days.1: 0 is less than the minimum of 1", "days.2: 'x' is not of"]),
        ({"city": "Bonn", "at": {}}, ["at: 'lat' is a required property"]),
        ({"city": "Bonn", "speed": 1}, ["'speed' was unexpected"]),
        ({"city": "Bonn", "days": [0] * 9}, ["days.0: 0 is less than the minimum of 1", "and 4 more"]),
        ({"city": "x" * 100_000, "units": "y" * 100_000}, ["[…]"]),
    ],
)
@bounded
async def test_a_schema_written_by_hand_is_checked_and_the_model_hears_what_does_not_fit(
    arguments: dict[str, Any], words: list[str]
) -> None:
    """Section 12: validate, for ``Tool(parameters=<schema>)``."""
    chat = Chat()
    ran: list[Any] = []
    message, data = await one_call(chat, Tool("place", "", PLACE, execute=ran.append), arguments=arguments)
    assert (data["code"], message.is_error, ran) == ("invalid_arguments", True, [])
    assert message.text.startswith("Invalid arguments for place: ")
    assert [word for word in words if word not in message.text] == []
    assert len(message.text) < 2000
    assert chat.reports == []


@bounded
async def test_arguments_that_fit_a_schema_written_by_hand_are_handed_over_as_they_are() -> None:
    given = {"city": "Bonn", "units": "c", "days": [1, 2], "at": {"lat": 50.7}}
    message, data = await one_call(Chat(), Tool("place", "", PLACE, execute=lambda found: found), arguments=given)
    assert (json.loads(message.text), data.get("code")) == (given, None)


@bounded
async def test_replaced_and_approved_arguments_are_checked_against_a_schema_written_by_hand() -> None:
    chat = Chat()
    chat.install(hooks=[ToolHooks(before_tool=lambda info, ctx: Replace({"city": 1}))])
    message, data = await one_call(chat, Tool("place", "", PLACE, execute=str), arguments={"city": "Bonn"})
    assert (data["code"], "city: 1 is not of type" in message.text) == ("invalid_arguments", True)
    chat = Chat(calls(call("place", {"city": "Bonn"})), "done")
    chat.install(Tool("place", "", PLACE, execute=str, approval=True))
    async with chat.open() as (_, root):
        submission = await root.submit("go")

        async def asked() -> Any:
            return (await root.view()).live.approvals

        await eventually(asked)
        await root.decide("call-place", approve=True, arguments={"city": "x"})
        await submission.wait()
        assert await codes(root) == ["invalid_arguments"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "properties": {"x": {"type": "whole"}}}, "no JSON Schema: properties.x.type: 'whole'"),
        ({"type": "object", "$ref": "#/$defs/none"}, "'/$defs/none', which is not in the schema"),
        ({"type": "object", "$ref": "http://127.0.0.1:9/x.json"}, "which is not in the schema"),
    ],
)
@bounded
async def test_a_schema_that_is_none_or_refers_elsewhere_is_reported_and_nothing_is_fetched(
    schema: dict[str, Any], words: str
) -> None:
    chat = Chat()
    message, data = await one_call(chat, Tool("broken", "", schema, execute=str))
    assert data["code"] == "invalid_arguments"
    assert words in message.text
    assert [report.kind for report in chat.reports] == ["task_error"]


def test_what_checks_schemas_is_loaded_only_for_one_that_was_written_by_hand() -> None:
    code = """if True:
        import sys
        from pidurable_nb import Tool, tool
        @tool
        def made(x: int) -> int:
            return x
        made.validate({"x": 1})
        raw = Tool("raw", execute=str)
        assert raw.declaration and "jsonschema" not in sys.modules
        raw.validate({})
        assert "jsonschema" in sys.modules
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


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


# -- output ------------------------------------------------------------------------------------------------------------


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


# -- threads -----------------------------------------------------------------------------------------------------------


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


# -- replay ------------------------------------------------------------------------------------------------------------


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


# -- rounds ------------------------------------------------------------------------------------------------------------


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


# -- nested calls ------------------------------------------------------------------------------------------------------


@bounded
async def test_nested_calls_are_tasks_of_their_own_and_their_results_stay_out_of_the_transcript() -> None:
    seen: list[Any] = []

    @tool(callers="tools", structured=dict[str, int])
    async def inner(ctx: ToolContext, n: int) -> ToolResult:
        ctx.diagnostic("careful")
        if n == 3:
            raise ValueError("three is bad")
        return ToolResult(f"inner {n}", structured={"n": n}, details={"d": n})

    @tool
    async def outer(ctx: ToolContext) -> str:
        found = await asyncio.gather(*(ctx.call_tool("inner", {"n": n}) for n in (1, 2, 3)))
        missing = await ctx.call_tool("missing")
        bad = await ctx.call_tool("inner", {"x": 1})
        seen.extend([*found, missing, bad])
        return " | ".join(result.text.splitlines()[0] for result in found)

    chat = Chat(calls("outer"), "done")
    chat.install(inner, outer)
    async with chat.open() as (harness, root):
        await root.ask("go")
        assert [t.name for t in chat.model.requests[0].tools] == ["outer"]
        [message] = await results(root)
        assert message.text == "inner 1 | inner 2 | ValueError: three is bad"
        one, _, three, missing, bad = seen
        assert (one.structured, one.details, one.is_error) == ({"n": 1}, {"d": 1}, False)
        assert [d.message for d in one.diagnostics] == ["careful"]
        assert (three.is_error, three.code) == (True, "tool_error")
        assert (missing.is_error, missing.code) == (True, "tool_unavailable")
        assert (bad.is_error, bad.code) == (True, "invalid_arguments")
        tasks = await harness.tasks(kind="pi.tool").list()
        assert len(tasks) == 6
        assert {task.owner for task in tasks[1:]} == {tasks[0].id}
        assert await kinds(root) == ["pi.user", "pi.system", "pi.assistant", "pi.tool-result", "pi.assistant"]


@bounded
async def test_a_caller_that_runs_again_finds_its_finished_nested_calls_by_key(tmp_path: Path) -> None:
    ran: list[int] = []
    outer_runs: list[int] = []
    reached = asyncio.Event()

    @tool
    async def inner(n: int) -> str:
        ran.append(n)
        return f"inner {n}"

    @tool(replay="safe")
    async def outer(ctx: ToolContext) -> str:
        outer_runs.append(1)
        first = [(await ctx.call_tool("inner", {"n": n})).text for n in (1, 2)]
        if len(outer_runs) == 1:
            reached.set()
            await forever()
        third = (await ctx.call_tool("inner", {"n": 3}, key="third")).text
        return ", ".join([*first, third])

    chat = Chat(calls("outer"), "done", path=tmp_path / "s.sqlite")
    chat.install(inner, outer)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        await reached.wait()
        await harness.close()
    async with chat.open() as (harness, root):
        found = await harness.submission(submission.id)
        assert found is not None
        await found.wait()
        assert ran == [1, 2, 3]
        assert [m.text for m in await results(root)] == ["inner 1, inner 2, inner 3"]


@bounded
async def test_nested_calls_made_at_once_are_created_together_and_a_bad_one_fails_alone() -> None:
    found: list[Any] = []
    shown: list[Any] = []
    watched: set[Any] = set()
    twenty = asyncio.Event()
    running: list[int] = []

    @tool
    async def inner(n: int) -> int:
        running.append(n)
        if len(running) == 20:
            twenty.set()
        await twenty.wait()
        return n

    @tool
    async def outer(ctx: ToolContext) -> str:
        async def look() -> None:
            await twenty.wait()
            state = await ctx.snapshot(LiveState, ctx.conversation_id)
            shown.append([(item.key, item.status, item.parent == ctx.task_id) for item in state.nested_tools])

        wanted = [ctx.call_tool("inner", {"n": n}, key=f"k{n}") for n in range(20)]
        bad = ctx.call_tool("inner", {"n": object()}, key="bad")
        twice = ctx.call_tool("inner", {"n": 0}, key="k0")
        found.extend(await asyncio.gather(*wanted[:10], bad, *wanted[10:], twice, look(), return_exceptions=True))
        return "all"

    chat = Chat(calls("outer"), "done")
    chat.install(inner, outer)
    async with chat.open() as (harness, root):
        async with root.watch() as watch:
            await root.ask("go")
            async for change in watch:
                watched.add(tuple(item.status for item in change.value.live.nested_tools))
                if change.value.live.run is None:
                    break
        assert isinstance(found.pop(10), InvalidValue)
        assert [result.text for result in found[:20]] == [str(n) for n in range(20)]
        assert found[20].text == "0"
        assert sorted(running) == list(range(20))
        assert shown == [[(f"k{n}", "running", True) for n in range(20)]]
        assert ("pending",) * 19 in watched or ("pending",) * 20 in watched
        tasks = await harness.tasks(kind="pi.tool").list()
        commits = [attempt for attempt in await harness.storage.attempts() if attempt.task in {t.id for t in tasks}]
        assert len(tasks) == 21
        assert len(commits) == 21
        assert harness.storage.last_seq < 20 * 2 + 20  # two for each call, its intent and its result


@bounded
async def test_a_nested_call_that_is_stopped_faults_or_is_denied_is_an_error_for_its_caller_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after_tool = toolrun._after_tool
    ran: list[str] = []

    async def broken_for_one(task: Any, *rest: Any) -> Any:
        if task.input.name == "faulty":
            raise LookupError("a bug of ours")
        return await after_tool(task, *rest)

    monkeypatch.setattr("pidurable_nb.agent.toolrun._after_tool", broken_for_one)

    @tool
    async def slow() -> str:
        ran.append("slow")
        await forever()
        return "never"

    @tool
    async def faulty() -> str:
        return "lost"

    @tool(approval=True)
    async def asks() -> str:
        ran.append("asks")
        return "never"

    @tool
    def outer(ctx: ToolContext) -> str:  # a plain function: its calls block its own thread
        found = [ctx.call_tool(name) for name in ("faulty", "slow", "asks")]
        return "\n".join(f"{result.code}: {result.text}" for result in found)

    chat = Chat(calls("outer"), "done")
    chat.install(outer, slow, faulty, asks)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        await eventually(lambda: ran == ["slow"])
        [running] = (await live(harness, root)).nested_tools
        assert (running.name, running.key, running.status) == ("slow", "slow:1", "running")
        await harness.abort_task(running.task)

        async def asked() -> Any:
            return (await live(harness, root)).approvals

        [question] = await eventually(asked)
        assert (question.call, question.name) == ("call-outer/asks:1", "asks")
        await root.decide(question.call, approve=False, note="no")
        assert (await submission.wait()).status == "done"
        [message] = await results(root)
        assert message.text.splitlines() == [
            "tool_error: The nested call failed: LookupError: a bug of ours",
            "aborted: The call was aborted.",
            "blocked: A person denied the call: no",
        ]
        assert ran == ["slow"]


@bounded
async def test_a_tool_for_the_model_only_cannot_be_called_by_a_tool() -> None:
    @tool(callers="model")
    async def inner() -> str:
        return "never"

    @tool
    async def outer(ctx: ToolContext) -> str:
        with pytest.raises(DurableError, match="inner is for the model only"):
            await ctx.call_tool("inner")
        return "refused"

    message, _ = await one_call(Chat(), outer, inner)
    assert message.text == "refused"


@bounded
async def test_a_result_tells_how_long_its_tool_took() -> None:
    clock = ManualClock(10.0)

    @tool
    async def work() -> str:
        clock.advance(2.5)
        return "worked"

    message, _ = await one_call(Chat(clock=clock), work)
    assert (message.duration, message.timestamp) == (2.5, 12.5)


@bounded
async def test_a_nested_call_that_is_given_up_before_its_commit_is_not_made() -> None:
    ran: list[int] = []

    @tool
    async def inner(n: int) -> int:
        ran.append(n)
        return n

    @tool
    async def outer(ctx: ToolContext) -> str:
        asked = [asyncio.create_task(ctx.call_tool("inner", {"n": n}, key=str(n))) for n in range(3)]
        await asyncio.sleep(0)
        async with ctx.commit():
            await asyncio.sleep(0)
            asked[1].cancel()
        ended: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        return f"{ended[0].text} {type(ended[1]).__name__} {ended[2].text}"

    message, _ = await one_call(Chat(), outer, inner)
    assert message.text == "0 CancelledError 2"
    assert sorted(ran) == [0, 2]


@bounded
async def test_a_tool_can_have_a_subagent() -> None:
    @tool
    async def delegate(ctx: ToolContext) -> str:
        sub = await ctx.create_conversation()
        return (await sub.ask("subquestion")).text

    def answer(request: Any) -> Any:
        text = request.messages[-1].text
        if text == "subquestion":
            return "sub-answer"
        return calls("delegate") if text == "go" else f"so: {text}"

    chat = Chat(answer)
    chat.install(delegate)
    async with chat.open() as (harness, root):
        assert (await root.ask("go")).text == "so: sub-answer"
        [owned] = await harness.conversations(owner_conversation=root.id).list()
        assert owned.owner is not None
        assert owned.owner.conversation == root.id


# -- hooks -------------------------------------------------------------------------------------------------------------


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


def test_the_engine_imports_neither_ipython_nor_ipywidgets() -> None:
    import subprocess

    code = (
        "import sys, pidurable_nb\n"
        "from pidurable_nb import *\n"
        "from pidurable_nb.agent import harness\n"
        "bad = [name for name in sys.modules if name.split('.')[0] in ('IPython', 'ipywidgets', 'jupyter_client')]\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    names = "from pidurable_nb import Harness, Session, Tool, ToolContext, Registry, SqliteStorage, Task, Settings"
    done = subprocess.run(
        [sys.executable, "-c", code.replace("from pidurable_nb import *", names)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
