"""Submissions and the inbox (engine.md, section 9)."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import (
    Continue,
    GenerationHooks,
    Harness,
    InboxState,
    LiveState,
    Phase,
    RunLimits,
    Settings,
    SqliteStorage,
    Task,
    TaskRun,
    ToolContext,
    ToolResult,
    tool,
)
from pidurable_nb.errors import ConversationBusy, DurableError, InvalidValue, RequestIdReused, Unanswered
from pidurable_nb.messages import ImageBlock, TextBlock, Usage, UserMessage
from pidurable_nb.models import Hang, Reply
from pidurable_nb.testing import KillSwitch

from .support import Chat, bounded, calls, eventually, kinds, live, turns


class Gate:
    """A step of a model that waits until it is let through."""

    def __init__(self, answer: Any) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self._answer = answer

    async def __call__(self, _request: Any) -> Any:
        self.reached.set()
        await self.open.wait()
        return self._answer


async def texts(conversation: Any) -> list[str]:
    return [entry.text async for entry in conversation.entries(order="ascending") if entry.messages]


async def statuses(*submissions: Any) -> list[str]:
    return [(await submission.status()).status for submission in submissions]


# -- idle --------------------------------------------------------------------------------------------------------------


@bounded
async def test_an_input_to_an_idle_conversation_is_placed_at_once_and_answered() -> None:
    chat = Chat("Paris.")
    async with chat.open() as (harness, root):
        submission = await root.submit("What is the capital of France?", kind="app.question", data={"n": 1})
        settled = await submission
        assert (settled.status, settled.type, settled.reason) == ("done", "input", None)
        assert settled.entry is not None
        assert settled.answer is not None
        question, answer = await root.entry(settled.entry), await root.entry(settled.answer)
        assert question is not None
        assert answer is not None
        assert (question.kind, question.data, question.text) == (
            "app.question",
            {"n": 1},
            "What is the capital of France?",
        )
        assert (answer.kind, answer.text) == ("pi.assistant", "Paris.")
        assert answer.by_task is not None
        assert await live(harness, root) == LiveState()
        assert await submission.status() == settled


@pytest.mark.parametrize("bad", ["", "  \n ", [], [TextBlock("")]])
@bounded
async def test_an_input_needs_content(bad: Any) -> None:
    chat = Chat()
    async with chat.open() as (_, root):
        with pytest.raises(ValueError, match="needs content"):
            await root.submit(bad)
        assert await kinds(root) == []


@bounded
async def test_bad_options_are_refused_and_store_nothing() -> None:
    chat = Chat()
    async with chat.open() as (harness, root):
        before = harness.storage.last_seq
        with pytest.raises(ValueError, match="when_busy is"):
            await root.submit("hi", when_busy="never")  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            await root.submit("hi", data={1: 2})
        with pytest.raises(InvalidValue):
            await root.submit("\ud800")
        with pytest.raises(ValueError, match="belongs to the engine"):
            await root.submit("hi", kind="pi.user")
        with pytest.raises(ValueError, match="belongs to the engine"):
            await root.write("pi.reset")
        assert harness.storage.last_seq == before


@bounded
async def test_images_reach_the_model() -> None:
    chat = Chat("a cat")
    async with chat.open() as (_, root):
        await root.ask([TextBlock("What is this?"), ImageBlock("image/png", "aGk=")])
        assert chat.model.requests[0].messages[0].content == [
            TextBlock("What is this?"),
            ImageBlock("image/png", "aGk="),
        ]


# -- request ids -------------------------------------------------------------------------------------------------------


@bounded
async def test_a_request_id_finds_the_same_submission_before_and_after_a_restart(tmp_path: Path) -> None:
    chat = Chat("one", "two", path=tmp_path / "s.sqlite")
    async with chat.open() as (_, root):
        first = await root.submit("hi", request_id="r", kind="app.k", data={"a": 1.0})
        again = await root.submit("hi", request_id="r", kind="app.k", data={"a": 1.0})
        assert first.id == again.id
        await first.wait()
        assert (await root.submit("hi", request_id="r", kind="app.k", data={"a": 1.0})).id == first.id
    async with chat.open() as (harness, root):
        found = await root.submit("hi", request_id="r", kind="app.k", data={"a": 1.0}, when_busy="reject")
        assert found.id == first.id
        for content, options in (
            ("other", {"kind": "app.k", "data": {"a": 1.0}}),
            ("hi", {"kind": "app.other", "data": {"a": 1.0}}),
            ("hi", {"kind": "app.k", "data": {"a": 2.0}}),
            ("hi", {}),
        ):
            with pytest.raises(RequestIdReused, match="use a new id"):
                await root.submit(content, request_id="r", **options)  # type: ignore[arg-type]
        with pytest.raises(RequestIdReused):
            await root.write("app.k", data={"a": 1.0}, request_id="r")
        other = await harness.create_conversation()
        assert (await other.submit("hi", request_id="r")).id != first.id  # ids are of one conversation
        await other.wait_for_idle()
    assert len(chat.model.requests) == 2


@bounded
async def test_the_same_request_at_the_same_time_is_one_submission() -> None:
    chat = Chat("one")
    async with chat.open() as (_, root):
        found = await asyncio.gather(*(root.submit("hi", request_id="r") for _ in range(10)))
        assert len({submission.id for submission in found}) == 1
        await found[0].wait()
        assert await kinds(root) == ["pi.user", "pi.assistant"]


@bounded
async def test_writes_and_retries_have_request_ids_too() -> None:
    chat = Chat(Reply(error="400 bad"), "fine")
    async with chat.open() as (_, root):
        note = await root.write("app.note", data=1, request_id="w")
        assert (await root.write("app.note", data=1, request_id="w")).id == note.id
        with pytest.raises(RequestIdReused):
            await root.write("app.note", data=2, request_id="w")
        await (await root.submit("hi")).wait()
        first = await root.retry(request_id="again")
        assert (await root.retry(request_id="again")).id == first.id
        await first.wait()
        assert (await root.retry(request_id="again")).id == first.id
        assert await kinds(root) == ["app.note", "pi.user", "pi.assistant", "pi.assistant"]


# -- busy --------------------------------------------------------------------------------------------------------------


@bounded
async def test_a_busy_conversation_queues_follow_ups_and_rejects_on_request() -> None:
    gate = Gate("one")
    chat = Chat(gate, "two", "three")
    async with chat.open() as (harness, root):
        first = await root.submit("first")
        await gate.reached.wait()
        before = harness.storage.last_seq
        with pytest.raises(ConversationBusy):
            await root.submit("rejected", when_busy="reject", request_id="r")
        assert harness.storage.last_seq == before
        second, third = await root.submit("second"), await root.submit("third")
        assert await statuses(first, second, third) == ["placed", "queued", "queued"]
        inbox = await harness.snapshot(InboxState, root.id)
        assert inbox is not None
        assert [item.submission for item in inbox.items] == [second.id, third.id]
        gate.open.set()
        await third.wait()
        assert await texts(root) == ["first", "one", "second", "two", "third", "three"]
        assert (await root.submit("fourth", when_busy="reject")).id > third.id
        await root.wait_for_idle()


@bounded
async def test_follow_ups_in_mode_all_start_one_run() -> None:
    gate = Gate("one")
    chat = Chat(gate, "two")
    chat.settings = Settings(follow_up_mode="all")
    async with chat.open() as (_, root):
        await root.submit("first")
        await gate.reached.wait()
        rest = [await root.submit(text) for text in ("second", "third")]
        gate.open.set()
        settled = [await submission for submission in rest]
        assert settled[0].answer == settled[1].answer
        assert await texts(root) == ["first", "one", "second", "third", "two"]


@pytest.mark.parametrize("mode", ["one_at_a_time", "all"])
@bounded
async def test_steers_join_the_run_after_the_tool_round(mode: Any) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        entered.set()
        await go.wait()
        return "worked"

    chat = Chat(calls("work"), "after one", "after two")
    chat.install(work)
    chat.settings = Settings(steering_mode=mode)
    async with chat.open() as (_, root):
        first = await root.submit("go")
        await entered.wait()
        steers = [await root.submit(text, when_busy="steer") for text in ("left", "right")]
        follow = await root.submit("later")
        go.set()
        answers = [(await submission).answer for submission in (first, *steers)]
        assert answers[0] == answers[1]
        assert (answers[1] == answers[2]) == (mode == "all")
        expected = ["go", "", "worked", "left"] + (["right", "after one"] if mode == "all" else ["after one", "right"])
        shown = [entry async for entry in root.entries(order="ascending") if entry.kind != "pi.system"]
        assert [entry.text for entry in shown][:6] == expected
        chat.model._every = lambda request: "rest"
        await follow.wait()


@bounded
async def test_a_steer_that_comes_too_late_starts_the_next_run_before_follow_ups() -> None:
    gate = Gate("one")
    chat = Chat(gate, "two", "three")
    async with chat.open() as (_, root):
        await root.submit("first")
        await gate.reached.wait()
        follow = await root.submit("follow")
        steer = await root.submit("steer", when_busy="steer")
        gate.open.set()
        await follow.wait()
        assert (await steer.status()).status == "done"
        assert await texts(root) == ["first", "one", "steer", "two", "follow", "three"]


@bounded
async def test_a_queued_input_can_be_taken_back() -> None:
    gate = Gate("one")
    chat = Chat(gate)
    async with chat.open() as (_, root):
        first = await root.submit("first")
        await gate.reached.wait()
        second = await root.submit("second")
        assert await second.abort() == "aborted"
        record = await second.status()
        assert (record.status, record.reason) == ("unanswered", "aborted")
        assert await second.abort() == "settled"
        assert await first.abort() == "already_placed"
        gate.open.set()
        await first.wait()
        assert await first.abort() == "settled"
        assert await texts(root) == ["first", "one"]


@bounded
async def test_what_waits_keeps_its_order_over_a_crash(tmp_path: Path) -> None:
    chat = Chat(Hang(), path=tmp_path / "s.sqlite")
    switch = KillSwitch(await SqliteStorage.open(tmp_path / "s.sqlite"))
    crashed = await Harness.open(switch, models=chat.model)
    root = await crashed.root()
    await root.submit("first")
    for text in ("second", "third"):
        await root.submit(text)
    await root.write("app.note", messages=[UserMessage([TextBlock("note")])])
    await eventually(lambda: len(chat.model.requests) == 1)
    switch.kill()
    chat = Chat("one", "two", "three", path=tmp_path / "s.sqlite")
    async with chat.open() as (_, root):
        await root.wait_for_idle()
        assert await texts(root) == ["first", "one", "note", "second", "two", "third", "three"]


# -- writes ------------------------------------------------------------------------------------------------------------


@bounded
async def test_writes_are_appended_at_once_when_idle_and_start_no_run() -> None:
    chat = Chat("answer")
    async with chat.open() as (_, root):
        note = await root.write("app.note", messages=[UserMessage([TextBlock("remember 7")])], data={"x": 1})
        record = await note
        assert (record.status, record.type, record.answer) == ("done", "write", None)
        await root.wait_for_idle()
        assert chat.model.requests == []
        await root.ask("what?")
        assert chat.asked() == ["user: remember 7", "user: what?"]


@bounded
async def test_busy_writes_wait_for_a_boundary_but_display_only_ones_do_not() -> None:
    gate = Gate("one")
    chat = Chat(gate, "two")
    async with chat.open() as (_, root):
        await root.submit("first")
        await gate.reached.wait()
        follow = await root.submit("second")
        waits = await root.write("app.note", messages=[UserMessage([TextBlock("note")])])
        shown = await root.write("app.progress", data={"percent": 50})
        assert await statuses(waits, shown) == ["queued", "done"]
        gate.open.set()
        await follow.wait()
        assert await kinds(root) == [
            "pi.user",
            "app.progress",
            "pi.assistant",
            "app.note",
            "pi.user",
            "pi.assistant",
        ]
        assert chat.asked() == ["user: first", "assistant: one", "user: note", "user: second"]


@bounded
async def test_a_head_that_lies_before_the_active_range_is_stale() -> None:
    gate = Gate("one")
    chat = Chat(gate)
    async with chat.open() as (_, root):
        early = (await (await root.write("app.a", messages=[UserMessage([TextBlock("a")])])).status()).entry
        late = (await (await root.write("app.b", messages=[UserMessage([TextBlock("b")])])).status()).entry
        await root.submit("go")
        await gate.reached.wait()
        first = await root.write("app.head", head=late)
        stale = await root.write("app.head", head=early)  # the one before it moves the range past its target
        gate.open.set()
        await root.wait_for_idle()
        assert (await first.status()).status == "done"
        record = await stale.status()
        assert (record.status, record.reason) == ("unanswered", "stale")
        at_once = await (await root.write("app.head", head=early)).status()
        assert (at_once.status, at_once.reason) == ("unanswered", "stale")
        with pytest.raises(DurableError, match="has no entry"):
            await root.write("app.head", head=9999)  # type: ignore[arg-type]
        with pytest.raises(DurableError, match="has no entry"):
            await root.write("app.edit", edits=[{"target": 9999}])


@bounded
async def test_a_write_can_edit_what_the_model_reads() -> None:
    chat = Chat("one", "two")
    async with chat.open() as (_, root):
        settled = await (await root.submit("my password is hunter2")).wait()
        await root.write(
            "app.redact",
            edits=[{"target": settled.entry, "action": "replace", "messages": [UserMessage([TextBlock("redacted")])]}],
        )
        await root.ask("next")
        assert chat.asked() == ["user: redacted", "assistant: one", "user: next"]
        assert (await texts(root))[0] == "my password is hunter2"


# -- failed runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["keep", "continue", "withdraw"])
@bounded
async def test_a_failed_run_leaves_the_inbox_as_the_settings_say(mode: Any) -> None:
    gate = Gate(Reply(error="400 bad request"))
    chat = Chat(gate, "two", "three")
    chat.settings = Settings(after_failed_run=mode)
    async with chat.open() as (harness, root):
        first = await root.submit("first")
        await gate.reached.wait()
        second = await root.submit("second")
        note = await root.write("app.note", messages=[UserMessage([TextBlock("note")])])
        gate.open.set()
        failed = await first.wait()
        assert (failed.status, failed.reason) == ("unanswered", "model_error")
        assert failed.detail["message"] == "400 bad request"
        await root.wait_for_idle()
        assert (await note.status()).status == "done"
        record = await second.status()
        if mode == "keep":
            assert record.status == "queued"
            state = await live(harness, root)
            assert state.run_failure is not None
            assert (state.run_failure.reason, state.run_failure.first) == ("model_error", failed.entry)
            third = await root.submit("third")  # places what waits first, oldest first
            await third.wait()
            assert await texts(root) == ["first", "", "note", "second", "two", "third", "three"]
        elif mode == "continue":
            assert record.status == "done"
            assert await live(harness, root) == LiveState()
        else:
            assert (record.status, record.reason) == ("unanswered", "run_failed")


@bounded
async def test_a_stopped_run_starts_no_other_even_where_failed_runs_continue() -> None:
    chat = Chat(Hang(), "two")
    chat.settings = Settings(after_failed_run="continue")
    async with chat.open() as (harness, root):
        first = await root.submit("first")
        second = await root.submit("second")
        run = (await live(harness, root)).run
        assert run is not None
        await harness.abort_task(run.task)
        assert (await first.wait()).reason == "aborted"
        assert (await second.status()).status == "queued"
        await root.abort()


@bounded
async def test_ask_raises_with_the_settled_submission() -> None:
    chat = Chat(Reply(error="400 bad request"), "fine")
    async with chat.open() as (_, root):
        with pytest.raises(Unanswered, match=r"the model failed.*400 bad request") as raised:
            await root.ask("hi")
        assert raised.value.reason == "model_error"
        assert raised.value.submission.status == "unanswered"
        assert (await root.ask("hi")).text == "fine"


@bounded
async def test_retry_goes_on_with_the_transcript_as_it_stands() -> None:
    chat = Chat(Reply("half", error="400 bad request"), "fine")
    async with chat.open() as (harness, root):
        with pytest.raises(DurableError, match="no failed run"):
            await root.retry()
        failed = await (await root.submit("hi")).wait()
        again = await root.retry()
        record = await again.wait()
        assert (record.type, record.status, record.answer) == ("continue", "done", None)
        assert await kinds(root) == ["pi.user", "pi.assistant", "pi.assistant"]
        assert chat.asked() == ["user: hi"]
        assert (await (await harness.submission(failed.id)).status()).status == "unanswered"  # type: ignore[union-attr]
        with pytest.raises(DurableError, match="no failed run"):
            await root.retry()


@bounded
async def test_retry_keeps_the_first_entry_of_the_failed_run_and_needs_an_idle_conversation() -> None:
    gate = Gate("fine")
    chat = Chat(Reply(error="400"), gate)
    async with chat.open() as (harness, root):
        failed = await (await root.submit("hi")).wait()
        await root.retry()
        await gate.reached.wait()
        state = await live(harness, root)
        assert state.run is not None
        assert state.run.first == failed.entry
        with pytest.raises(ConversationBusy):
            await root.retry()
        gate.open.set()
        await root.wait_for_idle()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (RunLimits(turns=1), "1 turns"),
        (RunLimits(tokens=15), "15 tokens"),
        (RunLimits(cost=0.5), "$0.5"),
        (RunLimits(session_cost=0.5), "$0.5"),
    ],
)
@bounded
async def test_a_limit_ends_the_run_before_the_request_that_would_exceed_it(limits: RunLimits, words: str) -> None:
    @tool
    async def work() -> str:
        return "worked"

    spent = Usage(input_tokens=10, output_tokens=5, cost=0.5)
    chat = Chat(Reply(tool_calls=calls("work").tool_calls, usage=spent), "done")
    chat.install(work)
    chat.settings = Settings(limits=limits)
    async with chat.open() as (_, root):
        record = await (await root.submit("hi")).wait()
        assert (record.status, record.reason) == ("unanswered", "limit")
        assert len(chat.model.requests) == 1
        assert words in record.detail["message"]
        assert "spent: " in record.detail["message"]
        # A retry goes on with the run, and so with what it has used (section 9).
        refused = await (await root.retry()).wait()
        assert (refused.reason, refused.detail) == ("limit", record.detail)
        assert len(chat.model.requests) == 1
        raised = {name: value and value * 2 for name, value in limits}
        chat.settings = Settings(limits=RunLimits(**raised))
        again = await (await root.retry()).wait()
        assert again.status == "done"


@bounded
async def test_what_tools_spend_counts_towards_the_limits_of_their_run() -> None:
    """Section 9, limits: a run's tokens and cost are those of its requests and of its tools, nested calls included."""
    spent = Usage(input_tokens=40, cost=0.4)

    @tool
    async def inner() -> ToolResult:
        return ToolResult("searched", usage=spent)

    @tool
    async def work(ctx: ToolContext) -> ToolResult:
        await ctx.call_tool("inner")
        return ToolResult("worked", usage=spent)

    for limits, words in ((RunLimits(tokens=80), "80 tokens"), (RunLimits(cost=0.8), "$0.8")):
        chat = Chat(Reply(tool_calls=calls("work").tool_calls, usage=Usage()), "never")
        chat.install(work, inner)
        chat.settings = Settings(limits=limits)
        async with chat.open() as (harness, root):
            record = await (await root.submit("hi")).wait()
            assert (record.reason, words in record.detail["message"]) == ("limit", True)
            assert (await harness.usage()).total == spent + spent


