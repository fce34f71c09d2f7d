"""Failures of a storage end the session (engine.md, section 15)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Extension, Harness, Phase, Registry, Session, SqliteStorage, Task, TaskRun
from pidurable_nb.errors import SessionFailed, StorageError, StorageRequestError
from pidurable_nb.models import Hang, ScriptedModel
from pidurable_nb.testing import Faults, eventually

from .support import GatedStorage, Notes, bounded, turns


async def write(opened: Session, text: str) -> None:
    async with opened.commit() as tx:
        (await tx.doc(Notes)).items.append(text)


@bounded
async def test_a_commit_error_fails_the_session_and_reopening_recovers(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    reports: list[Any] = []
    storage = GatedStorage(await SqliteStorage.open(path))
    opened = await Session.open(storage, on_report=reports.append)
    await write(opened, "kept")
    error = StorageError("disk on fire")
    storage.fail("commit", error)
    storage.hold()
    writing = [asyncio.create_task(write(opened, text)) for text in ("first", "second", "third")]
    await eventually(lambda: storage.asked == 4)
    storage.release()
    first, *others = await asyncio.gather(*writing, return_exceptions=True)
    assert first is error
    for other in others:
        assert isinstance(other, SessionFailed)
        assert other.__cause__ is error
    end = await opened.wait_closed()
    assert (end.reason, end.error) == ("failed", error)
    for call in (opened.snapshot(Notes), write(opened, "late")):
        with pytest.raises(SessionFailed, match=r"disk on fire.*open it again"):
            await call
    await opened.close()
    assert [(report.kind, report.error) for report in reports] == [("session_failed", error)]
    async with Session.open(await SqliteStorage.open(path)) as again:
        found = await again.snapshot(Notes)
        assert found is not None
        assert found.items[0] == "kept"
        assert "first" not in found.items
        lives = await again.storage.lives()
        assert [life.ended for life in lives] == ["failed", None]
        await write(again, "goes on")


@bounded
async def test_a_read_error_fails_the_session() -> None:
    storage = GatedStorage()
    opened = await Session.open(storage)
    error = StorageError("unreadable")
    storage.fail("find_document", error)
    with pytest.raises(StorageError) as raised:
        await opened.snapshot(Notes)
    assert raised.value is error
    assert (await opened.wait_closed()).error is error


@bounded
async def test_a_read_error_inside_a_commit_fails_it_and_the_session() -> None:
    storage = GatedStorage()
    opened = await Session.open(storage)
    error = StorageError("unreadable")
    storage.fail("find_document", error)
    with pytest.raises(StorageError):
        await write(opened, "lost")
    assert (await opened.wait_closed()).error is error
    assert storage.asked == 0


@bounded
async def test_an_invalid_read_request_and_a_cancelled_read_fail_only_their_call() -> None:
    storage = GatedStorage()
    async with Session.open(storage) as opened:
        storage.fail("find_document", StorageRequestError("no such point"))
        with pytest.raises(StorageRequestError):
            await opened.snapshot(Notes)
        storage.fail("find_document", asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await opened.snapshot(Notes)
        await write(opened, "goes on")


@bounded
async def test_a_raise_in_the_engines_own_listener_fails_the_session_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = await Session.open(GatedStorage())
    error = LookupError("a bug")

    def broken(_publication: object) -> None:
        raise error

    monkeypatch.setattr(opened, "_published", broken)
    with pytest.raises(LookupError):
        await write(opened, "stored")
    assert (await opened.wait_closed()).error is error


@bounded
async def test_a_storage_that_fails_to_close_says_so_and_the_session_has_ended() -> None:
    storage = GatedStorage()
    opened = await Session.open(storage)
    storage.fail("close", StorageError("cannot"))
    with pytest.raises(SessionFailed, match="cannot"):
        await opened.close()
    assert opened.end is not None
    assert opened.end.reason == "failed"
    await opened.close()


@bounded
async def test_a_failed_opening_closes_the_storage(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    for kind in (Session, Harness):
        storage = GatedStorage(await SqliteStorage.open(path))
        storage.fail("scan_tasks", StorageError("unreadable"))
        with pytest.raises(StorageError):
            await kind.open(storage)
    async with Session.open(await SqliteStorage.open(path)):  # its lock is free
        pass


@bounded
async def test_everything_that_waits_ends_when_the_storage_fails() -> None:
    cancelled: list[str] = []

    class Forever(Task[None, None], name="test.forever", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append("task")

    registry = Registry()
    registry.install(Extension("forever", tasks=[Forever]))
    storage = GatedStorage()
    opened = await Harness.open(storage, models=ScriptedModel([Hang()]), registry=registry)
    root = await opened.root()
    async with root.commit() as tx:
        task = await tx.create_task(Forever, None)
    submission = await root.submit("hi")
    await eventually(lambda: len(opened._invocations) == 2)
    async with root.watch() as watch, opened.watch_task_graph() as graph:
        waits = [
            asyncio.create_task(wait)  # type: ignore[arg-type]
            for wait in (
                submission.wait(),
                opened.wait_for_task(task),
                opened.wait_for_idle(),
                root.wait_for_idle(),
            )
        ]
        await turns(10)
        error = StorageError("disk on fire")
        storage.fail("commit", error)
        with pytest.raises(StorageError):
            await root.configure(thinking="high")
        for result in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(result, SessionFailed)
            assert result.__cause__ is error
        for ended in (watch, graph):
            assert [change async for change in ended][-1:] is not None
            assert ended.end is not None
            assert ended.end.reason == "failed"
    assert (await opened.wait_closed()).error is error
    assert cancelled == ["task"]
    with pytest.raises(SessionFailed):
        opened.resume()


@bounded
async def test_a_failure_while_closing_ends_the_session_once() -> None:
    storage = GatedStorage()
    opened = await Harness.open(storage, models=ScriptedModel([Hang()]))
    root = await opened.root()
    await root.submit("hi")
    await eventually(lambda: bool(opened._invocations))
    error = StorageError("disk on fire")
    storage.fail("commit", error)  # the commit that parks what was running
    with pytest.raises(SessionFailed):
        await opened.close()
    assert opened.end is not None
    assert opened.end.error is error


class Step(Task[None, str], name="test.step", version=1):
    class Run(Phase):
        async def run(self, task: TaskRun[None, str]) -> None:
            await task.complete("done")


@bounded
async def test_an_error_in_the_schedulers_own_commits_fails_the_session_and_the_next_opening_goes_on(
    tmp_path: Path,
) -> None:
    registry = Registry()
    registry.install(Extension("step", tasks=[Step]))
    path = str(tmp_path / "s.sqlite")
    error = LookupError("a bug")
    opened = await Harness.open(path, registry=registry)
    root = await opened.root()
    async with root.commit() as tx:
        id = await tx.create_task(Step, None)
    with Faults() as faults:
        faults.fail("commit.ended", error)  # of the commit that reserves the task
        opened.resume()
        assert (await opened.wait_closed()).error is error
    with pytest.raises(SessionFailed):
        await opened.wait_for_task(id)
    async with Harness.open(path, registry=registry) as again:
        record = await again.wait_for_task(id)
        outcome: Any = record.state.outcome  # type: ignore[union-attr]
        assert (outcome.status, outcome.result) == ("completed", "done")


@bounded
async def test_a_callback_for_reports_that_raises_is_not_called_again() -> None:
    called: list[str] = []
    logged: list[Any] = []

    def broken(report: Any) -> None:
        called.append(report.kind)
        raise LookupError("a bug of the host")

    class Faulty(Task[None, None], name="test.faulty", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                raise ValueError("a bug of the task")

    registry = Registry()
    registry.install(Extension("faulty", tasks=[Faulty]))
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: logged.append(context["exception"]))
    async with Harness.open(":memory:", registry=registry, on_report=broken) as opened:
        root = await opened.root()
        for _ in range(3):
            async with root.commit() as tx:
                id = await tx.create_task(Faulty, None)
            record = await opened.wait_for_task(id)
            assert record.state.outcome.status == "faulted"  # type: ignore[union-attr]
        await write(opened, "goes on")
    assert called == ["task_faulted"]
    assert [type(error) for error in logged] == [LookupError]
