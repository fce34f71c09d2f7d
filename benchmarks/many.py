"""What many of something cost: owned tasks, nested calls, and sessions in one process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from pathlib import Path

from pidurable_nb import AgentChange, Extension, Harness, Phase, Registry, Task, TaskRun, ToolContext, tool
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel

from .engine import MODEL, QUESTION, open_harness
from .figures import Figure

LINEAR = 1.3
"""How much dearer one of many may be than one of a quarter of them: noise, and deeper trees in the database.

It is CPU time that is compared, since whatever else the machine does would count as growth.
"""


def _linear(what: str, sizes: list[int], each: list[float]) -> Iterable[Figure]:
    for (few, cheap), (many, dear) in pairwise(zip(sizes, each, strict=True)):
        name = f"{what} of {many:,}, against one of {few:,}"
        yield Figure(name, dear / cheap, "x", f"linear: below {LINEAR}", dear < LINEAR * cheap)


# -- owned tasks -----------------------------------------------------------------------------------------------------


class Child(Task[None, None], name="bench.child", version=1):
    """Ends at once."""

    class Start(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.complete()


class Parent(Task[int, None], name="bench.parent", version=1):
    """Creates so many children, waits for them, and ends."""

    class Start(Phase):
        async def run(self, task: TaskRun[int, None]) -> None:
            async with task.commit() as tx:
                children = [await tx.create_task(Child, None, owner=task.id) for _ in range(task.input)]
                tx.wait(children, Parent.Done())

    class Done(Phase):
        async def run(self, task: TaskRun[int, None]) -> None:
            await task.complete()


async def task_figures(folder: Path, scale: float) -> AsyncIterator[Figure]:
    """Many owned tasks: the work for each must not grow with their number."""
    each = []
    sizes = [max(100, int(size * scale)) for size in (2000, 8000, 20_000)]
    for size in sizes:
        registry = Registry()
        registry.install(Extension("bench", tasks=[Parent, Child]))
        async with Harness.open(str(folder / f"tasks-{size}.sqlite"), registry=registry) as harness:
            root = await harness.root()
            start, busy = time.perf_counter(), time.process_time()
            async with root.commit() as tx:
                parent = await tx.create_task(Parent, size)
            await harness.wait_for_task(parent)
            taken = time.perf_counter() - start
            each.append((time.process_time() - busy) / size)
        yield Figure(f"{size:,} owned tasks", taken, "s")
    for figure in _linear("an owned task", sizes, each):
        yield figure


# -- nested calls ----------------------------------------------------------------------------------------------------


@tool(replay="safe")
async def inner(n: int) -> int:
    """Give the number back."""
    return n


@tool(replay="safe")
async def outer(ctx: ToolContext, count: int) -> int:
    """Call ``inner`` so often, at once."""
    calls = [ctx.call_tool("inner", {"n": n}, key=str(n)) for n in range(count)]
    return len(await asyncio.gather(*calls))


async def nested_figures(folder: Path, scale: float) -> AsyncIterator[Figure]:
    """Many nested calls of one tool, made at once."""
    each = []
    sizes = [max(50, int(size * scale)) for size in (500, 2000)]
    for size in sizes:
        call = ToolCall(id="call", name="outer", arguments={"count": size})
        model = ScriptedModel([Reply(tool_calls=[call]), Reply("Done.")], name=MODEL, record=False)
        registry = Registry()
        registry.install(Extension("bench", tools=[inner, outer]))
        async with Harness.open(str(folder / f"nested-{size}.sqlite"), models=model, registry=registry) as harness:
            root = await harness.root(agent=AgentChange(model=MODEL))
            start, busy = time.perf_counter(), time.process_time()
            await root.ask(QUESTION)
            taken = time.perf_counter() - start
            each.append((time.process_time() - busy) / size)
            made = len(await harness.tasks(kind="pi.tool").list())
        assert made == size + 1, made
        goal = 2 * max(scale, 0.1)
        if size == sizes[-1]:
            yield Figure(f"{size:,} nested calls", taken, "s", f"below {goal:.2g}", taken < goal)
        else:
            yield Figure(f"{size:,} nested calls", taken, "s")
    for figure in _linear("a nested call", sizes, each):
        yield figure


# -- sessions --------------------------------------------------------------------------------------------------------


def _resident() -> float | None:
    """Megabytes of memory that this process has; ``None`` where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024


async def session_figures(folder: Path, scale: float, peer: dict[str, float]) -> AsyncIterator[Figure]:
    """Many sessions open in one process, which take their turns at the same time."""
    count, turns = max(10, int(200 * scale)), 5
    memory, threads = _resident(), threading.active_count()

    async def session(index: int) -> Harness:
        harness: Harness = await open_harness(folder / f"session-{index}.sqlite")
        root = await harness.root(agent=AgentChange(model=MODEL))
        for _ in range(turns):
            await root.ask(QUESTION)
        return harness

    start = time.perf_counter()
    sessions = await asyncio.gather(*map(session, range(count)))
    taken = time.perf_counter() - start
    now, busy = _resident(), threading.active_count()
    await asyncio.gather(*(harness.close() for harness in sessions))
    other = peer.get("sessions")
    goal = "5 times pi-durable-python" + ("" if other is None else f" ({other / 5:.2g})")
    yield Figure(
        f"{count} sessions, {turns} turns each", taken, "s", goal, None if other is None else taken * 5 <= other
    )
    if memory is not None and now is not None:
        yield Figure("memory for each of them", (now - memory) / count * 1024, "kB")
    yield Figure("threads for each of them", (busy - threads) / count, "threads")
