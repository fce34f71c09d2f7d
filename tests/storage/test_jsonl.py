"""JSONL: lines, torn tails, damage at every byte, compaction (engine.md, section 16)."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb.errors import SchemaTooNew, StorageCorrupt, StorageError
from pidurable_nb.records import ROOT, DocumentId, DocumentRecord, Entry, EntryId, Pending, TaskId, TaskRecord
from pidurable_nb.storage import (
    ChangeDocument,
    CreateDocument,
    JsonlStorage,
    PutEntry,
    PutTask,
    RetireDocument,
    StartAttempt,
    jsonl,
)
from pidurable_nb.testing import Faults

from .scripts import run_script

Snapshot = list[Any]


def put(storage: JsonlStorage, **fields: Any) -> PutEntry:
    return PutEntry(Entry(id=EntryId(storage.mint_id()), conversation_id=ROOT, kind="test.entry", **fields))


def task(id: int) -> TaskRecord:
    state = Pending(checkpoint={"phase": "p"})
    return TaskRecord(id=TaskId(id), conversation_id=ROOT, kind="t", version=1, state=state)


async def write(folder: Path, *bodies: Callable[[JsonlStorage], Awaitable[None]]) -> None:
    storage = await JsonlStorage.open(folder)
    for body in bodies:
        await body(storage)
    await storage.close()


async def three_commits(storage: JsonlStorage) -> None:
    await storage.commit([put(storage, data="one\nline\u2028")])
    record = DocumentRecord(id=DocumentId(storage.mint_id()), kind="d", scope="session", created_at=0)
    await storage.commit([CreateDocument(record, 1, {"n": 0}), PutTask(task(storage.mint_id()))])
    await storage.commit([ChangeDocument(record, 1, [{"op": "replace", "path": "/n", "value": 1}])])


async def contents(storage: JsonlStorage) -> Snapshot:
    return [
        storage.last_seq,
        await storage.changes(0),
        (await storage.scan_commits()).items,
        await storage.attempts(),
        [(life.id, life.ended, life.last_commit) for life in (await storage.lives())[:-1]],
    ]


async def reread(folder: Path) -> Snapshot:
    storage = await JsonlStorage.open(folder)
    found = await contents(storage)
    await storage.close()
    return found


def journal(folder: Path) -> Path:
    return folder / jsonl.JOURNAL


def restored(folder: Path, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    journal(folder).write_bytes(content)
    return folder


def test_the_journal_is_one_json_line_per_commit(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path / "j", three_commits))
    lines = [json.loads(line) for line in journal(tmp_path / "j").read_text(encoding="utf-8").split("\n")[:-1]]
    kinds = [next(key for key in line if key != "crc") for line in lines]
    assert kinds == ["journal", "life", "seq", "seq", "seq", "ended"]
    assert [len(line["items"]) for line in lines[2:5]] == [1, 2, 1]
    assert os.listdir(tmp_path / "j") == [jsonl.JOURNAL]
    assert stat.S_IMODE(journal(tmp_path / "j").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o700


def test_a_journal_cut_at_any_byte_keeps_the_whole_commits_before_the_cut(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path / "j", three_commits))
    content = journal(tmp_path / "j").read_bytes()
    header = content.index(b"\n") + 1

    async def main() -> None:
        for size in range(len(content) + 1):
            folder = restored(tmp_path / "cut", content[:size])
            if 0 < size < header:
                with pytest.raises(StorageCorrupt, match=r"journal\.jsonl"):
                    await JsonlStorage.open(folder)
                assert journal(folder).read_bytes() == content[:size]
                continue
            storage = await JsonlStorage.open(folder)
            whole = content[:size].count(b'"seq":')
            complete = content[: content[:size].rfind(b"\n") + 1].count(b'"seq":')
            assert storage.last_seq == complete <= whole
            assert len((await storage.scan_commits()).items) == complete
            if size % 10 == 0:
                assert await storage.commit([put(storage)]) == complete + 1
                await storage.close()
                assert (await reread(folder))[0] == complete + 1
            await storage.close()

    asyncio.run(main())


def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path / "j", three_commits))
    content = journal(tmp_path / "j").read_bytes()

    async def main() -> None:
        for position in range(len(content) - 1):
            altered = content[:position] + bytes([content[position] ^ 0x04]) + content[position + 1 :]
            folder = restored(tmp_path / "altered", altered)
            with pytest.raises(StorageCorrupt, match=r"journal\.jsonl, line \d+, cannot be read") as caught:
                await JsonlStorage.open(folder)
            line = content[:position].count(b"\n") + 1
            assert f"line {line}," in str(caught.value)
            assert journal(folder).read_bytes() == altered
            assert os.listdir(folder) == [jsonl.JOURNAL]

    asyncio.run(main())


BAD_LINES = {
    "not JSON": "hello",
    "empty": "",
    "no checksum": '{"seq":1}',
    "an unknown record": jsonl.line_of('"mystery":1').decode()[:-1],
    "an unknown item": jsonl.line_of('"seq":1,"at":1,"life":1,"top":1,"items":[{"mystery":{}}]').decode()[:-1],
    "a commit out of order": jsonl.line_of('"seq":7,"at":1,"life":1,"top":1,"items":[]').decode()[:-1],
    "a wrong type": jsonl.line_of('"seq":1,"at":"x","life":1,"top":1,"items":[]').decode()[:-1],
    "half a record": jsonl.line_of('"seq":1,"at":1,"life":1,"top":1,"items":[{"entry":{"id":1}}]').decode()[:-1],
    "deep nesting": jsonl.line_of(
        f'"seq":1,"at":1,"life":1,"top":1,"items":[{{"entry":{"[" * 1000}{"]" * 1000}}}]'
    ).decode()[:-1],
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_does_not_parse_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    async def nothing(storage: JsonlStorage) -> None:
        return None

    asyncio.run(write(tmp_path / "j", nothing))
    path = journal(tmp_path / "j")
    path.write_text(path.read_text() + BAD_LINES[name] + "\n")
    before = path.read_bytes()

    async def main() -> None:
        with pytest.raises(StorageCorrupt, match=r"journal\.jsonl, line 4, .*Nothing was changed"):
            await JsonlStorage.open(tmp_path / "j")

    asyncio.run(main())
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = restored(tmp_path / "j", jsonl.line_of('"journal":{"format":"pidurable_nb","version":99}') + b"future\n")

    async def main() -> None:
        with pytest.raises(SchemaTooNew, match="Upgrade"):
            await JsonlStorage.open(folder)

    asyncio.run(main())
    assert journal(folder).read_bytes().endswith(b"future\n")


def test_folders_that_are_not_sessions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"\x89PNG")
    (tmp_path / "file").write_text("hello")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / jsonl.JOURNAL).write_text('{"mine": 1}\n')
    listed = sorted(str(path) for path in tmp_path.rglob("*"))

    async def main() -> None:
        for name, match in (
            ("photos", "other files.*Nothing was changed"),
            ("file", "not a folder"),
            ("other", "line 1, cannot be read.*Nothing was changed"),
            ("no/such/place", "cannot be made"),
        ):
            with pytest.raises(StorageError, match=match):
                await JsonlStorage.open(tmp_path / name)

    asyncio.run(main())
    assert sorted(str(path) for path in tmp_path.rglob("*")) == listed


def test_an_empty_folder_becomes_a_session(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    asyncio.run(write(tmp_path / "j", three_commits))
    assert asyncio.run(reread(tmp_path / "j"))[0] == 3


def test_fsync_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), fsync(fd)))

    async def main() -> None:
        storage = await JsonlStorage.open(tmp_path / "j", fsync=True)
        before = len(synced)
        await storage.commit([put(storage)])
        assert len(synced) == before + 1
        await storage.close()
        storage = await JsonlStorage.open(tmp_path / "j")
        before = len(synced)
        await storage.commit([put(storage)])
        assert len(synced) == before
        await storage.close()

    asyncio.run(main())


# -- compaction ------------------------------------------------------------------------------------------------------


async def much(storage: JsonlStorage) -> None:
    """Changes that are mostly superseded, among records of every kind."""
    ids = [storage.mint_id() for _ in range(4)]
    latest = DocumentRecord(id=DocumentId(ids[0]), kind="latest", scope="session", created_at=0)
    past = DocumentRecord(
        id=DocumentId(ids[1]), kind="past", scope="conversation", scope_id=1, history="rewindable", created_at=0
    )
    gone = DocumentRecord(id=DocumentId(ids[2]), kind="gone", scope="session", created_at=0)
    await storage.commit(
        [
            *(CreateDocument(record, 1, {"n": 0}) for record in (latest, past, gone)),
            PutTask(task(ids[3])),
            StartAttempt(TaskId(ids[3]), "p"),
        ]
    )
    for n in range(40):
        await storage.commit([ChangeDocument(latest, 1, value={"n": "x" * 2000})])
        await storage.commit([ChangeDocument(past, 1, [{"op": "replace", "path": "/n", "value": n}])])
        await storage.commit([put(storage, head=EntryId(1) if n % 7 == 0 else None), PutTask(task(ids[3]))])
    await storage.commit([RetireDocument(gone.id)])


def test_compaction_keeps_everything_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "j"
    asyncio.run(write(folder, much))
    size = journal(folder).stat().st_size

    async def everything() -> list[Any]:
        storage = await JsonlStorage.open(folder)
        found: list[Any] = (await contents(storage))[:4]
        found += [await storage.changes(after) for after in range(0, storage.last_seq + 1, 10)]
        found += [await storage.document(2, at=seq) for seq in range(storage.last_seq + 1)]
        found += [await storage.latest_head(1), await storage.entry_commit(50)]
        found += [(await storage.scan_documents(live=False)).items, (await storage.lives())[:1]]
        assert storage.mint_id() == 45
        await storage.close()
        return found

    whole = asyncio.run(everything())
    assert journal(folder).stat().st_size > size
    monkeypatch.setattr(jsonl, "COMPACT_ABOVE", 1)
    assert asyncio.run(everything()) == whole
    assert journal(folder).stat().st_size < size / 3
    assert os.listdir(folder) == [jsonl.JOURNAL]
    assert asyncio.run(everything()) == whole
    assert stat.S_IMODE(journal(folder).stat().st_mode) == 0o600


def test_a_compacted_journal_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "j"

    async def main() -> None:
        storage = await JsonlStorage.open(folder)
        await much(storage)
        last = storage.last_seq
        storage.abandon()  # its attempt is still open
        monkeypatch.setattr(jsonl, "COMPACT_ABOVE", 1)
        storage = await JsonlStorage.open(folder)
        (attempt,) = await storage.attempts()
        assert attempt.end == "cut_off"
        assert await storage.commit([put(storage)]) == last + 1
        changes = await storage.changes(last)
        assert len(changes.entries) == 1
        assert changes.documents == []
        await storage.close()
        storage = await JsonlStorage.open(folder)
        assert storage.last_seq == last + 1
        assert [life.ended for life in await storage.lives()] == [None, "closed", None]
        assert len(await storage.attempts()) == 1
        await storage.close()

    asyncio.run(main())


def test_an_interrupted_compaction_leaves_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "j"
    asyncio.run(write(folder, much))
    content = journal(folder).read_bytes()
    monkeypatch.setattr(jsonl, "COMPACT_ABOVE", 1)

    async def main() -> None:
        with Faults() as faults:
            faults.fail("open.file", OSError(28, "No space left on device"))
            with pytest.raises(StorageError, match=r"No space left.*What was committed is safe"):
                await JsonlStorage.open(folder)

    asyncio.run(main())
    assert journal(folder).read_bytes() == content
    assert os.listdir(folder) == [jsonl.JOURNAL]
    (folder / (jsonl.JOURNAL + ".new")).write_text("left by a killed process")
    assert asyncio.run(reread(folder))[0] == 122


# -- a full disk -----------------------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_commit_and_leaves_no_trace(tmp_path: Path) -> None:
    script = """
    import resource
    def entry(storage, text):
        return PutEntry(Entry(id=storage.mint_id(), conversation_id=1, kind="t", data=text))
    async def main():
        storage = await committed(where)
        size = os.path.getsize(where[6:] + "/journal.jsonl")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 2000, resource.RLIM_INFINITY))
        calls = [storage.commit([entry(storage, "x" * n)]) for n in (10, 5000, 10)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        print([x if isinstance(x, int) else type(x).__name__ for x in found], storage.last_seq)
        print(str(found[1]))
        print(len((await storage.scan_entries()).items))
        print(await storage.commit([entry(storage, "y")]))
        await storage.close()
        storage = await open_storage(where)
        print(storage.last_seq, len((await storage.scan_entries()).items))
        await storage.close()
    asyncio.run(main())
    """
    done = run_script(script, f"jsonl:{tmp_path / 'j'}")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "[2, 'StorageError', 'StorageError'] 2"
    assert "journal.jsonl" in lines[1]
    assert "What was committed is safe" in lines[1]
    assert lines[2:] == ["2", "3", "3 3"]
