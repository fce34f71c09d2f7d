"""A process dies in a step that is rare: a backup, a journal's compaction, a look of an observer (section 16)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from pidurable_nb import Session, open_storage
from pidurable_nb.records import Entry, EntryId
from pidurable_nb.storage import PutEntry, jsonl

from .scripts import run_script

KINDS = ["sqlite", "jsonl"]


def where(folder: Path, kind: str) -> str:
    return f"jsonl:{folder / 'journal'}" if kind == "jsonl" else str(folder / "chat.sqlite")


def dies(code: str, *arguments: str) -> None:
    ended = run_script("from pidurable_nb.testing import Faults\n" + code, *arguments)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_that_was_cut_off_is_no_backup_and_can_be_made_again(tmp_path: Path, kind: str) -> None:
    place, copy = where(tmp_path, kind), tmp_path / "copy"
    dies(
        """
async def main():
    storage = await committed(where)
    with Faults() as faults:
        faults.kill("backup.copied")
        await storage.backup(sys.argv[2])

asyncio.run(main())
""",
        place,
        str(copy),
    )
    assert not copy.exists()
    (left,) = [path for path in tmp_path.iterdir() if path.name.startswith(".copy-")]

    async def main() -> None:
        storage = await open_storage(place)
        id = EntryId(storage.mint_id())
        await storage.commit([PutEntry(Entry(id=id, conversation_id=1, kind="test.entry"))])
        await storage.backup(copy)
        await storage.close()
        copied = await open_storage(str(copy))
        assert copied.last_seq == len((await copied.scan_entries()).items) == 2
        await copied.close()

    asyncio.run(main())
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".copy-")] == [left]  # of the dead one


def test_a_compaction_that_was_cut_off_leaves_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = where(tmp_path, "jsonl")

    async def write() -> None:
        async with Session.open(place) as session:
            for number in range(30):
                async with session.commit() as tx:
                    await tx.append_entry("test.entry", conversation=1, data=number)  # type: ignore[arg-type]

    asyncio.run(write())
    content = (tmp_path / "journal" / jsonl.JOURNAL).read_bytes()
    dies(
        """
from pidurable_nb.storage import jsonl
jsonl.COMPACT_ABOVE = 1
jsonl.JsonlStorage._is_mostly_superseded = lambda self, size: True

async def main():
    with Faults() as faults:
        faults.kill("open.file")
        await open_storage(where)

asyncio.run(main())
""",
        place,
    )
    assert (tmp_path / "journal" / jsonl.JOURNAL).read_bytes() == content

    async def read() -> None:
        storage = await open_storage(place)
        assert [entry.data for entry in (await storage.scan_entries()).items] == list(range(30))
        await storage.close()

    asyncio.run(read())


@pytest.mark.parametrize("kind", KINDS)
def test_an_observer_that_dies_in_a_look_is_nothing_to_the_owner(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)

    async def main() -> None:
        async with Session.open(place) as session:
            async with session.commit() as tx:
                await tx.append_entry("test.entry", conversation=1, data=0)  # type: ignore[arg-type]
            await asyncio.to_thread(
                dies,
                """
from pidurable_nb import observe

async def main():
    async with observe(where) as observer:
        with Faults() as faults:
            faults.kill("follow.look")
            await observer.catch_up()

asyncio.run(main())
""",
                place,
            )
            async with session.commit() as tx:
                await tx.append_entry("test.entry", conversation=1, data=1)  # type: ignore[arg-type]
        async with Session.open(place) as session:
            assert [entry.data for entry in (await session.storage.scan_entries()).items] == [0, 1]

    asyncio.run(main())
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".lock", "-wal"))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_touches_nothing_beside_it(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        storage = await open_storage(where(tmp_path, kind))
        await storage.backup(tmp_path / "copy.new")
        before = {path.relative_to(tmp_path): path.stat().st_mtime_ns for path in (tmp_path / "copy.new").rglob("*")}
        whole = (tmp_path / "copy.new").stat().st_ino
        await storage.backup(tmp_path / "copy")
        assert (tmp_path / "copy.new").stat().st_ino == whole
        after = {path.relative_to(tmp_path): path.stat().st_mtime_ns for path in (tmp_path / "copy.new").rglob("*")}
        assert after == before
        await storage.close()

    asyncio.run(main())
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
