"""Agent events: deltas only, one tuple per commit, in a fixed order (engine.md, section 14)."""

from __future__ import annotations

import asyncio
from typing import Any

from pidurable_nb import (
    Extension,
    GenerationHooks,
    Harness,
    Phase,
    Registry,
    RequestOptions,
    RetryPolicy,
    Settings,
    Task,
    TaskRun,
    ToolContext,
    ToolResult,
    run_end_task,
    tool,
)
from pidurable_nb.agent.events import Snapshot
from pidurable_nb.agent.tool import OutputLimits
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.session.watch import MAX_FRAMES


async def collect(watch: Any, batches: list[tuple[Any, ...]]) -> None:
    async for batch in watch:
        batches.append(batch)


def run_story(
    *steps: Any, inputs: tuple[str, ...] = ("hi",), registry: Registry | None = None
) -> list[tuple[Any, ...]]:
    """Every batch of events of a conversation that answers the inputs."""

    async def main() -> list[tuple[Any, ...]]:
        batches: list[tuple[Any, ...]] = []
        settings = Settings(retry=RetryPolicy(base_delay=0.001))
        harness = await Harness.open(
            ":memory:", models=ScriptedModel(list(steps)), registry=registry, settings=settings
        )
        root = await harness.root()
        async with root.watch_events() as events:
            collecting = asyncio.create_task(collect(events, batches))
            for submission in [await root.submit(text) for text in inputs]:
                await submission
            await root.wait_for_idle()
            await harness.close()
            await collecting
        return batches

    return asyncio.run(main())


def types(batches: list[tuple[Any, ...]]) -> list[list[str]]:
    return [[event.type for event in batch] for batch in batches]


def test_a_plain_turn_in_order_and_text_only_as_what_was_added() -> None:
    batches = run_story(Reply("one two three four five six", tokens_per_second=20))
    assert types(batches)[0] == ["submission", "entry", "run_start", "turn_start"]
    assert types(batches)[-1][-5:] == ["message_end", "usage", "turn_end", "submission", "run_end"]
    flat = [event for batch in batches for event in batch]
    updates = [event.text for event in flat if event.type == "message_update"]
    assert len(updates) >= 2
    assert "".join(updates) == "one two three four five six"
    end = flat[-1]
    stored = next(event.entry for event in flat if event.type == "message_end")
    assert end.answer == stored.id


def test_a_queued_input_starts_the_next_run_in_the_commit_that_ends_the_first() -> None:
    batches = run_story("first", "second", inputs=("a", "b"))
    joined = next(batch for batch in types(batches) if "run_end" in batch and "run_start" in batch)
    assert joined.index("run_end") < joined.index("run_start") < joined.index("turn_start")
    assert joined[0] == "inbox"


class Tidy(Task[None, None], name="events.tidy", version=1):
    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.complete()


def test_a_run_ends_once_what_follows_its_answer_is_done_and_names_the_answer() -> None:
    registry = Registry()
    hooks = [GenerationHooks(after_run=lambda run, ctx: [run_end_task(Tidy, None)])]
    registry.install(Extension("tidy", tasks=[Tidy], hooks=hooks))
    flat = [event for batch in run_story("answer", registry=registry) for event in batch]
    assert [event.type for event in flat if event.type.startswith(("run", "turn"))] == [
        "run_start",
        "turn_start",
        "turn_end",
        "run_end",
    ]
    [stored] = [event.entry for event in flat if event.type == "message_end"]
    assert (flat[-1].type, flat[-1].answer, flat[-1].failure) == ("run_end", stored.id, None)


def test_a_tool_round_in_order() -> None:
    @tool
    async def effect(ctx: ToolContext) -> ToolResult:
        await ctx.output("one\n")
        await ctx.output("two\n")
        return ToolResult("done", details={"n": 2})

    registry = Registry()
    registry.install(Extension("effects", tools=[effect]))
    call = Reply("let me see", tool_calls=[ToolCall(id="c", name="effect", arguments={})])
    flat = [event for batch in run_story(call, "ok", registry=registry) for event in batch]
    tools = [event for event in flat if event.type.startswith("tool_")]
    assert [event.type for event in tools] == ["tool_start", "tool_update", "tool_update", "tool_update", "tool_end"]
    assert "".join(event.output for event in tools if event.type == "tool_update") == "one\ntwo\n"
    names = [event.type for event in flat]
    assert names.index("message_end") < names.index("tool_start")
    assert [event.turn for event in flat if event.type == "turn_start"] == [1, 2]
    assert [event.turn for event in flat if event.type == "turn_end"] == [1, 2]


