"""A turn: one model response and its tool calls, as a durable task (engine.md, section 11).

``Prepare`` waits for a compaction where there is no room, and pins a request; ``Request`` streams it, ``Retry`` and
``Poll`` are durable sleeps, ``Tools`` waits for a round of calls, ``Finish`` and ``Drain`` run what ``after_run`` asked
for. The end of each is one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DurableError, UnknownModel
from ..messages import (
    AssistantMessage,
    ContentBlock,
    Message,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from ..models.errors import is_overflow, is_retryable, retry_after
from ..models.protocol import (
    DeferredModel,
    Finish,
    Model,
    ModelEvent,
    ModelRequest,
    RequestOptions,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)
from ..records import ConversationId, EntryId, TaskId, TaskRecord, outcome_of_task
from ..session import Tx
from ..session.context import ConversationContext
from ..tasks import Phase, Task, TaskRun, TaskTx
from ..values import JsonValue, Value, check_json, valid_text
from .agent import Agent, prompt_change, render_sections
from .compaction import (
    KIND as COMPACTION,
    CompactionInput,
    compaction_waits,
    context_pressure,
    counter,
    place_summaries,
    start_compaction,
)
from .extension import Continue, GenerationHooks, PromptInput, RunEndTask
from .hooks import call_hook, hook_context
from .runs import (
    clear,
    count_usage,
    end_failed,
    go_on,
    keep_partial,
    next_run,
    settle_inputs,
)
from .state import LiveDeferred, LiveGeneration, LiveRetry, LiveRun, LiveState, LiveTool, ProviderState
from .streams import closing, error_message, storable
from .toolrun import Control, ToolInput, ToolOutcome, ToolTask, result_of
from .typed import OUTPUT_TOOL, declaration

if TYPE_CHECKING:
    from .harness import Harness

Run = TaskRun[None, None]

Compacted = Literal["threshold", "overflow"]
"""Why this generation has compacted already: each happens at most once in it."""

DEFAULT_POLL = 60.0
"""Seconds until a deferred answer is asked for when its handle does not say."""


class WantedTask(Value):
    """A task that ``after_run`` asked for: its name and stored input."""

    name: str
    input: JsonValue = None


class GenerationTask(Task[None, None], name="pi.generation", version=1):
    """One turn."""

    class Prepare(Phase):
        attempt: int = 1
        compacted: Compacted | None = None

        async def run(self, task: Run) -> None:
            await prepare(task, self.attempt, self.compacted)

    class Request(Phase):
        attempt: int
        model: str
        thinking: str
        options: RequestOptions
        cutoff: EntryId
        compacted: Compacted | None = None

        async def run(self, task: Run) -> None:
            model = await _model(task, self.model)
            if model is None:
                return
            message = await _stream(task, self, model)
            await _respond(task, message, self, model.context_window)

    class Retry(Phase):
        attempt: int
        until: float
        compacted: Compacted | None = None

        async def run(self, task: Run) -> None:
            if task.now() < self.until:  # an early wake, or a record of an older version
                await task.sleep_until(self.until, self)
                return
            async with task.commit() as tx:
                live = await tx.doc(LiveState, task.conversation_id)
                live.generation = LiveGeneration(attempt=self.attempt + 1)
                tx.next(GenerationTask.Prepare(attempt=self.attempt + 1, compacted=self.compacted))

    class Poll(Phase):
        attempt: int
        model: str
        thinking: str | None = None
        handle: dict[str, JsonValue]
        poll_at: float
        compacted: Compacted | None = None

        async def run(self, task: Run) -> None:
            if task.now() < self.poll_at:
                await task.sleep_until(self.poll_at, self)
                return
            model = await _model(task, self.model)
            if model is None:
                return
            message = await _poll(self, model)
            message = message.replaced(model=self.model, thinking=self.thinking, timestamp=task.now())
            await _respond(task, message, self, model.context_window)

    class Tools(Phase):
        assistant: EntryId
        tasks: tuple[TaskId, ...] = ()
        rest: tuple[int, ...] = ()

        async def run(self, task: Run) -> None:
            await _after_round(task, self)

    class Finish(Phase):
        tasks: tuple[WantedTask, ...]

        async def run(self, task: Run) -> None:
            await _finish(task, self.tasks)

    class Drain(Phase):
        async def run(self, task: Run) -> None:
            async with task.commit() as tx:
                live = await tx.doc(LiveState, task.conversation_id)
                clear(live)
                await next_run(tx, task.conversation_id, task.settings)
                tx.complete()

    @classmethod
    async def abort(cls, task: Run) -> None:
        checkpoint = task.checkpoint
        if checkpoint.get("phase") == "poll":
            try:
                model = await asyncio.to_thread(_harness(task).models.get, str(checkpoint.get("model")))
                if isinstance(model, DeferredModel):
                    await model.cancel(checkpoint["handle"])
            except Exception as error:
                task.report(error)
        async with task.commit() as tx:
            live = await tx.doc(LiveState, task.conversation_id)
            if live.run is not None and live.run.task == task.id:
                await _give_up_calls(tx, task.conversation_id, task.id)
                await end_failed(tx, task.conversation_id, task.settings, "aborted")
            tx.aborted()

    @classmethod
    async def settle(cls, tx: TaskTx, record: TaskRecord) -> None:
        """A generation that faulted or was orphaned: its inputs hear of it, its partial is kept."""
        outcome = outcome_of_task(record)
        live = await tx.doc(LiveState, record.conversation_id)
        if live.run is None or live.run.task != record.id:
            return
        harness: Any = tx._session
        detail: JsonValue = None
        reason = "aborted"
        if outcome is not None and outcome.status == "faulted":
            reason = "faulted"
            detail = outcome.error.detail if outcome.error.detail is not None else {"message": outcome.error.message}
        elif outcome is not None and outcome.status == "orphaned":
            reason = outcome.reason
        await _give_up_calls(tx, record.conversation_id, record.id)
        await end_failed(tx, record.conversation_id, harness._settings(), reason, detail)


def _harness(task: Run) -> Harness:
    return task._session  # type: ignore[return-value]


# -- prepare ---------------------------------------------------------------------------------------------------------


async def prepare(task: Run, attempt: int, compacted: Compacted | None = None) -> None:
    """Resolve agent and settings once, store what the prompt changed, pin the request (engine.md, section 11)."""
    harness = _harness(task)
    settings = task.settings
    agent: Agent = await task.agent()
    if agent.model is None:
        await _fail(task, "no_model", "No model is chosen: give the harness one, or set it with configure(model=…).")
        return
    model = await _model(task, agent.model)
    if model is None:
        return
    over = await _over_limit(task)
    if over is not None:
        await _fail(task, "limit", over)
        return
    context = await harness._context(task.conversation_id)
    pressure = context_pressure(context, model.context_window, settings.compaction, counter(model, task.report))
    if pressure == "full" and compacted is None:
        async with task.commit() as tx:
            live = await tx.doc(LiveState, task.conversation_id)
            awaited = [running.task for running in live.compactions]
            if not awaited:
                wanted = CompactionInput(reason="threshold")
                awaited = [await start_compaction(tx, task.conversation_id, wanted, owner=task.id)]
            tx.wait(awaited, GenerationTask.Prepare(attempt=attempt, compacted="threshold"))
        return
    shown = context.shown
    asked_for = await _shown_tools(task, context) if any(tool.deferred for tool in agent.tools.values()) else ()
    offered = agent.offered | {
        name: tool.declaration for name, tool in agent.tools.items() if tool.deferred and name in asked_for
    }
    live_now = await task.snapshot(LiveState, task.conversation_id)
    if live_now is not None and live_now.run is not None and live_now.run.output is not None:
        offered |= {OUTPUT_TOOL: declaration(live_now.run.output)}
    given = PromptInput(task.conversation_id, agent, tuple(offered), agent.cwd, task.now(), harness.env)

    def on_error(extension: str, callback: str, error: Exception) -> None:
        harness._report("extension_error", error, task=task.record, extension=extension, callback=callback)

    sections = await render_sections(agent, given, shown.sections, on_error)
    change = prompt_change(sections, offered, shown, baseline=shown.baseline)
    async with task.commit() as tx:
        cutoff = EntryId(context.last_id)
        if change is not None:
            entry = tx._append("pi.system", task.conversation_id, [change.replaced(timestamp=task.now())])
            cutoff = entry.id
        live = await tx.doc(LiveState, task.conversation_id)
        live.generation = LiveGeneration(attempt=attempt, model=agent.model, started_at=task.now())
        if pressure == "near" and compacted is None and not await compaction_waits(tx, task.conversation_id):
            await start_compaction(tx, task.conversation_id, CompactionInput(reason="threshold"), background=True)
        tx.next(
            GenerationTask.Request(
                attempt=attempt,
                model=agent.model,
                thinking=agent.thinking,
                options=settings.request.without_secrets(),
                cutoff=cutoff,
                compacted="overflow" if compacted == "overflow" else None,
            )
        )


async def _shown_tools(task: Run, context: ConversationContext) -> Collection[str]:
    """The names of the tools that the transcript offers; behind a summary, those that were offered before it."""
    if context.shown.baseline and context.head is not None and context.head.kind == COMPACTION:
        before = await _harness(task)._context_at(task.conversation_id, context.head.id - 1)
        return {tool.name for tool in before.tools}
    return context.shown.tools


async def _model(task: Run, id: str) -> Model | None:
    """The model of this id; without it the run ends ``no_model``."""
    why = f"There is no model {id!r} here."
    try:
        model = _harness(task).models.get(id)
    except UnknownModel as error:
        model, why = None, str(error)
    if model is None:
        await _fail(task, "no_model", why)
    return model


async def _over_limit(task: Run) -> str | None:
    """Which limit the next request would exceed, in words; ``None`` when none (engine.md, section 9)."""
    limits = task.settings.limits
    live = await task.snapshot(LiveState, task.conversation_id)
    run = live.run if live is not None else None
    if run is None:
        return None
    spent = f"{run.turns} turns, {run.spent.total_tokens} tokens, ${run.spent.cost:.4f}"
    if limits.turns is not None and run.turns >= limits.turns:
        return f"The run reached its limit of {limits.turns} turns (spent: {spent})."
    if limits.tokens is not None and run.spent.total_tokens >= limits.tokens:
        return f"The run reached its limit of {limits.tokens} tokens (spent: {spent})."
    if limits.cost is not None and run.spent.cost >= limits.cost:
        return f"The run reached its limit of ${limits.cost} (spent: {spent})."
    if limits.session_cost is not None:
        total = (await _harness(task)._total_usage()).total.cost
        if total >= limits.session_cost:
            return f"The session reached its limit of ${limits.session_cost} (spent: ${total:.4f})."
    return None


async def _fail(task: Run, reason: str, detail: str | None = None, message: AssistantMessage | None = None) -> None:
    """End the run without an answer."""
    async with task.commit() as tx:
        if message is not None:
            await count_usage(tx, task.conversation_id, message)
        stored = None if detail is None else {"message": detail}
        await end_failed(tx, task.conversation_id, task.settings, reason, stored, message=message)
        tx.fail(detail or reason, {"reason": reason})


# -- the stream ------------------------------------------------------------------------------------------------------


class _Partial:
    """The answer as far as it has arrived, and the commits that keep it (engine.md, section 11).

    The first delta commits at once, later ones at most every interval; what arrives meanwhile goes with the next
    commit.
    """

    def __init__(self, task: Run, request: GenerationTask.Request) -> None:
        self._task = task
        self._request = request
        self._blocks: list[tuple[str, list[str], ToolCall | None]] = []
        self._interval = task.settings.progress.partial_interval
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._last = float("-inf")
        self._dirty = False
        self.error: BaseException | None = None

    def add(self, event: ModelEvent) -> None:
        if isinstance(event, TextDelta | ThinkingDelta):
            kind = "text" if isinstance(event, TextDelta) else "thinking"
            if not event.text:
                return
            if self._blocks and self._blocks[-1][0] == kind:
                self._blocks[-1][1].append(event.text)
            else:
                self._blocks.append((kind, [event.text], None))
        elif isinstance(event, ToolCallDelta):
            known = any(call is not None and call.id == valid_text(event.id) for _, _, call in self._blocks)
            if known:
                return  # its arguments are shown when they are whole
            self._blocks.append(("tool_call", [], ToolCall(id=valid_text(event.id), name=valid_text(event.name))))
        else:
            raise TypeError(f"the model's stream gave a {type(event).__name__}, which is no event of a model")
        self._dirty = True
        if self._timer is None and self._flushing is None:
            delay = self._last + self._interval - self._loop.time()
            if delay <= 0:
                self._timer = self._loop.call_soon(self._start)
            else:
                self._timer = self._loop.call_later(delay, self._start)

    def message(self) -> AssistantMessage:
        content: list[ContentBlock] = []
        for kind, parts, call in self._blocks:
            if len(parts) > 1:
                parts[:] = ["".join(parts)]
            if call is not None:
                content.append(call)
            elif kind == "text":
                content.append(TextBlock(valid_text(parts[0])))
            else:
                content.append(ThinkingBlock(valid_text(parts[0])))
        request = self._request
        return AssistantMessage(content=content, model=request.model, thinking=request.thinking)

    def _start(self) -> None:
        self._timer = None
        if self._dirty and self._task._active:
            self._flushing = self._loop.create_task(self._flush())
            self._flushing.add_done_callback(self._flushed)

    def _flushed(self, flushing: asyncio.Task[None]) -> None:
        self._flushing = None
        if not flushing.cancelled() and flushing.exception() is not None:
            self.error = flushing.exception()
        elif self._dirty and self._timer is None and self._task._active:
            self._timer = self._loop.call_later(max(0.0, self._last + self._interval - self._loop.time()), self._start)

    async def _flush(self) -> None:
        self._last = self._loop.time()
        self._dirty = False
        message = self.message()
        async with self._task.commit() as tx:
            live = await tx.doc(LiveState, self._task.conversation_id)
            if live.generation is not None:
                live.generation = live.generation.replaced(message=message)

    async def settle(self) -> None:
        """Stop the timer, and wait for a commit that is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def flush_now(self) -> None:
        """Commit everything that has arrived: close and abort do this before they stop the stream."""
        await self.settle()
        if self._dirty:
            await self._flush()


