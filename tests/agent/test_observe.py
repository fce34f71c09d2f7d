"""Another process follows a session live, and disturbs nobody (engine.md, sections 14 and 16; api.md, Observing)."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Document, Harness, MemoryStorage, Phase, Registry, Session, Task, observe
from pidurable_nb.agent.extension import Extension
from pidurable_nb.agent.observe import Observer
from pidurable_nb.errors import (
    DurableError,
    SchemaTooNew,
    SessionClosed,
    StorageCorrupt,
    StorageError,
    StorageRequestError,
)
from pidurable_nb.models import ScriptedModel
from pidurable_nb.patch import apply
from pidurable_nb.records import TaskId
from pidurable_nb.session import Watch
from pidurable_nb.storage import StorageWarning, jsonl
from pidurable_nb.testing import eventually

KINDS = ["sqlite", "jsonl"]
TIMEOUT = 30.0

OWNER = """
import asyncio, sys, time
from pidurable_nb import Harness
from pidurable_nb.models import Hang, Reply, ScriptedModel

where, what = sys.argv[1:]

def say(*words):
    print(*words, flush=True)

async def heard(word):
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    assert line.strip() == word, line

STEPS = {
    "stream": lambda: [Reply("word " * 120, tokens_per_second=60)],
    "hang": lambda: [Hang(after="cut off here")],
    "next": lambda: ["the whole answer"],
    "commits": lambda: [],
}

async def main():
    async with Harness.open(where, models=ScriptedModel(STEPS[what]())) as harness:
        root = await harness.root()
        say("ready")
        await heard("go")
        if what == "commits":
            slowest = 0.0
            for number in range(300):
                begun = time.perf_counter()
                async with root.commit() as tx:
                    await tx.append_entry("app.note", data=number)
                slowest = max(slowest, time.perf_counter() - begun)
            say(f"{slowest:.4f}")
        elif what == "next":
            harness.resume()
            await harness.wait_for_idle()
            say("idle")
        else:
            submission = await root.submit("tell me")
            await submission.wait()
            say("answered")
        await heard("close")
    say("closed")

