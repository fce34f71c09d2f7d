"""Following a session for what is shown of it: the task graph and the timeline, as committed.

A *follower* reads a session once with ``load`` and keeps ``view`` at its newest commit with ``follow``, until the
session ends. It lives on the engine thread. The session is a harness, or an observer of another process's.

What happens at once is taken together: a follower looks at most every ``interval`` seconds, and reads only what has
changed since it looked last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from ..agent.harness import Harness
from ..agent.observe import Observer
from ..agent.state import InboxState
from ..errors import DurableError
from ..messages import text_of
from ..records import (
    Attempt,
    ConversationRecord,
    SubmissionRecord,
    TaskId,
    TaskRecord,
    checkpoint_of_task,
    outcome_of_task,
)
from ..session import Watch
from ..tasks import TaskGraph
from ..tasks.story import tell
from .graphview import KEEP_ENDED, GraphRows, GraphView
from .timelineview import LIMIT, TimelineRows, TimelineView
from .view import clean_output, clip

__all__ = ["Follower", "GraphFollower", "TimelineFollower", "task_details"]

V = TypeVar("V")

INTERVAL = 0.1
"""Seconds between two looks at the graph."""

ONE_BY_ONE = 16
"""So many records are read one by one; more are read with those around them."""

DETAILS_LIMIT = 4_000
"""Characters of a task's input, checkpoint or outcome that are shown."""


class Follower(ABC, Generic[V]):
    """Keeps ``view`` at what is committed."""

    view: V
    interval = INTERVAL
    """Seconds between two looks."""

    def __init__(self, session: Harness | Observer) -> None:
        self.session = session

    @abstractmethod
    async def load(self) -> V:
        """Read everything anew. Returns the view."""

    @abstractmethod
    async def follow(self, show: Callable[[V], object]) -> None:
        """Call ``show`` with the view now and after each change, until the session ends."""

    @property
    def _store(self) -> Any:
        """What has ``lives``, ``attempts`` and ``entry``."""
        return self.session if isinstance(self.session, Observer) else self.session.storage

    def _now(self) -> float:
        return time.time() if isinstance(self.session, Observer) else self.session.clock()


@contextlib.asynccontextmanager
async def noticing(
    watch: Watch[Any], note: Callable[[Any], None], interval: float = INTERVAL
) -> AsyncIterator[Callable[..., Any]]:
    """Take every change of an entered watch at once; gives a function that waits for the next look.

    It returns whether the watch goes on; ``timeout`` bounds the wait.
    """
    moved = asyncio.Event()

    async def take() -> None:
        async for change in watch:
            note(change)
            moved.set()

    taking = asyncio.get_running_loop().create_task(take())
    taking.add_done_callback(lambda _: moved.set())

    async def wait(timeout: float | None = None) -> bool:
        await asyncio.sleep(interval)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(moved.wait(), timeout)
        moved.clear()
        return not taking.done()

    try:
        yield wait
    finally:
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking


# -- the graph -------------------------------------------------------------------------------------------------------