@bounded
async def test_the_limit_of_the_session_counts_every_conversation_and_holds_until_it_is_raised() -> None:
    spent = Usage(input_tokens=10, output_tokens=5, cost=0.5)
    chat = Chat(lambda request: Reply("fine", usage=spent))
    async with chat.open() as (harness, root):
        other = await harness.create_conversation()
        await other.ask("elsewhere")
        chat.settings = Settings(limits=RunLimits(session_cost=0.5))
        refused = await (await root.submit("hi")).wait()
        assert (refused.status, refused.reason) == ("unanswered", "limit")
        assert len(chat.model.requests) == 1
        again = await (await root.retry(request_id="1")).wait()
        assert (again.status, again.reason) == ("unanswered", "limit")
        state = await live(harness, root)
        assert state.run_failure is not None
        assert (state.run_failure.reason, state.run_failure.first) == ("limit", refused.entry)
        assert state.run_failure.detail == again.detail
        chat.settings = Settings(limits=RunLimits(session_cost=1.0))
        assert (await (await root.retry(request_id="1")).wait()) == again  # the same request is the same submission
        assert (await (await root.retry(request_id="2")).wait()).status == "done"
        assert (await live(harness, root)).run_failure is None


@bounded
async def test_a_retry_counts_on_whatever_ended_the_run_and_the_next_input_starts_from_nothing() -> None:
    """Section 9, limits: a run goes on with its turns and with what it spent."""

    @tool
    async def work() -> str:
        return "worked"

    spent = Usage(input_tokens=10, cost=0.25)
    gate = Gate(Reply("done", usage=spent))
    chat = Chat(Reply(tool_calls=calls("work").tool_calls, usage=spent), Reply(error="400", usage=spent), gate, gate)
    chat.install(work)
    async with chat.open() as (harness, root):
        assert (await (await root.submit("hi")).wait()).reason == "model_error"
        for turns, tokens in ((1, 20), (0, 0)):
            submission = await (root.retry() if turns else root.submit("next"))
            await gate.reached.wait()
            run = (await live(harness, root)).run
            assert run is not None
            assert (run.turns, run.spent.total_tokens) == (turns, tokens)
            gate.open.set()
            assert (await submission.wait()).status == "done"
            gate.reached.clear()
            gate.open.clear()


