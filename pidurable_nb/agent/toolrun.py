"""A tool call as a durable task: intent before effect, exactly one result (engine.md, section 12).

``Call`` resolves, repairs, validates and asks the hooks, then stores the *intent*: final arguments and replay policy.
``Execute`` runs the tool. An ``Execute`` that an earlier invocation may have begun runs again only when the stored and
the present policy both say ``safe``; else the model gets an ``interrupted`` error with the output committed so far.
"""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ..errors import DurableError, RegistryError
from ..messages import ContentBlock, ImageBlock, TextBlock, ToolResultMessage, Usage
from ..models.errors import redact
from ..records import ConversationId, EntryId, Outcome, TaskId, TaskRecord, outcome_of_task
from ..session import Tx
from ..tasks import Phase, Task, TaskRun, TaskTx
from ..tasks.runtime import is_own
from ..values import JsonValue, Value, check_json
from .agent import Agent
from .context import ToolContext, update_tool
from .extension import Block, CallInfo, Replace, ToolHooks
from .hooks import call_hook, hook_context
from .output import OutputBuffer, clean
from .state import Diagnostic, LiveApproval, LiveState, NestedTool, UsageState
from .tool import OutputLimits, Replay, Tool, ToolControl, ToolResult

ErrorCode = Literal["tool_unavailable", "invalid_arguments", "blocked", "interrupted", "aborted", "tool_error"]

_blocks: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])


class ToolInput(Value):
    """What a call is: the provider's id, the tool's name, the arguments as the model gave them.

    ``assistant`` is the entry that asked for it; ``parent`` and ``key`` are set for a call that a tool made.
    """

    call_id: str
    name: str
    arguments: dict[str, JsonValue]
    assistant: EntryId | None = None
    parent: TaskId | None = None
    key: str | None = None


APPROVAL = "pi.approval"
"""The signal that carries a person's decision to a call that waits for it."""


class Decision(Value):
    """What a person said about a call: ``arguments`` in place of the model's, ``note`` a word to the model."""

    approve: bool
    arguments: dict[str, JsonValue] | None = None
    note: str | None = None


class Control(Value):
    """What a stored result asks of the run."""

    add_tools: tuple[str, ...] = ()
    terminate: bool = False
    handoff: str | None = None


class ToolOutcome(Value):
    """What a finished call leaves in its task's record."""

    entry: EntryId | None = None
    content: list[ContentBlock] | None = None
    is_error: bool = False
    code: str | None = None
    structured: JsonValue = None
    details: JsonValue = None
    diagnostics: tuple[Diagnostic, ...] = ()
    control: Control | None = None

    @property
    def text(self) -> str:
        """The text of the content, joined by line breaks."""
        return "\n".join(block.text for block in self.content or () if block.type == "text")


def result_of(outcome: Outcome) -> ToolOutcome | None:
    """The result that a call ended with, also when it was stopped; ``None`` where no code of it gave one."""
    if outcome.status not in ("completed", "aborted") or outcome.result is None:
        return None
    return ToolOutcome.model_validate(outcome.result)


