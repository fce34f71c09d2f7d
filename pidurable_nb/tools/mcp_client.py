"""Tools of MCP servers (https://modelcontextprotocol.io), through the package ``mcp``.

``mcp_tools`` asks a server what it offers and makes an extension of it. Calls go over a connection that is opened at
the first of them, on the loop where they run, and kept: a server that is a program is started then and ends with its
connection, with ``close()``, with the loop, or with this process. A connection that broke is opened again by the next
call.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..agent.context import ToolContext
from ..agent.extension import Extension
from ..agent.tool import Replay, Tool, ToolResult
from ..errors import DurableError
from ..messages import ContentBlock, ImageBlock, TextBlock

if TYPE_CHECKING:
    import mcp

INSTALL = "pip install 'pidurable_nb[mcp]'"

LONGEST_NAME = 64
"""The longest name of a tool that providers take."""

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class McpServer(Extension):
    """The tools of one MCP server, as ``mcp_tools`` found them."""

    connections: _Connections | None = field(default=None, kw_only=True, repr=False, compare=False)

    async def close(self) -> None:
        """End the connection of this loop, and a server that was started for it. The next call opens another."""
        if self.connections is not None:
            await self.connections.close()


async def mcp_tools(
    server: Any,
    *,
    name: str,
    prefix: str = "",
    timeout: float = 60.0,
    approval: bool | Callable[[dict[str, Any]], bool] = False,
    trust_hints: bool = False,
) -> McpServer:
    """An extension called ``name`` with the tools that an MCP server offers now.

    ``server`` is a command as a list of words, for a server that speaks over its standard streams; the address of one
    that speaks streamable HTTP; what ``mcp.Client`` takes; or a function that returns it, called for each connection.
    ``prefix`` goes before the tools' names; what providers do not take in a name becomes ``_``, and a number ends those
    that would be the same. ``timeout`` bounds connecting and the wait for each answer, in seconds.
    ``approval`` asks a person before calls. Replay is unsafe; with ``trust_hints`` it is safe for tools that the server
    says are read-only or idempotent, which is for servers whose word you trust.

    Raises ``DurableError`` where ``mcp`` is not installed or the server's list of tools has no end, ``TimeoutError``
    where the server does not answer, and what connecting raises.
    """
    connections = _Connections(server, timeout)
    try:
        client = await connections.client()
        found: list[mcp.Tool] = []
        cursor: str | None = None
        cursors: set[str] = set()
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
            if cursor in cursors:
                raise DurableError(f"the MCP server of {name} gives the same page of its tools again and again")
            cursors.add(cursor)
    finally:
        await connections.close()
    names = _names([prefix + item.name for item in found])
    tools = [
        _tool(item, given, connections, timeout, approval, trust_hints)
        for item, given in zip(found, names, strict=True)
    ]
    return McpServer(name, tools=tools, connections=connections)


def _names(offered: Sequence[str]) -> list[str]:
    """Names that every provider takes, no two of them the same: a server may tell ``a.b`` from ``a_b``."""
    given: list[str] = []
    for name in offered:
        plain = _NOT_A_NAME.sub("_", name)[:LONGEST_NAME] or "tool"
        tried, number = plain, 2
        while tried in given:
            end = f"_{number}"
            tried, number = plain[: LONGEST_NAME - len(end)] + end, number + 1
        given.append(tried)
    return given


def _tool(
    offered: mcp.Tool,
    name: str,
    connections: _Connections,
    timeout: float,
    approval: bool | Callable[[dict[str, Any]], bool],
    trust_hints: bool,
) -> Tool:
    async def execute(arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            ctx.details({"progress": done, "total": total, "message": message})

        return _result(await connections.call(offered.name, arguments, timeout, progress))

    hints = offered.annotations
    harmless = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
    replay: Replay = "safe" if trust_hints and harmless else "unsafe"
    return Tool(
        name=name,
        description=offered.description or offered.title or "",
        parameters=offered.input_schema,
        execute=execute,
        replay=replay,
        approval=approval,
    )


def _result(result: mcp.types.CallToolResult) -> ToolResult:
    """What a server answered: text and images as blocks, anything else named."""
    blocks: list[ContentBlock] = []
    for item in result.content:
        if item.type == "text":
            blocks.append(TextBlock(item.text))
        elif item.type == "image":
            blocks.append(ImageBlock(item.mime_type, item.data))
        elif item.type == "audio":
            blocks.append(TextBlock(f"[audio, {item.mime_type}]"))
        elif item.type == "resource_link":
            blocks.append(TextBlock(f"[resource {item.uri}]"))
        else:
            text = getattr(item.resource, "text", None)
            blocks.append(TextBlock(text if text is not None else f"[resource {item.resource.uri}]"))
    structured = result.structured_content
    return ToolResult(blocks or None, structured=structured, is_error=bool(result.is_error))


class _Connections:
    """The connections to one server, at most one for each loop."""

    def __init__(self, server: Any, timeout: float) -> None:
        self._server = server
        self._timeout = timeout
        self._open: dict[asyncio.AbstractEventLoop, _Connection] = {}

    async def client(self) -> mcp.Client:
        """The client of this loop; connects when there is none."""
        loop = asyncio.get_running_loop()
        connection = self._open.get(loop)
        if connection is None or connection.task.done():
            for other in [other for other in self._open if other.is_closed()]:
                del self._open[other]
            connection = self._open[loop] = _Connection(_client(self._server, self._timeout))
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(connection.client)
        except TimeoutError as error:
            await self._end(connection)
            raise TimeoutError(f"the MCP server did not answer within {self._timeout:g} s of connecting") from error
        except Exception:  # a caller that is cancelled leaves it to the others
            await self._end(connection)
            raise

    async def call(self, name: str, arguments: dict[str, Any], timeout: float, progress: Any) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        client = await self.client()
        connection = self._open.get(asyncio.get_running_loop())
        try:
            return await client.call_tool(name, arguments, timeout, progress)
        except Exception as error:
            if connection is not None and (not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED):
                await self._end(connection)
            raise

    async def close(self) -> None:
        connection = self._open.get(asyncio.get_running_loop())
        if connection is not None:
            await self._end(connection)

    async def _end(self, connection: _Connection) -> None:
        for loop, known in list(self._open.items()):
            if known is connection:
                del self._open[loop]
        await connection.end()


class _Connection:
    """One connection. A task of its own holds it: what it consists of must be left by the task that entered it."""

    def __init__(self, client: mcp.Client) -> None:
        loop = asyncio.get_running_loop()
        self.client: asyncio.Future[mcp.Client] = loop.create_future()
        self._over = asyncio.Event()
        self.task = loop.create_task(self._hold(client), context=contextvars.Context())

    async def _hold(self, client: mcp.Client) -> None:
        try:
            async with client:
                self.client.set_result(client)
                await self._over.wait()
        except BaseException as error:
            if not self.client.done():
                self.client.set_exception(_cause(error))
                self.client.exception()  # whoever asked for it may have gone
            elif not isinstance(error, Exception):
                raise

    async def end(self) -> None:
        self._over.set()
        if not self.client.done():
            self.task.cancel()
        await asyncio.wait([self.task])


def _cause(error: BaseException) -> BaseException:
    """The first error of a group: what a task group wraps says more than the group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return DurableError("the connection was given up") if isinstance(error, asyncio.CancelledError) else error


def _client(server: Any, timeout: float) -> mcp.Client:
    try:
        from mcp import Client, StdioServerParameters, stdio_client
    except ImportError as error:
        raise DurableError(f"MCP servers need the package mcp, which is not installed: {INSTALL}") from error

    given = server() if callable(server) else server
    if isinstance(given, Sequence) and not isinstance(given, str):
        command, *words = given
        given = StdioServerParameters(command=command, args=words)
    if isinstance(given, StdioServerParameters):
        given = stdio_client(given, errlog=sys.__stderr__ or sys.stderr)  # a kernel's sys.stderr is no file
    return Client(given, read_timeout_seconds=timeout)


__all__ = ["McpServer", "mcp_tools"]
