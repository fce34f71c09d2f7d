"""Calls that tools make, and subagents (engine.md, section 12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import (
    Harness,
    LiveState,
    Phase,
    SqliteStorage,
    Task,
    TaskRun,
    ToolContext,
    ToolResult,
    tool,
)
from pidurable_nb.agent import toolrun
from pidurable_nb.errors import DurableError, InvalidValue
from pidurable_nb.testing import KillSwitch, ManualClock

from .support import Chat, bounded, calls, codes, eventually, forever, kinds, live, one_call, results


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


class Helper(Task[None, str], name="test.helper"):
    """Work that a tool creates and waits for in memory."""

    runs = 0

    class Run(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            Helper.runs += 1
            await forever()


@bounded
@pytest.mark.parametrize("replay", ["safe", "unsafe"])
async def test_work_of_a_tool_that_will_not_run_again_is_given_up_by_the_next_process(
    tmp_path: Path, replay: Any
) -> None:
    Helper.runs = 0
    inner_runs: list[str] = []
    free = False

    @tool(replay="safe")
    async def inner(ctx: ToolContext) -> str:
        inner_runs.append(ctx.call_id)
        if not free:
            await forever()
        return "from inner"

    @tool(replay=replay)
    async def outer(ctx: ToolContext) -> str:
        if not free:
            await ctx.create_task(Helper, None, owner=ctx.task_id)
        result = await ctx.call_tool("inner", {}, key="only")
        return str(result.text)

    def chat() -> Chat:
        made = Chat(calls("outer"), "done", path=tmp_path / "s.sqlite", by="transcript")
        made.install(inner, outer, name="ext", tasks=[Helper])
        return made

    storage = KillSwitch(await SqliteStorage.open(tmp_path / "s.sqlite"))
    first = chat()
    harness = await Harness.open(storage, models=first.model, registry=first.registry)
    await (await harness.root()).submit("go", request_id="r")
    await eventually(lambda: len(inner_runs) == 1 and Helper.runs == 1)
    storage.kill()
    free = True
    async with chat().open() as (harness, root):
        submission = await root.submit("go", request_id="r")
        if replay == "safe":  # its helper goes on, and holds the call until somebody ends it
            await eventually(lambda: Helper.runs == 2)
            [helper] = await harness.tasks(kind="test.helper").list()
            assert not helper.abandon_on_restart
            await harness.abort_task(helper.id)
        assert (await submission.wait()).status == "done"
        [message] = await results(root)
        [_, nested] = await harness.tasks(kind="pi.tool").list()
        [helper] = await harness.tasks(kind="test.helper").list()
        if replay == "safe":
            assert (message.text, len(inner_runs)) == ("from inner", 2)
            assert nested.state.outcome.status == "completed"  # type: ignore[union-attr]
        else:
            assert (message.is_error, await codes(root), len(inner_runs), Helper.runs) == (True, ["interrupted"], 1, 1)
            for task in (nested, helper):
                assert (task.abandon_on_restart, task.abort_reason) == (True, "restart")
                assert task.state.outcome.status == "aborted"  # type: ignore[union-attr]
