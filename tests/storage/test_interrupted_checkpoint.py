"""A kill in the middle of a checkpoint: the header counts pages that only the log has (engine.md, section 16)."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb import SqliteStorage
from pidurable_nb.records import ConversationId, ConversationRecord, Entry, EntryId
from pidurable_nb.storage import PutConversation, PutEntry


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
