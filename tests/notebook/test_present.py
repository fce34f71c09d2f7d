"""From records and live documents to what is shown; see notebook.md, "What is shown"."""

from __future__ import annotations

from typing import Any

import pytest

from pidurable_nb.agent.harness import InspectedTask, Inspection, TaskPending
from pidurable_nb.agent.state import LiveApproval, LiveDeferred, LiveGeneration, LiveRetry, LiveRun, LiveState, LiveTool
from pidurable_nb.messages import (
    AssistantMessage,
    ImageBlock,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from pidurable_nb.notebook.present import answer_view, recovery_view, tasks_view, transcript_view
from pidurable_nb.notebook.view import AnswerView, TextItem, ToolItem
from pidurable_nb.records import (
    Attempt,
    Completed,
    Entry,
    ErrorInfo,
    Failed,
    Life,
    Running,
    Sleeping,
    SubmissionRecord,
    TaskRecord,
    Terminal,
    Waiting,
)
from pidurable_nb.tasks import TaskGraph
from pidurable_nb.tasks.graph import TaskNode

CALL = ToolCall(id="call-1", name="weather", arguments={"city": "Paris"})


def record(**fields: Any) -> SubmissionRecord:
    given = {"id": 5, "conversation_id": 1, "type": "input", "status": "running", "entry": 6} | fields
    if given["status"] == "running":
        given["status"] = "placed"
    return SubmissionRecord.model_validate(given)


def said(id: int, text: str, *, reason: str = "stop", calls: tuple[ToolCall, ...] = (), **fields: Any) -> Entry:
    blocks = [*([TextBlock(text)] if text else []), *calls]
    message = AssistantMessage(
        content=blocks,
        model="m:x",
        stop_reason=reason,
        usage=Usage(input_tokens=3, output_tokens=2, cost=0.1),
        **fields,
    )
    return Entry(id=id, conversation_id=1, kind="pi.assistant", messages=(message,))


def result(id: int, text: str, *, is_error: bool = False, **data: Any) -> Entry:
    message = ToolResultMessage(call_id="call-1", tool_name="weather", content=text, is_error=is_error, duration=0.5)
    return Entry(id=id, conversation_id=1, kind="pi.tool-result", messages=(message,), data=data or None)


def asked(id: int, text: str) -> Entry:
    return Entry(id=id, conversation_id=1, kind="pi.user", messages=(UserMessage(content=text),))


def live(**fields: Any) -> LiveState:
    return LiveState(run=LiveRun(task=9, first=6, inputs=(5,)), **fields)


def view(
    of: SubmissionRecord, entries: tuple[Entry, ...] = (), state: LiveState | None = None, **more: Any
) -> AnswerView:
    return answer_view(of, "hello", entries, state or LiveState(), now=1000.0, **more)


def placed() -> SubmissionRecord:
    return record(status="placed")


# -- answers ---------------------------------------------------------------------------------------------------------


def test_a_finished_answer_counts_what_it_took() -> None:
    shown = view(record(status="done", answer=8), (said(8, "well", timestamp=104.0, duration=4.0),))
    assert shown.status == "done"
    assert shown.text == "well"
    assert shown.attempt == 1
    assert shown.elapsed == 4.0
    assert (shown.input_tokens, shown.output_tokens, shown.cost) == (3, 2, 0.1)
    assert not shown.can_stop


def test_what_comes_after_the_answer_is_not_part_of_it() -> None:
    entries = (said(8, "mine"), asked(10, "next"), said(12, "not mine"))
    assert view(record(status="done", answer=8), entries).text == "mine"
    aborted = record(status="unanswered", reason="aborted")
    assert [item.text for item in view(aborted, (said(8, "half", reason="aborted"), *entries[1:])).items] == ["half"]


@pytest.mark.parametrize(
    ("media_type", "data", "shown"),
    [
        ("image/png", "aGk=", ("data:image/png;base64,aGk=",)),
        ("image/webp", "aGkh", ("data:image/webp;base64,aGkh",)),
        ("image/svg+xml", "aGk=", ()),  # it may hold a script
        ("text/html", "aGk=", ()),
        ("image/png", 'aGk="onerror="x()', ()),
        ("image/png", "", ()),
        ("image/png", "A" * 2_000_004, ()),
    ],
)
def test_images_of_a_result_are_shown_where_they_hold_nothing_else(
    media_type: str, data: str, shown: tuple[str, ...]
) -> None:
    content = [TextBlock("two"), ImageBlock(media_type, data)]
    message = ToolResultMessage(call_id="call-1", tool_name="weather", content=content)
    found = Entry(id=8, conversation_id=1, kind="pi.tool-result", messages=(message,))
    [item] = view(placed(), (said(7, "", reason="tool_use", calls=(CALL,)), found)).items
    assert isinstance(item, ToolItem)
    assert (item.result, item.pictures) == ("two", shown)


def test_a_cut_off_attempt_is_kept_above_the_new_one() -> None:
    shown = view(record(status="done", answer=9), (said(8, "half", reason="aborted"), said(9, "whole")))
    first, second = shown.items
    assert isinstance(first, TextItem)
    assert first.state == "aborted"
    assert shown.superseded(first)
    assert not shown.superseded(second)
    assert shown.text == "whole"
    assert shown.attempt == 2


@pytest.mark.parametrize(
    ("state", "more", "status"),
    [
        (LiveState(), {}, "queued"),
        (live(), {}, "running"),
        (live(generation=LiveGeneration(retry=LiveRetry(at=1010.0, error="503"))), {}, "retrying"),
        (live(generation=LiveGeneration(deferred=LiveDeferred(at=1060.0, model="m:x"))), {}, "deferred"),
        (live(), {"held": "for tool `weather`"}, "waiting"),
    ],
)
def test_the_state_is_that_of_the_run(state: LiveState, more: dict[str, Any], status: str) -> None:
    shown = view(placed(), (), state, **more)
    assert shown.status == status
    assert shown.can_stop
    assert shown.badge.word


def test_a_queued_question_says_what_it_waits_for() -> None:
    other = LiveState(run=LiveRun(task=9, first=2, inputs=(1,)))
    assert view(record(status="queued", entry=None), (), other).problem == "the run before it is still going on"


@pytest.mark.parametrize(
    ("reason", "detail", "problem"),
    [
        ("no_model", {"message": "choose one"}, "the conversation has no model: %durable model NAME sets one"),
        ("model_error", {"message": "503"}, "the model failed: 503"),
        ("limit", None, "a spending limit was reached"),
        ("something new", None, "something new"),
    ],
)
def test_why_there_is_no_answer_is_said_in_words(reason: str, detail: Any, problem: str) -> None:
    assert view(record(status="unanswered", reason=reason, detail=detail)).problem == problem


def test_a_growing_part_keeps_its_key_when_it_is_stored() -> None:
    half = AssistantMessage(content=[TextBlock("so f")], model="m:x", stop_reason="stop")
    growing = view(placed(), (), live(generation=LiveGeneration(message=half)))
    stored = view(record(status="done", answer=8), (said(8, "so far"),))
    assert growing.items[0].key == stored.items[0].key
    assert isinstance(growing.items[0], TextItem)
    assert growing.items[0].state == "streaming"


def test_calls_show_their_own_results_where_a_provider_uses_an_id_again() -> None:
    entries = (
        said(7, "", reason="tool_use", calls=(CALL,)),
        result(8, "rain"),
        said(9, "", reason="tool_use", calls=(CALL,)),
        result(10, "it broke", is_error=True, code="tool_error"),
        said(11, "done"),
    )
    shown = view(record(status="done", answer=11), entries)
    first, second = (item for item in shown.items if isinstance(item, ToolItem))
    assert (first.result, first.status) == ("rain", "done")
    assert (second.result, second.status) == ("it broke", "error")
    assert first.key != second.key


@pytest.mark.parametrize("code", ["interrupted", "blocked", "aborted"])
def test_the_code_of_a_result_says_how_the_call_ended(code: str) -> None:
    entries = (said(7, "", reason="tool_use", calls=(CALL,)), result(8, "no", is_error=True, code=code))
    (item,) = view(placed(), entries, live()).items
    assert isinstance(item, ToolItem)
    assert item.status == code


def test_a_running_call_shows_its_output() -> None:
    tool = LiveTool(call="call-1", name="weather", task=10, status="running", replay="safe", output="half way")
    (item,) = view(placed(), (said(7, "", reason="tool_use", calls=(CALL,)),), live(tools=(tool,))).items
    assert isinstance(item, ToolItem)
    assert (item.status, item.output, item.replay, item.result) == ("running", "half way", "safe", None)


@pytest.mark.parametrize("tools", [(), (LiveTool(call="call-1", name="weather", task=10),)])
def test_a_call_that_waits_for_a_person_says_so(tools: tuple[LiveTool, ...]) -> None:
    approval = LiveApproval(call="call-1", name="weather", at=1.0, arguments={"city": "Paris"})
    state = live(tools=tools, approvals=(approval,))
    (item,) = view(placed(), (said(7, "", reason="tool_use", calls=(CALL,)),), state).items
    assert isinstance(item, ToolItem)
    assert item.badge == ("!", "waits for you", "warn")
    (item,) = view(placed(), (said(7, "", reason="tool_use", calls=(CALL,)),), live(tools=tools)).items
    assert isinstance(item, ToolItem)
    assert item.badge.word == "waits its turn"


def test_a_stop_that_was_heard_says_what_it_waits_for() -> None:
    tool = LiveTool(call="call-1", name="weather", task=10, status="running")
    assert view(placed(), (), live(tools=(tool,)), stopping=True).stopping == "stopping: waits for `weather` to return"
    assert view(placed(), (), live(), stopping=True).wire()["stopping"] == "stopping…"
    assert view(placed(), (), live(tools=(tool,))).stopping is None
    assert view(record(status="done", answer=8), (said(8, "x"),), stopping=True).stopping is None


def test_a_stopped_answer_began_when_it_was_asked_for() -> None:
    stopped = record(status="unanswered", reason="aborted")
    assert view(stopped, (said(8, "half", reason="aborted", timestamp=104.0),), began=101.5).elapsed == 2.5
    entries = (said(7, "a", timestamp=104.0, duration=3.0), said(8, "half", reason="aborted", timestamp=110.0))
    assert view(stopped, entries, began=50.0).elapsed == 9.0


def test_a_steering_message_is_said_in_its_place() -> None:
    shown = view(placed(), (said(7, "one", reason="tool_use", calls=(CALL,)), asked(8, "in metric units")), live())
    assert shown.items[-1].text == "steered: in metric units"


# -- recovery --------------------------------------------------------------------------------------------------------


def lives(ended: str | None = None) -> list[Life]:
    before = Life.model_validate({"id": 1, "pid": 77, "host": "vm", "opened_at": 10.0, "ended": ended})
    return [before, Life(id=2, pid=78, host="vm", opened_at=20.0)]


def task(id: int, kind: str, phase: str, *, input: Any = None, **checkpoint: Any) -> TaskRecord:
    state = Running(checkpoint={"phase": phase, **checkpoint})
    return TaskRecord(id=id, conversation_id=1, kind=kind, version=1, state=state, input=input)


def inspection(*tasks: TaskRecord, submissions: tuple[SubmissionRecord, ...] = ()) -> Inspection:
    found = tuple(InspectedTask(record=item, state=TaskPending(migrates=False)) for item in tasks)
    return Inspection(scheduling="paused", tasks=found, submissions=submissions)


def recovered(*tasks: TaskRecord, state: LiveState | None = None, cut: tuple[int, ...] = (), **more: Any) -> Any:
    options: dict[str, Any] = {"prompts": {5: "hello"}, "paused": False, "waiting_for": ()} | more
    attempts = [Attempt(task=id, life=1, phase="request", started_at=11.0, end="cut_off") for id in cut]
    submissions = options.pop("submissions", ())
    ended = options.pop("ended", None)
    return recovery_view(
        "chat.sqlite",
        lives(ended),
        inspection(*tasks, submissions=submissions),
        state or LiveState(),
        attempts,
        **options,
    )


def test_a_new_file_was_empty() -> None:
    shown = recovery_view("x", lives()[1:], inspection(), LiveState(), [], prompts={}, paused=False, waiting_for=())
    assert shown.previous == "new"
    assert shown.rows == ()


@pytest.mark.parametrize(("ended", "previous"), [(None, "crashed"), ("closed", "closed"), ("failed", "failed")])
def test_the_card_says_how_the_last_life_ended(ended: str | None, previous: str) -> None:
    shown = recovered(ended=ended)
    assert shown.previous == previous
    assert shown.previous_pid == 77


def test_a_cut_off_answer_is_asked_again() -> None:
    half = AssistantMessage(content=[TextBlock("x" * 1234)], model="m:x", stop_reason="stop")
    state = LiveState(run=LiveRun(task=9, first=6, inputs=(5,)), generation=LiveGeneration(message=half))
    (row,) = recovered(task(9, "pi.generation", "request"), state=state, cut=(9,)).rows
    assert row.was == "streaming when the process ended, 1,234 characters stored"
    assert "asked again" in row.will
    assert "hello" in row.title
    (row,) = recovered(task(9, "pi.generation", "request")).rows
    assert row.was == "asked, nothing had arrived"


@pytest.mark.parametrize(
    ("checkpoint", "will", "level"),
    [
        ({"phase": "execute", "replay": "safe"}, "runs again: it is safe to repeat", "info"),
        ({"phase": "execute", "replay": "unsafe"}, "is reported as interrupted: not safe to repeat", "warn"),
        ({"phase": "prepare"}, "starts", "info"),
    ],
)
def test_tools_run_again_or_are_reported(checkpoint: dict[str, Any], will: str, level: str) -> None:
    phase = checkpoint.pop("phase")
    (row,) = recovered(task(9, "pi.tool", phase, input={"name": "weather"}, **checkpoint)).rows
    assert "weather" in row.title
    assert (row.what, row.will, row.level) == ("tool", will, level)


def test_a_recovered_call_that_waits_for_a_person_says_how_to_answer() -> None:
    checkpoint = {"phase": "approve", "arguments": {}}
    given = {"call_id": "call-1", "name": "pay"}
    state = Waiting(checkpoint=checkpoint, on=(), signal="pi.approval")
    waits = TaskRecord(id=9, conversation_id=1, kind="pi.tool", version=1, state=state, input=given)
    (row,) = recovered(waits).rows
    assert (row.was, row.level) == ("waiting for you", "warn")
    assert row.will == "still waits: `%durable approve call-1` or `%durable deny call-1`"
    (row,) = recovered(task(9, "pi.tool", "approve", input=given, arguments={})).rows
    assert row.was == "decided by you"


def test_queued_questions_and_other_tasks_have_their_rows() -> None:
    queued = record(status="queued", entry=None)
    sleeping = TaskRecord(
        id=12, conversation_id=1, kind="app.poll", version=1, state=Sleeping(checkpoint={"phase": "ask"}, until=5000.0)
    )
    shown = recovered(sleeping, task(13, "app.copy", "copy"), submissions=(queued,))
    assert [row.what for row in shown.rows] == ["sleep", "task", "queued"]
    assert "hello" in shown.rows[2].title


# -- tasks and transcripts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"on": (3, 4)}, "waits for 3, 4"),
        ({"signal": "morning"}, "waits for the signal morning"),
        ({"signal": "pi.approval"}, "waits for a person"),
    ],
)
def test_a_waiting_task_says_for_what(fields: dict[str, Any], about: str) -> None:
    node = TaskNode(id=9, kind="app.x", conversation_id=1, status="waiting", **fields)
    (row,) = tasks_view(TaskGraph(tasks={9: node})).rows
    assert row.about == about
    bounded = tasks_view(TaskGraph(tasks={9: node.replaced(until=5000.0)})).rows[0].about
    assert bounded.startswith(f"{about} until 1970-")


