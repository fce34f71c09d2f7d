"""An open session as a notebook uses it: ``open``, ``Chat``, ``Turn`` and ``Answer`` (notebook.md, Python).

Everything durable happens on the engine thread; the methods here are what the kernel thread calls, through the bridge.
A *turn* is one submission of this notebook: it follows its answer on the engine thread and shows it, live where
somebody watches, and once, at its end, where nobody does.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import signal
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

from ..agent.agent import AgentChange
from ..agent.conversation import Conversation, ConversationView, Submission, WhenBusy, unanswered_message
from ..agent.extension import Extension
from ..agent.harness import Harness
from ..agent.registry import Registry
from ..agent.runs import next_run
from ..agent.settings import RunLimits, Settings
from ..agent.state import InboxItem, InboxState, LiveApproval, LiveState, UsageState
from ..agent.tool import Tool, tool
from ..errors import NotebookError, RegistryError, RequestIdReused, SessionClosed, Unanswered
from ..messages import ContentBlock, TextBlock, Usage, UserMessage, text_of
from ..models import default_models
from ..records import Attempt, Entry, SubmissionRecord, SubmissionStatus, TaskId, TaskRecord
from ..session import Address
from . import frontend
from .bridge import Bridge, engine
from .cells import CellsState, Order, Ordinals, Provenance, named_request_id, ordinal_of, request_id, text_digest
from .present import answer_view, approval_calls, recovery_view, tasks_view, transcript_view
from .render import mimebundle
from .view import AnswerView, RecoveryView, StatusRow, StatusView, TasksView, TranscriptView, clip, clock_time

T = TypeVar("T")

INTERRUPT_GRACE = 1.0
"""Seconds between an interrupt and the abort it asks for: Jupyter interrupts a kernel before it restarts it."""

LONG_SLEEP = 10.0
"""A waiting cell goes on waiting through a retry that comes within so many seconds."""

registry = Registry()
"""The extensions of this kernel; every session opened here uses them."""

TOOLS = "notebook"
"""The name of the extension that holds the tools installed one by one."""

_sessions: dict[str, Chat] = {}
_current: str | None = None


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
        if self._shown_in is None or self._shown_in != _request_name():
            _display(mimebundle(self.view))


class Turn:
    """One submission of this notebook. ``await turn`` or ``turn.result()`` give the ``Answer``."""

    def __init__(self, chat: Chat, submission: Submission, prompt: str, note: str | None) -> None:
        self.chat = chat
        self.id = submission.id
        self.prompt = prompt
        self.view = AnswerView(submission=submission.id, conversation=submission.conversation_id, prompt=prompt)
        self._submission = submission
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
        if self._shown_in is None or self._shown_in != _request_name():
            self.show()

    # -- on the kernel thread ----------------------------------------------------------------------------------------

    def show(self) -> None:
        """Display it in the current cell: live where a front end is, else as it is now."""
        self._shown_in = _request_name()
        view = self.view
        if not frontend.live_frontend() or view.settled:
            self._handle = _display(mimebundle(view), handle=True)
            return
        from .widgets import AnswerWidget

        widget = AnswerWidget(view)
        widget.on_stop(lambda: self.chat._bridge.call_soon(self._stop))
        bundle = widget._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        self._handle = _display(data, metadata=metadata, handle=True)
        self._widget = widget
        self.chat._bridge.call_soon(self._present, None)

    def result(self) -> Answer:
        """Wait for the end and return the answer. Raises ``Unanswered`` with the settled submission."""
        return self.chat._wait_for(self)

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._awaited().__await__()

    async def _awaited(self) -> Answer:
        with _Interrupts(asyncio.get_running_loop()) as interrupts:
            try:
                return await self.chat._bridge.run_async(self._finished)
            except asyncio.CancelledError:
                if not interrupts.came:  # whoever waits has other reasons, a timeout say; the turn goes on
                    raise
                self.chat._stop_later(self)
                raise TurnCancelled from None

    # -- on the engine thread ----------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """End this turn and no other: take it back while it is queued, else abort its run."""
        record = await self._submission.status()
        if record.settled or await self._submission.abort() != "already_placed":
            return
        harness = self.chat.harness
        live = await harness.snapshot(LiveState, record.conversation_id)
        if live is not None and live.run is not None and record.id in live.run.inputs:
            self._stopping = True
            self.chat._refresh_turns()
            await harness.abort_task(live.run.task)
            await self.chat._release()
            await self._settled.wait()
            await self.chat._go_on()

    def _start(self) -> None:
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        """Keep ``view`` at the committed state until the submission has settled or the session has ended."""
        try:
            record = await self._submission.status()
            if record.settled:
                await self._settle(record)
                return
            async with self.chat.conversation.watch() as watch:
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
        self._behind_parked = self.chat._run_parked(view.live)
        self._present(
            answer_view(
                record,
                self.prompt,
                entries,
                view.live,
                held=self.chat._held_reason(),
                note=self._note,
                now=harness.clock(),
                stopping=self._stopping,
            )
        )
        self._tell()

    async def _settle(self, record: SubmissionRecord) -> None:
        """Show the stored answer and replace the live form by the static one."""
        conversation = self.chat.conversation
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
            asyncio.get_running_loop().run_in_executor(None, _replace, widget, handle, self.view)

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


class Chat:
    """An open session in this kernel: its root conversation, asked and watched from cells.

    ``harness`` and ``conversation`` are the engine's objects; use them on the engine thread, through ``run``.
    """

    def __init__(self, bridge: Bridge, harness: Harness, conversation: Conversation, name: str) -> None:
        self._bridge = bridge
        self.harness = harness
        self.conversation = conversation
        self.name = name
        self.path = harness.storage.name
        self.recovery = RecoveryView(path=self.path)
        self._given_settings: Settings | Callable[[], Settings] = Settings()
        self._limits: RunLimits | None = None
        self._waiting_for: tuple[str, ...] = ()
        self._paused = False
        self._ordinals = Ordinals()
        self._order = Order()
        self._shown_in: str | None = None
        self._turns: dict[int, Turn] = {}
        self._contexts: dict[int, contextvars.Context] = {}
        harness.invocation_context = self._context_of
        self._unsubscribe: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Chat {self.name} on {self.path}{' (closed)' if self.closed else ''}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return mimebundle(self.recovery)

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != _request_name():
            _display(mimebundle(self.status()))

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.harness.end is not None

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        content: str | Sequence[ContentBlock],
        *,
        when_busy: WhenBusy = "follow_up",
        request_id: str | None = None,
        again: bool = False,
        show: bool | None = None,
    ) -> Turn:
        """Ask, and return at once with the turn, which shows itself live where a front end is.

        ``request_id`` names the submission: the same name finds the same submission, also after a restart, and
        ``again`` asks anew under it. Raises ``ConversationBusy`` with ``when_busy="reject"``.
        """
        self._check_open()
        base = None if request_id is None else (lambda attempt: named_request_id(request_id, attempt))
        turn = self._bridge.run(self._submit, content, base, when_busy, again)
        if show if show is not None else frontend.live_frontend():
            turn.show()
        return turn

    def ask(self, content: str | Sequence[ContentBlock], **options: Any) -> Answer:
        """Ask, wait, and return the answer; the options are those of ``submit``. Raises ``Unanswered``."""
        return self.submit(content, **options).result()

    def submit_cell(
        self,
        text: str,
        *,
        cell: str | None,
        when_busy: WhenBusy = "follow_up",
        again: bool = False,
        id: str | None = None,
        kind: str = "ask",
    ) -> Turn:
        """Ask for a cell: running it again finds the stored submission instead of asking again."""
        self._check_open()
        digest = text_digest(kind, text)
        cell = self._cell_now(cell, digest)
        return self._bridge.run(self._submit_cell, text, digest, cell, when_busy, again, id)

    def _cell_now(self, cell: str | None, digest: str) -> str | None:
        """The cell, as it counts in this execution: one that asks the same twice, in a loop say, means two."""
        if cell is None:
            return None
        repeated = self._ordinals.repeated(_request_name(), cell, digest)
        return f"{cell}/{repeated}" if repeated else cell

    async def _submit_cell(
        self, text: str, digest: str, cell: str | None, when_busy: WhenBusy, again: bool, id: str | None
    ) -> Turn:
        if id is not None:
            return await self._submit(text, lambda attempt: named_request_id(id, attempt), when_busy, again, cell)
        ordinal = await self._ordinal(self.conversation.id, digest, cell)
        return await self._submit(text, lambda attempt: request_id(digest, ordinal, attempt), when_busy, again, cell)

    def cell_request(self, kind: str, text: str, *, cell: str | None) -> str:
        """The request id with which a cell writes ``text``, so that running it again finds what it wrote."""
        self._check_open()
        digest = text_digest(kind, text)
        here = self._cell_now(cell, digest)

        async def name() -> str:
            return request_id(digest, await self._ordinal(self.conversation.id, digest, here), 1)

        return self._bridge.run(name)

    async def _ordinal(self, conversation: int, digest: str, cell: str | None) -> int:
        if cell is None:
            return self._ordinals.next(conversation, digest)
        known = await self.harness.snapshot(CellsState, conversation)
        if known is not None and cell in known.texts.get(digest, ()):
            return known.texts[digest].index(cell)
        async with self.conversation.commit() as tx:
            return await ordinal_of(tx, conversation, digest, cell)

    async def _submit(
        self,
        content: str | Sequence[ContentBlock],
        base: Callable[[int], str] | None,
        when_busy: WhenBusy,
        again: bool,
        cell: str | None = None,
    ) -> Turn:
        agent = await self.conversation.agent()
        now = Provenance(after=self._order.last, model=agent.model, tools=tuple(sorted(agent.tools)))
        record: SubmissionRecord | None = None
        attempt = 1
        if base is not None:
            while True:
                found = await self._by_request(base(attempt))
                if found is None:
                    break
                record, attempt = found, attempt + 1
        if record is not None:
            await self._check_same(record, content, base)
        failed = record is not None and record.status == "unanswered" and record.reason != "aborted"
        if record is None or failed or again:
            if not self._order.began:  # the first of this kernel life comes after whatever is stored
                now = now.replaced(after=await self._newest_input())
            submission = await self.conversation.submit(
                content,
                request_id=None if base is None else base(attempt),
                when_busy=when_busy,
                data={"notebook": now.to_data()},
            )
            note = f"attempt {attempt} of this cell" if attempt > 1 else None
            self._order.asked(submission.id, cell)
        else:
            submission = Submission(self.harness, record.id, record.conversation_id)
            if record.status == "queued":
                await self._go_on()
            then = await self._asked_with(record)
            moved = self._order.found(
                submission.id, cell, after=None if then is None else then.after, known=then is not None
            )
            note = await self._stored_note(record, then, now, moved=moved)
        self._contexts[submission.id] = contextvars.copy_context()
        prompt = content if isinstance(content, str) else "\n".join(b.text for b in content if b.type == "text")
        turn = Turn(self, submission, prompt, note)
        self._turns[submission.id] = turn
        turn._start()
        await asyncio.sleep(0)
        if record is not None and record.settled and not failed and not again:
            await turn._settled.wait()
        return turn

    def _context_of(self, task: TaskRecord) -> contextvars.Context | None:
        """Where the work of a run shows what it prints: under the cell that asked for it last."""
        address = Address(LiveState.spec_.kind, task.conversation_id)
        state = self.harness._committed.documents.get(address)
        run = state.value.get("run") if state is not None else None
        for id in reversed(run["inputs"] if run is not None else ()):
            if id in self._contexts:
                return self._contexts[id].copy()
        return None

    async def _by_request(self, request: str) -> SubmissionRecord | None:
        harness = self.harness
        return await harness._read(harness.storage.submission_by_request(self.conversation.id, request))

    async def _newest_input(self) -> int | None:
        async for record in self.harness.submissions(conversation=self.conversation.id, order="descending"):
            if record.type == "input":
                return record.id
        return None

    async def _check_same(
        self, record: SubmissionRecord, content: str | Sequence[ContentBlock], base: Callable[[int], str] | None
    ) -> None:
        """Raise ``RequestIdReused`` when the submission that a name stands for was asked something else."""
        asked = await self._content(record)
        given = (TextBlock(content),) if isinstance(content, str) else tuple(content)
        if asked is not None and asked != given:
            text = clip_line("\n".join(block.text for block in asked if block.type == "text"))
            name = base(1) if base is not None else record.request_id
            raise RequestIdReused(
                f"the id {name!r} was used for another text, “{text}”: choose another id, or leave it out"
            )

    async def _content(self, record: SubmissionRecord) -> tuple[ContentBlock, ...] | None:
        """What was asked, ``None`` when it is no longer stored."""
        if record.entry is not None:
            entry = await self.conversation.entry(record.entry)
            message = entry.messages[0] if entry is not None and entry.messages else None
            return tuple(message.content) if isinstance(message, UserMessage) else None
        inbox = await self.harness.snapshot(InboxState, record.conversation_id)
        items = inbox.items if inbox is not None else ()
        return next((item.content for item in items if item.submission == record.id), None)

    async def _asked_with(self, record: SubmissionRecord) -> Provenance | None:
        """What a submission was asked with, ``None`` when it does not say."""
        if record.entry is None:
            return None
        entry = await self.conversation.entry(record.entry)
        data = entry.data if entry is not None and isinstance(entry.data, dict) else {}
        return Provenance.model_validate(data["notebook"]) if isinstance(data.get("notebook"), dict) else None

    async def _stored_note(
        self, record: SubmissionRecord, then: Provenance | None, now: Provenance, *, moved: bool
    ) -> str | None:
        """The line under what was stored before: when, and what has changed since."""
        if not record.settled:
            return None
        changed = then.differences(now, moved=moved) if then is not None else None
        warning = f" · changed since: {changed}" if changed else ""
        if record.status != "done":
            return f"stopped before{warning} · --again asks anew"
        answer = await self.conversation.entry(record.answer) if record.answer is not None else None
        at = getattr(answer.messages[0], "timestamp", None) if answer is not None and answer.messages else None
        return f"stored answer{_when(at, self.harness.clock())}{warning} · --again asks anew"

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait_for(self, turn: Turn) -> Answer:
        return self._waiting(turn, turn._finished)

    def wait_for_cell(self, turn: Turn) -> None:
        """Wait as a cell does: to the end, or until only a person, a clock or a provider can bring the turn on."""
        self._waiting(turn, turn._finished_or_parked)

    def _waiting(self, turn: Turn, wait: Callable[[], Awaitable[T]]) -> T:
        """Stop means stop, and restart means go on: an interrupt ends the call at once, and the turn a second later,
        unless the kernel is gone by then."""
        try:
            return self._bridge.run(wait, shield=True, on_interrupt=lambda: self._stop_later(turn))
        except KeyboardInterrupt:
            raise TurnInterrupted from None

    def _stop_later(self, turn: Turn) -> None:
        self._bridge.later(INTERRUPT_GRACE, turn._stop)

    def wait(self) -> None:
        """Wait until the conversation is idle. Raises ``NotebookError`` while the session is held back."""
        self._check_open()
        self._bridge.run(self._wait)

    async def _wait(self) -> None:
        await self._look_again()
        reason = self._held_reason()
        if reason is not None:
            raise NotebookError(f"nothing would end: the session {self.held()}")
        await self.conversation.wait_for_idle()

    # -- steering ----------------------------------------------------------------------------------------------------

    def steer(self, content: str | Sequence[ContentBlock]) -> Turn:
        """Into the busy run, after its present tool round; idle, a new run."""
        return self.submit(content, when_busy="steer")

    def follow_up(self, content: str | Sequence[ContentBlock]) -> Turn:
        """After the present run."""
        return self.submit(content, when_busy="follow_up")

    def stop(self) -> bool:
        """Withdraw queued inputs and stop the run; returns when idle. Whether there was anything to stop."""
        self._check_open()
        return self._bridge.run(self._stop)

    async def _stop(self) -> bool:
        view = await self.conversation.view()
        busy = view.live.run is not None or any(item.type == "input" for item in view.inbox.items)
        if self.harness.hold:
            # Nothing ends while scheduling is held back; once it is marked, nothing of it starts either.
            for item in (await self.harness.inspect()).tasks:
                task = item.record
                if task.conversation_id == self.conversation.id and task.owner is None and not task.background:
                    await self.harness.abort_task(task.id)
            for waiting in view.inbox.items:
                if waiting.type == "input":
                    await self.harness._abort_submission(waiting.submission)
            await self._resume()
        for turn in self._turns.values():
            turn._stopping = not turn._settled.is_set()
        self._refresh_turns()
        await self.conversation.abort()
        return busy

    async def _go_on(self) -> None:
        """Start what waits in an idle conversation: the engine leaves it there when the turn before was stopped.

        Nobody would see why a question of a cell further down stays queued until the next one is asked.
        """
        if self.harness.hold:
            return
        async with self.conversation.commit() as tx:
            if (await tx.doc(LiveState, self.conversation.id)).run is None:
                await next_run(tx, self.conversation.id, self.harness._settings())

    def _run_parked(self, live: LiveState) -> bool:
        """Whether only a person, a clock or a provider can bring the present run on."""
        if live.approvals:
            return True
        generation = live.generation
        if generation is None or (generation.retry is None and generation.deferred is None):
            return False
        return generation.retry is None or generation.retry.at - self.harness.clock() > LONG_SLEEP

    async def _release(self) -> None:
        """Let go what was held back for tools that nothing needs any more."""
        if self.harness.hold and not self._paused:
            await self._resume()

    def retry(self) -> None:
        """Go on after a run that ended without an answer, and wait for it."""
        self._check_open()

        async def go_on() -> SubmissionRecord:
            return await (await self.conversation.retry()).wait()

        self._bridge.run(go_on)

    def inbox(self) -> StatusView:
        """What waits: questions, notes and resets, oldest first."""
        self._check_open()

        async def read() -> StatusView:
            items = (await self.conversation.view()).inbox.items
            rows = tuple(
                StatusRow(name=f"{item.submission} · {item.mode.replace('_', '-')}", value=_said(item))
                for item in items
            )
            count = f"{len(rows)} waiting" if rows else "nothing waits"
            return StatusView(title=f"inbox · {count}", state="waiting" if rows else "idle", rows=rows)

        return self._bridge.run(read)

    def withdraw(self, submission: int) -> Literal["aborted", "already_placed", "settled"]:
        """Take back what waits. Raises ``DurableError`` for a submission that does not exist."""
        self._check_open()
        return self._bridge.run(self.harness._abort_submission, submission)

    def note(self, text: str, *, request_id: str | None = None) -> SubmissionStatus:
        """Add something that the model reads with the next question; returns whether it is ``done`` or ``queued``.

        ``request_id`` makes it idempotent: the same id finds what was noted, before and after a restart.
        """
        self._check_open()

        async def write() -> SubmissionStatus:
            found = None if request_id is None else await self._by_request(request_id)
            if found is not None:
                return found.status
            said = UserMessage([TextBlock(text)], timestamp=self.harness.clock())
            written = await self.conversation.write("notebook.note", messages=[said], request_id=request_id)
            return (await written.status()).status

        return self._bridge.run(write)

    def reset(self, handoff: str | None = None, *, request_id: str | None = None) -> None:
        """Start the model's context anew, with a note to what comes; the history stays."""
        self._check_open()
        self._bridge.run(lambda: self.conversation.reset(handoff, request_id=request_id))

    def abort(self, task: int) -> Literal["marked", "terminal"]:
        """Stop one task and the work below it. Raises ``DurableError`` for a task that does not exist."""
        self._check_open()
        return self._bridge.run(self.harness.abort_task, TaskId(task))

    def signal(self, task: int, name: str, value: Any = None, *, request_id: str | None = None) -> str:
        """Send a named value to a task: ``delivered``, ``kept``, ``duplicate`` or ``terminal``."""
        self._check_open()
        return self._bridge.run(lambda: self.harness.signal(TaskId(task), name, value, request_id=request_id))

    def approvals(self) -> tuple[LiveApproval, ...]:
        """The calls that wait for a person; ``call`` is what ``approve`` and ``deny`` take."""
        self._check_open()

        async def read() -> tuple[LiveApproval, ...]:
            return (await self.conversation.view()).live.approvals

        return self._bridge.run(read)

    def approve(self, call: str, *, arguments: dict[str, Any] | None = None) -> None:
        """Allow a call, with other arguments where given. Raises ``DurableError`` when none of this id waits."""
        self._check_open()
        self._bridge.run(lambda: self.conversation.decide(call, approve=True, arguments=arguments))

    def deny(self, call: str, *, note: str | None = None) -> None:
        """Refuse a call; the model is told, with the note. Raises ``DurableError`` when none of this id waits."""
        self._check_open()
        self._bridge.run(lambda: self.conversation.decide(call, approve=False, note=note))

    # -- what it runs with -------------------------------------------------------------------------------------------

    def install(self, *items: Any) -> None:
        """Install tools, functions or extensions for every session of this kernel."""
        install(*items)

    def configure(self, **change: Any) -> None:
        """Change the conversation's agent: fields of ``AgentChange``. A model may be an object or a name."""
        self._check_open()
        if change.get("model") is not None:
            change["model"] = _model_name(change["model"])
        self._bridge.run(self._configure, change)

    async def _configure(self, change: dict[str, Any]) -> None:
        if change.get("model") is not None:
            await asyncio.to_thread(_check_model, change["model"])
        await self.conversation.configure(**change)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function on the engine thread and return its result: any engine API, from a cell."""
        return self._bridge.run(function, *args)

    def resume(self) -> None:
        """Start what waits, also without the tools that recovered work named."""
        self._check_open()
        self._bridge.run(self._resume)

    async def _resume(self) -> None:
        self._paused = False
        self._waiting_for = ()
        self.harness.hold = False
        self.harness.resume()
        self._refresh_turns()

    # -- reading -----------------------------------------------------------------------------------------------------

    def status(self) -> StatusView:
        """What is open, what runs."""
        return self._bridge.run(self._status) if not self.closed else StatusView(title=self.path, state="closed")

    async def _status(self) -> StatusView:
        view = await self.conversation.view()
        life = self.harness.storage.life
        run = view.live.run
        state: Literal["idle", "running", "paused", "waiting"] = "idle" if run is None else "running"
        rows = [
            StatusRow(name="session", value=f"{self.name} · {self.path}"),
            StatusRow(name="owner", value=f"this kernel, process {life.pid}, since {clock_time(life.opened_at)}"),
            StatusRow(name="model", value=(await self.conversation.agent()).model or "none"),
            StatusRow(name="entries", value=f"{len(view.entries)} in context"),
        ]
        if run is not None:
            waits = view.live.generation is not None and (view.live.generation.retry or view.live.generation.deferred)
            state = "waiting" if waits else "running"
            rows.append(StatusRow(name="run", value=f"turn {run.turns + 1}, task {run.task}"))
        if view.live.approvals:
            state = "waiting"
            rows.append(StatusRow(name="waits for you", value=approval_calls(view.live.approvals), tone="warn"))
        if view.inbox.items:
            rows.append(StatusRow(name="inbox", value=f"{len(view.inbox.items)} waiting"))
        total = view.usage.total
        if view.usage.requests:
            cost = f" · ${total.cost:.4f}" if total.cost else ""
            rows.append(
                StatusRow(name="usage", value=f"{view.usage.requests} requests · {total.total_tokens:,} tokens{cost}")
            )
        if self.harness.hold:
            state = "paused"
            rows.append(StatusRow(name="paused", value=self._held_reason() or "until %durable resume"))
        return StatusView(title=Path(self.path).name, state=state, rows=tuple(rows), current=_current == self.name)

    def tasks(self, *, all: bool = False) -> TasksView:
        """Live tasks as a tree; ``all`` adds those that have ended."""
        self._check_open()
        return self._bridge.run(self._tasks, all)

    async def _tasks(self, all: bool) -> TasksView:
        graph = await self.harness.task_graph()
        ended = await self.harness.tasks(status="terminal").list(500) if all else []
        return tasks_view(graph, ended, all=all)

    def history(self, count: int | None = None) -> TranscriptView:
        """The transcript, or its last ``count`` entries."""
        self._check_open()

        async def read() -> TranscriptView:
            entries = await self.conversation.entries(order="ascending").list()
            earlier = 0 if count is None else max(0, len(entries) - count)
            shown, stopped = entries[earlier:], await self._stopped(entries[earlier:])
            return transcript_view(shown, conversation=self.conversation.id, earlier=earlier, stopped=stopped)

        return self._bridge.run(read)

    def context(self) -> TranscriptView:
        """The entries that the model's next request is made of."""
        self._check_open()

        async def read() -> TranscriptView:
            view = await self.conversation.context()
            stopped = await self._stopped(view.entries)
            return transcript_view(view.entries, conversation=self.conversation.id, stopped=stopped)

        return self._bridge.run(read)

    async def _stopped(self, entries: Sequence[Entry]) -> set[int]:
        """The entries of the inputs whose run was stopped; nothing is read when no answer was cut off."""
        messages = [message for entry in entries for message in entry.messages]
        if not any(message.role == "assistant" and message.stop_reason == "aborted" for message in messages):
            return set()
        found: set[int] = set()
        async for record in self.harness.submissions(conversation=self.conversation.id, order="descending"):
            if record.entry is not None and record.reason == "aborted":
                found.add(record.entry)
        return found

    def record(self, id: int) -> Entry | TaskRecord | SubmissionRecord:
        """The record of an id. Raises ``NotebookError`` when there is none."""
        self._check_open()

        async def read() -> Entry | TaskRecord | SubmissionRecord:
            storage = self.harness.storage
            found = await storage.entry(id) or await storage.task(id) or await storage.submission(id)
            if found is None:
                raise NotebookError(f"there is no entry, task or submission {id}")
            return found

        return self._bridge.run(read)

    def story(self, task: int) -> str:
        """What happened to a task, as a person reads it. Raises ``DurableError`` for one that does not exist."""
        self._check_open()
        return self._bridge.run(self.harness.story, TaskId(task))

    def limit(self, **caps: float | int | None) -> RunLimits:
        """Change spending caps (``turns``, ``tokens``, ``cost`` per run, ``session_cost``); returns those in force."""
        unknown = set(caps) - set(RunLimits.model_fields)
        if unknown:
            raise NotebookError(
                f"there is no limit {', '.join(sorted(unknown))}; there are turns, tokens, cost, session_cost"
            )
        self._limits = RunLimits.model_validate(self._settings().limits.to_data() | caps)
        return self._limits

    def _settings(self) -> Settings:
        """The settings that the session was opened with, under the caps that were set since."""
        given = self._given_settings() if callable(self._given_settings) else self._given_settings
        return given if self._limits is None else given.replaced(limits=self._limits)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy of the session, while it works, to a new file."""
        self._check_open()
        self._bridge.run(lambda: self.harness.storage.backup(os.fspath(path)))

    def usage(self) -> UsageState:
        """Tokens and cost of the session, per model and per tool."""
        self._check_open()
        return self._bridge.run(self.harness.usage)

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the session; what was running goes on at the next opening."""
        self._bridge.run(self._close)

    async def _close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        await self.harness.close()
        followers = [turn._follower for turn in self._turns.values() if turn._follower is not None]
        await asyncio.gather(*followers, return_exceptions=True)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        close(self.name)

    def _check_open(self) -> None:
        if self.closed:
            raise NotebookError(f"{self.path} is closed here: `%durable open {self.path}` opens it again")

    # -- waiting for tools -------------------------------------------------------------------------------------------

    def held(self) -> str | None:
        """Why nothing starts, in words that go on from "the session", or ``None`` when it does."""
        reason = self._held_reason()
        if reason is None:
            return None
        return f"is {reason}" if reason.startswith("paused") else f"waits {reason}"

    def _held_reason(self) -> str | None:
        if not self.harness.hold:
            return None
        if self._waiting_for:
            return "for " + "; ".join(self._waiting_for)
        return "paused: `%durable resume` starts it"

    async def _hold_for_tools(self) -> None:
        """Stay paused while recovered work names something this kernel lacks; go on when the registry has it."""
        self._unsubscribe = self.harness.registry.subscribe(lambda: self._bridge.call_soon(self._look_again))
        self.harness.hold = True
        self._waiting_for = _remedy((await self.harness.inspect()).unresolved)
        if not self._waiting_for:
            await self._resume()

    async def _look_again(self) -> None:
        """Go on when nothing is missing any more; called whenever the registry has changed."""
        if self._paused or not self.harness.hold or self.closed:
            return
        self._waiting_for = _remedy((await self.harness.inspect()).unresolved)
        if not self._waiting_for:
            await self._resume()
        else:
            self._refresh_turns()

    def _refresh_turns(self) -> None:
        """Show again what waited for scheduling."""

        async def refresh() -> None:
            try:
                view = await self.conversation.view()
                for turn in self._turns.values():
                    if not turn._settled.is_set():
                        record = await turn._submission.status()
                        if not record.settled:
                            turn._update(record, view)
            except SessionClosed:
                return  # the turns show that by themselves

        self._bridge.call_soon(refresh)


