"""A disk that is really full: what was committed is safe, and the session goes on when there is room (section 15)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Document, Session
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.records import ROOT, Entry, EntryId
from pidurable_nb.storage import PutEntry, SqliteStorage, Storage, open_storage

KINDS = ["sqlite", "jsonl"]
SIZE = 2_000_000


class Log(Document, kind="app.log", scope="session"):
    lines: list[str] = []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"root may not mount here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def where(disk: Path, kind: str) -> str:
    return f"jsonl:{disk / 'journal'}" if kind == "jsonl" else str(disk / "chat.sqlite")


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Take all the room that there is."""
    path = disk / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass  # full: what was wanted
        file.truncate(max(0, file.tell() - leave))
    return path


def put(storage: Storage, text: str) -> PutEntry:
    return PutEntry(Entry(id=EntryId(storage.mint_id()), conversation_id=ROOT, kind="t", data=text))


@pytest.mark.parametrize("kind", KINDS)
def test_commits_fail_while_the_disk_is_full_and_go_on_afterwards(disk: Path, kind: str) -> None:
    async def main() -> None:
        storage: Any = await open_storage(where(disk, kind))
        stored = [await storage.commit([put(storage, f"before {number}")]) for number in range(5)]
        filler = fill(disk)

        async def until_full() -> None:
            for number in range(2000):
                await storage.commit([put(storage, f"{number}" * 100)])
                stored.append(storage.last_seq)

        with pytest.raises(StorageError) as caught:
            await until_full()
        assert str(disk) in str(caught.value)
        assert "safe" in str(caught.value)
        assert storage.last_seq == len(stored)
        assert len((await storage.scan_entries(limit=5000)).items) == len(stored)
        filler.unlink()
        assert await storage.commit([put(storage, "after")]) == len(stored) + 1
        await storage.close()
        again = await open_storage(where(disk, kind))
        assert again.last_seq == len(stored) + 1
        assert (await again.scan_entries(order="descending", limit=1)).items[0].data == "after"
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_on_a_full_disk_fails_and_recovers_what_it_committed(disk: Path, kind: str) -> None:
    async def main() -> None:
        session = await Session.open(where(disk, kind))
        committed: list[str] = []

        async def work(count: int) -> None:
            for number in range(count):
                line = f"{number}: {'x' * 50}"
                async with session.commit() as tx:
                    (await tx.doc(Log)).lines.append(line)
                committed.append(line)

        await work(10)
        filler = fill(disk)
        with pytest.raises(StorageError):
            await work(3000)
        end = await asyncio.wait_for(session.wait_closed(), 20)
        assert end.reason == "failed"
        assert isinstance(end.error, StorageError)
        with pytest.raises(SessionFailed, match="open it again"):
            session.commit()
        filler.unlink()
        async with Session.open(where(disk, kind)) as recovered:
            log = await recovered.snapshot(Log)
            assert log is not None
            assert log.lines == committed
            async with recovered.commit() as tx:
                (await tx.doc(Log)).lines.append("on again")
            first, second = await recovered.storage.lives()
            assert first.ended != "closed"
            assert second.ended is None

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_finds_no_room_to_begin_leaves_nothing_behind(disk: Path, kind: str) -> None:
    fill(disk)

    async def main() -> None:
        with pytest.raises(StorageError) as caught:
            await open_storage(where(disk, kind))
        assert str(disk) in str(caught.value)

    asyncio.run(main())
    assert [path.name for path in disk.iterdir()] == ["filler"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_existing_session_is_not_harmed_by_opening_it_without_room(disk: Path, kind: str) -> None:
    async def main() -> None:
        storage = await open_storage(where(disk, kind))
        await storage.commit([put(storage, "kept")])
        await storage.close()
        filler = fill(disk)

        async def open_and_close() -> None:
            for _ in range(50):  # a journal goes on for a while in the room that its last block has left
                await (await open_storage(where(disk, kind))).close()

        with pytest.raises(StorageError):
            await open_and_close()
        filler.unlink()
        storage = await open_storage(where(disk, kind))
        assert [entry.data for entry in (await storage.scan_entries()).items] == ["kept"]
        await storage.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_without_room_fails_alone(disk: Path, tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        storage = await open_storage(where(tmp_path, kind))
        await storage.commit([put(storage, "x" * 2 * SIZE)])
        with pytest.raises(StorageError, match="backup"):
            await storage.backup(disk / "copy")
        assert await storage.commit([put(storage, "on")]) == 2
        await storage.backup(tmp_path / "copy")
        await storage.close()

    asyncio.run(main())
    assert not (disk / "copy.new").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_file_that_lies_at_its_path_no_longer_is_not_written_to(tmp_path: Path, kind: str, how: str) -> None:
    """What is stored in a deleted file is lost; who is told of it can still act."""

    async def main() -> None:
        place = where(tmp_path, kind)
        file = tmp_path / ("journal/journal.jsonl" if kind == "jsonl" else "chat.sqlite")
        away = tmp_path / "away"
        storage = await open_storage(place)
        await storage.commit([put(storage, "one")])
        if how == "deleted":
            file.unlink()
        else:
            file.rename(away)
        if how == "replaced":
            file.write_bytes(b"something else")
        with pytest.raises(StorageError, match="moved, deleted or replaced while it was open"):
            await storage.commit([put(storage, "two")])
        if isinstance(storage, SqliteStorage):
            with pytest.raises(StorageError, match="moved, deleted or replaced while it was open"):
                await storage.backup(tmp_path / "copy")
        await storage.close()
        assert file.exists() == (how == "replaced")
        if how == "replaced":
            assert file.read_bytes() == b"something else"
        if how != "deleted":
            away.rename(file)
            storage = await open_storage(place)
            assert storage.last_seq == 1
            await storage.close()

    asyncio.run(main())
