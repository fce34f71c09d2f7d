"""One question and its answer: ``Turn`` and ``Answer`` (notebook.md, Python).

A *turn* is one submission of this notebook. It follows its answer on the engine thread and shows it, live where
somebody watches, and once, at its end, where nobody does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..agent.conversation import Conversation, ConversationView, Submission, unanswered_message
from ..agent.state import LiveState
from ..errors import SessionClosed, SessionFailed, Unanswered
from ..messages import Usage
from ..records import Entry, SubmissionRecord
from . import frontend
from .asking import go_on
from .displays import display, replace_live, request_name
from .present import answer_view
from .pressed import connect, decide
from .render import mimebundle
from .view import AnswerView

if TYPE_CHECKING:
    from .chat import Chat

__all__ = ["Answer", "Turn", "TurnCancelled", "TurnInterrupted"]

INTERRUPT_GRACE = 1.0
"""Seconds between an interrupt and the abort it asks for: Jupyter interrupts a kernel before it restarts it."""

LONG_SLEEP = 10.0
"""A waiting cell goes on waiting through a retry that comes within so many seconds."""

_INTERRUPTED = (
    "interrupted: the turn stops in a second, and what it said so far is kept. "
    "(When the kernel restarts instead, the turn goes on.)"
)


class TurnInterrupted(KeyboardInterrupt):
    """An interrupt of a call that waited for a turn. It shows as one line, which says what becomes of the turn."""

    def _render_traceback_(self) -> list[str]:
        return [_INTERRUPTED]


class TurnCancelled(asyncio.CancelledError):
    """The same for ``await turn``: it is cancelled, since a loop must not see a ``KeyboardInterrupt``."""

    def _render_traceback_(self) -> list[str]:
        return [_INTERRUPTED]


class Answer:
    """A stored answer: ``text``, ``entry``, ``usage``, ``submission``. It shows itself."""

    def __init__(self, entry: Entry, submission: SubmissionRecord, view: AnswerView) -> None:
        self.entry = entry
        self.submission = submission
        self.view = view
        self._shown_in: str | None = None

    @property
    def text(self) -> str:
        """The answer's text, Markdown by custom."""
        return self.entry.text

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the last response."""
        message = self.entry.messages[0]
        return message.usage if message.role == "assistant" else Usage()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Answer {self.entry.id}: {self.text[:60]!r}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return mimebundle(self.view)

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != request_name():
            display(mimebundle(self.view))


class Turn:
    """One submission of this notebook. ``await turn`` or ``turn.result()`` give the ``Answer``."""

    def __init__(self, chat: Chat, submission: Submission, prompt: str, note: str | None) -> None:
        self.chat = chat
        self.id = submission.id
        self.prompt = prompt
        self.view = AnswerView(submission=submission.id, conversation=submission.conversation_id, prompt=prompt)
        self._submission = submission
        self._conversation = Conversation(chat.harness, submission.conversation_id)
        self._note = note
        self._widget: Any = None
        self._handle: Any = None
        self._shown_in: str | None = None
        self._settled = asyncio.Event()
        self._moved = asyncio.Event()
        self._listeners: list[Callable[[AnswerView], None]] = []
        self._follower: asyncio.Task[None] | None = None
        self._entry: Entry | None = None
        self._record: SubmissionRecord | None = None
        self._error: BaseException | None = None
        self._behind_parked = False
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Turn {self.id}: {self.view.status}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return mimebundle(self.view)

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != request_name():
            self.show()

    # -- on the kernel thread ----------------------------------------------------------------------------------------

    def show(self) -> None:
        """Display it in the current cell: live where a front end is, else as it is now."""
        self._shown_in = request_name()
        view = self.view
        if not frontend.live_frontend() or view.settled:
            self._handle = display(mimebundle(view), handle=True)
            return
        from .widgets import AnswerWidget

        widget = AnswerWidget(view)
        widget.on_stop(lambda: self.chat._bridge.call_soon(self._stop))
        connect(self.chat._bridge, widget, {"decide": partial(decide, self._conversation)})
        bundle = widget._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        self._handle = display(data, metadata=metadata, handle=True)
        self._widget = widget
        self.chat._bridge.call_soon(self._present, None)

    def result(self) -> Answer:
        """Wait for the end and return the answer. Raises ``Unanswered`` with the settled submission."""
        self._wait(self._finished)
        return self._answer()

    def wait_for_cell(self) -> None:
        """Wait as a cell does: to the end, or until only a person, a clock or a provider can bring the turn on."""
        self._wait(self._finished_or_parked)

    def _wait(self, wait: Callable[[], Awaitable[Any]]) -> None:
        with self.stopped_by_interrupt():
            self.chat._bridge.run(wait, shield=True)

    @contextlib.contextmanager
    def stopped_by_interrupt(self) -> Iterator[None]:
        """Stop means stop, and restart means go on: an interrupt ends the block at once, and the turn a second later,
        unless the kernel is gone by then. Raises ``TurnInterrupted``."""
        try:
            yield
        except TurnInterrupted:
            raise
        except KeyboardInterrupt:
            self._stop_later()
            raise TurnInterrupted from None

    def _stop_later(self) -> None:
        self.chat._bridge.later(INTERRUPT_GRACE, self._stop_while_open)

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._awaited().__await__()

    async def _awaited(self) -> Answer:
        with Interrupts(asyncio.get_running_loop()) as interrupts:
            try:
                return await self.chat._bridge.run_async(self._finished)
            except asyncio.CancelledError:
                if not interrupts.came:  # whoever waits has other reasons, a timeout say; the turn goes on
                    raise
                self._stop_later()
                raise TurnCancelled from None

    # -- on the engine thread ----------------------------------------------------------------------------------------

    async def _stop_while_open(self) -> None:
        with contextlib.suppress(
            SessionClosed, SessionFailed
        ):  # its turn then ends with it, or goes on in the next life
            await self._stop()

    async def _stop(self) -> None:
        """End this turn and no other: take it back while it is queued, else abort its run."""
        record = await self._submission.status()
        if record.settled or await self._submission.abort() != "already_placed":
            return
        harness = self.chat.harness
        live = await harness.snapshot(LiveState, record.conversation_id)
        if live is not None and live.run is not None and record.id in live.run.inputs:
            self._stopping = True
            self.chat._session.refresh_turns()
            await harness.abort_task(live.run.task)
            await self.chat._hold.release()
            await self._settled.wait()
            await go_on(harness, self._conversation)

    async def _refresh(self) -> None:
        """Show it again: what it waits for has changed."""
        if not self._settled.is_set():
            record = await self._submission.status()
            if not record.settled:
                self._update(record, await self._conversation.view())

    def _start(self) -> None:
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        """Keep ``view`` at the committed state until the submission has settled or the session has ended."""
        try:
            record = await self._submission.status()
            if record.settled:
                await self._settle(record)
                return
            async with self._conversation.watch() as watch:
                while True:
                    record = await self._submission.status()
                    if record.settled:
                        await self._settle(record)
                        return
                    self._update(record, watch.value)
                    try:
                        await anext(watch)
                    except StopAsyncIteration:
                        raise SessionClosed("the session was closed before the answer was finished") from None
        except Exception as error:  # whoever waits for the turn gets it, and the display says so
            self._error = error
            closed = isinstance(error, SessionClosed)
            self._present(
                self.view.replaced(
                    status="waiting",
                    reason="the session was closed here" if closed else "its session has failed",
                    detail_text="open it again to go on" if closed else str(error) or type(error).__name__,
                    can_stop=False,
                )
            )
        finally:
            self._settled.set()
            self._tell()

    def _update(self, record: SubmissionRecord, view: ConversationView) -> None:
        after = record.entry
        entries: Sequence[Entry] = ()
        if after is not None:
            start = bisect_right(view.entries, after, key=lambda entry: entry.id)
            entries = view.entries[start:]
        harness = self.chat.harness
        self._behind_parked = _run_parked(view.live, harness.clock())
        self._present(
            answer_view(
                record,
                self.prompt,
                entries,
                view.live,
                held=self.chat._hold.reason,
                note=self._note,
                now=harness.clock(),
                stopping=self._stopping,
            )
        )
        self._tell()

    async def _settle(self, record: SubmissionRecord) -> None:
        """Show the stored answer and replace the live form by the static one."""
        conversation = self._conversation
        entries: list[Entry] = []
        if record.entry is not None:
            last = record.answer
            scan = conversation.entries(min_id=record.entry + 1, max_id=last, order="ascending")
            async for entry in scan:
                if last is None and entry.kind == "pi.user":
                    break
                entries.append(entry)
        self._record = record
        self._entry = next((entry for entry in entries if entry.id == record.answer), None)
        began = self.view.started_at
        if began is None and record.entry is not None:
            asked = await conversation.entry(record.entry)
            began = getattr(asked.messages[0], "timestamp", None) if asked is not None and asked.messages else None
        now = self.chat.harness.clock()
        view = answer_view(record, self.prompt, entries, LiveState(), note=self._note, now=now, began=began)
        self._present(view)

    def _present(self, view: AnswerView | None) -> None:
        if view is not None:
            self.view = view
        widget, handle = self._widget, self._handle
        if widget is None:
            return
        widget.show(self.view)
        if self.view.settled or self._error is not None:
            self._widget = None
            asyncio.get_running_loop().run_in_executor(None, replace_live, widget, handle, self.view)

    def _tell(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
        for listener in list(self._listeners):
            listener(self.view)

    async def _finished(self) -> Answer:
        await self._settled.wait()
        return self._answer()

    def _answer(self) -> Answer:
        if self._error is not None:
            raise self._error
        record, entry = self._record, self._entry
        assert record is not None, "a turn that has ended without an error has a settled record"
        if entry is None:
            raise Unanswered(unanswered_message(record), submission=record)
        answer = Answer(entry, record, self.view)
        answer._shown_in = self._shown_in
        return answer

    async def _finished_or_parked(self) -> None:
        """Return when it has settled, or when only a person, a clock or a provider can bring it on."""
        while not self._settled.is_set():
            moved = self._moved
            if self._parked():
                return
            await moved.wait()

    def _parked(self) -> bool:
        if self.view.status == "waiting":
            return True
        return self._behind_parked and self.view.status in ("queued", "retrying", "deferred")


class Interrupts:
    """While a cell awaits, notice its interrupts.

    ipykernel cancels a cell that awaits from its signal handler, without waking the loop: a loop that has nothing else
    to do goes on sleeping. So this wakes it, and tells an interrupt from every other cancellation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.came = False
        self._loop = loop
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._came:
            signal.signal(signal.SIGINT, self._before)

    def _came(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self._before(number, frame)
        self._loop.call_soon_threadsafe(lambda: None)


def _run_parked(live: LiveState, now: float) -> bool:
    """Whether only a person, a clock or a provider can bring the present run on."""
    if live.approvals:
        return True
    generation = live.generation
    if generation is None or (generation.retry is None and generation.deferred is None):
        return False
    return generation.retry is None or generation.retry.at - now > LONG_SLEEP
