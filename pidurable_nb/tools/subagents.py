"""Subagents: conversations that a tool's caller has work done in (engine.md, sections 6, 7 and 12).

Words:

- A *foreground* subagent belongs to one call: the call owns its conversation, waits for its answer and returns it. An
  abort of the call stops it. A call that is run again after a crash finds its conversation and its question again.
- A *background* subagent has a name and stays. A background task, its *anchor*, owns its conversation, so that neither
  an abort of the caller's run nor its idleness reaches it. Each message to it is a task of its own, which hands the
  message over, waits for the answer without running code, and submits it to the caller's conversation as a follow-up.
- Each action of the tool is one commit, and every message and report goes under a request id: nothing of it happens
  twice, whatever is killed when.

A subagent starts with a copy of its caller's agent, without the extension that made it: it has no subagents of that
kind of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import to_json

from ..agent.agent import AgentChange, Edit
from ..agent.context import ToolContext
from ..agent.conversation import Conversation, unanswered_message
from ..agent.extension import Extension
from ..agent.state import AgentState, LiveState
from ..agent.tool import Tool, ToolResult, tool
from ..messages import TextBlock
from ..records import ConversationId, SubmissionRecord, TaskId
from ..session import Document, Tx
from ..tasks import Phase, Task, TaskRun, TaskTx
from ..tasks.signals import deliver
from ..values import Value

REPORT = "subagent.report"
"""The kind of the entry that holds a report of a background subagent."""

STOP = "subagent.stop"
"""The signal that ends an anchor."""

TOLD = 100
"""How many characters of a call's arguments a person sees while a subagent works."""

SHOWN = 200
"""How many characters of a subagent's last answer a list shows."""

Action = Literal["start", "message", "steer", "stop", "list"]


def subagent_tool(
    name: str, description: str, *, agent: AgentChange | None = None, background: bool = False
) -> Extension:
    """An extension with one tool, both called ``name``, through which a model has subagents.

    ``description`` tells the model what they are for. ``agent`` changes what they start with, which is a copy of the
    caller's agent: another model, fewer tools, instructions. In the foreground the tool takes a ``task`` and returns
    the answer. With ``background=True`` it takes an ``action``: ``start`` a subagent by name, send it a ``message``,
    ``steer`` what it does, ``stop`` it, ``list`` all; its answers come back as follow-ups.
    """
    change = {} if agent is None else agent.given()
    if background:
        anchor, message = _tasks(name)
        return Extension(name, tools=[_background(name, description, change, anchor, message)], tasks=[anchor, message])
    return Extension(name, tools=[_foreground(name, description, change)])


async def _create(tx: Tx, owner: TaskId, name: str, change: Mapping[str, Any]) -> ConversationId:
    """A conversation with the caller's agent, without the extension called ``name`` unless the change adds it."""
    record = await tx.create_conversation(owner=owner)
    changed = dict(change)
    if "extensions" not in changed:
        changed["extensions"] = Edit(remove=[name])
    elif isinstance(edit := changed["extensions"], Edit) and name not in [getattr(i, "name", i) for i in edit.add]:
        changed["extensions"] = Edit(add=edit.add, remove=[*edit.remove, name])
    inherited = await tx.doc(AgentState, record.id)
    for field in ("tools", "model_tools"):
        if field not in changed and name in (getattr(inherited, field) or ()):
            changed[field] = Edit(remove=[name])
    await tx.configure(record.id, **changed)
    return record.id


async def _answer(child: Conversation, settled: SubmissionRecord) -> ToolResult:
    """What came of a question: the blocks of the answer, or why there is none."""
    entry = None if settled.answer is None else await child.entry(settled.answer)
    if settled.status != "done" or entry is None:
        return ToolResult(f"The subagent gave no answer: {unanswered_message(settled)}.", is_error=True)
    blocks = [block for message in entry.messages if message.role == "assistant" for block in message.content]
    return ToolResult([block for block in blocks if block.type in ("text", "image")])


# -- in the foreground -----------------------------------------------------------------------------------------------


