"""SQLite: files that are not sessions, schema versions, damage, limits, and what a commit costs."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb.errors import SchemaTooNew, StorageCorrupt, StorageError, StorageRequestError
from pidurable_nb.records import ROOT, Entry, EntryId, Sleeping, TaskId, TaskRecord
from pidurable_nb.storage import PutEntry, PutTask, SqliteStorage, sqlite_schema
from pidurable_nb.testing import ManualClock


def put(storage: SqliteStorage, **fields: Any) -> PutEntry:
    return PutEntry(Entry(id=EntryId(storage.mint_id()), conversation_id=ROOT, kind="test.entry", **fields))


async def session(path: Path, commits: int = 3) -> None:
    storage = await SqliteStorage.open(path)
    for _ in range(commits):
        await storage.commit([put(storage, data={"text": "x" * 100})])
    await storage.close()


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a folder, with its content and its time of change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def refused(path: Path, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        await SqliteStorage.open(path)
    assert str(path) in str(caught.value)


def other_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(5000)),
    "a short text": lambda path: path.write_text("hello"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "a database of another program": lambda path: other_database(path, "CREATE TABLE mine (x)"),
    "another program's log": lambda path: other_database(path, "PRAGMA journal_mode=WAL", "CREATE TABLE mine (x)"),
    "an empty database of another program": lambda path: other_database(path, "PRAGMA application_id = 77"),
    "half a header": lambda path: path.write_bytes(b"SQLite format 3\x00"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_not_a_session_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "thing.sqlite"
    FOREIGN[name](path)
    before = snapshot(tmp_path)
    asyncio.run(refused(path, StorageCorrupt, "not a session.*Nothing was changed"))
    assert snapshot(tmp_path) == before


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    asyncio.run(refused(tmp_path / "folder", StorageError, "jsonl:"))
    asyncio.run(refused(tmp_path / "pipe", StorageError, "not a regular file"))
    asyncio.run(refused(tmp_path / "missing" / "chat.sqlite", StorageError, "cannot be"))
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]
    assert os.listdir(tmp_path / "folder") == []


def test_an_empty_file_becomes_a_session(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    path.touch()
    asyncio.run(session(path))
    assert path.stat().st_size > 0


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that even root cannot write to")
def test_a_folder_without_rights_is_refused() -> None:
    asyncio.run(refused(Path("/proc/self/chat.sqlite"), StorageError, "lock file.*Nothing was changed"))


def test_a_new_file_is_private_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        await storage.commit([put(storage)])
        for name in os.listdir(tmp_path):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
        await storage.backup(tmp_path / "copy.sqlite")
        assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600
        await storage.close()

    asyncio.run(main())
    assert sorted(os.listdir(tmp_path)) == ["chat.sqlite", "copy.sqlite"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (sqlite_schema.APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(sqlite_schema.MIGRATIONS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# -- schema versions -------------------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    asyncio.run(session(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = snapshot(tmp_path)
    asyncio.run(refused(path, SchemaTooNew, "schema is 99.*Upgrade"))
    assert snapshot(tmp_path) == before


def test_an_older_schema_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chat.sqlite"
    asyncio.run(session(path))
    later = [["ALTER TABLE entries ADD COLUMN extra TEXT", "UPDATE entries SET extra = 'new'"], ["CREATE TABLE t (x)"]]
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", sqlite_schema.MIGRATIONS + later)
    asyncio.run(session(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(sqlite_schema.MIGRATIONS),)
        assert connection.execute("SELECT count(*) FROM entries WHERE extra = 'new'").fetchone() == (3,)


def test_a_failing_migration_leaves_the_version_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chat.sqlite"
    asyncio.run(session(path))
    known = sqlite_schema.MIGRATIONS
    broken = [["CREATE TABLE one (x)"], ["CREATE TABLE two (x)", "INSERT INTO nowhere VALUES (1)"]]
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", known + broken)
    asyncio.run(refused(path, StorageError, "nowhere"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(known) + 1,)
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert "one" in tables
    assert "two" not in tables
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", [*known, broken[0]])
    asyncio.run(session(path))


def test_an_interrupted_creation_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chat.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "MIGRATIONS", [*sqlite_schema.MIGRATIONS, ["nonsense"]])
        asyncio.run(refused(path, StorageError, "nonsense"))
    assert os.listdir(tmp_path) == []
    (tmp_path / ".chat.sqlite.pidurable-new").write_text("left by a killed process")
    (tmp_path / "chat.sqlite.new").write_text("a file of somebody else")
    asyncio.run(session(path))
    assert sorted(os.listdir(tmp_path)) == ["chat.sqlite", "chat.sqlite.new"]


# -- damage ----------------------------------------------------------------------------------------------------------


def test_a_truncated_or_altered_file_is_an_error_or_reads_well(tmp_path: Path) -> None:
    whole = tmp_path / "whole.sqlite"
    asyncio.run(session(whole, commits=40))
    content = whole.read_bytes()
    page = 4096
    damaged = [content[:size] for size in (1, 99, 100, 1000, page, page + 1, 3 * page, len(content) - page)]
    for position in range(0, len(content), 2777):
        damaged.append(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])

    async def read(path: Path) -> None:
        storage = await SqliteStorage.open(path)
        try:
            await storage.scan_entries()
            await storage.changes(0)
            await storage.lives()
        finally:
            await storage.close(ended="failed")

    errors: list[tuple[Path, StorageError]] = []
    for index, altered in enumerate(damaged):
        path = tmp_path / f"damaged{index}.sqlite"
        path.write_bytes(altered)
        try:
            asyncio.run(read(path))
        except StorageError as error:
            errors.append((path, error))
    assert len(errors) >= 8  # every truncation, and whatever else SQLite notices
    for path, error in errors:
        assert str(path) in str(error)


def test_a_truncated_file_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    asyncio.run(session(path, commits=100))
    path.write_bytes(path.read_bytes()[:-1])
    before = snapshot(tmp_path)
    asyncio.run(refused(path, StorageCorrupt, "cut short.*Nothing was changed"))
    assert snapshot(tmp_path) == before


def test_a_record_of_an_unknown_shape_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    asyncio.run(session(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("""UPDATE entries SET payload = json_set(payload, '$.mystery', 1) WHERE id = 2""")
        connection.execute("UPDATE entries SET payload = ? WHERE id = 3", ("[" * 1000,))
        connection.commit()

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        assert await storage.entry(1) is not None
        with pytest.raises(StorageCorrupt, match=r"chat\.sqlite.*mystery") as caught:
            await storage.entry(2)
        assert "Nothing was changed" in str(caught.value)
        with pytest.raises(StorageCorrupt, match=r"chat\.sqlite"):
            await storage.entry(3)
        await storage.close()

    asyncio.run(main())


def test_a_file_that_is_held_for_long_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pidurable_nb.storage.sqlite.BUSY_TIMEOUT", 0.1)
    path = tmp_path / "chat.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        item = put(storage)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match=r"locked.*end that program"):
                await storage.commit([item])
            other.execute("ROLLBACK")
        assert await storage.commit([item]) == 1
        await storage.close()

    asyncio.run(main())


def test_a_moment_of_another_writer_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            call = asyncio.ensure_future(storage.commit([put(storage)]))
            await asyncio.wait([call], timeout=0.05)
            assert not call.done()
            other.execute("ROLLBACK")
        assert await call == 1
        await storage.close()

    asyncio.run(main())


def test_a_full_disk_fails_the_commit_and_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        await storage.commit([put(storage)])
        # SQLite's own limit of pages fails as a full disk does.
        await storage._worker.call(lambda: storage._connection.execute("PRAGMA max_page_count = 40").fetchall())
        with pytest.raises(StorageError, match=r"full.*Make room"):
            await storage.commit([put(storage), put(storage, data="x" * 1_000_000)])
        assert storage.last_seq == 1
        assert len((await storage.scan_entries()).items) == 1
        assert await storage.commit([put(storage)]) == 2
        await storage.close()

    asyncio.run(main())


# -- observers and copies --------------------------------------------------------------------------------------------


def test_another_connection_reads_while_the_owner_writes(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"

    async def main() -> None:
        storage = await SqliteStorage.open(path)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            for count in range(1, 4):
                await storage.commit([put(storage)])
                assert reader.execute("SELECT count(*) FROM entries").fetchone() == (count,)
        await storage.close()

    asyncio.run(main())


def test_a_backup_does_not_hold_up_commits_and_refuses_a_taken_path(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await SqliteStorage.open(tmp_path / "chat.sqlite")
        for _ in range(20):
            await storage.commit([put(storage, data="x" * 100_000)])
        copying = asyncio.ensure_future(storage.backup(tmp_path / "copy.sqlite"))
        for _ in range(20):
            await storage.commit([put(storage)])
        await copying
        (tmp_path / "taken").write_text("mine")
        for target in (tmp_path / "taken", tmp_path / "chat.sqlite", tmp_path / "no" / "folder"):
            with pytest.raises(StorageRequestError, match="backup"):
                await storage.backup(target)
        assert (tmp_path / "taken").read_text() == "mine"
        assert await storage.commit([put(storage)]) == 41
        await storage.close()
        copy = await SqliteStorage.open(tmp_path / "copy.sqlite")
        assert 20 <= copy.last_seq <= 40
        assert len((await copy.scan_entries()).items) == copy.last_seq
        await copy.close()

    asyncio.run(main())


# -- options ---------------------------------------------------------------------------------------------------------


def test_synchronous_is_normal_or_full(tmp_path: Path) -> None:
    async def main() -> None:
        for level, number in (("normal", 1), ("full", 2)):
            storage = await SqliteStorage.open(tmp_path / level, synchronous=level)  # type: ignore[arg-type]
            found = await storage._worker.call(lambda s=storage: s._connection.execute("PRAGMA synchronous").fetchone())
            assert found == (number,)
            await storage.close()
        with pytest.raises(StorageRequestError, match="neither"):
            await SqliteStorage.open(tmp_path / "x", synchronous="off")  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_clock_is_the_one_that_was_given(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(50.0)
        storage = await SqliteStorage.open(tmp_path / "x", clock=clock)
        clock.advance(1)
        await storage.commit([])
        (life,) = await storage.lives()
        assert (life.opened_at, life.last_commit_at) == (50.0, 51.0)
        await storage.close()

    asyncio.run(main())


# -- cost ------------------------------------------------------------------------------------------------------------


def test_live_tasks_are_found_without_reading_ended_ones(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await SqliteStorage.open(tmp_path / "chat.sqlite")
        state = Sleeping(checkpoint={"phase": "p"}, until=5.0)
        tasks = [
            PutTask(TaskRecord(id=TaskId(id), conversation_id=ROOT, kind="t", version=1, state=state))
            for id in range(1, 50)
        ]
        await storage.commit(tasks)

        def plans(connection: sqlite3.Connection) -> list[str]:
            seen: list[str] = []
            connection.set_trace_callback(seen.append)
            for status in ("sleeping", ("pending", "sleeping")):
                storage._reads.scan_tasks(None, None, status, None, None, None, "ascending", 100, None)  # type: ignore[arg-type]
            storage._reads.scan_submissions(None, "queued", "ascending", 100, None)
            storage._reads.latest_head(1, None)
            storage._reads.find_document("k", "session", None, None, None)
            storage._reads.submission_by_request(1, "r")
            connection.set_trace_callback(None)
            return [row[3] for sql in seen for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]

        found = await storage._worker.call(lambda: plans(storage._connection))
        assert len(found) == 6
        for plan in found:
            assert "INDEX" in plan, plan
        await storage.close()

    asyncio.run(main())


def test_a_commit_reads_nothing_and_is_one_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await SqliteStorage.open(tmp_path / "chat.sqlite")
        seen: list[str] = []
        await storage._worker.call(lambda: storage._connection.set_trace_callback(seen.append))
        await storage.commit([put(storage), put(storage)])
        await storage._worker.call(lambda: storage._connection.set_trace_callback(None))
        words = [statement.split()[0] for statement in seen]
        assert words == ["BEGIN", "INSERT", "INSERT", "INSERT", "COMMIT"]
        await storage.close()

    asyncio.run(main())