class ToolTask(Task[ToolInput, ToolOutcome], name="pi.tool", version=1):
    """One tool call."""

    class Call(Phase):
        async def run(self, task: TaskRun[ToolInput, ToolOutcome]) -> None:
            call = task.input
            agent: Agent = await task.agent()
            tool = agent.tools.get(call.name)
            if tool is None:
                await finish(task, error_result(f"There is no tool named {call.name!r} here now."), "tool_unavailable")
                return
            arguments: Any = call.arguments
            try:
                if tool.prepare_arguments is not None:
                    arguments = tool.prepare_arguments(arguments)
                arguments = await _validated(tool, arguments)
            except Exception as error:
                if isinstance(error, RegistryError):  # the tool's fault: its author hears of it
                    task.report(error)
                await finish(task, error_result(f"Invalid arguments for {call.name}: {error}"), "invalid_arguments")
                return
            for extension, hooks in agent.hooks(ToolHooks):
                if hooks.before_tool is None:
                    continue
                info = CallInfo(call.call_id, call.name, arguments, call.parent)
                try:
                    decision = await call_hook(hooks.before_tool, info, hook_context(task))
                except Exception as error:
                    decision = Block(f"{type(error).__name__}: {error}")
                    task._session._report(
                        "extension_error", error, task=task.record, extension=extension, callback="before_tool"
                    )
                if isinstance(decision, Block):
                    await finish(task, error_result(f"The call was blocked: {decision.reason}"), "blocked")
                    return
                if isinstance(decision, Replace):
                    try:
                        arguments = await _validated(tool, decision.arguments)
                    except ValueError as error:
                        text = f"Invalid arguments for {call.name}: {error}"
                        await finish(task, error_result(text), "invalid_arguments")
                        return
            if _needs_approval(task, tool, arguments):
                async with task.commit() as tx:
                    live = await tx.doc(LiveState, task.conversation_id)
                    asked = LiveApproval(call=call.call_id, name=call.name, arguments=arguments, at=task.now())
                    live.approvals = (*live.approvals, asked)
                    for caller in await _callers(tx, task.conversation_id):
                        shown = await tx.doc(LiveState, caller)
                        shown.approvals = (*shown.approvals, asked.replaced(conversation=task.conversation_id))
                    tx.receive(APPROVAL, ToolTask.Approve(arguments=arguments))
                return
            await _store_intent(task, tool, arguments)

    class Approve(Phase):
        """Waits for a person; ``arguments`` are those that were asked about (engine.md, section 12)."""

        arguments: dict[str, JsonValue]

        async def run(self, task: TaskRun[ToolInput, ToolOutcome]) -> None:
            if task.received is None:
                await task.receive(APPROVAL, self)
                return
            decision = Decision.model_validate(task.received.value)
            agent: Agent = await task.agent()
            tool = agent.tools.get(task.input.name)
            if tool is None:
                text = f"There is no tool named {task.input.name!r} here now."
                await finish(task, error_result(text), "tool_unavailable")
            elif not decision.approve:
                note = f": {decision.note}" if decision.note else "."
                await finish(task, error_result(f"A person denied the call{note}"), "blocked")
            else:
                try:
                    wanted = self.arguments if decision.arguments is None else decision.arguments
                    arguments = await _validated(tool, wanted)
                except ValueError as error:
                    text = f"Invalid arguments for {task.input.name}: {error}"
                    await finish(task, error_result(text), "invalid_arguments")
                    return
                await _store_intent(task, tool, arguments)

    class Execute(Phase):
        arguments: dict[str, JsonValue]
        replay: Replay

        async def run(self, task: TaskRun[ToolInput, ToolOutcome]) -> None:
            call = task.input
            agent: Agent = await task.agent()
            tool = agent.tools.get(call.name)
            if task.resumed and not (self.replay == "safe" and tool is not None and tool.replay == "safe"):
                await finish(task, await _interrupted(task), "interrupted")
                return
            if tool is None:
                await finish(task, error_result(f"There is no tool named {call.name!r} here now."), "tool_unavailable")
                return
            if task.resumed:
                await _start_from_empty(task)
            buffer = OutputBuffer(tool.output_limits)
            interval = task.settings.progress.output_interval
            context = ToolContext(task, call, buffer, interval, resumes=self.replay == "safe")
            task.flush_before_stop(context._flush)
            started = task.now()
            try:
                raw = await _execute(task, tool, self.arguments, context)
                result = _as_result(raw, tool, buffer)
            except BaseException as error:
                current = asyncio.current_task()
                if not is_own(error) or not task._active or (current is not None and current.cancelling()):
                    raise
                result = _raised(error, buffer)  # its own doing, cancellations of its own work included
            finally:
                await context._quiet()
            result = await _after_tool(task, agent, self.arguments, result)
            await finish(task, result, "tool_error" if result.is_error else None, context=context, started=started)

    @classmethod
    async def abort(cls, task: TaskRun[ToolInput, ToolOutcome]) -> None:
        live = await task.snapshot(LiveState, task.conversation_id)
        output = next((item.output for item in live.tools if item.task == task.id), "") if live is not None else ""
        result = error_result("The call was aborted." + (f"\nOutput so far:\n{output}" if output else ""))
        agent: Agent = await task.agent()
        for extension, hooks in agent.hooks(ToolHooks):
            if hooks.on_abort is not None:
                info = CallInfo(task.input.call_id, task.input.name, task.input.arguments, task.input.parent)
                try:
                    changed = await call_hook(hooks.on_abort, info, result, hook_context(task))
                    if changed is not None:
                        result = _storable(changed if isinstance(changed, ToolResult) else ToolResult(changed))
                except Exception as error:
                    task._session._report(
                        "extension_error", error, task=task.record, extension=extension, callback="on_abort"
                    )
        async with task.commit() as tx:
            tx.aborted(result=await _stage_result(tx, task.record, task.input, result, "aborted"))

    @classmethod
    async def settle(cls, tx: TaskTx, record: TaskRecord) -> None:
        """A call that faulted, was orphaned, or was cut off too often still gives the model its one result."""
        outcome = outcome_of_task(record)
        output = ""
        live = await tx.doc(LiveState, record.conversation_id)
        for item in live.tools:
            if item.task == record.id:
                output = item.output
        if outcome is not None and outcome.status == "faulted":
            detail = outcome.error.detail
            cut_off = isinstance(detail, dict) and detail.get("reason") == "restart_limit"
            text = _interrupted_text(output) if cut_off else f"The call failed: {outcome.error.message}"
            code: ErrorCode = "interrupted" if cut_off else "tool_error"
        else:
            text, code = "The call was aborted; its code is not installed here.", "aborted"
        await _stage_result(tx, record, ToolInput.model_validate(record.input), error_result(text), code)