@bounded
async def test_what_a_run_spent_counts_over_its_turns_and_not_over_runs() -> None:
    @tool
    async def work() -> str:
        return "worked"

    spent = Usage(input_tokens=10, cost=0.25)
    one = Reply(tool_calls=calls("work").tool_calls, usage=spent)
    chat = Chat(one, one, Reply("done", usage=spent), Reply("next", usage=spent))
    chat.install(work)
    chat.settings = Settings(limits=RunLimits(tokens=21, cost=0.6, turns=3))
    async with chat.open() as (_, root):
        seen: list[Any] = []
        async with root.watch() as watch:
            assert (await root.ask("hi")).text == "done"
            async for change in watch:
                run = change.value.live.run
                if run is None:
                    break
                seen.append((run.turns, run.spent.total_tokens))
        assert set(seen) == {(0, 0), (0, 10), (1, 10), (1, 20), (2, 20)}
        assert (await root.ask("more")).text == "next"


@bounded
async def test_at_a_boundary_writes_come_first_in_their_order_and_modes_are_read_there() -> None:
    gate = Gate(calls("work"))

    @tool
    async def work() -> str:
        return "worked"

    chat = Chat(gate, "answer", "more")
    chat.install(work)
    async with chat.open() as (_, root):
        await root.submit("go")
        await gate.reached.wait()
        await root.submit("later 1")
        await root.submit("steer 1", when_busy="steer")
        await root.write("app.a", messages=[UserMessage([TextBlock("write 1")])])
        await root.submit("steer 2", when_busy="steer")
        await root.write("app.b", messages=[UserMessage([TextBlock("write 2")])])
        await root.submit("later 2")
        chat.settings = Settings(steering_mode="all", follow_up_mode="all")
        gate.open.set()
        await root.wait_for_idle()
        assert [text for text in await texts(root) if text] == [
            "go",
            "worked",
            *("write 1", "write 2", "steer 1", "steer 2", "answer"),
            *("later 1", "later 2", "more"),
        ]