def _said(item: InboxItem) -> str:
    """What waits, in one line."""
    if item.mode == "reset":
        return f"a new context{': ' if item.messages else ''}{' '.join(message.text for message in item.messages)}"
    return clip(text_of(item.content) or " ".join(message.text for message in item.messages) or item.kind or "", 200)


def _remedy(missing: Sequence[str]) -> tuple[str, ...]:
    """What is missing as one line with one remedy, or nothing; each is ``kind name``, such as ``tool weather``."""
    kinds: dict[str, list[str]] = {}
    for item in missing:
        kind, _, name = item.partition(" ")
        kinds.setdefault(kind, []).append(f"`{name}`")
    if not kinds:
        return ()
    models, code = kinds.get("model", []), [name for kind, names in kinds.items() if kind != "model" for name in names]
    remedies = ([f"run {'its cell' if len(code) == 1 else 'their cells'}"] if code else []) + (
        [f"register {'it' if len(models) == 1 else 'them'} or set {'its key' if len(models) == 1 else 'their keys'}"]
        if models and not code
        else ["register the model or set its key"]
        if models
        else []
    )
    what = ", ".join(f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}" for kind, names in kinds.items())
    return (f"{what}: {', '.join(remedies)}, or `%durable resume`",)


# -- opening ---------------------------------------------------------------------------------------------------------