async def _validated(tool: Tool, arguments: Any) -> dict[str, JsonValue]:
    """As ``Tool.validate``; a schema written by hand is checked beside the loop, since that may take a moment."""
    if isinstance(tool.parameters, type):
        return tool.validate(arguments)
    return await asyncio.to_thread(tool.validate, arguments)


def _needs_approval(task: TaskRun[Any, Any], tool: Tool, arguments: dict[str, JsonValue]) -> bool:
    """Whether a person must agree. A predicate that raises is reported, and the person is asked."""
    try:
        return tool.needs_approval(arguments)
    except Exception as error:
        task.report(error)
        return True


async def _store_intent(task: TaskRun[ToolInput, ToolOutcome], tool: Tool, arguments: dict[str, JsonValue]) -> None:
    """Commit what is about to be done, before it is done."""
    async with task.commit() as tx:
        live = await tx.doc(LiveState, task.conversation_id)
        await _decided(tx, task.conversation_id, task.input.call_id)
        update_tool(live, task.id, status="running", replay=tool.replay, started_at=task.now())
        _update_nested(live, task.id, "running")
        tx.next(ToolTask.Execute(arguments=arguments, replay=tool.replay))


async def _decided(tx: Tx, conversation: ConversationId, call_id: str) -> None:
    """A call no longer waits for a person, wherever that is shown."""
    live = await tx.doc(LiveState, conversation)
    if all(item.call != call_id or item.conversation is not None for item in live.approvals):
        return
    for shown, where in [
        (conversation, None),
        *((caller, conversation) for caller in await _callers(tx, conversation)),
    ]:
        live = await tx.doc(LiveState, shown)
        live.approvals = tuple(item for item in live.approvals if (item.call, item.conversation) != (call_id, where))


async def _callers(tx: Tx, conversation: ConversationId) -> list[ConversationId]:
    """The conversations whose runs wait for this one: its owner's, and so on, up to a background task."""
    found: list[ConversationId] = []
    record = await tx.conversation(conversation)
    while record is not None and record.owner is not None:
        owner = await tx.task(record.owner.task)
        while owner is not None and owner.owner is not None:
            owner = await tx.task(owner.owner)
        if owner is None or owner.background:
            break
        found.append(record.owner.conversation)
        record = await tx.conversation(record.owner.conversation)
    return found


async def _execute(task: TaskRun[Any, Any], tool: Tool, arguments: dict[str, JsonValue], context: ToolContext) -> Any:
    given = [tool.load(arguments)]
    parameters = inspect.signature(tool.execute).parameters
    if len(parameters) > 1 or "ctx" in parameters:
        given = [context] if list(parameters) == ["ctx"] else [*given, context]
    if not parameters:
        given = []
    if tool.in_kernel:
        run_in_kernel = task._session.run_in_kernel  # type: ignore[attr-defined]
        if run_in_kernel is None:
            raise DurableError(f"the tool {tool.name} runs on a kernel's main thread, and this process has no kernel")
        return await run_in_kernel(tool.execute, *given)
    if inspect.iscoroutinefunction(tool.execute):
        return await tool.execute(*given)
    result = await task.in_thread(tool.execute, *given)
    return await result if inspect.isawaitable(result) else result


