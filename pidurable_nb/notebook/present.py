"""From records and live documents to what is shown: answers, recovery, tasks, transcripts.

Every function here is pure: committed state goes in, a view (``view``) comes out. Nothing reads storage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ..agent.harness import Inspection
from ..agent.state import LiveApproval, LiveState, LiveTool
from ..agent.toolrun import APPROVAL
from ..messages import AssistantMessage, ToolCall, ToolResultMessage
from ..records import Attempt, Entry, Life, SubmissionRecord, TaskRecord, checkpoint_of_task, outcome_of_task
from ..tasks import TaskGraph
from ..values import JsonValue
from .view import (
    AnswerItem,
    AnswerStatus,
    AnswerView,
    NoticeItem,
    PartState,
    RecoveryRow,
    RecoveryView,
    TaskRow,
    TasksView,
    TextItem,
    ThinkingItem,
    ToolItem,
    ToolStatus,
    TranscriptEntry,
    TranscriptView,
    clip,
    clock_time,
    compact_arguments,
)

PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The kinds of images that are shown."""

PICTURE_LIMIT = 2_000_000
"""Characters of the largest image that is shown: it is part of the page, and of the notebook that is saved."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_CODES: dict[str, ToolStatus] = {
    "interrupted": "interrupted",
    "blocked": "blocked",
    "aborted": "aborted",
}


def answer_view(
    record: SubmissionRecord,
    prompt: str,
    entries: Sequence[Entry],
    live: LiveState,
    *,
    held: str | None = None,
    note: str | None = None,
    now: float,
    began: float | None = None,
    stopping: bool = False,
) -> AnswerView:
    """The answer of one submission. ``entries`` are those after its own; ``held`` says why scheduling is held back.

    ``began`` is when its work began, for an answer that was stopped and so does not say it; ``stopping``
    that a stop was heard.
    """
    mine = _of_the_run(record, entries)
    running = live.run is not None and record.id in live.run.inputs
    items: list[AnswerItem] = []
    results = results_of(mine)
    tools = {tool.call: tool for tool in live.tools} if running else {}
    asked = {item.call for item in live.approvals} if running else set()
    answers: list[AssistantMessage] = []
    for entry in mine:
        for message in entry.messages:
            if isinstance(message, AssistantMessage):
                items.extend(answer_items(len(answers), message, results[len(answers)], tools, asked))
                answers.append(message)
            elif message.role == "user":
                items.append(NoticeItem(key=f"u{entry.id}", text=f"steered: {clip(message.text, 400)}"))
    generation = live.generation if running else None
    if generation is not None and generation.message is not None:
        items.extend(answer_items(len(answers), generation.message, {}, tools, asked, streaming=True))
    unfinished = [message for message in answers if message.stop_reason in ("aborted", "error")]
    ended_short = bool(answers) and answers[-1].stop_reason in ("aborted", "error")
    status, reason = _status(record, live, running=running, held=held)
    if status == "queued" and live.run is not None:
        reason = "the run before it is still going on"
    error = next((message.error for message in reversed(answers) if message.error), None)
    detail = record.detail.get("message") if isinstance(record.detail, dict) else None
    finished = [message for message in answers if message.timestamp is not None]
    started = _started(record, entries, live, running, began)
    retry = generation.retry if generation is not None else None
    deferred = generation.deferred if generation is not None else None
    used = [message.usage for message in answers]
    models = [message.model for message in answers] + ([generation.model] if generation and generation.model else [])
    return AnswerView(
        submission=record.id,
        conversation=record.conversation_id,
        prompt=prompt,
        status=status,
        reason=reason,
        detail_text=_detail(record, detail, error, deferred.at if deferred is not None else None),
        items=tuple(items),
        attempt=max(1, len(unfinished) + (not (record.settled and ended_short))),
        retry_at=retry.at if retry is not None else None,
        retry_error=retry.error if retry is not None else None,
        model=models[-1] if models else "",
        input_tokens=sum(usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens for usage in used),
        output_tokens=sum(usage.output_tokens for usage in used),
        cost=sum(usage.cost for usage in used),
        started_at=started,
        ended_at=(finished[-1].timestamp if finished else now) if record.settled and started is not None else None,
        note=note,
        can_stop=not record.settled,
        stopping=stopping_words(live) if stopping and not record.settled else None,
    )


def stopping_words(live: LiveState) -> str:
    """What a stop waits for: a tool ends at its next ``await``, one that is a plain function when it returns."""
    running = [f"`{tool.name}`" for tool in live.tools if tool.status == "running"]
    return f"stopping: waits for {', '.join(running)} to return" if running else "stopping…"


def results_of(entries: Sequence[Entry]) -> list[dict[str, tuple[Entry, ToolResultMessage]]]:
    """For each response its tool results by call id; providers may use an id again in a later response."""
    results: list[dict[str, tuple[Entry, ToolResultMessage]]] = []
    for entry in entries:
        for message in entry.messages:
            if isinstance(message, AssistantMessage):
                results.append({})
            elif isinstance(message, ToolResultMessage) and results:
                results[-1][message.call_id] = (entry, message)
    return results


def _of_the_run(record: SubmissionRecord, entries: Sequence[Entry]) -> list[Entry]:
    """The entries of the submission's own run: to its answer, or to the next input's entry when there is none."""
    mine: list[Entry] = []
    for entry in entries:
        if record.answer is not None:
            if entry.id > record.answer:
                break
        elif entry.kind == "pi.user" and record.settled:
            break
        mine.append(entry)
    return mine


def _status(
    record: SubmissionRecord, live: LiveState, *, running: bool, held: str | None
) -> tuple[AnswerStatus, str | None]:
    if record.status == "done":
        return "done", None
    if record.status == "unanswered":
        return ("aborted" if record.reason == "aborted" else "unanswered"), record.reason
    if held is not None:
        return "waiting", held
    if not running:
        return "queued", None
    if live.approvals:
        return "waiting", approval_words(live.approvals)
    if live.generation is not None and live.generation.retry is not None:
        return "retrying", None
    if live.generation is not None and live.generation.deferred is not None:
        return "deferred", None
    return "running", None


def approval_words(approvals: Sequence[LiveApproval]) -> str:
    """What a person is asked, and how to answer."""
    first = approvals[0].call
    calls = ", ".join(_asked_call(item) for item in approvals)
    return f"for you, to allow {calls}: `%durable approve {first}` or `%durable deny {first}`"


def approval_calls(approvals: Sequence[LiveApproval]) -> str:
    """Each call that a person is asked about, with the id that answers it."""
    calls = ", ".join(f"{item.call} {_asked_call(item)}" for item in approvals)
    return f"{calls}: `%durable approve CALL` or `%durable deny CALL`"


def _asked_call(item: LiveApproval) -> str:
    return f"`{item.name}({compact_arguments(item.arguments, 80)})`"


def _detail(record: SubmissionRecord, detail: JsonValue, error: str | None, poll_at: float | None) -> str | None:
    if poll_at is not None:
        return f"asked for again at {clock_time(poll_at)}"
    if record.status != "unanswered" or record.reason == "no_model":  # the reason says it all
        return None
    if isinstance(detail, str):
        return detail
    return error or (json.dumps(record.detail) if record.detail else None)


def _started(
    record: SubmissionRecord, entries: Sequence[Entry], live: LiveState, running: bool, began: float | None
) -> float | None:
    """When the first request began. A message that was cut off has a time but no duration: it says when it ended."""
    said = [message for entry in entries for message in entry.messages if isinstance(message, AssistantMessage)]
    for message in said:
        if message.timestamp is not None and message.duration is not None:
            return message.timestamp - message.duration
    if running and live.generation is not None:
        return live.generation.started_at
    if began is not None and said:
        return began
    return next((message.timestamp for message in said if message.timestamp is not None), None)


def answer_items(
    number: int,
    message: AssistantMessage,
    results: Mapping[str, tuple[Entry, ToolResultMessage]],
    tools: Mapping[str, LiveTool],
    asked: Collection[str],
    *,
    streaming: bool = False,
) -> list[AnswerItem]:
    """The parts of one response. Keys count responses and blocks, so a part keeps its key when it is stored."""
    state: PartState = "streaming" if streaming else "done"
    if message.stop_reason in ("aborted", "error") and not streaming:
        state = "aborted" if message.stop_reason == "aborted" else "error"
    items: list[AnswerItem] = []
    for index, block in enumerate(message.content):
        key = f"a{number}.{index}"
        last = index == len(message.content) - 1
        part: PartState = "done" if streaming and not last else state
        if block.type == "text":
            items.append(TextItem(key=key, text=block.text, state=part))
        elif block.type == "thinking":
            items.append(ThinkingItem(key=key, text=block.text, state=part))
        elif block.type == "tool_call":
            result, tool = results.get(block.id), tools.get(block.id)
            finished, waits = state == "done", block.id in asked
            items.append(_tool_item(key, block, result, tool, finished=finished, asked=waits))
    if message.stop_reason == "error" and not streaming:
        items.append(NoticeItem(key=f"a{number}.error", text=message.error or "the model failed", level="error"))
    return items


def _pictures(message: ToolResultMessage) -> Iterator[str]:
    """The images of a result that a page may show: of kinds that hold no script, as they are, and not too large."""
    for block in message.content:
        fits = block.type == "image" and block.media_type in PICTURES and len(block.data) <= PICTURE_LIMIT
        if block.type == "image" and fits and _BASE64.fullmatch(block.data):
            yield f"data:{block.media_type};base64,{block.data}"


def _tool_item(
    key: str,
    call: ToolCall,
    result: tuple[Entry, ToolResultMessage] | None,
    tool: LiveTool | None,
    *,
    finished: bool,
    asked: bool,
) -> ToolItem:
    """One call; ``asked`` when it waits for a person."""
    output = tool.output if tool is not None else ""
    if result is not None:
        entry, message = result
        data = entry.data if isinstance(entry.data, dict) else {}
        status: ToolStatus = "done"
        if message.is_error:
            status = _CODES.get(str(data.get("code")), "error")
        diagnostics = tuple(
            (str(item.get("severity")), str(item.get("message"))) for item in data.get("diagnostics") or ()
        )
        text = message.text
        closing = text.rfind("<diagnostics>\n")
        return ToolItem(
            key=key,
            name=call.name,
            call=call.id,
            arguments=call.arguments,
            output=output if output != text else "",
            dropped=tool.dropped_chars if tool is not None else 0,
            status=status,
            replay=tool.replay if tool is not None else None,
            duration=message.duration,
            result=(text[:closing].rstrip("\n") if diagnostics and closing >= 0 else text) or None,
            pictures=tuple(_pictures(message)),
            details_text=None if message.details is None else json.dumps(message.details, indent=1),
            diagnostics=diagnostics,
        )
    waits: ToolStatus = "approval" if asked else "pending"
    if tool is None:
        status = waits if finished else "aborted"
        return ToolItem(key=key, name=call.name, call=call.id, arguments=call.arguments, status=status)
    return ToolItem(
        key=key,
        name=call.name,
        call=call.id,
        arguments=call.arguments,
        output=output,
        dropped=tool.dropped_chars,
        status="running" if tool.status == "running" else waits,
        replay=tool.replay,
        details_text=None if tool.details is None else json.dumps(tool.details, indent=1),
        diagnostics=tuple((item.severity, item.message) for item in tool.diagnostics),
    )


# -- recovery --------------------------------------------------------------------------------------------------------


def recovery_view(
    path: str,
    lives: Sequence[Life],
    inspection: Inspection,
    live: LiveState,
    cut_off: Iterable[Attempt],
    *,
    prompts: Mapping[int, str],
    paused: bool,
    waiting_for: Sequence[str],
) -> RecoveryView:
    """What an opening found. ``prompts`` gives the text of the submissions that are open, by id."""
    this = lives[-1] if lives else None
    before = lives[-2] if len(lives) > 1 else None
    previous = "new" if before is None else (before.ended or "crashed")
    cut = {attempt.task for attempt in cut_off}
    rows: list[RecoveryRow] = []
    for item in inspection.tasks:
        row = _recovery_row(item.record, live, item.record.id in cut, prompts)
        if row is not None:
            rows.append(row)
    for record in inspection.submissions:
        if record.status == "queued" and record.type == "input":
            what = f"“{clip(prompts.get(record.id, ''), 60)}”"
            rows.append(RecoveryRow(what="queued", title=what, was="queued", will="runs in turn"))
    return RecoveryView(
        path=path,
        opened_at=this.opened_at if this is not None else None,
        previous=previous,
        previous_pid=before.pid if before is not None else None,
        previous_host=before.host if before is not None else None,
        previous_opened_at=before.opened_at if before is not None else None,
        previous_commit_at=before.last_commit_at if before is not None else None,
        rows=tuple(rows),
        paused=paused,
        waiting_for=tuple(waiting_for),
    )


def _recovery_row(task: TaskRecord, live: LiveState, cut_off: bool, prompts: Mapping[int, str]) -> RecoveryRow | None:
    checkpoint = checkpoint_of_task(task) or {}
    phase = str(checkpoint.get("phase", ""))
    cut = " when the process ended" if cut_off else ""
    if task.kind == "pi.generation":
        return _generation_row(task, checkpoint, phase, live, cut, prompts)
    if task.kind == "pi.tool":
        given = task.input if isinstance(task.input, dict) else {}
        name = str(given.get("name"))
        if phase == "execute":
            if checkpoint.get("replay") == "safe":
                return RecoveryRow(
                    what="tool", title=name, was=f"running{cut}", will="runs again: it is safe to repeat"
                )
            return RecoveryRow(
                what="tool",
                title=name,
                was=f"running{cut}",
                will="is reported as interrupted: not safe to repeat",
                level="warn",
            )
        if phase == "approve" and task.state.status == "waiting":
            call = given.get("call_id")
            answers = f"`%durable approve {call}` or `%durable deny {call}`"
            return RecoveryRow(
                what="tool", title=name, was="waiting for you", will=f"still waits: {answers}", level="warn"
            )
        if phase == "approve":
            return RecoveryRow(what="tool", title=name, was="decided by you", will="goes on as you decided")
        return RecoveryRow(what="tool", title=name, was="about to start", will="starts")
    state = task.state
    title = f"{task.kind} {task.id}"
    if state.status == "sleeping":
        return RecoveryRow(
            what="sleep", title=title, was="asleep", will=f"wakes at {clock_time(state.until, date=True)}"
        )
    if state.status == "waiting":
        return RecoveryRow(
            what="task", title=title, was=wait_words(state.on, state.signal, state.until, "waiting"), will="waits on"
        )
    if state.status == "completing":
        return RecoveryRow(what="task", title=title, was="ending", will="ends when its owned work has")
    if task.abort_requested:
        return RecoveryRow(what="task", title=title, was="being aborted", will="its abort handler runs", level="warn")
    will = f"goes on at {phase}" + (f" (restart {task.restarts})" if task.restarts else "")
    return RecoveryRow(what="task", title=title, was=f"at {phase}{cut}", will=will)


def _generation_row(
    task: TaskRecord,
    checkpoint: Mapping[str, JsonValue],
    phase: str,
    live: LiveState,
    cut: str,
    prompts: Mapping[int, str],
) -> RecoveryRow | None:
    asked = ""
    if live.run is not None and live.run.task == task.id:
        asked = next((prompts[id] for id in live.run.inputs if id in prompts), "")
    title = f"“{clip(asked, 60)}”" if asked else f"turn {task.id}"
    if phase == "tools":
        return None  # its calls have rows of their own
    if phase == "request":
        partial = live.generation.message if live.generation is not None else None
        if partial is not None and partial.text:
            was = f"streaming{cut}, {len(partial.text):,} characters stored"
            return RecoveryRow(
                what="request",
                title=title,
                was=was,
                will="is asked again; the half answer is kept and marked",
                level="warn",
            )
        return RecoveryRow(what="request", title=title, was=f"asked{cut}, nothing had arrived", will="is asked again")
    if phase == "retry":
        at = checkpoint.get("until")
        when = clock_time(float(at)) if isinstance(at, int | float) else "its time"
        return RecoveryRow(what="sleep", title=title, was="waiting to try again", will=f"tries again at {when}")
    if phase == "poll":
        return RecoveryRow(what="sleep", title=title, was="at the provider", will="is asked for at its time")
    if phase in ("finish", "drain"):
        return RecoveryRow(what="task", title=title, was="tidying up after the answer", will="goes on")
    return RecoveryRow(what="request", title=title, was="being prepared", will="is prepared and asked")


# -- tasks and transcripts -------------------------------------------------------------------------------------------


def tasks_view(graph: TaskGraph, ended: Sequence[TaskRecord] = (), *, all: bool = False, limit: int = 200) -> TasksView:
    """Live tasks as a tree, then ended ones, oldest first."""
    children: dict[int | None, list[int]] = {}
    for node in graph.tasks.values():
        owner = node.owner if node.owner in graph.tasks else None
        children.setdefault(owner, []).append(node.id)
    rows: list[TaskRow] = []
    stack: list[tuple[int, int]] = [(id, 0) for id in reversed(children.get(None, []))]
    while stack:
        id, depth = stack.pop()
        task = graph.tasks[id]  # type: ignore[index]
        about = ""
        status: str = task.status
        if task.blocked is not None:
            status, about = "blocked", BLOCKED[task.blocked]
        elif task.status == "waiting":
            about = wait_words(task.on, task.signal, task.until, "waits")
        elif task.status == "sleeping" and task.until is not None:
            about = f"until {clock_time(task.until, date=True)}"
        if task.abort_requested:
            about = f"{about} · being aborted".removeprefix(" · ")
        rows.append(
            TaskRow(
                id=task.id,
                kind=task.kind,
                status=status,
                phase=task.phase,
                attempt=task.restarts + 1,
                depth=depth,
                started_at=task.started_at,
                about=about,
                background=task.background,
            )
        )
        stack.extend((child, depth + 1) for child in reversed(children.get(id, [])))
    for record in ended:
        outcome = outcome_of_task(record)
        if outcome is None:
            continue
        error = getattr(outcome, "error", None)
        rows.append(
            TaskRow(
                id=record.id,
                kind=record.kind,
                status=outcome.status,
                started_at=record.started_at,
                ended_at=record.ended_at,
                about=error.message if error is not None else "",
            )
        )
    return TasksView(rows=tuple(rows[:limit]), all=all, hidden=max(0, len(rows) - limit))


def wait_words(on: Sequence[int | str], signal: str | None, until: float | None, verb: str) -> str:
    """What a wait is for, in words that begin with ``verb``."""
    what: list[str] = []
    if on:
        what.append(", ".join(map(str, on[:8])) + (" …" if len(on) > 8 else ""))
    if signal is not None:
        what.append("a person" if signal == APPROVAL else f"the signal {signal}")
    words = f"{verb} for {' or '.join(what)}" if what else verb
    return words if until is None else f"{words} until {clock_time(until, date=True)}"


BLOCKED = {
    "missing_task": "its code is not installed here",
    "task_too_old": "a newer version of its code stored it",
    "migration_failed": "its migration failed",
}

_STARTS = {"pi.compaction": "summary", "pi.reset": "new context"}
"""Entries from which the model reads, by what they are called."""

_REASONS = {"manual": "asked for", "threshold": "near the limit", "overflow": "it was too long"}
"""Why a compaction was made (engine.md, section 2)."""

_ROLES = {"pi.user": "user", "pi.assistant": "assistant", "pi.system": "system", "pi.tool-result": "tool"}


def transcript_view(
    entries: Sequence[Entry],
    *,
    conversation: int | None = None,
    earlier: int = 0,
    stopped: Collection[int] = (),
) -> TranscriptView:
    """Entries as people read them, oldest first. ``stopped`` are the entries of inputs whose run was stopped."""
    by_person = _stopped_answers(entries, stopped)
    shown: list[TranscriptEntry] = []
    for entry in entries:
        message = entry.messages[0] if entry.messages else None
        markers: list[str] = []
        title = None
        text = entry.text
        model = None
        struck = False
        role = _ROLES.get(entry.kind, "note" if message is not None else "marker")
        if entry.kind in _STARTS:
            title = _STARTS[entry.kind]
            reason = entry.data.get("reason") if isinstance(entry.data, dict) else None
            markers += [_REASONS[str(reason)]] if reason in _REASONS else []
            here = entry.head is None or entry.head == entry.id
            markers.append("the model reads from here" if here else f"in place of what was before #{entry.head}")
            text = text.removeprefix("<summary>").removesuffix("</summary>").strip()
        elif isinstance(message, AssistantMessage):
            model = message.model
            if message.stop_reason == "aborted":
                markers.append("stopped, kept" if entry.id in by_person else "cut off, kept")
                struck = True
            elif message.stop_reason == "error":
                markers.append(f"failed: {message.error}")
            calls = [f"{call.name}({', '.join(call.arguments)})" for call in message.tool_calls]
            if calls:
                text = "\n\n".join([text, *(f"calls `{call}`" for call in calls)]).strip()
        elif isinstance(message, ToolResultMessage):
            title = f"tool {message.tool_name}"
            if message.is_error:
                data = entry.data if isinstance(entry.data, dict) else {}
                markers.append(str(data.get("code") or "error"))
        elif message is not None and message.role == "system":
            parts = [f"sets {key}" for key, value in message.sections.items() if value is not None]
            parts += [f"drops {key}" for key, value in message.sections.items() if value is None]
            parts += [f"offers {tool.name}" for tool in message.tools_added]
            parts += [f"withdraws {name}" for name in message.tools_removed]
            text = ", ".join(parts)
        elif message is None:
            title = entry.kind
            text = "" if entry.data is None else json.dumps(entry.data, ensure_ascii=False)
        shown.append(
            TranscriptEntry.model_validate(
                {
                    "id": entry.id,
                    "role": role,
                    "text": text,
                    "title": title,
                    "at": getattr(message, "timestamp", None),
                    "model": model or None,
                    "markers": tuple(markers),
                    "struck": struck,
                }
            )
        )
    return TranscriptView(entries=tuple(shown), conversation=conversation, earlier=earlier)


def _stopped_answers(entries: Sequence[Entry], stopped: Collection[int]) -> set[int]:
    """The half answers that a stop cut off: the last one of each run that was stopped. Those before it, a crash did."""
    found: set[int] = set()
    in_stopped, last = False, None
    for entry in entries:
        message = entry.messages[0] if entry.messages else None
        if entry.kind == "pi.user":
            found |= {last} if in_stopped and last is not None else set()
            in_stopped, last = entry.id in stopped, None
        elif isinstance(message, AssistantMessage):
            last = entry.id if message.stop_reason == "aborted" else None
    return found | ({last} if in_stopped and last is not None else set())
