"""What the tests of the toolbox share: one call of a tool in an environment, and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.support import Chat, bounded, call, calls, eventually, live

from pidurable_nb import Tool
from pidurable_nb.messages import ToolResultMessage

__all__ = ["Chat", "alive", "bounded", "call", "calls", "eventually", "live", "pid_in", "results", "use", "used"]


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
    await eventually(lambda: path.exists() and path.read_text().strip(), timeout=20)
    return int(path.read_text())  # noqa: ASYNC240  (a line)