def _raised(error: BaseException, buffer: OutputBuffer) -> ToolResult:
    """The result of a tool that raised: what it raised, and what it had put out before."""
    # A client's error may quote an address or a header with a key in it; it goes to storage and to the model.
    result = error_result(redact(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__))
    if buffer.text:
        result = replace(result, content=f"{result.text}\nOutput before the error:\n{buffer.text}")
    return result


def _as_result(raw: Any, tool: Tool, buffer: OutputBuffer) -> ToolResult:
    """A result from whatever a tool returned; the output when it returned nothing."""
    result = _typed(raw, tool)
    if result.structured is not None or (tool.structured is not None and not result.is_error):
        result = replace(result, structured=tool.check_structured(result.structured))
        if result.content is None:
            result = replace(result, content=to_json(result.structured).decode())
    if result.content is None:
        result = replace(result, content=buffer.text)
    return _storable(result)


def _storable(result: ToolResult) -> ToolResult:
    """The result, with all that will be stored of it checked. Raises what says which part cannot be."""
    if not isinstance(result.content, str | None):
        result = replace(result, content=_blocks.validate_python(list(result.content)))
    return replace(
        result,
        details=check_json(result.details, "the details of a tool result"),
        structured=check_json(to_jsonable_python(result.structured), "the structured result of a tool"),
        diagnostics=tuple(Diagnostic.model_validate(item) for item in result.diagnostics),
        usage=None if result.usage is None else Usage.model_validate(result.usage),
    )


def _typed(raw: Any, tool: Tool) -> ToolResult:
    if isinstance(raw, ToolResult):
        return raw
    if raw is None and tool.structured is None:
        return ToolResult()
    if tool.structured is not None:
        return ToolResult(structured=raw)
    if isinstance(raw, str):
        return ToolResult(raw)
    if isinstance(raw, TextBlock | ImageBlock):
        return ToolResult([raw])
    if isinstance(raw, list) and raw and all(isinstance(item, TextBlock | ImageBlock) for item in raw):
        return ToolResult(raw)
    try:
        return ToolResult(to_json(to_jsonable_python(raw)).decode())
    except PydanticSerializationError as error:
        raise TypeError(f"the tool {tool.name} returned a {type(raw).__name__}, which is not JSON") from error


def error_result(text: str) -> ToolResult:
    """A result that tells the model what went wrong."""
    return ToolResult(clean(text), is_error=True)


def _content(result: ToolResult) -> list[ContentBlock]:
    if result.content is None:
        return []
    if isinstance(result.content, str):
        return [TextBlock(clean(result.content))] if result.content else []
    return [TextBlock(clean(block.text)) if block.type == "text" else block for block in result.content]


def _interrupted_text(output: str) -> str:
    text = "The call was interrupted: the process stopped while it ran, and it is not known how far it got."
    return f"{text}\nOutput so far:\n{output}" if output else text


async def _interrupted(task: TaskRun[Any, Any]) -> ToolResult:
    live = await task.snapshot(LiveState, task.conversation_id)
    output = next((item.output for item in live.tools if item.task == task.id), "") if live is not None else ""
    return error_result(_interrupted_text(output))


async def _start_from_empty(task: TaskRun[Any, Any]) -> None:
    async with task.commit() as tx:
        live = await tx.doc(LiveState, task.conversation_id)
        update_tool(
            live,
            task.id,
            output="",
            dropped_chars=0,
            dropped_lines=0,
            details=None,
            diagnostics=(),
            started_at=task.now(),
        )


async def _after_tool(
    task: TaskRun[ToolInput, ToolOutcome], agent: Agent, arguments: dict[str, JsonValue], result: ToolResult
) -> ToolResult:
    for extension, hooks in agent.hooks(ToolHooks):
        if hooks.after_tool is None:
            continue
        info = CallInfo(task.input.call_id, task.input.name, arguments, task.input.parent)
        try:
            changed = await call_hook(hooks.after_tool, info, result, hook_context(task))
            if changed is not None:
                result = _storable(changed if isinstance(changed, ToolResult) else ToolResult(changed))
        except Exception as error:
            task._session._report(
                "extension_error", error, task=task.record, extension=extension, callback="after_tool"
            )
    return result


