"""Every backend passes the one conformance suite (engine.md, section 16)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pidurable_nb.storage import JsonlStorage, MemoryStorage, SqliteStorage, Storage
from pidurable_nb.testing import storage_conformance


async def memory(path: Path, *, clock: Callable[[], float]) -> Storage:
    return MemoryStorage(clock=clock)


TestMemory = storage_conformance(memory, persistent=False)
TestSqlite = storage_conformance(SqliteStorage.open)
TestJsonl = storage_conformance(JsonlStorage.open)
