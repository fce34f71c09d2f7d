"""An MCP server for the tests: over its standard streams, or over HTTP on a port that it writes to a file."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.types import ToolAnnotations

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

server = MCPServer("tests")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="pid.of")
def pid() -> str:
    """The process of the server."""
    return str(os.getpid())


@server.tool()
def picture() -> list[str | Image]:
    """Text and an image."""
    return ["a dot:", Image(data=PNG, format="png")]


@server.tool()
def broken() -> str:
    """Always fails."""
    raise ValueError("it is broken")


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(1)


@server.tool()
async def wait(ctx: Context) -> str:
    """Tells that it began, and never ends."""
    await ctx.report_progress(1, 2, "half way")
    await asyncio.sleep(600)
    return "never"


def serve_http(port_file: str) -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    Path(port_file).write_text(str(listening.getsockname()[1]))
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_http(sys.argv[1])
    else:
        server.run()
