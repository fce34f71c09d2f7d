"""Agents in notebooks that survive: every turn, tool call and piece of state is committed before it is shown.

The names below are the whole of the root; everything else is in ``pidurable_nb.errors``, ``messages``, ``models``,
``notebook``, ``records``, ``storage``, ``testing`` and ``tools``. Each is loaded when it is first used, so importing
the package is cheap and imports neither IPython nor Jupyter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        errors as errors,
        messages as messages,
        models as models,
        notebook as notebook,
        records as records,
        storage as storage,
        testing as testing,
        tools as tools,
    )
    from .agent.agent import (
        AgentChange as AgentChange,
        Edit as Edit,
    )
    from .agent.context import ToolContext as ToolContext
    from .agent.conversation import (
        Conversation as Conversation,
        Submission as Submission,
    )
    from .agent.extension import (
        Block as Block,
        CompactionHooks as CompactionHooks,
        Continue as Continue,
        Decline as Decline,
        Extension as Extension,
        GenerationHooks as GenerationHooks,
        Replace as Replace,
        Summary as Summary,
        ToolHooks as ToolHooks,
        run_end_task as run_end_task,
        section as section,
        wrap_section as wrap_section,
        wrap_tool as wrap_tool,
    )
    from .agent.harness import Harness as Harness
    from .agent.observe import observe as observe
    from .agent.registry import Registry as Registry
    from .agent.settings import (
        CompactionPolicy as CompactionPolicy,
        ProgressPolicy as ProgressPolicy,
        RetryPolicy as RetryPolicy,
        RunLimits as RunLimits,
        Settings as Settings,
    )
    from .agent.state import (
        AgentState as AgentState,
        InboxState as InboxState,
        LiveState as LiveState,
        UsageState as UsageState,
    )
    from .agent.tool import (
        Tool as Tool,
        ToolControl as ToolControl,
        ToolResult as ToolResult,
        tool as tool,
    )
    from .models.protocol import RequestOptions as RequestOptions
    from .records import EntryEdit as EntryEdit
    from .session import (
        Document as Document,
        Session as Session,
    )
    from .storage import (
        JsonlStorage as JsonlStorage,
        MemoryStorage as MemoryStorage,
        SqliteStorage as SqliteStorage,
        open_storage as open_storage,
    )
    from .tasks import (
        Phase as Phase,
        StoredTask as StoredTask,
        Task as Task,
        TaskRun as TaskRun,
        Wake as Wake,
        workflow as workflow,
    )

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
    "observe": "agent.observe",
    "open_storage": "storage",
    "run_end_task": "agent.extension",
    "section": "agent.extension",
    "tool": "agent.tool",
    "workflow": "tasks",
    "wrap_section": "agent.extension",
    "wrap_tool": "agent.extension",
}
_MODULES = ("errors", "messages", "models", "notebook", "records", "storage", "testing", "tools")

__version__ = "0.1.0"
__all__ = sorted([*_HOME, *_MODULES])


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
