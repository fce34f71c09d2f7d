"""What a session keeps in memory is what it uses, however long it has worked (engine.md, section 4)."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

from pidurable_nb import (
    Document,
    Extension,
    Harness,
    Phase,
    Registry,
    Settings,
    Task,
    TaskRun,
    ToolContext,
    tool,
)
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import ModelRequest, Reply, ScriptedModel

from .support import bounded, eventually


class Counted(Document, kind="test.counted", scope="task"):
    n: int = 0


class Subagent(Task[None, None], name="test.subagent"):
    """Owns a conversation and a document, as work with an agent of its own does."""

    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            async with task.commit() as tx:
                conversation = await tx.create_conversation(owner=task.id)
                await tx.append_entry("test.said", conversation=conversation.id)
                (await tx.doc(Counted, task.id)).n = 1
            async with task.commit() as tx:
                tx.complete(None)


@tool
async def look(ctx: ToolContext) -> str:
    """Look around."""
    await ctx.output("looking\n")
    return "nothing special"


def answer(request: ModelRequest) -> Any:
    if request.messages[-1].role == "user":
        return Reply(tool_calls=[ToolCall(id=f"look-{len(request.messages)}", name="look", arguments={})])
    return "I saw nothing special."


def sizes(thing: Any, path: str = "", seen: set[int] | None = None) -> dict[str, int]:
    """How much each container of a session's own objects holds, by its path."""
    seen = set() if seen is None else seen
    names = vars(thing) if hasattr(thing, "__dict__") else {name: 0 for name in getattr(type(thing), "__slots__", ())}
    found: dict[str, int] = {}
    for name in names:
        value = getattr(thing, name, None)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict | list | set | deque):
            if not (isinstance(value, deque) and value.maxlen is not None):
                found[path + name] = len(value)
        elif type(value).__module__.startswith("pidurable_nb") and path.count(".") < 3:
            found |= sizes(value, f"{path}{name}.", seen)
    return found


@bounded
async def test_ended_work_leaves_nothing_in_memory(tmp_path: Path) -> None:
    registry = Registry()
    registry.install(Extension("app", tasks=[Subagent], tools=[look]))
    settings = Settings(document_retention=0.02, context_retention=0.02)
    model = ScriptedModel(answer, record=False)
    async with Harness.open(str(tmp_path / "s.sqlite"), models=model, registry=registry, settings=settings) as harness:
        root = await harness.root()

        async def work(rounds: int) -> dict[str, int]:
            for _ in range(rounds):
                async with root.commit() as tx:
                    task = await tx.create_task(Subagent, None)
                await harness.wait_for_task(task)
                await root.ask("look around")

            async def swept() -> bool:
                await asyncio.sleep(0.03)
                async with root.commit() as tx:  # commits are when it is looked what was not used for long
                    await tx.append_entry("test.note")
                return len(harness._committed.documents) <= 4 and not harness._inflight

            await eventually(swept)
            return sizes(harness)

        before = await work(5)
        after = await work(20)
        assert {name: (before.get(name), size) for name, size in after.items() if size > before.get(name, 0) + 4} == {}
