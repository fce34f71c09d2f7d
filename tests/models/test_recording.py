"""Recorded models: what is written, what is answered from it, how a request that differs is told."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Harness, Settings, tool
from pidurable_nb.errors import ModelError, RecordingMismatch, UnknownModel
from pidurable_nb.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from pidurable_nb.models import (
    Finish,
    Hang,
    Model,
    ModelEvent,
    ModelRequest,
    RecordingModel,
    ReplayModel,
    Reply,
    RequestOptions,
    ScriptedModel,
    error_kind,
)
from pidurable_nb.testing import validate

WEATHER = ToolDeclaration(name="weather", description="Current weather.")
CALL = ToolCall(id="call-1", name="weather", arguments={"city": "Oslo"})


def ask(model: Model, *messages: Message | str, **fields: Any) -> list[ModelEvent]:
    said = tuple(UserMessage(message) if isinstance(message, str) else message for message in messages)

    async def main() -> list[ModelEvent]:
        async with asyncio.timeout(30):
            return [event async for event in model.stream(ModelRequest(said, **fields))]

    return asyncio.run(main())


def answer(model: Model, *messages: Message | str, **fields: Any) -> AssistantMessage:
    finish = ask(model, *messages, **fields)[-1]
    assert isinstance(finish, Finish)
    return finish.message


def test_a_recording_answers_as_the_model_did(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    said = Reply("Sunny.", thinking="hm", tool_calls=[CALL], usage=Usage(input_tokens=7, cost=0.5))
    model = RecordingModel(ScriptedModel([said], name="openai:gpt-5", context_window=77, max_output_tokens=7), path)
    recorded = ask(model, "weather?", tools=(WEATHER,), thinking="low")
    replay = ReplayModel(path)
    assert isinstance(replay, Model)
    assert (replay.id, replay.context_window, replay.max_output_tokens) == ("openai:gpt-5", 77, 7)
    assert ask(replay, "weather?", tools=(WEATHER,), thinking="low") == recorded
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_requests_are_found_by_what_they_say_and_not_by_their_order(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    model = RecordingModel(ScriptedModel(lambda request: f"to {request.messages[-1].text}"), path)
    for text in ("one", "two", "three"):
        ask(model, text)
    replay = ReplayModel(path)
    assert [answer(replay, text).text for text in ("three", "one", "one", "two")] == [
        "to three",
        "to one",
        "to one",
        "to two",
    ]


def test_an_equal_request_gets_its_answers_in_their_order_and_then_the_last(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    model = RecordingModel(ScriptedModel([Reply(error="503 Service Unavailable"), "now"]), path)
    ask(model, "hi")
    ask(model, "hi")
    replay = ReplayModel(path)
    assert [answer(replay, "hi").stop_reason for _ in range(3)] == ["error", "stop", "stop"]


def test_an_answer_that_was_cut_off_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    model = RecordingModel(ScriptedModel(["first " * 40, "second"]), path)
    ask(model, "hi")
    ask(model, "hi")
    replay = ReplayModel(path)

    async def cut() -> None:
        stream = replay.stream(ModelRequest((UserMessage("hi"),)))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(cut())
    assert answer(replay, "hi").text.startswith("first")
    assert answer(replay, "hi").text == "second"


def test_a_newer_take_of_a_request_replaces_the_older(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    first = RecordingModel(ScriptedModel(["old one", "old two", "only"]), path)
    for text in ("hi", "hi", "there"):
        ask(first, text)
    ask(RecordingModel(ScriptedModel(["new"]), path), "hi")
    replay = ReplayModel(path)
    assert [answer(replay, text).text for text in ("hi", "hi", "there")] == ["new", "new", "only"]


def test_what_differs_each_time_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    image = ImageBlock(media_type="image/png", data=base64.b64encode(b"png").decode())

    def conversation(time: float) -> list[Message]:
        return [
            SystemMessage(sections={"a": "Be terse."}, timestamp=time),
            UserMessage([TextBlock("look"), image], timestamp=time),
            AssistantMessage([CALL], model="m", timestamp=time, duration=time, usage=Usage(cost=time)),
            ToolResultMessage(content="sun", call_id="call-1", tool_name="weather", details={"at": time}),
        ]

    ask(RecordingModel(ScriptedModel(["ok"]), path), *conversation(1.0), session_id="one")
    assert base64.b64encode(b"png").decode() not in path.read_text()
    options = RequestOptions(timeout=3.0, headers={"x": "y"}, cache="long", metadata={"user_id": "me"}, max_retries=2)
    assert answer(ReplayModel(path), *conversation(2.0), session_id="two", options=options).text == "ok"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text": "What is the capital of Norway?"}, "+  What is the capital of Norway?"),
        ({"thinking": "high"}, "+thinking: high"),
        ({"max_tokens": 9}, "+max_tokens: 9"),
        ({"tools": (WEATHER,)}, '+tool weather: "Current weather."'),
        ({"system": "Be kind."}, "+    Be kind."),
        ({"result": "rain"}, "+  rain"),
    ],
)
def test_a_request_that_differs_says_how(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "chat.jsonl"

    def messages(text: str = "What is the capital of France?", system: str = "Be terse.", result: str = "sun") -> Any:
        return (
            SystemMessage(sections={"a": system}),
            UserMessage("weather?"),
            AssistantMessage([CALL], model="m"),
            ToolResultMessage(content=result, call_id="call-1", tool_name="weather"),
            UserMessage(text),
        )

    model = RecordingModel(ScriptedModel(["yes", "no"]), path)
    ask(model, "Something else altogether.")
    ask(model, *messages())
    spoken = {name: change[name] for name in ("text", "system", "result") if name in change}
    asked = {name: value for name, value in change.items() if name not in spoken}
    with pytest.raises(RecordingMismatch) as caught:
        ask(ReplayModel(path), *messages(**spoken), **asked)
    text = str(caught.value)
    assert told in text.splitlines()
    changed = [line for line in text.splitlines()[1:-1] if line.startswith(("-", "+"))]
    assert len(changed) <= 3
    assert "(line 3)" in text
    assert str(path) in text
    assert "record it anew" in text


def test_a_long_difference_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    ask(RecordingModel(ScriptedModel(["yes"]), path), "short")
    with pytest.raises(RecordingMismatch, match=r"… and \d+ more lines"):
        ask(ReplayModel(path), "\n".join(f"line {number}" for number in range(500)))


def test_a_line_that_a_crash_cut_off_is_left_out_and_recording_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    ask(RecordingModel(ScriptedModel(["one"]), path), "one")
    with path.open("ab") as file:
        file.write(b'{"take":"x","requ')
    assert answer(ReplayModel(path), "one").text == "one"
    ask(RecordingModel(ScriptedModel(["two"]), path), "two")
    assert [answer(ReplayModel(path), text).text for text in ("one", "two")] == ["one", "two"]


def test_files_that_are_no_recording_are_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.jsonl cannot be read"):
        ReplayModel(tmp_path / "none.jsonl")
    path = tmp_path / "chat.jsonl"
    ask(RecordingModel(ScriptedModel(["one"]), path), "one")
    with pytest.raises(ModelError, match="is of scripted:demo, not of other:model"):
        RecordingModel(ScriptedModel([], name="other:model"), path)
    whole = path.read_text()
    path.write_text(whole + '{"take": "x", "request": {"messages": [{}]}, "events": [], "message": {}}\n')
    with pytest.raises(ModelError, match=r"chat\.jsonl, line 3: not a recorded exchange"):
        ReplayModel(path)
    path.write_text(whole + "nonsense\n")
    with pytest.raises(ModelError, match=r"chat\.jsonl, line 3: not JSON"):
        ReplayModel(path)
    path.write_text('{"recording": 99, "model": "m"}\n')
    with pytest.raises(ModelError, match="newer version"):
        ReplayModel(path)
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    before = other.read_bytes()
    for kind in (ReplayModel, lambda path: RecordingModel(ScriptedModel([]), path)):
        with pytest.raises(ModelError, match="not"):
            kind(other)
    assert other.read_bytes() == before
    with pytest.raises(ModelError, match="cannot be written"):
        RecordingModel(ScriptedModel([]), tmp_path)


@pytest.mark.parametrize("content", [b'{"cells":[]}', b"hello\nworld", b"\xff\xfe\0"])
def test_a_file_that_is_no_recording_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"notes\.txt"):
        RecordingModel(ScriptedModel([]), path)
    assert path.read_bytes() == content


def test_a_first_line_that_a_crash_cut_off_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'{"recording":')
    RecordingModel(ScriptedModel([]), path)
    assert ReplayModel(path).id == "scripted:demo"


@pytest.mark.parametrize("name", ["model", "context_window", "max_output_tokens"])
def test_a_first_line_without_what_it_must_say_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "chat.jsonl"
    RecordingModel(ScriptedModel([]), path)
    head = json.loads(path.read_text())
    del head[name]
    path.write_text(json.dumps(head) + "\n")
    with pytest.raises(ModelError, match=r"chat\.jsonl.*first line|chat\.jsonl, line 1"):
        ReplayModel(path)


def test_half_a_character_is_recorded_as_the_engine_stores_it(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    ask(RecordingModel(ScriptedModel(["a\ud800"]), path), "b\udfff")
    assert answer(ReplayModel(path), "b\udfff").text == "a\ufffd"


def test_a_name_is_enough_and_one_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    assert RecordingModel("scripted:demo", tmp_path / "a.jsonl").id == "scripted:demo"
    with pytest.raises(UnknownModel, match="not a model's name"):
        RecordingModel("gpt-5", tmp_path / "b.jsonl")
    assert not (tmp_path / "b.jsonl").exists()


def test_what_was_cancelled_or_raised_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    model = RecordingModel(
        ScriptedModel(
            [
                Hang(after="half"),
            ]
        ),
        path,
    )

    async def cut() -> None:
        stream = model.stream(ModelRequest((UserMessage("hi"),)))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(cut())
    with pytest.raises(ModelError):
        ask(model, "hi")
    with pytest.raises(RecordingMismatch, match="holds no request"):
        ask(ReplayModel(path), "hi")


def test_keys_are_never_recorded_whole_or_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "plain-looking-0123456789"
    monkeypatch.setenv("SOME_VENDOR_API_KEY", secret)
    path = tmp_path / "chat.jsonl"
    model = RecordingModel(ScriptedModel([f"your key is {secret} and sk-proj-abcdefghijklmnopqrst {'x' * 99}"]), path)
    options = RequestOptions(headers={"authorization": "Bearer header-value-987654"})
    request = (f"my key is {secret}", ToolResultMessage(content=secret, call_id=secret, tool_name="env"))
    ask(model, *request, options=options)
    written = path.read_text()
    events = json.loads(written.splitlines()[1])["events"]
    for found in (written, "".join(text for _, text in events)):
        for key in (secret, "sk-proj-abcdefghijklmnopqrst", "header-value-987654"):
            assert key not in found
    assert answer(ReplayModel(path), *request, options=options).text.startswith("your key is [redacted]")


def test_deferred_answers_are_recorded_with_their_polls(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    model = RecordingModel(ScriptedModel(["later"], deferred_poll_after=60.0), path)
    deferred = RequestOptions(deferred=True)
    message = answer(model, "hi", options=deferred)
    assert message.deferred is not None
    assert asyncio.run(model.poll(message.deferred)).text == "later"
    asyncio.run(model.cancel(message.deferred))
    replay = ReplayModel(path)
    again = answer(replay, "hi", options=deferred)
    assert again.deferred == message.deferred
    assert asyncio.run(replay.poll(again.deferred)).text == "later"
    with pytest.raises(RecordingMismatch):
        asyncio.run(replay.poll({"other": 1}))


@pytest.mark.parametrize("kind", ["same", "other"])
def test_a_conversation_with_tools_runs_from_a_recording(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "chat.jsonl"

    @tool(replay="safe")
    def weather(city: str) -> str:
        """Current weather."""
        return f"sun over {city}"

    async def talk(model: Model, text: str) -> Any:
        from pidurable_nb import Extension, Registry

        registry = Registry()
        registry.install(Extension("weather", tools=[weather]))
        async with asyncio.timeout(60):
            async with Harness.open(":memory:", models=model, registry=registry, settings=Settings()) as harness:
                root = await harness.root()
                await (await root.submit(text)).wait()
                settled = await (await root.submit("Thanks.")).wait()
                await validate(harness)
                entries = await root.entries(order="ascending").list()
                return settled, [(entry.kind, entry.text) for entry in entries]

    script = ScriptedModel([Reply(tool_calls=[CALL]), "It is sunny.", "You are welcome."])
    settled, recorded = asyncio.run(talk(RecordingModel(script, path), "weather in Oslo?"))
    assert settled.status == "done"
    if kind == "same":
        assert asyncio.run(talk(ReplayModel(path), "weather in Oslo?"))[1] == recorded
    else:
        settled, _ = asyncio.run(talk(ReplayModel(path), "weather in Bergen?"))
        assert (settled.status, settled.reason) == ("unanswered", "model_error")
        assert "-  weather in Oslo?\n+  weather in Bergen?" in settled.detail["message"]
        assert error_kind(AssistantMessage(stop_reason="error", error=settled.detail["message"])) == "other"


def test_a_recording_is_opened_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "chat.jsonl"
    RecordingModel(ScriptedModel([]), path)
    assert os.path.getsize(path) > 0
