"""Compaction: where it cuts, when it runs, where its summary goes, how it fails (engine.md, section 13)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pidurable_nb import (
    CompactionHooks,
    CompactionPolicy,
    Conversation,
    Decline,
    Harness,
    LiveState,
    RetryPolicy,
    Settings,
    Summary,
    ToolControl,
    ToolResult,
    UsageState,
    tool,
)
from pidurable_nb.agent.compaction import render, select
from pidurable_nb.agent.generation import GenerationTask
from pidurable_nb.messages import AssistantMessage, Message, TextBlock, ToolCall, ToolResultMessage, Usage, UserMessage
from pidurable_nb.models import Hang, ModelRequest, Reply, ScriptedModel
from pidurable_nb.records import ConversationId, Entry, EntryId, outcome_of_task
from pidurable_nb.session.context import ConversationContext
from pidurable_nb.testing import ManualClock

from .support import Chat, bounded, call, calls, eventually, kinds, live

LONG = "word " * 80  # 100 tokens


def is_compaction(request: ModelRequest) -> bool:
    return "<conversation>" in request.messages[-1].text


def talker(*summaries: Any, answer: Any = "fine", **options: Any) -> Chat:
    """A model that answers requests for a summary with these, in order, and everything else with ``answer``."""
    waiting = list(summaries)

    def step(request: ModelRequest) -> Any:
        if is_compaction(request):
            return waiting.pop(0)
        return answer(request) if callable(answer) else answer

    return Chat(step, **options)


def small(**policy: Any) -> Settings:
    given = {"reserve_tokens": 100, "keep_recent_tokens": 30, "background_tokens": 100, **policy}
    return Settings(compaction=CompactionPolicy(**given), retry=RetryPolicy(base_delay=0.01))


async def compacted(root: Conversation) -> list[Entry]:
    return [entry async for entry in root.entries(order="ascending") if entry.kind == "pi.compaction"]


async def texts(root: Conversation) -> list[str]:
    return [message.text for message in (await root.context()).messages if message.role != "system"]


def summaries_asked(chat: Chat) -> list[str]:
    return [request.messages[-1].text for request in chat.model.requests if is_compaction(request)]


async def ended(harness: Harness, task: Any) -> Any:
    """How a task ended: status, and message of its error."""
    outcome = outcome_of_task(await harness.wait_for_task(task))
    assert outcome is not None
    return outcome.status


# -- where it cuts ---------------------------------------------------------------------------------------------------


def entry(id: int, *messages: Message, **fields: Any) -> Entry:
    return Entry(EntryId(id), ConversationId(1), "test", tuple(messages), **fields)


def said(text: str) -> UserMessage:
    return UserMessage([TextBlock(text)])


def answered(text: str, *called: str) -> AssistantMessage:
    return AssistantMessage([TextBlock(text), *(ToolCall(id=id, name="work", arguments={}) for id in called)])


def result(id: str) -> ToolResultMessage:
    return ToolResultMessage(call_id=id, tool_name="work", content=[TextBlock("done")])


def cut(entries: Sequence[Entry], keep: int, head: Entry | None = None) -> tuple[int, list[str]] | None:
    found = select(ConversationContext(head, list(entries)).view(), keep)
    return None if found is None else (found.first_kept, [message.text for message in found.older])


def test_about_what_is_asked_for_is_kept() -> None:
    entries = [entry(n, said(LONG) if n % 2 else answered(LONG)) for n in range(1, 11)]
    assert cut(entries, 1000) is None
    assert cut(entries, 350) == (8, [LONG] * 7)
    assert cut(entries, 400) == (7, [LONG] * 6)
    assert cut(entries, 0) == (10, [LONG] * 9), "the newest message is kept even where it is too long"
    assert cut(entries[:1], 0) is None
    assert cut([], 0) is None


def test_a_call_stays_with_its_results_and_what_was_said_between() -> None:
    entries = [
        entry(1, said("a")),
        entry(2, answered("b", "x", "y")),
        entry(3, result("x")),
        entry(4, said("steer")),
        entry(5, result("y")),
        entry(6, answered("c")),
    ]
    assert cut(entries, 0) == (6, ["a", "b", "done", "steer", "done"])
    assert cut(entries[:5], 0) == (2, ["a"])


def test_an_interrupted_call_does_not_hold_up_what_came_after_the_next_answer() -> None:
    entries = [entry(1, said("a")), entry(2, answered("b", "x")), entry(3, said("c")), entry(4, answered("d"))]
    assert cut(entries[:3], 0) == (2, ["a"])
    assert cut(entries, 0) == (4, ["a", "b", "c"])


def test_an_earlier_summary_is_carried_over_and_never_all_that_there_is() -> None:
    head = entry(9, said("summary"), head=EntryId(5))
    entries = [entry(5, said("a")), entry(6, answered("b")), head, entry(10, said("c"))]
    assert cut(entries, 0, head) == (10, ["summary", "a", "b"])
    assert cut([entry(5, said("a")), head], 0, head) is None


@given(
    st.lists(st.tuples(st.sampled_from(["user", "answer", "calls", "result"]), st.integers(0, 200)), max_size=30),
    st.integers(0, 400),
)
def test_no_cut_separates_a_call_from_its_results(shape: list[tuple[str, int]], keep: int) -> None:
    entries: list[Entry] = []
    open_calls: list[str] = []
    for number, (what, size) in enumerate(shape, 1):
        text = "x" * size
        if what == "result" and open_calls:
            entries.append(entry(number, result(open_calls.pop())))
        elif what == "calls":
            open_calls = [f"{number}-a", f"{number}-b"]
            entries.append(entry(number, answered(text, *open_calls)))
        elif what == "answer":
            open_calls = []
            entries.append(entry(number, answered(text)))
        else:
            entries.append(entry(number, said(text)))
    whole = ConversationContext(None, entries)
    found = select(whole.view(), keep)
    if found is not None:
        head = entry(1000, said("summary"), head=found.first_kept)
        whole.extend(head)
        after = whole.view().messages
        before = ConversationContext(None, entries).view().messages
        kept = [message for message in after if message is not head.messages[0]]
        assert list(before[len(before) - len(kept) :]) == kept
        assert found.older


def test_long_messages_are_shortened_until_the_request_fits() -> None:
    text = render([said("first " + "x" * 10_000), answered("short", "call"), result("call")], 1000)
    assert len(text) <= 1000
    assert text.startswith("user: first")
    assert "short" in text
    assert "result of work: done" in text
    assert len(render([said("x" * 50)] * 100, 500)) <= 500


class Counting(ScriptedModel):
    """A model to which each character is a token, and which may forget how to count."""

    breaks = False
    asked = 0

    def count_tokens(self, message: Message) -> int:
        self.asked += 1
        if self.breaks:
            raise LookupError("no vocabulary")
        return len(message.text)


@pytest.mark.parametrize("breaks", [False, True])
@bounded
async def test_a_model_may_count_for_itself_and_a_counter_that_breaks_is_reported(breaks: bool) -> None:
    """Section 13: what fills a context after the last answer, and what is kept, by the model's own counter."""
    chat = talker()
    chat.models = model = Counting(
        lambda request: "we spoke" if is_compaction(request) else Reply("fine", usage=Usage(input_tokens=10)),
        context_window=1000,
    )
    model.breaks = breaks
    chat.settings = small(keep_recent_tokens=100, background_tokens=1)
    async with chat.open() as (_, root):
        for text in ("first", "x" * 80, "y" * 80):
            await root.ask(text)
        assert await compacted(root) == []
        await root.ask("z" * 950)  # a quarter of that, by the estimate
        assert model.asked > 0
        if breaks:
            assert await compacted(root) == []
            assert {kind for kind, _ in chat.reported()} == {"task_error"}
            return
        [placed] = await compacted(root)
        assert placed.data == {"reason": "threshold"}
        kept = [m.text for m in (await root.context()).messages]
        assert kept == ["<summary>\nwe spoke\n</summary>", "z" * 950, "fine"]
        assert chat.reports == []