def open(
    path: str | os.PathLike[str],
    *,
    model: Any = None,
    instructions: str | None = None,
    paused: bool = False,
    name: str | None = None,
    settings: Settings | Callable[[], Settings] | None = None,
    env: Any = None,
    show: bool | None = None,
) -> Chat:
    """Open or create a session in this kernel, show what was recovered, and resume it; blocking.

    ``path`` is a SQLite file, ``jsonl:DIR`` or ``:memory:``. ``model`` is a name such as ``"local:smollm2"``, or a
    model object, which then answers to its id. A session that is open here already is returned. While recovered work
    names tools that this kernel lacks, the session stays paused and goes on by itself once they are installed;
    ``paused`` holds it until ``resume()``. Raises ``SessionInUse``, ``StorageError`` and ``UnknownModel``.
    """
    global _current
    text = os.fspath(path)
    key = name or _session_name(text)
    bridge = engine()
    present = next((chat for chat in sessions() if chat.name == key), None)
    same = next((chat for chat in sessions() if text != ":memory:" and _real(chat.path) == _real(text)), None)
    if present is not None and present is not same and (text != ":memory:" or present.path != text):
        raise NotebookError(f"a session named {key} is open on {present.path}: choose another name with --as NAME")
    if same is not None and present is not same:
        raise NotebookError(f"{text} is open here already, as {same.name}: `%durable use {same.name}` switches to it")
    if present is not None:
        if model is not None or instructions is not None:
            present.configure(**_agent_fields(model, instructions))
        chat, fresh = present, False
    else:
        chat = bridge.run(_open, bridge, text, key, _agent_fields(model, instructions), paused, settings, env)
        fresh = True
        _sessions[key] = chat
        _close_at_shutdown(bridge)
    _current = key
    if show if show is not None else frontend.in_ipython():
        chat._shown_in = _request_name()
        _display(mimebundle(chat.recovery if fresh else chat.status()))
    return chat