async def _stream(task: Run, request: GenerationTask.Request, model: Model) -> AssistantMessage:
    """Send the pinned request and return its terminal message; what arrives is committed on the way."""
    harness = _harness(task)
    conversation = task.conversation_id
    live = await task.snapshot(LiveState, conversation)
    if live is not None and live.generation is not None and live.generation.message is not None:
        async with task.commit() as tx:
            draft = await tx.doc(LiveState, conversation)
            keep_partial(tx, conversation, draft)
    view = await harness._context_at(conversation, request.cutoff)
    messages = await _before_request(task, view.messages)
    provider = await task.snapshot(ProviderState, conversation)
    partial = _Partial(task, request)
    task.flush_before_stop(partial.flush_now)
    started = task.now()
    message: AssistantMessage | None = None
    options = request.options.with_secrets(task.settings.request)
    sent = ModelRequest(
        messages=messages,
        tools=view.tools,
        thinking=request.thinking,
        options=options,
        session_id=provider.session_id if provider is not None else None,
        max_tokens=options.max_tokens,
    )
    try:
        async with closing(model.stream(sent)) as events:
            async for event in events:
                if partial.error is not None:
                    raise partial.error
                if isinstance(event, Finish):
                    message = storable(event.message)
                    break
                partial.add(event)
    except Exception as error:
        if partial.error is error:
            raise
        message = error_message(error, partial.message().content)
    await partial.settle()
    if partial.error is not None:
        raise partial.error
    if message is None:
        message = error_message(
            DurableError("The stream ended before the answer was finished."), partial.message().content
        )
    return message.replaced(
        model=request.model,
        thinking=request.thinking,
        timestamp=task.now(),
        duration=max(0.0, task.now() - started),
    )


