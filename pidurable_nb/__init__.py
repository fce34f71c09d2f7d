"""Agents in notebooks that survive: every turn, tool call and piece of state is committed before it is shown.

The names below are the whole of the root; everything else is in ``pidurable_nb.errors``, ``messages``, ``models``,
``notebook``, ``records``, ``storage``, ``testing`` and ``tools``. Each is loaded when it is first used, so importing the
package is cheap and imports neither IPython nor Jupyter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors, messages, models, notebook, records, storage, testing, tools
    from .agent.agent import AgentChange, Edit
    from .agent.context import ToolContext
    from .agent.conversation import Conversation, Submission
    from .agent.extension import (
        Block,
        CompactionHooks,
        Continue,
        Decline,
        Extension,
        GenerationHooks,
        Replace,
        Summary,
        ToolHooks,
        run_end_task,
        section,
        wrap_section,
        wrap_tool,
    )
    from .agent.harness import Harness
    from .agent.registry import Registry
    from .agent.settings import CompactionPolicy, ProgressPolicy, RetryPolicy, RunLimits, Settings
    from .agent.state import AgentState, InboxState, LiveState, UsageState
    from .agent.tool import Tool, ToolControl, ToolResult, tool
    from .models.protocol import RequestOptions
    from .records import EntryEdit
    from .session import Document, Session
    from .storage import JsonlStorage, MemoryStorage, SqliteStorage, open_storage
    from .tasks import Phase, StoredTask, Task, TaskRun, Wake

_HOME = {
    "AgentChange": "agent.agent",
    "AgentState": "agent.state",
    "Block": "agent.extension",
    "CompactionHooks": "agent.extension",
    "CompactionPolicy": "agent.settings",
    "Continue": "agent.extension",
    "Conversation": "agent.conversation",
    "Decline": "agent.extension",
    "Document": "session",
    "Edit": "agent.agent",
    "EntryEdit": "records",
    "Extension": "agent.extension",
    "GenerationHooks": "agent.extension",
    "Harness": "agent.harness",
    "InboxState": "agent.state",
    "JsonlStorage": "storage",
    "LiveState": "agent.state",
    "MemoryStorage": "storage",
    "Phase": "tasks",
    "ProgressPolicy": "agent.settings",
    "Registry": "agent.registry",
    "Replace": "agent.extension",
    "RequestOptions": "models.protocol",
    "RetryPolicy": "agent.settings",
    "RunLimits": "agent.settings",
    "Session": "session",
    "Settings": "agent.settings",
    "SqliteStorage": "storage",
    "StoredTask": "tasks",
    "Submission": "agent.conversation",
    "Summary": "agent.extension",
    "Task": "tasks",
    "TaskRun": "tasks",
    "Tool": "agent.tool",
    "ToolContext": "agent.context",
    "ToolControl": "agent.tool",
    "ToolHooks": "agent.extension",
    "ToolResult": "agent.tool",
    "UsageState": "agent.state",
    "Wake": "tasks",
    "open_storage": "storage",
    "run_end_task": "agent.extension",
    "section": "agent.extension",
    "tool": "agent.tool",
    "wrap_section": "agent.extension",
    "wrap_tool": "agent.extension",
}
_MODULES = ("errors", "messages", "models", "notebook", "records", "storage", "testing", "tools")

__version__ = "0.1.0"
__all__ = sorted([*_HOME, *_MODULES])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext pidurable_nb``: register ``%durable`` and ``%%durable``, and do nothing else."""
    from .notebook import load_ipython_extension as load

    load(shell)