@bounded
async def test_a_conversation_that_is_asked_while_it_runs_says_all_of_it_in_its_view() -> None:
    gate = Gate("one")
    chat = Chat(gate, "two")
    async with chat.open() as (_, root):
        first = await root.submit("first")
        await gate.reached.wait()
        second = await root.submit("second")
        view = await root.view()
        assert (view.record.id, [entry.text for entry in view.entries]) == (root.id, ["first"])
        assert view.live.run is not None
        assert (view.live.run.inputs, view.live.run.turns) == ((first.id,), 0)
        assert view.live.generation is not None
        assert (view.live.generation.attempt, view.live.generation.model) == (1, "scripted:demo")
        assert [(item.submission, item.mode, item.content[0]) for item in view.inbox.items] == [
            (second.id, "follow_up", TextBlock("second"))
        ]
        assert (view.usage.requests, view.agent.model) == (0, None)
        gate.open.set()
        await root.wait_for_idle()
        view = await root.view()
        assert (view.live, view.inbox, view.usage.requests) == (LiveState(), InboxState(), 2)


# -- abort -------------------------------------------------------------------------------------------------------------


@bounded
async def test_aborting_a_conversation_withdraws_inputs_keeps_writes_and_ends_idle() -> None:
    chat = Chat(Hang(after="partial answer"), "next")
    async with chat.open() as (harness, root):
        first = await root.submit("first")

        async def streaming() -> bool:
            generation = (await live(harness, root)).generation
            return generation is not None and generation.message is not None

        await eventually(streaming)
        second = await root.submit("second")
        note = await root.write("app.note", messages=[UserMessage([TextBlock("note")])])
        await root.abort()
        records = [await submission.status() for submission in (first, second, note)]
        assert [(r.status, r.reason) for r in records] == [
            ("unanswered", "aborted"),
            ("unanswered", "aborted"),
            ("done", None),
        ]
        state = await live(harness, root)
        assert state.run is None
        assert await kinds(root) == ["pi.user", "pi.assistant", "app.note"]
        partial = (await root.entries(order="ascending").list())[1]
        message = partial.messages[0]
        assert message.role == "assistant"
        assert (message.text, message.stop_reason) == ("partial answer", "aborted")
        await root.abort()  # nothing to abort
        await root.ask("go on")
        assert chat.asked() == ["user: first", "user: note", "user: go on"]