def _foreground(name: str, description: str, change: Mapping[str, Any]) -> Tool:
    @tool(name=name, description=description, replay="safe")
    async def delegate(
        ctx: ToolContext,
        task: Annotated[str, Field(min_length=1, description="All it needs to know: it sees nothing else of this")],
    ) -> ToolResult:
        async with ctx.commit() as tx:
            known = await tx.scan_conversations(owner_task=ctx.task_id).first()
            id = known.id if known is not None else await _create(tx, ctx.task_id, name, change)
        await ctx.details({"conversation": id})
        child: Conversation = await ctx.conversation(id)
        telling = asyncio.create_task(_tell(ctx, child))
        try:
            submission = await child.submit(task, request_id=f"subagent.{ctx.task_id}")
            return await _answer(child, await submission.wait())
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    return delegate


async def _tell(ctx: ToolContext, child: Conversation) -> None:
    """Put out the calls of a subagent as they begin: what a person sees of it meanwhile."""
    async with child.watch_events() as events:
        async for batch in events:
            for event in batch:
                if event.type == "tool_start":
                    given = to_json(event.arguments).decode()
                    ctx.output(f"{event.name} {given if len(given) <= TOLD else given[: TOLD - 1] + '…'}\n")


# -- in the background -----------------------------------------------------------------------------------------------


class Subagent(Value):
    """A background subagent: its conversation, and the task that owns it."""

    conversation: ConversationId
    anchor: TaskId


class Subagents(Document, kind="subagent.agents", scope="conversation", family=True):
    """The background subagents of a conversation by their names; one document for each extension."""

    agents: dict[str, Subagent] = {}


class Acted(Document, kind="subagent.acted", scope="task"):
    """What a call did: stored with it, so that the call does it once."""

    said: str | None = None


class MessageInput(Value):
    """One message to a background subagent."""

    agent: str
    conversation: ConversationId
    text: str
    steer: bool = False


def _tasks(name: str) -> tuple[type[Task[Any, Any]], type[Task[Any, Any]]]:
    """The tasks of one extension: names of tasks are unique over all extensions."""

    class Anchor(Task[str, None], name=f"{name}.subagent", version=1):
        """Owns the conversation of a background subagent until it is stopped. Its input is the subagent's name."""

        class Live(Phase):
            async def run(self, task: TaskRun[str, None]) -> None:
                await task.receive(STOP, then=Anchor.Stop)

        class Stop(Phase):
            async def run(self, task: TaskRun[str, None]) -> None:
                await task.aborted("stopped")  # what it owns is aborted with it

    class Message(Task[MessageInput, None], name=f"{name}.message", version=1):
        """Hands over a message, waits for its answer, and reports it."""

        class Follow(Phase):
            turns: int = 0

            async def run(self, task: TaskRun[MessageInput, None]) -> None:
                given = task.input
                child: Conversation = await task.conversation(given.conversation)
                submission = await child.submit(
                    given.text,
                    request_id=f"subagent.{task.id}",
                    when_busy="steer" if given.steer else "follow_up",
                )
                live = await task.snapshot(LiveState, given.conversation)
                settled = await submission.status()
                if not settled.settled and live is not None and live.run is not None:
                    await task.wait([live.run.task], Message.Follow(turns=self.turns + 1))
                    return
                await _report(task, child, await submission.wait())
                await task.complete()

    return Anchor, Message


async def _report(task: TaskRun[MessageInput, None], child: Conversation, settled: SubmissionRecord) -> None:
    """Submit an answer to the caller's conversation; one that settles several messages is reported once."""
    name = task.input.agent
    result = await _answer(child, settled)
    parent: Conversation = await task.conversation(task.conversation_id)
    blocks = [] if isinstance(result.content, str | None) else list(result.content)
    text = f"Report of the subagent {name!r}:\n\n{result.text}"
    images = [block for block in blocks if block.type == "image"]
    answered = f"entry.{settled.answer}" if settled.answer is not None else f"submission.{settled.id}"
    await parent.submit(
        [TextBlock(text), *images],
        request_id=f"subagent.report.{child.id}.{answered}",
        kind=REPORT,
        data={"agent": name, "conversation": child.id},
    )


_USAGE = """

It works in the background, in a conversation of its own, and sees nothing of this one but what you send. Actions: start
one by a name of your choice with a text that tells it everything; message it again by that name; steer it while it
works; stop it for good; list them. Its answers arrive by themselves as messages: do not wait for them."""


