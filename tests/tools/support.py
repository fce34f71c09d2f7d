"""What the tests of the toolbox share: one call of a tool in an environment, and what became of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec

from agent.support import Chat, call, calls, live

from pidurable_nb import Tool
from pidurable_nb.messages import ToolResultMessage
from pidurable_nb.testing import eventually as waited

__all__ = ["Chat", "alive", "bounded", "call", "calls", "eventually", "live", "pid_in", "results", "use", "used"]


P = ParamSpec("P")

PATIENCE = 60.0
"""Seconds that a condition may take to come true: programs start slowly on a machine that has other work."""


def bounded(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a fresh loop, with a bound on its time that leaves room for programs to start."""

    @functools.wraps(test)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(3 * PATIENCE):
                await test(*args, **kwargs)

        asyncio.run(main())

    return call


async def eventually(predicate: Any) -> Any:
    """Wait until a predicate, plain or async, is true."""
    return await waited(predicate, timeout=PATIENCE)


async def results(conversation: Any) -> list[tuple[ToolResultMessage, dict[str, Any]]]:
    """Every tool result of a conversation with its data, oldest first."""
    return [
        (entry.messages[0], entry.data)
        async for entry in conversation.entries(order="ascending")
        if entry.kind == "pi.tool-result"
    ]


async def used(env: Any, *wanted: tuple[Tool, dict[str, Any]]) -> list[tuple[ToolResultMessage, dict[str, Any]]]:
    """Calls of tools, one after the other in one conversation."""
    steps = [calls(call(tool.name, arguments, f"call-{n}")) for n, (tool, arguments) in enumerate(wanted)]
    chat = Chat(*steps, "done")
    chat.env = env
    chat.install(*{tool.name: tool for tool, _ in wanted}.values())
    async with chat.open() as (_, root):
        await root.ask("go")
        return await results(root)


async def use(env: Any, tool: Tool, **arguments: Any) -> tuple[ToolResultMessage, dict[str, Any]]:
    """One call of a tool."""
    [found] = await used(env, (tool, arguments))
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie that nobody reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def pid_in(path: Path) -> int:
    """The process id that a command writes to a file."""
    await eventually(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())  # noqa: ASYNC240  (a line)
