"""An open session as a notebook uses it: ``Chat`` (notebook.md, Python).

A ``Chat`` is one conversation of an open session, asked and watched from cells. Everything durable happens on the
engine thread; the methods here are what the kernel thread calls, through the bridge. The other nouns have modules of
their own: ``turns`` a question and its answer, ``asking`` how a cell finds what it asked before, ``holding`` what
keeps a session from starting, ``opening`` how a session is opened, ``opened`` which are open, ``installed`` what they
share.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from ..agent.conversation import Conversation, Submission, WhenBusy
from ..agent.settings import RunLimits
from ..agent.state import InboxItem, LiveApproval, UsageState
from ..errors import NotebookError
from ..messages import TextBlock, UserMessage, text_of
from ..records import Entry, SubmissionRecord, SubmissionStatus, TaskId, TaskRecord
from . import dashboard, frontend, live, talk
from .asking import Asked, Asking, Content, Request
from .branching import Branches
from .dashboardview import DashboardView
from .displays import Changing, display, request_name
from .export import collect, document, format_of, write_document
from .graphview import GraphView
from .installed import check_model, install, model_name
from .live import LiveView
from .opened import check_name, close, is_current, opened, session_name, sessions
from .opensession import OpenSession
from .present import approval_calls, tasks_view, transcript_view
from .render import mimebundle
from .talk import stopped_inputs
from .talkview import TalkView
from .timelineview import LIMIT, TimelineView
from .turns import INTERRUPT_GRACE, Answer, Turn, TurnInterrupted
from .view import (
    ComparisonView,
    ConversationsView,
    RecoveryView,
    StatusRow,
    StatusView,
    TasksView,
    TranscriptView,
    clip,
    clock_time,
    duration_words,
    plural,
)

T = TypeVar("T")


class Chat:
    """A conversation of an open session, asked and watched from cells.

    ``harness`` and ``conversation`` are the engine's objects; use them on the engine thread, through ``run``. Where the
    notebook is rewound, ``conversation`` becomes another one; ``fork`` gives a ``Chat`` of its own.
    """

    observed = False
    """Whether another process has the session, and it is only read here."""

    def __init__(self, session: OpenSession, name: str, *, label: str, line: Sequence[int]) -> None:
        self.name = name
        self.harness = session.harness
        self.path = session.path
        self._session = session
        self._bridge = session.bridge
        self._hold = session.hold
        self._label = label
        self._asking = Asking(session.harness, line)
        self._branches = Branches(session, self._asking, label)
        self._shown_in: str | None = None

    def __repr__(self) -> str:
        return f"<Chat {self.name} on {self.path}{' (closed)' if self.closed else ''}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return mimebundle(self._session.recovery)

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != request_name():
            display(mimebundle(self.status()))

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._session.closed

    @property
    def is_fork(self) -> bool:
        """Whether it was forked off and has a name of its own; the notebook's own line is none, rewound or not."""
        return bool(self._label)

    @property
    def conversation(self) -> Conversation:
        """The conversation in which this one goes on."""
        return self._asking.conversation

    @property
    def recovery(self) -> RecoveryView:
        """What was found when the session was opened."""
        return self._session.recovery

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        content: Content,
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
        turn = self._asked(content, _request(request_id), when_busy, again)
        if show if show is not None else frontend.live_frontend():
            turn.show()
        return turn

    def ask(self, content: Content, **options: Any) -> Answer:
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
        request = self._asking.request(kind, text, cell=cell, name=id)
        return self._asked(text, request, when_busy, again)

    def cell_request(self, kind: str, text: str, *, cell: str | None) -> Request:
        """What a cell that does ``kind`` with ``text`` asks for: with it as ``request_id`` it is done once."""
        return self._asking.request(kind, text, cell=cell)

    def _asked(self, content: Content, request: Request | None, when_busy: WhenBusy, again: bool) -> Turn:
        """Ask on the engine thread. An interrupt meanwhile stops the turn, as one that comes later does."""
        turns: list[Turn] = []
        ended = asyncio.Event()

        async def ask() -> Turn:
            try:
                turns.append(await self._ask(content, request, when_busy, again))
            finally:
                ended.set()
            return turns[0]

        async def stop() -> None:
            await ended.wait()
            for turn in turns:
                await turn._stop()

        try:
            return self._bridge.run(ask, shield=True)
        except KeyboardInterrupt:
            self._bridge.later(INTERRUPT_GRACE, stop)
            raise TurnInterrupted from None

    async def _ask(self, content: Content, request: Request | None, when_busy: WhenBusy, again: bool) -> Turn:
        return await self._follow(content, await self._asking.ask(content, request, when_busy, again))

    async def _follow(self, content: Content, asked: Asked) -> Turn:
        prompt = content if isinstance(content, str) else "\n".join(b.text for b in content if b.type == "text")
        turn = Turn(self, asked.submission, prompt, asked.note)
        self._session.follow(turn)
        turn._start()
        await asyncio.sleep(0)
        if asked.stored:
            await turn._settled.wait()
        return turn

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, *, show: bool | None = None) -> None:
        """Wait until the conversation is idle; where somebody watches it says how long that has taken.

        Raises ``NotebookError`` while the session is held back.
        """
        self._check_open()
        with Changing(show if show is not None else frontend.in_ipython()) as shown:
            while not self._bridge.run(self._waited, shown.interval):
                shown.change(StatusView(title=f"waiting until idle · {duration_words(shown.elapsed)}", state="running"))
            if shown.begun:
                shown.end(StatusView(title=f"idle after {duration_words(shown.elapsed)}", state="done"))

    async def _waited(self, patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                await self._wait()
        except TimeoutError:
            return False
        return True

    async def _wait(self) -> None:
        await self._hold.look_again()
        if self._hold.words is not None:
            raise NotebookError(f"nothing would end: the session {self._hold.words}")
        await self.conversation.wait_for_idle()

    # -- steering ----------------------------------------------------------------------------------------------------

    def steer(self, content: Content) -> Turn:
        """Into the busy run, after its present tool round; idle, a new run."""
        return self.submit(content, when_busy="steer")

    def follow_up(self, content: Content) -> Turn:
        """After the present run."""
        return self.submit(content, when_busy="follow_up")

    def stop(self, *, background: bool = False) -> bool:
        """Withdraw queued inputs and stop the run; returns when idle. Whether there was anything to stop.

        ``background`` stops background tasks too.
        """
        self._check_open()
        return self._bridge.run(self._stop, background)

    async def _stop(self, background: bool = False) -> bool:
        view = await self.conversation.view()
        tasks = [item.record for item in (await self.harness.inspect()).tasks]
        mine = [task for task in tasks if task.conversation_id == self.conversation.id]
        busy = view.live.run is not None or any(item.type == "input" for item in view.inbox.items)
        busy = busy or any(background or not task.background for task in mine if task.owner is None)
        if self.harness.hold:
            # Nothing ends while scheduling is held back; once it is marked, nothing of it starts either.
            for task in mine:
                if task.owner is None and (background or not task.background):
                    await self.harness.abort_task(task.id)
            for waiting in view.inbox.items:
                if waiting.type == "input":
                    await self.harness._abort_submission(waiting.submission)
            await self._hold.resume()
        for turn in self._session.turns.values():
            if turn.view.conversation == self.conversation.id:
                turn._stopping = not turn._settled.is_set()
        self._session.refresh_turns()
        await self._session.ending(self.conversation.abort(background=background))
        return busy

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
            return StatusView(title=f"inbox · {count}", state="waiting" if rows else None, rows=rows)

        return self._bridge.run(read)

    def withdraw(self, submission: int) -> Literal["aborted", "already_placed", "settled"]:
        """Take back what waits. Raises ``DurableError`` for a submission that does not exist."""
        self._check_open()
        return self._bridge.run(self.harness._abort_submission, submission)

    def note(self, text: str, *, request_id: str | Request | None = None) -> SubmissionStatus:
        """Add something that the model reads with the next question; returns whether it is ``done`` or ``queued``.

        ``request_id`` makes it idempotent: the same id finds what was noted, before and after a restart.
        """
        self._check_open()

        async def write(id: str | None) -> Submission:
            said = UserMessage([TextBlock(text)], timestamp=self.harness.clock())
            return await self.conversation.write("notebook.note", messages=[said], request_id=id)

        return self._bridge.run(self._asking.write, _request(request_id), write)

    def reset(self, handoff: str | None = None, *, request_id: str | Request | None = None) -> None:
        """Start the model's context anew, with a note to what comes; the history stays."""
        self._check_open()

        async def write(id: str | None) -> None:
            await self.conversation.reset(handoff, request_id=id)

        self._bridge.run(self._asking.write, _request(request_id), write)

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
            change["model"] = model_name(change["model"])
        self._bridge.run(self._configure, change)

    async def _configure(self, change: dict[str, Any]) -> None:
        if change.get("model") is not None:
            await asyncio.to_thread(check_model, change["model"])
        await self.conversation.configure(**change)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function on the engine thread and return its result: any engine API, from a cell."""
        return self._bridge.run(function, *args)

    def resume(self) -> None:
        """Start what waits, also without the tools that recovered work named."""
        self._check_open()
        self._bridge.run(self._hold.resume)

    # -- branches ----------------------------------------------------------------------------------------------------

    def fork(
        self, entry: int | None = None, *, name: str | None = None, request_id: str | Request | None = None
    ) -> Chat:
        """A branch that sees everything through an entry, by default the newest, and goes on by itself.

        Returns a ``Chat`` of it, which has ``name`` for ``use``; this one stays where it is. ``request_id`` finds the
        branch that was forked under it. Raises ``NotebookError`` where there is nothing to fork at, or the name is
        taken, and ``DurableError`` for an entry that does not exist.
        """
        self._check_open()
        if name is not None:
            check_name(name)
        label, conversation = self._bridge.run(
            self._branches.fork, entry, name, _request(request_id), session_name(self.path)
        )
        return self._branch(label, conversation)

    def branch(self, name: str | int) -> Chat:
        """A ``Chat`` of a branch of this session, by its name or by the id of its conversation."""
        self._check_open()
        label, conversation = self._bridge.run(self._branches.find, name, session_name(self.path))
        return self._branch(label, conversation)

    def _branch(self, label: str, conversation: int) -> Chat:
        for chat in sessions():
            if chat._session is self._session and chat._label == label:
                return chat
        line = self._bridge.run(self._branches.line, label, conversation)
        chat = self._beside(label or session_name(self.path), label, line)
        opened(chat, chat.name, current=False)
        return chat

    def _beside(self, name: str, label: str, line: Sequence[int]) -> Chat:
        """Another line of branches of the same session."""
        return Chat(self._session, name, label=label, line=line)

    def rewind(self, entry: int, *, request_id: str | Request | None = None) -> None:
        """Go on from an earlier entry: on a new branch, on which this chat is from now on, in later lives too.

        What came after the entry stays, on the branch that is left. ``request_id`` goes to the branch that was made
        under it. Raises ``DurableError`` for an entry that does not exist.
        """
        self._check_open()
        self._bridge.run(self._branches.rewind, entry, _request(request_id))

    def edit(
        self,
        entry: int,
        content: Content,
        *,
        request_id: str | Request | None = None,
        show: bool | None = None,
    ) -> Turn:
        """Say an earlier question differently and go on from there, on a new branch; the original is kept.

        ``entry`` is the question's. Returns the turn of the new one; ``request_id`` goes to the branch that was made
        under it. Raises ``DurableError`` for an entry that does not
        exist here or that is no question.
        """
        self._check_open()

        async def revise() -> Turn:
            submission = await self._branches.revise(entry, content, _request(request_id))
            return await self._follow(content, Asked(submission, None, stored=False))

        turn = self._bridge.run(revise)
        if show if show is not None else frontend.live_frontend():
            turn.show()
        return turn

    def conversations(self) -> ConversationsView:
        """The conversations of the session, as a tree: which was forked from which, and what was said last in each."""
        self._check_open()
        return self._bridge.run(self._branches.list)

    def branch_names(self) -> list[str]:
        """The names of the branches of this session."""
        self._check_open()
        return self._bridge.run(self._branches.names)

    def compare(self, one: str | int, other: str | int | None = None) -> ComparisonView:
        """Two branches side by side: what both see, and what each has after it. Each is a name or a conversation's id;
        one alone is compared with where this chat is."""
        self._check_open()
        return self._bridge.run(self._branches.compare, one, other, session_name(self.path))

    def compact(
        self, instructions: str | None = None, *, request_id: str | Request | None = None, show: bool | None = None
    ) -> StatusView:
        """Have the oldest part of the model's context summarised, and wait for it; what came of it.

        ``instructions`` say what the summary is to keep. The history stays. ``request_id`` finds what was compacted
        under it. Interrupting stops waiting, and the work goes on. Raises ``NotebookError`` when it failed.
        """
        self._check_open()
        if self._hold.words is not None:
            raise NotebookError(f"nothing would end: the session {self._hold.words}")
        task = self._bridge.run(self._branches.compact, instructions, _request(request_id))
        with Changing(show if show is not None else frontend.in_ipython()) as shown:
            while (done := self._bridge.run(self._branches.compacted, task, shown.interval)) is None:
                shown.change(StatusView(title=f"compacting · {duration_words(shown.elapsed)}", state="running"))
            shown.end(done)
        return done

    # -- reading -----------------------------------------------------------------------------------------------------

    def status(self) -> StatusView:
        """What is open, what runs."""
        return self._bridge.run(self._status) if not self.closed else StatusView(title=self.path, state="closed")

    async def _status(self) -> StatusView:
        view = await self.conversation.view()
        run = view.live.run
        state: Literal["idle", "running", "paused", "waiting"] = "idle" if run is None else "running"
        rows = [
            StatusRow(name="session", value=f"{self.name} · {self.path}"),
            *await self._branches.rows(),
            *await self._owner_rows(),
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
            requests = plural(view.usage.requests, "request")
            cost = f" · ${total.cost:.4f}" if total.cost else ""
            rows.append(StatusRow(name="usage", value=f"{requests} · {total.total_tokens:,} tokens{cost}"))
        if self.harness.hold:
            state = "paused"
            rows.append(StatusRow(name="paused", value=self._hold.reason or "until %durable resume"))
        return StatusView(title=Path(self.path).name, state=state, rows=tuple(rows), current=is_current(self.name))

    async def _owner_rows(self) -> list[StatusRow]:
        life = self.harness.storage.life
        return [StatusRow(name="owner", value=f"this kernel, process {life.pid}, since {clock_time(life.opened_at)}")]

    def tasks(self, *, all: bool = False) -> TasksView:
        """Live tasks as a tree; ``all`` adds those that have ended."""
        self._check_open()
        return self._bridge.run(self._tasks, all)

    async def _tasks(self, all: bool) -> TasksView:
        graph = await self.harness.task_graph()
        ended = await self.harness.tasks(status="terminal").list(500) if all else []
        return tasks_view(graph, ended, all=all)

    def watch(self) -> LiveView[TalkView]:
        """The conversation, live where somebody watches: its transcript, what waits, and a place to write."""
        self._check_open()
        return talk.watch(self)

    def dashboard(self) -> LiveView[DashboardView]:
        """The conversation, the tasks, the timeline and the opening, in tabs; live where somebody watches."""
        self._check_open()
        return dashboard.dashboard(self)

    def graph(self) -> LiveView[GraphView]:
        """The tasks as a tree, live where somebody watches: owners, waits, and why something does not go on."""
        self._check_open()
        return live.graph(self)

    def timeline(self, limit: int = LIMIT) -> LiveView[TimelineView]:
        """What ran when, over all lives of the session, for its newest ``limit`` tasks; live where somebody watches."""
        self._check_open()
        return live.timeline(self, limit)

    def history(self, count: int | None = None) -> TranscriptView:
        """The transcript, or its last ``count`` entries, at least one."""
        self._check_open()
        if count is not None and count < 1:
            raise NotebookError(f"{count} entries cannot be shown; give a number from 1")

        async def read() -> TranscriptView:
            entries = await self.conversation.entries(order="ascending").list()
            earlier = 0 if count is None else max(0, len(entries) - count)
            shown, stopped = entries[earlier:], await stopped_inputs(self.harness, entries[earlier:])
            return transcript_view(shown, conversation=self.conversation.id, earlier=earlier, stopped=stopped)

        return self._bridge.run(read)

    def context(self) -> TranscriptView:
        """The entries that the model's next request is made of."""
        self._check_open()

        async def read() -> TranscriptView:
            view = await self.conversation.context()
            stopped = await stopped_inputs(self.harness, view.entries)
            return transcript_view(view.entries, conversation=self.conversation.id, stopped=stopped)

        return self._bridge.run(read)

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
        try:
            limits = RunLimits.model_validate(self._session.settings().limits.to_data() | caps)
        except ValidationError as error:
            first = error.errors()[0]
            raise NotebookError(f"{first['loc'][0]} cannot be {first['input']}: {first['msg']}") from None
        self._session.limits = limits
        return limits

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy of the session, while it works, to a new file."""
        self._check_open()
        self._bridge.run(lambda: self.harness.storage.backup(os.fspath(path)))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the conversation to one file: ``.html``, ``.md`` or ``.json``; what is there is replaced.

        Raises ``NotebookError`` for another ending.
        """
        self._check_open()
        format = format_of(path)
        collected = self._bridge.run(collect, self.harness, self.conversation.id)
        write_document(path, document(collected, format))
        return Path(path)

    def usage(self) -> UsageState:
        """Tokens and cost of the session, per model and per tool."""
        self._check_open()
        return self._bridge.run(self.harness.usage)

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the session; what was running goes on at the next opening."""
        self._bridge.run(lambda: self._session.ending(self._session.close()))

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        close(self.name)

    def _check_open(self) -> None:
        if self.closed:
            raise NotebookError(f"{self.path} is closed here: `%durable open {self.path}` opens it again")

    def held(self) -> str | None:
        """Why nothing starts, in words that go on from "the session", or ``None`` when it does."""
        return self._hold.words


def _request(given: str | Request | None) -> Request | None:
    return Request("", None, given) if isinstance(given, str) else given


def _said(item: InboxItem) -> str:
    """What waits, in one line."""
    if item.mode == "reset":
        return f"a new context{': ' if item.messages else ''}{' '.join(message.text for message in item.messages)}"
    return clip(text_of(item.content) or " ".join(message.text for message in item.messages) or item.kind or "", 200)
