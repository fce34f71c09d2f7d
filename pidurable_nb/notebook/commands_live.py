"""Commands whose displays go on: the task graph and the timeline."""

from __future__ import annotations

import argparse
from typing import Any

from .command import command
from .notifying import notify
from .opened import current
from .timelineview import LIMIT


@command("watch", "the conversation, live: read, write, steer, decide, fork", "%durable watch")
def _watch(shell: Any, options: argparse.Namespace) -> None:
    current().watch().show()


@command("dashboard", "the conversation, the tasks, the timeline and the opening, in tabs", "%durable dashboard")
def _dashboard(shell: Any, options: argparse.Namespace) -> None:
    current().dashboard().show()


@command("graph", "the tasks as a tree, live: who owns and waits for whom, and why", "%durable graph")
def _graph(shell: Any, options: argparse.Namespace) -> None:
    current().graph().show()


@command(
    "timeline",
    "what ran when, across restarts and crashes, live",
    "%durable timeline",
    ("count", {"nargs": "?", "type": int, "default": LIMIT, "help": f"only so many of the newest tasks ({LIMIT})"}),
)
def _timeline(shell: Any, options: argparse.Namespace) -> None:
    current().timeline(options.count).show()


@command(
    "notify",
    "a notification of the browser or the terminal when a run ends or waits for you",
    "%durable notify on",
    ("state", {"choices": ("on", "off"), "help": "on asks the browser for its permission"}),
)
def _notify(shell: Any, options: argparse.Namespace) -> None:
    notify(options.state == "on")
