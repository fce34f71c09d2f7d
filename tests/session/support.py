"""What the tests of the session share: bounded bodies, a storage with gates and faults, sessions that are checked."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

from pidurable_nb import Document, Harness, MemoryStorage, Session
from pidurable_nb.storage import Storage
from pidurable_nb.testing import validate

P = ParamSpec("P")

TIMEOUT = 20.0


def bounded(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a fresh loop, with a bound on its time."""

    @functools.wraps(test)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(TIMEOUT):
                await test(*args, **kwargs)

        asyncio.run(main())

    return call


class GatedStorage:
    """Passes everything on. Commits wait while the gate is closed; a call that was told to fail raises instead."""

    def __init__(self, storage: Any = None) -> None:
        self._storage = storage if storage is not None else MemoryStorage()
        self._gate = asyncio.Event()
        self._gate.set()
        self.asked = 0
        self.faults: dict[str, BaseException] = {}

    def hold(self) -> None:
        """Keep commits waiting from now on."""
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def fail(self, call: str, error: BaseException) -> None:
        """Have the next call of this name raise."""
        self.faults[call] = error

    async def commit(self, batch: Any, *, at: float | None = None) -> int:
        self.asked += 1
        await self._gate.wait()
        error = self.faults.pop("commit", None)
        if error is not None:
            raise error
        seq: int = await self._storage.commit(batch, at=at)
        return seq

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_storage"], name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            error = self.faults.pop(name, None)
            if error is not None:
                raise error
            return await found(*args, **kwargs)

        return call


@asynccontextmanager
async def session(storage: Any = None, **options: Any) -> AsyncIterator[Session]:
    """An open session that is checked when the block ends, unless it failed or was closed in it."""
    async with Session.open(storage if storage is not None else MemoryStorage(), **options) as opened:
        yield opened
        if opened.end is None and opened._failure is None:
            await validate(opened)


@asynccontextmanager
async def harness(storage: Any = None, **options: Any) -> AsyncIterator[Harness]:
    """An open harness that is checked when the block ends, unless it failed or was closed in it."""
    async with Harness.open(storage if storage is not None else MemoryStorage(), **options) as opened:
        yield opened
        if opened.end is None and opened._failure is None:
            await validate(opened)


async def stored(storage: Storage, kind: str, scope: Any = "session", scope_id: int | None = None) -> Any:
    """The stored value of a document."""
    record = await storage.find_document(kind, scope, scope_id)
    found = None if record is None else await storage.document(record.id)
    return None if found is None else found.value


async def turns(count: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


class Notes(Document, kind="test.notes", scope="session"):
    """A document of the session."""

    items: list[str] = []
    text: str = ""
    extra: dict[str, Any] = {}


class Todos(Document, kind="test.todos", scope="conversation", history="rewindable", fork="as_of"):
    """A rewindable document of a conversation."""

    items: list[str] = []
