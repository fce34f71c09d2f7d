"""How a run begins, goes on and ends: what is staged in the commits at its boundaries (engine.md, sections 9 and 11).

A *run* is the turns from an input to its final answer. Each turn is one generation task; ``pi.live.run`` carries the
run from one to the next. Every function here stages into the transaction of the commit that makes the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..messages import AssistantMessage, Usage, UserMessage
from ..records import ConversationId, Entry, EntryId, SubmissionId, SubmissionRecord, TaskId
from ..session import Tx
from ..values import JsonValue
from .settings import Settings
from .state import InboxItem, InboxState, LiveRun, LiveState, OutputSpec, RunFailure, UsageState


async def start_run(
    tx: Tx,
    conversation: ConversationId,
    inputs: Sequence[SubmissionId],
    first: EntryId,
    output: OutputSpec | None = None,
    *,
    turns: int = 0,
    spent: Usage | None = None,
) -> TaskId:
    """Start a run: a generation task, shown in ``pi.live``. A retry brings what its run has used of the limits."""
    from .generation import GenerationTask

    task = await tx.create_task(GenerationTask, None, conversation=conversation)
    live = await tx.doc(LiveState, conversation)
    live.run = LiveRun(task=task, inputs=tuple(inputs), first=first, output=output, turns=turns, spent=spent or Usage())
    live.generation = None
    live.tools = ()
    live.run_failure = None
    return task


async def continue_run(
    tx: Tx, conversation: ConversationId, inputs: Sequence[SubmissionId] = (), turns: int = 1
) -> TaskId:
    """Hand the run to the next generation; ``inputs`` joined it."""
    from .generation import GenerationTask

    live = await tx.doc(LiveState, conversation)
    assert live.run is not None
    task = await tx.create_task(GenerationTask, None, conversation=conversation)
    live.run = live.run.replaced(task=task, inputs=(*live.run.inputs, *inputs), turns=live.run.turns + turns)
    live.generation = None
    live.tools = ()
    return task


async def place_input(tx: Tx, conversation: ConversationId, submission: SubmissionRecord, item: InboxItem) -> Entry:
    """Append an input's user entry and mark it placed."""
    message = UserMessage(content=list(item.content), timestamp=tx._session.clock())
    entry = tx._append(item.kind or "pi.user", conversation, [message], item.data)
    tx._put_submission(submission.replaced(status="placed", entry=entry.id))
    return entry


async def place_writes(tx: Tx, conversation: ConversationId, inbox: InboxState) -> bool:
    """Place every waiting write and reset, in id order. Returns whether a reset was among them."""
    waiting = [item for item in inbox.items if item.mode in ("write", "reset")]
    if not waiting:
        return False
    inbox.items = tuple(item for item in inbox.items if item.mode not in ("write", "reset"))
    for item in sorted(waiting, key=lambda item: item.submission):
        record = await tx.submission(item.submission)
        if record is not None:
            await place_write(tx, conversation, record, item)
    return any(item.mode == "reset" for item in waiting)


async def place_write(tx: Tx, conversation: ConversationId, record: SubmissionRecord, item: InboxItem) -> None:
    """Append a write's entry and settle it; one whose head lies before the active range is stale."""
    if isinstance(item.head, int):
        active_from = await tx._active_from(conversation)
        if active_from is not None and item.head < active_from:
            tx._put_submission(record.replaced(status="unanswered", reason="stale"))
            return
    entry = tx._append(item.kind or "", conversation, item.messages, item.data, item.head, item.edits)
    tx._put_submission(record.replaced(status="done", entry=entry.id))


def _take(inbox: InboxState, mode: str, everything: bool) -> list[InboxItem]:
    found = [item for item in inbox.items if item.mode == mode]
    taken = found if everything else found[:1]
    chosen = {item.submission for item in taken}
    inbox.items = tuple(item for item in inbox.items if item.submission not in chosen)
    return taken


async def go_on(tx: Tx, conversation: ConversationId, settings: Settings) -> None:
    """Between two turns of a run: place writes, then steers, and hand the run to the next generation.

    A reset that was waiting ends the run instead: its inputs are ``unanswered: reset``.
    """
    inbox = await tx.doc(InboxState, conversation)
    if await place_writes(tx, conversation, inbox):
        live = await tx.doc(LiveState, conversation)
        await settle_inputs(tx, live.run.inputs if live.run is not None else (), reason="reset")
        clear(live)
        await next_run(tx, conversation, settings)
        return
    joined: list[SubmissionId] = []
    for item in _take(inbox, "steer", settings.steering_mode == "all"):
        record = await tx.submission(item.submission)
        if record is not None:
            await place_input(tx, conversation, record, item)
            joined.append(item.submission)
    await continue_run(tx, conversation, joined)


