"""One transaction: what the body of a commit can read and write (engine.md, section 3).

Point look-ups see what the transaction staged, then what the line has sealed, then storage. Scans read storage, so they
come before the first table write. Writes are staged; the session seals them when the body ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from ..errors import DurableError, OwnerEnded, ReadAfterWrite, TransactionClosed
from ..messages import Message
from ..records import (
    ConversationId,
    ConversationOwner,
    ConversationRecord,
    DocumentId,
    DocumentRecord,
    Entry,
    EntryEdit,
    EntryId,
    ForkPoint,
    Pending,
    SubmissionRecord,
    TaskId,
    TaskRecord,
)
from ..storage.protocol import (
    BatchItem,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    Order,
    Page,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
)
from ..values import JsonValue, check_json
from .documents import (
    Address,
    Document,
    DocumentState,
    address_of,
    changes,
    check_name,
    close_draft,
    copied,
    dump,
    instance_of,
)
from .mirror import DocumentChange, Staged
from .scan import Scan

if TYPE_CHECKING:
    from .session import Session

D = TypeVar("D", bound=Document)


class TaskClass(Protocol):
    """What a transaction needs of a task class (``pidurable_nb.Task`` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    def dump_input(self, input: Any) -> JsonValue: ...
    def initial_checkpoint(self, stored: JsonValue) -> dict[str, JsonValue]: ...


class _Draft:
    """A document that the transaction opened: its address, what it was, and the instance that the body changes."""

    __slots__ = ("address", "before", "doc", "instance", "record", "stale_version")

    def __init__(
        self,
        address: Address,
        doc: type[Document],
        instance: Document,
        before: DocumentState | None,
        record: DocumentRecord,
        stale_version: bool,
    ) -> None:
        self.address = address
        self.doc = doc
        self.instance = instance
        self.before = before
        self.record = record
        self.stale_version = stale_version


class Tx:
    """The transaction of one commit; ``async with session.commit() as tx``.

    After the block every use raises ``TransactionClosed``. Ids that it returns are final once the block has ended
    without an error.
    """

    def __init__(self, session: Session, conversation: ConversationId | None, by_task: TaskId | None = None) -> None:
        self._session = session
        self._bound = conversation
        self._by_task = by_task
        self._staged = Staged()
        self._drafts: dict[Address, _Draft] = {}
        self._retired: list[tuple[Address, DocumentState]] = []
        self._copies: list[tuple[CopyDocument, Address, DocumentState]] = []
        self._extra: list[BatchItem] = []
        self._wrote = False
        self._open = True

    # -- look-ups ---------------------------------------------------------------------------------------------------

    async def conversation(self, id: int) -> ConversationRecord | None:
        """A conversation record, staged ones included."""
        self._check()
        return self._staged.conversations.get(id) or await self._session._sealed_conversation(id)

    async def entry(self, id: int) -> Entry | None:
        """An entry, staged ones included."""
        self._check()
        return self._staged.entries.get(id) or await self._session._sealed_entry(id)

    async def task(self, id: int) -> TaskRecord | None:
        """A task record, staged changes included."""
        self._check()
        return self._staged.tasks.get(id) or await self._session._sealed_task(id)

    async def submission(self, id: int) -> SubmissionRecord | None:
        """A submission record, staged changes included."""
        self._check()
        return self._staged.submissions.get(id) or await self._session._sealed_submission(id)

    async def submission_by_request(self, conversation: int, request_id: str) -> SubmissionRecord | None:
        """The submission that carries a request id in a conversation (engine.md, section 9)."""
        self._check()
        for record in self._staged.submissions.values():
            if record.conversation_id == conversation and record.request_id == request_id:
                return record
        return await self._session._sealed_submission_by_request(conversation, request_id)

    def scan_conversations(self, **filters: Any) -> Scan[ConversationRecord]:
        """Conversations, as ``Harness.conversations``. Raises ``ReadAfterWrite`` after the first table write."""
        return self._scan(self._session.storage.scan_conversations, filters)

    def scan_entries(
        self,
        *,
        conversation: ConversationId | None = None,
        min_id: int | None = None,
        max_id: int | None = None,
        order: Order = "descending",
    ) -> Scan[Entry]:
        """The entries that a conversation sees, as ``Conversation.entries``; by default the bound conversation's.

        Raises ``ReadAfterWrite`` after the first table write.
        """
        target = self._conversation(conversation)
        filters = {"conversation": target, "min_id": min_id, "max_id": max_id, "order": order}
        return self._scan(self._session._visible_page, filters)

    def scan_tasks(self, **filters: Any) -> Scan[TaskRecord]:
        """Tasks, as ``Harness.tasks``. Raises ``ReadAfterWrite`` after the first table write."""
        return self._scan(self._session.storage.scan_tasks, filters)

    def scan_submissions(self, **filters: Any) -> Scan[SubmissionRecord]:
        """Submissions, as ``Harness.submissions``. Raises ``ReadAfterWrite`` after the first table write."""
        return self._scan(self._session.storage.scan_submissions, filters)

    def _scan(self, fetch: Any, filters: dict[str, Any]) -> Scan[Any]:
        async def page(limit: int, cursor: int | None) -> Page[Any]:
            self._check()
            if self._wrote:
                raise ReadAfterWrite(
                    "a scan reads storage and does not see what this transaction wrote: scan before the first write, "
                    "or look records up by their ids"
                )
            await self._session._drained()  # storage holds what the line has sealed
            found: Page[Any] = await self._session._read(fetch(limit=limit, cursor=cursor, **filters))
            return found

        return Scan(page)

    # -- conversations and entries ----------------------------------------------------------------------------------

    async def create_conversation(self, *, owner: TaskId | None = None) -> ConversationRecord:
        """A new conversation, owned by a task or by nobody (engine.md, sections 2 and 6).

        Raises ``OwnerEnded`` when the owner is completing, terminal or abort-marked.
        """
        return await self._create_conversation(None, owner)

    async def fork_conversation(
        self, parent: ConversationId, at: EntryId, *, owner: TaskId | None = None
    ) -> ConversationRecord:
        """A conversation that sees its parent's entries through ``at`` (engine.md, section 6).

        Documents follow their fork policy. Raises ``DurableError`` when the parent does not see that entry.
        """
        if not isinstance(at, int):
            raise TypeError(f"a fork is made at the id of an entry, such as entry.id, not at a {type(at).__name__}")
        if not await self._visible(parent, at):
            raise DurableError(f"conversation {parent} has no entry {at} to fork at")
        return await self._create_conversation(ForkPoint(parent, at), owner)

    async def _create_conversation(self, parent: ForkPoint | None, owner: TaskId | None) -> ConversationRecord:
        self._check()
        owned_by = None
        if owner is not None:
            task = await self._live_owner(owner)
            owned_by = ConversationOwner(task.conversation_id, owner)
        record = ConversationRecord(ConversationId(self._session._mint()), parent=parent, owner=owned_by)
        self._staged.conversations[record.id] = record
        self._wrote = True
        if parent is not None:
            await self._copy_documents(record, parent)
        await self._session._conversation_created(self, record)
        return record

    async def _live_owner(self, owner: TaskId) -> TaskRecord:
        task = await self.task(owner)
        if task is None:
            raise OwnerEnded(f"task {owner} does not exist, so it cannot own new work")
        if task.state.status in ("completing", "terminal") or task.abort_requested:
            why = "is being aborted" if task.abort_requested else f"is {task.state.status}"
            raise OwnerEnded(f"task {owner} ({task.kind}) {why}, so it cannot own new work")
        return task

    async def _active_from(self, conversation: int) -> EntryId | None:
        """The entry from which the model reads once this transaction is stored, where a head was set."""
        for entry in reversed(self._staged.entries.values()):
            if entry.conversation_id == conversation and entry.head is not None:
                return entry.head
        return await self._session._active_from(conversation)

    async def _visible(self, conversation: int, entry: int) -> bool:
        found = await self.entry(entry)
        limit: int | None = None
        while found is not None:
            if found.conversation_id == conversation:
                return limit is None or found.id <= limit
            record = await self.conversation(conversation)
            if record is None or record.parent is None:
                return False
            limit = record.parent.at if limit is None else min(limit, record.parent.at)
            conversation = record.parent.conversation
        return False

    async def append_entry(
        self,
        kind: str,
        *,
        conversation: ConversationId | None = None,
        messages: Sequence[Message] = (),
        data: JsonValue = None,
        head: EntryId | Literal["self"] | None = None,
        edits: Iterable[EntryEdit | Mapping[str, Any]] = (),
    ) -> Entry:
        """Append an entry to a conversation, by default the one this commit is bound to.

        ``head`` names the entry from which the model's context now starts, ``"self"`` this one; ``edits`` change what
        the model reads in place of earlier entries (engine.md, section 5). Raises ``ValueError`` for a reserved kind,
        ``InvalidValue`` for data that is not strict JSON, and ``DurableError`` for a head or a target that the
        conversation does not see.
        """
        check_name(kind, "an entry", "")
        checked = [edit if isinstance(edit, EntryEdit) else EntryEdit.model_validate(edit) for edit in edits]
        target = self._conversation(conversation)
        references = [edit.target for edit in checked]
        if isinstance(head, int):
            references.append(head)
        for reference in references:
            if not await self._visible(target, reference):
                raise DurableError(f"conversation {target} has no entry {reference}")
        return self._append(kind, target, messages, check_json(data, f"the entry {kind}"), head, checked)

    def _append(
        self,
        kind: str,
        conversation: ConversationId,
        messages: Iterable[Message] = (),
        data: JsonValue = None,
        head: EntryId | Literal["self"] | None = None,
        edits: Iterable[EntryEdit] = (),
    ) -> Entry:
        self._check()
        id = EntryId(self._session._mint())
        entry = Entry.model_validate(
            {
                "id": id,
                "conversation_id": conversation,
                "kind": kind,
                "messages": tuple(messages),
                "data": data,
                "head": id if head == "self" else head,
                "edits": tuple(edits),
                "by_task": self._by_task,
            }
        )
        self._staged.entries[id] = entry
        self._wrote = True
        return entry

    def _conversation(self, given: ConversationId | None) -> ConversationId:
        conversation = given if given is not None else self._bound
        if conversation is None:
            raise ValueError("this commit is bound to no conversation: pass conversation=")
        return conversation

    async def create_task(
        self,
        task: TaskClass,
        input: Any,
        *,
        owner: TaskId | None = None,
        conversation: ConversationId | None = None,
        background: bool = False,
        abandon_on_restart: bool = False,
    ) -> TaskId:
        """A new task, owned by ``owner`` or else by the conversation (engine.md, section 7).

        Raises ``OwnerEnded`` when the owner is completing, terminal or abort-marked, ``ValueError`` for a background
        task that a task owns and for an owner of another conversation, and ``InvalidValue`` or pydantic's error for an
        input that does not fit.
        """
        self._check()
        if owner is not None:
            if background:
                raise ValueError("only a conversation can own a background task: leave out owner or background")
            home = (await self._live_owner(owner)).conversation_id
            if conversation not in (None, home):
                raise ValueError(f"task {owner} is of conversation {home} and can own tasks only there")
            conversation = home
        target = self._conversation(conversation)
        if await self.conversation(target) is None:
            raise DurableError(f"there is no conversation {target}")
        stored = task.dump_input(input)
        record = TaskRecord(
            id=TaskId(self._session._mint()),
            conversation_id=target,
            kind=task.name,
            version=task.version,
            input=stored,
            owner=owner,
            background=background,
            abandon_on_restart=abandon_on_restart,
            state=Pending(checkpoint=task.initial_checkpoint(stored)),
        )
        self._put_task(record)
        return record.id

    async def configure(self, conversation: ConversationId, **change: Any) -> None:
        """Change what a conversation runs with: fields of ``AgentChange``; ``None`` clears, absent keeps."""
        self._check()
        await self._session._configure(self, conversation, change)

    # -- tables ------------------------------------------------------------------------------------------------------

    def _put_task(self, record: TaskRecord) -> None:
        self._check()
        self._staged.tasks[record.id] = record
        self._wrote = True

    def _put_submission(self, record: SubmissionRecord) -> None:
        self._check()
        self._staged.submissions[record.id] = record
        self._wrote = True

    def _add(self, item: BatchItem) -> None:
        self._extra.append(item)

    # -- documents ---------------------------------------------------------------------------------------------------

    async def doc(
        self, doc: type[D], scope: int | None = None, *, key: str | None = None, seed: Mapping[str, Any] | None = None
    ) -> D:
        """The draft of a document, created when absent; ``scope`` defaults to the bound conversation or task.

        The first access to an address is memoised: later ones return the same draft. ``seed`` gives initial field
        values and is used only at creation (engine.md, section 4).
        """
        self._check()
        address = address_of(doc, self._scope(doc, scope), key)
        draft = self._drafts.get(address)
        if draft is None:
            state = await self._document_state(address)
            draft = self._open_draft(address, doc, state, seed or {})
        return draft.instance  # type: ignore[return-value]

    async def _document_state(self, address: Address) -> DocumentState | None:
        for retired, _ in self._retired:
            if address == retired:
                return None
        for _, copied_to, state in self._copies:
            if copied_to == address:
                return state
        return await self._session._sealed_document(address)

    def _open_draft(
        self, address: Address, doc: type[Document], state: DocumentState | None, seed: Mapping[str, Any]
    ) -> _Draft:
        spec = doc.spec_
        if state is None:
            record = DocumentRecord(
                id=DocumentId(self._session._mint()),
                kind=spec.kind,
                scope=spec.scope,
                scope_id=address.scope_id,
                key=address.key,
                history=spec.history,
                fork=spec.fork,
                created_at=0,
            )
            draft = _Draft(address, doc, doc(**seed), None, record, False)
        else:
            instance = instance_of(doc, state)
            draft = _Draft(address, doc, instance, state, state.record, state.version < spec.version)
        self._drafts[address] = draft
        return draft

    def _scope(self, doc: type[Document], scope: int | None) -> int | None:
        if scope is not None or not hasattr(doc, "spec_"):
            return scope
        if doc.spec_.scope == "conversation":
            return self._bound
        return self._by_task if doc.spec_.scope == "task" else None

    async def retire_doc(self, doc: type[Document], scope: int | None = None, *, key: str | None = None) -> None:
        """End a document; creating it again gives a new incarnation. Nothing happens when it does not exist."""
        self._check()
        address = address_of(doc, self._scope(doc, scope), key)
        await self._retire(address)

    async def _retire(self, address: Address) -> None:
        draft = self._drafts.pop(address, None)
        if draft is not None:
            close_draft(draft.instance)
        state = await self._document_state(address)
        if state is not None:
            self._retired.append((address, state))

    async def _copy_documents(self, child: ConversationRecord, parent: ForkPoint) -> None:
        """Copy documents by their fork policy: ``current`` from the parent as it is now, ``as_of`` from the
        conversation that wrote the entry, as of that commit (engine.md, section 6)."""
        session = self._session
        await session._drained()
        forked_at = await session._read(session.storage.entry_commit(parent.at))
        entry = await self.entry(parent.at)
        if forked_at is None or entry is None:
            raise DurableError(f"entry {parent.at} was written by this same commit: fork at it in the next one")
        for record in await self._documents_of(parent.conversation):
            if record.fork != "current" or record.retired_at is not None:
                continue
            state = await self._document_state(Address(record.kind, parent.conversation, record.key))
            if state is not None:
                self._copy(state.record, child.id, None, state)
        for record in await self._documents_of(entry.conversation_id):
            lived = record.created_at <= forked_at.seq and (
                record.retired_at is None or forked_at.seq < record.retired_at
            )
            if record.fork == "as_of" and lived:
                stored = await session._read(session.storage.document(record.id, at=forked_at.seq))
                if stored is not None:
                    state = DocumentState(record, stored.version, stored.value, 0)
                    self._copy(record, child.id, forked_at.seq, state)

    async def _documents_of(self, conversation: int) -> list[DocumentRecord]:
        async def page(limit: int, cursor: int | None) -> Page[DocumentRecord]:
            return await self._session._read(
                self._session.storage.scan_documents(
                    scope="conversation", scope_id=conversation, live=False, limit=limit, cursor=cursor
                )
            )

        return await Scan(page).list()

    def _copy(self, source: DocumentRecord, child: int, at: int | None, state: DocumentState) -> None:
        record = source.replaced(id=DocumentId(self._session._mint()), scope_id=child, created_at=0, retired_at=None)
        address = Address(source.kind, child, source.key)
        copied = DocumentState(record, state.version, state.value, 0)
        self._copies.append((CopyDocument(source.id, record, at), address, copied))

    # -- sealing -----------------------------------------------------------------------------------------------------

    def _seal(self) -> list[BatchItem]:
        """Turn what was staged into the items of a batch, and close. Raises what makes the commit impossible."""
        staged = self._staged
        items: list[BatchItem] = []
        items.extend(map(PutConversation, staged.conversations.values()))
        items.extend(map(PutEntry, staged.entries.values()))
        items.extend(map(PutTask, staged.tasks.values()))
        items.extend(map(PutSubmission, staged.submissions.values()))
        for copy, address, state in self._copies:
            items.append(copy)
            staged.documents[address] = DocumentChange(
                None, state, [{"op": "replace", "path": "", "value": state.value}]
            )
        for address, state in self._retired:
            items.append(RetireDocument(state.record.id))
            staged.documents[address] = DocumentChange(state, None, [{"op": "replace", "path": "", "value": None}])
        for draft in self._drafts.values():
            item = self._document_item(draft)
            if item is not None:
                items.append(item)
        items.extend(self._extra)
        self._close()
        return items

    def _document_item(self, draft: _Draft) -> BatchItem | None:
        spec = draft.doc.spec_
        before = draft.before
        parsed = copied(draft.instance) if draft.doc.compact_ else None
        if before is None:
            value = dump(draft.instance)
            state = DocumentState(draft.record, spec.version, value, 0, parsed)
            self._staged.documents[draft.address] = DocumentChange(
                None, state, [{"op": "replace", "path": "", "value": value}]
            )
            return CreateDocument(draft.record, spec.version, value)
        value, ops = changes(draft.instance, before)
        if not ops and not draft.stale_version:
            return None
        as_base = draft.stale_version or draft.doc.checkpoint_when(value, ops, before.deltas)
        state = DocumentState(draft.record, spec.version, value, 0 if as_base else before.deltas + 1, parsed)
        self._staged.documents[draft.address] = DocumentChange(before, state, ops)
        if as_base:
            return ChangeDocument(draft.record, spec.version, value=value)
        return ChangeDocument(draft.record, spec.version, ops=ops)

    def _close(self) -> None:
        self._open = False
        for draft in self._drafts.values():
            close_draft(draft.instance)

    def _check(self) -> None:
        if not self._open:
            raise TransactionClosed("this transaction has ended: use `async with …commit() as tx` for a new one")
