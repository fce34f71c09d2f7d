"""Commands whose displays go on: the task graph and the timeline."""

from __future__ import annotations

import argparse
from typing import Any

from .commands import command
from .opened import current
from .timelineview import LIMIT


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