class Boss(Task[None, None], name="test.boss"):
    """Owns a conversation, for as long as it is not aborted."""

    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            async with task.commit() as tx:
                await tx.create_conversation(owner=task.id)
            await asyncio.Event().wait()


@bounded
async def test_an_abort_that_reaches_a_conversation_withdraws_its_inputs_and_keeps_its_writes() -> None:
    chat = Chat(Hang(after="half"), "next")
    chat.install(tasks=[Boss])
    async with chat.open() as (harness, root):
        async with root.commit() as tx:
            boss = await tx.create_task(Boss, None)
        harness.resume()

        async def owned() -> Any:
            return await harness.conversations(owner_task=boss).list()

        await eventually(owned)
        child = await harness.conversation((await owned())[0].id)
        assert child is not None
        placed = await child.submit("placed")
        await eventually(lambda: len(chat.model.requests) == 1)
        queued = await child.submit("queued")
        note = await child.write("app.note", messages=[UserMessage([TextBlock("note")])])
        assert await statuses(placed, queued, note) == ["placed", "queued", "queued"]
        await harness.abort_task(boss)
        assert (await harness.wait_for_task(boss)).state.outcome.status == "aborted"  # type: ignore[union-attr]
        for submission in (placed, queued):
            record = await submission.status()
            assert (record.status, record.reason) == ("unanswered", "aborted")
        assert (await note.wait()).status == "done"  # its run has ended, so it was placed
        assert await kinds(child) == ["pi.user", "pi.assistant", "app.note"]
        await child.ask("on its own now")  # its owner has ended, and cancels nothing any more
        assert chat.asked()[-2:] == ["user: note", "user: on its own now"]