async def _poll(phase: GenerationTask.Poll, model: Model) -> AssistantMessage:
    if not isinstance(model, DeferredModel):
        return error_message(DurableError(f"The model {phase.model} cannot be asked for deferred answers."))
    try:
        return storable(await model.poll(phase.handle))
    except Exception as error:
        return error_message(error)


# -- the end of a response -------------------------------------------------------------------------------------------


async def _respond(
    task: Run, message: AssistantMessage, asked: GenerationTask.Request | GenerationTask.Poll, window: int
) -> None:
    """What follows a terminal message, in one commit."""
    if message.stop_reason == "length" and not message.content and is_overflow(message, window):
        text = f"The prompt is too long: it filled the model's {window} tokens and left no room for an answer."
        message = message.replaced(stop_reason="error", error=text)
    agent: Agent = await task.agent()
    for extension, hooks in agent.hooks(GenerationHooks):
        if hooks.after_response is not None:
            try:
                await call_hook(hooks.after_response, message, hook_context(task))
            except Exception as error:
                _reported(task, extension, "after_response", error)
    if message.stop_reason == "deferred":
        await _defer(task, message, asked)
    elif message.stop_reason in ("error", "aborted"):
        if message.error is None:
            message = message.replaced(error="The provider ended the answer.", stop_reason="error")
        await _failed_response(task, message, asked)
    elif [call.name for call in message.tool_calls] == [OUTPUT_TOOL] and await _is_typed(task):
        await _answer(task, message.replaced(stop_reason="tool_use"), agent, accepted=message.tool_calls[0])
    elif message.tool_calls:
        await _start_round(task, message.replaced(stop_reason="tool_use"), agent)
    else:
        await _answer(task, message, agent)


