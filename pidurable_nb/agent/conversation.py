"""Conversations and submissions: handles through which people and programs talk to an agent (engine.md, section 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import TypeAdapter
from pydantic_core import to_json

from ..errors import ConversationBusy, DurableError, RequestIdReused, Unanswered
from ..messages import ContentBlock, Message, TextBlock, UserMessage
from ..patch import Op
from ..records import (
    ConversationId,
    ConversationRecord,
    Entry,
    EntryEdit,
    EntryId,
    SubmissionId,
    SubmissionRecord,
    SubmissionType,
    TaskId,
)
from ..session import Comparison, ContextView, Scan, Tx, Watch, WatchEnd
from ..session.branches import last_shared
from ..session.documents import Address, check_name, instance_of
from ..session.session import CommitBlock, Publication, _place
from ..storage.protocol import Order, Page
from ..values import JsonValue, Value, check_json
from .agent import Agent, AgentChange
from .runs import next_run, place_write, start_run, withdraw_inputs
from .state import AgentState, InboxItem, InboxState, LiveState, OutputSpec, UsageState

if TYPE_CHECKING:
    from .events import EventWatch
    from .harness import Harness, Init

T = TypeVar("T")
WhenBusy = Literal["follow_up", "steer", "reject"]

_blocks: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])


class ConversationView(Value):
    """A conversation as it is now: its record, its active entries, and its built-in documents."""

    record: ConversationRecord
    entries: tuple[Entry, ...]
    agent: AgentState
    live: LiveState
    inbox: InboxState
    usage: UsageState


class Submission:
    """An input or a write that was durably admitted. ``await submission`` waits for its end."""

    def __init__(self, harness: Harness, id: SubmissionId, conversation_id: ConversationId) -> None:
        self._harness = harness
        self.id = id
        self.conversation_id = conversation_id

    def __repr__(self) -> str:
        return f"<Submission {self.id} in conversation {self.conversation_id}>"

    async def status(self) -> SubmissionRecord:
        """Its record as it is now."""
        return await self._harness._submission_record(self.id)

    async def wait(self) -> SubmissionRecord:
        """Wait until it is ``done`` or ``unanswered``, and return its record. Starts scheduling.

        Raises ``WouldDeadlock`` from a tool, hook or phase of the run that answers it, ``SessionClosed`` and
        ``SessionFailed`` when the session ends first.
        """
        return await self._harness._wait_for_submission(self)

    def __await__(self) -> Generator[Any, None, SubmissionRecord]:
        return self.wait().__await__()

    async def abort(self) -> Literal["aborted", "already_placed", "settled"]:
        """Take it back while it is queued; otherwise say that it was placed or has settled."""
        return await self._harness._abort_submission(self.id)


class Conversation:
    """A transcript and what works on it. A handle: cheap, and valid as long as its harness."""

    def __init__(self, harness: Harness, id: ConversationId) -> None:
        self._harness = harness
        self.id = id

    def __repr__(self) -> str:
        return f"<Conversation {self.id} of {self._harness.storage.name}>"

    # -- talking -----------------------------------------------------------------------------------------------------

    async def submit(
        self,
        content: str | Sequence[ContentBlock],
        *,
        request_id: str | None = None,
        when_busy: WhenBusy = "follow_up",
        kind: str | None = None,
        data: JsonValue = None,
    ) -> Submission:
        """Hand in an input; returns when it is durably admitted (engine.md, section 9).

        Idle, it starts a run at once. Busy, it queues as ``follow_up`` or ``steer``, or with ``reject`` raises
        ``ConversationBusy`` and stores nothing. ``request_id`` makes it idempotent: the same id gives the same
        submission, before and after a restart, and raises ``RequestIdReused`` for other content. ``kind`` and ``data``
        are those of its entry. Starts scheduling.
        """
        return await self._submit(content, request_id=request_id, when_busy=when_busy, kind=kind, data=data)

    async def _submit(
        self,
        content: str | Sequence[ContentBlock],
        *,
        request_id: str | None = None,
        when_busy: WhenBusy = "follow_up",
        kind: str | None = None,
        data: JsonValue = None,
        output: OutputSpec | None = None,
    ) -> Submission:
        if when_busy not in ("follow_up", "steer", "reject"):
            raise ValueError(f"when_busy is 'follow_up', 'steer' or 'reject', not {when_busy!r}")
        blocks = _checked_blocks(content)
        if kind is not None:
            check_name(kind, "an entry", "")
        checked = check_json(data, "the data of a submission")
        asked = [checked] if output is None else [checked, output.to_data()]
        digest = _digest("input", [block.to_data() for block in blocks], kind, asked)
        harness = self._harness
        harness._implied_resume()
        async with harness._commit(lambda: Tx(harness, self.id), _place(3)) as tx:
            found = await self._find(tx, request_id, "input", digest)
            if found is None:
                found = await self._admit(tx, blocks, request_id, when_busy, kind, checked, digest, output)
        return Submission(harness, found, self.id)

    async def _find(self, tx: Tx, request_id: str | None, type: SubmissionType, digest: str) -> SubmissionId | None:
        if request_id is None:
            return None
        record = await tx.submission_by_request(self.id, request_id)
        if record is None:
            return None
        if record.type != type or record.digest != digest:
            raise RequestIdReused(
                f"the request id {request_id!r} was used for submission {record.id} with other content: "
                "use a new id for a new request"
            )
        return record.id

    async def _admit(
        self,
        tx: Tx,
        blocks: list[ContentBlock],
        request_id: str | None,
        when_busy: WhenBusy,
        kind: str | None,
        data: JsonValue,
        digest: str,
        output: OutputSpec | None,
    ) -> SubmissionId:
        harness = self._harness
        live = await tx.doc(LiveState, self.id)
        inbox = await tx.doc(InboxState, self.id)
        if live.run is not None and when_busy == "reject":
            raise ConversationBusy(
                f"conversation {self.id} is busy with a run, and the input asked to be rejected then: nothing was "
                "stored; wait_for_idle() first, or queue it as a follow_up"
            )
        id = SubmissionId(harness._mint())
        record = SubmissionRecord(
            id=id, conversation_id=self.id, type="input", status="queued", request_id=request_id, digest=digest
        )
        item = InboxItem(
            submission=id,
            type="input",
            mode="steer" if when_busy == "steer" and live.run is not None else "follow_up",
            content=tuple(blocks),
            kind=kind,
            data=data,
            output=output,
            submitted_at=harness.clock(),
        )
        tx._put_submission(record)
        inbox.items = (*inbox.items, item)
        if live.run is None:
            await next_run(tx, self.id, harness._settings())
        return id

    async def write(
        self,
        kind: str,
        *,
        messages: Sequence[Message] = (),
        data: JsonValue = None,
        head: EntryId | Literal["self"] | None = None,
        edits: Iterable[EntryEdit | Mapping[str, Any]] = (),
        request_id: str | None = None,
    ) -> Submission:
        """Append an entry without starting a run: at once when idle or when it changes no context, else at the next
        boundary (engine.md, section 9). Raises ``ValueError`` for a reserved kind and ``InvalidValue`` for bad data."""
        check_name(kind, "an entry", "")
        checked = check_json(data, "the data of a write")
        changes = tuple(edit if isinstance(edit, EntryEdit) else EntryEdit.model_validate(edit) for edit in edits)
        spoken = tuple(messages)
        digest = _digest(
            "write",
            [message.to_data() for message in spoken],
            kind,
            [checked, head, [edit.to_data() for edit in changes]],
        )
        item = InboxItem(
            submission=SubmissionId(0),
            type="write",
            mode="write",
            kind=kind,
            data=checked,
            messages=spoken,
            head=head,
            edits=changes,
        )
        return await self._write(item, request_id, digest)

    async def reset(self, handoff: str | None = None, *, request_id: str | None = None) -> None:
        """Start the model's context anew, with ``handoff`` as a note to what comes; returns when that is admitted.

        Idle, at once. Busy, at the next boundary; at one between two turns it ends the run, whose inputs become
        ``unanswered: reset`` (engine.md, section 9).
        """
        spoken = () if handoff is None else (UserMessage([TextBlock(handoff)], timestamp=self._harness.clock()),)
        item = InboxItem(
            submission=SubmissionId(0), type="write", mode="reset", kind="pi.reset", messages=spoken, head="self"
        )
        await self._write(item, request_id, _digest("reset", handoff, None, None))

    async def compact(self, instructions: str | None = None) -> TaskId:
        """Summarise the oldest part of the model's context; returns the task that does it (engine.md, section 13).

        ``instructions`` tell the model what to attend to. The conversation works on meanwhile: the summary is placed
        when it is there, or at the next boundary of a run. ``pi.live`` lists it (``compactions``) and says why it
        failed (``compaction_failure``); ``wait_for_idle`` waits for it. Starts scheduling.
        """
        from .compaction import CompactionInput, start_compaction

        harness = self._harness
        harness._implied_resume()
        async with harness._commit(lambda: Tx(harness, self.id), _place()) as tx:
            task = await start_compaction(tx, self.id, CompactionInput(reason="manual", instructions=instructions))
        return task  # noqa: RET504  (final once the block has ended)

    async def _write(self, item: InboxItem, request_id: str | None, digest: str) -> Submission:
        harness = self._harness
        async with harness._commit(lambda: Tx(harness, self.id), _place(3)) as tx:
            for reference in [edit.target for edit in item.edits] + ([item.head] if isinstance(item.head, int) else []):
                if not await tx._visible(self.id, reference):
                    raise DurableError(f"conversation {self.id} has no entry {reference}")
            found = await self._find(tx, request_id, "write", digest)
            if found is None:
                found = SubmissionId(harness._mint())
                record = SubmissionRecord(
                    id=found,
                    conversation_id=self.id,
                    type="write",
                    status="queued",
                    request_id=request_id,
                    digest=digest,
                )
                item = item.replaced(submission=found, submitted_at=harness.clock())
                live = await tx.doc(LiveState, self.id)
                inbox = await tx.doc(InboxState, self.id)
                display_only = not item.messages and item.head is None and not item.edits
                waits = live.run is not None and not display_only
                if waits or any(other.mode == "reset" for other in inbox.items):
                    tx._put_submission(record)
                    inbox.items = (*inbox.items, item)
                else:
                    await place_write(tx, self.id, record, item)
        return Submission(harness, found, self.id)

    @overload
    async def ask(self, content: str | Sequence[ContentBlock], *, output: type[T], **submit_options: Any) -> T: ...
    @overload
    async def ask(self, content: str | Sequence[ContentBlock], **submit_options: Any) -> Entry: ...
    async def ask(self, content: str | Sequence[ContentBlock], *, output: Any = None, **submit_options: Any) -> Any:
        """Submit, wait, and return the answer's entry; with ``output`` a value of that type, validated by pydantic.

        A typed answer that does not fit is told to the model, which is asked again, three times at most. The options
        are those of ``submit``. Raises ``Unanswered`` with the settled submission.
        """
        if output is not None:
            from .typed import ask_typed

            return await ask_typed(self, content, output, submit_options)
        return (await self._answer_of(await self.submit(content, **submit_options)))[1]

    async def _answer_of(self, submission: Submission) -> tuple[SubmissionRecord, Entry]:
        settled = await submission.wait()
        if settled.status == "done" and settled.answer is not None:
            answer = await self.entry(settled.answer)
            if answer is not None:
                return settled, answer
        raise Unanswered(unanswered_message(settled), submission=settled)

    async def retry(self, *, request_id: str | None = None) -> Submission:
        """Go on after a run that ended without an answer, on the transcript as it stands (engine.md, section 9).

        It is the same run to the limits: its turns and what it spent count on, so that one that a limit ended goes on
        only after the limit was raised. Raises ``ConversationBusy`` while a run is going on, and ``DurableError`` when
        no run has failed.
        """
        harness = self._harness
        harness._implied_resume()
        digest = _digest("continue", [], None, None)
        async with harness._commit(lambda: Tx(harness, self.id), _place()) as tx:
            found = await self._find(tx, request_id, "continue", digest)
            if found is None:
                live = await tx.doc(LiveState, self.id)
                if live.run is not None:
                    raise ConversationBusy(f"conversation {self.id} is busy with a run: wait for it before a retry")
                if live.run_failure is None:
                    raise DurableError(f"conversation {self.id} has no failed run to go on from: submit an input")
                found = SubmissionId(harness._mint())
                tx._put_submission(
                    SubmissionRecord(
                        id=found,
                        conversation_id=self.id,
                        type="continue",
                        status="queued",
                        request_id=request_id,
                        digest=digest,
                    )
                )
                failed = live.run_failure
                await start_run(
                    tx, self.id, [found], failed.first, failed.output, turns=failed.turns, spent=failed.spent
                )
        return Submission(harness, found, self.id)

    async def decide(
        self,
        call_id: str,
        *,
        approve: bool,
        arguments: dict[str, JsonValue] | None = None,
        note: str | None = None,
    ) -> None:
        """Approve or deny a tool call that waits for a person; returns when that is stored. Starts scheduling.

        ``arguments`` replace the model's, which is part of approving; ``note`` goes to the model with a denial. The
        calls that wait are in ``pi.live`` (``approvals``), those of subagents that the run waits for too; a call of
        any conversation owned below this one can be decided here. Raises ``DurableError`` when no call of this id
        waits, and ``ValueError`` for arguments with a denial (engine.md, section 12).
        """
        from .toolrun import APPROVAL, Decision, ToolTask

        if arguments is not None and not approve:
            raise ValueError("arguments go with an approval; a denial takes a note")
        harness = self._harness
        harness._check_line()
        harness._implied_resume()
        decision = Decision(approve=approve, arguments=arguments, note=note)
        waiting = [
            task
            for task in harness._committed.tasks.values()
            if task.kind == ToolTask.name
            and task.state.status == "waiting"
            and isinstance(task.input, dict)
            and task.input["call_id"] == call_id
        ]
        for task in sorted(waiting, key=lambda task: task.conversation_id != self.id):  # its own come first
            if await self._has(task.conversation_id):
                await harness.signal(task.id, APPROVAL, decision.to_data())
                return
        raise DurableError(f"no call {call_id!r} waits for a decision in conversation {self.id}")

    async def _has(self, conversation: ConversationId) -> bool:
        """Whether a conversation is this one, or is owned below it."""
        while conversation != self.id:
            record = await self._harness._sealed_conversation(conversation)
            if record is None or record.owner is None:
                return False
            conversation = record.owner.conversation
        return True

    # -- what it runs with -------------------------------------------------------------------------------------------

    async def agent(self) -> Agent:
        """Its resolved agent."""
        self._harness._check_line()
        self._harness._check_open()
        return await self._harness._agent(self.id)

    async def configure(self, **change: Any) -> None:
        """Change its agent: fields of ``AgentChange``; ``None`` clears a field, absent keeps it."""
        async with self._harness._commit(lambda: Tx(self._harness, self.id), _place()) as tx:
            await tx.configure(self.id, **change)

    def commit(self) -> CommitBlock[Tx]:
        """One commit bound to this conversation: new tasks, entries and documents default to it."""
        self._harness._check_open()
        return self._harness._commit(lambda: Tx(self._harness, self.id), _place())

    # -- reading -----------------------------------------------------------------------------------------------------

    async def context(self, *, at: EntryId | None = None) -> ContextView:
        """What the model reads: ``head``, ``entries``, ``messages``; with ``at`` as of an earlier entry.

        Raises ``DurableError`` for an entry that this conversation does not see (engine.md, section 5).
        """
        self._harness._check_line()
        self._harness._check_open()
        if at is not None and await self.entry(at) is None:
            raise DurableError(f"conversation {self.id} has no entry {at}")
        return await self._harness._context_at(self.id, at)

    async def fork(
        self, at: EntryId, *, owner: TaskId | None = None, agent: AgentChange | None = None, init: Init | None = None
    ) -> Conversation:
        """A new conversation that sees this one's entries through ``at`` and goes on by itself (engine.md, section 6).

        It keeps this one's agent as of that entry unless ``agent`` changes it; documents follow their fork policy. A
        task given as ``owner`` owns it. Raises ``DurableError`` for an entry that this conversation does not see.
        """
        harness = self._harness
        async with harness._commit(lambda: Tx(harness, self.id), _place()) as tx:
            record = await tx.fork_conversation(self.id, at, owner=owner)
            await harness._set_up(tx, record, agent, init)
        return Conversation(harness, record.id)

    async def revise(
        self,
        entry: EntryId,
        content: str | Sequence[ContentBlock],
        *,
        data: JsonValue = None,
        init: Init | None = None,
    ) -> tuple[Conversation, Submission]:
        """Say an earlier input differently, and go on from there in a branch: a fork at the entry before it, with
        ``content`` in its place, made in one commit (engine.md, section 6). This conversation stays as it is.

        Where nothing comes before that entry the branch is a conversation of its own, with this one's agent as of it.
        The new entry keeps the kind of the old one; ``init`` runs in that commit too. Returns the branch and its
        submission. Starts scheduling. Raises ``DurableError`` for an entry that this conversation does not see or that
        is no input.
        """
        harness = self._harness
        blocks = _checked_blocks(content)
        checked = check_json(data, "the data of a submission")
        found = await self.entry(entry)
        if found is None:
            raise DurableError(f"conversation {self.id} has no entry {entry}")
        if found.head is not None or not found.messages or found.messages[0].role != "user":
            raise DurableError(
                f"entry {entry} ({found.kind}) is no input: only what a user said can be said differently"
            )
        before = await self.entries(max_id=entry - 1).first()
        kept = None if before is not None else await harness.snapshot_as_of(AgentState, self.id, at=entry)
        kind = None if found.kind == "pi.user" else found.kind
        digest = _digest("input", [block.to_data() for block in blocks], kind, [checked])
        harness._implied_resume()
        async with harness._commit(lambda: Tx(harness, self.id), _place()) as tx:
            if before is not None:
                record = await tx.fork_conversation(self.id, before.id)
            else:
                record = await tx.create_conversation()
                if kept is not None:
                    await harness._configure(tx, record.id, dict(kept))
            await harness._set_up(tx, record, None, init)
            branch = Conversation(harness, record.id)
            id = await branch._admit(tx, blocks, None, "follow_up", kind, checked, digest, None)
        return branch, Submission(harness, id, branch.id)

    async def compare(self, other: Conversation) -> Comparison:
        """This conversation (``ours``) and another one (``theirs``) as branches: the last entry that both see, and what
        each has after it (engine.md, section 6).

        It reads nothing of what they share. Raises ``ValueError`` for a conversation of another session.
        """
        harness = self._harness
        harness._check_line()
        harness._check_open()
        if other._harness is not harness:
            raise ValueError(f"{other!r} is of another session: what they have in common cannot be told by ids")
        if other.id == self.id:
            newest = await self.entries().first()
            return Comparison(None if newest is None else newest.id, (), ())
        at = last_shared(await harness._ancestry(self.id), await harness._ancestry(other.id))
        after = None if at is None else at + 1
        ours, theirs = [
            tuple(await conversation.entries(min_id=after, order="ascending").list()) for conversation in (self, other)
        ]
        return Comparison(None if at is None else EntryId(at), ours, theirs)

    async def entry(self, id: int) -> Entry | None:
        """An entry that this conversation sees, its parents' included; ``None`` for any other."""
        harness = self._harness
        harness._check_line()
        harness._check_open()
        found = await harness._read(harness.storage.entry(id))
        if found is None or found.conversation_id == self.id:
            return found
        for conversation, until in await harness._ancestry(self.id):
            if conversation == found.conversation_id:
                return found if until is None or found.id <= until else None
        return None

    def entries(
        self, *, min_id: int | None = None, max_id: int | None = None, order: Order = "descending"
    ) -> Scan[Entry]:
        """The visible entries, its parents' included, newest first unless ``order="ascending"``."""
        harness = self._harness

        async def page(limit: int, cursor: int | None) -> Page[Entry]:
            harness._check_line()
            harness._check_open()
            return await harness._visible_page(
                self.id, min_id=min_id, max_id=max_id, order=order, limit=limit, cursor=cursor
            )

        return Scan(page)

    async def view(self) -> ConversationView:
        """The record, the active entries and the built-in documents, as committed now."""
        self._harness._check_line()
        self._harness._check_open()
        return await self._harness._conversation_view(self.id)

    def watch(self) -> Watch[ConversationView]:
        """Follow the conversation view, commit by commit (engine.md, section 14)."""
        return watch_conversation(self._harness, self.id)

    def watch_events(self) -> EventWatch:
        """Follow what happens, as deltas: one tuple of events per commit (engine.md, section 14)."""
        from .events import EventWatch

        return EventWatch(self._harness, self.id)

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def abort(self, *, background: bool = False) -> None:
        """Withdraw queued inputs, stop foreground work, and return when idle; writes stay (engine.md, section 9).

        ``background`` also stops the background tasks that are live now, and all that goes on in conversations that
        tasks of this one own, or did. Raises ``WouldDeadlock`` from inside the run itself.
        """
        harness = self._harness
        harness._check_line()
        tasks = harness._reached(self.id) if background else harness._foreground(self.id)
        harness._check_not_inside(tasks, "abort")
        harness._implied_resume()
        for task in tasks:
            await harness._flush(task)
        async with harness._commit(lambda: Tx(harness, self.id), _place()) as tx:
            await withdraw_inputs(tx, self.id, "aborted")
            # Whatever lives when the line comes to this: a run may just have been handed to its next generation.
            tasks = harness._reached(self.id, sealed=True) if background else harness._foreground(self.id, sealed=True)
            for task in tasks:
                await harness._stage_mark(tx, task, None)
        await harness._ends_of(tasks)
        await harness._idle(self.id)

    async def wait_for_idle(self) -> None:
        """Wait until no run and no other foreground task is live. Starts scheduling.

        Raises ``WouldDeadlock`` from code that one of these waits for.
        """
        harness = self._harness
        harness._check_line()
        harness._check_not_inside(harness._foreground(self.id), "wait_for_idle")
        harness._implied_resume()
        await harness._idle(self.id)


