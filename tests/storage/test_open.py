"""What a text or a path names as a storage (api.md, "Opening"), and what opening costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb.errors import StorageRequestError
from pidurable_nb.storage import JsonlStorage, MemoryStorage, SqliteStorage, Storage, common, open_storage

from .scripts import environment


async def opened(where: Any) -> Storage:
    storage = await open_storage(where)
    await storage.close()
    return storage


def test_texts_and_paths_name_storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").mkdir()

    async def main() -> None:
        for where, kind in (
            (":memory:", MemoryStorage),
            ("chat.sqlite", SqliteStorage),
            (str(tmp_path / "chat.db"), SqliteStorage),
            (tmp_path / "no ending", SqliteStorage),
            ("what?mode=ro#x%20é.sqlite", SqliteStorage),
            (f"jsonl:{tmp_path / 'new'}", JsonlStorage),
            ("jsonl:relative", JsonlStorage),
            ("folder", JsonlStorage),
            (tmp_path / "other", JsonlStorage),
        ):
            storage = await opened(where)
            assert type(storage) is kind
            assert await opened(where)  # and again, now that it exists

    asyncio.run(main())
    assert (tmp_path / "what?mode=ro#x%20é.sqlite").stat().st_size > 0
    assert (tmp_path / "new" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("postgresql://localhost/x", "PostgreSQL is not included"),
        ("postgres://localhost/x", "PostgreSQL is not included"),
        ("redis://localhost", "redis:// storages are not included"),
        ("", "names no storage"),
        ("  ", "names no storage"),
        ("jsonl:", "names no folder"),
        (7, "not by a int"),
        (None, "not by a NoneType"),
        (b"bytes", "not by a bytes"),
    ],
)
def test_what_names_nothing_is_refused(where: Any, match: str) -> None:
    with pytest.raises(StorageRequestError, match=match):
        asyncio.run(opened(where))


def test_backends_are_loaded_on_first_use() -> None:
    code = (
        "import sys, pidurable_nb.storage as s, pidurable_nb.testing\n"
        "print([m for m in ('aiosqlite', 'sqlite3', 'pytest') if m in sys.modules])\n"
        "s.MemoryStorage(); print('sqlite3' in sys.modules); s.SqliteStorage; print('aiosqlite' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.split("\n") == ["[]", "False", "True", ""]
    import pidurable_nb.storage

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pidurable_nb.storage.nothing


class App:
    """What ipykernel's application looks like from outside."""

    connection_file = "/run/user/jupyter/kernel-1f2e-3d4c.json"

    @classmethod
    def initialized(cls) -> bool:
        return True

    @classmethod
    def instance(cls) -> App:
        return cls()


def test_a_life_names_the_kernel_it_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    monkeypatch.setattr(sys, "argv", ["pytest", "kernel-x.json"])
    assert common.kernel_id() is None
    monkeypatch.setenv("JPY_SESSION_NAME", "/notebooks/a.ipynb")
    assert common.kernel_id() == "/notebooks/a.ipynb"
    monkeypatch.setattr(sys, "argv", ["/lib/ipykernel_launcher.py", "-f", "/tmp/kernel-77aa.json"])
    assert common.kernel_id() == "77aa"
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", type("Module", (), {"IPKernelApp": App}))
    assert common.kernel_id() == "1f2e-3d4c"
