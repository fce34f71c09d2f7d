"""The commit line (engine.md, sections 1 and 3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import MemoryStorage, Session, SqliteStorage
from pidurable_nb.errors import (
    CommitReentered,
    DurableError,
    InvalidDocument,
    InvalidValue,
    ReadAfterWrite,
    SessionClosed,
    TransactionClosed,
)
from pidurable_nb.messages import TextBlock, UserMessage
from pidurable_nb.testing import eventually

from .support import GatedStorage, Notes, bounded, harness, session, stored, turns


async def conversation(opened: Session) -> Any:
    async with opened.commit() as tx:
        return (await tx.create_conversation()).id


@bounded
async def test_a_commit_stores_everything_or_nothing() -> None:
    storage = MemoryStorage()
    async with session(storage) as opened:
        home = await conversation(opened)
        before = storage.last_seq
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with opened.commit() as tx:
                await tx.append_entry("app.note", conversation=home, data=1)
                (await tx.doc(Notes)).items.append("lost")
                await tx.create_conversation()
                raise ZeroDivisionError
        assert storage.last_seq == before
        assert await opened.snapshot(Notes) is None
        assert (await storage.scan_entries()).items == []
        async with opened.commit() as tx:
            entry = await tx.append_entry("app.note", conversation=home, data=2)
            (await tx.doc(Notes)).items.append("kept")
        assert storage.last_seq == before + 1
        assert (await storage.entry(entry.id)) == entry
        assert (await stored(storage, "test.notes"))["items"] == ["kept"]


@bounded
async def test_a_commit_that_changes_nothing_stores_nothing() -> None:
    storage = MemoryStorage()
    async with session(storage) as opened, opened.watch_commits() as commits:
        async with opened.commit() as tx:
            await tx.doc(Notes)
        before = storage.last_seq
        async with opened.commit() as tx:
            notes = await tx.doc(Notes)
            notes.items.append("x")
            notes.items.pop()
        async with opened.commit():
            pass
        assert storage.last_seq == before
        change = await anext(commits)
        assert change.value.seq == before
        assert not commits._frames


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), {1: 2}, object(), "\ud800", {"a": {"b": [b"x"]}}])
@bounded
async def test_what_cannot_be_encoded_fails_its_caller_and_nothing_else(bad: Any) -> None:
    storage = MemoryStorage()
    async with session(storage) as opened:
        home = await conversation(opened)
        before = storage.last_seq
        with pytest.raises(InvalidValue, match=r"\$"):  # noqa: PT012
            async with opened.commit() as tx:
                (await tx.doc(Notes)).items.append("lost")
                await tx.append_entry("app.note", conversation=home, data={"deep": [bad]})
        with pytest.raises(InvalidDocument, match=r"\$\.extra\.deep"):  # noqa: PT012
            async with opened.commit() as tx:
                await tx.append_entry("app.note", conversation=home)
                (await tx.doc(Notes)).extra["deep"] = bad
        assert storage.last_seq == before
        assert (await storage.scan_entries()).items == []
        async with opened.commit() as tx:
            (await tx.doc(Notes)).items.append("fine")


@bounded
async def test_a_message_that_cannot_be_encoded_fails_before_the_commit_is_sealed() -> None:
    storage = MemoryStorage()
    async with session(storage) as opened:
        home = await conversation(opened)
        before = storage.last_seq
        with pytest.raises(InvalidValue):  # noqa: PT012
            async with opened.commit() as tx:
                (await tx.doc(Notes)).items.append("lost")
                await tx.append_entry("app.note", conversation=home, messages=[UserMessage([TextBlock("\ud800")])])
        assert storage.last_seq == before
        assert await opened.snapshot(Notes) is None


@bounded
async def test_a_commit_inside_a_commit_raises_and_names_the_outer_place() -> None:
    async with session() as opened:
        async with opened.commit():
            with pytest.raises(CommitReentered, match=r"test_commit_line\.py:\d+"):
                async with opened.commit():
                    pass
            for attempt in (
                asyncio.gather(opened.snapshot(Notes)),
                asyncio.wait_for(opened.snapshot(Notes), 1),
                asyncio.create_task(opened.snapshot(Notes)),
                opened.close(),
            ):
                with pytest.raises(CommitReentered):
                    await attempt
            with pytest.raises(CommitReentered):
                async with opened.watch_doc(Notes):
                    pass
        await opened.snapshot(Notes)  # after the block it is allowed again


@bounded
async def test_two_sessions_do_not_reenter_each_other() -> None:
    async with session() as one, session() as other:
        async with one.commit() as tx:
            (await tx.doc(Notes)).text = "one"
            async with other.commit() as inner:
                (await inner.doc(Notes)).text = "other"
            with pytest.raises(CommitReentered):  # the outer commit is still open
                await one.snapshot(Notes)
        found = [await opened.snapshot(Notes) for opened in (one, other)]
        assert [notes.text for notes in found if notes is not None] == ["one", "other"]


@bounded
async def test_work_that_a_body_started_may_commit_once_the_body_has_ended() -> None:
    async with session() as opened:
        go = asyncio.Event()

        async def later() -> None:
            await go.wait()
            async with opened.commit() as tx:
                (await tx.doc(Notes)).text = "later"

        async with opened.commit():
            task = asyncio.create_task(later())
        go.set()
        await task
        found = await opened.snapshot(Notes)
        assert found is not None
        assert found.text == "later"


@bounded
async def test_a_transaction_and_its_drafts_end_with_the_block() -> None:
    async with session() as opened:
        home = await conversation(opened)
        async with opened.commit() as tx:
            draft = await tx.doc(Notes)
            items = draft.items
            scan = tx.scan_tasks()
        for use in (
            tx.conversation(home),
            tx.entry(1),
            tx.task(1),
            tx.submission(1),
            tx.submission_by_request(home, "x"),
            scan.list(),
            tx.scan_conversations().first(),
            tx.create_conversation(),
            tx.fork_conversation(home, 1),  # type: ignore[arg-type]
            tx.append_entry("app.note", conversation=home),
            tx.create_task(object(), None, conversation=home),  # type: ignore[arg-type]
            tx.configure(home),
            tx.doc(Notes),
            tx.retire_doc(Notes),
        ):
            with pytest.raises(TransactionClosed):
                await use
        with pytest.raises(TransactionClosed, match="items"):
            draft.items.append("lost")
        with pytest.raises(TransactionClosed):
            draft.text = "lost"
        with pytest.raises(TransactionClosed):
            draft.model_dump()
        assert "ended" in repr(draft)
        items.append("a plain list is detached, and harms nothing")
        found = await opened.snapshot(Notes)
        assert found is not None
        assert found.items == []


@bounded
async def test_a_rolled_back_transaction_is_closed_too() -> None:
    async with session() as opened:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with opened.commit() as tx:
                draft = await tx.doc(Notes)
                raise ZeroDivisionError
        with pytest.raises(TransactionClosed):
            _ = draft.items
        with pytest.raises(TransactionClosed):
            await tx.doc(Notes)


@bounded
async def test_scans_come_before_the_first_table_write_and_look_ups_see_staged_writes() -> None:
    async with session() as opened:
        home = await conversation(opened)
        async with opened.commit() as tx:
            (await tx.doc(Notes)).text = "documents do not count as table writes"
            assert [record.id for record in await tx.scan_conversations().list()] == [home]
            entry = await tx.append_entry("app.note", conversation=home)
            assert await tx.entry(entry.id) == entry
            made = await tx.create_conversation()
            assert await tx.conversation(made.id) == made
            for scan in (
                tx.scan_conversations(),
                tx.scan_entries(conversation=home),
                tx.scan_tasks(),
                tx.scan_submissions(),
            ):
                with pytest.raises(ReadAfterWrite):
                    await scan.first()
            (await tx.doc(Notes)).text = "and may follow at any time"


@bounded
async def test_a_caller_that_is_cancelled_after_admission_gets_its_cancellation_when_the_commit_has_landed() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        storage.hold()

        async def write() -> None:
            async with opened.commit() as tx:
                (await tx.doc(Notes)).text = "landed"

        task = asyncio.create_task(write())
        await eventually(lambda: storage.asked == 1)
        task.cancel()
        await turns()
        task.cancel()
        await turns()
        assert not task.done()
        storage.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = await opened.snapshot(Notes)
        assert found is not None
        assert found.text == "landed"


@bounded
async def test_a_caller_that_is_cancelled_before_admission_leaves_no_trace() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        inside = asyncio.Event()

        async def in_the_body() -> None:
            async with opened.commit() as tx:
                (await tx.doc(Notes)).text = "lost"
                inside.set()
                await asyncio.Event().wait()

        async def in_the_queue() -> None:
            async with opened.commit() as tx:
                (await tx.doc(Notes)).text = "lost too"

        first = asyncio.create_task(in_the_body())
        await inside.wait()
        second = asyncio.create_task(in_the_queue())
        await turns()
        second.cancel()
        first.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(first, second, return_exceptions=True)
        )
        assert storage.asked == 0
        async with opened.commit() as tx:  # the line is free
            assert (await tx.doc(Notes)).text == ""


@bounded
async def test_bodies_run_ahead_on_sealed_state_and_nothing_escapes_before_it_is_stored() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        home = await conversation(opened)
        storage.hold()
        seen: list[str] = []

        async def first() -> Any:
            async with opened.commit() as tx:
                (await tx.doc(Notes)).text = "first"
                entry = await tx.append_entry("app.note", conversation=home)
            seen.append("first returned")
            return entry.id

        async def second() -> None:
            async with opened.commit() as tx:
                notes = await tx.doc(Notes)
                seen.append(f"second reads {notes.text}")
                notes.text = "second"
            seen.append("second returned")

        async def reader() -> str:
            async with opened.commit() as tx:
                text = (await tx.doc(Notes)).text
                seen.append(f"reader reads {text}")
            seen.append("reader returned")
            return text

        async def refused() -> None:
            async with opened.commit() as tx:
                text = (await tx.doc(Notes)).text
                raise DurableError(f"busy since {text}")

        async with opened.watch_commits() as commits:
            tasks = [asyncio.create_task(work()) for work in (first, second, reader, refused)]
            await eventually(lambda: len(seen) == 2)
            await turns(20)
            assert seen == ["second reads first", "reader reads second"]
            assert not any(task.done() for task in tasks)
            assert storage.asked == 3  # the conversation's, and two that wait
            assert await opened.snapshot(Notes) is None
            assert not commits._frames
            storage.release()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[3], DurableError)
            assert str(results[3]) == "busy since second"
            assert results[2] == "second"
            assert (await anext(commits)).value.entries.keys() == {results[0]}
            assert (await anext(commits)).value.seq == storage.last_seq


@bounded
async def test_a_scan_in_a_transaction_sees_commits_that_were_sealed_before() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        storage.hold()
        making = asyncio.create_task(conversation(opened))
        await eventually(lambda: storage.asked == 1)

        async def count() -> int:
            async with opened.commit() as tx:
                return len(await tx.scan_conversations().list())

        counting = asyncio.create_task(count())
        await turns()
        storage.release()
        await making
        assert await counting == 1


@bounded
async def test_a_body_that_raises_what_it_read_from_a_commit_that_then_fails_gets_the_failure() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        storage.hold()
        storage.fail("commit", RuntimeError("disk on fire"))

        async def write() -> None:
            async with opened.commit() as tx:
                (await tx.doc(Notes)).text = "never stored"

        async def read() -> None:
            async with opened.commit() as tx:
                raise LookupError((await tx.doc(Notes)).text)

        tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
        await eventually(lambda: storage.asked == 1)
        await turns()
        storage.release()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], RuntimeError)
        assert "disk on fire" in str(results[1])
        assert not isinstance(results[1], LookupError)


@bounded
async def test_ids_of_all_kinds_grow_and_are_never_given_twice(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        async with session(await SqliteStorage.open(tmp_path / "s.sqlite")) as opened:
            for _ in range(3):
                async with opened.commit() as tx:
                    home = await tx.create_conversation()
                    entry = await tx.append_entry("app.note", conversation=home.id)
                    seen += [home.id, entry.id]
    assert seen == sorted(set(seen))


@bounded
async def test_reserved_names_are_refused() -> None:
    async with session() as opened:
        home = await conversation(opened)
        async with opened.commit() as tx:
            with pytest.raises(ValueError, match="belongs to the engine"):
                await tx.append_entry("pi.user", conversation=home)
            with pytest.raises(ValueError, match="needs a name"):
                await tx.append_entry("", conversation=home)
            with pytest.raises(DurableError, match="no entry"):
                await tx.append_entry("app.note", conversation=home, head=999)  # type: ignore[arg-type]
            with pytest.raises(DurableError, match="no entry"):
                await tx.append_entry("app.note", conversation=home, edits=[{"target": 999}])
            with pytest.raises(ValueError, match="pass conversation="):
                await tx.append_entry("app.note")


@bounded
async def test_after_close_everything_says_so() -> None:
    opened = await Session.open(MemoryStorage())
    async with opened.commit() as tx:
        await tx.doc(Notes)
    async with opened.watch_doc(Notes) as watch:
        await opened.close()
        assert [change async for change in watch] == []
        assert watch.end is not None
        assert watch.end.reason == "closed"
    await opened.close()
    assert opened.end is not None
    assert opened.end.reason == "closed"
    assert await opened.wait_closed() == opened.end
    with pytest.raises(SessionClosed):
        opened.commit()
    with pytest.raises(SessionClosed):
        await opened.snapshot(Notes)
    with pytest.raises(SessionClosed):
        opened.watch_doc(Notes)


@bounded
async def test_close_lets_commits_that_were_admitted_land(tmp_path: Path) -> None:
    storage = GatedStorage(await SqliteStorage.open(tmp_path / "s.sqlite"))
    opened = await Session.open(storage)
    storage.hold()

    async def write(text: str) -> None:
        async with opened.commit() as tx:
            (await tx.doc(Notes)).items.append(text)

    writing = [asyncio.create_task(write(text)) for text in "ab"]
    await eventually(lambda: storage.asked == 2)
    closing = asyncio.create_task(opened.close())
    await turns()
    assert not closing.done()
    storage.release()
    await asyncio.gather(*writing, closing)
    async with session(await SqliteStorage.open(tmp_path / "s.sqlite")) as opened:
        found = await opened.snapshot(Notes)
        assert found is not None
        assert found.items == ["a", "b"]


@bounded
async def test_concurrent_committers_lose_nothing() -> None:
    async with harness() as opened:

        async def add(name: str) -> None:
            for _ in range(10):
                async with opened.commit() as tx:
                    (await tx.doc(Notes)).items.append(name)

        await asyncio.gather(*(add(name) for name in "abcdefgh"))
        found = await opened.snapshot(Notes)
        assert found is not None
        assert sorted(found.items) == sorted("abcdefgh" * 10)
