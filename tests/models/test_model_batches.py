"""Deferred answers through the batch interfaces of OpenAI and Anthropic, with the vendors' clients, on loopback."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from models_fault_server import Answer, BatchServer, FaultServer, chat, error

from pidurable_nb import Extension, Harness, LiveState, Registry, RequestOptions, Settings, tool
from pidurable_nb.errors import ModelError
from pidurable_nb.messages import AssistantMessage, ToolDeclaration, UserMessage
from pidurable_nb.models import DefaultModels, DeferredModel, Finish, ModelRequest, error_kind
from pidurable_nb.testing import ManualClock, eventually

KEY = "sk-test-0123456789abcdef"
WEATHER = ToolDeclaration(name="weather", description="Current weather.")
CALL = {"call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'}
LATER = RequestOptions(deferred=True)

every_vendor = pytest.mark.parametrize("id", ["openai:gpt-5", "anthropic:claude-sonnet-5"])


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def with_server(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[BatchServer], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), BatchServer(**options) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            await body(server)

    asyncio.run(main())


def model_of(id: str) -> DeferredModel:
    model = DefaultModels().get(id)
    assert isinstance(model, DeferredModel)
    return model


async def ask(model: DeferredModel, **fields: Any) -> AssistantMessage:
    request = ModelRequest((UserMessage("hi"),), **{"options": LATER, **fields})
    (finish,) = [event async for event in model.stream(request)]
    assert isinstance(finish, Finish)
    return finish.message


async def handle_of(model: DeferredModel, **fields: Any) -> dict[str, Any]:
    message = await ask(model, **fields)
    assert message.stop_reason == "deferred", message.error
    assert message.deferred is not None
    return message.deferred


@every_vendor
def test_a_batch_is_sent_asked_for_and_collected_by_another_process(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def body(server: BatchServer) -> None:
        handle = await handle_of(model_of(id), tools=(WEATHER,), thinking="low", max_tokens=2000)
        (sent,) = server.batches.values()
        assert '"hi"' in json.dumps(sent)
        assert "Current weather." in json.dumps(sent)
        assert "2000" in json.dumps(sent)
        waits = [handle["poll_after"]]
        for _ in range(3):
            message = await model_of(id).poll(json.loads(json.dumps(handle)))
            assert message.stop_reason == "deferred"
            assert message.deferred is not None
            handle = message.deferred
            waits.append(handle["poll_after"])
        assert waits == [30.0, 45.0, 67.5, 101.25]
        assert KEY not in json.dumps(handle)
        server.outcome = "done"
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-another-key-of-the-project")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-another-key-of-the-project")
        message = await model_of(id).poll(handle)
        assert (message.text, message.stop_reason, message.model, message.error) == ("later", "stop", id, None)
        assert message.usage.output_tokens > 0
        assert message.usage.cost > 0

    with_server(monkeypatch, body)


@every_vendor
def test_an_answer_may_call_tools(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def body(server: BatchServer) -> None:
        server.outcome = "done"
        message = await model_of(id).poll(await handle_of(model_of(id), tools=(WEATHER,)))
        assert message.stop_reason == "tool_use"
        assert [(call.name, call.arguments) for call in message.tool_calls] == [("weather", {"city": "Oslo"})]

    with_server(monkeypatch, body, call=CALL)


def test_a_batch_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(server: BatchServer) -> None:
        id = "anthropic:claude-sonnet-5"
        server.outcome = "done"
        message = await model_of(id).poll(await handle_of(model_of(id)))
        from genai_prices import Usage, calc_price

        full = calc_price(
            Usage(input_tokens=1000, output_tokens=100), model_ref="claude-sonnet-5", provider_id="anthropic"
        )
        assert 0 < message.usage.cost < float(full.total_price)

    with_server(monkeypatch, body)


@every_vendor
@pytest.mark.parametrize(("outcome", "kind"), [("errored", "malformed"), ("expired", "retryable")])
def test_a_batch_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, id: str, outcome: str, kind: str) -> None:
    async def body(server: BatchServer) -> None:
        handle = await handle_of(model_of(id))
        server.outcome = outcome
        message = await model_of(id).poll(handle)
        assert error_kind(message) == kind, message.error
        assert ("tools[0]: no" if outcome == "errored" else "expired") in (message.error or "")

    with_server(monkeypatch, body)


@every_vendor
def test_a_check_that_fails_is_made_again_and_nothing_is_sent_twice(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def body(server: BatchServer) -> None:
        handle = await handle_of(model_of(id))
        server.outcome = "done"
        for fault, wait in ((error(503, "down"), 45.0), (error(429, "slow down", retry_after="900"), 900.0)):
            server.fault = fault
            message = await model_of(id).poll(handle)
            assert message.stop_reason == "deferred"
            assert message.deferred is not None
            assert message.deferred["poll_after"] == wait
            assert message.deferred["batch"] == handle["batch"]
        assert (await model_of(id).poll(handle)).text == "later"
        assert len(server.batches) == 1
        server.fault = error(404, {"error": {"message": "no such batch"}})
        assert error_kind(await model_of(id).poll(handle)) == "malformed"

    with_server(monkeypatch, body)


@every_vendor
def test_a_key_that_is_missing_or_refused_in_the_morning_is_said(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def body(server: BatchServer) -> None:
        model = model_of(id)
        handle = await handle_of(model)
        server.fault = error(401, {"error": {"message": "bad key"}})
        assert error_kind(await model.poll(handle)) == "authentication"
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL"):
            monkeypatch.delenv(name)
        message = await model.poll(handle)
        assert error_kind(message) == "authentication"
        assert "needs a key" in (message.error or "")

    with_server(monkeypatch, body)


@every_vendor
def test_a_batch_is_cancelled(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def body(server: BatchServer) -> None:
        model = model_of(id)
        handle = await handle_of(model)
        await model.cancel(handle)
        assert server.cancelled == set(server.batches)
        message = await model.poll(handle)
        assert error_kind(message) == "other", message.error
        assert "cancel" in (message.error or "")
        server.fault = error(409, {"error": {"message": "it has ended"}})
        with pytest.raises(ModelError, match="it has ended"):
            await model.cancel(handle)

    with_server(monkeypatch, body)


@every_vendor
def test_what_a_batch_cannot_carry(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    async def body(server: BatchServer) -> None:
        options = RequestOptions(deferred=True, timeout=5.0, max_retries=3, cache="long", metadata={"user_id": "ada"})
        assert (await ask(model_of(id), options=options)).stop_reason == "deferred"
        message = await ask(model_of(id), options=RequestOptions(deferred=True, headers={"x": "y"}))
        assert "cannot carry headers" in (message.error or "")
        message = await model_of(id).poll({"job": 7})
        assert "not that of a batch" in (message.error or "")

    with_server(monkeypatch, body)


def test_a_model_without_batches_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), FaultServer(Answer(chat({"content": "now"}))) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            events = [
                event
                async for event in model_of("openai-chat:gpt-4o").stream(
                    ModelRequest((UserMessage("hi"),), options=LATER)
                )
            ]
            assert isinstance(events[-1], Finish)
            assert events[-1].message.text == "now"

    asyncio.run(main())


# -- in a session ----------------------------------------------------------------------------------------------------


@tool(replay="safe")
def weather(city: str) -> str:
    """Current weather."""
    return f"sun over {city}"


class Night:
    """A session that asks for deferred answers, opened again and again on one file under one clock."""

    def __init__(self, path: Path, id: str) -> None:
        self.path = path
        self.id = id
        self.clock = ManualClock(1_800_000_000.0)
        self.reports: list[Any] = []
        self.registry = Registry()
        self.registry.install(Extension("weather", tools=[weather]))

    def open(self) -> Any:
        return Harness.open(
            self.path,
            models=DefaultModels(),
            registry=self.registry,
            settings=Settings(model=self.id, request=LATER),
            clock=self.clock,
            on_report=self.reports.append,
        )

    async def until_deferred(self, harness: Harness) -> float:
        """When the answer is asked for next."""

        async def found() -> float | None:
            live = await harness.snapshot(LiveState, 1)
            generation = live.generation if live is not None else None
            at = generation.deferred.at if generation is not None and generation.deferred is not None else None
            return at if at is not None and at > self.clock() else None

        await eventually(found, timeout=30)
        at = await found()
        assert at is not None
        return at


@every_vendor
def test_the_kernel_that_comes_back_next_morning_collects_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, id: str
) -> None:
    async def body(server: BatchServer) -> None:
        night = Night(tmp_path / "night.sqlite", id)
        async with night.open() as harness:
            root = await harness.root()
            submission = (await root.submit("What is the weather in Oslo?", request_id="q")).id
            assert await night.until_deferred(harness) == night.clock() + 30.0
            night.clock.advance(30.0)
            harness.resume()
            assert await night.until_deferred(harness) == night.clock() + 45.0
        server.outcome = "done"
        night.clock.advance(8 * 3600.0)
        async with night.open() as harness:
            root = await harness.root()
            harness.resume()
            # the answer of the night calls a tool; what follows it is a batch of its own
            await night.until_deferred(harness)
            server.call = None
            night.clock.advance(30.0)
            harness.resume()
            found = await harness.submission(submission)
            assert found is not None
            settled = await found.wait()
            assert settled.status == "done"
            entries = await root.entries(order="ascending").list()
            assert [entry.text for entry in entries if entry.kind == "pi.tool-result"] == ["sun over Oslo"]
            assert entries[-1].text == "later"
            assert (await harness.usage()).total.cost > 0
        assert len(server.batches) == 2
        assert "sun over Oslo" in json.dumps(list(server.batches.values())[1])

    with_server(monkeypatch, body, call=CALL)


@every_vendor
def test_stopping_a_run_that_waits_cancels_its_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, id: str) -> None:
    async def body(server: BatchServer) -> None:
        night = Night(tmp_path / "night.sqlite", id)
        async with night.open() as harness:
            root = await harness.root()
            submission = await root.submit("hi")
            await night.until_deferred(harness)
            await root.abort()
            assert (await submission.wait()).reason == "aborted"
        assert server.cancelled == set(server.batches) != set()

    with_server(monkeypatch, body)


@every_vendor
def test_a_cancel_that_fails_is_reported_without_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, id: str
) -> None:
    async def body(server: BatchServer) -> None:
        night = Night(tmp_path / "night.sqlite", id)
        async with night.open() as harness:
            root = await harness.root()
            submission = await root.submit("hi")
            await night.until_deferred(harness)
            server.fault = error(500, {"error": {"message": f"no batch for {KEY}", "type": "x"}})
            await root.abort()
            assert (await submission.wait()).reason == "aborted"
        (report,) = night.reports
        assert report.kind == "task_error"
        assert report.error is not None
        said = str(report) + "".join(traceback.format_exception(report.error))
        assert "no batch for [redacted]" in said
        assert KEY not in said

    with_server(monkeypatch, body)


@every_vendor
def test_a_batch_that_expired_is_sent_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, id: str) -> None:
    async def body(server: BatchServer) -> None:
        night = Night(tmp_path / "night.sqlite", id)
        async with night.open() as harness:
            root = await harness.root()
            submission = await root.submit("hi")
            await night.until_deferred(harness)
            server.outcome = "expired"
            night.clock.advance(86_400.0)
            harness.resume()

            async def waits() -> bool:
                live = await harness.snapshot(LiveState, 1)
                return live is not None and live.generation is not None and live.generation.retry is not None

            await eventually(waits, timeout=30)
            server.outcome = "running"
            night.clock.advance(60.0)
            harness.resume()
            await night.until_deferred(harness)
            server.outcome = "done"
            night.clock.advance(60.0)
            harness.resume()
            assert (await submission.wait()).status == "done"
        assert len(server.batches) == 2

    with_server(monkeypatch, body)