def _background(
    name: str,
    description: str,
    change: Mapping[str, Any],
    anchor: type[Task[Any, Any]],
    message: type[Task[Any, Any]],
) -> Tool:
    async def start(tx: TaskTx, agents: Subagents, agent: str, text: str | None) -> str:
        known = agents.agents.get(agent)
        if known is not None and await _lives(tx, known):
            raise ValueError(f"there is a subagent {agent!r} already: send it a message, or choose another name")
        owner = await tx.create_task(anchor, agent, background=True)
        conversation = await _create(tx, owner, name, change)
        agents.agents = {**agents.agents, agent: Subagent(conversation, owner)}
        await send(tx, agents, agent, text)
        return f"started {agent!r}; its answer will arrive as a message"

    async def send(tx: TaskTx, agents: Subagents, agent: str, text: str | None, *, steer: bool = False) -> str:
        if not text or not text.strip():
            raise ValueError("this action needs a text")
        known = await _known(tx, agents, agent)
        input = MessageInput(agent, known.conversation, text, steer)
        await tx.create_task(message, input, owner=known.anchor)
        return f"{'told' if steer else 'sent to'} {agent!r}; its answer will arrive as a message"

    async def steer(tx: TaskTx, agents: Subagents, agent: str, text: str | None) -> str:
        return await send(tx, agents, agent, text, steer=True)

    async def stop(tx: TaskTx, agents: Subagents, agent: str, text: str | None) -> str:
        known = await _known(tx, agents, agent)
        await deliver(tx, known.anchor, STOP, None, None)
        return f"stopped {agent!r}"

    actions: dict[str, Callable[[TaskTx, Subagents, str, str | None], Awaitable[str]]] = {
        "start": start,
        "message": send,
        "steer": steer,
        "stop": stop,
    }

    @tool(name=name, description=description + _USAGE, replay="safe")
    async def act(
        ctx: ToolContext,
        action: Action,
        agent: Annotated[str | None, Field(description="The subagent's name; for all but list")] = None,
        text: Annotated[str | None, Field(description="What to tell it; for start, message and steer")] = None,
    ) -> str:
        if action == "list":
            return await _list(ctx, name)
        if not agent:
            raise ValueError(f"{action} needs the name of the subagent")
        async with ctx.commit() as tx:
            acted = await tx.doc(Acted)
            if acted.said is None:
                acted.said = await actions[action](tx, await tx.doc(Subagents, key=name), agent, text)
            said = acted.said
        return said  # noqa: RET504  (final once the block has ended)

    return act


async def _lives(tx: Tx, agent: Subagent) -> bool:
    record = await tx.task(agent.anchor)
    return record is not None and not record.abort_requested and record.state.status not in ("completing", "terminal")


async def _known(tx: Tx, agents: Subagents, name: str) -> Subagent:
    known = agents.agents.get(name)
    if known is None:
        raise ValueError(f"there is no subagent {name!r}; there are {', '.join(agents.agents) or 'none'}")
    if not await _lives(tx, known):
        raise ValueError(f"the subagent {name!r} was stopped: start another")
    return known


async def _list(ctx: ToolContext, name: str) -> str:
    found: Subagents | None = await ctx.snapshot(Subagents, key=name)
    lines = []
    for agent, known in (found.agents if found is not None else {}).items():
        child: Conversation = await ctx.conversation(known.conversation)
        view = await child.view()
        anchor = await ctx.task(known.anchor)
        if anchor is None or anchor.terminal:
            state = "stopped"
        elif view.live.approvals:
            state = f"waits for a person to allow {', '.join(item.name for item in view.live.approvals)}"
        else:
            state = "idle" if view.live.run is None else f"working, turn {view.live.run.turns + 1}"
        answers = [
            message.text
            for entry in view.entries
            for message in entry.messages
            if message.role == "assistant" and message.stop_reason in ("stop", "length")
        ]
        last = " ".join(answers[-1].split())[:SHOWN] if answers else "nothing yet"
        lines.append(f"{agent}: {state}; last answer: {last}")
    return "\n".join(lines) or "no subagents"


__all__ = ["subagent_tool"]
