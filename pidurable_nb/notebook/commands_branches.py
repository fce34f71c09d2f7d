"""Commands about branches and the context: fork, rewind, list and compare them, compact."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import NotebookError
from . import frontend, opened as sessions
from .command import TEXT, command, show


@command(
    "fork",
    "a branch that sees everything up to an entry and goes on by itself",
    "%durable fork 12 --as draft",
    ("entry", {"nargs": "?", "type": int, "help": "the last entry that it sees; by default the newest"}),
    (("--as",), {"dest": "name", "metavar": "NAME", "help": "a name for %durable use"}),
)
def _fork(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    text = f"{'' if options.entry is None else options.entry} {options.name or ''}"
    request = chat.cell_request("fork", text, cell=frontend.cell_id())
    branch = chat.fork(options.entry, name=options.name, request_id=request)
    print(f"{branch.name} is a branch, conversation {branch.conversation.id}: `%durable use {branch.name}` works on it")


@command(
    "rewind",
    "go on from an earlier entry, on a new branch; the old one is kept",
    "%durable rewind 12",
    ("entry", {"type": int, "help": "the last entry that is kept in sight, as %durable history shows it"}),
)
def _rewind(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    request = chat.cell_request("rewind", str(options.entry), cell=frontend.cell_id())
    chat.rewind(options.entry, request_id=request)
    print(f"conversation {chat.conversation.id} goes on after #{options.entry}; what came later stays where it was")


@command(
    "conversations",
    "the conversations of this session and their branches; two are compared",
    "%durable conversations 1 draft",
    ("branches", {"nargs": "*", "metavar": "BRANCH", "help": "names or ids: one is compared with this one, or two"}),
)
def _conversations(shell: Any, options: argparse.Namespace) -> None:
    if len(options.branches) > 2:
        raise NotebookError("name one branch, to compare it with this one, or two")
    chat = sessions.current()
    show(chat.compare(*options.branches) if options.branches else chat.conversations())


@command(
    "compact",
    "have the oldest part of the context summarised, and wait for it",
    "%durable compact Keep the numbers.",
    TEXT,
    text="optional",
)
def _compact(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    request = chat.cell_request("compact", options.text, cell=frontend.cell_id())
    chat.compact(options.text or None, request_id=request, show=True)