async def _defer(task: Run, message: AssistantMessage, asked: GenerationTask.Request | GenerationTask.Poll) -> None:
    handle = check_json(message.deferred or {}, "the handle of a deferred answer")
    poll_at = handle.get("poll_at")
    if not isinstance(poll_at, int | float):
        after = handle.get("poll_after")
        poll_at = task.now() + (after if isinstance(after, int | float) else DEFAULT_POLL)
    phase = GenerationTask.Poll(
        attempt=asked.attempt,
        model=asked.model,
        thinking=message.thinking,
        handle=handle,
        poll_at=float(poll_at),
        compacted=asked.compacted,
    )
    async with task.commit() as tx:
        live = await tx.doc(LiveState, task.conversation_id)
        live.generation = LiveGeneration(
            attempt=asked.attempt, model=asked.model, deferred=LiveDeferred(at=phase.poll_at, model=asked.model)
        )
        tx.sleep(phase.poll_at, phase)


async def _failed_response(
    task: Run, message: AssistantMessage, asked: GenerationTask.Request | GenerationTask.Poll
) -> None:
    attempt = asked.attempt
    policy = task.settings.retry
    if asked.compacted is None and task.settings.compaction.enabled and is_overflow(message):
        async with task.commit() as tx:
            await count_usage(tx, task.conversation_id, message)
            tx._append("pi.assistant", task.conversation_id, [message])
            live = await tx.doc(LiveState, task.conversation_id)
            live.generation = None
            if await place_summaries(tx, task.conversation_id):  # it was compacted meanwhile: perhaps that is enough
                tx.next(GenerationTask.Prepare(attempt=attempt))
                return
            id = await start_compaction(tx, task.conversation_id, CompactionInput(reason="overflow"), owner=task.id)
            tx.wait([id], GenerationTask.Prepare(attempt=attempt, compacted="overflow"))
        return
    if not (policy.enabled and attempt <= policy.max_retries and is_retryable(message)):
        await _fail(task, "model_error", message.error, message)
        return
    until = task.now() + max(policy.delay(attempt), retry_after(message) or 0.0)
    async with task.commit() as tx:
        await count_usage(tx, task.conversation_id, message)
        tx._append("pi.assistant", task.conversation_id, [message])
        live = await tx.doc(LiveState, task.conversation_id)
        live.generation = LiveGeneration(attempt=attempt, retry=LiveRetry(at=until, error=message.error or ""))
        await place_summaries(tx, task.conversation_id)  # the next attempt reads the context anew
        tx.sleep(until, GenerationTask.Retry(attempt=attempt, until=until, compacted=asked.compacted))


