"""What the tests of agents share: a set-up that lives through reopens, and short ways to look at what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from session.support import GatedStorage, bounded, turns

from pidurable_nb import Conversation, Extension, Harness, LiveState, MemoryStorage, Registry, Settings
from pidurable_nb.messages import ToolCall, ToolResultMessage
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.testing import ManualClock, eventually, validate

__all__ = [
    "Chat",
    "GatedStorage",
    "bounded",
    "call",
    "calls",
    "codes",
    "eventually",
    "forever",
    "kinds",
    "live",
    "one_call",
    "results",
    "turns",
]


class Chat:
    """Everything that a process would set up again: model, registry, settings, clock, reports.

    Without a ``path`` the session is in memory and lives for one opening.
    """

    def __init__(self, *steps: Any, path: Path | None = None, clock: ManualClock | None = None, **options: Any) -> None:
        self.path = path
        self.registry = Registry()
        self.model = ScriptedModel(steps[0] if len(steps) == 1 and callable(steps[0]) else list(steps), **options)
        self.models: Any = self.model
        self.settings = Settings()
        self.clock = clock
        self.reports: list[Any] = []
        self.env: Any = None
        self._installed = 0

    def install(self, *tools: Any, name: str | None = None, **parts: Any) -> None:
        """Install an extension."""
        self._installed += 1
        self.registry.install(Extension(name or f"extension-{self._installed}", tools=list(tools), **parts))

    @asynccontextmanager
    async def open(self, storage: Any = None) -> AsyncIterator[tuple[Harness, Conversation]]:
        """An open session and its root; checked when the block ends, unless it failed or was closed in it."""
        given = storage if storage is not None else self.path if self.path is not None else MemoryStorage()
        options: dict[str, Any] = {} if self.clock is None else {"clock": self.clock}
        async with Harness.open(
            given,
            models=lambda: self.models,
            registry=self.registry,
            settings=lambda: self.settings,
            env=self.env,
            on_report=self.reports.append,
            **options,
        ) as harness:
            yield harness, await harness.root()
            if harness.end is None and harness._closing is None:
                await validate(harness)

    def reported(self) -> list[tuple[str, str | None]]:
        """The kind and callback of each report."""
        return [(report.kind, report.callback) for report in self.reports]

    def asked(self, request: int = -1) -> list[str]:
        """The messages of a request, each as its role and text."""
        return [f"{message.role}: {message.text}" for message in self.model.requests[request].messages]


def call(name: str, arguments: dict[str, Any] | None = None, id: str | None = None) -> ToolCall:
    return ToolCall(id or f"call-{name}", name, arguments or {})


def calls(*given: ToolCall | str, text: str = "") -> Reply:
    """An answer that calls tools."""
    return Reply(text, tool_calls=[call(item) if isinstance(item, str) else item for item in given])


async def kinds(conversation: Conversation) -> list[str]:
    return [entry.kind async for entry in conversation.entries(order="ascending")]


async def live(harness: Harness, conversation: Conversation) -> LiveState:
    found = await harness.snapshot(LiveState, conversation.id)
    assert found is not None
    return found


async def forever() -> None:
    await asyncio.Event().wait()


async def results(conversation: Any) -> list[ToolResultMessage]:
    found = []
    async for entry in conversation.entries(order="ascending"):
        if entry.kind == "pi.tool-result":
            found.append(entry.messages[0])
    return found


async def codes(conversation: Any) -> list[str | None]:
    return [
        entry.data.get("code")
        async for entry in conversation.entries(order="ascending")
        if entry.kind == "pi.tool-result"
    ]


async def one_call(chat: Chat, *tools: Any, arguments: dict[str, Any] | None = None) -> tuple[ToolResultMessage, Any]:
    """Have the model call the first tool once; its result message, and the result entry's data."""
    chat.model._steps = (calls(call(tools[0].name, arguments)), "done")
    if tools:
        chat.install(*tools)
    async with chat.open() as (_, root):
        settled = await (await root.submit("go")).wait()
        assert settled.status == "done"
        [message] = await results(root)
        [data] = [e.data async for e in root.entries() if e.kind == "pi.tool-result"]
        assert chat.model.requests[-1].messages[-1] == message
        return message, data
