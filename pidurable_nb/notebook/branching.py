"""Making branches, moving to them, looking at them, and compacting one (notebook.md, ``%durable``).

Everything here runs on the engine thread. A branch, and what says that a cell made it, are stored in one commit.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from ..agent.compaction import KIND, CompactionInput, start_compaction
from ..agent.conversation import Conversation, Submission
from ..agent.harness import Init
from ..agent.state import InboxState, LiveState
from ..errors import NotebookError
from ..records import ROOT, ConversationId, ConversationRecord, Entry, EntryId, TaskId, outcome_of_task
from ..session import Tx
from .asking import Asking, Content, Request
from .branches import BranchesState, made_key
from .cells import Provenance
from .opened import check_name
from .opensession import OpenSession
from .present import transcript_view
from .view import ComparisonView, ConversationRow, ConversationsView, StatusRow, StatusView, TranscriptEntry, clip_line

__all__ = ["Branches"]


class Branches:
    """The branches of a session, as one line of them sees them; ``label`` is the line's name."""

    def __init__(self, session: OpenSession, asking: Asking, label: str) -> None:
        self._session = session
        self._harness = session.harness
        self._asking = asking
        self._label = label

    async def state(self) -> BranchesState:
        """What is stored about branches."""
        return await self._harness.snapshot(BranchesState) or BranchesState()

    async def line(self, label: str, conversation: int) -> list[int]:
        """The conversations of a line, which begins and goes on in ``conversation`` where none is stored."""
        return (await self.state()).line(label, conversation)

    # -- making ------------------------------------------------------------------------------------------------------

    async def fork(self, entry: int | None, name: str | None, request: Request | None, session: str) -> tuple[str, int]:
        """The label and the conversation of a fork, made or found."""
        found = None if request is None else await self._asking.made(request)
        if found is not None:
            return (await self.state()).label_of(found) or f"{session}-{found}", found
        if name is not None:
            check_name(name)
            if name in (await self.state()).heads:
                raise NotebookError(f"there is a branch named {name}: `%durable use {name}` works on it")
        here = self._asking.conversation
        if entry is None:
            newest = await here.entries().first()
            if newest is None:
                raise NotebookError("there is nothing to fork yet: ask something first")
            parent, at = here, newest.id
        else:
            parent, at = await self._where(entry)
        made = await self._key(request)

        async def init(tx: Tx, record: ConversationRecord) -> None:
            state = await tx.doc(BranchesState)
            state.heads[name or f"{session}-{record.id}"] = record.id
            if made is not None:
                state.made[made] = record.id

        branch = await parent.fork(at, init=init)
        return name or f"{session}-{branch.id}", branch.id

    async def rewind(self, entry: int, request: Request | None) -> None:
        """Move the line to a branch at an entry, made or found."""
        found = None if request is None else await self._asking.made(request)
        if found is not None:
            await self._move_to(found)
            return
        parent, at = await self._where(entry)
        branch = await parent.fork(at, init=self._moving(await self._key(request)))
        await self._asking.move(branch.id, await self.line(self._label, branch.id), at)

    async def revise(self, entry: int, content: Content, request: Request | None) -> Submission:
        """Say an input differently, on a branch that the line moves to, made or found."""
        found = None if request is None else await self._asking.made(request)
        if found is not None:
            await self._move_to(found)
            first = await self._harness.submissions(conversation=ConversationId(found)).first()
            assert first is not None, "a branch that was made by a revision begins with it"
            return Submission(self._harness, first.id, first.conversation_id)
        here = self._asking.conversation
        before = await here.entries(max_id=entry - 1).first()
        agent = await here.agent()
        after = None if before is None else await self._asking.input_at(here.id, before.id)
        given = Provenance(after=after, model=agent.model, tools=tuple(sorted(agent.tools)))
        branch, submission = await here.revise(
            EntryId(entry), content, data={"notebook": given.to_data()}, init=self._moving(await self._key(request))
        )
        line = await self.line(self._label, branch.id)
        await self._asking.move(branch.id, line, None if before is None else before.id)
        self._asking.asked(submission)
        return submission

    async def _where(self, entry: int) -> tuple[Conversation, EntryId]:
        """The conversation to fork at an entry: this one where it shows the entry, else that which wrote it."""
        here = self._asking.conversation
        found = await here.entry(entry)
        if found is not None:
            return here, found.id
        found = await self._harness._read(self._harness.storage.entry(entry))
        if found is None:
            raise NotebookError(f"there is no entry {entry}: `%durable history` shows their ids")
        return Conversation(self._harness, found.conversation_id), found.id

    async def _key(self, request: Request | None) -> str | None:
        if request is None:
            return None
        conversation = self._asking.conversation.id
        return made_key(conversation, await self._asking.take(request, conversation))

    def _moving(self, made: str | None) -> Init:
        came_from = self._asking.conversation.id

        async def init(tx: Tx, record: ConversationRecord) -> None:
            state = await tx.doc(BranchesState)
            state.heads[self._label] = record.id
            state.came_from[str(record.id)] = came_from
            if made is not None:
                state.made[made] = record.id

        return init

    async def _move_to(self, conversation: int) -> None:
        """Go on where a rewind of before went, also when the line has moved on since."""
        state = await self.state()
        if state.heads.get(self._label) != conversation:
            async with self._harness.commit() as tx:
                (await tx.doc(BranchesState)).heads[self._label] = conversation
            state = await self.state()
        record = await self._harness._read(self._harness.storage.conversation(ConversationId(conversation)))
        at = None if record is None or record.parent is None else record.parent.at
        await self._asking.move(conversation, state.line(self._label, conversation), at)

    # -- compacting --------------------------------------------------------------------------------------------------

    async def compact(self, instructions: str | None, request: Request | None) -> TaskId:
        """Start a compaction, or find the one that was started for a request; one that failed is started anew."""
        found = None if request is None else await self._asking.made(request)
        if found is not None:
            task = await self._harness.task(TaskId(found))
            outcome = None if task is None else outcome_of_task(task)
            if outcome is None or outcome.status not in ("failed", "faulted"):
                return TaskId(found)
        conversation = self._asking.conversation
        made = await self._key(request)
        self._harness._implied_resume()
        async with conversation.commit() as tx:
            given = CompactionInput(reason="manual", instructions=instructions)
            id = await start_compaction(tx, conversation.id, given)
            if made is not None:
                (await tx.doc(BranchesState)).made[made] = id
        return id

    async def compacted(self, task: TaskId, patience: float) -> StatusView | None:
        """What came of a compaction, ``None`` when it goes on after ``patience`` seconds.

        Raises ``NotebookError`` when it failed.
        """
        try:
            async with asyncio.timeout(patience):
                record = await self._harness.wait_for_task(task)
        except TimeoutError:
            return None
        outcome = outcome_of_task(record)
        if outcome is not None and outcome.status != "completed":
            error = getattr(outcome, "error", None)
            why = f"has failed: {error.message}" if error is not None else "was stopped"
            raise NotebookError(f"the compaction {why}")
        conversation = Conversation(self._harness, record.conversation_id)
        entry = await self._summary(conversation, task)
        if entry is not None:
            text = entry.text.removeprefix("<summary>").removesuffix("</summary>").strip()
            context = await conversation.context()
            rows = (
                StatusRow(name="summary", value=f"entry {entry.id} · `%durable show {entry.id}`"),
                StatusRow(name="it says", value=clip_line(text, 600)),
                StatusRow(name="context", value=f"{len(context.entries)} entries; the history keeps everything"),
            )
            return StatusView(title="compacted", state="done", rows=rows)
        inbox = await self._harness.snapshot(InboxState, conversation.id)
        if inbox is not None and any(item.kind == KIND for item in inbox.items):
            return StatusView(title="compacted: the summary goes in after the present turn", state="done")
        return StatusView(title="nothing to compact: the context is short enough", state="done")

    async def _summary(self, conversation: Conversation, task: TaskId) -> Entry | None:
        """The entry that a compaction placed, in its own commit or at a boundary after it."""
        async for entry in conversation.entries(min_id=task + 1, order="ascending"):
            if entry.kind == KIND:
                return entry
        return None

    # -- looking -----------------------------------------------------------------------------------------------------

    async def find(self, name: str | int, session: str) -> tuple[str, int]:
        """The label and the conversation of a branch. Raises ``NotebookError`` when there is none."""
        state = await self.state()
        if isinstance(name, str) and name in state.heads:
            return name, state.heads[name]
        if isinstance(name, int) or name.isdecimal():
            record = await self._harness.conversation(int(name))
            if record is not None:
                label = "" if record.id == state.heads.get("", ROOT) else state.label_of(record.id)
                return f"{session}-{record.id}" if label is None else label, record.id
        known = ", ".join(["1", *sorted(filter(None, state.heads))])
        raise NotebookError(f"there is no branch {name}; there are {known}: `%durable conversations` lists them")

    async def names(self) -> list[str]:
        """The names of the branches that have one."""
        return sorted(filter(None, (await self.state()).heads))

    async def rows(self) -> tuple[StatusRow, ...]:
        """What the status says of where this line is; nothing where nothing was ever forked."""
        record = await self._harness._read(self._harness.storage.conversation(self._asking.conversation.id))
        if record is None or record.parent is None:
            return ()
        text = f"conversation {record.id}, a branch of {record.parent.conversation} from #{record.parent.at}"
        return (StatusRow(name="branch", value=text),)

    async def list(self) -> ConversationsView:
        """All conversations, branches below what they were forked from."""
        state = await self.state()
        here = self._asking.conversation.id
        below: dict[int | None, list[ConversationRecord]] = defaultdict(list)
        async for record in self._harness.conversations():
            below[None if record.parent is None else record.parent.conversation].append(record)
        rows: list[ConversationRow] = []
        waiting = [(record, 0) for record in reversed(below[None])]
        while waiting:
            record, depth = waiting.pop()
            waiting.extend((child, depth + 1) for child in reversed(below[record.id]))
            live = await self._harness.snapshot(LiveState, record.id)
            rows.append(
                ConversationRow(
                    id=record.id,
                    depth=depth,
                    name=state.label_of(record.id),
                    at=None if record.parent is None else record.parent.at,
                    task=None if record.owner is None else record.owner.task,
                    said=await self._last_said(record),
                    current=record.id == here,
                    busy=live is not None and live.run is not None,
                )
            )
        return ConversationsView(rows=tuple(rows))

    async def _last_said(self, record: ConversationRecord) -> str:
        """The newest question of a conversation's own."""
        after = None if record.parent is None else record.parent.at + 1
        async for entry in Conversation(self._harness, record.id).entries(min_id=after):
            if entry.messages and entry.messages[0].role == "user" and entry.head is None:
                return clip_line(entry.text, 80)
        return ""

    async def compare(self, one: str | int, other: str | int | None, session: str) -> ComparisonView:
        """Two branches side by side; one alone beside the one where this line is."""
        right = Conversation(self._harness, ConversationId((await self.find(one, session))[1]))
        left = self._asking.conversation
        if other is not None:
            left, right = right, Conversation(self._harness, ConversationId((await self.find(other, session))[1]))
        found = await left.compare(right)
        shared = 0 if found.at is None else len(await left.entries(max_id=found.at).list())
        return ComparisonView(
            left=await self._title(left),
            right=await self._title(right),
            at=found.at,
            shared=shared,
            ours=_shown(found.ours),
            theirs=_shown(found.theirs),
        )

    async def _title(self, conversation: Conversation) -> str:
        label = (await self.state()).label_of(conversation.id)
        return f"conversation {conversation.id}" + (f", {label}" if label else "")


def _shown(entries: Sequence[Entry]) -> tuple[TranscriptEntry, ...]:
    return transcript_view(entries).entries