async def _is_typed(task: Run) -> bool:
    """Whether the run is to end with a typed answer."""
    live = await task.snapshot(LiveState, task.conversation_id)
    return live is not None and live.run is not None and live.run.output is not None


async def _answer(task: Run, message: AssistantMessage, agent: Agent, accepted: ToolCall | None = None) -> None:
    """Store the answer; the run ends, or goes on when ``on_yield`` says so, or runs what ``after_run`` asks for.

    ``accepted`` is the call that gives a typed answer: it gets its one result, and nothing runs.
    """
    conversation = task.conversation_id
    live = await task.snapshot(LiveState, conversation)
    run = live.run if live is not None else None
    goes_on = await _on_yield(task, agent, message) if accepted is None else None
    wanted = [] if goes_on is not None else await _after_run(task, agent, run)
    async with task.commit() as tx:
        await count_usage(tx, conversation, message)
        entry = tx._append("pi.assistant", conversation, [message])
        if accepted is not None:
            _result(tx, conversation, accepted, "The answer was taken.", None)
        draft = await tx.doc(LiveState, conversation)
        if draft.run is None:
            tx.complete()
            return
        if goes_on is not None:
            tx._append("pi.user", conversation, [UserMessage([TextBlock(goes_on.content)], timestamp=task.now())])
            await go_on(tx, conversation, task.settings)
            tx.complete()
            return
        await settle_inputs(tx, draft.run.inputs, answer=entry.id)
        if wanted:
            draft.run = draft.run.replaced(after_run=True, inputs=(), turns=draft.run.turns + 1)
            draft.generation = None
            draft.tools = ()
            tx.next(GenerationTask.Finish(tasks=tuple(wanted)))
            return
        clear(draft)
        await next_run(tx, conversation, task.settings)
        tx.complete()


