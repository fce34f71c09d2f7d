"""A close, or an error of the storage, at every commit of a turn: nothing is lost, nothing unsafe runs twice.

See engine.md, sections 7 and 15. The death of the process at every commit is tested by the crash sweep.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Harness, Phase, ProgressPolicy, Settings, SqliteStorage, Task, TaskRun, ToolContext, tool
from pidurable_nb.errors import DurableError, SessionFailed, StorageError
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.records import Attempt, outcome_of_task
from pidurable_nb.testing import Faults, check_stored
from pidurable_nb.testing.validation import Stored

from .support import Chat, bounded, calls

ERROR = StorageError("disk on fire")


class Turn:
    """One turn with a slow answer and two tools, ended at one commit and gone on with in a second opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: list[str] = []
        self.requests = 0
        self.chat = Chat()
        self.chat.settings = Settings(progress=ProgressPolicy(partial_interval=0.001, output_interval=0.001))
        self.chat.models = ScriptedModel([self._calls, self._answer], by="transcript")

        @tool(replay="safe")
        async def safe(ctx: ToolContext) -> str:
            await ctx.output("working")
            self.done.append("safe")
            return "safe result"

        @tool
        async def unsafe(ctx: ToolContext) -> str:
            self.done.append("unsafe")
            await ctx.output("working")
            return "unsafe result"

        self.chat.install(safe, unsafe)

    def _calls(self, _request: Any) -> Any:
        self.requests += 1
        return Reply("let me see", tool_calls=calls("safe", "unsafe").tool_calls, tokens_per_second=2000)

    def _answer(self, _request: Any) -> Any:
        self.requests += 1
        return Reply("the answer " * 10, tokens_per_second=2000)

    async def run(self, at: int | None, point: str | None = None) -> tuple[Counter[str], str | None]:
        """Run to the end, to a close at a commit, or to an error at a point: what was reached, and how the input ended.

        ``at`` is the commit, or how often the point is reached before.
        """
        harness = await Harness.open(
            str(self.path), models=self.chat.models, registry=self.chat.registry, settings=self.chat.settings
        )
        closing: list[asyncio.Task[None]] = []

        def close() -> None:
            outside = contextvars.Context()  # code of a task may not close what waits for it
            closing.append(asyncio.get_running_loop().create_task(harness.close(), context=outside))

        status: str | None = None
        ended: DurableError | None = None
        with Faults() as faults:
            if at is not None and point is not None:
                # Of a group that cannot be stored each commit is tried alone, so that a passing error would not show.
                faults.fail(point, ERROR, at=at, times=None if point.startswith("store.") else 1)
            elif at is not None:
                faults.call("commit.stored", close, at=at)
            try:
                root = await harness.root()
                status = (await (await root.submit("go", request_id="r")).wait()).status
                await root.wait_for_idle()
            except DurableError as error:
                ended = error
            if point is not None and ended is not None:
                assert ended is ERROR or (isinstance(ended, SessionFailed) and ended.__cause__ is ERROR)
                assert (await harness.wait_closed()).error is ERROR
            else:
                assert closing or ended is None
            await asyncio.gather(*closing)
            await harness.close()
            return faults.reached, status

    async def check(self) -> tuple[Stored, list[Attempt]]:
        """What must hold after the second opening has ended the work; what is stored, and every attempt."""
        assert self.done.count("unsafe") <= 1
        assert self.done.count("safe") <= 2
        assert self.requests <= 3
        storage = await SqliteStorage.open(self.path)
        stored, attempts = await check_stored(storage), await storage.attempts()
        await storage.close()
        kinds = [
            entry.kind
            for entry in stored.entries
            if not any(m.role == "assistant" and m.stop_reason == "aborted" for m in entry.messages)
        ]
        assert kinds == ["pi.user", "pi.system", "pi.assistant", "pi.tool-result", "pi.tool-result", "pi.assistant"]
        assert all(attempt.end is not None for attempt in attempts)
        return stored, attempts


@pytest.mark.parametrize("part", range(4))
@bounded
async def test_a_turn_goes_on_after_a_close_at_any_commit(tmp_path: Path, part: int) -> None:
    whole = Turn(tmp_path / "whole.sqlite")
    reached, status = await whole.run(None)
    assert (status, whole.requests, sorted(whole.done)) == ("done", 2, ["safe", "unsafe"])
    commits = reached["commit.stored"]
    assert commits >= 12
    stopped = 0
    for at in range(1 + part, commits + 1, 4):
        turn = Turn(tmp_path / f"{at}.sqlite")
        _, status = await turn.run(at)
        stopped += status is None
        _, status = await turn.run(None)
        assert status == "done", f"closed at commit {at}"
        stored, attempts = await turn.check()
        assert all(task.restarts == 0 for task in stored.tasks.values())
        assert "cut_off" not in {attempt.end for attempt in attempts}
    assert stopped >= 2


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("point", ["commit.sealed", "store.written", "commit.stored", "commit.published"])
@bounded
async def test_a_turn_goes_on_after_an_error_at_any_commit(tmp_path: Path, point: str, part: int) -> None:
    reached, _ = await Turn(tmp_path / "whole.sqlite").run(None)
    failed = 0
    for at in range(1 + part, reached[point] + 1, 2):
        turn = Turn(tmp_path / f"{at}.sqlite")
        _, status = await turn.run(at, point)
        failed += status is None
        _, status = await turn.run(None)
        assert status == "done", f"failed at {point}, time {at}"
        await turn.check()
    assert failed >= 3


@bounded
async def test_code_that_reads_just_as_the_session_closes_goes_on_later(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class Reading(Task[None, str], name="test.reading", version=1):
        class Start(Phase):
            async def run(self, task: TaskRun[None, str]) -> None:
                begun.set()
                await go.wait()
                await task.task(task.id)
                await task.complete("read")

    chat = Chat(path=tmp_path / "session.sqlite")
    chat.install(tasks=[Reading])
    async with chat.open() as (harness, root):
        async with root.commit() as tx:
            id = await tx.create_task(Reading, None)
        harness.resume()
        await begun.wait()
        go.set()  # it wakes before the close has begun to stop what runs
        await harness.close()
    async with chat.open() as (harness, _):
        outcome = outcome_of_task(await harness.wait_for_task(id))
        assert outcome is not None
        assert outcome.status == "completed"