def test_a_retry_is_told_with_its_error() -> None:
    flat = [event for batch in run_story(Reply(error="503 Service Unavailable"), "ok") for event in batch]
    retry = next(event for event in flat if event.type == "retry")
    assert (retry.error, retry.attempt) == ("503 Service Unavailable", 1)
    assert [event.attempt for event in flat if event.type == "message_start"] == [1, 2]


def test_deferral_agent_usage_and_entries_of_an_application_are_told() -> None:
    async def main() -> list[Any]:
        flat: list[Any] = []
        model = ScriptedModel(["later"], deferred_poll_after=0.001)
        harness = await Harness.open(":memory:", models=model, settings=Settings(request=RequestOptions(deferred=True)))
        root = await harness.root()
        async with root.watch_events() as events:
            await root.configure(thinking="high")
            await (await root.write("app.note", data={"n": 1}))
            await root.ask("hi")
            await root.wait_for_idle()
            await harness.close()
            async for batch in events:
                flat.extend(batch)
        return flat

    flat = asyncio.run(main())
    assert [event.agent.thinking for event in flat if event.type == "agent"] == ["high"]
    assert next(event.entry.data for event in flat if event.type == "entry") == {"n": 1}
    assert next(event.model for event in flat if event.type == "deferred") == "scripted:demo"
    assert sum(usage.output_tokens for e in flat if e.type == "usage" for usage in e.models.values()) > 0
    assert [event.record.status for event in flat if event.type == "submission"] == ["done", "placed", "done"]


def test_a_failed_run_and_a_broken_task_are_told_with_their_reasons() -> None:
    flat = [event for batch in run_story(Reply("half an", error="400 no")) for event in batch]
    message = next(event.entry.messages[0] for event in flat if event.type == "message_end")
    assert (message.text, message.stop_reason) == ("half an", "error")
    assert "".join(event.text for event in flat if event.type == "message_update") == "half an"
    [end] = [event for event in flat if event.type == "run_end"]
    assert (end.answer, end.failure.reason, end.failure.detail) == (None, "model_error", {"message": "400 no"})
    [broke] = [event for event in flat if event.type == "task_failed"]
    assert (broke.kind, broke.outcome.status) == ("pi.generation", "failed")


def test_output_that_lost_its_beginning_replaces_what_came_before() -> None:
    @tool(output_limits=OutputLimits(lines=2, keep="tail"))
    async def long(ctx: ToolContext) -> None:
        for n in range(4):
            await ctx.output(f"{n}\n")

    registry = Registry()
    registry.install(Extension("tools", tools=[long]))
    call = Reply(tool_calls=[ToolCall(id="c", name="long", arguments={})])
    shown = ""
    for batch in run_story(call, "ok", registry=registry):
        for event in batch:
            if event.type == "tool_update":
                shown = event.output if event.reset else shown + event.output
    assert shown == "2\n3\n"


def test_a_late_joiner_starts_from_a_snapshot_and_hears_only_what_follows() -> None:
    async def main() -> None:
        harness = await Harness.open(":memory:", models=ScriptedModel(["one", "two"]))
        root = await harness.root()
        await (await root.submit("a"))
        async with root.watch_events() as events:
            assert [entry.text for entry in events.snapshot.entries] == ["a", "one"]
            await (await root.submit("b"))
            first = await anext(events)
            assert first[0].type == "submission"
            assert first[1].entry.text == "b"
        await harness.close()

    asyncio.run(main())


def test_a_watcher_that_falls_behind_gets_one_snapshot_of_the_newest_state() -> None:
    async def main() -> None:
        harness = await Harness.open(":memory:")
        root = await harness.root()
        async with root.watch_events() as events:
            for n in range(MAX_FRAMES + 1):
                async with root.commit() as tx:
                    await tx.append_entry("app.note", data={"n": n})
            batch = await anext(events)
            assert [type(event) for event in batch] == [Snapshot]
            assert batch[0].view.entries[-1].data == {"n": MAX_FRAMES}
        await harness.close()

    asyncio.run(main())