# -- tool rounds -----------------------------------------------------------------------------------------------------


async def _start_round(task: Run, message: AssistantMessage, agent: Agent) -> None:
    """Store the answer that calls tools, with a task for each call to a tool that the request offered."""
    harness = _harness(task)
    cutoff = task.checkpoint.get("cutoff")
    view = await harness._context_at(task.conversation_id, cutoff if isinstance(cutoff, int) else None)
    offered = {tool.name for tool in view.tools} - {OUTPUT_TOOL}
    calls = message.tool_calls
    sequential = task.settings.tool_execution == "sequential" or any(
        agent.tools[call.name].execution == "sequential" for call in calls if call.name in agent.tools
    )
    async with task.commit() as tx:
        await count_usage(tx, task.conversation_id, message)
        entry = tx._append("pi.assistant", task.conversation_id, [message])
        live = await tx.doc(LiveState, task.conversation_id)
        live.generation = None
        live.tools = ()
        runnable: list[int] = []
        for index, call in enumerate(calls):
            if call.name in offered:
                runnable.append(index)
            else:
                _refuse(tx, task.conversation_id, call)
        first = runnable[:1] if sequential else runnable
        tasks = [await _create_call(tx, task, live, entry.id, calls[index]) for index in first]
        rest = tuple(runnable[len(first) :])
        if tasks:
            tx.wait(tasks, GenerationTask.Tools(assistant=entry.id, tasks=tuple(tasks), rest=rest))
        else:
            tx.next(GenerationTask.Tools(assistant=entry.id))


