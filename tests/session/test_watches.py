"""Watches (engine.md, section 14)."""

from __future__ import annotations

import asyncio

import pytest

from pidurable_nb import Session
from pidurable_nb.errors import DurableError
from pidurable_nb.messages import TextBlock, UserMessage
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.patch import apply
from pidurable_nb.session.watch import MAX_FRAMES

from .support import GatedStorage, Notes, bounded, harness, session, turns


async def write(opened: Session, text: str) -> None:
    async with opened.commit() as tx:
        (await tx.doc(Notes)).text = text


@bounded
async def test_changes_come_one_at_a_time_in_order_and_iteration_can_stop_and_go_on() -> None:
    async with session() as opened:
        await write(opened, "0")
        async with opened.watch_doc(Notes) as watch:
            assert watch.value == Notes(text="0")
            for n in range(1, 6):
                await write(opened, str(n))
            seen = []
            async for change in watch:
                assert watch.value is change.value
                seen.append(change.value.text if change.value else None)
                if len(seen) == 2:
                    break
            assert watch.value == Notes(text="2")
            async for change in watch:
                seen.append(change.value.text if change.value else None)
                if len(seen) == 5:
                    break
            assert seen == ["1", "2", "3", "4", "5"]


@bounded
async def test_more_than_100_waiting_frames_become_one_with_the_newest_value() -> None:
    async with session() as opened:
        await write(opened, "start")
        async with opened.watch_doc(Notes) as watch:
            for n in range(MAX_FRAMES):
                await write(opened, str(n))
            assert len(watch._frames) == MAX_FRAMES
            await write(opened, "newest")
            assert len(watch._frames) == 1
            await write(opened, "one more")
            first, second = await anext(watch), await anext(watch)
            assert first.value == Notes(text="newest")
            assert first.ops == [{"op": "replace", "path": "", "value": Notes(text="newest").model_dump()}]
            assert second.value == Notes(text="one more")


@bounded
async def test_a_commit_does_not_wait_for_a_watcher() -> None:
    async with session() as opened:
        await write(opened, "start")
        async with opened.watch_doc(Notes), opened.watch_commits():
            for n in range(300):
                await write(opened, str(n))


@bounded
async def test_how_a_watch_ends() -> None:
    async with session() as opened:
        await write(opened, "x")
        async with opened.watch_doc(Notes) as stopped:
            assert stopped.end is None
        assert stopped.end is not None
        assert stopped.end.reason == "stopped"
        assert [change async for change in stopped] == []

        ready = asyncio.Event()
        cancelled = opened.watch_doc(Notes)

        async def follow() -> None:
            async with cancelled:
                ready.set()
                async for _ in cancelled:
                    pass

        task = asyncio.create_task(follow())
        await ready.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert cancelled.end is not None
        assert cancelled.end.reason == "cancelled"

        with pytest.raises(DurableError, match="not attached"):
            await anext(opened.watch_doc(Notes))
        assert opened._watches == {}


@bounded
async def test_a_failure_ends_watches_after_what_was_handed_over() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        await write(opened, "x")
        async with opened.watch_doc(Notes) as watch:
            await write(opened, "y")
            error = RuntimeError("disk on fire")
            storage.fail("commit", error)
            with pytest.raises(RuntimeError):
                await write(opened, "z")
            assert [change.value async for change in watch] == [Notes(text="y")]
            assert watch.end is not None
            assert watch.end.reason == "failed"
            assert watch.end.error is error


@bounded
async def test_an_error_in_handing_over_ends_that_watch_alone() -> None:
    class Narrow(Notes, kind="test.notes", scope="session"):
        text: int = 0  # type: ignore[assignment]

    async with session() as opened:
        await write(opened, "1")
        async with opened.watch_doc(Narrow) as narrow, opened.watch_doc(Notes) as wide:
            await write(opened, "not a number")
            assert [change async for change in narrow] == []
            assert narrow.end is not None
            assert narrow.end.reason == "failed"
            assert (await anext(wide)).value == Notes(text="not a number")


@bounded
async def test_nothing_is_seen_before_it_is_stored() -> None:
    storage = GatedStorage()
    async with session(storage) as opened:
        await write(opened, "x")
        async with opened.watch_doc(Notes) as watch, opened.watch_commits() as commits:
            storage.hold()
            writing = asyncio.create_task(write(opened, "y"))
            await turns(20)
            assert not watch._frames
            assert not commits._frames
            storage.release()
            await writing
            assert (await anext(watch)).value == Notes(text="y")
            assert (await anext(commits)).value.seq == storage.last_seq


@bounded
async def test_the_frames_of_a_conversation_view_lead_from_one_to_the_next() -> None:
    model = ScriptedModel([Reply("a longer answer " * 20, thinking="hm"), "second"])
    async with harness(models=model) as opened:
        root = await opened.root()
        async with root.watch() as watch:
            value = watch.value.to_data()
            for text in ("one", "two"):
                await (await root.submit(text)).wait()
                async with root.commit() as tx:
                    await tx.append_entry("app.note", messages=[UserMessage([TextBlock("note")])], head="self")
            await root.configure(thinking="high")
            while watch._frames:
                change = await anext(watch)
                value = apply(value, change.ops)
                assert value == change.value.to_data()
            assert watch.value == await root.view()
            assert [entry.kind for entry in watch.value.entries] == ["app.note"]