# -- by hand ---------------------------------------------------------------------------------------------------------


@bounded
async def test_an_idle_conversation_is_compacted_at_once() -> None:
    chat = talker("we spoke")
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("and now?")
        task = await root.compact("keep the names")
        shown = (await live(harness, root)).compactions
        assert [(item.task, item.reason) for item in shown] == [(task, "manual")]
        await root.wait_for_idle()
        assert await ended(harness, task) == "completed"
        [placed] = await compacted(root)
        assert placed.data == {"reason": "manual"}
        assert await texts(root) == ["<summary>\nwe spoke\n</summary>", "fine", "and now?", "fine"]
        [asked] = summaries_asked(chat)
        assert "keep the names" in asked
        assert LONG.strip() in asked
        assert "and now?" not in asked
        assert await live(harness, root) == LiveState()
        usage = await harness.snapshot(UsageState, root.id)
        assert usage is not None
        assert usage.requests == 3
        await root.ask("go on")
        assert chat.asked()[0] == "user: <summary>\nwe spoke\n</summary>"


@bounded
async def test_a_conversation_without_anything_to_cut_gets_no_entry() -> None:
    chat = talker()
    async with chat.open() as (harness, root):
        assert await ended(harness, await root.compact()) == "completed"
        await root.ask("hi")
        assert await ended(harness, await root.compact()) == "completed"
        assert (await compacted(root), summaries_asked(chat)) == ([], [])