async def _give_up_calls(tx: Tx, conversation: ConversationId, generation: TaskId) -> None:
    """The calls of a round one after the other that are not made any more, since it ends: each has its one result."""
    harness: Any = tx._session
    given: set[str] = set()
    for entry in reversed((await harness._context(conversation)).entries):
        message = entry.messages[0] if entry.messages else None
        if message is None:
            continue
        if message.role == "tool_result":
            given.add(message.call_id)
        elif message.role == "assistant" and entry.by_task == generation:
            for call in message.tool_calls:
                if call.id not in given:
                    _result(tx, conversation, call, "The call was not made: the run ended before it.", "aborted")
            return


def _refuse(tx: Tx, conversation: ConversationId, call: ToolCall) -> None:
    if call.name == OUTPUT_TOOL:
        _result(tx, conversation, call, f"Call {OUTPUT_TOOL} alone, when everything else is done.", "invalid_arguments")
    else:
        _result(tx, conversation, call, f"There is no tool named {call.name!r} here.", "tool_unavailable")


def _result(tx: Tx, conversation: ConversationId, call: ToolCall, text: str, code: str | None) -> None:
    """The result of a call that needs no task."""
    message = ToolResultMessage(
        content=[TextBlock(text)],
        call_id=call.id,
        tool_name=call.name,
        is_error=code is not None,
        timestamp=tx._session.clock(),
    )
    data: dict[str, JsonValue] = {"diagnostics": []} if code is None else {"diagnostics": [], "code": code}
    tx._append("pi.tool-result", conversation, [message], data)


async def _create_call(tx: TaskTx, task: Run, live: LiveState, assistant: EntryId, call: ToolCall) -> TaskId:
    input = ToolInput(call_id=call.id, name=call.name, arguments=call.arguments, assistant=assistant)
    id = await tx.create_task(ToolTask, input, owner=task.id)
    live.tools = (*live.tools, LiveTool(call=call.id, name=call.name, arguments=call.arguments, task=id))
    return id


async def _after_round(task: Run, phase: GenerationTask.Tools) -> None:
    """Start the next call of a sequential round, or end the round: controls, boundary, next generation."""
    conversation = task.conversation_id
    assistant = await task.entry(phase.assistant)
    if assistant is None or assistant.messages[0].role != "assistant":
        raise DurableError(f"the entry {phase.assistant} that called the tools is missing")
    message = assistant.messages[0]
    if phase.rest:
        async with task.commit() as tx:
            live = await tx.doc(LiveState, conversation)
            call = message.tool_calls[phase.rest[0]]
            id = await _create_call(tx, task, live, assistant.id, call)
            following = GenerationTask.Tools(assistant=assistant.id, tasks=(*phase.tasks, id), rest=phase.rest[1:])
            tx.wait([id], following)
        return
    outcomes = await task.outcomes(phase.tasks)
    results = [result for outcome in outcomes if (result := result_of(outcome)) is not None]
    agent: Agent = await task.agent()
    looking = [(extension, hooks.after_tools) for extension, hooks in agent.hooks(GenerationHooks) if hooks.after_tools]
    if looking:
        finished = await _round(task, assistant.id, message.tool_calls, results)
        for extension, hook in looking:
            try:
                await call_hook(hook, message, finished, hook_context(task))
            except Exception as error:
                _reported(task, extension, "after_tools", error)
    controls: list[Control] = [result.control for result in results if result.control is not None]
    notes = [control.handoff for control in controls if control.handoff is not None]
    terminated = len(phase.tasks) == len(message.tool_calls) == len([c for c in controls if c.terminate]) > 0
    added = [name for control in controls for name in control.add_tools if name in agent.tools]
    async with task.commit() as tx:
        live = await tx.doc(LiveState, conversation)
        if live.run is None:
            tx.complete()
            return
        if notes or terminated:
            if notes:
                note = UserMessage([TextBlock("\n\n".join(notes))], timestamp=task.now())
                tx._append("pi.reset", conversation, [note], head="self")
            await settle_inputs(tx, live.run.inputs, answer=assistant.id)
            clear(live)
            await next_run(tx, conversation, task.settings)
            tx.complete()
            return
        if added:
            shown = SystemMessage(tools_added=[agent.tools[name].declaration for name in added], timestamp=task.now())
            tx._append("pi.system", conversation, [shown])
        await go_on(tx, conversation, task.settings)
        tx.complete()


