"""What Tab offers at the end of a ``%durable`` line: commands, their options, and the names and ids that they take."""

from __future__ import annotations

import argparse
import glob
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..agent.agent import AgentChange
from ..agent.settings import RunLimits
from ..errors import DurableError
from ..models import default_models
from . import installed, kernels, opened as sessions
from .command import COMMANDS
from .commands import CELL, KERNEL_CELL

__all__ = ["complete", "option_names"]

RECENT = 20
"""How many entries of a transcript are offered."""


def complete(shell: Any, line: str) -> list[str]:
    """What can come at the end of a line. Where it cannot be found out, as in a session that has failed, nothing."""
    words = line.split()
    word = "" if line.endswith(" ") or not words else words.pop()
    if not words:
        return []
    try:
        found = set(_choices(shell, words, word))
    except DurableError:
        return []
    # The shell breaks words at colons and compares what comes after the last one.
    head = word[: word.rfind(":") + 1]
    return sorted(choice.removeprefix(head) for choice in found if choice.startswith(head))


def _choices(shell: Any, words: list[str], word: str) -> Iterable[str]:
    magic, given = words[0], words[1:]
    if magic == "%%durable":
        return ("rich", "text") if words[-1] == "--format" else option_names(CELL)
    if magic == "%%durable_kernel":
        return [*option_names(KERNEL_CELL), *(child.name for child in kernels.running())]
    if not given:
        return COMMANDS
    found = COMMANDS.get(given[0])
    if found is None or found.text:
        return []
    if given[-1] in ("--model", "model"):
        return default_models.names(word)
    names = _NAMES.get(found.name)
    return [*option_names(found.parser), *(names(shell, given[1:]) if names is not None else ())]


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser that are words."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def _sessions(shell: Any, given: list[str]) -> list[str]:
    return [chat.name for chat in sessions.sessions()]


def _branches(shell: Any, given: list[str]) -> list[str]:
    return [name for chat in sessions.mains() for name in chat.branch_names()]


def _calls(shell: Any, given: list[str]) -> list[str]:
    return [item.call for item in sessions.current().approvals()]


def _tasks(shell: Any, given: list[str]) -> list[str]:
    return [str(row.id) for row in sessions.current().tasks().rows]


def _queued(shell: Any, given: list[str]) -> list[str]:
    return [row.name.partition(" ")[0] for row in sessions.current().inbox().rows]


def _entries(shell: Any, given: list[str]) -> list[str]:
    return [str(entry.id) for entry in sessions.current().history(RECENT).entries]


def _config(shell: Any, given: list[str]) -> list[str]:
    switches = [f"{name}={value}" for name in ("once", "interpolation", "wait") for value in ("on", "off")]
    return ["model=", "format=rich", "format=text", *switches]


def _kernel(shell: Any, given: list[str]) -> list[str]:
    return [child.name for child in kernels.running()] if given else ["start", "kill", "restart", "stop"]


def _files(shell: Any, given: list[str]) -> list[str]:
    return [] if given else [*glob.glob("*.sqlite"), *glob.glob("*.db")]


def _export(shell: Any, given: list[str]) -> list[str]:
    return [Path(sessions.current().path).stem + ending for ending in (".html", ".md", ".json")]


_NAMES: dict[str, Callable[[Any, list[str]], list[str]]] = {
    "abort": _tasks,
    "approve": _calls,
    "close": _sessions,
    "config": _config,
    "configure": lambda shell, given: [f"{name}=" for name in AgentChange.model_fields],
    "conversations": _branches,
    "deny": _calls,
    "export": _export,
    "fork": _entries,
    "install": lambda shell, given: installed.installable(shell.user_ns),
    "kernel": _kernel,
    "limits": lambda shell, given: [f"{name}=" for name in RunLimits.model_fields],
    "open": _files,
    "reload": lambda shell, given: installed.names(),
    "rewind": _entries,
    "show": _entries,
    "signal": _tasks,
    "task": _tasks,
    "use": lambda shell, given: [*_sessions(shell, given), *_branches(shell, given)],
    "withdraw": _queued,
}
"""Per command, what stands there besides options, given the words before."""
