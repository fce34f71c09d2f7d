"""Do the parts of a session agree? Checks for fixtures and for the crash sweep.

``validate`` looks at an open session: its memory against its storage, and its records, documents, inbox and live state
against each other. ``check_stored`` looks at a storage alone, for what must hold in any file, whoever wrote it and
however it ended. Both raise ``AssertionError`` naming everything that does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..agent.state import InboxState, LiveState, LiveTool, NestedTool
from ..records import (
    ConversationRecord,
    DocumentRecord,
    Entry,
    SubmissionRecord,
    TaskRecord,
)
from ..session import Session
from ..session.documents import Address, dump
from ..storage.protocol import Page, Storage
from ..tasks import TaskSession
from .clock import eventually

T = TypeVar("T")

OPEN_TASKS = ("pending", "running", "waiting", "sleeping", "completing")


@dataclass(slots=True)
class Stored:
    """Everything that a storage holds, for checks and comparisons."""

    conversations: list[ConversationRecord]
    entries: list[Entry]
    tasks: dict[int, TaskRecord]
    submissions: list[SubmissionRecord]
    documents: list[DocumentRecord]
    problems: list[str] = field(default_factory=list)


async def read_all(storage: Storage) -> Stored:
    """Read everything that a storage holds."""
    return Stored(
        conversations=await _all(lambda cursor: storage.scan_conversations(limit=1000, cursor=cursor)),
        entries=await _all(lambda cursor: storage.scan_entries(limit=1000, cursor=cursor)),
        tasks={task.id: task for task in await _all(lambda c: storage.scan_tasks(limit=1000, cursor=c))},
        submissions=await _all(lambda cursor: storage.scan_submissions(limit=1000, cursor=cursor)),
        documents=await _all(lambda cursor: storage.scan_documents(limit=1000, cursor=cursor)),
    )


async def check_stored(storage: Storage) -> Stored:
    """Check what must hold in any stored session, and return what it holds.

    Ids are unique and grow; what refers to something refers to what exists; a live task's owner is live; documents of
    tasks live no longer than these; a call has at most one result, and exactly one where nothing is live any more;
    inbox, live state and submissions tell the same; attempts lie one after the other.
    """
    stored = await read_all(storage)
    problems = stored.problems
    conversations = {record.id: record for record in stored.conversations}
    ids = [
        *conversations,
        *(entry.id for entry in stored.entries),
        *stored.tasks,
        *(record.id for record in stored.submissions),
        *(record.id for record in stored.documents),
    ]
    problems += [f"id {id} was given {count} times" for id, count in Counter(ids).items() if count > 1]
    if [entry.id for entry in stored.entries] != sorted(entry.id for entry in stored.entries):
        problems.append("entries are not scanned in the order of their ids")
    last = 0
    for entry in stored.entries:
        commit = await storage.entry_commit(entry.id)
        if commit is None or commit.seq < last:
            problems.append(f"entry {entry.id} was stored by commit {commit}, before an entry with a smaller id")
        else:
            last = commit.seq
        if entry.conversation_id not in conversations:
            problems.append(f"entry {entry.id} is of conversation {entry.conversation_id}, which does not exist")
        if entry.head is not None and entry.head > entry.id:
            problems.append(f"entry {entry.id} has a head {entry.head} that came later")
    _check_tasks(stored, conversations)
    _check_documents(stored)
    _check_results(stored)
    for record in stored.conversations:
        await _check_conversation(storage, stored, record)
    await _check_attempts(storage, stored)
    _raise(problems, storage.name)
    return stored


async def validate(session: Session) -> None:
    """Check an open session or harness: what ``check_stored`` checks, and that its memory says the same as its storage.

    Call it when nothing is under way, as at the end of a test; commits under way are awaited first.
    """
    await session._drained()
    problems: list[str] = []
    stored = await check_stored(session.storage)
    for name, mirror in (("sealed", session._sealed), ("committed", session._committed)):
        live = {id: task for id, task in stored.tasks.items() if not task.terminal}
        _compare(problems, f"{name} tasks", mirror.tasks, live)
        waiting = {record.id: record for record in stored.submissions if not record.settled}
        _compare(problems, f"{name} submissions", mirror.submissions, waiting)
        for address, state in mirror.documents.items():
            if state is not None and state.parsed is not None and dump(state.parsed) != state.value:
                problems.append(
                    f"{name} document {address} is {dump(state.parsed)!r} parsed and {state.value!r} as JSON"
                )
            await _compare_document(session.storage, problems, name, address, None if state is None else state.value)
    if session._sealed.in_flight:
        problems.append(f"nothing is in flight, but these are remembered as such: {sorted(session._sealed.in_flight)}")
    for conversation, context in session._contexts.items():
        head, entries = await session._read_context(conversation, None)
        if context.head != head or context.entries != entries:
            problems.append(f"the context of conversation {conversation} in memory is not the stored one")
    if isinstance(session, TaskSession):
        problems += await _scheduler_problems(session, stored)
    _raise(problems, session.storage.name)


async def _scheduler_problems(session: TaskSession, stored: Stored) -> list[str]:
    def ended() -> bool:  # an invocation that committed its task's end has a few steps left
        return all(id in session._committed.tasks for id in session._invocations)

    problems: list[str] = []
    await eventually(ended)
    try:
        session.validate()
    except AssertionError as error:
        problems.append(f"the scheduler: {error}")
    for id in session._invocations:
        if id not in stored.tasks or stored.tasks[id].state.status != "running":
            problems.append(f"an invocation of task {id} is under way, which is not running")
    return problems


def _raise(problems: list[str], name: str) -> None:
    if problems:
        raise AssertionError(f"{name} does not hold together:\n" + "\n".join(f"- {problem}" for problem in problems))


async def _all(read: Callable[[int | None], Awaitable[Page[T]]]) -> list[T]:
    items: list[T] = []
    cursor: int | None = None
    while True:
        page = await read(cursor)
        items.extend(page.items)
        if page.next is None:
            return items
        cursor = page.next


def _check_tasks(stored: Stored, conversations: dict[Any, ConversationRecord]) -> None:
    problems = stored.problems
    for task in stored.tasks.values():
        if task.conversation_id not in conversations:
            problems.append(f"task {task.id} is of conversation {task.conversation_id}, which does not exist")
        if task.owner is not None:
            owner = stored.tasks.get(task.owner)
            if owner is None:
                problems.append(f"task {task.id} is owned by task {task.owner}, which does not exist")
            elif owner.terminal and not task.terminal:
                problems.append(f"task {task.id} is live, and its owner {owner.id} has ended")
            elif owner.conversation_id != task.conversation_id:
                problems.append(f"task {task.id} is of another conversation than its owner {owner.id}")
            if task.background:
                problems.append(f"task {task.id} is in the background and owned by a task")
        if task.terminal and (task.memos or task.restarts or task.ended_at is None):
            problems.append(f"task {task.id} has ended and keeps memos, restarts or no end: {task.to_json()}")
        for target in getattr(task.state, "on", ()):
            if target not in stored.tasks:
                problems.append(f"task {task.id} waits for task {target}, which does not exist")
    for record in conversations.values():
        if record.owner is not None and record.owner.task not in stored.tasks:
            problems.append(f"conversation {record.id} is owned by task {record.owner.task}, which does not exist")


def _check_documents(stored: Stored) -> None:
    lives = Counter((record.kind, record.scope, record.scope_id, record.key) for record in stored.documents)
    stored.problems += [f"{count} documents live at {address}" for address, count in lives.items() if count > 1]
    for record in stored.documents:
        if record.scope == "task":
            task = stored.tasks.get(record.scope_id or 0)
            if task is None or task.terminal:
                stored.problems.append(f"document {record.id} ({record.kind}) outlived its task {record.scope_id}")


def _check_results(stored: Stored) -> None:
    """One result for each call; calls of answers that were cut off or failed get none."""
    live = {task.conversation_id for task in stored.tasks.values() if not task.terminal}
    calls: Counter[tuple[int, str]] = Counter()
    results: Counter[tuple[int, str]] = Counter()
    for entry in stored.entries:
        for message in entry.messages:
            if message.role == "assistant" and entry.kind == "pi.assistant" and message.stop_reason == "tool_use":
                calls.update((entry.conversation_id, call.id) for call in message.tool_calls)
            elif message.role == "tool_result" and entry.kind == "pi.tool-result":
                results[entry.conversation_id, message.call_id] += 1
    for (conversation, call), count in results.items():
        if count > calls[conversation, call]:
            stored.problems.append(
                f"call {call} of conversation {conversation} was made {calls[conversation, call]} times "
                f"and has {count} results"
            )
    for (conversation, call), count in calls.items():
        if conversation not in live and results[conversation, call] != count:
            stored.problems.append(
                f"nothing of conversation {conversation} is live, and its call {call} has "
                f"{results[conversation, call]} results for {count} calls"
            )


async def _document(storage: Storage, kind: str, conversation: int) -> dict[str, Any]:
    record = await storage.find_document(kind, "conversation", conversation)
    found = None if record is None else await storage.document(record.id)
    return {} if found is None else dict(found.value)


async def _check_conversation(storage: Storage, stored: Stored, record: ConversationRecord) -> None:
    problems = stored.problems
    where = f"conversation {record.id}"
    live = LiveState.model_validate(await _document(storage, LiveState.spec_.kind, record.id))
    inbox = InboxState.model_validate(await _document(storage, InboxState.spec_.kind, record.id))
    own = {id: task for id, task in stored.tasks.items() if task.conversation_id == record.id and not task.terminal}
    turns = {id for id, task in own.items() if task.kind == "pi.generation"}
    run = live.run
    if run is None:
        shown = live.generation, live.tools, live.nested_tools
        if shown != (None, (), ()):
            problems.append(f"{where} has no run, and its live state shows one: {live!r}")
        if turns:
            problems.append(f"{where} has no run, and these generations are live: {sorted(turns)}")
    elif turns != {run.task}:
        problems.append(f"{where} has a run with generation {run.task}, and these are live: {sorted(turns)}")
    calls: list[LiveTool | NestedTool] = [*live.tools, *live.nested_tools]
    for call in calls:
        if call.status != "done" and call.task not in own:
            problems.append(f"{where} shows the call {call.name} as live, and its task {call.task} is not")
    tools = {id for id, task in own.items() if task.kind == "pi.tool" and task.state.status != "completing"}
    for id in tools - {call.task for call in calls}:
        problems.append(f"{where} does not show the call of task {id}, which is live")
    submissions = {s.id: s for s in stored.submissions if s.conversation_id == record.id}
    queued = Counter(item.submission for item in inbox.items)
    for id, count in queued.items():
        submission = submissions.get(id)
        if count > 1 or submission is None or submission.status != "queued" or submission.type == "continue":
            problems.append(f"the inbox of {where} holds submission {id} {count} times: {submission!r}")
    inputs = set(() if run is None else run.inputs)
    for submission in submissions.values():
        waits = submission.status == "queued" and submission.type != "continue"
        if waits and submission.id not in queued:
            problems.append(f"submission {submission.id} is queued and not in the inbox of {where}")
        taken = submission.status == "placed" or (submission.status == "queued" and submission.type == "continue")
        if taken and submission.id not in inputs:
            problems.append(f"submission {submission.id} was placed in {where}, and no run works on it")
        if submission.status == "done" and submission.type == "input" and submission.answer is None:
            problems.append(f"submission {submission.id} is done without an answer")
        if submission.status == "unanswered" and submission.reason is None:
            problems.append(f"submission {submission.id} is unanswered without a reason")


async def _check_attempts(storage: Storage, stored: Stored) -> None:
    lives = {life.id for life in await storage.lives()}
    opened: Counter[int] = Counter()
    for attempt in await storage.attempts():
        if attempt.life not in lives:
            stored.problems.append(f"an attempt of task {attempt.task} is of life {attempt.life}, which does not exist")
        if attempt.end is None:
            opened[attempt.task] += 1
    for id, count in opened.items():
        task = stored.tasks.get(id)
        if count > 1 or task is None or task.state.status != "running":
            state = "gone" if task is None else task.state.status
            stored.problems.append(f"task {id} is {state} and has {count} open attempts")


def _compare(problems: list[str], what: str, memory: dict[int, Any], stored: dict[Any, Any]) -> None:
    for id in memory.keys() | stored.keys():
        if memory.get(id) != stored.get(id):
            problems.append(f"{what}: {id} is {memory.get(id)!r} in memory and {stored.get(id)!r} in storage")


async def _compare_document(storage: Storage, problems: list[str], mirror: str, address: Address, value: Any) -> None:
    stored: Any = None
    for scope in ("session",) if address.scope_id is None else ("conversation", "task"):
        record = await storage.find_document(address.kind, scope, address.scope_id, address.key)  # type: ignore[arg-type]
        if record is not None:
            found = await storage.document(record.id)
            stored = None if found is None else found.value
            break
    if stored != value:
        problems.append(f"{mirror} document {address}: {value!r} in memory and {stored!r} in storage")