@bounded
async def test_a_busy_conversation_gets_its_summary_at_the_next_boundary() -> None:
    go = asyncio.Event()

    @tool
    async def work() -> str:
        await go.wait()
        return "worked"

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return calls("work") if last.role == "user" and last.text == "work" else "fine"

    chat = talker("we spoke", answer=answer)
    chat.settings = small()
    chat.install(work)
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        submission = await root.submit("work")
        await eventually(lambda: _running(harness, root))
        assert await ended(harness, await root.compact()) == "completed"
        assert await compacted(root) == []
        [item] = (await root.view()).inbox.items
        assert (item.kind, item.mode) == ("pi.compaction", "write")
        go.set()
        await submission.wait()
        assert (await kinds(root))[-3:] == ["pi.compaction", "pi.system", "pi.assistant"]
        assert (await texts(root))[0] == "<summary>\nwe spoke\n</summary>"
        assert (await harness._submission_record(item.submission)).status == "done"


async def _running(harness: Harness, root: Conversation) -> bool:
    return any(item.status == "running" for item in (await live(harness, root)).tools)


@bounded
async def test_a_run_goes_on_while_a_summary_is_written() -> None:
    go = asyncio.Event()

    async def summary(request: ModelRequest) -> Any:
        await go.wait()
        return "we spoke"

    chat = talker(summary)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("and?")
        task = await root.compact()
        assert (await root.ask("meanwhile")).text == "fine"
        go.set()
        assert await ended(harness, task) == "completed"
        assert await texts(root) == ["<summary>\nwe spoke\n</summary>", "fine", "and?", "fine", "meanwhile", "fine"]


@bounded
async def test_a_summary_that_comes_after_a_reset_is_stale() -> None:
    go = asyncio.Event()

    async def summary(request: ModelRequest) -> Any:
        await go.wait()
        return "late"

    chat = talker(summary)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("and?")
        task = await root.compact()
        await eventually(lambda: len(summaries_asked(chat)) == 1)
        await root.reset("the note")
        go.set()
        assert await ended(harness, task) == "completed"
        assert await compacted(root) == []
        assert await texts(root) == ["the note"]


@bounded
async def test_a_summary_behind_a_queued_reset_is_stale() -> None:
    go, summarise = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        await go.wait()
        return "worked"

    async def summary(request: ModelRequest) -> Any:
        await summarise.wait()
        return "late"

    chat = talker(summary, answer=lambda request: calls("work") if request.messages[-1].text == "work" else "fine")
    chat.settings = small()
    chat.install(work)
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        submission = await root.submit("work")
        await eventually(lambda: _running(harness, root))
        task = await root.compact()
        await root.reset("the note")
        summarise.set()
        assert await ended(harness, task) == "completed"
        [_, item] = (await root.view()).inbox.items
        go.set()
        assert (await submission.wait()).reason == "reset"
        record = await harness._submission_record(item.submission)
        assert (record.status, record.reason) == ("unanswered", "stale")
        assert (await compacted(root), await texts(root)) == ([], ["the note"])


