"""Scenarios of the crash sweep: what a process does from its start, written so that another may do it again."""

from __future__ import annotations

import asyncio
from typing import Any

from pidurable_nb import (
    AgentChange,
    Document,
    Extension,
    GenerationHooks,
    Harness,
    Phase,
    ProgressPolicy,
    Registry,
    RequestOptions,
    RetryPolicy,
    Session,
    Settings,
    Task,
    TaskRun,
    ToolContext,
    run_end_task,
    tool,
)
from pidurable_nb.agent.generation import _Partial
from pidurable_nb.agent.toolrun import ToolTask
from pidurable_nb.messages import TextBlock, ToolCall, UserMessage
from pidurable_nb.models import ModelRequest, Reply, ScriptedModel
from pidurable_nb.testing import Stage

ANSWER = "The capital of France is Paris, and has been for a long time."
SLOW = "word " * 40


async def ask(stage: Stage, harness: Harness, *texts: str) -> list[str | None]:
    """Submit inputs under request ids, wait for all, close, and tell how each ended."""
    async with harness:
        root = await harness.root()
        async with root.watch() as watch:
            observing = asyncio.create_task(observe(stage, watch))
            submissions = [await root.submit(text, request_id=f"input-{n}") for n, text in enumerate(texts)]
            settled = [await submission.wait() for submission in submissions]
            observing.cancel()
            await asyncio.gather(observing, return_exceptions=True)
        await root.wait_for_idle()
        return [f"{record.status} {record.reason or ''}".strip() for record in settled]


async def observe(stage: Stage, watch: Any) -> None:
    """Note every partial answer that an observer of this process saw."""
    async for change in watch:
        generation = change.value.live.generation
        if generation is not None and generation.message is not None:
            stage.note("seen", generation.message.text)


def model(stage: Stage, *steps: Any) -> ScriptedModel:
    """A model that notes each request, and goes on in its script by what the transcript holds."""

    def noting(step: Any) -> Any:
        def answer(request: ModelRequest) -> Any:
            stage.note("request", str(len(request.messages)))
            return step

        return answer

    return ScriptedModel([noting(step) for step in steps], by="transcript", record=False)


def calls(*names: str) -> Reply:
    """An answer that calls tools, each once, with call ids after their names."""
    return Reply(tool_calls=[ToolCall(id=f"call-{n}-{name}", name=name, arguments={}) for n, name in enumerate(names)])


def tools(stage: Stage) -> Registry:
    """One tool of each replay policy; both note what they do and put out progress on the way."""

    async def work(name: str, ctx: ToolContext) -> str:
        stage.note(f"begun {name}")
        await ctx.output(f"{name} is working\n")
        stage.note(f"done {name}")
        return f"{name} is done"

    @tool(replay="safe")
    async def safe(ctx: ToolContext) -> str:
        return await work("safe", ctx)

    @tool
    async def unsafe(ctx: ToolContext) -> str:
        return await work("unsafe", ctx)

    registry = Registry()
    registry.install(Extension("tools", tools=[safe, unsafe]))
    return registry


FAST = Settings(progress=ProgressPolicy(partial_interval=0.005, output_interval=0.005))


async def plain_turn(stage: Stage) -> Any:
    harness = await Harness.open(stage.storage, models=model(stage, ANSWER), settings=FAST)
    return await ask(stage, harness, "What is the capital of France?")


async def slow_turn(stage: Stage) -> Any:
    slow = model(stage, Reply(SLOW, tokens_per_second=1000))
    harness = await Harness.open(stage.storage, models=slow, settings=FAST)
    return await ask(stage, harness, "Tell me something long.")


async def safe_tool(stage: Stage) -> Any:
    harness = await Harness.open(
        stage.storage, models=model(stage, calls("safe"), ANSWER), registry=tools(stage), settings=FAST
    )
    return await ask(stage, harness, "Use the safe tool.")


async def unsafe_tool(stage: Stage) -> Any:
    harness = await Harness.open(
        stage.storage, models=model(stage, calls("unsafe"), ANSWER), registry=tools(stage), settings=FAST
    )
    return await ask(stage, harness, "Use the unsafe tool.")


async def parallel_round(stage: Stage) -> Any:
    both = model(stage, calls("safe", "unsafe"), ANSWER)
    harness = await Harness.open(stage.storage, models=both, registry=tools(stage), settings=FAST)
    return await ask(stage, harness, "Use both tools.")


async def sequential_round(stage: Stage) -> Any:
    both = model(stage, calls("safe", "unsafe"), ANSWER)
    settings = FAST.replaced(tool_execution="sequential")
    harness = await Harness.open(stage.storage, models=both, registry=tools(stage), settings=settings)
    return await ask(stage, harness, "Use both tools, one after the other.")


async def retry(stage: Stage) -> Any:
    """A provider that fails once; whether it has failed is noted, so that the next process knows."""

    def answer(request: ModelRequest) -> Any:
        stage.note("request", str(len(request.messages)))
        if not stage.notes("failed"):
            stage.note("failed")
            return Reply(error="503 Service Unavailable")
        return ANSWER

    settings = FAST.replaced(retry=RetryPolicy(base_delay=0.01))
    harness = await Harness.open(stage.storage, models=ScriptedModel(answer, record=False), settings=settings)
    return await ask(stage, harness, "Try until it works.")


