"""Local models: SmolLM2 in llama.cpp, over real HTTP with OpenAI's client; the server ends with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pidurable_nb.errors import ModelError, UnknownModel
from pidurable_nb.messages import AssistantMessage, SystemMessage, ToolDeclaration, ToolResultMessage, UserMessage
from pidurable_nb.models import (
    DefaultModels,
    Finish,
    LocalModel,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
    is_overflow,
    is_retryable,
    local,
    on_progress,
)
from pidurable_nb.models.gguf import read_head

QUESTION = (
    SystemMessage(sections={"a": "You are a helpful assistant."}),
    UserMessage("What is the capital of France?"),
)


@pytest.fixture(scope="module", autouse=True)
def _no_server_is_left() -> Iterator[None]:
    yield
    local.stop_servers()


def smollm2() -> LocalModel:
    model = DefaultModels().get("local:smollm2")
    assert isinstance(model, LocalModel)
    return model


async def ask(model: LocalModel, request: ModelRequest) -> tuple[list[ModelEvent], AssistantMessage]:
    async with asyncio.timeout(120):
        events = [event async for event in model.stream(request)]
    finish = events[-1]
    assert isinstance(finish, Finish)
    return events, finish.message


def process_of(model: LocalModel) -> subprocess.Popen[bytes]:
    process = local._servers[model._options].process
    assert process is not None
    return process


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a zombie waits only for whoever adopted it
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return sys.platform != "linux"


def test_names_that_cannot_work_say_why(tmp_path: Path) -> None:
    source = DefaultModels()
    with pytest.raises(UnknownModel, match=r"is local:smollm2, or local: and the path of a \.gguf file"):
        source.get("local:llama")
    with pytest.raises(UnknownModel, match="there is no file"):
        source.get(f"local:{tmp_path}/none.gguf")
    (tmp_path / "other.gguf").write_bytes(b"PNG")
    with pytest.raises(UnknownModel, match="is not a GGUF file"):
        source.get(f"local:{tmp_path}/other.gguf")


@pytest.mark.local_model
def test_an_answer_streams_over_http_through_any_proxy_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    progress: list[tuple[float, str]] = []
    end = on_progress(lambda fraction, text: progress.append((fraction, text)))
    local.stop_servers()
    model = smollm2()
    events, message = asyncio.run(ask(model, ModelRequest(QUESTION)))
    end()
    assert "Paris" in message.text
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(deltas) >= 5
    assert "".join(deltas) == message.text
    assert (message.stop_reason, message.model) == ("stop", "local:smollm2")
    assert message.usage.total_tokens > 20
    assert message.usage.output_tokens >= 5
    assert message.usage.cost == 0.0
    fractions = [fraction for fraction, _ in progress]
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert fractions == sorted(fractions)
    assert any("98 MB" in text for _, text in progress)


@pytest.mark.local_model
def test_one_server_serves_many_loops_and_answers_the_same() -> None:
    model = smollm2()
    answers = [asyncio.run(ask(model, ModelRequest(QUESTION)))[1].text for _ in range(2)]
    pid = process_of(model).pid
    assert answers[0] == answers[1]
    asyncio.run(ask(smollm2(), ModelRequest(QUESTION, max_tokens=3)))
    assert process_of(model).pid == pid


@pytest.mark.local_model
def test_a_limit_of_tokens_is_a_stop_reason() -> None:
    _, message = asyncio.run(ask(smollm2(), ModelRequest((UserMessage("Tell me a long story."),), max_tokens=4)))
    assert message.stop_reason == "length"
    assert message.usage.output_tokens == 4


@pytest.mark.local_model
def test_cancelling_frees_the_server_for_the_next_request() -> None:
    async def main() -> None:
        model = smollm2()
        long = ModelRequest((UserMessage("Write a very long story about a lighthouse."),), max_tokens=3000)
        arrived = asyncio.Event()

        async def read() -> None:
            async for _ in model.stream(long):
                arrived.set()

        reader = asyncio.create_task(read())
        async with asyncio.timeout(60):
            await arrived.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        # One request is served at a time: this one would wait for 3,000 tokens if the other went on.
        start = time.monotonic()
        _, message = await ask(model, ModelRequest(QUESTION, max_tokens=8))
        assert "Paris" in message.text
        assert time.monotonic() - start < 8.0

    asyncio.run(main())


@pytest.mark.local_model
def test_a_request_longer_than_the_context_is_an_overflow() -> None:
    _, message = asyncio.run(ask(smollm2(), ModelRequest((UserMessage("word " * 6000),))))
    assert message.stop_reason == "error"
    assert message.error is not None
    assert message.error.startswith("HTTP 400")
    assert is_overflow(message, 4096)
    assert not is_retryable(message)


@pytest.mark.local_model
def test_a_server_that_dies_in_an_answer_is_a_retryable_error_and_is_replaced() -> None:
    async def main() -> None:
        model = smollm2()
        await model.start()
        process = process_of(model)
        request = ModelRequest((UserMessage("Write a very long story about a lighthouse."),), max_tokens=3000)
        events: list[ModelEvent] = []
        async with asyncio.timeout(60):
            async for event in model.stream(request):
                events.append(event)
                if len(events) == 3:
                    process.kill()
        finish = events[-1]
        assert isinstance(finish, Finish)
        assert finish.message.stop_reason == "error"
        assert is_retryable(finish.message), finish.message.error
        assert "llama.cpp was killed: the machine may have run out of memory" in (finish.message.error or "")
        assert until(lambda: process.poll() is not None)
        _, message = await ask(model, ModelRequest(QUESTION))
        assert "Paris" in message.text
        assert process_of(model).pid != process.pid

    asyncio.run(main())


@pytest.mark.local_model
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    weights = smollm2().path.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(weights[:100_000])
    model = DefaultModels().get(f"local:{damaged}")
    assert isinstance(model, LocalModel)

    async def main() -> None:
        events, message = await ask(model, ModelRequest(QUESTION))
        assert len(events) == 1
        assert message.stop_reason == "error"
        assert message.error is not None
        assert str(damaged) in message.error
        assert not is_retryable(message)
        with pytest.raises(ModelError, match=r"damaged\.gguf"):
            await model.start()

    asyncio.run(main())


@pytest.mark.local_model
def test_a_file_by_its_path_is_a_model() -> None:
    path = smollm2().path
    model = DefaultModels().get(f"local:{path}")
    assert isinstance(model, LocalModel)
    _, message = asyncio.run(ask(model, ModelRequest(QUESTION)))
    assert "Paris" in message.text
    assert message.model == f"local:{path}"


# -- tools -----------------------------------------------------------------------------------------------------------

TOOLS = r"""
{%- if tools %}<|im_start|>system
You may call functions. They are within <tools></tools>:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
For each call, return a JSON object within <tool_call></tool_call> tags:
<tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call><|im_end|>
{%- for city in ["Paris", "Rome"] %}
<|im_start|>user
What is the weather in {{ city }}?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "weather", "arguments": {"city": "{{ city }}"}}
</tool_call><|im_end|>
{%- endfor %}
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.tool_calls %}<|im_start|>assistant
{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
"""A template that takes tools, as those of larger models do; this small model needs to see how it is done."""

WEATHER = ToolDeclaration(
    name="weather",
    description="Current weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.mark.local_model
def test_a_model_whose_template_takes_tools_calls_them_and_reads_their_results() -> None:
    model = LocalModel("local:tools", smollm2().path, chat_template=TOOLS, context_window=2048)
    asked = UserMessage("What is the weather in Oslo?")
    events, message = asyncio.run(ask(model, ModelRequest((asked,), tools=(WEATHER,), max_tokens=100)))
    assert message.stop_reason == "tool_use", message
    (call,) = message.tool_calls
    assert (call.name, call.arguments) == ("weather", {"city": "Oslo"})
    assert any(isinstance(event, ToolCallDelta) and event.name == "weather" for event in events)

    result = ToolResultMessage(call_id=call.id, tool_name="weather", content="It is sunny in Oslo.")
    _, message = asyncio.run(ask(model, ModelRequest((asked, message, result), tools=(WEATHER,), max_tokens=40)))
    assert message.error is None
    assert message.usage.input_tokens + message.usage.cache_read_tokens > 100  # tools, call and result were read


@pytest.mark.local_model
def test_tools_do_not_trouble_a_model_whose_template_takes_none() -> None:
    _, message = asyncio.run(ask(smollm2(), ModelRequest(QUESTION, tools=(WEATHER,))))
    assert (message.stop_reason, message.tool_calls) == ("stop", [])
    assert "Paris" in message.text


# -- memory ----------------------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    (kilobytes,) = [
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    ]
    return int(kilobytes) * 1024


@pytest.mark.local_model
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_model_that_nobody_asks_leaves_memory_and_comes_back() -> None:
    model = LocalModel("local:idle", smollm2().path, idle_timeout=1.0)
    _, first = asyncio.run(ask(model, ModelRequest(QUESTION)))
    process = process_of(model)
    loaded = resident(process.pid)
    assert until(lambda: resident(process.pid) < loaded - 100e6, 60.0), f"{loaded} then {resident(process.pid)}"
    assert process.poll() is None
    _, again = asyncio.run(ask(model, ModelRequest(QUESTION)))
    assert again.text == first.text
    assert process_of(model).pid == process.pid


@pytest.mark.local_model
def test_the_head_of_a_file_says_how_much_memory_it_takes(tmp_path: Path) -> None:
    path = smollm2().path
    head = read_head(path)
    assert head is not None
    # 30 layers, 3 heads of their own of 64 numbers each, a key and a value of two bytes
    assert (head.context, head.per_token) == (8192, 30 * 3 * 64 * 2 * 2)
    assert head.memory(4096) == path.stat().st_size + 4096 * 30 * 3 * 64 * 2 * 2
    damaged = tmp_path / "damaged.gguf"
    for end in (4, 5, 30, 200):
        damaged.write_bytes(path.read_bytes()[:end])
        assert read_head(damaged) is not None
        assert LocalModel("local:damaged", damaged).context_window == local.CONTEXT


@pytest.mark.local_model
def test_too_little_memory_is_said_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "free_memory", lambda: 90_000_000)
    model = LocalModel("local:large", smollm2().path, context_window=2000)
    _, message = asyncio.run(ask(model, ModelRequest(QUESTION)))
    assert message.error is not None
    assert "needs about 0.1 GB of memory (98 MB of weights, 46 MB for 2,000 tokens of context)" in message.error
    assert "90 MB are free" in message.error
    assert not is_retryable(message)
    monkeypatch.setattr(local, "free_memory", lambda: None)
    _, message = asyncio.run(ask(model, ModelRequest(QUESTION, max_tokens=5)))
    assert message.error is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_free_memory_is_known() -> None:
    free = local.free_memory()
    assert free is not None
    assert 1e6 < free < 1e14


CHILD = """
import asyncio, os, sys, time
from pidurable_nb.models import default_models, local
model = default_models.get("local:smollm2")
asyncio.run(model.start())
print(local._servers[model._options].process.pid, flush=True)
{then}
"""


def parent_that(then: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen([sys.executable, "-c", CHILD.format(then=then)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        return parent, int(parent.stdout.readline())


@pytest.mark.local_model
@pytest.mark.parametrize(
    "then",
    ["time.sleep(600)", "if os.fork() == 0: time.sleep(10); os._exit(0)\ntime.sleep(600)"],
    ids=["plain", "forked"],
)
def test_killing_the_parent_leaves_no_server(then: str) -> None:
    parent, pid = parent_that(then)
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=10)
    assert until(lambda: not alive(pid)), "the server outlived its parent"


@pytest.mark.local_model
def test_the_end_of_the_parent_ends_the_server_and_is_quick() -> None:
    parent, pid = parent_that("")
    start = time.monotonic()
    assert parent.wait(timeout=10) == 0
    assert time.monotonic() - start < 3.0
    assert until(lambda: not alive(pid))
