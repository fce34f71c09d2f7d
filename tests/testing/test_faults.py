"""Named points of the engine, and what a test can have happen there (docs/testing.md)."""

from __future__ import annotations

import ast
import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pidurable_nb
from pidurable_nb import Harness, JsonlStorage, MemoryStorage, Session, SqliteStorage, observe
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.faults import POINTS, reach
from pidurable_nb.models import ScriptedModel
from pidurable_nb.session import Document
from pidurable_nb.testing import Faults

PACKAGE = Path(pidurable_nb.__file__).parent


class Words(Document, kind="test.words", scope="session"):
    said: list[str] = []


async def say(session: Session, word: str) -> None:
    async with session.commit() as tx:
        (await tx.doc(Words)).said.append(word)


def test_the_list_of_points_is_what_the_code_reaches() -> None:
    reached: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}: a point is named by a text"
                reached.add(node.args[0].value)
    assert reached == set(POINTS)


def test_the_documentation_lists_all_points() -> None:
    page = (PACKAGE.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    assert [point for point in POINTS if f"| `{point}` |" not in page] == []


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_every_point_is_reached_in_the_life_of_a_session(tmp_path: Path, kind: str) -> None:
    where = f"jsonl:{tmp_path / 'journal'}" if kind == "jsonl" else str(tmp_path / "chat.sqlite")

    async def main() -> None:
        async with Harness.open(where, models=ScriptedModel(["hello"])) as harness:
            await (await harness.root()).ask("hi")
            async with observe(where) as observer:
                await observer.view()
            await harness.storage.backup(tmp_path / "copy")

    with Faults(where=where) as faults:
        asyncio.run(main())
    assert set(faults.reached) == set(POINTS)
    for once in ("open.lock", "open.file", "open.life", "open.stored", "close.end", "close.done"):
        assert faults.reached[once] == 1, once
    commits = faults.reached["commit.sealed"]
    assert commits >= 4
    for each in ("store.called", "commit.stored"):
        assert faults.reached[each] >= commits, each
    assert faults.reached["store.begun"] == faults.reached["store.written"] == faults.reached["store.done"] <= commits


def test_a_session_in_memory_reaches_the_points_of_the_session() -> None:
    async def main() -> None:
        async with Session.open(MemoryStorage()) as session:
            await say(session, "x")

    with Faults() as faults:
        asyncio.run(main())
    assert {point for point in POINTS if point.startswith("commit.")} <= set(faults.reached)


def test_an_error_arises_at_the_time_that_was_asked_for() -> None:
    with Faults(own=["shop.paid"]) as faults:
        faults.fail("shop.paid", StorageError("third and fourth"), at=3, times=2)
        faults.fail("shop.paid", KeyError, at=6, times=2)
        told: list[str] = []
        for _ in range(7):
            try:
                reach("shop.paid")
            except (StorageError, KeyError) as error:
                told.append(type(error).__name__)
            else:
                told.append("")
        assert told == ["", "", "StorageError", "StorageError", "", "KeyError", "KeyError"]
        faults.fail("shop.paid", StorageError("next"))  # counted from now on
        with pytest.raises(StorageError):
            reach("shop.paid")
        faults.fail("shop.paid", LookupError, times=None)
        for _ in range(3):
            with pytest.raises(LookupError):
                reach("shop.paid")
    reach("shop.paid")
    assert faults.reached == {"shop.paid": 11}


def test_points_of_another_storage_are_left_alone() -> None:
    with Faults(where="jsonl:mine", own=["shop.paid"]) as faults:
        faults.fail("store.begun", StorageError("mine"))
        reach("store.begun", "other")
        reach("shop.paid", "wherever")  # the test's own points are of no storage
        with pytest.raises(StorageError):
            reach("store.begun", "mine")
    assert faults.reached == {"store.begun": 1, "shop.paid": 1}


def test_what_cannot_be_asked_for_is_refused() -> None:
    with Faults() as faults:
        with pytest.raises(ValueError, match=r"no point 'store\.began'; the points are open\.lock, "):
            faults.kill("store.began")
        with pytest.raises(ValueError, match="the event loop, which would stand still"):
            faults.hold("commit.sealed")
        with pytest.raises(ValueError, match=r"nothing can fail at store\.done"):
            faults.fail("store.done", StorageError("too late"))
        with pytest.raises(ValueError, match="at=1"):
            faults.kill("store.done", at=0)
        with pytest.raises(RuntimeError, match="end the other block first"), Faults():
            pass
    with Faults():  # the refused one ended nothing
        pass


def test_a_thread_is_held_until_it_is_released_or_the_block_ends() -> None:
    def work(place: list[str]) -> None:
        reach("read.called", "")
        place.append("went on")

    async def main() -> None:
        done: list[str] = []
        with Faults() as faults:
            first, second = faults.hold("read.called"), faults.hold("read.called", at=2)
            threads = [threading.Thread(target=work, args=(done,))]
            threads[0].start()
            await first.until_reached()
            assert (first.reached, second.reached, done) == (True, False, [])
            first.release()
            threads[0].join(20)
            assert done == ["went on"]
            threads.append(threading.Thread(target=work, args=(done,)))
            threads[1].start()
            await second.until_reached()
        threads[1].join(20)
        assert done == ["went on"] * 2

    asyncio.run(main())


def test_anything_can_be_called_at_a_point(tmp_path: Path) -> None:
    async def main() -> None:
        closing: list[asyncio.Task[None]] = []
        with Faults() as faults:
            session = await Session.open(await SqliteStorage.open(tmp_path / "s.sqlite"))
            loop = asyncio.get_running_loop()
            faults.call("commit.published", lambda: closing.append(loop.create_task(session.close())), at=2)
            await say(session, "one")
            await say(session, "two")
            await closing[0]
        assert session.end is not None
        assert session.end.reason == "closed"

    asyncio.run(main())


KILLED = """
import asyncio, sys
from pidurable_nb import JsonlStorage
from pidurable_nb.faults import reach
from pidurable_nb.testing import Faults

async def main():
    with Faults(own=["shop.paid"]) as faults:
        faults.kill("shop.paid", at=2)
        storage = await JsonlStorage.open(sys.argv[1])
        for number in range(3):
            await storage.commit([])
            print(number, flush=True)
            reach("shop.paid")

asyncio.run(main())
"""


def test_a_process_is_killed_at_a_point_of_its_own_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "j")], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGKILL, "0\n1\n", "")

    async def main() -> None:
        storage = await JsonlStorage.open(tmp_path / "j")
        assert storage.last_seq == 2
        await storage.close()

    asyncio.run(main())


def test_a_session_that_failed_at_a_point_tells_the_error_that_was_given(tmp_path: Path) -> None:
    async def main() -> None:
        error = OSError(28, "No space left on device")
        with Faults() as faults:
            session = await Session.open(await SqliteStorage.open(tmp_path / "s.sqlite"))
            faults.fail("store.written", error)
            with pytest.raises(StorageError, match="No space left on device") as raised:
                await say(session, "lost")
            assert raised.value.__cause__ is error
            with pytest.raises(SessionFailed):
                await session.snapshot(Words)
            await session.close()

    asyncio.run(main())
