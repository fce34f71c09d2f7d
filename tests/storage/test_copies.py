"""A copy that was made without SQLite's log is recognised; whole copies are not suspected (engine.md, section 16)."""

from __future__ import annotations

import asyncio
import gc
import shutil
import warnings
from pathlib import Path

import pytest

from pidurable_nb.records import ROOT, Entry, EntryId
from pidurable_nb.storage import PutEntry, SqliteStorage, StorageWarning
from pidurable_nb.storage.readonly import log_is_missing
from pidurable_nb.testing import eventually

from .scripts import Script, run_script

OWNER = """
async def main():
    storage = await committed(where)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

FORGETFUL = """
storage = asyncio.run(committed(where))
"""


async def entries(path: Path) -> int:
    storage = await SqliteStorage.open(path)
    try:
        return len((await storage.scan_entries()).items)
    finally:
        await storage.close()


async def commit(storage: SqliteStorage) -> None:
    await storage.commit([PutEntry(Entry(id=EntryId(storage.mint_id()), conversation_id=ROOT, kind="t"))])


def copy(path: Path, target: Path, *, with_log: bool) -> Path:
    shutil.copy(path, target)
    if with_log:
        shutil.copy(f"{path}-wal", f"{target}-wal")
    return target


@pytest.mark.parametrize("killed", [False, True], ids=["while it is open", "after its process died"])
@pytest.mark.parametrize("before", [0, 2], ids=["in its first life", "after lives that were closed"])
def test_a_copy_without_its_log_is_recognised(tmp_path: Path, killed: bool, before: int) -> None:
    path = tmp_path / "chat.sqlite"
    for _ in range(before):
        asyncio.run(entries(path))
    with Script(OWNER, str(path)) as owner:
        assert owner.ready == "ready"
        if killed:
            owner.kill()
        alone = copy(path, tmp_path / "alone.sqlite", with_log=False)
        whole = copy(path, tmp_path / "whole.sqlite", with_log=True)
        assert not log_is_missing(path)
    assert not log_is_missing(whole)
    assert log_is_missing(alone)
    assert asyncio.run(entries(whole)) == 1
    with pytest.warns(StorageWarning, match=r"alone\.sqlite-wal.*newest commits stayed behind.*backup"):
        assert asyncio.run(entries(alone)) == 0
    # Whoever opened it has been told, and goes on from what there is.
    assert not log_is_missing(alone)
    assert asyncio.run(entries(alone)) == 0


def test_a_backup_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await SqliteStorage.open(tmp_path / "chat.sqlite")
        await commit(storage)
        await storage.backup(tmp_path / "copy.sqlite")
        await storage.close()

    asyncio.run(main())
    assert not log_is_missing(tmp_path / "copy.sqlite")
    assert {path.name for path in tmp_path.iterdir()} == {"chat.sqlite", "copy.sqlite"}
    assert asyncio.run(entries(tmp_path / "copy.sqlite")) == 1


def test_a_file_that_was_closed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    asyncio.run(entries(path))
    assert not log_is_missing(path)
    assert not log_is_missing(copy(path, tmp_path / "copy.sqlite", with_log=False))
    assert {found.name for found in tmp_path.iterdir()} == {"chat.sqlite", "copy.sqlite"}


def test_a_script_that_forgot_to_close_is_not_suspected(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    done = run_script(FORGETFUL, str(path))
    assert done.stderr == ""
    assert not log_is_missing(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(entries(path)) == 1


def test_a_storage_that_was_thrown_away_is_not_suspected(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        await commit(storage)
        del storage
        gc.collect()
        await eventually(lambda: not (tmp_path / "chat.sqlite-wal").exists())

    asyncio.run(main())
    assert not log_is_missing(path)
    assert asyncio.run(entries(path)) == 1


def test_lives_and_attempts_are_readable_in_a_copy(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await SqliteStorage.open(tmp_path / "chat.sqlite")
        await commit(storage)
        await storage.backup(tmp_path / "copy.sqlite")
        lives = await storage.lives()
        await storage.close()
        copied = await SqliteStorage.open(tmp_path / "copy.sqlite")
        assert (await copied.lives())[:1] == lives
        assert await copied.attempts() == []
        await copied.close()

    asyncio.run(main())
