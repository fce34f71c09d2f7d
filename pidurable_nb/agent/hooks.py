"""Calling hooks: off the line, in extension order (engine.md, section 10)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..tasks import TaskRun
from .extension import HookContext


async def call_hook(hook: Callable[..., Any], *args: Any) -> Any:
    """Call a plain or an async hook."""
    result = hook(*args)
    return await result if inspect.isawaitable(result) else result


def hook_context(task: TaskRun[Any, Any], run: Any = None) -> HookContext:
    """What a hook of a task gets as its context."""
    session = task._session
    return HookContext(
        conversation_id=task.conversation_id,
        task_id=task.id,
        env=session.env,
        models=session.models,
        registry=session.registry,
        settings=task.settings,
        now=task.now(),
        run=run,
    )
