"""What is live, in memory: open tasks, open submissions, and the conversations and documents in use.

A session keeps two mirrors. The *sealed* one holds what the line has decided and is what the next commit's body reads;
the *committed* one holds what storage has settled and is what everybody else sees (engine.md, rule 1.6). Both move by
``apply``, the same staged changes in the same order; between commits that are in flight they differ.

Records are immutable, so two mirrors share them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from ..patch import Op
from ..records import ConversationRecord, Entry, SubmissionRecord, TaskRecord
from ..values import Value
from .documents import Address, DocumentState


class DocumentChange(NamedTuple):
    """What a commit did to a document. ``after`` is ``None`` when it was retired, ``before`` when it was created.

    ``ops`` lead from the value before to the value after; a created document's replace the whole.
    """

    before: DocumentState | None
    after: DocumentState | None
    ops: list[Op]


@dataclass(slots=True)
class Staged:
    """The changes of one commit."""

    conversations: dict[int, ConversationRecord] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    tasks: dict[int, TaskRecord] = field(default_factory=dict)
    submissions: dict[int, SubmissionRecord] = field(default_factory=dict)
    documents: dict[Address, DocumentChange] = field(default_factory=dict)


class Mirror:
    """Live state. ``children`` maps a task to its live ordinary work: the tasks it owns, and those of the
    conversations it owns that are not in the background (engine.md, section 7). ``in_flight`` holds, in the sealed
    mirror only, every record that was sealed and is not settled; ids are of one namespace, so one table does."""

    def __init__(self) -> None:
        self.tasks: dict[int, TaskRecord] = {}
        self.children: defaultdict[int, set[int]] = defaultdict(set)
        self.submissions: dict[int, SubmissionRecord] = {}
        self.requests: dict[tuple[int, str], int] = {}  # of those, by conversation and request id
        self.conversations: dict[int, ConversationRecord] = {}
        self.owned_conversations: defaultdict[int, set[int]] = defaultdict(set)
        self.documents: dict[Address, DocumentState | None] = {}
        self.task_documents: defaultdict[int, set[Address]] = defaultdict(set)
        self.in_flight: dict[int, Value] = {}

    def owner_of(self, task: TaskRecord) -> int | None:
        """The task whose ordinary work this is; ``None`` when a conversation's own, or background."""
        if task.owner is not None:
            return task.owner
        if task.background:
            return None
        conversation = self.conversations.get(task.conversation_id)
        return None if conversation is None or conversation.owner is None else conversation.owner.task

    def put_conversation(self, record: ConversationRecord) -> None:
        self.conversations[record.id] = record
        if record.owner is not None:
            self.owned_conversations[record.owner.task].add(record.id)

    def apply(self, staged: Staged) -> None:
        for conversation in staged.conversations.values():
            self.put_conversation(conversation)
        for submission in staged.submissions.values():
            self._put_submission(submission)
        for address, change in staged.documents.items():
            self.put_document(address, change.after)
        for task in staged.tasks.values():  # last: one that ends takes along what was kept for it
            self._put_task(task)

    def _put_task(self, task: TaskRecord) -> None:
        owner = self.owner_of(task)
        if task.terminal:
            self.tasks.pop(task.id, None)
            self.children.pop(task.id, None)
            self.task_documents.pop(task.id, None)
            for conversation in self.owned_conversations.pop(task.id, ()):
                self.conversations.pop(conversation, None)  # whoever works in it later reads it again
            if owner is not None and owner in self.children:
                siblings = self.children[owner]
                siblings.discard(task.id)
                if not siblings:
                    del self.children[owner]
        else:
            self.tasks[task.id] = task
            if owner is not None:
                self.children[owner].add(task.id)

    def _put_submission(self, submission: SubmissionRecord) -> None:
        if submission.settled:
            self.submissions.pop(submission.id, None)
        else:
            self.submissions[submission.id] = submission
        if submission.request_id is not None:
            asked = submission.conversation_id, submission.request_id
            if submission.settled:
                self.requests.pop(asked, None)
            else:
                self.requests[asked] = submission.id

    def put_document(self, address: Address, state: DocumentState | None) -> None:
        self.documents[address] = state
        if state is None:
            owned = self.task_documents.get(address.scope_id or 0)
            if owned is not None:
                owned.discard(address)
        elif state.record.scope == "task" and address.scope_id is not None:
            self.task_documents[address.scope_id].add(address)

    def sealed(self, staged: Staged) -> None:
        """Remember records that storage does not show yet."""
        for table in (staged.conversations, staged.entries, staged.tasks, staged.submissions):
            if table:
                self.in_flight.update(table)

    def settled(self, staged: Staged) -> None:
        """Forget them: storage shows them now, unless a later commit in flight changed them again."""
        for table in (staged.conversations, staged.entries, staged.tasks, staged.submissions):
            for id, record in table.items():
                if self.in_flight.get(id) is record:
                    del self.in_flight[id]

    def load(self, other: Mirror) -> None:
        """Take over what another mirror holds, at open."""
        self.tasks = dict(other.tasks)
        self.children = defaultdict(set, {id: set(children) for id, children in other.children.items()})
        self.submissions = dict(other.submissions)
        self.requests = dict(other.requests)
        self.conversations = dict(other.conversations)
        self.owned_conversations = defaultdict(set, {id: set(own) for id, own in other.owned_conversations.items()})
        self.documents = dict(other.documents)
        self.task_documents = defaultdict(set, {id: set(owned) for id, owned in other.task_documents.items()})