async def next_run(tx: Tx, conversation: ConversationId, settings: Settings) -> bool:
    """After a run, or when something waits in an idle conversation: place what waits and start the next run.

    Steers that came too late for their run go first. Returns whether a run started.
    """
    inbox = await tx.doc(InboxState, conversation)
    await place_writes(tx, conversation, inbox)
    items = _take(inbox, "steer", settings.steering_mode == "all")
    items = items or _take(inbox, "follow_up", settings.follow_up_mode == "all")
    inputs: list[SubmissionId] = []
    first: Entry | None = None
    for item in items:
        record = await tx.submission(item.submission)
        if record is None:
            continue
        entry = await place_input(tx, conversation, record, item)
        first = first or entry
        inputs.append(item.submission)
    if first is None:
        return False
    output = next((item.output for item in reversed(items) if item.output is not None), None)
    await start_run(tx, conversation, inputs, first.id, output)
    return True


async def settle_inputs(
    tx: Tx,
    inputs: Iterable[SubmissionId],
    *,
    answer: EntryId | None = None,
    reason: str | None = None,
    detail: JsonValue = None,
) -> None:
    """Settle a run's inputs: ``done`` with the answer, or ``unanswered`` with the reason."""
    for id in inputs:
        record = await tx.submission(id)
        if record is None or record.settled:
            continue
        if reason is not None:
            tx._put_submission(record.replaced(status="unanswered", reason=reason, detail=detail))
        else:
            tx._put_submission(record.replaced(status="done", answer=answer if record.type == "input" else None))


def clear(live: LiveState) -> None:
    """Nothing runs any more."""
    live.run = None
    live.generation = None
    live.tools = ()
    live.nested_tools = ()
    live.approvals = ()


async def end_failed(
    tx: Tx,
    conversation: ConversationId,
    settings: Settings,
    reason: str,
    detail: JsonValue = None,
    *,
    message: AssistantMessage | None = None,
) -> None:
    """End a run without an answer; the inbox follows ``after_failed_run`` (engine.md, section 9).

    ``message`` is the terminal message that ended it; without one, what had arrived is kept as an aborted entry. A run
    that had answered and only its ``after_run`` tasks were stopped has not failed.
    """
    live = await tx.doc(LiveState, conversation)
    run = live.run
    if message is not None:
        tx._append("pi.assistant", conversation, [message])
    else:
        keep_partial(tx, conversation, live)
    if run is not None:
        await settle_inputs(tx, run.inputs, reason=reason, detail=detail)
    clear(live)
    if settings.after_failed_run == "withdraw":
        await withdraw_inputs(tx, conversation, "run_failed")
    if settings.after_failed_run == "continue" and reason != "aborted":
        if await next_run(tx, conversation, settings):
            return
    else:
        await place_writes(tx, conversation, await tx.doc(InboxState, conversation))
    if run is not None and not run.after_run:
        live.run_failure = RunFailure(
            reason=reason, detail=detail, first=run.first, output=run.output, turns=run.turns, spent=run.spent
        )


async def withdraw_inputs(tx: Tx, conversation: ConversationId, reason: str) -> None:
    """Take every waiting input out of the inbox; writes stay."""
    inbox = await tx.doc(InboxState, conversation)
    withdrawn = [item for item in inbox.items if item.mode in ("follow_up", "steer")]
    inbox.items = tuple(item for item in inbox.items if item not in withdrawn)
    await settle_inputs(tx, [item.submission for item in withdrawn], reason=reason)


def keep_partial(tx: Tx, conversation: ConversationId, live: LiveState) -> Entry | None:
    """Turn the committed part of an answer that is not going to end into an aborted entry."""
    generation = live.generation
    if generation is None or generation.message is None:
        return None
    message = generation.message.replaced(stop_reason="aborted", timestamp=tx._session.clock())
    live.generation = generation.replaced(message=None)
    return tx._append("pi.assistant", conversation, [message])


async def count_usage(tx: Tx, conversation: ConversationId, message: AssistantMessage) -> None:
    """Add a response's usage to the conversation's and the run's."""
    usage = message.usage
    counted = await tx.doc(UsageState, conversation)
    counted.models[message.model] = counted.models.get(message.model, Usage()) + usage
    counted.requests += 1
    live = await tx.doc(LiveState, conversation)
    if live.run is not None:
        live.run = live.run.replaced(spent=live.run.spent + usage)
