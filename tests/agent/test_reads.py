"""What is read from storage, and that looking writes nothing (engine.md, sections 5 and 14)."""

from __future__ import annotations

from pathlib import Path

from pidurable_nb import Harness, LiveState, UsageState
from pidurable_nb.models import ScriptedModel
from pidurable_nb.testing import Faults

from .support import bounded


@bounded
async def test_a_turn_reads_nothing_of_the_history_before_it(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: f"answer {len(request.messages)}")
    async with Harness.open(str(tmp_path / "s.sqlite"), models=model) as harness:
        root = await harness.root()
        await root.ask("first")
        with Faults() as faults:
            for number in range(8):
                before = faults.reached["read.called"]
                assert (await root.ask(f"question {number}")).text == f"answer {2 * number + 3}"
                # The settled submission and the answer, which `ask` returns: the same however long the history is.
                assert faults.reached["read.called"] - before <= 2
            assert faults.reached["commit.sealed"] >= 16


@bounded
async def test_looking_writes_nothing(tmp_path: Path) -> None:
    async with Harness.open(str(tmp_path / "s.sqlite"), models=ScriptedModel(["hello"])) as harness:
        root = await harness.root()
        await root.ask("hi")
        with Faults() as faults:
            await harness.inspect()
            await harness.task_graph()
            await harness.usage()
            await root.view()
            await root.context()
            await harness.snapshot(LiveState, root.id)
            await harness.snapshot(UsageState, root.id)
            await harness.tasks().list()
            await root.entries().list()
            async with root.watch(), harness.watch_task_graph(), harness.watch_commits():
                pass
            harness.wake()
        assert faults.reached["commit.sealed"] == faults.reached["store.called"] == 0