async def finish(
    task: TaskRun[ToolInput, ToolOutcome],
    result: ToolResult,
    code: ErrorCode | None = None,
    *,
    context: ToolContext | None = None,
    started: float | None = None,
) -> None:
    """Commit the result and complete the task."""
    diagnostics = list(result.diagnostics)
    details = result.details
    if context is not None:
        diagnostics = [*context._diagnostics, *diagnostics]
        details = context._details if details is None else details
        buffer = context._buffer
        if buffer.truncated:
            what = f"{buffer.dropped_lines} lines, {buffer.dropped_chars} characters"
            kept = "beginning" if buffer.limits.keep == "head" else "end"
            text = f"The output was cut to its {kept}: {what} were dropped."
            diagnostics.append(Diagnostic(text, "warn", "truncated"))
    result = replace(result, details=details, diagnostics=tuple(diagnostics))
    duration = None if started is None else max(0.0, task.now() - started)
    async with task.commit() as tx:
        outcome = await _stage_result(tx, task.record, task.input, result, code, duration, context)
        tx.complete(outcome)


async def _stage_result(
    tx: Tx,
    record: TaskRecord,
    call: ToolInput,
    result: ToolResult,
    code: ErrorCode | None,
    duration: float | None = None,
    context: ToolContext | None = None,
) -> ToolOutcome:
    """Stage the one result of a call: an entry for the model's, the outcome alone for a nested one."""
    content, limited = _bounded(_content(result))
    diagnostics = tuple(result.diagnostics)
    if limited:
        diagnostics = (*diagnostics, Diagnostic("The result was too long and was cut.", "warn", "truncated"))
    if diagnostics:
        lines = "\n".join(f"[{item.severity}] {item.message}" for item in diagnostics)
        content = [*content, TextBlock(f"<diagnostics>\n{lines}\n</diagnostics>")]
    details = None if result.details is None else check_json(result.details, "the details")
    control = result.control
    stored_control = (
        Control(add_tools=tuple(control.add_tools), terminate=control.terminate, handoff=control.handoff)
        if isinstance(control, ToolControl)
        else None
    )
    live = await tx.doc(LiveState, record.conversation_id)
    await _decided(tx, record.conversation_id, call.call_id)
    common: dict[str, Any] = {
        "is_error": result.is_error,
        "code": code,
        "structured": result.structured,
        "details": details,
        "diagnostics": diagnostics,
        "control": stored_control,
    }
    if result.usage is not None:
        await _count(tx, record, call.name, result.usage)
    if call.parent is not None:
        _update_nested(live, record.id, None)
        return ToolOutcome(content=content, **common)
    message = ToolResultMessage(
        content=content,
        call_id=call.call_id,
        tool_name=call.name,
        is_error=result.is_error,
        details=details,
        usage=result.usage,
        duration=duration,
        timestamp=tx._session.clock(),
    )
    data: dict[str, JsonValue] = {"diagnostics": [item.to_data() for item in diagnostics]}
    if code is not None:
        data["code"] = code
    entry = tx._append("pi.tool-result", record.conversation_id, [message], data)
    changes: dict[str, Any] = {"status": "done", "entry": entry.id, "details": details, "diagnostics": diagnostics}
    if context is not None:
        buffer = context._buffer
        changes |= {
            "output": buffer.text,
            "dropped_chars": buffer.dropped_chars,
            "dropped_lines": buffer.dropped_lines,
        }
    update_tool(live, record.id, **changes)
    return ToolOutcome(entry=entry.id, **common)


def _bounded(content: Sequence[ContentBlock]) -> tuple[list[ContentBlock], bool]:
    """The blocks with as much text as the limits allow, so that a huge result cannot fill the model's context."""
    limits = OutputLimits(keep="head")
    limited = False
    kept: list[ContentBlock] = []
    for block in content:
        if block.type == "text":
            buffer = OutputBuffer(limits)
            buffer.append(block.text)
            if buffer.truncated:
                limited = True
                block = TextBlock(buffer.text)
            used, lines = len(block.text.encode()), block.text.count("\n") + 1
            limits = replace(limits, bytes=max(0, limits.bytes - used), lines=max(0, limits.lines - lines))
            if not block.text:
                continue
        kept.append(block)
    return kept, limited


