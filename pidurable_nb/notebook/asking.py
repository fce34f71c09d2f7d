"""What a cell stands for: it finds what it asked or made before, or asks (notebook.md, Running a cell again).

A *request* is what a cell asks for: a cell with a text, or a name of its own. ``cells`` holds how its id is made; here
ids are looked up in storage, what a stored submission was asked with is compared to what holds now, and what is not
stored is asked.

A notebook that was rewound has several branches, and its cells run from the top. So a request is looked for where the
notebook stands: on that branch, on what it shows of the branches before it, then on those that the notebook moved to
later. A notebook stands where its line of branches began, until this life of the kernel rewinds. What is found nowhere
is asked on the branch where the notebook goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..agent.conversation import Conversation, Submission, WhenBusy
from ..agent.harness import Harness
from ..agent.runs import next_run
from ..agent.state import InboxState, LiveState
from ..errors import RequestIdReused
from ..messages import ContentBlock, TextBlock, UserMessage
from ..records import ConversationId, EntryId, SubmissionRecord, SubmissionStatus
from .branches import BranchesState, made_key
from .cells import CellsState, Order, Ordinals, Provenance, attempt_id, ordinal_of, request_id, text_digest
from .displays import request_name
from .view import clip_line, clock_time

__all__ = ["Asked", "Asking", "Content", "Request", "go_on"]

Content = str | Sequence[ContentBlock]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a cell stands for: its submission, the line under its answer, and whether it was stored and settled."""

    submission: Submission
    note: str | None
    stored: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What one run of a cell asks for: the digest of its text and the cell, or the ``name`` it was given.

    ``taken`` holds its id in each conversation where it has one for good.
    """

    digest: str
    cell: str | None
    name: str | None = None
    taken: dict[int, str] = field(default_factory=dict, compare=False)


class _Place(NamedTuple):
    """Where a request is looked for: a conversation, through an entry of it, ``None`` for all of it."""

    conversation: int
    until: int | None


class Asking:
    """The requests of one line of branches. Its coroutines run on the engine thread."""

    def __init__(self, harness: Harness, line: Sequence[int]) -> None:
        self._harness = harness
        self._line = list(line)
        self._standing = self._line[0]
        self._ordinals = Ordinals()
        self._order = Order()

    @property
    def conversation(self) -> Conversation:
        """Where the notebook goes on."""
        return Conversation(self._harness, ConversationId(self._line[-1]))

    def request(self, kind: str, text: str, *, cell: str | None, name: str | None = None) -> Request:
        """What the running cell asks for. One that asks the same twice, in a loop say, asks for two.

        To be called on the kernel thread, while the cell executes.
        """
        digest = text_digest(kind, text)
        if cell is not None:
            repeated = self._ordinals.repeated(request_name(), cell, digest)
            cell = f"{cell}/{repeated}" if repeated else cell
        return Request(digest, cell, name)

    async def move(self, conversation: int, line: Sequence[int], at: EntryId | None) -> None:
        """Go on in a conversation from now on; ``at`` is the last entry that it shares with the one before."""
        self._order.go_back(None if at is None else await self.input_at(conversation, at))
        self._line = list(line)
        self._standing = conversation

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _id(self, request: Request, conversation: int) -> str:
        """The request's id in a conversation, without taking its ordinal."""
        if request.name is not None:
            return request.name
        if conversation in request.taken:
            return request.taken[conversation]
        known = await self._harness.snapshot(CellsState, conversation)
        cells = known.texts.get(request.digest, []) if known is not None else []
        return request_id(request.digest, self._ordinals.look(conversation, request.digest, request.cell, cells))

    async def take(self, request: Request, conversation: int) -> str:
        """The request's id in a conversation, whose ordinal is the cell's from now on."""
        if conversation in request.taken:
            return request.taken[conversation]
        id = await self._id(request, conversation)
        if request.name is None and self._ordinals.take(conversation, request.digest, request.cell):
            assert request.cell is not None, "only cells with lasting ids are stored"
            known = await self._harness.snapshot(CellsState, conversation)
            if known is None or request.cell not in known.texts.get(request.digest, ()):
                async with self._harness.commit() as tx:
                    ordinal = await ordinal_of(tx, conversation, request.digest, request.cell)
                id = request_id(request.digest, ordinal)
        request.taken[conversation] = id
        return id

    def _later(self) -> list[int]:
        return self._line[self._line.index(self._standing) + 1 :]

    async def submission(self, request: Request) -> SubmissionRecord | None:
        """What was submitted for a request: its newest attempt, where one has not failed that one."""
        found: SubmissionRecord | None = None
        places = [_Place(*place) for place in await self._harness._ancestry(self._standing)]
        for place in places + [_Place(conversation, None) for conversation in self._later()]:
            record, _ = await self._attempts(place, await self._id(request, place.conversation))
            if record is not None:
                await self.take(request, place.conversation)
                if not _failed(record):
                    return record
                found = found or record
        return found

    async def _attempts(self, place: _Place, id: str) -> tuple[SubmissionRecord | None, int]:
        """The newest attempt of a request at a place, and how many there are."""
        newest, count = None, 0
        while (record := await self._by_request(place.conversation, attempt_id(id, count + 1))) is not None:
            if place.until is not None and (record.entry is None or record.entry > place.until):
                break
            newest, count = record, count + 1
        return newest, count

    async def made(self, request: Request) -> int | None:
        """What a request made before: a branch, or a task."""
        state = await self._harness.snapshot(BranchesState)
        if state is None:
            return None
        here = self._line.index(self._standing)
        for conversation in [*reversed(self._line[: here + 1]), *self._line[here + 1 :]]:
            found = state.made.get(made_key(conversation, await self._id(request, conversation)))
            if found is not None:
                await self.take(request, conversation)
                return found
        return None

    # -- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, content: Content, request: Request | None, when_busy: WhenBusy, again: bool) -> Asked:
        """Find the submission of a request, or ask; without a request it asks each time."""
        conversation = self.conversation
        agent = await conversation.agent()
        now = Provenance(after=self._order.last, model=agent.model, tools=tuple(sorted(agent.tools)))
        cell = None if request is None else request.cell
        record = None if request is None else await self.submission(request)
        if record is not None and request is not None:
            await self._check_same(record, content, request)
        if record is not None and not _failed(record) and not again:
            if record.status == "queued":
                await go_on(self._harness, Conversation(self._harness, record.conversation_id))
            then = await self._asked_with(record)
            after = None if then is None else then.after
            moved = self._order.found(record.id, cell, after=after, known=then is not None)
            note = await self._stored_note(record, then, now, moved=moved)
            submission = Submission(self._harness, record.id, record.conversation_id)
            return Asked(submission, note, stored=record.settled)
        id, attempt = None, 1
        if request is not None:
            base = await self.take(request, conversation.id)
            attempt = 1 + (await self._attempts(_Place(conversation.id, None), base))[1]
            id = attempt_id(base, attempt)
        if not self._order.began:  # the first of this kernel life comes after whatever is stored
            now = now.replaced(after=await self._newest_input())
        submission = await conversation.submit(
            content, request_id=id, when_busy=when_busy, data={"notebook": now.to_data()}
        )
        self._order.asked(submission.id, cell)
        return Asked(submission, f"attempt {attempt} of this cell" if attempt > 1 else None, stored=False)

    async def write(
        self, request: Request | None, write: Callable[[str | None], Awaitable[Submission | None]]
    ) -> SubmissionStatus:
        """Find what was written for a request, or write it under the id that it is given; its status."""
        record = None if request is None else await self.submission(request)
        if record is not None:
            return record.status
        written = await write(None if request is None else await self.take(request, self.conversation.id))
        return "done" if written is None else (await written.status()).status

    def asked(self, submission: Submission) -> None:
        """Note what was asked without a cell of its own."""
        self._order.asked(submission.id, None)

    async def _by_request(self, conversation: int, id: str) -> SubmissionRecord | None:
        harness = self._harness
        return await harness._read(harness.storage.submission_by_request(ConversationId(conversation), id))

    async def _newest_input(self) -> int | None:
        """The input before the next one: of this conversation, else the last that it shows of others."""
        conversation = self.conversation
        async for record in self._harness.submissions(conversation=conversation.id, order="descending"):
            if record.type == "input":
                return record.id
        newest = await conversation.entries().first()
        return None if newest is None else await self.input_at(conversation.id, newest.id)

    async def input_at(self, conversation: int, at: EntryId) -> int | None:
        """The last input that a conversation shows up to an entry."""
        entries = Conversation(self._harness, ConversationId(conversation)).entries(max_id=at)
        async for entry in entries:
            if entry.messages and entry.messages[0].role == "user" and entry.head is None:
                submissions = self._harness.submissions(conversation=entry.conversation_id, order="descending")
                async for record in submissions:
                    if record.entry == entry.id and record.type == "input":
                        return record.id
        return None

    async def _check_same(self, record: SubmissionRecord, content: Content, request: Request) -> None:
        """Raise ``RequestIdReused`` when the submission that a name stands for was asked something else."""
        asked = await self._content(record)
        given = (TextBlock(content),) if isinstance(content, str) else tuple(content)
        if asked is not None and asked != given:
            text = clip_line("\n".join(block.text for block in asked if block.type == "text"))
            raise RequestIdReused(
                f"the id {request.name or record.request_id!r} was used for another text, “{text}”: choose another id, "
                "or leave it out"
            )

    async def _content(self, record: SubmissionRecord) -> tuple[ContentBlock, ...] | None:
        """What was asked, ``None`` when it is no longer stored."""
        if record.entry is not None:
            entry = await self._harness._read(self._harness.storage.entry(record.entry))
            message = entry.messages[0] if entry is not None and entry.messages else None
            return tuple(message.content) if isinstance(message, UserMessage) else None
        inbox = await self._harness.snapshot(InboxState, record.conversation_id)
        items = inbox.items if inbox is not None else ()
        return next((item.content for item in items if item.submission == record.id), None)

    async def _asked_with(self, record: SubmissionRecord) -> Provenance | None:
        """What a submission was asked with, ``None`` when it does not say."""
        if record.entry is None:
            return None
        entry = await self._harness._read(self._harness.storage.entry(record.entry))
        data = entry.data if entry is not None and isinstance(entry.data, dict) else {}
        return Provenance.model_validate(data["notebook"]) if isinstance(data.get("notebook"), dict) else None

    async def _stored_note(
        self, record: SubmissionRecord, then: Provenance | None, now: Provenance, *, moved: bool
    ) -> str | None:
        """The line under what was stored before: when, where, and what has changed since."""
        if not record.settled:
            return None
        changed = then.differences(now, moved=moved) if then is not None else None
        warning = f" · changed since: {changed}" if changed else ""
        if record.entry is not None and await self.conversation.entry(record.entry) is None:
            warning = f" · in conversation {record.conversation_id}, another branch{warning}"
        if record.status != "done":
            return f"stopped before{warning} · --again asks anew"
        answer = None
        if record.answer is not None:
            answer = await self._harness._read(self._harness.storage.entry(record.answer))
        at = getattr(answer.messages[0], "timestamp", None) if answer is not None and answer.messages else None
        return f"stored answer{_when(at, self._harness.clock())}{warning} · --again asks anew"


def _failed(record: SubmissionRecord) -> bool:
    """Whether it is asked anew: it ended without an answer, and nobody had stopped it."""
    return record.status == "unanswered" and record.reason != "aborted"


async def go_on(harness: Harness, conversation: Conversation) -> None:
    """Start what waits in an idle conversation: the engine leaves it there when the turn before was stopped.

    Nobody would see why a question of a cell further down stays queued until the next one is asked.
    """
    if harness.hold:
        return
    async with conversation.commit() as tx:
        if (await tx.doc(LiveState, conversation.id)).run is None:
            await next_run(tx, conversation.id, harness._settings())


def _when(at: float | None, now: float) -> str:
    """`` from 14:02``, with the date when it was not today."""
    if at is None:
        return ""
    text = clock_time(at, date=True)
    return f" from {text[11:16] if text[:10] == clock_time(now, date=True)[:10] else text[:16]}"
