"""What the Conversation widget shows of committed state: blocks, their keys, what waits, and the state in words."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from pidurable_nb import patch
from pidurable_nb.agent.conversation import ConversationView
from pidurable_nb.agent.state import (
    AgentState,
    InboxItem,
    InboxState,
    LiveApproval,
    LiveDeferred,
    LiveGeneration,
    LiveRetry,
    LiveRun,
    LiveState,
    LiveTool,
    RunFailure,
    UsageState,
)
from pidurable_nb.messages import (
    AssistantMessage,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from pidurable_nb.notebook.talkview import TalkView, talk_view
from pidurable_nb.notebook.view import TextItem, ToolItem
from pidurable_nb.notebook.widgets_talk import ConversationWidget
from pidurable_nb.records import ConversationRecord, Entry, ForkPoint

CALL = ToolCall(id="c1", name="weather", arguments={"city": "Paris"})
RUN = LiveRun(task=9, first=1, inputs=(2,))


def asked(id: int, text: str) -> Entry:
    return Entry(id=id, conversation_id=1, kind="pi.user", messages=(UserMessage([TextBlock(text)]),))


def message(text: str, *, reason: str = "stop", calls: tuple[ToolCall, ...] = ()) -> AssistantMessage:
    content = [*([TextBlock(text)] if text else []), *calls]
    return AssistantMessage(content=content, model="m", stop_reason=reason, timestamp=5.0)


def said(id: int, text: str, **options: Any) -> Entry:
    return Entry(id=id, conversation_id=1, kind="pi.assistant", messages=(message(text, **options),), by_task=9)


def result(id: int, text: str) -> Entry:
    told = ToolResultMessage(call_id="c1", tool_name="weather", content=[TextBlock(text)])
    return Entry(id=id, conversation_id=1, kind="pi.tool-result", messages=(told,))


def conversation(live: LiveState | None = None, **fields: Any) -> ConversationView:
    fields = {"agent": AgentState(), "inbox": InboxState(), "usage": UsageState()} | fields
    record = fields.pop("record", ConversationRecord(id=1))
    return ConversationView(record=record, entries=(), live=live or LiveState(), **fields)


def streaming(text: str | None, **fields: Any) -> LiveState:
    partial = None if text is None else message(text)
    return LiveState(run=RUN, generation=LiveGeneration(model="m", started_at=3.0, message=partial, **fields))


def keys(view: TalkView) -> list[str]:
    return [block.key for block in view.blocks]


def test_a_response_keeps_its_block_when_it_is_stored() -> None:
    text = "The capital of France is Paris."
    views = [
        talk_view(conversation(streaming(None)), [asked(1, "capital?")]),
        talk_view(conversation(streaming(text[:12])), [asked(1, "capital?")]),
        talk_view(conversation(streaming(text)), [asked(1, "capital?")]),
        talk_view(conversation(), [asked(1, "capital?"), said(4, text)]),
    ]
    assert {tuple(keys(view)) for view in views} == {("1", "1.0")}
    ops = patch.diff(views[-2].wire(), views[-1].wire())
    assert text not in str(ops)
    assert views[-1].wire()["blocks"]["1.0"]["entry"] == 4


def test_what_is_written_while_a_response_streams_moves_nothing() -> None:
    note = Entry(id=3, conversation_id=1, kind="app.note", data={"a": 1})
    before = talk_view(conversation(streaming("half of it")), [asked(1, "?")])
    during = talk_view(conversation(streaming("half of it, and")), [asked(1, "?"), note])
    after = talk_view(conversation(), [asked(1, "?"), note, said(4, "half of it, and all")])
    assert keys(before) == ["1", "1.0"]
    assert keys(during) == keys(after) == ["1", "3", "1.0"]


def test_results_stand_in_the_cards_of_their_calls() -> None:
    entries = [asked(1, "?"), said(2, "", reason="tool_use", calls=(CALL,)), result(3, "12 °C"), said(4, "Cold.")]
    view = talk_view(conversation(), entries)
    assert keys(view) == ["1", "1.0", "1.1"]
    card = view.blocks[1].answer.items[0]  # type: ignore[union-attr]
    assert isinstance(card, ToolItem)
    assert (card.status, card.result) == ("done", "12 °C")
    assert [block.task for block in view.blocks] == [None, 9, 9]
    # The window may begin in the middle of a round.
    assert [block.who for block in talk_view(conversation(), entries[2:], earlier=True).blocks] == [
        "tool weather",
        "answer",
    ]


def test_a_call_that_runs_or_waits_for_a_person_shows_it_in_the_newest_round_alone() -> None:
    earlier = [asked(1, "?"), said(2, "", reason="tool_use", calls=(CALL,)), result(3, "12 °C")]
    round = [*earlier, said(4, "", reason="tool_use", calls=(CALL,))]
    tool = LiveTool(call="c1", name="weather", task=7, status="running", output="looking")
    running = talk_view(conversation(LiveState(run=RUN, tools=(tool,))), round)
    assert [block.answer.items[0].status for block in running.blocks[1:]] == ["done", "running"]  # type: ignore[union-attr]
    asks = LiveState(run=RUN, approvals=(LiveApproval(call="c1", name="weather", at=1.0),))
    waiting = talk_view(conversation(asks), round)
    assert waiting.state == "waiting"
    assert "%durable approve c1" in str(waiting.problem)
    wire = waiting.wire()["blocks"]
    assert wire["1.0"]["items"][0]["asks"] is None
    assert wire["1.1"]["items"][0]["asks"]["call"] == "c1"


def test_what_a_crash_cut_off_is_struck_and_what_a_person_stopped_is_kept() -> None:
    entries = [asked(1, "?"), said(2, "half", reason="aborted"), said(3, "half again", reason="aborted")]
    view = talk_view(conversation(), entries, stopped={1})
    struck = [block.wire()["items"][0]["struck"] for block in view.blocks[1:]]
    assert struck == [True, False]
    assert [block.wire()["items"][0]["label"] for block in view.blocks[1:]] == [
        "cut off when its process ended · kept",
        "stopped here · kept",
    ]


@pytest.mark.parametrize(
    ("live", "options", "state", "problem"),
    [
        (LiveState(), {}, "idle", None),
        (streaming("a"), {}, "running", None),
        (streaming(None, retry=LiveRetry(at=50.0, error="503")), {}, "retrying", "503"),
        (streaming(None, deferred=LiveDeferred(at=50.0, model="m")), {}, "deferred", "asked for again at"),
        (LiveState(), {"held": "paused: `%durable resume` starts it"}, "paused", "%durable resume"),
        (LiveState(run_failure=RunFailure(reason="model_error", first=1)), {}, "failed", "the model failed"),
        (LiveState(run_failure=RunFailure(reason="aborted", first=1)), {}, "idle", None),
        (streaming("a"), {"over": "the session was closed here"}, "over", "closed here"),
    ],
)
def test_the_state_in_words(live: LiveState, options: Any, state: str, problem: str | None) -> None:
    view = talk_view(conversation(live), [asked(1, "?")], **options)
    assert view.state == state
    assert (view.problem is None) if problem is None else (problem in str(view.problem))
    assert view.busy == (state in ("running", "retrying", "deferred"))
    assert view.retry_at == (50.0 if state == "retrying" else None)


def test_what_waits_what_was_spent_and_where_it_came_from() -> None:
    items = (
        InboxItem(submission=5, type="input", mode="steer", content=(TextBlock("metric units"),)),
        InboxItem(submission=6, type="write", mode="reset", kind="pi.reset"),
    )
    usage = UsageState(models={"m": Usage(input_tokens=1200, output_tokens=34, cost=0.0125)}, requests=2)
    record = ConversationRecord(id=8, parent=ForkPoint(conversation=1, at=4))
    view = talk_view(
        conversation(streaming("x"), inbox=InboxState(items=items), usage=usage, record=record), [], model="local:m"
    )
    assert view.wire()["waiting"] == [
        {"id": 5, "mode": "steers", "text": "metric units"},
        {"id": 6, "mode": "new context", "text": "pi.reset"},
    ]
    assert view.usage == ("2 requests", "1,234 tokens", "$0.0125")
    assert view.facts == ("conversation 8", "local:m", "forked from 1 at #4")
    assert view.wire()["origin"] == 1


def test_forms_of_blocks_that_stay_are_made_once() -> None:
    known: dict[str, Any] = {}
    entries = [asked(1, "?"), said(2, "one")]
    first = talk_view(conversation(), entries).wire(known)
    second = talk_view(conversation(streaming("x")), [*entries, asked(3, "and?")]).wire(known)
    assert second["blocks"]["1.0"] is first["blocks"]["1.0"]
    assert sorted(known) == ["1", "1.0", "3", "3.0"]
    third = talk_view(conversation(), [asked(3, "and?")], earlier=True).wire(known)
    assert sorted(third["blocks"]) == sorted(known) == ["3"]


def test_text_of_an_answer_comes_whole_and_other_text_clipped_and_clean() -> None:
    long = "x" * 30_000
    tool = Entry(id=1, conversation_id=1, kind="pi.tool-result", messages=result(1, long + "\x1b[31m").messages)
    view = talk_view(conversation(), [tool, said(2, long)])
    blocks = view.wire()["blocks"]
    assert len(blocks["1"]["text"]) < 20_100
    assert "%durable show 1" in blocks["1"]["text"]
    item = view.blocks[1].answer.items[0]  # type: ignore[union-attr]
    assert isinstance(item, TextItem)
    assert blocks["0.0"]["items"][0]["text"] == long


def test_a_hundred_kilobytes_of_answer_cost_less_than_one_and_a_half_times_their_size() -> None:
    # From the first word to the stored entry; each step stands for one message.
    whole = "twenty characters.. " * 5_000
    entries = [asked(1, "a long one, please")]
    views = [talk_view(conversation(streaming(whole[:cut])), entries) for cut in range(0, len(whole) + 1, 2_000)]
    views.append(talk_view(conversation(), [*entries, said(4, whole)]))
    known: dict[str, Any] = {}
    forms = [view.wire(known) for view in views]
    sent = sum(len(json.dumps(patch.diff(old, new), separators=(",", ":"))) for old, new in pairwise(forms))
    assert sent < 1.15 * len(whole)
    module = len(ConversationWidget._esm) + len(ConversationWidget._css)
    assert sent + module < 1.5 * len(whole)
