"""Compaction: the oldest part of a conversation is replaced by a summary of it (engine.md, section 13).

A *cut* divides what a model reads into the *older* messages, which are summarised, and the entries that are kept word
for word. It never separates a call from its results. The summary is an entry of kind ``pi.compaction`` whose head is
the first kept entry; what was said stays in the transcript.

``CompactionTask`` does the work. It belongs to the conversation, or to the generation that waits for it, and stores
nothing on its way: what a crash interrupts is asked for again. ``pi.live`` lists it from the commit that creates it to
the one that ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import UnknownModel
from ..messages import AssistantMessage, Message, SystemMessage, TextBlock, UserMessage
from ..models.errors import is_retryable, retry_after
from ..models.protocol import Model, ModelRequest
from ..records import (
    ConversationId,
    EntryId,
    SubmissionId,
    SubmissionRecord,
    TaskId,
    TaskRecord,
    checkpoint_of_task,
    outcome_of_task,
)
from ..session import ContextView, Tx
from ..session.context import LEFT_OUT, ConversationContext, read_entries
from ..tasks import Phase, Task, TaskRun, TaskTx
from ..values import Value
from .agent import Agent
from .extension import CompactionHooks, Decline, Summary
from .hooks import call_hook, hook_context
from .runs import count_usage, place_write
from .settings import CompactionPolicy
from .state import CompactionFailure, InboxItem, InboxState, LiveCompaction, LiveState
from .streams import final_message

if TYPE_CHECKING:
    from .harness import Harness

Reason = Literal["manual", "threshold", "overflow"]

KIND = "pi.compaction"

Counter: TypeAlias = "Callable[[Message], int]"
"""How many tokens a message takes."""

IMAGE_TOKENS = 1500
"""About what providers count for an image."""

SYSTEM = (
    "You summarise conversations between a user and an assistant that uses tools. Your summary takes the place of the "
    "messages that you are given, and the assistant goes on from it. Write the summary only; do not go on with the "
    "conversation, and do not answer the questions in it."
)

PROMPT = (
    "Summarise the conversation so far for the assistant who goes on with it. Keep the user's goals and constraints, "
    "the decisions and their reasons, what was done and what came out of it, what is unfinished, and the names, paths "
    "and values that will be needed. An earlier summary in it is to be carried over."
)


class CompactionInput(Value):
    """Why a conversation is compacted, and what to attend to."""

    reason: Reason
    instructions: str | None = None


class Cut(Value):
    """Where the context is divided: the first kept entry, and what comes before it without system messages."""

    first_kept: EntryId
    older: tuple[Message, ...]


Run = TaskRun[CompactionInput, None]


class CompactionTask(Task[CompactionInput, None], name="pi.compaction", version=1):
    """One compaction."""

    class Summarise(Phase):
        attempt: int = 1

        async def run(self, task: Run) -> None:
            await _summarise(task, self.attempt)

    class Retry(Phase):
        attempt: int
        until: float

        async def run(self, task: Run) -> None:
            if task.now() < self.until:
                await task.sleep_until(self.until, self)
            else:
                await task.next(CompactionTask.Summarise(attempt=self.attempt + 1))

    @classmethod
    async def abort(cls, task: Run) -> None:
        async with task.commit() as tx:
            await _ended(tx, task.conversation_id, task.id)
            tx.aborted()

    @classmethod
    async def settle(cls, tx: TaskTx, record: TaskRecord) -> None:
        """A compaction that faulted or was orphaned: nothing shows it any more."""
        outcome = outcome_of_task(record)
        failure = outcome.error.message if outcome is not None and outcome.status == "faulted" else None
        await _ended(tx, record.conversation_id, record.id, failure)


async def start_compaction(
    tx: Tx,
    conversation: ConversationId,
    input: CompactionInput,
    *,
    owner: TaskId | None = None,
    background: bool = False,
) -> TaskId:
    """Create a compaction, shown in ``pi.live``. Without an owner it belongs to the conversation."""
    where: dict[str, Any] = {"conversation": conversation} if owner is None else {"owner": owner}
    if background:
        where["background"] = True
    id: TaskId = await tx.create_task(CompactionTask, input, **where)
    live = await tx.doc(LiveState, conversation)
    live.compactions = (*live.compactions, LiveCompaction(task=id, reason=input.reason))
    live.compaction_failure = None
    return id


async def compaction_waits(tx: Tx, conversation: ConversationId) -> bool:
    """Whether a compaction is going on, or its summary waits to be placed."""
    live = await tx.doc(LiveState, conversation)
    inbox = await tx.doc(InboxState, conversation)
    return bool(live.compactions) or any(item.kind == KIND for item in inbox.items)


async def _ended(tx: Tx, conversation: ConversationId, task: TaskId, failure: str | None = None) -> None:
    live = await tx.doc(LiveState, conversation)
    live.compactions = tuple(item for item in live.compactions if item.task != task)
    if failure is not None:
        live.compaction_failure = CompactionFailure(message=failure)


# -- how full a context is -------------------------------------------------------------------------------------------


def message_tokens(message: Message) -> int:
    """About how many tokens a message takes: a quarter of its characters."""
    if message.role == "system":
        declared = sum(
            len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in message.tools_added
        )
        return (len(message.text) + declared) // 4
    tokens = 0
    for block in message.content:
        if block.type == "image":
            tokens += IMAGE_TOKENS
        elif block.type == "tool_call":
            tokens += (len(block.name) + len(json.dumps(block.arguments, ensure_ascii=False)) + 3) // 4
        else:
            tokens += (len(block.text) + 3) // 4
    return tokens


def counter(model: Model | None, report: Callable[[Exception], None]) -> Counter:
    """What counts the tokens of messages for a model: its own counter, else the estimate.

    A counter that raises, or returns no number, is reported once, and the estimate takes its place.
    """
    # Asked at each request: isinstance() of a protocol takes longer than all the rest that compaction does there.
    count: Counter = getattr(model, "count_tokens", message_tokens)

    def counted(message: Message) -> int:
        nonlocal count
        try:
            return int(count(message))
        except Exception as error:
            report(error)
            count = message_tokens
            return count(message)

    return message_tokens if count is message_tokens else counted


def context_tokens(context: ConversationContext, count: Counter = message_tokens) -> int:
    """About how many tokens a request takes: what the last answer's usage says, and a count of what came after.

    An answer from before the head was asked with what the head has replaced, so that its usage says nothing. It reads
    no further back than that answer: a turn's time stays free of the length of what it goes on from.
    """
    after_head = 0 if context.head is None else context.head.id
    tokens = 0
    for entry in reversed(context.entries):
        if entry.head is not None and entry.id != after_head:
            continue
        for message in reversed(entry.messages):
            if message.role == "assistant":
                if message.stop_reason in LEFT_OUT:
                    continue
                if entry.id > after_head and message.usage.total_tokens:
                    return tokens + message.usage.total_tokens
            tokens += count(message)
    return tokens


def _room(window: int, policy: CompactionPolicy) -> int:
    """Tokens that a request may take. A reserve that fills a small window leaves three quarters of it all the same."""
    return window - policy.reserve_tokens if window > policy.reserve_tokens else window * 3 // 4


def context_pressure(
    context: ConversationContext, window: int, policy: CompactionPolicy, count: Counter = message_tokens
) -> Literal["full", "near"] | None:
    """Whether a context needs a compaction before the next request (``full``) or soon (``near``).

    ``None`` also when there is nothing that could be cut off.
    """
    if not policy.enabled or window <= 0:
        return None
    room = _room(window, policy)
    soon = room - policy.background_tokens if room > policy.background_tokens else room * 3 // 4
    tokens = context_tokens(context, count)
    if tokens <= soon:
        return None
    view = context.view()
    if select(view, _keep("threshold", view, window, policy, count), count) is None:
        return None
    return "full" if tokens > room else "near"


def _keep(reason: Reason, view: ContextView, window: int, policy: CompactionPolicy, count: Counter) -> int:
    """Tokens to keep word for word: of a context that is too long at most half, whatever the estimate says."""
    if reason == "manual":
        return policy.keep_recent_tokens
    keep = policy.keep_recent_tokens if window <= 0 else min(policy.keep_recent_tokens, _room(window, policy) // 2)
    counted = sum(count(message) for message in view.messages if message.role != "system")
    return min(keep, counted // 2)


def select(view: ContextView, keep: int, count: Counter = message_tokens) -> Cut | None:
    """Divide a context so that about ``keep`` tokens remain; ``None`` when there is nothing to summarise.

    A cut lies before a user message or an answer, where no call is without its result. Where even the last such place
    keeps more than ``keep``, it is taken.
    """
    read = list(read_entries(view.head, view.entries))
    places: list[int] = []
    waiting: set[str] = set()
    for index, (_, messages) in enumerate(read):
        # An answer gives up calls that have no result by then: results after it are not theirs any more.
        if index and messages and (messages[0].role == "assistant" or (messages[0].role == "user" and not waiting)):
            places.append(index)
        for message in messages:
            if message.role == "assistant":
                waiting = {call.id for call in message.tool_calls}
            elif message.role == "tool_result":
                waiting.discard(message.call_id)
    sizes = [sum(count(message) for message in messages if message.role != "system") for _, messages in read]
    if not places or sum(sizes) <= keep:
        return None
    kept = sum(sizes[places[-1] :])
    chosen = places[-1]
    for place, following in zip(reversed(places[:-1]), reversed(places[1:]), strict=True):
        kept += sum(sizes[place:following])
        if kept > keep:
            break
        chosen = place
    older = [message for _, messages in read[:chosen] for message in messages if message.role != "system"]
    summarised = 0 if view.head is None else len(read[0][1])
    if len(older) <= summarised:
        return None
    return Cut(first_kept=read[chosen][0].id, older=tuple(older))


# -- the summary -----------------------------------------------------------------------------------------------------


async def _summarise(task: Run, attempt: int) -> None:
    harness: Harness = task._session  # type: ignore[assignment]
    policy = task.settings.compaction
    agent: Agent = await task.agent()
    model, why = _find_model(harness, agent.model)
    view = await task.context()
    window = 0 if model is None else model.context_window
    count = counter(model, task.report)
    cut = select(view, _keep(task.input.reason, view, window, policy, count), count)
    if cut is None:
        await _end(task)
        return
    decision = await _before_compact(task, agent, cut.older)
    if isinstance(decision, Decline):
        await _end(task)
        return
    if isinstance(decision, Summary):
        await _place(task, cut, decision.text)
        return
    if model is None:
        await _fail(task, why)
        return
    message = await final_message(model, _request(task, cut, model))
    message = message.replaced(model=agent.model, timestamp=task.now())
    if message.stop_reason in ("stop", "length") and message.text.strip():
        await _place(task, cut, message.text.strip(), message)
        return
    retry = task.settings.retry
    if retry.enabled and attempt <= retry.max_retries and is_retryable(message):
        until = task.now() + max(retry.delay(attempt), retry_after(message) or 0.0)
        async with task.commit() as tx:
            await count_usage(tx, task.conversation_id, message)
            tx.sleep(until, CompactionTask.Retry(attempt=attempt, until=until))
        return
    await _fail(task, message.error or f"The model {model.id} answered without a summary.", message)


def _find_model(harness: Harness, id: str | None) -> tuple[Model | None, str]:
    if id is None:
        return None, "No model is chosen: give the harness one, or set it with configure(model=…)."
    try:
        return harness.models.get(id), f"There is no model {id!r} here."
    except UnknownModel as error:
        return None, str(error)


async def _before_compact(task: Run, agent: Agent, older: tuple[Message, ...]) -> Decline | Summary | None:
    for extension, hooks in agent.hooks(CompactionHooks):
        if hooks.before_compact is None:
            continue
        try:
            decision = await call_hook(hooks.before_compact, older, hook_context(task))
            if isinstance(decision, Decline | Summary):
                return decision
            if decision is not None:
                raise TypeError(f"before_compact returned {decision!r}: return None, Decline() or Summary(text)")
        except Exception as error:
            task._session._report(
                "extension_error", error, task=task.record, extension=extension, callback="before_compact"
            )
    return None


def _request(task: Run, cut: Cut, model: Model) -> ModelRequest:
    room = _room(model.context_window, task.settings.compaction) if model.context_window > 0 else None
    asked = PROMPT
    if task.input.instructions:
        asked += f"\n\nAttend to this: {task.input.instructions}"
    text = f"{asked}\n\n<conversation>\n{render(cut.older, None if room is None else room * 3)}\n</conversation>"
    return ModelRequest(
        messages=(SystemMessage(sections={"compaction": SYSTEM}), UserMessage([TextBlock(text)])),
        options=task.settings.request.replaced(deferred=False),
        max_tokens=task.settings.request.max_tokens,
    )


def render(messages: Sequence[Message], limit: int | None = None) -> str:
    """Messages as text. With ``limit`` (characters) long ones are shortened in their middle until all of it fits."""
    parts = [_rendered(message) for message in messages]
    longest = max((len(part) for part in parts), default=0)
    while limit is not None and longest > 100 and sum(len(part) + 2 for part in parts) > limit:
        longest //= 2
        parts = [_shortened(part, longest) for part in parts]
    text = "\n\n".join(parts)
    return text if limit is None else _shortened(text, limit)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    left_out = " […] "
    half = max(0, limit - len(left_out)) // 2
    return text[:half] + left_out + text[len(text) - half :]


def _rendered(message: Message) -> str:
    role = f"result of {message.tool_name}" if message.role == "tool_result" else message.role
    said = [message.text] if message.text else []
    if message.role != "system":
        for block in message.content:
            if block.type == "tool_call":
                said.append(f"[calls {block.name} with {json.dumps(block.arguments, ensure_ascii=False)}]")
            elif block.type == "image":
                said.append(f"[an image, {block.media_type}]")
    return f"{role}: " + "\n".join(said)


# -- how it ends -----------------------------------------------------------------------------------------------------


async def _end(task: Run) -> None:
    """Nothing was to be done."""
    async with task.commit() as tx:
        await _ended(tx, task.conversation_id, task.id)
        tx.complete()


async def _fail(task: Run, why: str, message: AssistantMessage | None = None) -> None:
    async with task.commit() as tx:
        if message is not None:
            await count_usage(tx, task.conversation_id, message)
        await _ended(tx, task.conversation_id, task.id, why)
        tx.fail(why)


async def _place(task: Run, cut: Cut, summary: str, message: AssistantMessage | None = None) -> None:
    """Place the summary: now where nothing reads the context, else at the next boundary. A stale one is dropped."""
    conversation = task.conversation_id
    said = UserMessage([TextBlock(f"<summary>\n{summary}\n</summary>")], timestamp=task.now())
    data = {"reason": task.input.reason}
    async with task.commit() as tx:
        if message is not None:
            await count_usage(tx, conversation, message)
        await _ended(tx, conversation, task.id)
        tx.complete()
        active_from = await tx._active_from(conversation)
        if active_from is not None and cut.first_kept <= active_from:
            return  # a reset or another compaction came first: this one would cut nothing, or bring back what was cut
        if await _between_requests(tx, conversation):
            tx._append(KIND, conversation, [said], data, cut.first_kept)
            return
        id = SubmissionId(task._session._mint())
        tx._put_submission(SubmissionRecord(id=id, conversation_id=conversation, type="write", status="queued"))
        inbox = await tx.doc(InboxState, conversation)
        item = InboxItem(
            submission=id,
            type="write",
            mode="write",
            kind=KIND,
            data=data,
            messages=(said,),
            head=cut.first_kept,
            submitted_at=task.now(),
        )
        inbox.items = (*inbox.items, item)


async def _between_requests(tx: Tx, conversation: ConversationId) -> bool:
    """Whether the context is read anew before the next request: no run is going on, or its generation waits for a
    compaction or for its next attempt."""
    live = await tx.doc(LiveState, conversation)
    if live.run is None:
        return True
    generation = await tx.task(live.run.task)
    if generation is None:
        return False
    phase = (checkpoint_of_task(generation) or {}).get("phase")
    return phase == "retry" or (phase == "prepare" and generation.state.status == "waiting")


async def place_summaries(tx: Tx, conversation: ConversationId) -> bool:
    """Place the summaries that came while a request was going on, once it is over. Returns whether there was one."""
    inbox = await tx.doc(InboxState, conversation)
    waiting = [item for item in inbox.items if item.kind == KIND]
    inbox.items = tuple(item for item in inbox.items if item.kind != KIND)
    for item in waiting:
        record = await tx.submission(item.submission)
        if record is not None:
            await place_write(tx, conversation, record, item)
    return bool(waiting)
