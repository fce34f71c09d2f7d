"""What the tests of tasks share: sessions that can be killed and opened again, and a bounded runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pidurable_nb import Extension, Harness, MemoryStorage, Registry, Settings, Task, Wake
from pidurable_nb.records import TaskId, TaskRecord
from pidurable_nb.testing import KillSwitch, ManualClock, eventually


def run(main: Callable[[], Awaitable[Any]], timeout: float = 20.0) -> Any:
    """Run a test's body on a fresh loop, with a bound on its time."""

    async def bounded() -> Any:
        async with asyncio.timeout(timeout):
            return await main()

    return asyncio.run(bounded())


async def forever() -> None:
    await asyncio.Event().wait()


class World:
    """One storage, opened again and again: its registry, settings, clock, wakes and reports stay."""

    def __init__(self, *tasks: type[Task[Any, Any]], clock: ManualClock | None = None, wakes: bool = False) -> None:
        self.registry = Registry()
        self.registry.install(Extension("world", tasks=list(tasks)))
        self.settings = Settings()
        self.clock = clock or ManualClock(1000.0)
        self.reports: list[Any] = []
        self.wakes: list[Wake] = []
        self._on_wake = self.wakes.append if wakes else None
        self._path: Any = None
        self.harness: Harness
        self.switch: KillSwitch

    def define(self, *tasks: type[Task[Any, Any]]) -> None:
        """Replace the installed task classes."""
        self.registry.install(Extension("world", tasks=list(tasks)))

    async def open(self, storage: Any = None) -> Harness:
        self.switch = KillSwitch(storage if storage is not None else await self._storage())
        self.harness = await Harness.open(
            self.switch,
            registry=self.registry,
            settings=lambda: self.settings,
            clock=self.clock,
            on_report=self.reports.append,
            on_wake=self._on_wake,
        )
        return self.harness

    async def _storage(self) -> Any:
        from pidurable_nb import SqliteStorage

        return MemoryStorage() if self._path is None else await SqliteStorage.open(self._path)

    def at(self, path: Any) -> World:
        """Keep the storage in a file, so that it can be opened again."""
        self._path = path / "session.sqlite"
        return self

    async def kill(self) -> Harness:
        """Crash, and open again."""
        self.switch.kill()
        return await self.open()

    async def reopen(self) -> Harness:
        """Close, and open again."""
        await self.harness.close()
        return await self.open()

    async def create(self, task: type[Task[Any, Any]], input: Any = None, **options: Any) -> TaskId:
        root = await self.harness.root()
        async with root.commit() as tx:
            return await tx.create_task(task, input, **options)

    async def record(self, id: int) -> TaskRecord:
        record = await self.harness.task(id)
        assert record is not None
        return record

    async def status(self, id: int) -> str:
        return (await self.record(id)).state.status

    async def becomes(self, id: int, status: str) -> TaskRecord:
        async def reached() -> bool:
            return await self.status(id) == status

        await eventually(reached)
        return await self.record(id)

    async def outcome(self, id: int) -> Any:
        return (await self.harness.wait_for_task(id)).state.outcome

    async def settled_recovery(self) -> None:
        """Wait until the pass that follows an opening has landed."""
        await eventually(lambda: not self.harness._reconciling)

    async def settled(self) -> None:
        """Wait until the driver has nothing more to do for now."""
        await eventually(lambda: not self.harness.wake().active)


@asynccontextmanager
async def world(*tasks: type[Task[Any, Any]], path: Any = None, **options: Any) -> AsyncIterator[World]:
    """An opened world that is checked and closed at the end."""
    made = World(*tasks, **options)
    if path is not None:
        made.at(path)
    await made.open()
    try:
        yield made
        if made.harness.end is None:
            made.harness.validate()
    finally:
        if made.harness.end is None and not made.switch.killed:
            await made.harness.close()
