"""Group commit: order, failures, cancellation (engine.md, rule 1.6)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Session
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.records import ROOT, DocumentId, Entry, EntryId
from pidurable_nb.storage import JsonlStorage, PutEntry, RetireDocument, SqliteStorage, queued
from pidurable_nb.testing import Faults, eventually

AnyStorage = SqliteStorage | JsonlStorage
BACKENDS: list[Callable[[Path], Awaitable[AnyStorage]]] = [SqliteStorage.open, JsonlStorage.open]
backends = pytest.mark.parametrize("opening", BACKENDS, ids=["sqlite", "jsonl"])


def put(storage: AnyStorage, id: int | None = None) -> PutEntry:
    return PutEntry(Entry(id=EntryId(id or storage.mint_id()), conversation_id=ROOT, kind="test.entry"))


BAD = RetireDocument(DocumentId(10_000))


class Held:
    """Keeps the worker busy, so that calls made meanwhile wait together; counts its transactions."""

    def __init__(self, storage: AnyStorage) -> None:
        self.storage = storage
        self.release = threading.Event()
        self.groups: list[int] = []
        transaction: Callable[[Any], None] = storage._transaction

        def counted(group: list[Any]) -> None:
            self.groups.append(len(group))
            transaction(group)

        storage._transaction = counted  # type: ignore[method-assign]
        storage._worker.post(lambda: self.release.wait(10))

    async def calls(self, *batches: list[Any]) -> list[asyncio.Future[int]]:
        calls = [asyncio.ensure_future(self.storage.commit(batch)) for batch in batches]
        await asyncio.sleep(0)
        return calls


@backends
def test_what_waits_together_shares_a_transaction_and_keeps_its_own_sequence(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        calls = await held.calls(*[[put(storage)] for _ in range(20)])
        held.release.set()
        assert await asyncio.gather(*calls) == list(range(1, 21))
        assert held.groups == [20]
        assert [info.seq for info in (await storage.scan_commits()).items] == list(range(1, 21))
        await storage.close()

    asyncio.run(main())


@backends
def test_a_burst_after_a_burst_is_one_group_and_stays_before_what_is_called_after_it(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        calls = await held.calls(*[[put(storage)] for _ in range(5)])
        held.release.set()
        await asyncio.gather(*calls)
        # The worker is idle now, and would take each of these as it comes.
        last = put(storage)
        calls = [asyncio.ensure_future(storage.commit(batch)) for batch in ([put(storage)], [put(storage)], [last])]
        read = asyncio.ensure_future(storage.entry(last.record.id))
        assert await asyncio.gather(*calls) == [6, 7, 8]
        assert await read == last.record
        assert held.groups == [5, 3]
        calls = [asyncio.ensure_future(storage.commit([put(storage)])) for _ in range(3)]
        await asyncio.sleep(0)
        await storage.close()
        assert await asyncio.gather(*calls) == [9, 10, 11]

    asyncio.run(main())


@backends
def test_a_group_has_a_limit(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "GROUP_LIMIT", 8)

    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        calls = await held.calls(*[[put(storage)] for _ in range(20)])
        held.release.set()
        assert await asyncio.gather(*calls) == list(range(1, 21))
        assert held.groups == [8, 8, 4]
        await storage.close()

    asyncio.run(main())


@backends
@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_failing_commit_fails_all_later_ones_of_its_group_and_none_before(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]], position: int
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        batches: list[list[Any]] = [[put(storage)] for _ in range(7)]
        batches[position].append(BAD)
        calls = await held.calls(*batches)
        held.release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[:position] == list(range(1, position + 1))
        assert all(isinstance(result, StorageError) for result in results[position:])
        assert "10000" in str(results[position])
        for later in results[position + 1 :]:
            assert isinstance(later, StorageError)
            assert "before this one failed" in str(later)
            assert later.__cause__ is results[position]
        assert storage.last_seq == position
        assert len((await storage.scan_entries()).items) == position
        assert await storage.commit([put(storage)]) == position + 1
        await storage.close()
        storage = await opening(tmp_path / "s")
        assert storage.last_seq == position + 1
        await storage.close()

    asyncio.run(main())


@backends
def test_a_failure_also_fails_what_is_called_before_it_is_known(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        (failing,) = await held.calls([put(storage), BAD])
        held.release.set()
        done = threading.Event()
        storage._worker.post(done.set)
        assert done.wait(10)  # the worker has failed it, and this loop has not heard of it
        late = storage.commit([put(storage)])
        answer = late.send(None)  # the call is made now, without a turn of the loop
        results = await asyncio.gather(failing, answer, return_exceptions=True)
        late.close()
        assert [type(result) for result in results] == [StorageError, StorageError]
        assert await storage.commit([put(storage)]) == 1
        await storage.close()

    asyncio.run(main())


@backends
def test_a_cancelled_caller_changes_nothing(tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        calls = await held.calls(*[[put(storage)] for _ in range(5)])
        calls[1].cancel()
        calls[4].cancel()
        await asyncio.wait(calls, timeout=0.01)
        held.release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[0] == 1
        assert results[2:4] == [3, 4]
        assert isinstance(results[1], asyncio.CancelledError)
        assert await storage.commit([]) == 6
        assert len((await storage.scan_entries()).items) == 5
        await storage.close()

    asyncio.run(main())


@backends
@pytest.mark.parametrize("point", ["store.begun", "store.written"])
def test_an_error_of_the_backend_itself_leaves_no_trace(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]], point: str
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        await storage.commit([put(storage)])
        with Faults() as faults:
            faults.fail(point, OSError(5, "Input/output error"))
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.commit([put(storage)])
        assert storage.last_seq == 1
        assert await storage.commit([put(storage)]) == 2
        assert len((await storage.scan_entries()).items) == 2
        await storage.close()

    asyncio.run(main())


@backends
def test_what_cannot_be_part_of_a_batch_fails_its_caller_alone(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        calls = await held.calls([put(storage)], ["nonsense"], [put(storage)])
        held.release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[0] == 1
        assert isinstance(results[1], StorageError)
        assert "a str cannot be part of a batch" in str(results[1])
        assert results[2] == 2
        await storage.close()

    asyncio.run(main())


@backends
def test_closing_stores_what_was_called_before(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]
) -> None:
    async def main() -> None:
        storage = await opening(tmp_path / "s")
        held = Held(storage)
        calls = await held.calls(*[[put(storage)] for _ in range(3)])
        closing = asyncio.ensure_future(storage.close())
        await asyncio.sleep(0)
        closing.cancel()  # not even this stops it
        held.release.set()
        assert await asyncio.gather(*calls) == [1, 2, 3]
        storage._worker._thread.join(10)
        storage = await opening(tmp_path / "s")
        assert storage.last_seq == 3
        assert (await storage.lives())[0].ended == "closed"
        await storage.close()

    asyncio.run(main())


@backends
def test_a_loop_that_ends_under_a_commit_ends_the_session(
    tmp_path: Path, opening: Callable[[Path], Awaitable[AnyStorage]]
) -> None:
    ended: list[BaseException | None] = []

    async def main() -> None:
        storage = await opening(tmp_path / "s")
        session = await Session.open(storage)
        held = Held(storage)

        async def commit() -> None:
            async with session.commit() as tx:
                await tx.create_conversation()

        committing = asyncio.create_task(commit())
        committing.add_done_callback(lambda task: ended.append(None if task.cancelled() else task.exception()))
        await eventually(lambda: len(storage._queue))
        storage.abandon()  # a disk that never answers
        held.release.set()

    asyncio.run(main())  # does not hang
    assert len(ended) == 1
    assert ended[0] is None or isinstance(ended[0], SessionFailed)
