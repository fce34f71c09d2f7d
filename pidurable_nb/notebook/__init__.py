"""What a person touches: ``open`` and ``Chat``, the ``%durable`` magics, displays, child kernels (notebook.md).

This is the only layer that knows about IPython, and it imports IPython and ipywidgets only when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridge import Bridge, engine
    from .chat import Chat
    from .defaults import config
    from .installed import install, registry
    from .kernels import ChildKernel, ChildRun
    from .observing import ObservedChat, observe
    from .opened import close, current, sessions, use
    from .opening import open
    from .turns import Answer, Turn

_HOME = {
    "Answer": "turns",
    "Bridge": "bridge",
    "Chat": "chat",
    "ChildKernel": "kernels",
    "ChildRun": "kernels",
    "ObservedChat": "observing",
    "Turn": "turns",
    "close": "opened",
    "config": "defaults",
    "current": "opened",
    "engine": "bridge",
    "install": "installed",
    "observe": "observing",
    "open": "opening",
    "registry": "installed",
    "sessions": "opened",
    "use": "opened",
}

__all__ = [
    "Answer",
    "Bridge",
    "Chat",
    "ChildKernel",
    "ChildRun",
    "ObservedChat",
    "Turn",
    "close",
    "config",
    "current",
    "engine",
    "install",
    "load_ipython_extension",
    "observe",
    "open",
    "registry",
    "sessions",
    "use",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Register ``%durable`` and ``%%durable`` with a shell, and do nothing else."""
    from .magics import register

    register(shell)
