"""``run``: go on with a session without a notebook (notebook.md, Command line).

For a kernel that was culled, a line in cron, a terminal on a server. It ends when the session is idle, or when what is
left waits for something that this process cannot give: an answer of a person, code that is not installed.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from ..agent.extension import Extension
from ..agent.harness import Harness, TaskBlocked
from ..agent.registry import Registry
from ..agent.settings import Settings
from ..agent.state import LiveState
from ..agent.tool import Tool
from ..errors import DurableError, RegistryError, StorageError
from ..models import default_models
from ..records import Entry
from ..session import Publication, Report
from .terminal import Terminal, when

WAITS = 3
"""The exit code when something is left that this process cannot go on with."""


def load_extension(name: str) -> Extension:
    """The extension that ``module:name`` names; a tool becomes an extension of its own.

    The current folder counts as a place of modules. Raises ``RegistryError`` for what is neither.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise RegistryError(f"--install {name!r} names nothing: write MODULE:EXTENSION, such as my_tools:extension")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise RegistryError(f"--install {name}: {error}") from error
    if isinstance(found, Tool):
        return Extension(found.name, tools=[found])
    if not isinstance(found, Extension):
        raise RegistryError(f"--install {name} is a {type(found).__name__}, neither an Extension nor a @tool function")
    return found


def run(path: str, *, install: list[str], model: str | None = None, anyway: bool = False) -> int:
    """Go on with the session at ``path``: 0 when it is idle, 3 when something is left that waits, 130 interrupted."""
    if not path.startswith("jsonl:") and not os.path.exists(path):
        raise StorageError(f"{path} does not exist: there is no session to go on with. Check the path.")
    registry = Registry()
    for name in install:
        registry.install(load_extension(name))
    return asyncio.run(_run(Terminal(sys.stdout), path, registry, Settings(model=model), anyway=anyway))


async def _run(terminal: Terminal, path: str, registry: Registry, settings: Settings, *, anyway: bool) -> int:
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, interrupted.set)

    def on_report(report: Report) -> None:
        print(f"report: {report}", file=sys.stderr, flush=True)

    async with Harness.open(
        path, models=default_models, registry=registry, settings=settings, on_report=on_report
    ) as harness:
        found = await harness.inspect()
        terminal.line(f"{path}: {len(found.tasks)} live tasks, {len(found.submissions)} open submissions")
        if found.unresolved and not anyway:
            terminal.line(f"waits for {', '.join(found.unresolved)}: --install it, or go on --anyway")
            return WAITS
        idle = asyncio.ensure_future(_until_nothing_moves(terminal, harness))
        stop = asyncio.ensure_future(interrupted.wait())
        await asyncio.wait({idle, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not idle.done():
            idle.cancel()
            terminal.line("interrupted; what was under way goes on at the next opening")
            return 130
        idle.result()
        left = await harness.inspect()
        if not left.tasks:
            terminal.line("idle")
            return 0
        for task in left.tasks:
            why = task.state.reason if isinstance(task.state, TaskBlocked) else task.state.kind
            terminal.line(f"waits: task {task.record.id} ({task.record.kind}) is {why}")
        for conversation in sorted({task.record.conversation_id for task in left.tasks}):
            live = await harness.snapshot(LiveState, conversation)
            for call in live.approvals if live is not None else ():
                terminal.line(
                    f"waits for a person: may {call.name} run? (call {call.call}, conversation {conversation})"
                )
        return WAITS


async def _until_nothing_moves(terminal: Terminal, harness: Harness) -> None:
    """Run until no task can run now or at a known time, and tell what is stored meanwhile."""
    async with harness.watch_commits() as watch:
        harness.resume()
        told: float | None = None
        while True:
            wake = harness.wake()
            if not wake.active and wake.at is None:
                return
            if not wake.active and wake.at is not None and wake.at != told:
                told = wake.at
                terminal.line(f"sleeps until {when(wake.at)}")
            try:
                change = await asyncio.wait_for(anext(watch), timeout=30.0)
            except TimeoutError:  # a look at the clock that everything rests on, should no commit tell of a change
                continue
            except StopAsyncIteration:
                end = await harness.wait_closed()
                raise end.error or DurableError("the session was closed") from None
            _tell(terminal, change.value)


def _tell(terminal: Terminal, publication: Publication) -> None:
    for entry in publication.entries.values():
        _tell_entry(terminal, entry)
    for record in publication.submissions.values():
        if record.status == "unanswered":
            terminal.line(f"submission {record.id} got no answer: {record.reason}", "yellow")


def _tell_entry(terminal: Terminal, entry: Entry) -> None:
    where = f"{when(next((m.timestamp for m in entry.messages if m.timestamp), None))} · {entry.conversation_id}"
    for message in entry.messages:
        if message.role == "assistant":
            ending = message.error or message.stop_reason
            terminal.line(f"{where} · answer, {ending}: {_short(message.text)}")
        elif message.role == "tool_result":
            outcome = "failed" if message.is_error else "done"
            terminal.line(f"{where} · {message.tool_name} {outcome}: {_short(message.text)}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else line[:99] + "…"