async def _round(
    task: Run, assistant: EntryId, calls: Sequence[ToolCall], results: Sequence[ToolOutcome]
) -> list[ToolOutcome]:
    """The result of each call of a round as its entry has it, those of calls without a task included."""
    known = {result.entry: result for result in results}
    found: dict[str, ToolOutcome] = {}
    for entry in (await _harness(task)._context(task.conversation_id)).entries:
        if entry.id > assistant and entry.kind == "pi.tool-result":
            message = entry.messages[0]
            data = entry.data if isinstance(entry.data, dict) else {}
            if message.role == "tool_result":
                result = known.get(entry.id) or ToolOutcome(
                    entry=entry.id, is_error=message.is_error, code=data.get("code"), details=message.details
                )
                found.setdefault(message.call_id, result.replaced(content=message.content))
    return [found[call.id] for call in calls if call.id in found]


# -- after the run ---------------------------------------------------------------------------------------------------


async def _finish(task: Run, wanted: Sequence[WantedTask]) -> None:
    """Create the tasks that were asked for as children, and wait for them in ``drain``."""
    found = []
    for want in wanted:
        definition = _harness(task)._definition(want.name)
        if definition is None:
            task.report(DurableError(f"after_run asked for a task {want.name!r}, which is not installed"))
        else:
            found.append((definition[0], want.input))
    async with task.commit() as tx:
        ids = [
            await tx.create_task(definition, definition.load_input(input), owner=task.id) for definition, input in found
        ]
        if ids:
            tx.wait(ids, GenerationTask.Drain())
        else:
            tx.next(GenerationTask.Drain())


# -- hooks -----------------------------------------------------------------------------------------------------------


def _reported(task: Run, extension: str, callback: str, error: Exception) -> None:
    task._session._report("extension_error", error, task=task.record, extension=extension, callback=callback)


async def _before_request(task: Run, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    agent: Agent = await task.agent()
    for extension, hooks in agent.hooks(GenerationHooks):
        if hooks.before_request is not None:
            try:
                replaced = await call_hook(hooks.before_request, messages, hook_context(task))
                if replaced is not None:
                    messages = tuple(replaced)
            except Exception as error:
                _reported(task, extension, "before_request", error)
    return messages


async def _on_yield(task: Run, agent: Agent, message: AssistantMessage) -> Continue | None:
    for extension, hooks in agent.hooks(GenerationHooks):
        if hooks.on_yield is not None:
            try:
                decision = await call_hook(hooks.on_yield, message, hook_context(task))
            except Exception as error:
                _reported(task, extension, "on_yield", error)
                continue
            if isinstance(decision, Continue):
                return decision
    return None


async def _after_run(task: Run, agent: Agent, run: LiveRun | None) -> list[WantedTask]:
    wanted: list[WantedTask] = []
    for extension, hooks in agent.hooks(GenerationHooks):
        if hooks.after_run is not None:
            try:
                asked = await call_hook(hooks.after_run, run, hook_context(task, run))
                for item in asked or ():
                    if not isinstance(item, RunEndTask):
                        raise TypeError(f"after_run returned {item!r}: return a list of run_end_task(TaskClass, input)")
                    wanted.append(WantedTask(name=item.task.name, input=item.task.dump_input(item.input)))
            except Exception as error:
                _reported(task, extension, "after_run", error)
    return wanted