def _agent_fields(model: Any, instructions: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if model is not None:
        fields["model"] = _model_name(model)
    if instructions is not None:
        fields["instructions"] = instructions
    return fields


def _model_name(model: Any) -> str:
    if isinstance(model, str):
        return model
    default_models.register(model)
    return str(model.id)


def _check_model(name: str) -> None:
    """Raise ``NotebookError`` or ``UnknownModel`` with one line when there is no such model."""
    if default_models.get(name) is None:
        raise NotebookError(
            f"there is no model {name!r}: names are provider:name, such as local:smollm2, openai:gpt-5-mini or "
            "scripted:demo"
        )


def _session_name(path: str) -> str:
    return Path(path.removeprefix("jsonl:")).stem or path


def _real(path: str) -> str:
    return path if path == ":memory:" else os.path.realpath(path.removeprefix("jsonl:"))


async def _open(
    bridge: Bridge,
    path: str,
    name: str,
    agent: dict[str, Any],
    paused: bool,
    settings: Settings | Callable[[], Settings] | None,
    env: Any,
) -> Chat:
    if agent.get("model") is not None:
        # Making a provider's model imports its client; the engine's loop goes on meanwhile.
        await asyncio.to_thread(_check_model, agent["model"])
    if settings is None:  # each cell is a question of its own: one that fails does not keep the next waiting
        settings = Settings(after_failed_run="continue")
    given = settings
    chat: Chat | None = None

    def in_force() -> Settings:
        if chat is not None:
            return chat._settings()
        return given() if callable(given) else given

    harness = await Harness.open(path, models=default_models, registry=registry, settings=in_force, env=env)
    try:
        harness.run_in_kernel = bridge.run_in_kernel
        harness.hold = True
        new = await harness.conversation(1) is None
        root = await harness.root(agent=AgentChange(**agent))
        if agent and not new:
            await root.configure(**agent)
        chat = Chat(bridge, harness, root, name)
        chat._given_settings = given
        inspection = await harness.inspect()
        lives = await harness.storage.lives()
        found = await _cut_off(harness)
        live = await harness.snapshot(LiveState, root.id) or LiveState()
        prompts = await _prompts(chat)
        chat._paused = paused
        harness.hold = paused
        if not paused:
            await chat._hold_for_tools()
        chat.recovery = recovery_view(
            chat.path,
            lives,
            inspection,
            live,
            found,
            prompts=prompts,
            paused=paused,
            waiting_for=chat._waiting_for,
        )
    except BaseException:
        await harness.close()
        raise
    return chat


async def _cut_off(harness: Harness) -> list[Attempt]:
    """The attempts that the death of the last life cut off."""
    last = harness.storage.life.id
    attempts: list[Attempt] = []
    for item in (await harness.inspect()).tasks:
        attempts.extend(await harness.storage.attempts(task=item.record.id))
    newest = max((attempt.life for attempt in attempts), default=last)
    return [attempt for attempt in attempts if attempt.end == "cut_off" and attempt.life == newest]


async def _prompts(chat: Chat) -> dict[int, str]:
    """The texts of the open submissions."""
    prompts: dict[int, str] = {}
    inbox = await chat.harness.snapshot(InboxState, chat.conversation.id)
    for item in inbox.items if inbox is not None else ():
        prompts[item.submission] = "\n".join(block.text for block in item.content if block.type == "text")
    for record in (await chat.harness.inspect()).submissions:
        if record.entry is not None:
            entry = await chat.conversation.entry(record.entry)
            if entry is not None:
                prompts[record.id] = entry.text
    return prompts


_closes: set[Bridge] = set()


def _close_at_shutdown(bridge: Bridge) -> None:
    """Close every session when the kernel shuts down; the bridge bounds how long that may take."""
    if bridge in _closes:
        return
    _closes.add(bridge)

    async def close_all() -> None:
        await asyncio.gather(*(chat._close() for chat in _sessions.values() if not chat.closed), return_exceptions=True)

    bridge.on_shutdown(close_all)


def current() -> Chat:
    """The session that magics use. Raises ``NotebookError`` when none is open."""
    chat = _sessions.get(_current) if _current is not None else None
    if chat is None or chat.closed:
        chat = next(reversed(sessions()), None)
    if chat is None:
        raise NotebookError("no session is open: `%durable open chat.sqlite` opens or creates one")
    return chat


def sessions() -> tuple[Chat, ...]:
    """The sessions opened in this kernel that are still open."""
    return tuple(chat for chat in _sessions.values() if not chat.closed)


def use(name: str) -> Chat:
    """Make another open session the one that magics use."""
    global _current
    chat = _sessions.get(name)
    if chat is None or chat.closed:
        known = ", ".join(chat.name for chat in sessions()) or "none"
        raise NotebookError(f"no session named {name!r} is open here; open are: {known}")
    _current = name
    return chat


def close(name: str | None = None) -> Chat:
    """Close a session, by default the current one; the one opened last of the others becomes the current one."""
    global _current
    before = _current
    chat = current() if name is None else use(name)
    chat.close()
    _sessions.pop(chat.name, None)
    if chat.name == before:
        rest = sessions()
        _current = rest[-1].name if rest else None
    else:
        _current = before
    return chat


def install(*items: Any) -> None:
    """Install tools, functions (made into tools) and extensions for every session of this kernel.

    A tool replaces an earlier one of its name. Raises ``RegistryError`` for anything else.
    """
    tools: list[Tool] = []
    for item in items:
        if isinstance(item, Extension):
            registry.install(item)
        elif isinstance(item, Tool):
            tools.append(item)
        elif inspect.isfunction(item):
            tools.append(tool(item))
        else:
            raise RegistryError(f"{item!r} is not a tool, a function or an extension: decorate the function with @tool")
    if tools:
        present = registry.snapshot().extension(TOOLS)
        kept = {old.name: old for old in (present.tools if present is not None else ())}
        kept |= {new.name: new for new in tools}
        registry.install(Extension(TOOLS, tools=list(kept.values())))


class _Interrupts:
    """While a cell awaits, notice its interrupts.

    ipykernel cancels a cell that awaits from its signal handler, without waking the loop: a loop that has nothing else
    to do goes on sleeping. So this wakes it, and tells an interrupt from every other cancellation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.came = False
        self._loop = loop
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
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


def clip_line(text: str, limit: int = 60) -> str:
    """A text on one line, cut after ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _when(at: float | None, now: float) -> str:
    """`` from 14:02``, with the date when it was not today."""
    if at is None:
        return ""
    text = clock_time(at, date=True)
    return f" from {text[11:16] if text[:10] == clock_time(now, date=True)[:10] else text[:16]}"


# -- displaying ------------------------------------------------------------------------------------------------------


def _request_name() -> str | None:
    """What tells the execution of one cell from another's; ``None`` outside of IPython."""
    header = frontend.request().get("header")
    if isinstance(header, dict):
        return str(header.get("msg_id"))
    if not frontend.in_ipython():
        return None
    from IPython import get_ipython

    return str(get_ipython().execution_count)


def _display(data: dict[str, Any], *, metadata: dict[str, Any] | None = None, handle: bool = False) -> Any:
    """Show a bundle in the current cell; outside of IPython print its text."""
    if not frontend.in_ipython():
        print(data.get("text/plain", ""))
        return None
    from IPython.display import display

    return display(data, metadata=metadata or {}, raw=True, display_id=True if handle else None)  # type: ignore[no-untyped-call]


def _replace(widget: Any, handle: Any, view: AnswerView) -> None:
    """Put the static form in place of a live display that has ended; a page that misses this asks the widget for it."""
    static = mimebundle(view)
    widget.flush()
    if handle is not None:
        handle.update(static, raw=True)
    widget.finish(static)