async def _count(tx: Tx, record: TaskRecord, name: str, usage: Usage) -> None:
    counted = await tx.doc(UsageState, record.conversation_id)
    counted.tools[name] = counted.tools.get(name, Usage()) + usage
    live = await tx.doc(LiveState, record.conversation_id)
    if live.run is not None:
        live.run = live.run.replaced(spent=live.run.spent + usage)


def _update_nested(live: LiveState, task: int, status: Literal["pending", "running", "done"] | None) -> None:
    """Show a nested call in another status, or no longer; they stand in the order of their tasks."""
    shown = live.nested_tools
    index = bisect_left(shown, task, key=lambda item: item.task)
    if index < len(shown) and shown[index].task == task:
        changed = () if status is None else (shown[index].replaced(status=status),)
        live.nested_tools = shown[:index] + changed + shown[index + 1 :]


class NestedCalls:
    """The calls that one invocation of a tool makes; those made at the same time are created in one commit.

    A caller that does not resume awaits them in memory only, so another process gives them up.
    """

    def __init__(self, run: TaskRun[Any, Any], caller: ToolInput, *, resumes: bool) -> None:
        self._run = run
        self._resumes = resumes
        self._caller = caller
        self._wanted: dict[str, ToolInput] = {}
        self._creating = asyncio.Lock()

    async def call(self, name: str, arguments: dict[str, JsonValue], key: str) -> ToolOutcome:
        """Call a tool: found again by its key when the caller runs again, else made; and wait for its result."""
        run = self._run
        agent: Agent = await run.agent()
        tool = agent.tools.get(name)
        if tool is not None and tool.callers == "model":
            raise DurableError(f"the tool {name} is for the model only")
        known = self._known(key)
        if known is None:
            known = await self._created(key, self._input(name, arguments, key))
        ended = await run.wait_for_task(known)
        outcome = outcome_of_task(ended)
        found = None if outcome is None else result_of(outcome)
        if found is not None:
            return found
        if outcome is None or outcome.status in ("aborted", "orphaned"):
            return ToolOutcome(content=[TextBlock("The nested call was aborted.")], is_error=True, code="aborted")
        why = f": {outcome.error.message}" if outcome.status in ("failed", "faulted") else "."
        return ToolOutcome(content=[TextBlock(f"The nested call failed{why}")], is_error=True, code="tool_error")

    def _input(self, name: str, arguments: dict[str, JsonValue], key: str) -> ToolInput:
        call_id = f"{self._caller.call_id}/{key}"
        checked = check_json(arguments, f"the arguments of the call {key!r}")
        return ToolInput(call_id=call_id, name=name, arguments=checked, parent=self._run.id, key=key)

    def _known(self, key: str) -> TaskId | None:
        known = self._run.record.memos.get(f"nested:{key}")
        return TaskId(known) if isinstance(known, int) else None

    async def _created(self, key: str, wanted: ToolInput) -> TaskId:
        """The task of a call. Whoever gets to commit creates all that wait for it by then."""
        self._wanted.setdefault(key, wanted)
        try:
            async with self._creating:
                known = self._known(key)
                if known is None:
                    async with self._run.commit() as tx:
                        await self._create(tx)
                    known = self._known(key)
        finally:
            self._wanted.pop(key, None)
        assert known is not None
        return known

    async def _create(self, tx: TaskTx) -> None:
        live = await tx.doc(LiveState, self._run.conversation_id)
        shown: list[NestedTool] = []
        for key, wanted in self._wanted.items():
            if self._known(key) is None:
                abandon = not self._resumes
                task = await tx.create_task(ToolTask, wanted, owner=self._run.id, abandon_on_restart=abandon)
                tx._memos[f"nested:{key}"] = task
                shown.append(NestedTool(parent=self._run.id, key=key, name=wanted.name, task=task))
        live.nested_tools = (*live.nested_tools, *shown)


__all__ = ["NestedCalls", "ToolInput", "ToolOutcome", "ToolTask", "error_result"]
