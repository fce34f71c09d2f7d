"""A turn: preparation, request, partials, retry, deferral, the end of a response (engine.md, section 11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from pidurable_nb import (
    Continue,
    GenerationHooks,
    Harness,
    LiveState,
    Phase,
    ProgressPolicy,
    RequestOptions,
    RetryPolicy,
    Settings,
    SqliteStorage,
    Task,
    TaskRun,
    run_end_task,
    section,
    tool,
)
from pidurable_nb.agent.generation import GenerationTask
from pidurable_nb.errors import StorageError, Unanswered
from pidurable_nb.messages import AssistantMessage, TextBlock, ThinkingBlock, ToolCall, Usage, UserMessage
from pidurable_nb.models import (
    Finish,
    Hang,
    ModelRequest,
    Reply,
    ScriptedModel,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)
from pidurable_nb.records import Pending, Running, checkpoint_of_task
from pidurable_nb.storage import PutTask
from pidurable_nb.testing import KillSwitch, ManualClock

from .support import Chat, GatedStorage, bounded, call, calls, eventually, forever, kinds, live, results, turns


class Streaming:
    """A model whose deltas a test hands over one by one; ``None`` ends the stream."""

    id = "fake:streaming"
    context_window = 100_000
    max_output_tokens = 1000

    def __init__(self) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        while (event := await self.events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def give(self, *events: Any) -> None:
        for event in events:
            self.events.put_nowait(event)

    def finish(self, text: str, **fields: Any) -> None:
        self.give(Finish(AssistantMessage([TextBlock(text)], **fields)))


def streaming(**options: Any) -> tuple[Chat, Streaming]:
    chat = Chat(**options)
    model = Streaming()
    chat.models = model
    return chat, model


async def message_of(conversation: Any, index: int = -1) -> AssistantMessage:
    entries = await conversation.entries(order="ascending").list()
    message = [entry for entry in entries if entry.kind == "pi.assistant"][index].messages[0]
    assert isinstance(message, AssistantMessage)
    return message


async def partial(harness: Any, conversation: Any) -> str | None:
    generation = (await live(harness, conversation)).generation
    return None if generation is None or generation.message is None else generation.message.text


# -- preparation -------------------------------------------------------------------------------------------------------


@bounded
async def test_without_a_model_or_with_an_unknown_one_the_run_ends_no_model() -> None:
    chat = Chat()
    chat.models = ()
    async with chat.open() as (harness, root):
        record = await (await root.submit("hi")).wait()
        assert (record.status, record.reason) == ("unanswered", "no_model")
        assert "configure(model" in record.detail["message"]
        await root.configure(model="scripted:unknown")
        record = await (await root.submit("hi")).wait()
        assert record.reason == "no_model"
        assert "scripted:unknown" in record.detail["message"]
        state = await live(harness, root)
        assert state.run_failure is not None
        assert state.run_failure.reason == "no_model"


@bounded
async def test_the_checkpoint_pins_the_request_and_its_start_is_exact() -> None:
    clock = ManualClock(5.0)
    chat = Chat(Hang(), clock=clock)
    chat.settings = Settings(thinking="high", request=RequestOptions(timeout=3.0, metadata={"k": 1}))
    async with chat.open() as (harness, root):
        await root.submit("hi")
        await eventually(lambda: len(chat.model.requests) == 1)
        [task] = await harness.tasks(kind="pi.generation").list()
        checkpoint = checkpoint_of_task(task)
        assert checkpoint is not None
        assert checkpoint == {
            "phase": "request",
            "attempt": 1,
            "model": "scripted:demo",
            "thinking": "high",
            "options": {
                "timeout": 3.0,
                "headers": {},
                "metadata": {"k": 1},
                "cache": "default",
                "deferred": False,
            },
            "cutoff": checkpoint["cutoff"],
        }
        generation = (await live(harness, root)).generation
        assert generation is not None
        assert (generation.attempt, generation.model, generation.started_at) == (1, "scripted:demo", 5.0)
        assert GenerationTask.initial_checkpoint(None) == {"phase": "prepare", "attempt": 1}
        await root.abort()


def holds(file: str, words: bytes) -> bool:
    return words in Path(file).read_bytes()


@bounded
async def test_a_header_with_a_key_is_sent_and_never_stored(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    chat = Chat(Hang(), "answer", path=path)

    def with_key(key: str, tenant: str) -> Settings:
        headers = {"Authorization": f"Bearer {key}", "x-tenant": tenant}
        return Settings(request=RequestOptions(headers=headers))

    chat.settings = with_key("planted-1111111111", "blue")
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: len(chat.model.requests) == 1)
        await harness.close()
    chat.settings = with_key("planted-2222222222", "green")
    async with chat.open() as (harness, root):
        found = await harness.submission(submission.id)
        assert found is not None
        await found.wait()
    sent = [request.options.headers for request in chat.model.requests]
    assert sent == [  # the header of the tenant is pinned, the key is the one that there is now
        {"Authorization": "Bearer planted-1111111111", "x-tenant": "blue"},
        {"Authorization": "Bearer planted-2222222222", "x-tenant": "blue"},
    ]
    assert [name for name in glob(f"{path}*") if holds(name, b"planted-")] == []


@bounded
async def test_what_comes_after_the_cutoff_is_not_in_the_request_that_is_sent_again(tmp_path: Path) -> None:
    chat = Chat(Hang(), "answer", path=tmp_path / "s.sqlite")
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: len(chat.model.requests) == 1)
        async with root.commit() as tx:  # as a host may do at any time
            await tx.append_entry("app.late", messages=[UserMessage([TextBlock("late")])])
        await harness.close()
    async with chat.open() as (harness, root):
        found = await harness.submission(submission.id)
        assert found is not None
        await found.wait()
        assert chat.model.requests[0].messages == chat.model.requests[1].messages
        assert chat.model.requests[0].session_id == chat.model.requests[1].session_id is not None


@bounded
async def test_recovery_sends_the_pinned_request_asks_the_hooks_again_and_prepares_nothing_again(
    tmp_path: Path,
) -> None:
    rendered: list[str] = []
    hooked: list[int] = []

    def text(_given: Any) -> str:
        rendered.append("x")
        return f"rendered {len(rendered)}"

    def before(messages: Any, _ctx: Any) -> Any:
        hooked.append(len(messages))
        return [*messages, UserMessage([TextBlock(f"hooked {len(hooked)}")])]

    chat = Chat(Hang(), "answer", "next", path=tmp_path / "s.sqlite")
    chat.settings = Settings(thinking="low", request=RequestOptions(max_tokens=7))
    chat.install(name="h", sections=[section("s", text, tag=False)], hooks=[GenerationHooks(before_request=before)])
    async with chat.open() as (harness, root):
        await root.submit("hi", request_id="r")
        await eventually(lambda: len(chat.model.requests) == 1)
        await harness.close()
    chat.settings = Settings(thinking="high", request=RequestOptions(max_tokens=8))
    async with chat.open() as (harness, root):
        await (await root.submit("hi", request_id="r")).wait()
        first, second = chat.model.requests
        assert (second.thinking, second.options, second.max_tokens) == ("low", first.options, 7)
        assert second.messages[:-1] == first.messages[:-1]
        assert [request.messages[-1].text for request in (first, second)] == ["hooked 1", "hooked 2"]
        assert (len(rendered), len(hooked)) == (1, 2)
        assert await kinds(root) == ["pi.user", "pi.system", "pi.assistant"]
        assert (await message_of(root)).thinking == "low"
        await root.ask("again")
        assert chat.model.requests[-1].thinking == "high"


@bounded
async def test_hooks_of_the_end_run_again_when_the_process_died_before_their_commit(tmp_path: Path) -> None:
    seen: list[str] = []
    waiting: asyncio.Event | None = asyncio.Event()

    async def hook(*given: Any) -> None:
        seen.append(type(given[0]).__name__)
        if waiting is not None and len(seen) == 3:  # after_response, on_yield, after_run: the commit would follow
            waiting.set()
            await forever()

    chat = Chat(lambda request: "answer", path=tmp_path / "s.sqlite")
    chat.install(hooks=[GenerationHooks(after_response=hook, on_yield=hook, after_run=hook)])
    async with chat.open() as (harness, root):
        await root.submit("hi", request_id="r")
        await waiting.wait()
        await harness.close()
    waiting = None
    async with chat.open() as (_, root):
        assert (await (await root.submit("hi", request_id="r")).wait()).status == "done"
        assert seen == ["AssistantMessage", "AssistantMessage", "LiveRun"] * 2


# -- the stream --------------------------------------------------------------------------------------------------------


@bounded
async def test_the_first_delta_commits_at_once_and_later_ones_at_the_interval() -> None:
    chat, model = streaming()
    chat.settings = Settings(progress=ProgressPolicy(partial_interval=0.05))
    async with chat.open() as (harness, root), root.watch() as watch:
        submission = await root.submit("hi")
        model.give(ThinkingDelta("hm"), TextDelta("a"))
        await eventually(lambda: partial(harness, root))
        before = harness.storage.last_seq
        for n in range(200):
            model.give(TextDelta(f" {n}"))
            await asyncio.sleep(0.001)
        commits = harness.storage.last_seq - before
        assert 2 <= commits <= 20
        model.finish("final")
        await submission.wait()
        seen = []
        while watch._frames:
            generation = (await anext(watch)).value.live.generation
            if generation is not None and generation.message is not None:
                seen.append(generation.message)
        assert seen[0].content[0] == ThinkingBlock("hm")
        texts = [message.text for message in seen]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        message = await message_of(root)
        assert (message.text, message.stop_reason, message.model) == ("final", "stop", "fake:streaming")


@bounded
async def test_a_stream_that_raises_or_ends_early_is_stored_as_an_error() -> None:
    chat, model = streaming()
    chat.settings = Settings(retry=RetryPolicy(enabled=False))
    async with chat.open() as (harness, root):
        for end, words in ((LookupError("cut"), "LookupError: cut"), (None, "ended before the answer was finished")):
            submission = await root.submit("hi")
            model.give(TextDelta("half an answer"), end)
            record = await submission.wait()
            assert record.reason == "model_error"
            assert words in record.detail["message"]
            message = await message_of(root)
            assert (message.text, message.stop_reason) == ("half an answer", "error")
            assert words in (message.error or "")
        assert await kinds(root) == ["pi.user", "pi.assistant"] * 2  # the partial is not kept twice
        assert (await live(harness, root)).generation is None


@bounded
async def test_calls_of_a_stream_that_broke_off_are_not_kept() -> None:
    class Broken:
        id = "fake:broken"
        context_window = max_output_tokens = 1000

        async def stream(self, _request: ModelRequest) -> AsyncIterator[Any]:
            yield TextDelta("half")
            yield ToolCallDelta(id="c", name="work")
            raise ValueError("broke off")

    chat = Chat()
    chat.models = Broken()
    async with chat.open() as (_, root):
        await (await root.submit("hi")).wait()
        message = await message_of(root)
        assert (message.stop_reason, message.content) == ("error", [TextBlock("half")])


@bounded
async def test_a_bare_iterator_is_a_stream_too() -> None:
    class Bare:
        id = "fake:bare"
        context_window = max_output_tokens = 1000

        def stream(self, request: Any) -> Any:
            return self

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            return Finish(AssistantMessage([TextBlock("bare")]))

    chat = Chat()
    chat.models = Bare()
    async with chat.open() as (_, root):
        assert (await root.ask("hi")).text == "bare"


@bounded
async def test_close_commits_what_has_arrived_before_it_stops_the_stream(tmp_path: Path) -> None:
    chat, model = streaming(path=tmp_path / "s.sqlite")
    chat.settings = Settings(progress=ProgressPolicy(partial_interval=60))
    async with chat.open() as (harness, root):
        await root.submit("hi")
        model.give(TextDelta("first"))
        await eventually(lambda: partial(harness, root))
        model.give(TextDelta(" second"), TextDelta(" third"))
        await eventually(model.events.empty)
        await asyncio.sleep(0)
        await harness.close()
    async with chat.open() as (harness, root):
        assert await partial(harness, root) == "first second third"
        model.finish("answer")
        await root.wait_for_idle()
        assert [m.text for m in [await message_of(root, 0), await message_of(root, 1)]] == [
            "first second third",
            "answer",
        ]
        assert (await message_of(root, 0)).stop_reason == "aborted"


@bounded
async def test_abort_commits_what_has_arrived_before_it_stops_the_stream() -> None:
    chat, model = streaming()
    chat.settings = Settings(progress=ProgressPolicy(partial_interval=60))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        model.give(TextDelta("first"))
        await eventually(lambda: partial(harness, root))
        model.give(TextDelta(" second"), ThinkingDelta(" hm"))
        await eventually(model.events.empty)
        await asyncio.sleep(0)
        await root.abort()
        message = await message_of(root)
        assert message.content == [TextBlock("first second"), ThinkingBlock(" hm")]
        assert message.stop_reason == "aborted"
        assert (await submission.status()).reason == "aborted"


@bounded
async def test_abort_of_a_turn_that_ends_at_that_moment_is_no_error() -> None:
    """What has arrived is committed with the answer, before the abort comes to it."""
    storage = GatedStorage()
    chat, model = streaming()
    chat.settings = Settings(progress=ProgressPolicy(partial_interval=60))
    async with chat.open(storage) as (harness, root):
        submission = await root.submit("hi")
        model.give(TextDelta("first"))
        await eventually(lambda: partial(harness, root))
        model.give(TextDelta(" second"))
        await eventually(model.events.empty)
        run = (await live(harness, root)).run
        assert run is not None
        storage.hold()  # the answer is on its way to storage
        asked = storage.asked
        model.finish("first second third")
        await eventually(lambda: storage.asked > asked)
        aborting = asyncio.create_task(harness.abort_task(run.task))
        await turns(20)
        storage.release()
        assert await aborting == "terminal"
        assert (await submission.status()).status == "done"
        assert await kinds(root) == ["pi.user", "pi.assistant"]


@bounded
async def test_a_crash_keeps_the_committed_partial_and_asks_exactly_once_more(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    chat, model = streaming(path=path)
    switch = KillSwitch(await SqliteStorage.open(path))
    harness = await Harness.open(switch, models=model)
    root = await harness.root()
    submission = await root.submit("hi", request_id="r")
    model.give(TextDelta("seen by somebody"))
    await eventually(lambda: partial(harness, root))
    switch.kill()
    before = len(model.requests)
    chat.models = model = Streaming()  # the dead session's stream still listens to the other
    async with chat.open() as (again, root):
        state = await live(again, root)
        assert state.generation is not None
        assert state.generation.message is not None
        assert state.generation.message.text == "seen by somebody"
        model.finish("answer")
        assert (await (await root.submit("hi", request_id="r")).wait()).id == submission.id
        assert await kinds(root) == ["pi.user", "pi.assistant", "pi.assistant"]
        assert (before, len(model.requests)) == (1, 1)
        [task] = await again.tasks(kind="pi.generation").list()
        attempts = await again.storage.attempts(task=task.id)
        assert [(a.phase, a.end) for a in attempts] == [("prepare", "cut_off"), ("request", "ended")]
        assert attempts[0].life < attempts[1].life
        assert [life.ended for life in await again.storage.lives()] == [None, None]


@bounded
async def test_a_storage_that_fails_under_a_partial_fails_the_session_and_not_the_answer(tmp_path: Path) -> None:
    storage = GatedStorage(await SqliteStorage.open(tmp_path / "s.sqlite"))
    chat, model = streaming(path=tmp_path / "s.sqlite")
    async with chat.open(storage) as (harness, root):
        await root.submit("hi")
        await eventually(lambda: len(model.requests) == 1)
        storage.fail("commit", StorageError("disk on fire"))
        model.give(TextDelta("lost"))
        end = await harness.wait_closed()
        assert end.reason == "failed"
    async with chat.open() as (_, root):
        assert await kinds(root) == ["pi.user"]
        model.finish("answer")
        await root.wait_for_idle()
        assert await kinds(root) == ["pi.user", "pi.assistant"]


@bounded
async def test_usage_is_counted_for_errors_retries_and_answers() -> None:
    used = Usage(input_tokens=10, output_tokens=1, cost=0.1)
    chat = Chat(Reply(error="503", usage=used), Reply("fine", usage=used), Reply(error="400", usage=used))
    chat.settings = Settings(retry=RetryPolicy(base_delay=0.0))
    async with chat.open() as (harness, root):
        await root.ask("hi")
        await (await root.submit("again")).wait()
        other = await harness.create_conversation()
        usage = await harness.usage()
        assert usage.requests == 3
        assert usage.models["scripted:demo"].total_tokens == 33
        assert round(usage.total.cost, 6) == 0.3
        assert (await other.view()).usage.requests == 0


# -- retry and deferral ------------------------------------------------------------------------------------------------


@bounded
async def test_retryable_errors_back_off_exponentially_up_to_a_cap_and_then_fail() -> None:
    clock = ManualClock(100.0)
    chat = Chat(lambda request: Reply(error="429 rate limit"), clock=clock)
    chat.settings = Settings(retry=RetryPolicy(max_retries=4, base_delay=2.0, max_delay=10.0))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        waits = []
        for attempt in range(1, 5):

            async def backing_off(attempt: int = attempt) -> Any:
                generation = (await live(harness, root)).generation
                return generation is not None and generation.attempt == attempt and generation.retry

            retry = await eventually(backing_off)
            waits.append(retry.at - clock())
            assert harness.wake().at == retry.at
            clock.set(retry.at)
            harness.resume()
        record = await submission.wait()
        assert waits == [2.0, 4.0, 8.0, 10.0]
        assert (record.reason, len(chat.model.requests)) == ("model_error", 5)
        assert await kinds(root) == ["pi.user"] + ["pi.assistant"] * 5
        assert chat.asked() == ["user: hi"]


@bounded
async def test_the_live_state_shows_a_back_off_a_deferral_and_a_failed_run() -> None:
    clock = ManualClock(100.0)
    chat = Chat(Reply(error="503 busy"), Reply(error="400 no"), clock=clock)
    chat.settings = Settings(retry=RetryPolicy(base_delay=10.0))

    async def generation(harness: Any, root: Any) -> Any:
        found = (await live(harness, root)).generation
        return found if found is not None and (found.retry is not None or found.deferred is not None) else None

    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        found = await eventually(lambda: generation(harness, root))
        assert (found.attempt, found.message, found.deferred) == (1, None, None)
        assert (found.retry.at, found.retry.error) == (110.0, "503 busy")
        clock.set(110.0)
        record = await submission.wait()
        state = await live(harness, root)
        assert (state.run, state.generation) == (None, None)
        assert state.run_failure is not None
        assert (state.run_failure.reason, state.run_failure.first) == ("model_error", record.entry)
        assert state.run_failure.detail == {"message": "400 no"}
    chat = Chat("later", clock=clock, deferred_poll_after=60.0)
    chat.settings = Settings(request=RequestOptions(deferred=True))
    async with chat.open() as (harness, root):
        await root.submit("hi")
        found = await eventually(lambda: generation(harness, root))
        assert (found.retry, found.deferred.at, found.deferred.model) == (None, 170.0, "scripted:demo")
        await root.abort()
        assert await live(harness, root) == LiveState(run_failure=(await live(harness, root)).run_failure)


@bounded
async def test_a_back_off_is_as_long_as_the_provider_asks_for() -> None:
    clock = ManualClock(100.0)
    chat = Chat(Reply(error="429 rate limit: retry after 45 seconds"), "fine", clock=clock)
    chat.settings = Settings(retry=RetryPolicy(base_delay=2.0))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: harness.wake().at == 145.0)
        clock.set(145.0)
        assert (await submission.wait()).status == "done"


@bounded
async def test_the_next_attempt_prepares_again_with_what_holds_then() -> None:
    """Section 11: after its sleep a retry prepares again: model, thinking, options and prompt are read anew."""
    clock = ManualClock(100.0)
    text = "before"
    chat = Chat(Reply(error="503"), clock=clock, name="scripted:one")
    two = ScriptedModel(["fine"], name="scripted:two")
    chat.models = [chat.model, two]
    chat.settings = Settings(model="scripted:one", thinking="low", retry=RetryPolicy(base_delay=60.0))
    chat.install(sections=[section("s", lambda given: text, tag=False)])
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: harness.wake().at == 160.0)
        text = "after"
        chat.settings = Settings(model="scripted:two", thinking="high", request=RequestOptions(max_tokens=9))
        for _ in range(3):  # an early wake does nothing
            harness.resume()
            await harness.storage.lives()
        assert (len(chat.model.requests), harness.wake().at) == (1, 160.0)
        clock.set(160.0)
        assert (await submission.wait()).status == "done"
        [asked] = two.requests
        assert (asked.thinking, asked.max_tokens) == ("high", 9)
        assert [message.text for message in asked.messages] == ["before", "hi", "after"]
        assert await kinds(root) == ["pi.user", "pi.system", "pi.assistant", "pi.system", "pi.assistant"]
        generation = [attempt.phase for attempt in await harness.storage.attempts()]
        assert generation == ["prepare", "retry"]


@bounded
async def test_an_error_that_is_not_retryable_fails_at_once() -> None:
    chat = Chat(Reply(error="401 invalid key"))
    async with chat.open() as (_, root):
        record = await (await root.submit("hi")).wait()
        assert (record.reason, record.detail["message"]) == ("model_error", "401 invalid key")
        assert len(chat.model.requests) == 1


@bounded
async def test_aborting_a_back_off_and_a_poll_ends_them() -> None:
    clock = ManualClock(1.0)
    for deferred in (False, True):
        chat = Chat(
            "later" if deferred else Reply(error="503"), clock=clock, deferred_poll_after=60.0 if deferred else None
        )
        chat.settings = Settings(request=RequestOptions(deferred=deferred))
        async with chat.open() as (harness, root):
            submission = await root.submit("hi")
            await eventually(lambda harness=harness: harness.wake().at is not None)
            await root.abort()
            record = await submission.status()
            assert (record.status, record.reason) == ("unanswered", "aborted")
            assert len(chat.model.cancels) == deferred
            assert harness.wake().at is None


@bounded
async def test_a_deferred_answer_is_polled_until_it_is_there() -> None:
    clock = ManualClock(1.0)
    polls: list[Any] = []

    class Later:
        id = "fake:later"
        context_window = max_output_tokens = 1000

        async def stream(self, request: Any) -> Any:
            yield Finish(AssistantMessage(stop_reason="deferred", deferred={"job": 7, "poll_at": 10.0}))

        async def poll(self, handle: Any) -> AssistantMessage:
            polls.append(dict(handle))
            if len(polls) < 3:
                return AssistantMessage(stop_reason="deferred", deferred={"job": 7, "poll_after": 5})
            return AssistantMessage([TextBlock("at last")])

        async def cancel(self, handle: Any) -> None: ...

    chat = Chat(clock=clock)
    chat.models = Later()
    chat.settings = Settings(thinking="low", request=RequestOptions(deferred=True))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        for at in (10.0, 15.0, 20.0):
            await eventually(lambda at=at: harness.wake().at == at)
            generation = (await live(harness, root)).generation
            assert generation is not None
            assert generation.deferred is not None
            assert generation.deferred.at == at
            clock.set(at)
            harness.resume()
        await submission.wait()
        assert len(polls) == 3
        message = await message_of(root)
        assert (message.text, message.thinking, message.model) == ("at last", "low", "fake:later")
        assert await kinds(root) == ["pi.user", "pi.assistant"]


@bounded
async def test_a_model_that_cannot_poll_and_a_poll_that_raises_fail_the_run() -> None:
    clock = ManualClock(1.0)
    chat = Chat("later", clock=clock, deferred_poll_after=1.0)
    chat.settings = Settings(request=RequestOptions(deferred=True))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: harness.wake().at == 2.0)

        async def broken(handle: Any) -> Any:
            raise LookupError("gone")

        chat.model.poll = broken  # type: ignore[method-assign]
        clock.set(2.0)
        harness.resume()
        record = await submission.wait()
        assert (record.reason, record.detail["message"]) == ("model_error", "LookupError: gone")


async def rewrite(path: Path, change: Any) -> None:
    """Change the one live generation in a closed file, as an earlier version may have left it."""
    storage = await SqliteStorage.open(path)
    page = await storage.scan_tasks(kind="pi.generation", status=("pending", "running", "sleeping"))
    [task] = page.items
    await storage.commit([PutTask(task.replaced(state=change(task)))])
    await storage.close()


@bounded
async def test_a_retry_that_an_earlier_version_stored_as_running_goes_back_to_sleep(tmp_path: Path) -> None:
    clock = ManualClock(1.0)
    path = tmp_path / "s.sqlite"
    chat = Chat(Reply(error="503"), "fine", clock=clock, path=path)
    chat.settings = Settings(retry=RetryPolicy(base_delay=60.0))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: harness.wake().at == 61.0)
    await rewrite(path, lambda task: Running(checkpoint=task.state.checkpoint))
    async with chat.open() as (harness, root):
        harness.resume()
        await eventually(lambda: harness.wake() == type(harness.wake())(False, 61.0))
        [task] = await harness.tasks(kind="pi.generation").list()
        assert task.state.status == "sleeping"
        assert task.restarts == 0
        assert len(chat.model.requests) == 1
        clock.set(61.0)
        harness.resume()
        found = await harness.submission(submission.id)
        assert found is not None
        assert (await found.wait()).status == "done"


@bounded
async def test_a_poll_without_a_thinking_level_polls_all_the_same_and_records_none(tmp_path: Path) -> None:
    clock = ManualClock(1.0)
    path = tmp_path / "s.sqlite"
    chat = Chat("deferred answer", clock=clock, path=path, deferred_poll_after=60.0)
    chat.settings = Settings(request=RequestOptions(deferred=True), thinking="high")
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: harness.wake().at == 61.0)

    def strip(task: Any) -> Any:
        checkpoint = dict(task.state.checkpoint)
        assert checkpoint.pop("thinking") == "high"
        return Pending(checkpoint=checkpoint)

    await rewrite(path, strip)
    clock.set(61.0)
    async with chat.open() as (harness, root):
        found = await harness.submission(submission.id)
        assert found is not None
        assert (await found.wait()).status == "done"
        message = await message_of(root)
        assert (message.text, message.thinking) == ("deferred answer", None)


@bounded
async def test_a_poll_that_is_woken_early_asks_for_nothing(tmp_path: Path) -> None:
    """Section 11: an early wake does nothing, also where the record says that the poll may run."""
    clock = ManualClock(1.0)
    path = tmp_path / "s.sqlite"
    chat = Chat("deferred answer", clock=clock, path=path, deferred_poll_after=60.0)
    chat.settings = Settings(request=RequestOptions(deferred=True))
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await eventually(lambda: harness.wake().at == 61.0)
    await rewrite(path, lambda task: Pending(checkpoint=task.state.checkpoint))
    async with chat.open() as (harness, root):
        harness.resume()
        await eventually(lambda: harness.wake().at == 61.0)
        assert chat.model.polls == []
        clock.set(61.0)
        harness.resume()
        found = await harness.submission(submission.id)
        assert found is not None
        assert (await found.wait()).status == "done"
        assert len(chat.model.polls) == 1


# -- the end of a response and hooks -----------------------------------------------------------------------------------


@bounded
async def test_an_answer_cut_by_length_is_an_answer() -> None:
    chat = Chat(Reply("cut", stop_reason="length"))
    async with chat.open() as (_, root):
        record = await (await root.submit("hi")).wait()
        assert record.status == "done"
        assert (await message_of(root)).stop_reason == "length"


@bounded
async def test_before_request_chains_changes_this_request_only_and_a_raise_is_reported() -> None:
    def first(messages: Any, ctx: Any) -> Any:
        assert ctx.conversation_id == 1
        return [*messages, UserMessage([TextBlock("added")])]

    def broken(messages: Any, ctx: Any) -> Any:
        raise LookupError

    async def second(messages: Any, ctx: Any) -> Any:
        return [UserMessage([TextBlock(message.text.upper())]) for message in messages]

    chat = Chat("answer")
    chat.install(name="h", hooks=[GenerationHooks(before_request=hook) for hook in (first, broken, second)])
    async with chat.open() as (_, root):
        await root.ask("hi")
        assert chat.asked() == ["user: HI", "user: ADDED"]
        assert await kinds(root) == ["pi.user", "pi.assistant"]
        assert [(r.kind, r.callback, r.extension) for r in chat.reports] == [("extension_error", "before_request", "h")]


@bounded
async def test_after_response_sees_every_terminal_message_and_a_raise_is_reported() -> None:
    seen: list[str] = []

    def look(message: Any, ctx: Any) -> None:
        seen.append(message.stop_reason)
        raise LookupError

    @tool
    def work() -> str:
        return "x"

    chat = Chat(Reply(error="503"), calls("work"), "answer")
    chat.settings = Settings(retry=RetryPolicy(base_delay=0.0))
    chat.install(work, hooks=[GenerationHooks(after_response=look), GenerationHooks(after_response=look)])
    async with chat.open() as (_, root):
        await root.ask("hi")
        assert seen == ["error", "error", "tool_use", "tool_use", "stop", "stop"]
        assert chat.reported() == [("extension_error", "after_response")] * 6


@bounded
async def test_on_yield_continues_the_run_the_first_wins_and_a_raise_is_reported() -> None:
    asked: list[str] = []

    def broken(answer: Any, ctx: Any) -> Any:
        raise LookupError

    def more(answer: Any, ctx: Any) -> Any:
        asked.append(answer.text)
        return Continue("keep going") if answer.text == "one" else None

    def never(answer: Any, ctx: Any) -> Any:
        return Continue("never asked") if answer.text == "one" else None

    chat = Chat("one", "two")
    chat.install(hooks=[GenerationHooks(on_yield=hook) for hook in (broken, more, never)])
    async with chat.open() as (_, root):
        record = await (await root.submit("hi")).wait()
        assert asked == ["one", "two"]
        assert chat.asked() == ["user: hi", "assistant: one", "user: keep going"]
        answer = await root.entry(record.answer)  # type: ignore[arg-type]
        assert answer is not None
        assert answer.text == "two"
        assert chat.reported() == [("extension_error", "on_yield")] * 2


@bounded
async def test_after_tools_sees_a_finished_round_and_a_raise_is_reported() -> None:
    seen: list[Any] = []

    def look(assistant: Any, results: Any, ctx: Any) -> None:
        seen.append(([c.name for c in assistant.tool_calls], [r.is_error for r in results]))
        raise LookupError

    @tool
    def work() -> str:
        return "x"

    chat = Chat(calls("work", "missing"), "answer")
    chat.install(work, hooks=[GenerationHooks(after_tools=look), GenerationHooks(after_tools=look)])
    async with chat.open() as (_, root):
        await root.ask("hi")
        assert seen == [(["work", "missing"], [False, True])] * 2
        assert chat.reported() == [("extension_error", "after_tools")] * 2


class Later(Task[str, None], name="test.later", version=1):
    done: list[str] = []
    gate: asyncio.Event | None = None

    class Work(Phase):
        async def run(self, task: TaskRun[str, None]) -> None:
            if Later.gate is not None:
                await Later.gate.wait()
            Later.done.append(task.input)
            await task.complete()


@bounded
async def test_after_run_collects_tasks_settles_first_and_keeps_the_conversation_busy() -> None:
    Later.done, Later.gate = [], asyncio.Event()

    def one(run: Any, ctx: Any) -> Any:
        assert ctx.run.inputs == run.inputs
        return [run_end_task(Later, "one")] if not Later.done else None

    def broken(run: Any, ctx: Any) -> Any:
        raise LookupError

    async def two(run: Any, ctx: Any) -> Any:
        return [run_end_task(Later, "two")] if not Later.done else []

    chat = Chat("answer", "next")
    chat.install(name="h", tasks=[Later], hooks=[GenerationHooks(after_run=hook) for hook in (one, broken, two)])
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        assert (await submission.wait()).status == "done"
        state = await live(harness, root)
        assert state.run is not None
        assert (state.run.after_run, state.run.inputs, state.generation) == (True, (), None)
        queued = await root.submit("more")
        assert (await queued.status()).status == "queued"
        Later.gate.set()
        assert (await queued.wait()).status == "done"
        assert sorted(Later.done) == ["one", "two"]
        await root.wait_for_idle()
        assert await live(harness, root) == LiveState()
        assert chat.reported() == [("extension_error", "after_run")] * 2


@bounded
async def test_a_task_that_after_run_asked_for_and_is_not_installed_is_reported_and_the_run_ends() -> None:
    chat = Chat("answer")
    chat.install(hooks=[GenerationHooks(after_run=lambda run, ctx: [run_end_task(Later, "x")])])
    async with chat.open() as (harness, root):
        assert (await root.ask("hi")).text == "answer"
        await root.wait_for_idle()
        assert await live(harness, root) == LiveState()
        [report] = chat.reports
        assert (report.kind, Later.name in str(report.error)) == ("task_error", True)


@bounded
async def test_stopping_after_run_tasks_is_no_failed_run() -> None:
    Later.done, Later.gate = [], asyncio.Event()
    chat = Chat("answer")
    chat.install(tasks=[Later], hooks=[GenerationHooks(after_run=lambda run, ctx: [run_end_task(Later, "x")])])
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await submission.wait()
        await root.abort()
        assert await live(harness, root) == LiveState()
        assert (await submission.status()).status == "done"
        assert Later.done == []


@bounded
async def test_a_generation_that_faults_settles_its_inputs_and_keeps_its_partial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_args: Any) -> None:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("pidurable_nb.agent.generation._respond", broken)
    chat, model = streaming()
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        model.give(TextDelta("partial"))
        await eventually(lambda: partial(harness, root))
        model.finish("lost")
        record = await submission.wait()
        assert (record.status, record.reason) == ("unanswered", "faulted")
        assert record.detail == {"message": "LookupError: a bug of ours"}
        assert (await message_of(root)).stop_reason == "aborted"
        await eventually(lambda: [report.kind for report in chat.reports] == ["task_faulted"])


@bounded
async def test_unresolved_lists_what_live_work_names_and_this_process_lacks(tmp_path: Path) -> None:
    class Kind(Task[None, None], name="test.kind", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                await task.complete()

    entered = asyncio.Event()

    @tool
    async def work() -> None:
        entered.set()
        await forever()

    path = tmp_path / "s.sqlite"
    chat = Chat(calls("work"), path=path, name="scripted:named")
    chat.install(work, name="ext", tasks=[Kind])
    async with chat.open() as (harness, root):
        await root.configure(extensions=["ext"], model="scripted:named", tools=["work", "other"])
        async with root.commit() as tx:
            await tx.create_task(Kind, None)
        await harness.wait_for_idle()
        await root.submit("hi")
        await entered.wait()
        assert (await harness.inspect()).unresolved == ("tool other",)
        await harness.close()
    async with Harness.open(path) as harness:
        unresolved = (await harness.inspect()).unresolved
        assert set(unresolved) == {"extension ext", "tool work", "tool other", "model scripted:named"}


@bounded
async def test_a_custom_model_set_and_a_callable_are_asked_at_each_use() -> None:
    one, two = ScriptedModel(["one"], name="scripted:a"), ScriptedModel(["two"], name="scripted:b")
    chat = Chat()
    chat.models = {"scripted:a": one}
    async with chat.open() as (_, root):
        assert (await root.ask("hi")).text == "one"
        chat.models = {"scripted:b": two}
        assert (await root.ask("hi")).text == "two"


# -- what models say that cannot be stored as it is --------------------------------------------------------------------


@bounded
@pytest.mark.parametrize("paced", [None, 200.0])
async def test_half_characters_of_a_model_become_replacement_characters(paced: float | None) -> None:
    chat = Chat(Reply("a\ud800b \ud83d\ude00", thinking="\udfff", tokens_per_second=paced), Reply(error="bad \ud800"))
    async with chat.open() as (_, root):
        answer = await root.ask("go")
        assert answer.text == "a\ufffdb \U0001f600"
        assert answer.messages[0].content[0].text == "\ufffd"
        with pytest.raises(Unanswered, match="bad \ufffd"):
            await root.ask("again")
    assert chat.reports == []


@bounded
async def test_arguments_that_json_has_not_are_judged_by_the_tool() -> None:
    given: list[tuple[str, float]] = []

    @tool
    def take(text: str, number: Annotated[float, Field(allow_inf_nan=False)] = 0.0) -> str:
        given.append((text, number))
        return "taken"

    chat = Chat(
        calls(call("take", {"text": "\ud800"}, "1"), call("take", {"text": "x", "number": float("nan")}, "2")), "done"
    )
    chat.install(take)
    async with chat.open() as (_, root):
        assert (await root.ask("go")).text == "done"
        found = {message.call_id: message.text for message in await results(root)}
    assert found == {"1": "taken", "2": "Invalid arguments for take: number: Input should be a finite number"}
    assert given == [("\ufffd", 0.0)]


class Odd:
    """A model that gives the events it is told to give."""

    id = "odd:one"
    context_window = 1000
    max_output_tokens = 100

    def __init__(self, *events: Any) -> None:
        self.events = events

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        for event in self.events:
            yield event


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@bounded
@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("text", "the model's stream gave a str, which is no event"),
        (Finish("ok"), "the model's answer is a str, not an AssistantMessage"),  # type: ignore[arg-type]
        (Finish(UserMessage("ok")), "the model's answer is a UserMessage"),  # type: ignore[arg-type]
        (Finish(AssistantMessage([ToolCall(id="1", name="x", arguments=nested(160))])), "nested deeper than 150"),
    ],
    ids=["event", "text", "message", "depth"],
)
async def test_what_a_model_may_not_give_is_an_error_of_the_model(event: Any, said: str) -> None:
    chat = Chat()
    chat.models = Odd(event)
    chat.settings = Settings(model="odd:one")
    async with chat.open() as (_, root):
        settled = await (await root.submit("go")).wait()
        assert settled.reason == "model_error"
        assert said in str(settled.detail)
    assert chat.reports == []


def test_a_cost_is_a_number_that_sums_can_hold() -> None:
    with pytest.raises(ValidationError, match="finite"):
        Usage(cost=float("nan"))
