"""The scripted model: every kind of step, both ways to choose one, rates, deferral, usage."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from pidurable_nb.errors import ModelError, ScriptExhausted
from pidurable_nb.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ThinkingBlock,
    ToolCall,
    ToolDeclaration,
    Usage,
    UserMessage,
)
from pidurable_nb.models import (
    DeferredModel,
    Finish,
    Hang,
    Model,
    ModelEvent,
    ModelRequest,
    Reply,
    RequestOptions,
    ScriptedModel,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    estimate_tokens,
)


def asking(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(messages or (UserMessage("hi"),), **fields)


async def events_of(model: ScriptedModel, request: ModelRequest | None = None) -> list[ModelEvent]:
    return [event async for event in model.stream(request or asking())]


async def answer_of(model: ScriptedModel, request: ModelRequest | None = None) -> AssistantMessage:
    *_, last = await events_of(model, request)
    assert isinstance(last, Finish)
    return last.message


def test_it_is_a_model_that_can_defer() -> None:
    model = ScriptedModel([])
    assert isinstance(model, Model)
    assert isinstance(model, DeferredModel)
    assert (model.id, model.context_window) == ("scripted:demo", 200_000)
    assert "0 steps" in repr(model)


def test_text_streams_in_a_few_deltas_and_finishes() -> None:
    async def main() -> None:
        text = "one two three four five six " * 5
        events = await events_of(ScriptedModel([text]))
        deltas = [event.text for event in events if isinstance(event, TextDelta)]
        assert 2 <= len(deltas) <= 4
        assert "".join(deltas) == text
        finish = events[-1]
        assert isinstance(finish, Finish)
        assert finish.message.text == text
        assert (finish.message.stop_reason, finish.message.model) == ("stop", "scripted:demo")
        assert finish.message.timestamp is finish.message.duration is finish.message.thinking is None

    asyncio.run(main())


def test_a_reply_streams_thinking_then_text_then_calls() -> None:
    async def main() -> None:
        call = ToolCall(id="call-1", name="effect", arguments={"city": "Zürich", "n": [1, 2]})
        events = await events_of(ScriptedModel([Reply("the text", thinking="hm", tool_calls=[call])]))
        kinds = [type(event) for event in events]
        assert kinds == [ThinkingDelta, TextDelta, ToolCallDelta, ToolCallDelta, ToolCallDelta, Finish]
        arguments = "".join(event.arguments_json for event in events if isinstance(event, ToolCallDelta))
        assert json.loads(arguments) == call.arguments
        finish = events[-1]
        assert isinstance(finish, Finish)
        assert finish.message.stop_reason == "tool_use"
        assert finish.message.content[0] == ThinkingBlock("hm")
        assert finish.message.tool_calls == [call]

    asyncio.run(main())


def test_errors_stop_reasons_and_usage_can_be_given() -> None:
    async def main() -> None:
        usage = Usage(input_tokens=7, output_tokens=1, cost=0.5)
        model = ScriptedModel(
            [Reply("half", error="503 Service Unavailable"), Reply("cut", stop_reason="length", usage=usage)]
        )
        failed = await answer_of(model)
        assert (failed.stop_reason, failed.error, failed.text) == ("error", "503 Service Unavailable", "half")
        cut = await answer_of(model)
        assert (cut.stop_reason, cut.error, cut.usage) == ("length", None, usage)

    asyncio.run(main())


def test_functions_may_be_async_and_return_any_step() -> None:
    async def later(request: ModelRequest) -> Any:
        return lambda request: Reply("saw " + request.messages[-1].text)

    def broken(request: ModelRequest) -> str:
        raise LookupError("no such thing")

    async def main() -> None:
        model = ScriptedModel([later, broken, lambda request: 3, lambda request: "text"])
        assert (await answer_of(model)).text == "saw hi"
        with pytest.raises(LookupError, match="no such thing"):
            await events_of(model)
        with pytest.raises(TypeError, match="must be text, a Reply"):
            await events_of(model)
        assert (await answer_of(model)).text == "text"

    asyncio.run(main())


def test_one_function_answers_every_request() -> None:
    async def main() -> None:
        model = ScriptedModel(lambda request: f"{len(request.messages)} messages", record=False)
        assert [(await answer_of(model)).text for _ in range(3)] == ["1 messages"] * 3
        assert model.requests == []

    asyncio.run(main())


def test_the_script_ends_with_an_error_that_says_what_to_do() -> None:
    async def main() -> None:
        model = ScriptedModel(["only"])
        await events_of(model)
        with pytest.raises(ScriptExhausted, match=r"has 1 step and got request number 2.*by=\"transcript\""):
            await events_of(model)
        assert len(model.requests) == 2

    asyncio.run(main())


def test_by_transcript_counts_finished_answers_only() -> None:
    async def main() -> None:
        history: list[Message] = [UserMessage("hi")]
        for reason in ("error", "aborted", "deferred"):
            history.append(AssistantMessage("not an answer", stop_reason=reason))
        script = ["first", "second"]
        model = ScriptedModel(script, by="transcript")
        assert (await answer_of(model, asking(*history))).text == "first"
        assert (await answer_of(model, asking(*history))).text == "first"
        longer = [*history, AssistantMessage("first", stop_reason="tool_use")]
        assert (await answer_of(model, asking(*longer))).text == "second"
        assert (await answer_of(ScriptedModel(script, by="transcript"), asking(*longer))).text == "second"
        assert (await answer_of(model, asking(*history))).text == "first"  # a fork: the history is another one
        with pytest.raises(ScriptExhausted, match="a history of 2 finished answers"):
            await answer_of(model, asking(*longer, AssistantMessage("second")))

    asyncio.run(main())


def test_a_rate_paces_the_text_and_can_be_cancelled() -> None:
    async def main() -> None:
        model = ScriptedModel([Reply("z" * 40, tokens_per_second=100), Reply("z" * 4000, tokens_per_second=50)])
        start = time.perf_counter()
        events = await events_of(model)
        assert time.perf_counter() - start >= 0.09
        assert [event.text for event in events[:-1] if isinstance(event, TextDelta)] == ["zzzz"] * 10

        seen: list[ModelEvent] = []

        async def read() -> None:
            async for event in model.stream(asking()):
                seen.append(event)

        reader = asyncio.create_task(read())
        async with asyncio.timeout(5):
            while len(seen) < 2:  # noqa: ASYNC110 - the stream has nothing to wait on from outside
                await asyncio.sleep(0.005)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert len(seen) < 100

    asyncio.run(main())


def test_a_high_rate_does_not_sleep_for_each_token() -> None:
    async def main() -> None:
        start = time.perf_counter()
        answer = await answer_of(ScriptedModel([Reply("z" * 40_000, tokens_per_second=1_000_000)]))
        assert len(answer.text) == 40_000
        assert time.perf_counter() - start < 5.0

    asyncio.run(main())


def test_a_hang_streams_its_text_and_never_finishes() -> None:
    async def main() -> None:
        stream = ScriptedModel([Hang(after="partial")]).stream(asking())
        assert await anext(stream) == TextDelta("partial")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)

    asyncio.run(main())


def test_a_deferred_request_finishes_with_a_handle_that_any_process_can_poll() -> None:
    async def main() -> None:
        options = RequestOptions(deferred=True)
        model = ScriptedModel([Reply("later", thinking="hm"), "now", Hang()], deferred_poll_after=60.0)
        (event,) = await events_of(model, asking(options=options))
        assert isinstance(event, Finish)
        assert event.message.stop_reason == "deferred"
        handle = json.loads(json.dumps(event.message.deferred))
        assert handle["poll_after"] == 60.0
        assert (await answer_of(model)).text == "now"  # a request that does not ask for it is answered at once

        other_process = ScriptedModel([])
        answer = await other_process.poll(handle)
        assert (answer.text, answer.stop_reason, answer.model) == ("later", "stop", "scripted:demo")
        assert answer.usage.output_tokens > 0
        assert other_process.polls == [handle]

        never = await answer_of(model, asking(options=options))
        assert never.deferred is not None
        assert (await model.poll(never.deferred)).stop_reason == "deferred"
        await model.cancel(handle)
        assert model.cancels == [handle]
        with pytest.raises(ModelError, match="cannot read the answer"):
            await model.poll({"answer": {"content": 3}})

    asyncio.run(main())


def test_usage_is_a_quarter_of_the_characters() -> None:
    async def main() -> None:
        model = ScriptedModel(["x" * 10, "x" * 10, "x" * 10])
        system = SystemMessage(sections={"a": "s" * 8, "gone": None})
        first = asking(system, UserMessage("u" * 8))
        assert (await answer_of(model, first)).usage == Usage(input_tokens=4, output_tokens=3)
        grown = asking(*first.messages, AssistantMessage("x" * 10), UserMessage("u" * 6))
        assert (await answer_of(model, grown)).usage == Usage(input_tokens=8, output_tokens=3)
        tool = ToolDeclaration(name="t" * 4, description="d" * 4, parameters={})
        assert (await answer_of(model, asking(UserMessage("u" * 2), tools=(tool,)))).usage.input_tokens == 3
        assert estimate_tokens(grown.messages) == 8

    asyncio.run(main())


def test_one_model_serves_many_loops_and_streams_at_once() -> None:
    model = ScriptedModel(lambda request: Reply(request.messages[-1].text, tokens_per_second=2000))

    async def main(names: list[str]) -> list[str]:
        answers = await asyncio.gather(*(answer_of(model, asking(UserMessage(name * 20))) for name in names))
        return [answer.text for answer in answers]

    assert asyncio.run(main(["a", "b"])) == ["a" * 20, "b" * 20]
    assert asyncio.run(main(["c"])) == ["c" * 20]


def test_bad_scripts_are_refused_when_they_are_made() -> None:
    with pytest.raises(TypeError, match="list of steps"):
        ScriptedModel("just text")
    with pytest.raises(ValueError, match="by must be"):
        ScriptedModel([], by="time")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0"):
        Reply("x", tokens_per_second=0)
