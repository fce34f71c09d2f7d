"""One opened file in this kernel: what all conversations of it share.

Several ``Chat`` objects may stand for conversations of the same session. They have one harness, one hold, one set of
settings, and the turns that were asked in any of them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..agent.harness import Harness
from ..agent.settings import RunLimits, Settings
from ..agent.state import LiveState
from ..errors import SessionClosed
from ..records import TaskRecord
from ..session import Address
from .bridge import Bridge
from .holding import Hold
from .view import RecoveryView

if TYPE_CHECKING:
    from .turns import Turn

__all__ = ["OpenSession"]

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which a stop or a close says what it waits for."""


class OpenSession:
    """The shared state. Its coroutines run on the engine thread."""

    def __init__(self, bridge: Bridge, harness: Harness, settings: Settings | Callable[[], Settings]) -> None:
        self.bridge = bridge
        self.harness = harness
        self.path = harness.storage.name
        self.hold = Hold(bridge, harness, self.refresh_turns)
        self.recovery = RecoveryView(path=self.path)
        self.limits: RunLimits | None = None
        self.turns: dict[int, Turn] = {}
        self._given = settings
        self._contexts: dict[int, contextvars.Context] = {}
        harness.invocation_context = self._context_of

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.harness.end is not None

    def settings(self) -> Settings:
        """The settings that the session was opened with, under the caps that were set since."""
        given = self._given() if callable(self._given) else self._given
        return given if self.limits is None else given.replaced(limits=self.limits)

    async def ending(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a stop or a close, which waits for the code that runs; one line says so where that takes long."""
        task = asyncio.ensure_future(work)
        try:
            if not (await asyncio.wait({task}, timeout=PATIENCE))[0]:
                records = self.harness._committed.tasks.values()
                running = [record for record in records if record.state.status == "running"]
                tools = [
                    f"`{record.input.get('name')}`"
                    for record in running
                    if record.kind == "pi.tool" and isinstance(record.input, dict)
                ]
                print(
                    f"waits for {', '.join(tools) or 'code that is running'} to return; an interrupt ends this waiting "
                    "only, and a restart of the kernel ends what does not return",
                    flush=True,
                )
            return await task
        finally:
            task.cancel()

    def follow(self, turn: Turn) -> None:
        """Take a turn in; what its run prints is shown under the cell that asks now."""
        self._contexts[turn.id] = contextvars.copy_context()
        self.turns[turn.id] = turn

    def print_in(self, submission: int, context: contextvars.Context) -> None:
        """Show what the run of a submission prints where ``context`` was copied."""
        self._contexts[submission] = context

    def _context_of(self, task: TaskRecord) -> contextvars.Context | None:
        """Where the work of a run shows what it prints: under the cell that asked for it last."""
        address = Address(LiveState.spec_.kind, task.conversation_id)
        state = self.harness._committed.documents.get(address)
        run = state.value.get("run") if state is not None else None
        for id in reversed(run["inputs"] if run is not None else ()):
            if id in self._contexts:
                return self._contexts[id].copy()
        return None

    def refresh_turns(self) -> None:
        """Show again what waited for scheduling."""

        async def refresh() -> None:
            try:
                for turn in self.turns.values():
                    await turn._refresh()
            except SessionClosed:
                return  # the turns show that by themselves

        self.bridge.call_soon(refresh)

    async def close(self) -> None:
        """Close the session; what was running goes on at the next opening."""
        self.hold.end()
        await self.harness.close()
        followers = [turn._follower for turn in self.turns.values() if turn._follower is not None]
        await asyncio.gather(*followers, return_exceptions=True)
