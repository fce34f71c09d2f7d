"""Something goes wrong at each step of a session's life (engine.md, sections 1.2, 3, 15 and 16).

Each point where an error can arise has its row in ``EFFECTS``. The death of the process at each of them is tested by
the crash sweep (``tests/testing/test_crash_sweep.py``).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest

from pidurable_nb import Session, observe, open_storage
from pidurable_nb.errors import SessionClosed, SessionFailed, SessionInUse, StorageError
from pidurable_nb.faults import POINTS
from pidurable_nb.testing import Faults, eventually

from .support import Notes, Todos, bounded

Effect = Literal["opening", "caller", "nothing stored", "stored", "read", "close", "backup", "observer"]

EFFECTS: dict[str, Effect] = {
    "open.lock": "opening",
    "open.file": "opening",
    "open.life": "opening",
    "open.stored": "opening",
    "open.load": "opening",
    "commit.line": "caller",
    "commit.ended": "caller",
    "commit.sealed": "nothing stored",
    "store.called": "nothing stored",
    "store.begun": "nothing stored",
    "store.written": "nothing stored",
    "commit.stored": "stored",
    "commit.adopted": "stored",
    "commit.published": "stored",
    "read.document": "read",
    "read.called": "read",
    "follow.look": "observer",
    "backup.copied": "backup",
    "close.begun": "close",
    "close.end": "close",
    "close.done": "close",
}

KINDS = ["sqlite", "jsonl"]


def points(*effects: Effect) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("point", [point for point, effect in EFFECTS.items() if effect in effects])


def where(folder: Path, kind: str) -> str:
    return f"jsonl:{folder / 'journal'}" if kind == "jsonl" else str(folder / "s.sqlite")


async def opened(place: str, reports: list[Any] | None = None) -> Session:
    return await Session.open(place, on_report=(reports if reports is not None else []).append)


async def write(session: Session, text: str) -> None:
    async with session.commit() as tx:
        (await tx.doc(Notes)).items.append(text)


async def notes(session: Session) -> list[str]:
    found = await session.snapshot(Notes)
    return [] if found is None else found.items


async def goes_on(place: str, expected: list[str], ended: list[str | None]) -> None:
    """The next opening has what is expected, and works."""
    async with Session.open(place) as again:
        assert await notes(again) == expected
        assert [life.ended for life in await again.storage.lives()] == [*ended, None]
        await write(again, "goes on")
        assert await notes(again) == [*expected, "goes on"]


def test_each_point_where_an_error_can_arise_has_its_effect() -> None:
    assert list(EFFECTS) == [point for point, spec in POINTS.items() if spec.can_fail]


@pytest.mark.parametrize("kind", KINDS)
@points("opening")
@bounded
async def test_an_opening_that_fails_owns_nothing(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    error = StorageError("disk on fire")
    with Faults() as faults:
        faults.fail(point, error)
        with pytest.raises(StorageError) as raised:
            await opened(place)
        assert raised.value is error
        if point in ("open.lock", "open.file"):
            assert os.listdir(tmp_path) == []  # a session that has not begun leaves nothing behind
        async with Session.open(place) as session:  # at once, in the same process
            await write(session, "kept")
        if point != "open.file":  # a file that is there is not made again
            faults.fail(point, error)
            with pytest.raises(StorageError):
                await opened(place)
    async with Session.open(place) as session:
        assert await notes(session) == ["kept"]


@pytest.mark.parametrize("kind", KINDS)
@points("caller")
@bounded
async def test_before_a_commit_is_sealed_only_its_caller_fails(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    reports: list[Any] = []
    with Faults() as faults:
        async with Session.open(place, on_report=reports.append) as session:
            await write(session, "kept")
            async with session.watch_doc(Notes) as watch:
                before = session.storage.last_seq
                faults.fail(point, LookupError("a bug"))
                with pytest.raises(LookupError):
                    await write(session, "lost")
                assert await notes(session) == ["kept"]
                assert session.storage.last_seq == before
                await write(session, "goes on")  # the line is free
                change = await anext(watch)
                assert change.value is not None
                assert change.value.items == ["kept", "goes on"]
        assert reports == []


@pytest.mark.parametrize("kind", KINDS)
@points("nothing stored", "stored")
@bounded
async def test_after_it_the_session_fails_and_nobody_saw_what_is_not_stored(
    tmp_path: Path, point: str, kind: str
) -> None:
    place = where(tmp_path, kind)
    reports: list[Any] = []
    session = await opened(place, reports)
    await write(session, "kept")
    error = StorageError("disk on fire")
    seen: list[list[str]] = []
    with Faults() as faults:
        async with session.watch_doc(Notes) as watch:
            # Of a group that cannot be stored each commit is tried alone, which a passing error would not show.
            faults.fail(point, error, times=None if point.startswith("store.") else 1)
            writing = [asyncio.create_task(write(session, text)) for text in ("first", "second", "third")]
            first, *others = await asyncio.gather(*writing, return_exceptions=True)
            async for change in watch:
                assert change.value is not None
                seen.append(change.value.items)
            assert watch.end is not None
            assert (watch.end.reason, watch.end.error) == ("failed", error)
    assert first is error
    for other in others:
        assert isinstance(other, SessionFailed)
        assert other.__cause__ is error
    end = await session.wait_closed()
    assert (end.reason, end.error) == ("failed", error)
    for call in (session.snapshot(Notes), write(session, "late")):
        with pytest.raises(SessionFailed, match=r"disk on fire.*open it again") as raised:
            await call
        assert raised.value.__cause__ is error
    await session.close()
    assert [(report.kind, report.error) for report in reports] == [("session_failed", error)]
    async with Session.open(place) as again:
        stored = await notes(again)
        assert all(value == stored[: len(value)] for value in seen)
        # Commits whose bodies ran ahead may have reached storage in the same transaction; never without the first.
        assert stored == ["kept", "first", "second", "third"][: len(stored)]
        assert (len(stored) > 1) == (EFFECTS[point] == "stored")
        assert seen == ([["kept", "first"]] if point == "commit.published" else [])
        await write(again, "goes on")


@pytest.mark.parametrize("kind", KINDS)
@points("read")
@bounded
async def test_a_read_that_fails_ends_the_session(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    session = await opened(place)
    await write(session, "kept")
    error = StorageError("unreadable")
    with Faults() as faults:
        faults.fail(point, error)
        with pytest.raises(StorageError) as raised:
            await session.snapshot(Todos, 1)
        assert raised.value is error
    assert (await session.wait_closed()).error is error
    await goes_on(place, ["kept"], ["failed"])


@pytest.mark.parametrize("kind", KINDS)
@points("close")
@bounded
async def test_a_close_that_fails_says_so_and_the_session_has_ended(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    session = await opened(place)
    await write(session, "kept")
    error = StorageError("disk on fire")
    with Faults() as faults:
        faults.fail(point, error)
        with pytest.raises(SessionFailed, match="disk on fire") as raised:
            await session.close()
        assert raised.value.__cause__ is error
    assert session.end is not None
    assert (session.end.reason, session.end.error) == ("failed", error)
    await session.close()
    ended = {"close.begun": "failed", "close.end": None, "close.done": "closed"}[point]
    await goes_on(place, ["kept"], [ended])


@pytest.mark.parametrize("kind", KINDS)
@bounded
async def test_a_backup_that_fails_fails_alone_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)
    async with Session.open(place) as session:
        await write(session, "kept")
        before = sorted(os.listdir(tmp_path))
        with Faults() as faults:
            faults.fail("backup.copied", OSError(28, "No space left on device"))
            with pytest.raises(StorageError, match=r"backup.*No space left"):
                await session.storage.backup(tmp_path / "copy")
        assert sorted(os.listdir(tmp_path)) == before
        await write(session, "more")
        await session.storage.backup(tmp_path / "copy")
    async with Session.open(str(tmp_path / "copy")) as copy:
        assert await notes(copy) == ["kept", "more"]


@pytest.mark.parametrize("kind", KINDS)
@bounded
async def test_an_observer_tries_again_what_may_pass_and_its_end_is_not_the_owners(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)
    async with Session.open(place) as session:
        await write(session, "first")
        async with observe(place) as observer, observer.watch_doc(Notes) as watch:
            with Faults() as faults:
                faults.fail("follow.look", sqlite3.OperationalError("database is locked"), times=3)
                await write(session, "second")
                change = await anext(watch)
                assert change.value is not None
                assert change.value.items == ["first", "second"]
                assert faults.reached["follow.look"] >= 4
                error = StorageError("disk on fire")
                faults.fail("follow.look", error)
                await write(session, "third")
                assert [change async for change in watch] == []
            assert watch.end is not None
            assert (watch.end.reason, watch.end.error) == ("failed", error)
            assert (await observer.wait_closed()).error is error
        await write(session, "goes on")
        assert await notes(session) == ["first", "second", "third", "goes on"]


# -- threads that stand still ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["store.begun", "store.written", "store.done"])
@bounded
async def test_nothing_is_observable_while_a_commit_is_on_its_way(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    async with Session.open(place) as session:
        await write(session, "first")
        with Faults() as faults:
            hold = faults.hold(point)
            async with session.watch_doc(Notes) as watch, observe(place) as observer:
                writing = asyncio.create_task(write(session, "second"))
                await hold.until_reached()
                assert not writing.done()
                assert await notes(session) == ["first"]
                assert not watch._frames
                outside = await observer.snapshot(Notes)
                assert outside is not None
                assert outside.items == (["first", "second"] if point == "store.done" else ["first"])
                writing.cancel()  # too late: the commit lands, then the caller sees it
                hold.release()
                with pytest.raises(asyncio.CancelledError):
                    await writing
                change = await anext(watch)
                assert change.value is not None
                assert change.value.items == await notes(session) == ["first", "second"]


@pytest.mark.parametrize("kind", KINDS)
@bounded
async def test_a_read_that_is_cancelled_while_it_is_under_way_fails_alone(tmp_path: Path, kind: str) -> None:
    async with Session.open(where(tmp_path, kind)) as session:
        await write(session, "kept")
        with Faults() as faults:
            hold = faults.hold("read.called")
            reading = asyncio.create_task(session.snapshot(Todos, 1))
            await hold.until_reached()
            reading.cancel()
            hold.release()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await write(session, "goes on")
        assert await session.snapshot(Todos, 1) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["close.end", "close.done"])
@bounded
async def test_the_lock_is_held_to_the_end_of_a_close(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    session = await opened(place)
    await write(session, "kept")
    with Faults() as faults:
        hold = faults.hold(point)
        closing = asyncio.create_task(session.close())
        await hold.until_reached()
        with pytest.raises(SessionInUse, match="is in use by this process"):
            await open_storage(place)
        with pytest.raises(SessionClosed, match="closing"):
            await write(session, "late")
        assert not closing.done()
        hold.release()
        await closing
    await goes_on(place, ["kept"], ["closed"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", [point for point in EFFECTS if point.startswith("open.") and point != "open.load"])
@bounded
async def test_an_opening_that_is_cancelled_lets_go_when_it_can(tmp_path: Path, point: str, kind: str) -> None:
    place = where(tmp_path, kind)
    with Faults() as faults:
        hold = faults.hold(point)
        opening = asyncio.create_task(open_storage(place))
        await hold.until_reached()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        hold.release()

        async def again() -> bool:
            try:
                await (await open_storage(place)).close()
            except SessionInUse:
                return False
            return True

        await eventually(again)