@bounded
async def test_a_tool_that_a_result_asked_for_is_offered_behind_the_summary_too() -> None:
    """Section 12, ``add_tools``: the work that a summary stands for goes on with its tools; a reset starts anew."""

    @tool(deferred=True)
    async def hidden() -> str:
        return "found"

    @tool
    async def reveal() -> ToolResult:
        return ToolResult("revealed", control=ToolControl(add_tools=["hidden"]))

    @tool(deferred=True)
    async def never() -> str:
        return "never"

    chat = talker("one", "two", answer=lambda r: calls("reveal") if r.messages[-1].text == "reveal" else "fine")
    chat.settings = small()
    chat.install(hidden, reveal, never)
    async with chat.open() as (harness, root):
        await root.ask("reveal")
        for _ in range(2):
            for text in (LONG, "b"):
                await root.ask(text)
            await ended(harness, await root.compact())
        await root.ask("c")
        assert [offered.name for offered in chat.model.requests[-1].tools] == ["reveal", "hidden"]
        await root.reset()
        await root.ask("d")
        assert [offered.name for offered in chat.model.requests[-1].tools] == ["reveal"]


@bounded
async def test_of_two_summaries_with_the_same_cut_one_is_placed() -> None:
    chat = talker("one", "two")
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("and?")
        tasks = [await root.compact(), await root.compact()]
        await root.wait_for_idle()
        assert [await ended(harness, task) for task in tasks] == ["completed"] * 2
        assert len(await compacted(root)) == 1


@bounded
async def test_compaction_again_carries_the_earlier_summary_over() -> None:
    chat = talker("one", "two")
    chat.settings = small()
    async with chat.open() as (harness, root):
        for text in (LONG, "a"):
            await root.ask(text)
        await ended(harness, await root.compact())
        for text in (LONG, "b"):
            await root.ask(text)
        await ended(harness, await root.compact())
        assert "<summary>\none\n</summary>" in summaries_asked(chat)[1]
        assert (await texts(root))[0] == "<summary>\ntwo\n</summary>"


@bounded
async def test_a_fork_may_cut_in_what_it_shares() -> None:
    chat = talker("we spoke")
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        shared = await root.ask("b")
        child = await root.fork(shared.id)
        assert await ended(harness, await child.compact()) == "completed"
        assert await texts(child) == ["<summary>\nwe spoke\n</summary>", "fine", "b", "fine"]
        assert await texts(root) == [LONG, "fine", "b", "fine"]
        assert (await child.ask("c")).text == "fine"


# -- by itself -------------------------------------------------------------------------------------------------------


def using(tokens: int) -> Reply:
    return Reply("fine", usage=Usage(input_tokens=tokens))


@bounded
async def test_above_the_threshold_the_generation_waits_for_it() -> None:
    sizes = [10, 950, 20]
    chat = talker("we spoke", answer=lambda request: using(sizes.pop(0)), context_window=1000)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        await root.ask("c")
        [placed] = await compacted(root)
        assert placed.data == {"reason": "threshold"}
        assert await kinds(root) == ["pi.user", "pi.assistant"] * 2 + ["pi.user", "pi.compaction", "pi.assistant"]
        assert chat.asked()[0] == "user: <summary>\nwe spoke\n</summary>"
        assert len(chat.model.requests) == 4
        owners = [task.owner async for task in harness.tasks(kind="pi.compaction")]
        assert len(owners) == 1
        assert owners[0] is not None
        assert await live(harness, root) == LiveState()


@bounded
async def test_near_the_threshold_it_runs_in_the_background() -> None:
    go = asyncio.Event()

    async def summary(request: ModelRequest) -> Any:
        await go.wait()
        return "we spoke"

    sizes = [10, 850, 850, 850]
    chat = talker(summary, answer=lambda request: using(sizes.pop(0)), context_window=1000)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        for text in ("b", "c", "d"):
            assert (await root.ask(text)).text == "fine"
        [task] = await harness.tasks(kind="pi.compaction").list()
        assert (task.background, task.owner) == (True, None)
        assert [item.reason for item in (await live(harness, root)).compactions] == ["threshold"]
        await root.wait_for_idle()
        go.set()
        assert await ended(harness, task.id) == "completed"
        assert len(await compacted(root)) == 1


@bounded
async def test_a_full_context_waits_for_the_compaction_that_is_going_on() -> None:
    go = asyncio.Event()

    async def summary(request: ModelRequest) -> Any:
        await go.wait()
        return "we spoke"

    sizes = [10, 950, 20]
    chat = talker(summary, answer=lambda request: using(sizes.pop(0)), context_window=1000)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        await root.compact()
        submission = await root.submit("c")
        await eventually(lambda: _waits(harness))
        go.set()
        await submission.wait()
        assert len(await compacted(root)) == len(summaries_asked(chat)) == 1
        assert chat.asked()[0] == "user: <summary>\nwe spoke\n</summary>"


