"""Scenarios of conversations for the crash sweep, which kills real processes: each may be begun again where it was cut.

What people do is part of them: it is done under request ids, or only where it is still asked for, so that the process
that goes on does it again without doing it twice. A tool that must not end too early waits for a note.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from testing.scenarios import ANSWER, FAST, ask, calls, model

from pidurable_nb import (
    CompactionPolicy,
    Conversation,
    Document,
    Extension,
    Harness,
    Registry,
    RetryPolicy,
    RunLimits,
    Submission,
    ToolContext,
    tool,
)
from pidurable_nb.errors import DurableError
from pidurable_nb.messages import ToolCall, Usage
from pidurable_nb.models import ModelRequest, Reply, ScriptedModel
from pidurable_nb.testing import Stage, eventually


def registry_of(*tools: Any) -> Registry:
    registry = Registry()
    registry.install(Extension("tools", tools=list(tools)))
    return registry


# -- approval --------------------------------------------------------------------------------------------------------


async def _decided(stage: Stage, **decision: Any) -> Any:
    """An unsafe tool whose call waits for a person, who decides in whichever process is asked."""

    @tool(approval=True)
    async def pay(amount: int) -> str:
        stage.note(f"paid {amount}", str(len(stage.notes("decided"))))
        return f"paid {amount}"

    wanted = Reply(tool_calls=[ToolCall(id="call-pay", name="pay", arguments={"amount": 100})])
    harness = await Harness.open(
        stage.storage, models=model(stage, wanted, ANSWER), registry=registry_of(pay), settings=FAST
    )
    async with harness:
        root = await harness.root()
        submission = await root.submit("Pay.", request_id="pay")
        await eventually(lambda: _settled_or_asked(root, submission), timeout=20)
        for asked in (await root.view()).live.approvals:
            assert (asked.call, asked.arguments) == ("call-pay", {"amount": 100})
            stage.note("decided")
            try:
                await root.decide(asked.call, **decision)
            except DurableError:  # it was decided before the crash, and is shown until the call goes on
                stage.note("decided before")
        settled = await submission.wait()
        await root.wait_for_idle()
        assert (await root.view()).live.approvals == ()
        return [settled.status, settled.reason]


async def _settled_or_asked(root: Conversation, submission: Submission) -> bool:
    return (await submission.status()).settled or bool((await root.view()).live.approvals)


async def approved(stage: Stage) -> Any:
    return await _decided(stage, approve=True)


async def denied(stage: Stage) -> Any:
    return await _decided(stage, approve=False, note="too much")


async def edited(stage: Stage) -> Any:
    return await _decided(stage, approve=True, arguments={"amount": 5})


# -- typed answers ---------------------------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    people: int


async def typed_answer(stage: Stage) -> Any:
    """A typed answer that fits at the second attempt."""

    def final(people: Any) -> Reply:
        arguments = {"name": "Paris", "people": people}
        return Reply(tool_calls=[ToolCall(id=f"final-{people}", name="final_answer", arguments=arguments)])

    harness = await Harness.open(stage.storage, models=model(stage, final("many"), final(2)), settings=FAST)
    async with harness:
        root = await harness.root()
        city = await root.ask("Which city?", output=City, request_id="city")
        await root.wait_for_idle()
        return city.model_dump()


# -- the inbox while a round runs ------------------------------------------------------------------------------------


def _slow_round(stage: Stage) -> tuple[ScriptedModel, Registry]:
    """A model that calls a replay-safe tool for "first" and answers everything else; the tool waits for a note."""

    @tool(replay="safe")
    async def slow() -> str:
        stage.note("begun slow")
        await eventually(lambda: bool(stage.notes("said")), timeout=20)
        return "slow result"

    def answer(request: ModelRequest) -> Any:
        stage.note("request")
        last = request.messages[-1]
        if last.role == "user" and last.text == "first":
            return calls("slow")
        return f"heard {last.text}"

    return ScriptedModel(answer, record=False), registry_of(slow)


async def steer_and_follow_up(stage: Stage) -> Any:
    """A follow-up, then a steer, handed in while a round runs: the steer joins the run, the follow-up comes after."""
    spoken, registry = _slow_round(stage)
    harness = await Harness.open(stage.storage, models=spoken, registry=registry, settings=FAST)
    async with harness:
        root = await harness.root()
        first = await root.submit("first", request_id="first")
        await eventually(lambda: bool(stage.notes("begun slow")), timeout=20)
        later = await root.submit("later", request_id="later")
        steer = await root.submit("steer", request_id="steer", when_busy="steer")
        stage.note("said")
        settled = [await submission.wait() for submission in (first, steer, later)]
        answers = [await root.entry(record.answer) for record in settled if record.answer is not None]
        await root.wait_for_idle()
        return [answer.text for answer in answers if answer is not None]


async def reset_behind_a_round(stage: Stage) -> Any:
    """A reset, and an input behind it, handed in while a round runs: the run ends, the input starts anew."""
    spoken, registry = _slow_round(stage)
    harness = await Harness.open(stage.storage, models=spoken, registry=registry, settings=FAST)
    async with harness:
        root = await harness.root()
        first = await root.submit("first", request_id="first")
        await eventually(lambda: bool(stage.notes("begun slow")), timeout=20)
        await root.reset("the note", request_id="reset")
        following = await root.submit("following", request_id="following")
        stage.note("said")
        settled = [await submission.wait() for submission in (first, following)]
        await root.wait_for_idle()
        context = await root.context()
        return [
            [record.status for record in settled],
            [record.reason for record in settled],
            [message.text for message in context.messages if message.role != "system"],
        ]


# -- limits ----------------------------------------------------------------------------------------------------------


async def limit_and_retry(stage: Stage) -> Any:
    """A run that a limit ends after its first turn, and that goes on once the limit was raised."""

    @tool(replay="safe")
    async def work() -> str:
        return "worked"

    harness = await Harness.open(
        stage.storage,
        models=model(stage, calls("work"), ANSWER),
        registry=registry_of(work),
        settings=lambda: FAST.replaced(limits=RunLimits(turns=None if stage.notes("raised") else 1)),
    )
    async with harness:
        root = await harness.root()
        ended = await (await root.submit("Work.", request_id="work")).wait()
        stage.note("raised")
        again = await (await root.retry(request_id="again")).wait()
        await root.wait_for_idle()
        failure = (await root.view()).live.run_failure
        return [ended.status, ended.reason, again.type, again.status, failure and failure.reason]


# -- nested calls ----------------------------------------------------------------------------------------------------


async def parallel_nested_calls(stage: Stage) -> Any:
    """A replay-safe tool that makes unsafe calls at once, which one commit creates."""

    @tool
    async def inner(number: int) -> str:
        stage.note(f"begun inner {number}")
        return f"inner {number}"

    @tool(replay="safe")
    async def outer(ctx: ToolContext) -> str:
        made = [ctx.call_tool("inner", {"number": number}, key=str(number)) for number in range(4)]
        return ", ".join(result.text for result in await asyncio.gather(*made))

    harness = await Harness.open(
        stage.storage, models=model(stage, calls("outer"), ANSWER), registry=registry_of(inner, outer), settings=FAST
    )
    return await ask(stage, harness, "Call the outer tool.")


# -- compaction ------------------------------------------------------------------------------------------------------

SMALL = FAST.replaced(
    compaction=CompactionPolicy(reserve_tokens=100, keep_recent_tokens=30, background_tokens=100),
    retry=RetryPolicy(base_delay=0.01),
)


def _summariser(stage: Stage, answer: Any) -> ScriptedModel:
    def step(request: ModelRequest) -> Any:
        stage.note("request")
        return "what was said" if "<conversation>" in request.messages[-1].text else answer(request)

    return ScriptedModel(step, record=False, context_window=1000)


async def compacted_by_hand(stage: Stage) -> Any:
    """Two runs, then a compaction, asked for unless it was asked for before."""
    harness = await Harness.open(stage.storage, models=_summariser(stage, lambda request: "fine"), settings=SMALL)
    async with harness:
        root = await harness.root()
        await root.ask("word " * 80, request_id="first")
        await root.ask("second", request_id="second")
        if not await harness.tasks(kind="pi.compaction").list():
            await root.compact()
        await root.wait_for_idle()
        return await _read(root)


async def compacted_after_an_overflow(stage: Stage) -> Any:
    """A run whose request is too long until its context is compacted."""

    def answer(request: ModelRequest) -> Any:
        too_long = "word word" in request.messages[0].text and request.messages[-1].text == "second"
        return Reply(error="maximum context length exceeded") if too_long else "fine"

    harness = await Harness.open(stage.storage, models=_summariser(stage, answer), settings=SMALL)
    async with harness:
        root = await harness.root()
        await root.ask("word " * 80, request_id="first")
        await root.ask("second", request_id="second")
        await root.wait_for_idle()
        return await _read(root)


def _using(**tokens: int) -> Any:
    """Answers whose usage fills the context after these inputs."""

    def answer(request: ModelRequest) -> Any:
        return Reply("fine", usage=Usage(input_tokens=tokens.get(request.messages[-1].text, 10)))

    return answer


async def compacted_before_a_request(stage: Stage) -> Any:
    """A run that waits for a compaction, since its context is above the threshold."""
    harness = await Harness.open(stage.storage, models=_summariser(stage, _using(second=950)), settings=SMALL)
    async with harness:
        root = await harness.root()
        for text, id in (("word " * 80, "first"), ("second", "second"), ("third", "third")):
            await root.ask(text, request_id=id)
        await root.wait_for_idle()
        return await _read(root)


async def compacted_in_the_background(stage: Stage) -> Any:
    """A context near the threshold: a run starts a compaction and does not wait for it."""
    harness = await Harness.open(stage.storage, models=_summariser(stage, _using(second=850)), settings=SMALL)
    async with harness:
        root = await harness.root()
        for text, id in (("word " * 80, "first"), ("second", "second"), ("third", "third")):
            await root.ask(text, request_id=id)
        for task in await harness.tasks(kind="pi.compaction").list():
            assert (await harness.wait_for_task(task.id)).background
        return await _read(root)


async def compaction_that_is_waited_for(stage: Stage) -> Any:
    """A compaction in the background that the next run has to wait for, since the context is full by then."""

    async def step(request: ModelRequest) -> Any:
        stage.note("request")
        if "<conversation>" in request.messages[-1].text:
            await eventually(lambda: bool(stage.notes("blocked")), timeout=20)
            return "what was said"
        return _using(second=850, third=950)(request)

    models = ScriptedModel(step, record=False, context_window=1000)
    harness = await Harness.open(stage.storage, models=models, settings=SMALL)
    async with harness:
        root = await harness.root()
        for text, id in (("word " * 80, "first"), ("second", "second"), ("third", "third")):
            await root.ask(text, request_id=id)
        fourth = await root.submit("fourth", request_id="fourth")

        async def blocked() -> bool:
            waiting = await harness.tasks(kind="pi.generation", status="waiting").list()
            return bool(waiting) or (await fourth.status()).settled

        await eventually(blocked, timeout=20)
        stage.note("blocked")
        await fourth.wait()
        for task in await harness.tasks(kind="pi.compaction").list():
            await harness.wait_for_task(task.id)
        return await _read(root)


async def _read(root: Conversation) -> list[str]:
    view = await root.view()
    assert view.live.compactions == ()
    return [message.text for message in (await root.context()).messages if message.role != "system"]


# -- forks -----------------------------------------------------------------------------------------------------------


class Said(Document, kind="test.said", scope="conversation", history="rewindable", fork="as_of"):
    texts: list[str] = []


async def forks(stage: Stage) -> Any:
    """A fork and a revised input, each made unless it is there already, and a run in each branch."""
    spoken = ScriptedModel(lambda request: _heard(stage, request), record=False)
    harness = await Harness.open(stage.storage, models=spoken, settings=FAST)
    async with harness:
        root = await harness.root()
        first, second = [await (await root.submit(text, request_id=text)).wait() for text in ("first", "second")]
        assert first.answer is not None
        assert second.entry is not None
        async with root.commit() as tx:
            said = await tx.doc(Said)
            if not said.texts:
                said.texts = ["root"]
                await tx.append_entry("test.mark")
        [mark] = [entry.id async for entry in root.entries() if entry.kind == "test.mark"]
        made = {item.parent.at: item.id async for item in harness.conversations() if item.parent is not None}
        fork = await (harness.conversation(made[mark]) if mark in made else root.fork(mark))
        if first.answer in made:
            revised = await harness.conversation(made[first.answer])
        else:
            revised, _ = await root.revise(second.entry, "otherwise")
        assert fork is not None
        assert revised is not None
        await fork.ask("in the fork", request_id="fork")
        async with fork.commit() as tx:
            said = await tx.doc(Said)
            if len(said.texts) == 1:
                said.texts = [*said.texts, "fork"]
        await harness.wait_for_idle()
        documents = [await harness.snapshot(Said, conversation.id) for conversation in (root, fork, revised)]
        return [
            [[m.text for m in (await one.context()).messages] for one in (root, fork, revised)],
            [None if document is None else document.texts for document in documents],
        ]


def _heard(stage: Stage, request: ModelRequest) -> Any:
    stage.note("request")
    return f"heard {request.messages[-1].text}"
