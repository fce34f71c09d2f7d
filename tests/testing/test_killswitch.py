"""A storage that can die (api.md, "Testing")."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb.errors import SessionInUse, StorageError
from pidurable_nb.records import ROOT, DocumentId, Entry, EntryId, TaskId
from pidurable_nb.storage import (
    JsonlStorage,
    MemoryStorage,
    PutEntry,
    RetireDocument,
    SqliteStorage,
    StartAttempt,
    Storage,
)
from pidurable_nb.testing import KillSwitch, eventually, storage_conformance

Opening = Callable[[Path], Awaitable[Storage]]
backends = pytest.mark.parametrize("opening", [SqliteStorage.open, JsonlStorage.open], ids=["sqlite", "jsonl"])


def put(storage: Storage) -> PutEntry:
    return PutEntry(Entry(id=EntryId(storage.mint_id()), conversation_id=ROOT, kind="test.entry"))


async def switched(path: Path, *, clock: Callable[[], float]) -> Storage:
    return KillSwitch(await SqliteStorage.open(path, clock=clock))


TestSwitchedStorage = storage_conformance(switched)


@backends
def test_after_the_kill_every_call_hangs_and_the_file_can_be_opened(tmp_path: Path, opening: Opening) -> None:
    async def main() -> None:
        switch = KillSwitch(await opening(tmp_path / "s"))
        await switch.commit([put(switch), StartAttempt(TaskId(1), "p")])
        assert (switch.last_seq, switch.life.id, switch.name) == (1, 1, str(tmp_path / "s"))
        with pytest.raises(SessionInUse):
            await opening(tmp_path / "s")
        switch.kill()
        switch.kill()
        storage = await opening(tmp_path / "s")
        assert storage.last_seq == 1
        dead, _ = await storage.lives()
        assert dead.ended is None
        assert (await storage.attempts())[0].end == "cut_off"
        calls: list[Awaitable[Any]] = [
            switch.commit([put(switch)]),
            switch.entry(1),
            switch.scan_tasks(),
            switch.changes(0),
            switch.lives(),
            switch.backup(tmp_path / "copy"),
            switch.close(),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await storage.commit([put(storage)])
        _, pending = await asyncio.wait(tasks, timeout=0.05)
        assert len(pending) == len(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)
        assert all(task.cancelled() for task in tasks)
        assert storage.last_seq == 2
        await storage.close()

    asyncio.run(main())


@backends
def test_calls_under_way_never_return_and_nothing_is_written_later(tmp_path: Path, opening: Opening) -> None:
    async def main() -> None:
        inner: Any = await opening(tmp_path / "s")
        switch = KillSwitch(inner)
        await switch.commit([put(switch)])
        held = threading.Event()
        inner._worker.post(lambda: held.wait(10))
        calls = [asyncio.ensure_future(switch.commit([put(switch)])) for _ in range(5)]
        reads = [asyncio.ensure_future(switch.entry(1)), asyncio.ensure_future(switch.changes(0))]
        await asyncio.sleep(0)
        switch.kill()
        storage = await opening(tmp_path / "s")
        held.set()
        await eventually(lambda: not inner._worker._thread.is_alive())
        assert storage.last_seq == 1
        assert len((await storage.scan_entries()).items) == 1
        assert not any(call.done() for call in calls + reads)
        assert await storage.commit([put(storage)]) == 2
        await storage.close()
        for call in calls + reads:
            call.cancel()

    asyncio.run(main())


@backends
def test_a_result_that_arrived_but_was_not_taken_is_lost_too(tmp_path: Path, opening: Opening) -> None:
    async def main() -> None:
        inner: Any = await opening(tmp_path / "s")
        switch = KillSwitch(inner)
        stored = asyncio.ensure_future(switch.commit([put(switch)]))
        failing = asyncio.ensure_future(switch.commit([RetireDocument(DocumentId(99))]))
        await asyncio.sleep(0)
        done = threading.Event()
        inner._worker.post(done.set)
        assert done.wait(10)
        switch.kill()
        await asyncio.wait([stored, failing], timeout=0.05)
        assert not stored.done()
        assert not failing.done()
        storage = await opening(tmp_path / "s")
        assert storage.last_seq == 1
        await storage.close()
        stored.cancel()
        failing.cancel()

    asyncio.run(main())


def test_a_kill_ends_a_loop_that_still_has_hanging_calls(tmp_path: Path) -> None:
    async def main() -> None:
        switch = KillSwitch(await SqliteStorage.open(tmp_path / "s"))
        switch.kill()
        asyncio.ensure_future(switch.commit([]))  # noqa: RUF006 - the loop's end cancels it
        await asyncio.sleep(0)

    asyncio.run(main())


def test_before_the_kill_errors_pass_and_memory_can_die_too() -> None:
    async def main() -> None:
        switch = KillSwitch(MemoryStorage())
        with pytest.raises(StorageError):
            await switch.commit([RetireDocument(DocumentId(99))])
        switch.kill()
        call = asyncio.ensure_future(switch.entry(1))
        await asyncio.wait([call], timeout=0.02)
        assert not call.done()
        call.cancel()

    asyncio.run(main())
