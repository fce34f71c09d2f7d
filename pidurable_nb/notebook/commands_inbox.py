"""Commands about what waits: queued inputs, notes, and calls that a person must allow."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import NotebookError
from . import frontend, opened as sessions
from .chat import Chat
from .command import TEXT, command, json_object, show


@command("inbox", "what waits in this conversation", "%durable inbox")
def _inbox(shell: Any, options: argparse.Namespace) -> None:
    show(sessions.current().inbox())


@command(
    "withdraw",
    "take back a question that waits",
    "%durable withdraw 12",
    ("id", {"type": int, "help": "the submission, as %durable inbox shows it"}),
)
def _withdraw(shell: Any, options: argparse.Namespace) -> None:
    done = sessions.current().withdraw(options.id)
    words = {
        "aborted": "withdrawn",
        "already_placed": "too late: it is being answered",
        "settled": "it has ended before",
    }
    print(f"{options.id}: {words[done]}")


@command(
    "note",
    "something the model reads with the next question",
    "%durable note The data is from 2024.",
    TEXT,
    text="required",
)
def _note(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    request = chat.cell_request("note", options.text, cell=frontend.cell_id())
    status = chat.note(options.text, request_id=request)
    print("noted" if status == "done" else "noted: it goes in after the present turn")


_CALL = ("call", {"nargs": "?", "help": "the call's id; may be left out when just one waits"})


@command(
    "approve",
    "allow a tool call that waits for you",
    "%durable approve call-1 --edit '{\"amount\": 5}'",
    _CALL,
    ("--edit", {"metavar": "JSON", "help": "other arguments for it, as a JSON object"}),
)
def _approve(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    call = _waiting_call(chat, options.call)
    chat.approve(call, arguments=None if options.edit is None else json_object(options.edit, "--edit"))
    held = chat.held()
    print(f"approved {call}; " + ("the run goes on" if held is None else f"it runs later: the session {held}"))


@command(
    "deny",
    "refuse a tool call that waits for you",
    "%durable deny call-1 --note 'too expensive'",
    _CALL,
    ("--note", {"help": "what the model is told"}),
)
def _deny(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    call = _waiting_call(chat, options.call)
    chat.deny(call, note=options.note)
    held = chat.held()
    print(f"denied {call}; the model is told" + ("" if held is None else f" later: the session {held}"))


def _waiting_call(chat: Chat, call: str | None) -> str:
    if call is not None:
        return call
    waiting = [item.call for item in chat.approvals()]
    if len(waiting) == 1:
        return waiting[0]
    raise NotebookError(f"say which call: {', '.join(waiting)}" if waiting else "no call waits for you")