@pytest.mark.parametrize("first", ["the run goes on", "the abort"])
@bounded
async def test_an_abort_stops_a_run_that_is_just_handed_to_its_next_turn(first: str) -> None:
    """Section 9: what lives when the abort is stored is stopped, whatever the run was about to do."""
    gate = Gate("one")
    chat = Chat(gate, Hang())
    chat.install(hooks=[GenerationHooks(on_yield=lambda answer, ctx: Continue("more"))])
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        await gate.reached.wait()
        aborting: Any = None
        async with root.commit():  # both wait for the line, in this order
            for what in (first, "the other"):
                if what == "the abort" or (what == "the other" and first != "the abort"):
                    aborting = outside(root.abort())
                else:
                    gate.open.set()
                await turns(30)
        await aborting
        record = await submission.status()
        assert (record.status, record.reason) == ("unanswered", "aborted")
        assert await harness.tasks(status=("pending", "running", "waiting", "sleeping")).list() == []


def outside(coroutine: Any) -> asyncio.Task[Any]:
    """A task that is no part of the commit that is open here."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, coroutine)


@bounded
async def test_waits_of_an_idle_session_return_at_once() -> None:
    chat = Chat("one")
    async with chat.open() as (harness, root):
        await root.wait_for_idle()
        await harness.wait_for_idle()
        submission = await root.submit("hi")
        await harness.wait_for_idle()
        assert (await submission.status()).status == "done"
        assert await harness.submission(99999) is None
        assert await harness.conversation(99999) is None


@bounded
async def test_many_waits_for_one_submission_all_return() -> None:
    gate = Gate("one")
    chat = Chat(gate)
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        waits = [asyncio.create_task(submission.wait()) for _ in range(20)]
        await gate.reached.wait()
        waits[0].cancel()
        gate.open.set()
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert len(set(map(repr, results[1:]))) == 1
        assert harness._submission_waiters == {}
