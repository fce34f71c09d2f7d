"""Work that a newer version stored: it waits, and aborting it says why it cannot run (engine.md, sections 9 and 12)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pidurable_nb import Extension, Harness, Registry, SqliteStorage, tool
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.records import outcome_of_task
from pidurable_nb.storage import PutTask
from pidurable_nb.testing import eventually


def test_a_turn_stored_by_a_newer_version_is_blocked_and_its_input_hears_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "s.sqlite"
        model = ScriptedModel(lambda _request: Hang("half"))
        harness = await Harness.open(path, models=model)
        submission = await (await harness.root()).submit("hi")
        await eventually(lambda: len(model.requests) == 1)
        await harness.close()

        storage = await SqliteStorage.open(path)
        (task,) = (await storage.scan_tasks(kind="pi.generation")).items
        await storage.commit([PutTask(task.replaced(version=99))])
        await storage.close()

        harness = await Harness.open(path, models=model)
        root = await harness.root()
        harness.resume()
        node = (await harness.task_graph()).tasks[task.id]
        assert node.blocked == "task_too_old"
        await root.abort()
        found = await harness.submission(submission.id)
        assert found is not None
        record = await found.status()
        assert (record.status, record.reason) == ("unanswered", "task_too_old")
        assert (await root.view()).live.run is None
        await harness.close()

    asyncio.run(main())


def test_a_call_stored_by_a_newer_version_gives_the_model_its_one_result_when_it_is_aborted(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "s.sqlite"
        started = asyncio.Event()

        @tool
        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        registry = Registry()
        registry.install(Extension("tools", tools=[work]))
        model = ScriptedModel([Reply(tool_calls=[ToolCall(id="c", name="work", arguments={})]), "went on"])
        harness = await Harness.open(path, models=model, registry=registry)
        submission = await (await harness.root()).submit("hi")
        await started.wait()
        await harness.close()

        storage = await SqliteStorage.open(path)
        (task,) = (await storage.scan_tasks(kind="pi.tool")).items
        await storage.commit([PutTask(task.replaced(version=99))])
        await storage.close()

        async with Harness.open(path, models=model, registry=registry) as harness:
            root = await harness.root()
            harness.resume()
            assert (await harness.task_graph()).tasks[task.id].blocked == "task_too_old"
            assert await harness.abort_task(task.id) in ("marked", "terminal")
            record = await harness.wait_for_task(task.id)
            outcome = outcome_of_task(record)
            assert outcome is not None
            assert outcome.status == "orphaned"
            found = await harness.submission(submission.id)
            assert found is not None
            assert (await found.wait()).status == "done"  # the run goes on
            [result] = [entry async for entry in root.entries() if entry.kind == "pi.tool-result"]
            assert (result.by_task, result.data) == (None, {"diagnostics": [], "code": "aborted"})
            assert model.requests[-1].messages[-1].is_error

    asyncio.run(main())
