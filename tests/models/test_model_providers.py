"""Providers through pydantic-ai and the vendors' own clients, against a server on loopback that can break."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from models_fault_server import Answer, FaultServer, anthropic, chat, error, responses, sse

from pidurable_nb.errors import UnknownModel
from pidurable_nb.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from pidurable_nb.models import (
    DefaultModels,
    Finish,
    Model,
    ModelEvent,
    ModelRequest,
    RequestOptions,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    error_kind,
    is_overflow,
    is_retryable,
    retry_after,
)

KEY = "sk-test-0123456789abcdef"
WEATHER = ToolDeclaration(
    name="weather",
    description="Current weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = ToolDeclaration(name="time", description="The time.")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Exchange:
    """One request to a model over the server, and everything that came of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, id: str, *answers: Answer) -> None:
        self.id = id
        self.answers = answers
        self._monkeypatch = monkeypatch

    def run(self, *messages: Message, **fields: Any) -> tuple[list[ModelEvent], AssistantMessage, FaultServer]:
        return asyncio.run(self._run(messages, fields))

    async def _run(self, messages: Sequence[Message], fields: Any) -> Any:
        async with asyncio.timeout(30), FaultServer(*self.answers) as server:
            model = self.model(server)
            request = ModelRequest(tuple(messages) or (UserMessage("hi"),), **fields)
            events = [event async for event in model.stream(request)]
            finish = events[-1]
            assert isinstance(finish, Finish)
            assert sum(isinstance(event, Finish) for event in events) == 1
            return events, finish.message, server

    def model(self, server: FaultServer) -> Model:
        self._monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        self._monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        model = DefaultModels().get(self.id)
        assert model is not None
        return model