def test_ended_tasks_say_how() -> None:
    def ended(id: int, outcome: Any) -> TaskRecord:
        return TaskRecord(id=id, conversation_id=1, kind="app.x", version=1, state=Terminal(outcome=outcome))

    failed = Failed(error=ErrorInfo(message="it broke"))
    shown = tasks_view(TaskGraph(tasks={}), [ended(1, Completed()), ended(2, failed)], all=True)
    assert [(row.status, row.about) for row in shown.rows] == [("completed", ""), ("failed", "it broke")]
    assert (
        tasks_view(TaskGraph(tasks={}), [ended(id, Completed()) for id in range(1, 9)], all=True, limit=5).hidden == 3
    )


def test_a_transcript_names_who_speaks_and_marks_what_was_cut_off() -> None:
    entries = [
        asked(1, "hello"),
        said(2, "half", reason="aborted"),
        said(3, "", reason="tool_use", calls=(CALL,)),
        result(4, "no", is_error=True, code="interrupted"),
        Entry(id=5, conversation_id=1, kind="app.note", data={"a": 1}),
    ]
    shown = transcript_view(entries)
    assert [entry.role for entry in shown.entries] == ["user", "assistant", "assistant", "tool", "marker"]
    assert shown.entries[1].markers == ("cut off, kept",)
    assert shown.entries[1].struck
    assert "calls `weather(city)`" in shown.entries[2].text
    assert shown.entries[3].markers == ("interrupted",)
    assert shown.entries[4].text == '{"a": 1}'


