"""Agents in notebooks that survive: every turn, tool call and piece of state is committed before it is shown.

The names below are the whole of the root; everything else is in ``pidurable_nb.errors``, ``messages``, ``models``,
``notebook``, ``records``, ``storage``, ``testing`` and ``tools``. Each is loaded when it is first used, so importing the
package is cheap and imports neither IPython nor Jupyter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        errors as errors,
    )
    from . import (
        messages as messages,
    )
    from . import (
        models as models,
    )
    from . import (
        notebook as notebook,
    )
    from . import (
        records as records,
    )
    from . import (
        storage as storage,
    )
    from . import (
        testing as testing,
    )
    from . import (
        tools as tools,
    )
    from .agent.agent import (
        AgentChange as AgentChange,
    )
    from .agent.agent import (
        Edit as Edit,
    )
    from .agent.context import ToolContext as ToolContext
    from .agent.conversation import (
        Conversation as Conversation,
    )
    from .agent.conversation import (
        Submission as Submission,
    )
    from .agent.extension import (
        Block as Block,
    )
    from .agent.extension import (
        CompactionHooks as CompactionHooks,
    )
    from .agent.extension import (
        Continue as Continue,
    )
    from .agent.extension import (
        Decline as Decline,
    )
    from .agent.extension import (
        Extension as Extension,
    )
    from .agent.extension import (
        GenerationHooks as GenerationHooks,
    )
    from .agent.extension import (
        Replace as Replace,
    )
    from .agent.extension import (
        Summary as Summary,
    )
    from .agent.extension import (
        ToolHooks as ToolHooks,
    )
    from .agent.extension import (
        run_end_task as run_end_task,
    )
    from .agent.extension import (
        section as section,
    )
    from .agent.extension import (
        wrap_section as wrap_section,
    )
    from .agent.extension import (
        wrap_tool as wrap_tool,
    )
    from .agent.harness import Harness as Harness
    from .agent.registry import Registry as Registry
    from .agent.settings import (
        CompactionPolicy as CompactionPolicy,
    )
    from .agent.settings import (
        ProgressPolicy as ProgressPolicy,
    )
    from .agent.settings import (
        RetryPolicy as RetryPolicy,
    )
    from .agent.settings import (
        RunLimits as RunLimits,
    )
    from .agent.settings import (
        Settings as Settings,
    )
    from .agent.state import (
        AgentState as AgentState,
    )
    from .agent.state import (
        InboxState as InboxState,
    )
    from .agent.state import (
        LiveState as LiveState,
    )
    from .agent.state import (
        UsageState as UsageState,
    )
    from .agent.tool import (
        Tool as Tool,
    )
    from .agent.tool import (
        ToolControl as ToolControl,
    )
    from .agent.tool import (
        ToolResult as ToolResult,
    )
    from .agent.tool import (
        tool as tool,
    )
    from .models.protocol import RequestOptions as RequestOptions
    from .records import EntryEdit as EntryEdit
    from .session import (
        Document as Document,
    )
    from .session import (
        Session as Session,
    )
    from .storage import (
        JsonlStorage as JsonlStorage,
    )
    from .storage import (
        MemoryStorage as MemoryStorage,
    )
    from .storage import (
        SqliteStorage as SqliteStorage,
    )
    from .storage import (
        open_storage as open_storage,
    )
    from .tasks import (
        Phase as Phase,
    )
    from .tasks import (
        StoredTask as StoredTask,
    )
    from .tasks import (
        Task as Task,
    )
    from .tasks import (
        TaskRun as TaskRun,
    )
    from .tasks import (
        Wake as Wake,
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
