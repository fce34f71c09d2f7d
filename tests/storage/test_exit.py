"""A storage's worker never keeps an interpreter alive, and says nothing at its end (engine.md, section 16)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pidurable_nb.storage import open_storage

from .scripts import run_script

SCRIPTS = {
    "forgets to close": """
        async def main():
            await committed(where)
        asyncio.run(main())
    """,
    "keeps it in a global": """
        async def main():
            global storage
            storage = await committed(where)
        asyncio.run(main())
    """,
    "ends with commits under way": """
        async def main():
            global storage, calls
            storage = await committed(where)
            calls = [asyncio.ensure_future(storage.commit([])) for _ in range(200)]
            await asyncio.sleep(0)
        asyncio.run(main())
    """,
    "raises": """
        async def main():
            global storage
            storage = await committed(where)
            asyncio.ensure_future(storage.commit([]))
            sys.exit(0)
        asyncio.run(main())
    """,
    "closes its loop by itself": """
        loop = asyncio.new_event_loop()
        storage = loop.run_until_complete(committed(where))
        call = loop.create_task(storage.commit([]))
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(call)
        loop.close()
    """,
    "is cancelled while it opens": """
        async def main():
            storage = await committed(where)
            await storage.close()
            opening = asyncio.ensure_future(open_storage(where))
            await asyncio.sleep(0)
            opening.cancel()
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_at_once_and_silently(tmp_path: Path, name: str, kind: str) -> None:
    place = f"jsonl:{tmp_path / 'journal'}" if kind == "jsonl" else str(tmp_path / "chat.sqlite")
    started = time.monotonic()
    done = run_script(SCRIPTS[name], place, options=("-W", "default"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - started < 10

    async def main() -> None:
        storage = await open_storage(place)
        assert storage.last_seq >= 1
        await storage.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_a_storage_that_nobody_holds_lets_its_file_go(tmp_path: Path, kind: str) -> None:
    place = f"jsonl:{tmp_path / 'journal'}" if kind == "jsonl" else str(tmp_path / "chat.sqlite")

    async def main() -> None:
        storage = await open_storage(place)
        await storage.commit([])
        del storage
        storage = await open_storage(place)
        (first, _) = await storage.lives()
        assert first.ended is None
        await storage.close()

    asyncio.run(main())