def watch_conversation(harness: Harness, id: ConversationId) -> Watch[ConversationView]:
    """A watch of a conversation view: each commit that touches it moves it."""
    documents = {
        Address(doc.spec_.kind, id): (field, doc)
        for field, doc in (("agent", AgentState), ("live", LiveState), ("inbox", InboxState), ("usage", UsageState))
    }
    state: dict[str, ConversationView] = {}

    async def attach(watch: Watch[ConversationView]) -> ConversationView:
        harness._check_line()
        harness._check_open()
        state["view"] = await harness._conversation_view(id)
        harness._follow(watch, lambda publication: deliver(watch, publication))
        return state["view"]

    def push(watch: Watch[ConversationView], changes: dict[str, Any], ops: list[Op]) -> None:
        state["view"] = state["view"].replaced(**changes)
        watch._push(state["view"], ops)

    async def read_again(watch: Watch[ConversationView]) -> None:
        """A head moved the active range to entries that were not in memory."""
        try:
            context = await harness._context(id)
        except Exception as error:
            watch._finish(WatchEnd("failed", error))  # it would show what is no longer so
            raise
        entries = tuple(context.entries)
        push(watch, {"entries": entries}, [_replaced_entries(entries)])

    def deliver(watch: Watch[ConversationView], publication: Publication) -> None:
        changes: dict[str, Any] = {}
        ops: list[Op] = []
        entries = [entry for entry in publication.entries.values() if entry.conversation_id == id]
        if entries:
            context = harness._contexts.get(id)
            if any(entry.head is not None for entry in entries):
                if context is None:
                    harness._in_background(read_again(watch))
                else:
                    changes["entries"] = tuple(context.entries)
                    ops.append(_replaced_entries(changes["entries"]))
            else:
                changes["entries"] = (*state["view"].entries, *entries)
                ops.extend({"op": "add", "path": "/entries/-", "value": entry.to_data()} for entry in entries)
        for address, (field, doc) in documents.items():
            change = publication.documents.get(address)
            if change is not None and change.after is not None:
                changes[field] = instance_of(doc, change.after)
                for op in change.ops:
                    ops.append({**op, "path": f"/{field}{op['path']}"})
        if changes:
            push(watch, changes, ops)

    return Watch(attach, harness._unfollow, lambda view: view.to_data())


