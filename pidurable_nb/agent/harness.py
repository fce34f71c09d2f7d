"""The harness: a session that runs agents (api.md, Opening)."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, Self

from pydantic import Field

from ..errors import DurableError, WouldDeadlock
from ..models.protocol import ModelSet, ModelSource
from ..records import (
    ROOT,
    ConversationId,
    ConversationRecord,
    SubmissionRecord,
    TaskId,
    TaskRecord,
    checkpoint_of_task,
)
from ..session import Opening, Publication, Report, Scan, SessionEnd, Tx
from ..session.documents import Address
from ..session.session import as_storage
from ..storage.protocol import Order, Page, Storage
from ..tasks import Task, TaskSession, Wake
from ..tasks.core import BlockedReason
from ..values import Value
from .agent import Agent, AgentChange, apply_change, resolve
from .compaction import CompactionTask
from .conversation import Conversation, ConversationView, Submission
from .generation import GenerationTask
from .registry import Registry
from .runs import settle_inputs, withdraw_inputs
from .settings import Settings
from .state import AgentState, InboxState, LiveState, ProviderState, UsageState
from .toolrun import ToolTask

ENGINE_TASKS: dict[str, type[Task[Any, Any]]] = {task.name: task for task in (GenerationTask, ToolTask, CompactionTask)}

Init = Callable[[Tx, ConversationRecord], Any]


# -- inspection ------------------------------------------------------------------------------------------------------


class TaskRunning(Value):
    """An invocation of this process runs it."""

    kind: Literal["running"] = "running"


class TaskPending(Value):
    """Ready, or about to be; ``migrates`` when its record is of an older version."""

    migrates: bool = False
    kind: Literal["pending"] = "pending"


class TaskWaiting(Value):
    """Waits for other tasks, or for a signal until an instant (epoch seconds; ``None`` waits without end)."""

    on: tuple[TaskId, ...] = ()
    signal: str | None = None
    until: float | None = None
    kind: Literal["waiting"] = "waiting"


class TaskSleeping(Value):
    """Sleeps until an instant."""

    until: float
    kind: Literal["sleeping"] = "sleeping"


class TaskCompleting(Value):
    """Holds its outcome until its owned work has drained."""

    kind: Literal["completing"] = "completing"


class TaskBlocked(Value):
    """Its definition cannot take it; ``error`` is what its migration raised."""

    reason: BlockedReason
    error: str | None = None
    kind: Literal["blocked"] = "blocked"


TaskSchedulingState = TaskRunning | TaskPending | TaskWaiting | TaskSleeping | TaskCompleting | TaskBlocked


class InspectedTask(Value):
    """A live task and what the scheduler makes of it."""

    record: TaskRecord
    state: TaskSchedulingState


class Inspection(Value):
    """What is live: ``scheduling`` is ``paused`` or ``running``; ``unresolved`` lists what this process lacks."""

    scheduling: Literal["paused", "running", "closing"]
    tasks: tuple[InspectedTask, ...] = ()
    submissions: tuple[SubmissionRecord, ...] = ()
    unresolved: tuple[str, ...] = Field(default=())


class Harness(TaskSession):
    """One opened storage that runs agents: conversations, tasks, models, tools.

    Made by ``Harness.open``. Everything is asynchronous and belongs to the event loop that opened it.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        models: Any,
        registry: Registry | None,
        settings: Settings | Callable[[], Settings] | None,
        env: Any,
        conversation_created: Init | None,
        clock: Callable[[], float],
        on_report: Callable[[Report], None] | None,
        on_wake: Callable[[Wake], None] | None,
    ) -> None:
        if not isinstance(registry, Registry | None):
            raise TypeError(f"registry= takes a Registry with extensions installed in it, not {registry!r}")
        if not isinstance(settings, Settings | None) and not callable(settings):
            raise TypeError(f"settings= takes Settings(…) or a function that returns them, not {settings!r}")
        super().__init__(storage, clock=clock, on_report=on_report, on_wake=on_wake)
        self.models: ModelSet = ModelSet(models)
        self.registry: Registry = registry if registry is not None else Registry()
        self.env = env
        self.run_in_kernel: Callable[..., Any] | None = None
        self._given_settings = settings
        self._default_settings = Settings()
        self._on_created = conversation_created
        self._agents: dict[int, tuple[Any, Agent]] = {}
        self._submission_waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._root_lock = asyncio.Lock()
        self._unsubscribe = self.registry.subscribe(self._registry_listener)

    @classmethod
    def open(
        cls,
        storage: Storage | str | os.PathLike[str],
        *,
        models: ModelSource | Callable[[], ModelSource] = (),
        registry: Registry | None = None,
        settings: Settings | Callable[[], Settings] | None = None,
        env: Any = None,
        conversation_created: Init | None = None,
        clock: Callable[[], float] = time.time,
        on_report: Callable[[Report], None] | None = None,
        on_wake: Callable[[Wake], None] | None = None,
    ) -> Opening[Self]:
        """Open or create a session: ``await`` it, or use it in ``async with``, which also closes it.

        ``storage`` is a path (SQLite), ``jsonl:DIR`` or an existing directory, ``":memory:"``, or a ``Storage``.
        ``models`` is one model, several, a mapping, a ``Models``, or a callable returning one of these. ``settings``
        may be a callable too and is read at each use. ``conversation_created(tx, record)`` runs in every commit that
        creates a conversation. With ``on_wake`` the harness arms no timers: the host calls ``resume()`` (engine.md,
        section 8).

        Nothing runs before ``resume()``, a submission, or a wait. Raises ``SessionInUse`` and ``StorageError``.
        """

        async def open_harness() -> Self:
            opened = await as_storage(storage, clock)
            harness: Self | None = None
            try:
                harness = cls(
                    opened,
                    models=models,
                    registry=registry,
                    settings=settings,
                    env=env,
                    conversation_created=conversation_created,
                    clock=clock,
                    on_report=on_report,
                    on_wake=on_wake,
                )
                await harness._load()
            except BaseException:
                if harness is not None:
                    harness._unsubscribe()
                await opened.close(ended="failed")
                raise
            return harness

        return Opening(open_harness)

    # -- conversations -----------------------------------------------------------------------------------------------

    async def root(self, *, agent: AgentChange | None = None, init: Init | None = None) -> Conversation:
        """The root conversation, created when absent; ``agent`` and ``init`` apply only then."""
        self._check_line()
        self._check_open()
        async with self._root_lock:
            if self._committed.conversations.get(ROOT) is None:
                async with self._commit(lambda: Tx(self, ROOT)) as tx:
                    if await tx.conversation(ROOT) is None:
                        record = ConversationRecord(ROOT)
                        tx._staged.conversations[ROOT] = record
                        tx._wrote = True
                        await self._conversation_created(tx, record)
                        await self._set_up(tx, record, agent, init)
        return Conversation(self, ROOT)

    async def conversation(self, id: int) -> Conversation | None:
        """A handle of a conversation, ``None`` when there is none."""
        self._check_line()
        self._check_open()
        found = self._committed.conversations.get(id) or await self._read(self.storage.conversation(id))
        return None if found is None else Conversation(self, found.id)

    async def create_conversation(
        self, *, owner: TaskId | None = None, agent: AgentChange | None = None, init: Init | None = None
    ) -> Conversation:
        """A new conversation; owned by a task it starts with a copy of its owner's agent (engine.md, section 6)."""
        self._check_line()
        self._check_open()
        async with self._commit(lambda: Tx(self, None)) as tx:
            record = await tx.create_conversation(owner=owner)
            await self._set_up(tx, record, agent, init)
        return Conversation(self, record.id)

    async def _set_up(self, tx: Tx, record: ConversationRecord, agent: AgentChange | None, init: Init | None) -> None:
        if agent is not None:
            await self._configure(tx, record.id, agent.given())
        if init is not None:
            await init(tx, record)

    async def _conversation_created(self, tx: Tx, record: ConversationRecord) -> None:
        agent = await tx.doc(AgentState, record.id)
        if record.owner is not None and record.parent is None:
            inherited = await tx.doc(AgentState, record.owner.conversation)
            for field in AgentState.model_fields:
                setattr(agent, field, getattr(inherited, field))
        await tx.doc(LiveState, record.id)
        await tx.doc(InboxState, record.id)
        await tx.doc(UsageState, record.id)
        await tx.doc(ProviderState, record.id, seed={"session_id": uuid.uuid4().hex})
        if self._on_created is not None:
            await self._on_created(tx, record)

    def conversations(
        self,
        *,
        owner_task: int | None = None,
        owner_conversation: int | None = None,
        order: Order = "ascending",
    ) -> Scan[ConversationRecord]:
        """Conversation records, all or those of an owner."""
        return self._scan(
            self.storage.scan_conversations,
            owner_task=owner_task,
            owner_conversation=owner_conversation,
            order=order,
        )

    def tasks(
        self,
        *,
        conversation: int | None = None,
        kind: str | None = None,
        status: Any = None,
        abort_requested: bool | None = None,
        background: bool | None = None,
        order: Order = "ascending",
    ) -> Scan[TaskRecord]:
        """Task records, live and ended, by any of these filters."""
        return self._scan(
            self.storage.scan_tasks,
            conversation=conversation,
            kind=kind,
            status=status,
            abort_requested=abort_requested,
            background=background,
            order=order,
        )

    def submissions(
        self, *, conversation: int | None = None, status: Any = None, order: Order = "ascending"
    ) -> Scan[SubmissionRecord]:
        """Submission records, by any of these filters."""
        return self._scan(self.storage.scan_submissions, conversation=conversation, status=status, order=order)

    def _scan(self, fetch: Any, **filters: Any) -> Scan[Any]:
        async def page(limit: int, cursor: int | None) -> Page[Any]:
            self._check_line()
            self._check_open()
            found: Page[Any] = await self._read(fetch(limit=limit, cursor=cursor, **filters))
            return found

        return Scan(page)

    # -- agents and settings -----------------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        given = self._given_settings
        if given is None:
            return self._default_settings
        return given if isinstance(given, Settings) else given()

    def _restart_limit(self) -> float:
        return self._settings().restart_limit

    def _retention(self) -> tuple[float, float]:
        settings = self._settings()
        return settings.document_retention, settings.context_retention

    def _definition(self, kind: str) -> tuple[type[Task[Any, Any]], str | None] | None:
        engine = ENGINE_TASKS.get(kind)
        if engine is not None:
            return engine, None
        return self.registry.snapshot().task_with_extension(kind)

    async def _agent(self, conversation: int) -> Agent:
        self._check_line()
        state = await self._committed_document(Address(AgentState.spec_.kind, conversation))
        settings = self._settings()
        snapshot = self.registry.snapshot()
        only = self.models.only()
        key = (None if state is None else state.value, settings, snapshot, only)
        cached = self._agents.get(conversation)
        if cached is not None and all(old is new for old, new in zip(cached[0], key, strict=True)):
            return cached[1]

        def on_error(extension: str, callback: str, error: Exception) -> None:
            self._report("extension_error", error, extension=extension, conversation=conversation, callback=callback)

        stored = None if state is None else AgentState.model_validate(state.value)
        agent = resolve(stored, settings, snapshot, None if only is None else only.id, on_error)
        self._agents[conversation] = (key, agent)
        return agent

    async def _configure(self, tx: Tx, conversation: int, change: dict[str, Any]) -> None:
        state = await tx.doc(AgentState, conversation)
        settings = self._settings()
        snapshot = self.registry.snapshot()

        def everything(field: str) -> Sequence[str]:
            if field == "extensions":
                installed = [extension.name for extension in snapshot.extensions]
                return installed if settings.extensions is None else settings.extensions
            tools = snapshot.tools(settings.extensions if state.extensions is None else state.extensions)
            chosen = settings.tools if field == "tools" or state.tools is None else state.tools
            names = list(tools) if chosen is None else list(chosen)
            if field == "tools":
                return names
            if settings.model_tools is not None:
                return settings.model_tools
            return [n for n in names if n not in tools or (tools[n].callers != "tools" and not tools[n].deferred)]

        apply_change(state, change, everything)

    # -- submissions -------------------------------------------------------------------------------------------------

    async def submission(self, id: int) -> Submission | None:
        """A handle of a submission, ``None`` when there is none."""
        self._check_line()
        self._check_open()
        record = self._committed.submissions.get(id) or await self._read(self.storage.submission(id))
        return None if record is None else Submission(self, record.id, record.conversation_id)

    async def _submission_record(self, id: int) -> SubmissionRecord:
        self._check_line()
        self._check_open()
        record = self._committed.submissions.get(id) or await self._read(self.storage.submission(id))
        if record is None:
            raise DurableError(f"there is no submission {id}")
        return record

    async def _wait_for_submission(self, submission: Submission) -> SubmissionRecord:
        self._check_line()
        self._implied_resume()
        record = await self._submission_record(submission.id)
        inside = self._inside()
        if inside is not None and not record.settled:
            live = await self._committed_document(Address(LiveState.spec_.kind, submission.conversation_id))
            run = None if live is None else live.value.get("run")
            if run is not None and self._depends_on(run["task"], inside):
                raise WouldDeadlock(
                    f"submission {submission.id} is answered in conversation {submission.conversation_id}, whose run "
                    "waits for this very code: let it end first, or ask in a conversation of its own"
                )
        while not record.settled:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._submission_waiters.setdefault(submission.id, []).append(waiter)
            # What was read may be older than a commit that settled meanwhile; the mirror tells.
            if submission.id in self._committed.submissions:
                await waiter
            record = await self._submission_record(submission.id)
        return record

    async def _abort_submission(self, id: int) -> Literal["aborted", "already_placed", "settled"]:
        self._check_line()
        async with self._commit(lambda: Tx(self, None)) as tx:
            record = await tx.submission(id)
            if record is None:
                raise DurableError(f"there is no submission {id}")
            if record.settled:
                return "settled"
            inbox = await tx.doc(InboxState, record.conversation_id)
            rest = tuple(item for item in inbox.items if item.submission != id)
            if len(rest) == len(inbox.items):
                return "already_placed"
            inbox.items = rest
            await settle_inputs(tx, [record.id], reason="aborted")
        return "aborted"

    async def _cancelled_conversation(self, tx: Tx, conversation: ConversationId) -> None:
        await withdraw_inputs(tx, conversation, "aborted")

    # -- idleness ----------------------------------------------------------------------------------------------------

    def _foreground(self, conversation: int | None = None, *, sealed: bool = False) -> list[TaskId]:
        """The live tasks that a conversation owns, or any, but those in the background.

        A conversation is idle without them: its run is always one of them. ``sealed`` asks as of the line, for bodies
        of commits.
        """
        return [
            task.id
            for task in (self._sealed if sealed else self._committed).tasks.values()
            if task.owner is None and not task.background and conversation in (None, task.conversation_id)
        ]

    def _reached(self, conversation: int, *, sealed: bool = False) -> list[TaskId]:
        """The live tasks that a conversation owns, and those of the conversations that its tasks own, over any steps:
        in the background or not, and also where the owner has ended."""
        mirror = self._sealed if sealed else self._committed
        owned: dict[int, list[int]] = {}
        for record in mirror.conversations.values():
            if record.owner is not None:
                owned.setdefault(record.owner.conversation, []).append(record.id)
        reached = {conversation}
        stack = [conversation]
        while stack:
            for below in owned.get(stack.pop(), ()):
                if below not in reached:
                    reached.add(below)
                    stack.append(below)
        return [task.id for task in mirror.tasks.values() if task.owner is None and task.conversation_id in reached]

    async def wait_for_idle(self) -> None:
        """Wait until no conversation is busy. Starts scheduling.

        Raises ``WouldDeadlock`` from code that a foreground task waits for.
        """
        self._check_line()
        self._check_not_inside(self._foreground(), "wait_for_idle")
        self._implied_resume()
        await self._idle()

    async def _idle(self, conversation: int | None = None) -> None:
        """Wait until a conversation, or every one, is idle."""
        while live := self._foreground(conversation):
            await self._ends_of(live)

    def _check_not_inside(self, tasks: Iterable[int], what: str) -> None:
        """Refuse a wait for the end of tasks by code that they wait for (engine.md, rule 1.8)."""
        inside = self._inside()
        if inside is None:
            return
        for task in tasks:
            if self._depends_on(task, inside):
                raise WouldDeadlock(
                    f"{what}() would wait for task {task}, which waits for the task {inside} that this code is "
                    "part of: let the code end, or ask for it from outside"
                )

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run engine work that nobody awaits; closing waits for it, and its error is reported."""
        task = self._loop.create_task(work)
        self._background.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and self._closing is None:
                self._report("listener_error", error)

        task.add_done_callback(done)

    # -- what the session calls --------------------------------------------------------------------------------------

    def _published(self, publication: Publication) -> None:
        super()._published(publication)
        for id, record in publication.submissions.items():
            if record.settled:
                _release(self._submission_waiters.pop(id, ()))

    def _failing(self) -> None:
        super()._failing()
        self._wake_all()

    async def _stopping(self) -> None:
        self._unsubscribe()
        self._wake_all()
        await super()._stopping()

    def _ended(self, end: SessionEnd) -> None:
        super()._ended(end)
        self._wake_all()

    def _wake_all(self) -> None:
        """Nothing more will come: whoever waits finds out why."""
        for waiting in (self._submission_waiters, self._task_waiters):
            for waiters in waiting.values():
                _release(waiters)
            waiting.clear()

    def _registry_listener(self) -> None:
        """Called on the thread that changed the registry."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._registry_changed()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._registry_changed)

    # -- views -------------------------------------------------------------------------------------------------------

    async def _conversation_view(self, id: int) -> ConversationView:
        record = await self._sealed_conversation(id)
        if record is None:
            raise DurableError(f"there is no conversation {id}")
        shown = (AgentState, LiveState, InboxState, UsageState)
        for doc in shown:
            await self._committed_document(Address(doc.spec_.kind, id))
        context = await self._context(id)
        # Everything is in memory now; from here on it is read at one point between two commits.
        states = [self._committed.documents.get(Address(doc.spec_.kind, id)) for doc in shown]
        agent, live, inbox, usage = ({} if state is None else state.value for state in states)
        return ConversationView(
            record=record,
            entries=tuple(context.entries),
            agent=AgentState.model_validate(agent),
            live=LiveState.model_validate(live),
            inbox=InboxState.model_validate(inbox),
            usage=UsageState.model_validate(usage),
        )

    async def usage(self) -> UsageState:
        """Tokens and cost of the whole session, per model and per tool."""
        self._check_line()
        self._check_open()
        return await self._total_usage()

    async def _total_usage(self) -> UsageState:
        total = UsageState()
        cursor: int | None = None
        while True:
            page = await self._read(
                self.storage.scan_documents(kind=UsageState.spec_.kind, scope="conversation", limit=500, cursor=cursor)
            )
            for record in page.items:
                state = await self._committed_document(Address(record.kind, record.scope_id, record.key))
                if state is None:
                    continue
                counted = UsageState.model_validate(state.value)
                total.requests += counted.requests
                for name, usage in counted.models.items():
                    total.models[name] = total.models[name] + usage if name in total.models else usage
                for name, usage in counted.tools.items():
                    total.tools[name] = total.tools[name] + usage if name in total.tools else usage
            if page.next is None:
                return total
            cursor = page.next

    async def inspect(self) -> Inspection:
        """Live tasks with their scheduling state, open submissions, and what this process lacks.

        It writes nothing (engine.md, section 14).
        """
        self._check_line()
        self._check_open()
        self._core.active(self.clock())
        tasks = tuple(
            InspectedTask(record=node.record, state=self._scheduling(node))
            for node in sorted(self._core.nodes.values(), key=lambda node: node.record.id)
        )
        submissions = tuple(self._committed.submissions[id] for id in sorted(self._committed.submissions))
        scheduling: Literal["paused", "running"] = "running" if self._core.resumed else "paused"
        return Inspection(
            scheduling=scheduling, tasks=tasks, submissions=submissions, unresolved=await self._unresolved()
        )

    def _scheduling(self, node: Any) -> TaskSchedulingState:
        state = node.record.state
        if node.blocked is not None:
            failed = self._failed_migrations.get(node.record.id)
            if node.blocked != "migration_failed" or failed is None:
                return TaskBlocked(node.blocked)
            return TaskBlocked(node.blocked, f"{type(failed[1]).__name__}: {failed[1]}")
        if node.invocation is not None and state.status != "completing":
            return TaskRunning()
        if node.record.abort_requested and node.children and state.status != "completing":
            return TaskWaiting(on=tuple(TaskId(child) for child in sorted(node.children)))
        if state.status == "running":
            return TaskRunning()
        if state.status == "waiting" and not node.record.abort_requested:
            return TaskWaiting(on=state.on, signal=state.signal, until=state.until)
        if state.status == "sleeping" and not node.record.abort_requested:
            return TaskSleeping(until=state.until)
        if state.status == "completing":
            return TaskCompleting()
        return TaskPending(migrates=self._readiness(node.record).migrates)

    async def _unresolved(self) -> tuple[str, ...]:
        """Tools, extensions, models and task kinds that live work names and this process lacks (section 10)."""
        missing: dict[str, None] = {}
        for task in sorted(self._committed.tasks.values(), key=lambda task: task.id):
            if self._definition(task.kind) is None:
                missing[f"task {task.kind}"] = None
            if task.kind == ToolTask.name and isinstance(task.input, dict):
                agent = await self._agent(task.conversation_id)
                if task.input.get("name") not in agent.tools:
                    missing[f"tool {task.input.get('name')}"] = None
            if task.kind == GenerationTask.name:
                agent = await self._agent(task.conversation_id)
                for name in agent.unresolved:
                    missing[name] = None
                context = await self._context(task.conversation_id)
                for name in context.shown.tools:
                    if name not in agent.tools:
                        missing[f"tool {name}"] = None
            if task.kind in (GenerationTask.name, CompactionTask.name):
                agent = await self._agent(task.conversation_id)
                checkpoint = checkpoint_of_task(task) or {}
                model = checkpoint.get("model") or agent.model
                if isinstance(model, str) and not self._has_model(model):
                    missing[f"model {model}"] = None
        return tuple(missing)

    def _has_model(self, id: str) -> bool:
        try:
            return self.models.get(id) is not None
        except DurableError:
            return False


def _release(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