class GraphFollower(Follower[GraphView]):
    """Follows the live tasks, and keeps those that end for a while. ``held`` says why nothing runs, in words."""

    def __init__(self, session: Harness | Observer, *, held: Callable[[], str | None] = lambda: None) -> None:
        super().__init__(session)
        self._held = held
        self._rows = GraphRows()
        self._begun: set[int] = set()
        self._missed = False
        self.view = GraphView()

    async def load(self) -> GraphView:
        self._rows = GraphRows(can_abort=isinstance(self.session, Harness))
        self._begun.clear()
        self._missed = False
        graph = await self.session.task_graph()
        return await self._take(graph, await self._recent())

    async def _recent(self) -> Iterable[TaskRecord]:
        # Below a live task there may be many that have ended; of the others a few are kept.
        recent = await self.session.tasks(status="terminal", order="descending").list(5 * KEEP_ENDED)
        return reversed(recent)

    async def follow(self, show: Callable[[GraphView], object]) -> None:
        async with self.session.watch_task_graph() as watch, noticing(watch, self._note, self.interval) as wait:
            show(await self.load())
            while await wait():
                before, missed, self._missed = self.view, self._missed, False
                if (await self._take(watch.value, await self._recent() if missed else ())) != before:
                    show(self.view)

    def _note(self, change: Any) -> None:
        """Remember which tasks began: some end again before anybody looks."""
        for op in change.ops:
            if op["path"] == "":
                self._missed = True
            elif op["op"] == "add" and op["path"].count("/") == 2:
                self._begun.add(int(op["path"].rpartition("/")[2]))

    async def _take(self, graph: TaskGraph, ended: Iterable[TaskRecord] = ()) -> GraphView:
        different, gone = self._rows.changed(graph)
        begun, self._begun = self._begun, set()
        gone += sorted(id for id in begun.difference(gone) if id not in graph.tasks)
        records = {id: record for id in different if (record := await self.session.task(TaskId(id))) is not None}
        over = {id: record for id, record in (await self._ended(gone)).items() if record.terminal}
        # The graph may be older than what was noted since: those tasks are looked at again.
        self._begun |= {id for id in begun if id not in graph.tasks and id not in over}
        self._rows.update(graph, records | over, [*over.values(), *ended])
        self.view = self._rows.view(held=self._held())
        return self.view

    async def _ended(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """The records of tasks that have ended."""
        found: dict[int, TaskRecord] = {}
        if len(ids) <= ONE_BY_ONE:
            for id in ids:
                if (record := await self.session.task(TaskId(id))) is not None:
                    found[id] = record
            return found
        wanted, first = set(ids), min(ids)
        async for record in self.session.tasks(status="terminal", order="descending"):
            if record.id < first:
                break
            if record.id in wanted:
                found[record.id] = record
        return found


async def task_details(session: Harness | Observer, id: int) -> dict[str, Any]:
    """What a task was given, where it stands and what happened to it, as texts by name.

    Raises ``DurableError`` for a task that does not exist.
    """
    record = await session.task(TaskId(id))
    if record is None:
        raise DurableError(f"there is no task {id}")
    if isinstance(session, Observer):
        story = tell(record, await session.attempts(task=id), await session.lives(), ())
    else:
        story = await session.story(TaskId(id))
    outcome = outcome_of_task(record)
    said = {
        "input": record.input,
        "checkpoint": checkpoint_of_task(record),
        "outcome": None if outcome is None else outcome.to_data(),
        "memos": record.memos or None,
    }
    texts = {
        name: clip(clean_output(json.dumps(value, ensure_ascii=False, indent=1)), DETAILS_LIMIT, f"%durable show {id}")
        for name, value in said.items()
        if value is not None
    }
    return {"task": id, **texts, "story": clip(clean_output(story), 2 * DETAILS_LIMIT, f"%durable task {id}")}


# -- the timeline ----------------------------------------------------------------------------------------------------


class TimelineFollower(Follower[TimelineView]):
    """Follows the newest tasks and questions, with their attempts and the lives of the session."""

    interval = 0.25  # all of it is laid out anew, which takes some milliseconds; the page moves its bars by itself

    def __init__(self, session: Harness | Observer, *, limit: int = LIMIT) -> None:
        super().__init__(session)
        self._limit = limit
        self._rows = TimelineRows(limit=limit)
        self._tasks: dict[int, TaskRecord] = {}
        self._questions: dict[int, SubmissionRecord] = {}
        self._conversations: dict[int, ConversationRecord] = {}
        self._missed = False
        self.view = TimelineView(now=self._now())

    async def load(self) -> TimelineView:
        self._rows = TimelineRows(limit=self._limit)
        self._missed = False
        tasks = await self.session.tasks(order="descending").list(self._limit + 1)
        questions = await self.session.submissions(order="descending").list(self._limit)
        conversations = [item async for item in self.session.conversations() if item.owner is not None]
        self._rows.update(questions=questions, conversations=conversations)
        return await self._look(tasks)

    async def follow(self, show: Callable[[TimelineView], object]) -> None:
        async with self.session.watch_commits() as watch, noticing(watch, self._note, self.interval) as wait:
            show(await self.load())
            while await wait(self._patience()):
                tasks, self._tasks = self._tasks, {}
                questions, self._questions = self._questions, {}
                conversations, self._conversations = self._conversations, {}
                if self._missed:
                    await self.load()
                elif tasks or questions or conversations or self._now() >= self.view.axis.end:
                    self._rows.update(questions=questions.values(), conversations=conversations.values())
                    await self._look(tuple(tasks.values()))
                else:
                    continue
                show(self.view)

    def _note(self, change: Any) -> None:
        self._tasks |= change.value.tasks
        self._questions |= change.value.submissions
        self._conversations |= change.value.conversations
        # Changes that came faster than they were taken have become one, which holds the newest of them alone.
        self._missed |= bool(change.ops)

    def _patience(self) -> float | None:
        """Seconds until the view has to change although nothing is committed: now leaves the axis."""
        if not any(row.going_on for row in self.view.rows):
            return None
        return max(1.0, self.view.axis.end - self._now())

    async def _look(self, tasks: Sequence[TaskRecord]) -> TimelineView:
        """Read what belongs to tasks that are new or have changed."""
        attempts: dict[int, list[Attempt]] = {task.id: [] for task in tasks}
        if len(tasks) <= ONE_BY_ONE:
            for id in attempts:
                attempts[id] = await self._store.attempts(task=id)
        else:
            for attempt in await self._store.attempts():
                if attempt.task in attempts:
                    attempts[attempt.task].append(attempt)
        opened = not isinstance(self.session, Observer) or self.session.owner is not None
        self._rows.update(lives=await self._store.lives(), open=opened, tasks=tasks, attempts=attempts)
        prompts = {item.id: await self._prompt(item) for item in self._rows.unread}
        # A question that has just left the inbox says nothing yet: its entry will.
        self._rows.update(prompts={id: text for id, text in prompts.items() if text is not None})
        self.view = self._rows.view(self._now())
        return self.view

    async def _prompt(self, question: SubmissionRecord) -> str | None:
        """What was asked, empty where there is no text, ``None`` where nothing says it yet."""
        if question.entry is not None:
            entry = await self._store.entry(question.entry)
            return "" if entry is None else str(entry.text)
        if question.settled or question.type == "continue":
            return ""
        inbox = await self.session.snapshot(InboxState, question.conversation_id)
        items = inbox.items if inbox is not None else ()
        return next((text_of(item.content) for item in items if item.submission == question.id), None)