async def deferred(stage: Stage) -> Any:
    later = ScriptedModel([ANSWER], by="transcript", deferred_poll_after=0.01)
    settings = FAST.replaced(request=RequestOptions(deferred=True))
    harness = await Harness.open(stage.storage, models=later, settings=settings)
    return await ask(stage, harness, "Answer later.")


async def inbox(stage: Stage) -> Any:
    """Three inputs and a write, handed in at once: one runs, the others wait their turn."""
    harness = await Harness.open(stage.storage, models=model(stage, "one", "two", "three"), settings=FAST)
    async with harness:
        root = await harness.root()
        submissions = [await root.submit(text, request_id=text) for text in ("first", "second", "third")]
        await (await root.write("app.note", messages=[UserMessage([TextBlock("a note")])], request_id="note"))
        settled = [await submission.wait() for submission in submissions]
        answers = [await root.entry(record.answer) for record in settled if record.answer is not None]
        await root.wait_for_idle()
        return [answer.text for answer in answers if answer is not None]


async def nested_calls(stage: Stage) -> Any:
    """A replay-safe tool that calls unsafe ones: finished nested calls are found again by their keys."""

    @tool
    async def inner(ctx: ToolContext, number: int) -> str:
        stage.note(f"begun inner {number}")
        return f"inner {number}"

    @tool(replay="safe")
    async def outer(ctx: ToolContext) -> str:
        results = [await ctx.call_tool("inner", {"number": number}, key=str(number)) for number in range(2)]
        return ", ".join(result.text for result in results)

    registry = Registry()
    registry.install(Extension("tools", tools=[inner, outer]))
    harness = await Harness.open(
        stage.storage, models=model(stage, calls("outer"), ANSWER), registry=registry, settings=FAST
    )
    return await ask(stage, harness, "Call the outer tool.")


async def subagent(stage: Stage) -> Any:
    """A tool that asks an agent of its own, in a conversation that it owns."""

    @tool(replay="safe")
    async def delegate(ctx: ToolContext) -> str:
        known = await ctx.memo("conversation")
        if known is None:
            made = await ctx.create_conversation(agent=AgentChange(tools=[]))
            known = await ctx.memo("conversation", made.id)
        conversation = await ctx.conversation(known)
        return (await conversation.ask("What is it?", request_id="delegated")).text

    registry = Registry()
    registry.install(Extension("tools", tools=[delegate]))

    def answer(request: ModelRequest) -> Any:
        stage.note("request", str(len(request.messages)))
        if not request.tools:
            return "It is a stone."
        return ANSWER if request.messages[-1].role == "tool_result" else calls("delegate")

    harness = await Harness.open(
        stage.storage, models=ScriptedModel(answer, record=False), registry=registry, settings=FAST
    )
    return await ask(stage, harness, "Find out.")


class Tidy(Task[str, None], name="test.tidy", version=1):
    """Asked for after the run."""

    class Work(Phase):
        async def run(self, task: TaskRun[str, None]) -> None:
            async with task.commit() as tx:
                await tx.append_entry("test.tidied", data=task.input)
                tx.complete()


async def after_run(stage: Stage) -> Any:
    """Work that a hook asks for once the answer is stored: `finish` and `drain`."""

    def ask_for_work(_run: object, _ctx: object) -> list[object]:
        return [run_end_task(Tidy, "one"), run_end_task(Tidy, "two")]

    registry = Registry()
    registry.install(Extension("tidy", tasks=[Tidy], hooks=[GenerationHooks(after_run=ask_for_work)]))
    harness = await Harness.open(stage.storage, models=model(stage, ANSWER), registry=registry, settings=FAST)
    return await ask(stage, harness, "Answer, then tidy up.")


async def documents(stage: Stage) -> Any:
    """Commits full of documents, on a session without agents."""
    async with Session.open(stage.storage) as session:
        for number in range(6):
            async with session.commit() as tx:
                for key in "abc":
                    counter = await tx.doc(Counter, key=key)
                    if number not in counter.seen:
                        counter.seen.append(number)
                        counter.log += f"{key}{number} " * 5
        found = [await session.snapshot(Counter, key=key) for key in "abc"]
        return [counter.model_dump() for counter in found if counter is not None]


class Counter(Document, kind="test.counter", scope="session", family=True):
    seen: list[int] = []
    log: str = ""


async def without_intent(stage: Stage) -> Any:
    """The unsafe tool in an engine that executes without having stored its intent: the sweep has to notice."""

    async def execute_at_once(self: Any, task: Any) -> None:
        phase = ToolTask.Execute(arguments=task.input.arguments, replay="unsafe")
        task.resumed = False
        await phase.run(task)

    ToolTask.Call.run = execute_at_once  # type: ignore[method-assign]
    return await unsafe_tool(stage)


async def without_flush(stage: Stage) -> Any:
    """A slow answer in an engine whose flush commits all but the partial that it shows: the sweep has to notice."""

    async def show_only(self: Any) -> None:
        self._dirty = False
        async with self._task.commit() as tx:
            (await tx.doc(Counter, key="flushes")).log += "."
        stage.note("seen", self.message().text)

    _Partial._flush = show_only  # type: ignore[method-assign]
    return await slow_turn(stage)


async def broken(stage: Stage) -> Any:
    return 1 / 0
