"""Random conversations: inputs, writes, resets, stops, retries, branches, compactions and crashes at random times.

Whatever happens, every request that a model gets is well formed, every call has one result, what must not run twice
does not, events and views tell what is stored, and in the end everything is settled and answers again (engine.md,
sections 5, 6, 9 and 11 to 14).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import (
    CompactionPolicy,
    Continue,
    Conversation,
    Extension,
    GenerationHooks,
    Harness,
    LiveState,
    Phase,
    ProgressPolicy,
    Registry,
    RequestOptions,
    RetryPolicy,
    Settings,
    Task,
    TaskRun,
    ToolContext,
    ToolControl,
    ToolResult,
    open_storage,
    run_end_task,
    section,
    tool,
)
from pidurable_nb.agent.conversation import ConversationView
from pidurable_nb.errors import DurableError
from pidurable_nb.messages import Message, TextBlock, ToolCall, Usage, UserMessage
from pidurable_nb.models import Hang, ModelRequest, Reply, ScriptedModel
from pidurable_nb.patch import apply
from pidurable_nb.testing import KillSwitch, validate

LONG = "word " * 40


class Tidy(Task[None, None], name="random.tidy", version=1):
    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.complete()


class World:
    """What outlives the crashes of one random history."""

    def __init__(self, where: str, seed: int) -> None:
        self.where = where
        self.chance = random.Random(seed)
        self.calls = 0
        self.effects: Counter[int] = Counter()
        self.problems: list[str] = []
        self.stories: list[Story] = []
        self.calm = False
        self.registry = Registry()
        self._install()

    def _install(self) -> None:
        @tool
        async def unsafe(ctx: ToolContext) -> str:
            self.effects[ctx.task_id] += 1
            ctx.output("under way")
            await asyncio.sleep(self.chance.random() * 0.004)
            return "done"

        @tool(replay="safe")
        async def safe(ctx: ToolContext) -> str:
            await ctx.output("under way")
            return " ".join([(await ctx.call_tool("unsafe", key=str(n))).text for n in range(2)])

        @tool(execution="sequential")
        def plain(ctx: ToolContext) -> ToolResult:
            if self.chance.random() < 0.3:
                raise ValueError("by chance")
            how = self.chance.random()
            if how < 0.2:
                return ToolResult("stop", control=ToolControl(terminate=True))
            if how < 0.3:
                return ToolResult("handed over", control=ToolControl(handoff="the note"))
            return ToolResult("more tools", control=ToolControl(add_tools=["hidden"]))

        @tool(deferred=True)
        async def hidden() -> str:
            return "found"

        @tool(approval=True, replay="safe")
        async def asks() -> str:
            return "paid"

        async def tidied(run: Any, ctx: Any) -> Any:
            return [run_end_task(Tidy, None)] if self.chance.random() < 0.2 else []

        def more(answer: Any, ctx: Any) -> Any:
            return Continue("and?") if self.chance.random() < 0.1 and not self.calm else None

        hooks = [GenerationHooks(after_run=tidied, on_yield=more)]
        said = section("mood", lambda given: self.chance.choice(["good", "bad"]))
        tools = [unsafe, safe, plain, hidden, asks]
        self.registry.install(Extension("world", tools=tools, tasks=[Tidy], sections=[said], hooks=hooks))

    def model(self) -> ScriptedModel:
        return ScriptedModel(self._answer, record=False, context_window=900, deferred_poll_after=0.002)

    def _answer(self, request: ModelRequest) -> Any:
        if "<conversation>" in request.messages[-1].text:
            return self.chance.choice(["what was said", "what was said", Reply(error="503"), Reply(error="400")])
        self.problems += malformed(request.messages)
        if self.calm:
            return "fine"
        usage = Usage(input_tokens=self.chance.choice([10, 10, 650, 850]))
        act = self.chance.random()
        if act < 0.45:
            return Reply(self.chance.choice(["yes", LONG]), usage=usage)
        if act < 0.75:
            names = [self.chance.choice(["unsafe", "safe", "plain", "hidden", "asks", "absent"]) for _ in range(3)]
            return Reply(tool_calls=[self._call(name) for name in names[: self.chance.randint(1, 3)]], usage=usage)
        if act < 0.8 and not request.options.deferred:  # a deferred one would never come
            return Hang(after="half")
        return Reply(error=self.chance.choice(["503", "400", "maximum context length exceeded"]))

    def _call(self, name: str) -> ToolCall:
        self.calls += 1
        return ToolCall(id=f"c{self.calls}", name=name, arguments={})

    def settings(self) -> Settings:
        return Settings(
            compaction=CompactionPolicy(reserve_tokens=100, keep_recent_tokens=60, background_tokens=200),
            retry=RetryPolicy(base_delay=0.002, max_retries=2),
            progress=ProgressPolicy(partial_interval=0.002, output_interval=0.002),
            after_failed_run=self.chance.choice(["keep", "continue", "withdraw"]),
            steering_mode=self.chance.choice(["one_at_a_time", "all"]),
            request=RequestOptions(deferred=self.chance.random() < 0.1),
            restart_limit=float("inf"),
        )

    async def open(self) -> tuple[KillSwitch, Harness]:
        switch = KillSwitch(await open_storage(self.where))
        return switch, await Harness.open(switch, models=self.model(), registry=self.registry, settings=self.settings)

    async def act(self, harness: Harness, conversation: Conversation) -> None:
        """One thing that a person may do."""
        chance = self.chance
        what = chance.choice(
            ["submit"] * 6
            + ["steer"] * 3
            + ["write", "note", "edit", "reset", "compact", "retry", "abort", "branch"]
            + ["decide"] * 3
        )
        if what == "submit":
            await conversation.submit(chance.choice(["go", LONG]))
        elif what == "steer":
            await conversation.submit("steer", when_busy="steer")
        elif what == "write":
            await conversation.write("app.said", messages=[UserMessage([TextBlock("said")])])
        elif what == "note":
            await conversation.write("app.note", data={"n": 1})
        elif what == "edit":
            entries = await conversation.entries().list(5)
            if entries:
                await conversation.write("app.edit", edits=[{"target": chance.choice(entries).id}])
        elif what == "reset":
            await conversation.reset(chance.choice([None, "the note"]))
        elif what == "compact":
            await conversation.compact()
        elif what == "retry":
            await conversation.retry()
        elif what == "decide":
            await self.decide(conversation)
        elif what == "abort":
            await conversation.abort(background=chance.random() < 0.5)
        else:
            await self._branch(conversation)

    async def decide(self, conversation: Conversation) -> None:
        """Answer what waits for a person; some of it is decided already, and shown until its call goes on."""
        for asked in (await conversation.view()).live.approvals:
            with contextlib.suppress(DurableError):
                await conversation.decide(asked.call, approve=self.chance.random() < 0.7)

    async def _branch(self, conversation: Conversation) -> None:
        entries = await conversation.entries().list(20)
        if entries:
            entry = self.chance.choice(entries)
            branch = await conversation.fork(entry.id)
            assert (await branch.context()).messages == (await conversation.context(at=entry.id)).messages
            asked = [entry for entry in entries if entry.kind == "pi.user"]
            if asked:
                revised, _ = await conversation.revise(self.chance.choice(asked).id, "otherwise")
                compared = await conversation.compare(revised)
                assert compared.theirs[0].text == "otherwise"


class Story:
    """The events of a conversation in one life: what begins ends, in order, and what grows is what is stored."""

    def __init__(self, view: ConversationView) -> None:
        self.problems: list[str] = []
        self.seen: Counter[str] = Counter()
        self._start(view)

    def _start(self, view: ConversationView) -> None:
        live = view.live
        self.run = None if live.run is None else live.run.first
        self.turn = live.run is not None and not live.run.after_run
        message = None if live.generation is None else live.generation.message
        self.text = None if message is None else message.text
        self.tools = {tool.task for tool in live.tools if tool.entry is None}
        self.compactions = {item.task for item in live.compactions}

    def tell(self, event: Any) -> None:
        self.seen[event.type] += 1
        problem = getattr(self, f"_{event.type}", lambda event: None)(event)
        if problem is not None:
            self.problems.append(f"{event.type}: {problem}: {event}")

    def _snapshot(self, event: Any) -> None:
        self._start(event.view)

    def _run_start(self, event: Any) -> str | None:
        problem = "a run goes on" if self.run is not None or self.turn else None
        self.run = event.first
        return problem

    def _run_end(self, event: Any) -> str | None:
        problem = "no run goes on" if self.run is None else "a turn goes on" if self.turn else None
        self.run = None
        return problem

    def _turn_start(self, event: Any) -> str | None:
        problem = "a turn goes on" if self.turn else "no run goes on" if self.run is None else None
        self.turn = True
        return problem

    def _turn_end(self, event: Any) -> str | None:
        problem = None if self.turn else "no turn goes on"
        self.turn = False
        return problem

    def _message_start(self, event: Any) -> str | None:
        problem = None if self.text is None else "a message goes on"
        self.text = ""
        return problem

    def _message_update(self, event: Any) -> str | None:
        if self.text is None:
            return "no message goes on"
        self.text += event.text
        return None

    def _message_end(self, event: Any) -> str | None:
        stored = "".join(block.text for block in event.entry.messages[0].content if block.type == "text")
        problem = None if (self.text or "") == stored else f"{self.text!r} was told, {stored!r} is stored"
        self.text = None
        return problem

    def _tool_start(self, event: Any) -> None:
        self.tools.add(event.task)

    def _tool_update(self, event: Any) -> str | None:
        return None if event.task in self.tools else "it does not run"

    def _tool_end(self, event: Any) -> str | None:
        if event.task not in self.tools:
            return "it does not run"
        self.tools.remove(event.task)
        return None

    def _compaction_start(self, event: Any) -> None:
        self.compactions.add(event.task)

    def _compaction_end(self, event: Any) -> str | None:
        if event.task not in self.compactions:
            return "it does not run"
        self.compactions.remove(event.task)
        return None


@contextlib.asynccontextmanager
async def followed(world: World, conversation: Conversation) -> AsyncIterator[None]:
    """Follow the events and the view of a conversation: the former make sense, and the latter's changes lead to it."""
    entered = asyncio.Event()

    async def look() -> None:
        async with conversation.watch() as watch:
            shown = watch.value.to_data()
            async for change in watch:
                shown = apply(shown, change.ops)
                if shown != change.value.to_data():
                    world.problems.append(f"the changes of a view lead elsewhere: {change.ops}")
                    shown = change.value.to_data()

    async def follow() -> None:
        async with conversation.watch_events() as events:
            entered.set()
            story = Story(events.snapshot)
            world.stories.append(story)
            async for batch in events:
                for event in batch:
                    story.tell(event)

    following = [asyncio.create_task(follow()), asyncio.create_task(look())]
    await entered.wait()
    yield
    await asyncio.sleep(0)
    for task in following:
        task.cancel()
    for ended in await asyncio.gather(*following, return_exceptions=True):
        assert ended is None or isinstance(ended, asyncio.CancelledError), ended