async def _waits(harness: Harness) -> bool:
    found = await harness.tasks(kind=GenerationTask.name, status="waiting").list()
    return bool(found)


@bounded
async def test_it_does_nothing_by_itself_when_it_is_off() -> None:
    answers: list[Any] = [using(950), Reply(error="maximum context length exceeded")]
    chat = talker(answer=lambda request: answers.pop(0), context_window=1000)
    chat.settings = small(enabled=False)
    async with chat.open() as (_, root):
        await root.ask(LONG)
        assert (await (await root.submit("b")).wait()).reason == "model_error"
        assert summaries_asked(chat) == []


@bounded
async def test_a_window_below_the_reserve_does_not_compact_each_turn() -> None:
    chat = talker(context_window=2000)
    async with chat.open() as (harness, root):
        for text in ("a", "b", "c"):
            await root.ask(text)
        assert await harness.tasks(kind="pi.compaction").list() == []


@bounded
async def test_a_compaction_that_fails_does_not_stop_the_run() -> None:
    sizes = [10, 950, 20]
    chat = talker(Reply(error="bad request"), answer=lambda request: using(sizes.pop(0)), context_window=1000)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        assert (await root.ask("c")).text == "fine"
        failure = (await live(harness, root)).compaction_failure
        assert failure is not None
        assert failure.message == "bad request"


# -- after an overflow -----------------------------------------------------------------------------------------------

TOO_LONG = Reply(error="400 maximum context length is 1000 tokens")


@bounded
async def test_an_overflow_compacts_and_sends_again() -> None:
    answers: list[Any] = ["fine", TOO_LONG, "at last"]
    chat = talker("we spoke", answer=lambda request: answers.pop(0))
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        assert (await root.ask("b")).text == "at last"
        [placed] = await compacted(root)
        assert placed.data == {"reason": "overflow"}
        assert chat.asked() == ["user: <summary>\nwe spoke\n</summary>", "assistant: fine", "user: b"]
        assert (await kinds(root))[-3:] == ["pi.assistant", "pi.compaction", "pi.assistant"]
        assert await live(harness, root) == LiveState()


@bounded
async def test_a_second_overflow_fails_the_run_even_behind_a_retry() -> None:
    answers: list[Any] = ["fine", TOO_LONG, Reply(error="503 unavailable"), TOO_LONG]
    chat = talker("we spoke", answer=lambda request: answers.pop(0))
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        record = await (await root.submit("b")).wait()
        assert (record.status, record.reason) == ("unanswered", "model_error")
        assert len(await compacted(root)) == 1
        failure = (await live(harness, root)).run_failure
        assert failure is not None
        assert "maximum context length" in str(failure.detail)


@bounded
async def test_an_answer_that_a_full_context_left_no_room_for_is_an_overflow() -> None:
    full = Reply(stop_reason="length", usage=Usage(input_tokens=1000))
    answers: list[Any] = ["fine", full, "at last"]
    chat = talker("we spoke", answer=lambda request: answers.pop(0), context_window=1000)
    chat.settings = small()
    async with chat.open() as (_, root):
        await root.ask(LONG)
        assert (await root.ask("b")).text == "at last"
        assert len(await compacted(root)) == 1


@pytest.mark.parametrize("comes", ["while the request runs", "while it sleeps"])
@bounded
async def test_the_next_attempt_reads_a_summary_that_came_meanwhile(comes: str) -> None:
    """A request that failed reads its context anew: the summary need not wait for the run's next boundary."""
    clock = ManualClock(100.0)
    asked, go = asyncio.Event(), asyncio.Event()

    async def fails() -> Any:
        asked.set()
        if comes == "while the request runs":
            await go.wait()
        return Reply(error="503 unavailable")

    answers: list[Any] = ["fine", fails, "at last"]

    def answer(request: ModelRequest) -> Any:
        found = answers.pop(0)
        return found() if callable(found) else found

    chat = talker("we spoke", answer=answer, clock=clock)
    chat.settings = small().replaced(retry=RetryPolicy(base_delay=60.0))
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        submission = await root.submit("b")
        await asked.wait()
        if comes == "while it sleeps":
            await eventually(lambda: _asleep(harness))
        assert await ended(harness, await root.compact()) == "completed"
        assert len((await root.view()).inbox.items) == (comes == "while the request runs")
        go.set()
        await eventually(lambda: _asleep(harness))
        assert len(await compacted(root)) == 1
        assert (await root.view()).inbox.items == ()
        clock.advance(60.0)
        harness.resume()
        assert (await submission.wait()).status == "done"
        assert chat.asked() == ["user: <summary>\nwe spoke\n</summary>", "assistant: fine", "user: b"]
        assert [record.status async for record in harness.submissions()] == ["done"] * (3 - (comes[-6:] == "sleeps"))


