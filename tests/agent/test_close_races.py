"""A close at any moment of a turn stops it, and is never taken for an error of its code (engine.md, section 7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pidurable_nb import Harness
from pidurable_nb.models import Hang, ScriptedModel


def test_a_close_after_any_number_of_steps_leaves_the_turn_to_the_next_opening(tmp_path: Path) -> None:
    async def closed_after(steps: int) -> None:
        path = tmp_path / f"{steps}.sqlite"
        reports: list[object] = []
        model = ScriptedModel(lambda _request: Hang("one"))
        harness = await Harness.open(path, models=model, on_report=reports.append)
        submission = await (await harness.root()).submit("hi")
        for _ in range(steps):
            await asyncio.sleep(0)
        await harness.close()
        harness = await Harness.open(path, models=model, on_report=reports.append)
        found = await harness.submission(submission.id)
        assert found is not None
        assert (await found.status()).status == "placed", f"closed after {steps} steps"
        assert reports == []
        await harness.close()

    async def main() -> None:
        for round_ in range(3):
            for steps in range(round_, 45, 3):
                await closed_after(steps)

    asyncio.run(main())