def malformed(messages: tuple[Message, ...]) -> list[str]:
    """What a provider would refuse: calls without their results right behind, results without calls."""
    found = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool_result":
            if not waiting or waiting.pop(0) != message.call_id:
                found.append(f"the result of {message.call_id} is out of place")
            continue
        if waiting:
            found.append(f"{waiting} have no results before a {message.role} message")
        waiting = [call.id for call in message.tool_calls] if message.role == "assistant" else []
        if message.role == "assistant" and message.stop_reason in ("aborted", "error", "deferred"):
            found.append(f"an answer that ended {message.stop_reason} is read")
    return found + ([f"{waiting} have no results at the end"] if waiting else [])


@pytest.mark.parametrize("seed", range(8))
def test_a_random_conversation_ends_whole(tmp_path: Path, seed: int) -> None:
    world = World(f"jsonl:{tmp_path / 'journal'}" if seed % 4 == 3 else str(tmp_path / "s.sqlite"), seed)

    async def live_once() -> None:
        switch, harness = await world.open()
        async with followed(world, await harness.root()):
            await some_acts(harness)
        if world.chance.random() < 0.7:
            switch.kill()
        else:
            await harness.close()

    async def some_acts(harness: Harness) -> None:
        harness.resume()
        for _ in range(world.chance.randint(4, 14)):
            conversations = await harness.conversations().list()
            chosen = await harness.conversation(world.chance.choice(conversations).id)
            assert chosen is not None
            try:
                await world.act(harness, chosen)
            except DurableError as error:  # such as a retry of nothing
                if "no failed run" not in str(error) and "is busy" not in str(error):
                    raise
            await asyncio.sleep(world.chance.choice([0, 0, 0.001, 0.01]))

    async def to_the_end() -> None:
        _, harness = await world.open()
        async with harness, deciding(harness), followed(world, await harness.root()):
            harness.resume()
            for record in await harness.conversations().list():
                conversation = await harness.conversation(record.id)
                assert conversation is not None
                if world.chance.random() < 0.5:
                    await conversation.abort(background=True)
                await (await conversation.submit("the end")).wait()
                await conversation.wait_for_idle()
                assert (await conversation.ask("is it?")).text == "fine"
                await conversation.wait_for_idle()
            for task in await harness.tasks(kind="pi.compaction").list():
                await harness.wait_for_task(task.id)
            for record in await harness.conversations().list():
                state = await harness.snapshot(LiveState, record.id)
                assert state is not None
                failures = {"run_failure": state.run_failure, "compaction_failure": state.compaction_failure}
                assert state == LiveState(**failures)
            await validate(harness)
            assert [s.id async for s in harness.submissions() if not s.settled] == []

    @contextlib.asynccontextmanager
    async def deciding(harness: Harness) -> AsyncIterator[None]:
        """Somebody who answers every question of every conversation."""

        async def answer() -> None:
            async with harness.watch_commits() as commits:
                while True:
                    for record in await harness.conversations().list():
                        conversation = await harness.conversation(record.id)
                        assert conversation is not None
                        await world.decide(conversation)
                    await anext(commits)

        answering = asyncio.create_task(answer())
        yield
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)

    async def main() -> None:
        async with asyncio.timeout(60):
            for _ in range(4):
                await live_once()
            world.calm = True
            await to_the_end()

    asyncio.run(main())
    assert world.problems == []
    assert [problem for story in world.stories for problem in story.problems] == []
    assert sum((story.seen for story in world.stories), Counter())["run_end"] > 0
    assert [task for task, times in world.effects.items() if times > 1] == []