async def _asleep(harness: Harness) -> bool:
    return bool(await harness.tasks(kind=GenerationTask.name, status="sleeping").list())


@bounded
async def test_an_overflow_of_a_context_that_was_compacted_meanwhile_is_only_sent_again() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def too_long() -> Any:
        asked.set()
        await go.wait()
        return TOO_LONG

    answers: list[Any] = ["fine", too_long, "at last"]

    def answer(request: ModelRequest) -> Any:
        found = answers.pop(0)
        return found() if callable(found) else found

    chat = talker("we spoke", answer=answer)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        submission = await root.submit("b")
        await asked.wait()
        await ended(harness, await root.compact())
        go.set()
        assert (await submission.wait()).status == "done"
        assert len(summaries_asked(chat)) == len(await compacted(root)) == 1
        assert chat.asked() == ["user: <summary>\nwe spoke\n</summary>", "assistant: fine", "user: b"]


# -- hooks -----------------------------------------------------------------------------------------------------------


async def _hooked(*hooks: Any) -> tuple[Chat, list[str], list[list[str]]]:
    """Compact with these hooks, each in an extension of its own: what is read then, and what they were given."""
    seen: list[list[str]] = []
    chat = talker("the model's")
    chat.settings = small()

    def noting(hook: Any) -> Any:
        def before_compact(messages: tuple[Message, ...], ctx: Any) -> Any:
            seen.append([message.text for message in messages])
            assert ctx.conversation_id == 1
            return hook()

        return before_compact

    for hook in hooks:
        chat.install(hooks=[CompactionHooks(before_compact=noting(hook))])
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        assert await ended(harness, await root.compact()) == "completed"
        return chat, await texts(root), seen


@bounded
async def test_a_hook_may_decline() -> None:
    chat, read, seen = await _hooked(lambda: None, Decline, lambda: Summary("never"))
    assert read == [LONG, "fine", "b", "fine"]
    assert seen == [[LONG]] * 2
    assert summaries_asked(chat) == []


@bounded
async def test_a_hook_may_supply_the_summary_and_the_first_wins() -> None:
    chat, read, _ = await _hooked(lambda: Summary("mine"), lambda: Summary("never"))
    assert read[0] == "<summary>\nmine\n</summary>"
    assert summaries_asked(chat) == []


@bounded
async def test_a_hook_that_raises_or_returns_nonsense_is_reported() -> None:
    def broken() -> Any:
        raise ValueError("broken")

    chat, read, _ = await _hooked(broken, lambda: "text")
    assert read[0] == "<summary>\nthe model's\n</summary>"
    assert chat.reported() == [("extension_error", "before_compact")] * 2


# -- failures, stops and crashes -------------------------------------------------------------------------------------


@bounded
async def test_a_retryable_error_is_slept_over_and_counted() -> None:
    clock = ManualClock(100.0)
    chat = talker(Reply(error="503 unavailable", usage=Usage(input_tokens=7)), "we spoke", clock=clock)
    chat.settings = small().replaced(retry=RetryPolicy(base_delay=5.0))
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        task = await root.compact()

        async def sleeping() -> Any:
            record = await harness.task(task)
            return record is not None and record.state.status == "sleeping"

        await eventually(sleeping)
        assert len((await live(harness, root)).compactions) == 1
        clock.advance(5.0)
        harness.resume()
        assert await ended(harness, task) == "completed"
        assert len(await compacted(root)) == 1
        usage = await harness.snapshot(UsageState, root.id)
        assert usage is not None
        assert usage.requests == 4


