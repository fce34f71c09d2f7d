"""Commands about what is stored: records in full, stories of tasks, the model's context, settings, copies."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..errors import NotebookError
from . import frontend, opened as sessions
from .command import TEXT, command, show
from .defaults import Defaults, config


@command(
    "show",
    "one record in full: an entry, a task, a submission",
    "%durable show 12",
    ("id", {"type": int, "help": "its id"}),
)
def _show_record(shell: Any, options: argparse.Namespace) -> None:
    record = sessions.current().record(options.id)
    print(json.dumps(record.to_data(), indent=1, ensure_ascii=False))


@command("task", "the story of a task", "%durable task 12", ("id", {"type": int, "help": "its id"}))
def _task(shell: Any, options: argparse.Namespace) -> None:
    print(sessions.current().story(options.id))


@command(
    "abort",
    "stop one task and the work below it",
    "%durable abort 12",
    ("id", {"type": int, "help": "its id, as %durable tasks shows it"}),
)
def _abort(shell: Any, options: argparse.Namespace) -> None:
    done = sessions.current().abort(options.id)
    print(f"task {options.id} {'is being stopped' if done == 'marked' else 'had ended before'}")


@command("context", "what the model would see now", "%durable context")
def _context(shell: Any, options: argparse.Namespace) -> None:
    show(sessions.current().context())


@command(
    "configure",
    "instructions, thinking and other settings of this conversation",
    "%durable configure thinking=high 'instructions=Be brief.'",
    ("changes", {"nargs": "+", "metavar": "KEY=VALUE", "help": "an empty value clears the key"}),
)
def _configure(shell: Any, options: argparse.Namespace) -> None:
    changes: dict[str, Any] = dict(_pairs(options.changes))
    for key in ("extensions", "tools", "model_tools"):
        if changes.get(key):
            changes[key] = [name.strip() for name in changes[key].split(",")]
    sessions.current().configure(**{key: value or None for key, value in changes.items()})
    print("configured from the next request on: " + ", ".join(changes))


@command(
    "limits",
    "spending caps: turns, tokens and cost per run, cost per session",
    "%durable limits turns=5 cost=0.50",
    ("changes", {"nargs": "*", "metavar": "KEY=VALUE", "help": "turns, tokens, cost, session_cost; empty is no cap"}),
)
def _limits(shell: Any, options: argparse.Namespace) -> None:
    limits = sessions.current().limit(**{key: _number(key, value) for key, value in _pairs(options.changes)})
    caps = {name: value for name, value in limits.to_data().items() if value is not None}
    print("limits: " + (", ".join(f"{name} {value:g}" for name, value in caps.items()) or "none"))


@command(
    "config",
    "what magics of this kernel do when a cell does not say",
    "%durable config wait=on format=text",
    (
        "changes",
        {"nargs": "*", "metavar": "KEY=VALUE", "help": "model, format, once, interpolation, wait"},
    ),
)
def _config(shell: Any, options: argparse.Namespace) -> None:
    words: dict[str, Any] = {"on": True, "off": False, "": None}
    now = config(**{key: words.get(value, value) for key, value in _pairs(options.changes)}).to_data()
    said = {True: "on", False: "off", None: "none"}
    print("config: " + ", ".join(f"{name} {said.get(now.get(name), now.get(name))}" for name in Defaults.model_fields))


@command(
    "reset",
    "start the model's context anew, with a note to it",
    "%durable reset We go on with chapter two.",
    TEXT,
    text="optional",
)
def _reset(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    request = chat.cell_request("reset", options.text, cell=frontend.cell_id())
    chat.reset(options.text or None, request_id=request)
    print("the next question starts in a new context; everything stays in the history")


@command(
    "signal",
    "send a named value to a task that waits for it",
    '%durable signal 12 approval \'{"by": "me"}\'',
    ("task", {"type": int, "help": "the task's id"}),
    ("name", {"help": "the name that it waits for"}),
    ("value", {"nargs": "?", "default": "null", "help": "JSON, or plain text"}),
)
def _signal(shell: Any, options: argparse.Namespace) -> None:
    try:
        value = json.loads(options.value)
    except ValueError:
        value = options.value
    done = sessions.current().signal(options.task, options.name, value)
    words = {"delivered": "delivered", "kept": "kept until it asks", "terminal": "the task has ended"}
    print(f"{options.name}: {words.get(done, done)}")


@command(
    "backup",
    "a consistent copy of the session while it works",
    "%durable backup copy.sqlite",
    ("path", {"help": "a new file"}),
)
def _backup(shell: Any, options: argparse.Namespace) -> None:
    sessions.current().backup(options.path)
    print(f"copied to {options.path}")


@command(
    "export",
    "the conversation as one file: HTML, Markdown or JSON",
    "%durable export chat.html",
    ("path", {"help": "the file; .html, .md and .json say the format"}),
)
def _export(shell: Any, options: argparse.Namespace) -> None:
    print(f"exported to {sessions.current().export(options.path)}")


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise NotebookError(f"write KEY=VALUE, not {word!r}")
        pairs.append((key.strip(), value))
    return pairs


def _number(key: str, text: str) -> float | int | None:
    if not text or text == "none":
        return None
    try:
        return int(text) if key in ("turns", "tokens") else float(text)
    except ValueError:
        raise NotebookError(f"{key} takes a number, not {text!r}") from None
