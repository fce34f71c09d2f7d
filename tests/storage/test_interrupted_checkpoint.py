"""A kill in the middle of a checkpoint: the header counts pages that only the log has (engine.md, section 16)."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb import SqliteStorage
from pidurable_nb.records import ConversationId, ConversationRecord, Entry, EntryId
from pidurable_nb.storage import PutConversation, PutEntry
from pidurable_nb.storage.sqlite_schema import check_file

from .scripts import environment

KILLS = 100

RUNNER = """
import asyncio, json, mmap, os, random, signal, sys, time
from pidurable_nb.records import ConversationId, Entry, EntryId
from pidurable_nb.storage import PutEntry, SqliteStorage
from pidurable_nb.storage.readonly import look

path, kills = sys.argv[1], int(sys.argv[2])
shared = mmap.mmap(-1, 16)  # byte 0: a checkpoint is under way; 8 to 16: how many entries were acknowledged

def checkpoint(storage):
    shared[0] = 1
    storage._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    shared[0] = 0

async def work():
    storage = await SqliteStorage.open(path)
    known = storage.last_seq
    while True:
        for _ in range(8):
            id = EntryId(storage.mint_id())
            await storage.commit([PutEntry(Entry(id, ConversationId(1), "t.e", data="x" * 3000))])
            known += 1
            shared[8:16] = known.to_bytes(8, "big")
        await storage._worker.call(lambda: checkpoint(storage))

async def check(acknowledged):
    assert look(path, lambda reads: reads.last_seq()) >= acknowledged
    storage = await SqliteStorage.open(path)
    assert storage.last_seq >= acknowledged, (storage.last_seq, acknowledged)
    found, cursor = 0, None
    while True:
        page = await storage.scan_entries(conversation=1, limit=1000, cursor=cursor)
        found += len(page.items)
        cursor = page.next
        if cursor is None:
            break
    assert found == storage.last_seq, (found, storage.last_seq)
    sound = await storage._worker.call(lambda: storage._connection.execute("PRAGMA integrity_check").fetchall())
    assert sound == [("ok",)], sound
    # Not closed: the next process finds what a dead one left, and its log as well.

def in_child(main):
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(main())
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid

chance = random.Random(7)
inside = 0
for number in range(kills):
    shared[:] = bytes(16)
    pid = in_child(work)
    while int.from_bytes(shared[8:16], "big") == 0 or not shared[0]:
        time.sleep(0)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the process ended by itself"
    until = time.perf_counter() + chance.random() * 0.0004
    while time.perf_counter() < until:
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    inside += shared[0]
    acknowledged = int.from_bytes(shared[8:16], "big")
    _, status = os.waitpid(in_child(lambda: check(acknowledged)), 0)
    if status:
        sys.exit(f"kill {number}: the file did not open")
print(json.dumps([inside, acknowledged]))
"""


def test_a_file_opens_whenever_its_process_is_killed_in_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    ended = subprocess.run(
        [sys.executable, "-c", RUNNER, str(path), str(KILLS)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    inside, acknowledged = json.loads(ended.stdout)
    assert acknowledged >= KILLS
    assert inside >= KILLS // 4, f"only {inside} of {KILLS} kills came while a checkpoint was under way"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        assert storage.last_seq >= acknowledged
        assert [life.ended for life in await storage.lives()] == [None] * (2 * KILLS + 1)
        await storage.close()

    asyncio.run(main())


def test_a_file_whose_checkpoint_was_interrupted_opens_with_its_log(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.sqlite", tmp_path / "cut.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(whole)
        await storage.commit([PutConversation(ConversationRecord(ConversationId(1)))])
        for _ in range(60):
            id = EntryId(storage.mint_id())
            await storage.commit([PutEntry(Entry(id, ConversationId(1), "t.e", data={"text": "x" * 500}))])
        for end in ("", "-wal"):  # the file and its log, as a kill now would leave them
            shutil.copyfile(f"{whole}{end}", f"{cut}{end}")
        await storage.close()
        size = cut.stat().st_size
        cut.write_bytes(whole.read_bytes()[:512] + cut.read_bytes()[512:])  # it wrote the header, and nothing else yet
        with closing(sqlite3.connect(f"{cut.as_uri()}?mode=ro&immutable=1", uri=True)) as alone:
            assert whole.stat().st_size > size
            with pytest.raises(sqlite3.DatabaseError):
                alone.execute("SELECT count(*) FROM entries").fetchone()
        storage = await SqliteStorage.open(cut)
        page = await storage.scan_entries(conversation=1, limit=100)
        assert len(page.items) == 60
        await storage.close()

    asyncio.run(main())


def test_a_file_that_is_copied_into_and_closed_while_it_is_looked_at_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last owner let it go and is just closing it: what is read in between may be torn, and its log gone after."""
    path = tmp_path / "chat.sqlite"
    closed: list[bool] = []

    def torn(connection: sqlite3.Connection, name: str) -> int:
        with closing(sqlite3.connect(path)) as last:  # takes the log in, and removes it
            last.execute("SELECT count(*) FROM entries").fetchone()
        closed.append(not path.with_name("chat.sqlite-wal").exists())
        raise sqlite3.DatabaseError("database disk image is malformed")

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        await storage.commit([PutConversation(ConversationRecord(ConversationId(1)))])
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", tmp_path / f"copy{end}")
        await storage.close()
        for end in ("", "-wal"):
            shutil.move(tmp_path / f"copy{end}", f"{path}{end}")
        with monkeypatch.context() as patch:
            patch.setattr("pidurable_nb.storage.sqlite_schema.check_version", torn)
            assert check_file(path, str(path))
        assert closed == [True]
        assert check_file(path, str(path))

    asyncio.run(main())