@bounded
@pytest.mark.parametrize("answer", [Reply(error="401 no"), Reply("  "), calls(call("work"))])
async def test_a_failure_is_shown_until_the_next_one_starts(answer: Any) -> None:
    chat = talker(answer, "we spoke")
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        assert await ended(harness, await root.compact()) == "failed"
        shown = await live(harness, root)
        assert shown.compaction_failure is not None
        assert shown.compactions == ()
        assert await compacted(root) == []
        await root.compact()
        assert (await live(harness, root)).compaction_failure is None
        await root.wait_for_idle()
        assert len(await compacted(root)) == 1


@bounded
async def test_without_a_model_it_fails() -> None:
    chat = talker()
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        chat.models = ()
        assert await ended(harness, await root.compact()) == "failed"
        failure = (await live(harness, root)).compaction_failure
        assert failure is not None
        assert "No model" in failure.message


@bounded
async def test_a_model_that_a_compaction_needs_and_this_process_lacks_is_unresolved(tmp_path: Path) -> None:
    """Section 10, ``inspect().unresolved``."""
    chat = talker(Hang(), path=tmp_path / "chat.sqlite", name="scripted:named")
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.configure(model="scripted:named")
        await root.ask(LONG)
        await root.ask("b")
        await root.compact()
        await eventually(lambda: len(summaries_asked(chat)) == 1)
        assert (await harness.inspect()).unresolved == ()
    async with Harness.open(tmp_path / "chat.sqlite") as harness:
        assert (await harness.inspect()).unresolved == ("model scripted:named",)


@bounded
async def test_stopping_the_conversation_stops_it() -> None:
    chat = talker(Hang())
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        task = await root.compact()
        await eventually(lambda: len(summaries_asked(chat)) == 1)
        await root.abort()
        assert await ended(harness, task) == "aborted"
        assert await live(harness, root) == LiveState()


@bounded
async def test_one_in_the_background_is_stopped_where_that_is_asked_for() -> None:
    sizes = [10, 850, 850]
    chat = talker(Hang(), answer=lambda request: using(sizes.pop(0)), context_window=1000)
    chat.settings = small()
    async with chat.open() as (harness, root):
        for text in (LONG, "b", "c"):
            await root.ask(text)
        await root.abort()
        assert len((await live(harness, root)).compactions) == 1
        await root.abort(background=True)
        assert await live(harness, root) == LiveState()


@bounded
async def test_stopping_a_run_that_waits_for_it_stops_both() -> None:
    sizes = [10, 950]
    chat = talker(Hang(), answer=lambda request: using(sizes.pop(0)), context_window=1000)
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        submission = await root.submit("c")
        await eventually(lambda: len(summaries_asked(chat)) == 1)
        await root.abort()
        assert (await submission.wait()).reason == "aborted"
        assert (await live(harness, root)).compactions == ()


@bounded
async def test_one_that_breaks_is_not_shown_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = talker()
    chat.settings = small()
    async with chat.open() as (harness, root):
        await root.ask(LONG)
        await root.ask("b")
        monkeypatch.setattr("pidurable_nb.agent.compaction.select", lambda *_: 1 / 0)
        assert await ended(harness, await root.compact()) == "faulted"
        shown = await live(harness, root)
        assert shown.compactions == ()
        assert shown.compaction_failure is not None
        assert "ZeroDivisionError" in shown.compaction_failure.message


@bounded
async def test_it_goes_on_in_the_next_process(tmp_path: Path) -> None:
    first = talker(Hang(), path=tmp_path / "chat.sqlite")
    first.settings = small()
    async with first.open() as (_, root):
        await root.ask(LONG)
        await root.ask("b")
        task = await root.compact()
        await eventually(lambda: len(summaries_asked(first)) == 1)
    second = talker("we spoke", path=tmp_path / "chat.sqlite")
    second.settings = small()
    async with second.open() as (harness, root):
        assert [item.task for item in (await live(harness, root)).compactions] == [task]
        await root.wait_for_idle()
        assert (await texts(root))[0] == "<summary>\nwe spoke\n</summary>"
        assert await live(harness, root) == LiveState()


@bounded
async def test_the_events_tell_of_it() -> None:
    chat = talker("we spoke")
    chat.settings = small()
    async with chat.open() as (_, root):
        await root.ask(LONG)
        await root.ask("b")
        async with root.watch_events() as watch:
            await root.compact()
            seen: list[str] = []
            while "compaction_end" not in seen:
                seen.extend(event.type for event in await anext(aiter(watch)))
        assert seen.index("compaction_start") < seen.index("compaction_end")
