"""What a tool works with while it executes (engine.md, section 12)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from ..errors import DurableError
from ..records import ConversationId, TaskId, TaskRecord
from ..session import Document
from ..session.session import CommitBlock
from ..tasks import Task
from ..tasks.runtime import TaskRun, TaskTx
from ..values import JsonValue, check_json
from .output import OutputBuffer
from .state import Diagnostic, LiveState, LiveTool

if TYPE_CHECKING:
    from .toolrun import ToolInput

WRITE_RATE = 100_000
"""Characters a second that output given without awaiting may write: what a commit wrote makes the pause after it."""

T = TypeVar("T")
D = TypeVar("D", bound=Document)


class Accepted(Awaitable[None]):
    """Output that was accepted. Awaiting it returns once it is committed; else that is left to the throttle."""

    def __init__(self, committed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._committed = committed

    def __await__(self) -> Generator[Any, None, None]:
        return self._committed().__await__()


class ToolContext:
    """A tool's view of its call: output, details, diagnostics, memos, commits, other tasks and conversations.

    It may be used from the worker thread of a plain function: there, what is awaited elsewhere simply blocks. After the
    call has ended everything raises ``InvocationEnded``.
    """

    def __init__(
        self, run: TaskRun[Any, Any], call: ToolInput, buffer: OutputBuffer, interval: float, *, resumes: bool
    ) -> None:
        from .toolrun import NestedCalls

        self._run = run
        self._call = call
        self._buffer = buffer
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._details: JsonValue = None
        self._diagnostics: list[Diagnostic] = []
        self._dirty = False
        self._shown: tuple[str, JsonValue] = ("", None)
        self._pause = interval
        self._flush_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        self._last_flush = float("-inf")
        self._resumes = resumes  # whether the call runs again after a restart
        self._nested = NestedCalls(run, call, resumes=resumes)
        self._call_count: dict[str, int] = {}

    # -- who and where -----------------------------------------------------------------------------------------------

    @property
    def task_id(self) -> TaskId:
        return self._run.id

    @property
    def conversation_id(self) -> ConversationId:
        return self._run.conversation_id

    @property
    def call_id(self) -> str:
        """The provider's id of the call."""
        return self._call.call_id

    @property
    def env(self) -> Any:
        return self._run._session.env

    @property
    def models(self) -> Any:
        return self._run.models

    @property
    def registry(self) -> Any:
        return self._run.registry

    @property
    def cancelled(self) -> bool:
        """Whether the call is being stopped; a plain function looks at it and returns."""
        return self._run._told_to_stop

    def now(self) -> float:
        """The harness clock, epoch seconds."""
        return self._run.now()

    # -- output ------------------------------------------------------------------------------------------------------

    def output(self, chunk: str) -> Accepted:
        """Append text to the output, which becomes the result when the tool returns none.

        It is accepted at once; ``await`` returns when it is committed. Without it, commits follow at most every
        ``progress.output_interval``, with a pause that grows with what was written.
        """
        self._run._check_active()
        if not isinstance(chunk, str):
            raise TypeError(f"output takes text, not {type(chunk).__name__}")
        self._on_loop(lambda: self._accept(chunk))
        return Accepted(self._flush)

    def _on_loop(self, change: Callable[[], None]) -> None:
        """Make a change on the engine's loop: at once, or soon from the thread of a plain function."""
        if threading.get_ident() == self._thread:
            change()
        else:
            self._loop.call_soon_threadsafe(change)

    def _accept(self, chunk: str) -> None:
        self._buffer.append(chunk)
        self._dirty = True
        if self._timer is None:
            delay = max(0.0, self._last_flush + self._pause - self._loop.time())
            self._timer = self._loop.call_later(delay, self._timed)

    def _timed(self) -> None:
        self._timer = None
        if self._run._active and self._dirty:
            task = self._loop.create_task(self._flush())
            self._flushes.add(task)
            task.add_done_callback(self._flushed)

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._run._active and not isinstance(error, DurableError):
            self._run.report(error)

    async def _flush(self) -> None:
        """Commit what has been accepted."""
        async with self._flush_lock:
            if not self._dirty:
                return
            self._dirty = False
            self._last_flush = self._loop.time()
            self._pause = max(self._interval, self._size() / WRITE_RATE)
            self._shown = (self._buffer.text, self._details)
            async with self._run.commit() as tx:
                await self._stage(tx)

    def _size(self) -> int:
        """What the next commit writes, in characters: what was added, or all of an output that lost its beginning."""
        shown, details = self._shown
        text = self._buffer.text
        size = len(text) - len(shown) if text.startswith(shown) else len(text)
        return size if self._details == details else size + len(to_json(self._details))

    async def _stage(self, tx: TaskTx) -> None:
        live = await tx.doc(LiveState, self.conversation_id)
        buffer = self._buffer
        update_tool(
            live,
            self.task_id,
            output=buffer.text,
            dropped_chars=buffer.dropped_chars,
            dropped_lines=buffer.dropped_lines,
            details=self._details,
            diagnostics=tuple(self._diagnostics),
        )

    async def _quiet(self) -> None:
        """Stop the throttle and wait for commits that it began."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._flushes:
            await asyncio.gather(*self._flushes, return_exceptions=True)

    def retained_output(self) -> str:
        """The output as far as it is kept."""
        return self._buffer.text

    def details(self, value: JsonValue) -> Accepted:
        """Set details for user interfaces: JSON that replaces the earlier ones. ``await`` returns when committed."""
        self._run._check_active()
        checked = check_json(value, "the details")

        def set_details() -> None:
            self._details = checked
            self._accept("")

        self._on_loop(set_details)
        return Accepted(self._flush)

    def diagnostic(self, message: str, *, severity: str = "info", code: str | None = None) -> None:
        """Add a remark, committed as output is: the model sees it in one closing block.

        ``severity`` is ``info``, ``warn`` or ``error``.
        """
        self._run._check_active()
        made = Diagnostic.model_validate({"message": message, "severity": severity, "code": code})

        def add() -> None:
            self._diagnostics.append(made)
            self._accept("")

        self._on_loop(add)

    # -- durable work ------------------------------------------------------------------------------------------------

    def _from_here(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """Await on the engine's loop, block in the tool's worker thread."""
        if threading.get_ident() == self._thread:
            return coroutine
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def commit(self) -> CommitBlock[TaskTx]:
        """One commit bound to this call and its conversation; on the engine's loop only."""
        return self._run.commit()

    def memo(self, name: str, *candidate: JsonValue) -> Any:
        """As ``TaskRun.memo``."""
        return self._from_here(self._run.memo(name, *candidate))

    def create_task(self, task: type[Task[Any, Any]], input: Any, *, owner: TaskId | None = None) -> Any:
        """Create a task; by default the conversation owns it, with ``owner=ctx.task_id`` this call. Returns its id.

        What a task owns is given up by the next process when this call is not safe to replay, since nobody would
        wait for it there (``abandon_on_restart``).
        """
        abandon = owner is not None and not self._resumes

        async def create() -> TaskId:
            async with self._run.commit() as tx:
                return await tx.create_task(task, input, owner=owner, abandon_on_restart=abandon)

        return self._from_here(create())

    def wait_for_task(self, id: TaskId) -> Any:
        """Wait for a task in memory, and return its record."""
        return self._from_here(self._run.wait_for_task(id))

    def task(self, id: int) -> Any:
        """A task record."""
        return self._from_here(self._run.task(id))

    def conversation(self, id: int) -> Any:
        """A handle of a conversation."""
        return self._from_here(self._run.conversation(id))

    def create_conversation(self, *, agent: Any = None) -> Any:
        """A conversation that this call owns, with a copy of the present agent that ``agent`` changes."""
        harness: Any = self._run._session
        return self._from_here(harness.create_conversation(owner=self.task_id, agent=agent))

    def agent(self) -> Any:
        """The resolved agent of the conversation."""
        return self._from_here(self._run.agent())

    def snapshot(self, doc: type[D], scope: int | None = None, *, key: str | None = None) -> Any:
        """As ``TaskRun.snapshot``."""
        return self._from_here(self._run.snapshot(doc, scope, key=key))

    def call_tool(self, name: str, arguments: dict[str, JsonValue] | None = None, *, key: str | None = None) -> Any:
        """Call another tool of the conversation; returns its result (``.text``, ``.is_error``, ``.structured``, …).

        The call is a task of its own that this one owns. ``key`` names it within this call: a replay-safe tool that
        runs again finds its finished nested calls by their keys, which by default count the calls of each tool.
        """
        if key is None:
            self._call_count[name] = count = self._call_count.get(name, 0) + 1
            key = f"{name}:{count}"
        return self._from_here(self._nested.call(name, arguments or {}, key))


def update_tool(live: LiveState, task: int, **changes: Any) -> LiveTool | None:
    """Change the live entry of a call; ``None`` when the call is not shown (a nested one)."""
    for index, item in enumerate(live.tools):
        if item.task == task:
            changed = item.replaced(**changes)
            live.tools = (*live.tools[:index], changed, *live.tools[index + 1 :])
            return changed
    return None


__all__ = ["TaskRecord", "ToolContext", "update_tool"]