def _replaced_entries(entries: Sequence[Entry]) -> Op:
    return {"op": "replace", "path": "/entries", "value": [entry.to_data() for entry in entries]}


def unanswered_message(record: SubmissionRecord) -> str:
    """Why a submission got no answer, in words."""
    reasons = {
        "no_model": "there is no model for it",
        "model_error": "the model failed",
        "aborted": "it was aborted",
        "faulted": "the engine's task for it broke",
        "limit": "a limit was reached",
        "reset": "the conversation was reset",
        "stale": "it came too late",
        "run_failed": "an earlier run failed",
    }
    why = reasons.get(record.reason or "", record.reason or "unknown")
    detail = record.detail.get("message") if isinstance(record.detail, dict) else None
    return f"submission {record.id} got no answer: {why}" + (f" ({detail})" if detail else "")


def _checked_blocks(content: str | Sequence[ContentBlock]) -> list[ContentBlock]:
    if not isinstance(content, str | Sequence):
        raise TypeError(f"an input is text or a list of blocks, not {content!r}")
    blocks: list[ContentBlock] = (
        [TextBlock(content)] if isinstance(content, str) else _blocks.validate_python(list(content))
    )
    if not blocks or not any(block.type != "text" or block.text.strip() for block in blocks):
        raise ValueError("an input needs content: text that is not empty, or blocks")
    for index, block in enumerate(blocks):
        if block.type == "text":
            check_json(block.text, f"block {index} of the input")
    return blocks


def _digest(type: str, content: Any, kind: str | None, data: Any) -> str:
    return hashlib.sha256(to_json([type, content, kind, data])).hexdigest()[:24]