asyncio.run(main())
"""


class Process:
    """An owner in a process of its own. It says a line when it has done something, and is told when to go on."""

    def __init__(self, where: str, what: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", OWNER, where, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.popen.pid

    async def says(self) -> str:
        assert self.popen.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self.popen.stdout.readline), TIMEOUT)
        return line.strip()

    def tell(self, word: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(TIMEOUT)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.kill()
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream is not None
            stream.close()


@asynccontextmanager
async def process(where: str, what: str) -> AsyncIterator[Process]:
    owner = Process(where, what)
    try:
        assert await owner.says() == "ready"
        yield owner
    finally:
        owner.end()


def where(folder: Path, kind: str) -> str:
    return f"jsonl:{folder / 'journal'}" if kind == "jsonl" else str(folder / "chat.sqlite")


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * TIMEOUT):
            await main

    asyncio.run(bounded())


def contents(folder: Path) -> dict[str, int]:
    """Every file below a folder, and when it was changed."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def followers() -> list[str]:
    """The threads of observers."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("observe ")]


async def no_followers() -> None:
    await eventually(lambda: not followers())


def partial(watch: Watch[Any]) -> str | None:
    generation = watch.value.live.generation
    return None if generation is None or generation.message is None else generation.message.text


# -- live ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_seen_growing_shortly_after_each_commit(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        place = where(tmp_path, kind)
        async with process(place, "stream") as owner, observe(place) as observer:
            lags: list[float] = []
            late: list[float] = []

            async def measure() -> None:
                async with observer.watch_commits() as commits:
                    async for change in commits:
                        lags.append(time.time() - change.value.at)

            async def measure_machine() -> None:
                """How late a timer is, on a machine that is busy with other things as well."""
                while True:
                    begun = time.monotonic()
                    await asyncio.sleep(0.05)
                    late.append(time.monotonic() - begun - 0.05)

            measuring = [asyncio.create_task(measure()), asyncio.create_task(measure_machine())]
            seen: list[str] = []
            async with observer.watch() as watch:
                start = watch.value.to_data()
                owner.tell("go")
                async for change in watch:
                    start = apply(start, change.ops)
                    assert start == change.value.to_data()  # the operations tell the whole story
                    if (text := partial(watch)) is not None:
                        seen.append(text)
                    if change.value.entries and change.value.entries[-1].kind == "pi.assistant":
                        break
            answer = change.value.entries[-1].text
            assert answer == "word " * 120
            assert len(seen) >= 8
            assert all(answer.startswith(text) for text in seen)
            assert [len(text) for text in seen] == sorted(len(text) for text in seen)
            assert change.value.live.run is None
            assert (await observer.usage()).total.output_tokens > 0
            assert [entry.kind for entry in await observer.entries(order="ascending").list()] == [
                "pi.user",
                "pi.assistant",
            ]
            for task in measuring:
                task.cancel()
            # The owner's process, the thread that looks, and this loop each wait for their turn of the processor.
            assert statistics.median(lags) < 0.3 + 5 * statistics.mean(late), (lags, late)

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_over_the_death_of_the_owner_and_the_next_opening(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        place = where(tmp_path, kind)
        async with process(place, "hang") as first, observe(place) as observer:
            assert observer.owner is not None
            assert (observer.owner.pid, observer.owner.host) == (first.pid, socket.gethostname())
            assert observer.owner.since is not None
            assert abs(observer.owner.since - time.time()) < TIMEOUT
            async with observer.watch() as watch:
                first.tell("go")
                while partial(watch) != "cut off here":
                    await anext(watch)
                assert (await observer.inspect()).tasks[0].state.kind == "running"
                first.kill()
                assert observer.owner is None
                inspection = await observer.inspect()
                assert (inspection.scheduling, len(inspection.submissions)) == ("paused", 1)
                assert partial(watch) == "cut off here"
                async with process(place, "next") as second:
                    assert observer.owner is not None
                    assert observer.owner.pid == second.pid
                    second.tell("go")
                    async for change in watch:
                        if change.value.entries[-1].text == "the whole answer":
                            break
                    assert [entry.text for entry in change.value.entries] == [
                        "tell me",
                        "cut off here",
                        "the whole answer",
                    ]
                    assert change.value.entries[1].messages[0].stop_reason == "aborted"
                    assert await second.says() == "idle"
                    second.tell("close")
                    assert await second.says() == "closed"
                    await eventually(lambda: observer.owner is None)
            assert [(life.pid, life.ended) for life in await observer.lives()] == [
                (first.pid, None),
                (second.pid, "closed"),
            ]
            assert {attempt.end for attempt in await observer.attempts()} == {"cut_off", "ended"}
            assert observer.end is None

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_observers_that_read_all_the_time_hold_up_no_commit(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        place = where(tmp_path, kind)
        async with process(place, "commits") as owner:
            observers = [await observe(place) for _ in range(3)]
            going = True

            async def read(observer: Observer) -> int:
                count = 0
                while going:
                    await observer.entries().list(20)
                    await observer.view()
                    count += 1
                return count

            reading = [asyncio.create_task(read(observer)) for observer in observers]
            owner.tell("go")
            slowest = float(await owner.says())  # a commit that failed would have ended the process
            going = False
            assert all(count > 3 for count in await asyncio.gather(*reading))
            assert slowest < 5.0  # one that waited for a reader would fail after 10 s
            for observer in observers:
                assert len(await observer.entries().list()) == 300
                await observer.close()
            owner.tell("close")
            assert await owner.says() == "closed"

    run(main())


def test_an_owner_that_closes_under_observation_leaves_a_file_that_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with process(place, "commits") as owner, observe(place) as observer:
            owner.tell("go")
            await owner.says()
            await observer.view()
            owner.tell("close")
            assert await owner.says() == "closed"
            log = tmp_path / "chat.sqlite-wal"
            assert not log.exists() or log.stat().st_size == 0
            shutil.copy(place, tmp_path / "copy.sqlite")
            assert len(await observer.entries().list()) == 300
        async with observe(tmp_path / "copy.sqlite") as copy:
            assert len(await copy.entries().list()) == 300

    run(main())


# -- what it shows ---------------------------------------------------------------------------------------------------


class Marks(Document, kind="app.marks", scope="session"):
    names: list[str] = []


class Nap(Task[str, None], name="app.nap"):
    class Sleep(Phase):
        async def run(self, task: Any) -> None:
            await task.sleep_until(10.0**11, Nap.Wake())

    class Wake(Phase):
        async def run(self, task: Any) -> None:
            await task.complete(None)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_documents_and_inbox_are_followed(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        registry = Registry()
        registry.install(Extension("app", tasks=[Nap]))
        place = where(tmp_path, kind)
        async with Harness.open(place, models=ScriptedModel(["hello"]), registry=registry) as harness:
            root = await harness.root()
            async with observe(place) as observer:  # one process may do both
                assert await observer.snapshot(Marks) is None
                async with observer.watch_task_graph() as graph:
                    async with root.commit() as tx:
                        nap = await tx.create_task(Nap, "a while")
                        (await tx.doc(Marks)).names.append("first")
                    harness.resume()
                    known = graph.value.to_data()
                    while (node := graph.value.tasks.get(nap)) is None or node.status != "sleeping":
                        known = apply(known, (await anext(graph)).ops)
                    assert {int(id): shown for id, shown in known["tasks"].items()} == {nap: node.to_data()}
                    assert (node.kind, node.phase, node.until, node.blocked) == ("app.nap", "wake", 10.0**11, None)
                    (inspected,) = (await observer.inspect()).tasks
                    assert inspected.state.kind == "sleeping"
                    assert (await observer.task_graph()).tasks.keys() == {nap}
                    async with observer.watch_doc(Marks) as marks:
                        assert marks.value is not None
                        assert marks.value.names == ["first"]
                        async with root.commit() as tx:
                            (await tx.doc(Marks)).names.append("second")
                        change = await anext(marks)
                        assert change.value is not None
                        assert change.value.names == ["first", "second"]
                        assert list(change.ops) == [{"op": "add", "path": "/names/-", "value": "second"}]
                        async with root.commit() as tx:
                            await tx.retire_doc(Marks)
                        assert (await anext(marks)).value is None
                        assert marks.end is not None
                        assert marks.end.reason == "retired"
                    await harness.abort_task(nap)
                    while graph.value.tasks:
                        await anext(graph)
                record = await observer.task(nap)
                assert record is not None
                assert record.terminal
                await root.ask("hi", request_id="r")
                (submission,) = await observer.submissions().list()
                assert (submission.request_id, submission.status) == ("r", "done")
                assert [found.id for found in await observer.conversations().list()] == [root.id]
                assert [found.id for found in await observer.tasks(status="terminal", kind="app.nap").list()] == [nap]
                view = await observer.view(root.id)
                assert view == await root.view()

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_is_of_the_newest_commit_without_waiting_for_a_look(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("ACTIVE", "IDLE"):
        monkeypatch.setattr(f"pidurable_nb.storage.following.{pause}", 1000.0)

    async def main() -> None:
        registry = Registry()
        registry.install(Extension("app", tasks=[Nap]))
        place = where(tmp_path, kind)
        async with Harness.open(place, models=ScriptedModel(["hello"]), registry=registry) as harness:
            root = await harness.root()
            async with observe(place) as observer:
                assert await observer.snapshot(Marks) is None
                assert (await observer.view()).entries == ()
                async with root.commit() as tx:
                    nap = await tx.create_task(Nap, "a while")
                    (await tx.doc(Marks)).names.append("first")
                marks = await observer.snapshot(Marks)
                assert marks is not None
                assert marks.names == ["first"]
                async with root.commit() as tx:
                    other = await tx.create_task(Nap, "another while")
                assert (await observer.task_graph()).tasks.keys() == {nap, other}
                async with root.commit() as tx:
                    third = await tx.create_task(Nap, "a third while")
                assert [task.record.id for task in (await observer.inspect()).tasks] == [nap, other, third]
                async with root.commit() as tx:
                    await tx.append_entry("app.note", data=1)
                assert [entry.kind for entry in (await observer.view()).entries] == ["app.note"]
                await root.ask("hi")
                assert (await observer.usage()).requests == 1
                assert observer.last_seq == await observer.catch_up() == harness.storage.last_seq

    run(main())


def test_an_observer_that_cannot_take_in_a_commit_ends_instead_of_missing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Session.open(place) as session:
            async with observe(place) as observer, observer.watch_commits() as commits:
                error = LookupError("a bug")

                def broken(*_: object) -> None:
                    raise error

                monkeypatch.setattr(observer._storage, "_on_changes", broken)
                async with session.commit() as tx:
                    await tx.doc(Marks)
                assert [change async for change in commits] == []
                assert commits.end is not None
                assert (commits.end.reason, commits.end.error) == ("failed", error)
            async with session.commit() as tx:  # and its owner does not notice
                (await tx.doc(Marks)).names.append("more")

    run(main())


def test_a_fork_is_seen_with_what_it_inherits(tmp_path: Path) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Harness.open(place, models=ScriptedModel(["one", "two"])) as harness, observe(place) as observer:
            root = await harness.root()
            answer = await root.ask("first")
            await root.ask("second")
            fork = await root.fork(answer.id)
            texts = [entry.text for entry in await observer.entries(fork.id, order="ascending").list()]
            assert texts == ["first", "one"]
            assert [entry.text for entry in (await observer.view(fork.id)).entries] == texts
            with pytest.raises(DurableError, match="no conversation 999"):
                await observer.view(999)

    run(main())


def test_many_commits_between_two_looks_arrive_as_one_publication(tmp_path: Path) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Session.open(place) as session, observe(place) as observer, observer.watch_commits() as commits:
            for number in range(30):
                async with session.commit() as tx:
                    (await tx.doc(Marks)).names.append(str(number))
            names: list[str] = []
            seqs: list[int] = []
            while len(names) < 30:
                publication = (await anext(commits)).value
                (change,) = publication.documents.values()
                assert change.after is not None
                assert change.before is None or apply(change.before.value, change.ops) == change.after.value
                names = change.after.value["names"]
                seqs.append(publication.seq)
            assert seqs == sorted(set(seqs))
            assert seqs[-1] == 30 == observer.last_seq
            assert len(seqs) <= 30

    run(main())


# -- nobody is there -------------------------------------------------------------------------------------------------


def finished(place: str) -> None:
    async def main() -> None:
        async with Harness.open(place, models=ScriptedModel(["done"])) as harness:
            await (await harness.root()).ask("work")

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_nobody_has_open_is_read_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)
    finished(place)
    before = contents(tmp_path)

    async def main() -> None:
        async with observe(place) as observer, observer.watch() as watch:
            assert observer.owner is None
            assert [entry.text for entry in watch.value.entries] == ["work", "done"]
            assert (await observer.inspect()).scheduling == "paused"
            assert contents(tmp_path) == before
            assert len(followers()) == 1
            async with Harness.open(place, models=ScriptedModel(["again"])) as harness:
                await (await harness.root()).ask("more")
                while watch.value.entries[-1].text != "again":
                    await anext(watch)
        assert watch.end is not None
        assert watch.end.reason == "stopped"
        await no_followers()

    run(main())
    # SQLite keeps the log, emptied by the owner, when somebody reads while it closes.
    assert contents(tmp_path).keys() - before.keys() <= {"chat.sqlite-wal", "chat.sqlite-shm"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that can be made read-only for root too."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a folder read-only")
    folder = tmp_path / "folder"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def protect(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def test_a_read_only_folder_can_be_observed(disk: Path) -> None:
    place = str(disk / "chat.sqlite")
    finished(place)
    protect(disk)

    async def main() -> None:
        async with observe(place) as observer:
            assert [entry.text for entry in (await observer.view()).entries] == ["work", "done"]
            assert observer.owner is None

    run(main())
    with pytest.raises(StorageError, match="lock file"):
        finished(place)


def test_what_a_dead_process_left_in_a_read_only_folder(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(disk / "chat.sqlite")

    async def main() -> None:
        async with process(place, "hang") as owner:
            owner.tell("go")
            async with observe(place) as observer, observer.watch() as watch:
                while partial(watch) != "cut off here":
                    await anext(watch)
            owner.kill()
        await asyncio.to_thread(protect, disk)
        async with observe(place) as observer:
            live = (await observer.view()).live
            assert live.generation is not None
            assert live.generation.message is not None
            assert live.generation.message.text == "cut off here"

    run(main())
    # Without the log's index, reading would have to make one.
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    (disk / "chat.sqlite-shm").unlink()
    protect(disk)
    monkeypatch.setattr("pidurable_nb.storage.following.PATIENCE", 0.2)
    assert "observe the copy" in str(refused(place))


def test_a_file_that_may_not_be_read_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = where(tmp_path, "sqlite")
    finished(place)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "may not read it" in str(refused(place))


# -- files that change under it --------------------------------------------------------------------------------------


def test_a_compacted_journal_is_followed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = where(tmp_path, "jsonl")
        async with Session.open(place) as session:
            for number in range(40):
                async with session.commit() as tx:
                    (await tx.doc(Marks)).names = [str(number) * 100]
        monkeypatch.setattr(jsonl, "COMPACT_ABOVE", 0)
        monkeypatch.setattr(jsonl.JsonlStorage, "_is_mostly_superseded", lambda self, size: True)
        journal = tmp_path / "journal" / "journal.jsonl"
        size = journal.stat().st_size
        async with observe(place) as observer, observer.watch_doc(Marks) as marks, Session.open(place) as session:
            assert journal.stat().st_size < size / 2
            async with session.commit() as tx:
                (await tx.doc(Marks)).names = ["after"]
            change = await anext(marks)
            assert change.value is not None
            assert change.value.names == ["after"]
            assert observer.last_seq == 41

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_replaced_ends_the_watches(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        (tmp_path / "other").mkdir()
        place, other = where(tmp_path, kind), where(tmp_path / "other", kind)
        for number, at in enumerate((place, other)):
            async with Session.open(at, clock=lambda: 100.0 + number) as session:  # noqa: B023
                for _ in range(3 - number):
                    async with session.commit() as tx:
                        (await tx.doc(Marks)).names.append("x")
        async with observe(place) as observer, observer.watch_doc(Marks) as marks:
            name = "journal/journal.jsonl" if kind == "jsonl" else "chat.sqlite"
            os.replace(tmp_path / "other" / name, tmp_path / name)
            with pytest.raises(StopAsyncIteration):
                await anext(marks)
            assert marks.end is not None
            assert marks.end.reason == "failed"
            assert "another history" in str(marks.end.error)
            end = await observer.wait_closed()
            assert (end.reason, end.error) == ("failed", marks.end.error)

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_removed_ends_the_watches(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        place = where(tmp_path, kind)
        async with Session.open(place) as session, session.commit() as tx:
            (await tx.doc(Marks)).names.append("x")
        async with observe(place) as observer, observer.watch_doc(Marks) as marks:
            shutil.rmtree(tmp_path / "journal") if kind == "jsonl" else (tmp_path / "chat.sqlite").unlink()
            with pytest.raises(StopAsyncIteration):
                await anext(marks)
            assert "is gone" in str((await observer.wait_closed()).error)

    run(main())


def test_an_owner_of_a_newer_version_ends_the_watches(tmp_path: Path) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Session.open(place) as session, session.commit() as tx:
            (await tx.doc(Marks)).names.append("x")
        async with Session.open(place), observe(place) as observer, observer.watch_doc(Marks) as marks:
            with closing(sqlite3.connect(place)) as newer:
                newer.execute("PRAGMA user_version = 99")
            with pytest.raises(StopAsyncIteration):
                await anext(marks)
            assert isinstance((await observer.wait_closed()).error, SchemaTooNew)

    run(main())


def test_a_session_on_a_network_file_system_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Session.open(place):
            pass
        monkeypatch.setattr("pidurable_nb.storage.lock.network_file_system", lambda path: "nfs4")
        with pytest.warns(StorageWarning, match=r"network file system \(nfs4\).*where its owner works"):
            await (await observe(place)).close()

    run(main())


# -- refusals and the end --------------------------------------------------------------------------------------------


def refused(place: Any) -> BaseException:
    async def main() -> None:
        async with observe(place):
            raise AssertionError("it was observed")

    with pytest.raises(StorageError) as caught:
        asyncio.run(main())
    return caught.value


def test_what_cannot_be_observed_is_refused(tmp_path: Path) -> None:
    assert "in memory cannot be observed" in str(refused(":memory:"))
    assert isinstance(refused(MemoryStorage()), StorageRequestError)
    assert "cannot be observed" in str(refused("postgresql://host/db"))
    assert "names no session" in str(refused(" "))
    assert "does not exist" in str(refused(tmp_path / "missing.sqlite"))
    (tmp_path / "empty").mkdir()
    assert "no session to follow" in str(refused(tmp_path / "empty"))
    (tmp_path / "notes.txt").write_text("these are notes, and no database" * 100)
    found = refused(tmp_path / "notes.txt")
    assert isinstance(found, StorageCorrupt)
    assert "notes.txt is not a session" in str(found)
    assert contents(tmp_path).keys() == {"empty", "notes.txt"}
    asyncio.run(no_followers())


def test_closing_ends_watches_and_calls(tmp_path: Path) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Session.open(place) as session, session.commit() as tx:
            (await tx.doc(Marks)).names.append("x")
        observer = await observe(place)
        async with observer.watch_doc(Marks) as marks:
            await observer.close()
            await observer.close()
            with pytest.raises(StopAsyncIteration):
                await anext(marks)
            assert marks.end is not None
            assert marks.end.reason == "closed"
        for call in (observer.view(), observer.lives(), observer.usage(), observer.inspect(), observer.task(TaskId(1))):
            with pytest.raises(SessionClosed):
                await call
        with pytest.raises(SessionClosed):
            observer.watch()
        assert (await observer.wait_closed()).reason == "closed"
        await no_followers()

    run(main())


def test_an_observer_that_is_thrown_away_ends_its_thread(tmp_path: Path) -> None:
    async def main() -> None:
        place = where(tmp_path, "sqlite")
        async with Session.open(place):
            pass
        observer = await observe(place)
        assert followers()
        del observer
        await eventually(lambda: gc.collect() >= 0 and not followers())

    run(main())


def test_a_file_that_is_still_being_created_is_no_session_yet(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "chat.sqlite"
        async with Harness.open(path, models=ScriptedModel([])):
            pass
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DELETE FROM lives")
            connection.commit()
        with pytest.raises(StorageError, match="no session yet"):
            async with observe(path):
                pass

    run(main())