def test_a_transcript_says_where_the_context_starts_and_why() -> None:
    summary = UserMessage([TextBlock("<summary>\nThree apples.\n</summary>")])
    data = {"reason": "threshold"}
    entries = [
        Entry(id=7, conversation_id=1, kind="pi.compaction", messages=(summary,), data=data, head=4),
        Entry(id=8, conversation_id=1, kind="pi.reset", messages=(UserMessage([TextBlock("Go on.")]),), head=8),
    ]
    compacted, new = transcript_view(entries).entries
    assert (compacted.who, compacted.text) == ("summary", "Three apples.")
    assert compacted.markers == ("near the limit", "in place of what was before #4")
    assert (new.who, new.text, new.markers) == ("new context", "Go on.", ("the model reads from here",))


def test_a_transcript_tells_what_a_person_stopped_from_what_a_crash_cut_off() -> None:
    entries = [
        asked(1, "one"),
        said(2, "crashed", reason="aborted"),
        said(3, "stopped", reason="aborted"),
        asked(4, "two"),
        said(5, "crashed", reason="aborted"),
        said(6, "whole"),
    ]
    shown = transcript_view(entries, stopped={1})
    assert [entry.markers for entry in shown.entries if entry.markers] == [
        ("cut off, kept",),
        ("stopped, kept",),
        ("cut off, kept",),
    ]
