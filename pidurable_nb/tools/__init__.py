"""Tools that come with the package: files, commands, the kernel, subagents, other programs' tools (docs/toolbox.md).

Each name is a function: of those that make one tool, such as ``bash()`` and ``python(approval=False)``, the tool goes
into an extension; ``subagent_tool()`` and ``mcp_tools()`` make extensions. What touches files and processes works in
the environment that the harness was opened with.
"""

from __future__ import annotations

from .controls import handoff
from .environment import CommandEnd, Environment, LocalEnvironment
from .files import edit, read, write
from .kernel import python
from .mcp_client import McpServer, mcp_tools
from .shell import bash
from .subagents import subagent_tool

__all__ = [
    "CommandEnd",
    "Environment",
    "LocalEnvironment",
    "McpServer",
    "bash",
    "edit",
    "handoff",
    "mcp_tools",
    "python",
    "read",
    "subagent_tool",
    "write",
]
