"""A turn that a newer version of the package stored: it waits, and aborting it says why it cannot run (section 9)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pidurable_nb import Harness, SqliteStorage
from pidurable_nb.models import Hang, ScriptedModel
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