def text_of(events: list[ModelEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def anthropic_text(*pieces: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


PLAIN = {
    "openai-chat:gpt-4o": chat({"role": "assistant", "content": "Hel"}, {"content": "lo"}),
    "openai:gpt-5": responses("Hel", "lo"),
    "anthropic:claude-sonnet-5": anthropic(anthropic_text("Hel", "lo")),
}
CUT = {
    "openai-chat:gpt-4o": chat({"content": "Hel"}, finish=None),
    "openai:gpt-5": responses("Hel", finish=False),
    "anthropic:claude-sonnet-5": anthropic(anthropic_text("Hel"), stop=None),
}
every_protocol = pytest.mark.parametrize("id", list(PLAIN))


@every_protocol
def test_text_streams_and_finishes(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    events, message, server = Exchange(monkeypatch, id, Answer(PLAIN[id])).run(
        SystemMessage(sections={"a": "Be terse.", "b": "Be kind."}),
        UserMessage("hi"),
        AssistantMessage("hello", model=id),
        UserMessage([TextBlock("look"), ImageBlock(media_type="image/png", data=base64.b64encode(b"png").decode())]),
        max_tokens=77,
        options=RequestOptions(headers={"x-mine": "1"}),
    )
    assert text_of(events) == ["Hel", "lo"]
    assert (message.text, message.stop_reason, message.model, message.error) == ("Hello", "stop", id, None)
    assert message.usage.output_tokens > 0
    (request,) = server.requests
    sent = json.dumps(request.body)
    for words in ("Be terse.", "Be kind.", '"hi"', "hello", "look", base64.b64encode(b"png").decode(), "77"):
        assert words in sent, words
    assert sent.index("Be terse.") < sent.index("Be kind.")
    assert request.headers["x-mine"] == "1"


RESPONSES, CHAT, CLAUDE = "openai:gpt-5", "openai-chat:gpt-4o", "anthropic:claude-sonnet-5"


def sent_with(monkeypatch: pytest.MonkeyPatch, id: str, *messages: Message, **fields: Any) -> dict[str, Any]:
    """The body that a request with these fields has."""
    _, message, server = Exchange(monkeypatch, id, Answer(PLAIN[id])).run(*messages, **fields)
    assert message.stop_reason == "stop", message.error
    return server.requests[0].body


@pytest.mark.parametrize("level", ["off", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_thinking_levels_reach_the_models_that_think(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    openai = sent_with(monkeypatch, RESPONSES, thinking=level)["reasoning"]["effort"]
    # this model cannot stop thinking, and knows no more than high
    assert openai == {"off": "minimal", "xhigh": "high", "max": "high"}.get(level, level)
    claude = sent_with(monkeypatch, CLAUDE, thinking=level)
    if level == "off":
        assert claude.get("thinking", {"type": "disabled"})["type"] == "disabled"
    else:
        assert claude["thinking"]["type"] == "adaptive"
        assert claude["output_config"]["effort"] in {level, "low" if level == "minimal" else level, "max"}
    assert "reasoning_effort" not in sent_with(monkeypatch, CHAT, thinking=level)  # it does not think


@every_protocol
def test_a_level_and_a_choice_that_there_are_not_are_said(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    _, message, server = Exchange(monkeypatch, id).run(thinking="banana")
    assert message.error == "thinking is 'banana': a level is one of off, minimal, low, medium, high, xhigh, max."
    _, message, server = Exchange(monkeypatch, id).run(tools=(WEATHER,), options=RequestOptions(tool_choice="rain"))
    assert message.error == "tool_choice is 'rain': it is auto, required, none, or one of weather."
    assert server.requests == []


@every_protocol
def test_an_image_in_a_tool_result_reaches_the_model(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    data = base64.b64encode(b"a picture").decode()
    call = ToolCall(id="call_1", name="plot", arguments={})
    result = ToolResultMessage(
        call_id="call_1",
        tool_name="plot",
        content=[TextBlock("see the plot"), ImageBlock(media_type="image/png", data=data)],
    )
    sent = json.dumps(sent_with(monkeypatch, id, UserMessage("plot it"), AssistantMessage([call], model=id), result))
    for words in ("plot it", "call_1", "see the plot", data, "image/png"):
        assert words in sent, words


@pytest.mark.parametrize(
    ("choice", "openai", "chat", "claude"),
    [
        ("auto", "auto", "auto", {"type": "auto"}),
        ("required", "required", "required", {"type": "any"}),
        ("none", "none", "none", {"type": "none"}),
        (
            "weather",
            {"type": "function", "name": "weather"},
            {"type": "function", "function": {"name": "weather"}},
            {"type": "tool", "name": "weather"},
        ),
    ],
)
def test_a_choice_of_tools_reaches_the_provider(
    monkeypatch: pytest.MonkeyPatch, choice: str, openai: Any, chat: Any, claude: dict[str, Any]
) -> None:
    options = RequestOptions(tool_choice=choice)
    for id, expected in ((RESPONSES, openai), (CHAT, chat), (CLAUDE, claude)):
        body = sent_with(monkeypatch, id, tools=(WEATHER, TIME), options=options)
        if choice == "none" and "tools" not in body:
            continue  # no tool offered is none called
        found = body.get("tool_choice", "auto")
        if isinstance(found, dict) and found.get("type") == "allowed_tools":
            found = {**found["tools"][0]}  # one of those that it may call is the one that it must call
        assert found == expected, id
        assert "tool_choice" not in sent_with(monkeypatch, id, options=options)


def test_the_session_the_person_and_the_metadata_have_each_provider_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    fields: Any = {
        "session_id": "session-1",
        "options": RequestOptions(metadata={"user_id": "ada", "project": 7}),
    }
    body = sent_with(monkeypatch, RESPONSES, **fields)
    assert (body["prompt_cache_key"], body["user"], body["metadata"]) == ("session-1", "ada", {"project": "7"})
    body = sent_with(monkeypatch, CHAT, **fields)
    assert (body["prompt_cache_key"], body["user"]) == ("session-1", "ada")
    assert "metadata" not in body  # taken for stored answers only
    assert sent_with(monkeypatch, CLAUDE, **fields)["metadata"] == {"user_id": "ada"}


@pytest.mark.parametrize(
    ("cache", "marks"), [("default", {"5m"}), ("short", {"5m"}), ("long", {"1h"}), ("1h", {"1h"}), ("off", set())]
)
def test_cache_hints_reach_anthropic_as_marks(monkeypatch: pytest.MonkeyPatch, cache: str, marks: set[Any]) -> None:
    def found(value: Any) -> list[Any]:
        if isinstance(value, dict):
            mark = [value["cache_control"]] if value.get("cache_control") else []
            return mark + [item for inner in value.values() for item in found(inner)]
        return [item for inner in value for item in found(inner)] if isinstance(value, list) else []

    body = sent_with(
        monkeypatch,
        CLAUDE,
        SystemMessage(sections={"a": "Be terse. " * 300}),
        UserMessage("hi"),
        tools=(WEATHER,),
        options=RequestOptions(cache=cache),
    )
    controls = found(body)
    assert {control["ttl"] for control in controls} == marks


@every_protocol
def test_retries_inside_a_request_are_the_client_s(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    exchange = Exchange(monkeypatch, id, error(503, "down", retry_after="0"), Answer(PLAIN[id]))
    _, message, server = exchange.run(options=RequestOptions(max_retries=1))
    assert (message.text, len(server.requests)) == ("Hello", 2)


@pytest.mark.parametrize(
    ("id", "events", "reason", "kind"),
    [
        (CHAT, chat({"content": "Hel"}, finish="length"), "length", None),
        (CHAT, chat({"content": "Hel"}, finish="content_filter"), "error", "refused"),
        (RESPONSES, responses("Hel", incomplete="max_output_tokens"), "length", None),
        (RESPONSES, responses("Hel", incomplete="content_filter"), "error", "refused"),
        (CLAUDE, anthropic(anthropic_text("Hel"), stop="max_tokens"), "length", None),
        (CLAUDE, anthropic(anthropic_text("Hel"), stop="stop_sequence"), "stop", None),
        (CLAUDE, anthropic(anthropic_text("Hel"), stop="refusal"), "error", "refused"),
        (CLAUDE, anthropic(anthropic_text("Hel"), stop="model_context_window_exceeded"), "length", None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_stop_reasons(
    monkeypatch: pytest.MonkeyPatch, id: str, events: list[str], reason: str, kind: str | None
) -> None:
    _, message, _ = Exchange(monkeypatch, id, Answer(events)).run()
    assert (message.stop_reason, message.text) == (reason, "Hel")
    assert error_kind(message) == kind, message.error


def test_a_tool_call_of_the_responses_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'}
    _, message, _ = Exchange(monkeypatch, RESPONSES, Answer(responses(call=call))).run(tools=(WEATHER,))
    assert message.stop_reason == "tool_use"
    ((id, name, arguments),) = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    assert (name, arguments) == ("weather", {"city": "Oslo"})
    result = ToolResultMessage(call_id=id, tool_name=name, content="sun")
    sent = sent_with(monkeypatch, RESPONSES, UserMessage("weather?"), message, result, tools=(WEATHER,))
    output = next(item for item in sent["input"] if item.get("type") == "function_call_output")
    called = next(item for item in sent["input"] if item.get("type") == "function_call")
    assert (called["call_id"], output["call_id"], output["output"]) == ("call_1", "call_1", "sun")


def test_a_cost_is_the_price_of_what_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the prices that genai-prices lists: cached tokens cost less than read ones, written ones more."""

    def cost(**usage: int) -> float:
        stream = anthropic(anthropic_text("x"), usage={"input_tokens": 0, "output_tokens": 1, **usage})
        return Exchange(monkeypatch, CLAUDE, Answer(stream)).run()[1].usage.cost

    nothing = cost()  # what the answer itself costs
    read, cached = cost(input_tokens=10_000) - nothing, cost(cache_read_input_tokens=10_000) - nothing
    written = cost(cache_creation_input_tokens=10_000) - nothing
    assert 0 < cached < read < written
    assert read == pytest.approx(cached * 10, rel=0.01)


def test_usage_counts_each_token_once_and_has_a_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    _, message, _ = Exchange(monkeypatch, "openai:gpt-5", Answer(responses("x"))).run()
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (36, 64, 5)

    counted = {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 50,
    }
    stream = anthropic(anthropic_text("x"), usage=counted)
    _, message, _ = Exchange(monkeypatch, "anthropic:claude-sonnet-5", Answer(stream)).run()
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (10, 100, 50)
    assert usage.output_tokens == 7
    assert usage.cost > 0


def test_openai_tool_calls_stream_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}

    start = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    stream = chat({"tool_calls": [start]}, call('{"city": "Os'), call('lo"}'), finish="tool_calls")
    exchange = Exchange(monkeypatch, "openai-chat:gpt-4o", Answer(stream))
    events, message, server = exchange.run(UserMessage("weather?"), tools=(WEATHER,))
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert {(delta.id, delta.name) for delta in deltas} == {("call_1", "weather")}
    assert "".join(delta.arguments_json for delta in deltas) == '{"city": "Oslo"}'
    assert message.stop_reason == "tool_use"
    assert message.tool_calls == [ToolCall(id="call_1", name="weather", arguments={"city": "Oslo"})]
    tool = server.requests[0].body["tools"][0]["function"]
    assert (tool["name"], tool["description"]) == ("weather", "Current weather.")
    assert tool["parameters"]["properties"]["city"] == {"type": "string"}


def test_arguments_that_are_not_json_reach_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    start = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
    stream = chat({"tool_calls": [start]}, finish="tool_calls")
    _, message, _ = Exchange(monkeypatch, "openai-chat:gpt-4o", Answer(stream)).run(tools=(WEATHER,))
    assert message.stop_reason == "tool_use"
    assert message.tool_calls[0].arguments == {"INVALID_JSON": '{"ci'}


def test_anthropic_thinking_and_tools_go_out_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    id = "anthropic:claude-sonnet-5"
    thinking = (
        {"type": "thinking", "thinking": "", "signature": ""},
        [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "proof"}],
    )
    use = (
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
        [
            {"type": "input_json_delta", "partial_json": '{"city":'},
            {"type": "input_json_delta", "partial_json": '"Oslo"}'},
        ],
    )
    stream = anthropic(thinking, anthropic_text("Let me see."), use, stop="tool_use")
    events, message, server = Exchange(monkeypatch, id, Answer(stream)).run(tools=(WEATHER,), thinking="low")
    assert [event.text for event in events if isinstance(event, ThinkingDelta)] == ["hm"]
    assert message.content == [
        ThinkingBlock("hm", "proof"),
        TextBlock("Let me see."),
        ToolCall(id="toolu_1", name="weather", arguments={"city": "Oslo"}),
    ]
    assert message.stop_reason == "tool_use"
    assert server.requests[0].body["thinking"]["type"] == "adaptive"
    assert server.requests[0].body["output_config"]["effort"] == "low"

    result = ToolResultMessage(content="no such city", call_id="toolu_1", tool_name="weather", is_error=True)
    again = Exchange(monkeypatch, id, Answer(anthropic(anthropic_text("Sorry."))))
    _, _, server = again.run(UserMessage("hi"), message, result, tools=(WEATHER,), thinking="low")
    first, answer, returned = server.requests[0].body["messages"]
    assert first["role"] == "user"
    assert answer["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "proof"}
    assert answer["content"][2]["input"] == {"city": "Oslo"}
    (block,) = returned["content"]
    assert (block["type"], block["tool_use_id"], block["is_error"]) == ("tool_result", "toolu_1", True)
    assert "no such city" in json.dumps(block)


def test_a_later_system_message_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Exchange(monkeypatch, "openai-chat:gpt-4o", Answer(PLAIN["openai-chat:gpt-4o"]))
    _, _, server = exchange.run(
        SystemMessage(sections={"a": "FIRST"}),
        UserMessage("ONE"),
        AssistantMessage("TWO", model="openai-chat:gpt-4o"),
        SystemMessage(sections={"a": "THREE", "old": None}),
        UserMessage("FOUR"),
    )
    sent = json.dumps(server.requests[0].body["messages"])
    places = [sent.index(word) for word in ("FIRST", "ONE", "TWO", "THREE", "FOUR")]
    assert places == sorted(places)
    assert "no longer apply: old" in sent


@every_protocol
@pytest.mark.parametrize("end", ["cut", "finish"])
def test_a_stream_cut_half_way_is_a_retryable_error_that_keeps_the_text(
    monkeypatch: pytest.MonkeyPatch, id: str, end: str
) -> None:
    events, message, _ = Exchange(monkeypatch, id, Answer(CUT[id], end=end)).run()
    assert text_of(events) == ["Hel"]
    assert (message.stop_reason, message.text) == ("error", "Hel")
    assert is_retryable(message), message.error


@every_protocol
def test_a_rate_limit_says_when_to_come_back_and_is_not_retried_here(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down, please."}}
    _, message, server = Exchange(monkeypatch, id, error(429, body, retry_after="7")).run()
    assert message.error is not None
    assert message.error.startswith("HTTP 429 Too Many Requests: Slow down, please.")
    assert is_retryable(message)
    assert retry_after(message) == 7.0
    assert len(server.requests) == 1


@every_protocol
@pytest.mark.parametrize(
    ("status", "body", "retryable"),
    [
        (500, {"error": {"message": "boom"}}, True),
        (503, "upstream is down", True),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, True),
        (400, {"error": {"message": "messages: no"}}, False),
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, False),
        (404, {"error": {"message": "no such model"}}, False),
    ],
)
def test_error_statuses(monkeypatch: pytest.MonkeyPatch, id: str, status: int, body: Any, retryable: bool) -> None:
    _, message, _ = Exchange(monkeypatch, id, error(status, body)).run()
    assert message.stop_reason == "error"
    assert message.error is not None
    assert message.error.startswith(f"HTTP {status}")
    assert is_retryable(message) is retryable
    assert KEY not in message.error


def test_an_overflow_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8 maximum"}}
    _, message, _ = Exchange(monkeypatch, "anthropic:claude-sonnet-5", error(400, body)).run()
    assert is_overflow(message)
    assert not is_retryable(message)


def test_an_error_inside_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = anthropic(anthropic_text("Hel"), stop=None)
    failure = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")
    _, message, _ = Exchange(monkeypatch, "anthropic:claude-sonnet-5", Answer([*stream, failure])).run()
    assert (message.stop_reason, message.text) == ("error", "Hel")
    assert is_retryable(message), message.error


@every_protocol
def test_malformed_events_are_an_error_and_not_a_crash(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    _, message, _ = Exchange(monkeypatch, id, Answer([sse("{not json", "message_start")])).run()
    assert message.stop_reason == "error"
    assert message.error


def test_nobody_listening_is_a_retryable_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> AssistantMessage:
        async with FaultServer() as server:
            model = Exchange(monkeypatch, "openai-chat:gpt-4o").model(server)
        async with asyncio.timeout(30):
            events = [event async for event in model.stream(ModelRequest((UserMessage("hi"),)))]
        (finish,) = events
        assert isinstance(finish, Finish)
        return finish.message

    message = asyncio.run(main())
    assert message.error is not None
    assert message.error.startswith("Connection error")
    assert is_retryable(message)


def test_an_idle_stream_times_out_and_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(CUT["openai-chat:gpt-4o"], end="stall")
    exchange = Exchange(monkeypatch, "openai-chat:gpt-4o", answer)
    _, message, _ = exchange.run(options=RequestOptions(timeout=0.2))
    assert (message.stop_reason, message.text) == ("error", "Hel")
    assert is_retryable(message), message.error


@every_protocol
def test_cancelling_closes_the_connection(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), FaultServer(Answer(CUT[id], end="stall")) as server:
            model = Exchange(monkeypatch, id).model(server)
            arrived = asyncio.Event()

            async def read() -> None:
                async for _ in model.stream(ModelRequest((UserMessage("hi"),))):
                    arrived.set()

            reader = asyncio.create_task(read())
            await arrived.wait()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await server.disconnected.wait()

    asyncio.run(main())


def test_one_model_serves_many_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    id = "openai-chat:gpt-4o"
    models: list[Model] = []

    async def main() -> str:
        async with FaultServer(Answer(PLAIN[id]), Answer(PLAIN[id])) as server:
            fresh = Exchange(monkeypatch, id).model(server)
            models.append(fresh)

            async def ask() -> str:
                events = [event async for event in models[0].stream(ModelRequest((UserMessage("hi"),)))]
                finish = events[-1]
                assert isinstance(finish, Finish)
                return finish.message.text

            first, second = await asyncio.gather(ask(), ask())
            return first + second

    assert [asyncio.run(main()) for _ in range(3)] == ["HelloHello"] * 3


def test_a_key_that_is_gone_later_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DefaultModels().get("anthropic:claude-sonnet-5")
    assert model is not None
    monkeypatch.delenv("ANTHROPIC_API_KEY")

    async def main() -> None:
        (event,) = [event async for event in model.stream(ModelRequest((UserMessage("hi"),)))]
        assert isinstance(event, Finish)
        assert event.message.error is not None
        assert "ANTHROPIC_API_KEY" in event.message.error
        assert not is_retryable(event.message)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("id", "variable"), [("openai:gpt-5", "OPENAI_API_KEY"), ("anthropic:claude-sonnet-5", "ANTHROPIC_API_KEY")]
)
def test_a_missing_key_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, id: str, variable: str
) -> None:
    monkeypatch.delenv(variable)
    with pytest.raises(UnknownModel) as caught:
        DefaultModels().get(id)
    assert str(caught.value) == f"{id} needs a key: set the environment variable {variable}."


def test_a_missing_package_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(UnknownModel, match=r"pip install 'pydantic-ai-slim\[groq\]'") as caught:
        DefaultModels().get("groq:llama-3.3-70b")
    assert "\n" not in str(caught.value)


def test_an_unknown_provider_is_told_what_there_is() -> None:
    with pytest.raises(UnknownModel, match=r"no provider is named 'nosuch'.*anthropic:.*local:"):
        DefaultModels().get("nosuch:model")
