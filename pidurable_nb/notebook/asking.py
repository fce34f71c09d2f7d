"""What a cell asks: it finds the submission that it stands for, or makes it (notebook.md, Running a cell again).

``cells`` holds how request ids are made and what is told apart; this module looks the ids up in storage, compares what
a stored submission was asked with to what holds now, and asks where nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..agent.conversation import Conversation, Submission, WhenBusy
from ..agent.harness import Harness
from ..agent.runs import next_run
from ..agent.state import InboxState, LiveState
from ..errors import RequestIdReused
from ..messages import ContentBlock, TextBlock, UserMessage
from ..records import SubmissionRecord
from .cells import CellsState, Order, Ordinals, Provenance, named_request_id, ordinal_of, request_id
from .displays import request_name
from .view import clip_line, clock_time

__all__ = ["Asked", "Asking", "Content", "go_on"]

Content = str | Sequence[ContentBlock]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a cell stands for: its submission, the line under its answer, and whether it was stored and settled."""

    submission: Submission
    note: str | None
    stored: bool


class Asking:
    """The questions of one conversation. Its coroutines run on the engine thread."""

    def __init__(self, harness: Harness, conversation: Conversation) -> None:
        self._harness = harness
        self._conversation = conversation
        self._ordinals = Ordinals()
        self._order = Order()

    def cell_now(self, cell: str | None, digest: str) -> str | None:
        """The cell, as it counts in this execution: one that asks the same twice, in a loop say, means two.

        To be asked on the kernel thread, while the cell executes.
        """
        if cell is None:
            return None
        repeated = self._ordinals.repeated(request_name(), cell, digest)
        return f"{cell}/{repeated}" if repeated else cell

    async def cell(self, text: str, digest: str, cell: str | None, when_busy: WhenBusy, again: bool) -> Asked:
        """Ask for a cell."""
        ordinal = await self._ordinal(digest, cell)
        return await self.submit(text, lambda attempt: request_id(digest, ordinal, attempt), when_busy, again, cell)

    async def request(self, digest: str, cell: str | None) -> str:
        """The request id with which a cell writes, so that running it again finds what it wrote."""
        return request_id(digest, await self._ordinal(digest, cell), 1)

    async def named(
        self, content: Content, name: str | None, when_busy: WhenBusy, again: bool, cell: str | None = None
    ) -> Asked:
        """Ask under a name, or without one, which asks anew each time."""
        base = None if name is None else (lambda attempt: named_request_id(name, attempt))
        return await self.submit(content, base, when_busy, again, cell)

    async def _ordinal(self, digest: str, cell: str | None) -> int:
        conversation = self._conversation.id
        if cell is None:
            return self._ordinals.next(conversation, digest)
        known = await self._harness.snapshot(CellsState, conversation)
        if known is not None and cell in known.texts.get(digest, ()):
            return known.texts[digest].index(cell)
        async with self._conversation.commit() as tx:
            return await ordinal_of(tx, conversation, digest, cell)

    async def submit(
        self,
        content: Content,
        base: Callable[[int], str] | None,
        when_busy: WhenBusy,
        again: bool,
        cell: str | None = None,
    ) -> Asked:
        """Find the newest attempt of a request, or ask; ``base`` names each attempt."""
        agent = await self._conversation.agent()
        now = Provenance(after=self._order.last, model=agent.model, tools=tuple(sorted(agent.tools)))
        record: SubmissionRecord | None = None
        attempt = 1
        if base is not None:
            while True:
                found = await self.by_request(base(attempt))
                if found is None:
                    break
                record, attempt = found, attempt + 1
        if record is not None:
            await self._check_same(record, content, base)
        failed = record is not None and record.status == "unanswered" and record.reason != "aborted"
        if record is None or failed or again:
            if not self._order.began:  # the first of this kernel life comes after whatever is stored
                now = now.replaced(after=await self._newest_input())
            submission = await self._conversation.submit(
                content,
                request_id=None if base is None else base(attempt),
                when_busy=when_busy,
                data={"notebook": now.to_data()},
            )
            self._order.asked(submission.id, cell)
            return Asked(submission, f"attempt {attempt} of this cell" if attempt > 1 else None, stored=False)
        submission = Submission(self._harness, record.id, record.conversation_id)
        if record.status == "queued":
            await go_on(self._harness, self._conversation)
        then = await self._asked_with(record)
        moved = self._order.found(
            submission.id, cell, after=None if then is None else then.after, known=then is not None
        )
        return Asked(submission, await self._stored_note(record, then, now, moved=moved), stored=record.settled)

    async def by_request(self, request: str) -> SubmissionRecord | None:
        """The submission of a request id."""
        harness = self._harness
        return await harness._read(harness.storage.submission_by_request(self._conversation.id, request))

    async def _newest_input(self) -> int | None:
        async for record in self._harness.submissions(conversation=self._conversation.id, order="descending"):
            if record.type == "input":
                return record.id
        return None

    async def _check_same(self, record: SubmissionRecord, content: Content, base: Callable[[int], str] | None) -> None:
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
            entry = await self._conversation.entry(record.entry)
            message = entry.messages[0] if entry is not None and entry.messages else None
            return tuple(message.content) if isinstance(message, UserMessage) else None
        inbox = await self._harness.snapshot(InboxState, record.conversation_id)
        items = inbox.items if inbox is not None else ()
        return next((item.content for item in items if item.submission == record.id), None)

    async def _asked_with(self, record: SubmissionRecord) -> Provenance | None:
        """What a submission was asked with, ``None`` when it does not say."""
        if record.entry is None:
            return None
        entry = await self._conversation.entry(record.entry)
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
        answer = await self._conversation.entry(record.answer) if record.answer is not None else None
        at = getattr(answer.messages[0], "timestamp", None) if answer is not None and answer.messages else None
        return f"stored answer{_when(at, self._harness.clock())}{warning} · --again asks anew"


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
