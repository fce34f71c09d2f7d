"""Random commits and reopens: every backend answers every read as memory does.

``PIDURABLE_STEPS`` says how many steps are taken at least, on each backend.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pidurable_nb.errors import StorageError, StorageRequestError
from pidurable_nb.patch import diff
from pidurable_nb.records import (
    Completed,
    ConversationRecord,
    DocumentRecord,
    Entry,
    Pending,
    Running,
    Sleeping,
    SubmissionRecord,
    TaskRecord,
    Terminal,
)
from pidurable_nb.storage import (
    BatchItem,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    EndAttempt,
    JsonlStorage,
    MemoryStorage,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    SqliteStorage,
    StartAttempt,
    Storage,
    jsonl,
)
from pidurable_nb.storage.common import new_life
from pidurable_nb.testing import ManualClock

STEPS = int(os.environ.get("PIDURABLE_STEPS", "2000"))
STEPS_IN_A_HISTORY = 40

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
few = st.integers(1, 3)
states = st.one_of(
    st.builds(Pending, checkpoint=st.just({"phase": "p"})),
    st.builds(Running, checkpoint=st.dictionaries(text, json_values, max_size=2)),
    st.builds(Sleeping, checkpoint=st.just({"phase": "p"}), until=st.floats(0, 1e9)),
    st.builds(Terminal, outcome=st.builds(Completed, result=json_values)),
)


class Backends(RuleBasedStateMachine):
    """Memory is the model; the persistent backends follow it."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock(1.0)
        self.memory = MemoryStorage(clock=self.clock)
        self.others: dict[str, SqliteStorage | JsonlStorage] = {}
        self.documents: dict[int, tuple[DocumentRecord, Any]] = {}  # the live ones, with their values
        self.all_documents: list[int] = []
        self.pending: list[BatchItem] = []

    def do(self, call: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(call, 20))

    @initialize()
    def start(self) -> None:
        self.open()

    def open(self) -> None:
        self.others = {
            "sqlite": self.do(SqliteStorage.open(self.folder / "s.sqlite", clock=self.clock)),
            "jsonl": self.do(JsonlStorage.open(self.folder / "j", clock=self.clock)),
        }

    def teardown(self) -> None:
        for storage in self.others.values():
            self.do(storage.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def mint(self) -> int:
        ids = {storage.mint_id() for storage in (self.memory, *self.others.values())}
        assert len(ids) == 1
        return ids.pop()

    def same(self, read: Callable[[Storage], Awaitable[Any]]) -> Any:
        """The answer of a read, which all backends give alike, errors included."""

        async def answer(storage: Storage) -> Any:
            try:
                return await read(storage)
            except (StorageRequestError, StorageError) as error:
                return type(error)

        expected = self.do(answer(self.memory))
        for name, storage in self.others.items():
            assert self.do(answer(storage)) == expected, name
        return expected

    # -- items -------------------------------------------------------------------------------------------------------

    @rule(conversation=few, data=json_values, head=st.booleans())
    def entry(self, conversation: int, data: Any, head: bool) -> None:
        id = self.mint()
        record = Entry(id=id, conversation_id=conversation, kind="t", data=data, head=id if head else None)
        self.pending.append(PutEntry(record))

    @rule()
    def conversation(self) -> None:
        self.pending.append(PutConversation(ConversationRecord(id=self.mint())))

    @rule(new=st.booleans(), which=st.integers(0, 60), state=states, owner=st.none() | few, marked=st.booleans())
    def task(self, new: bool, which: int, state: Any, owner: int | None, marked: bool) -> None:
        id = self.mint() if new else which + 1
        record = TaskRecord(
            id=id, conversation_id=1, kind="t", version=1, state=state, owner=owner, abort_requested=marked
        )
        self.pending.append(PutTask(record))

    @rule(new=st.booleans(), which=st.integers(0, 60), status=st.sampled_from(["queued", "placed", "done"]), named=few)
    def submission(self, new: bool, which: int, status: Any, named: int) -> None:
        id = self.mint() if new else which + 1
        # An existing submission keeps its request id, as the engine's do.
        request_id = f"r{id % (10 * named)}" if new else f"own-{id}"
        record = SubmissionRecord(id=id, conversation_id=1, type="input", status=status, request_id=request_id)
        if new or self.do(self.memory.submission(id)) is None:
            self.pending.append(PutSubmission(record))

    @rule(task=st.integers(1, 9), start=st.booleans())
    def attempt(self, task: int, start: bool) -> None:
        self.pending.append(StartAttempt(task, "p") if start else EndAttempt(task, "parked"))

    @rule(
        scope=st.sampled_from(["session", "conversation", "task"]),
        history=st.sampled_from(["latest", "rewindable"]),
        key=st.none() | st.sampled_from(["", "k"]),
        value=st.dictionaries(text, json_values, max_size=3),
    )
    def create(self, scope: Any, history: Any, key: str | None, value: Any) -> None:
        record = DocumentRecord(
            id=self.mint(),
            kind="d",
            scope=scope,
            scope_id=None if scope == "session" else 1,
            key=key,
            history=history,
            created_at=0,
        )
        taken = {(other.scope, other.key) for other, _ in self.documents.values()}
        self.pending.append(CreateDocument(record, 1, value))
        if (scope, key) not in taken:
            self.documents[record.id] = (record, value)
            self.all_documents.append(record.id)

    @precondition(lambda self: self.documents)
    @rule(which=st.integers(0), value=st.dictionaries(text, json_values, max_size=3), base=st.booleans())
    def change(self, which: int, value: Any, base: bool) -> None:
        record, before = list(self.documents.values())[which % len(self.documents)]
        ops = diff(before, value)
        if base or not ops:
            self.pending.append(ChangeDocument(record, 2, value=value))
        else:
            self.pending.append(ChangeDocument(record, 2, ops))
        self.documents[record.id] = (record, value)

    @precondition(lambda self: self.documents)
    @rule(which=st.integers(0))
    def retire(self, which: int) -> None:
        id = list(self.documents)[which % len(self.documents)]
        self.pending.append(RetireDocument(id))
        del self.documents[id]

    @precondition(lambda self: self.all_documents)
    @rule(which=st.integers(0), at=st.none() | st.integers(0, 40))
    def copy(self, which: int, at: int | None) -> None:
        source = self.all_documents[which % len(self.all_documents)]
        id = self.mint()
        record = DocumentRecord(id=id, kind="copy", scope="conversation", scope_id=id, created_at=0)
        self.pending.append(CopyDocument(source, record, at))

    # -- commits and reopens -----------------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        batch, self.pending = self.pending, []
        self.clock.advance(1)
        before = self.memory.last_seq
        result = self.same(lambda storage: storage.commit(batch))
        if isinstance(result, int):
            assert result == before + 1
        else:
            assert result is StorageError
        self.forget_what_did_not_happen()
        for storage in self.others.values():
            assert storage.last_seq == self.memory.last_seq

    def forget_what_did_not_happen(self) -> None:
        """Take the live documents from the model: a failed batch changed none."""
        found = self.do(self.memory.scan_documents(kind="d", live=False, limit=1000)).items
        self.all_documents = [record.id for record in found]
        self.documents = {}
        for record in found:
            if record.retired_at is None:
                stored = self.do(self.memory.document(record.id))
                assert stored is not None
                self.documents[record.id] = (record, stored.value)

    @rule(crash=st.booleans(), compact=st.booleans())
    def reopen(self, crash: bool, compact: bool) -> None:
        self.pending = []
        self.clock.advance(1)
        for storage in self.others.values():
            if crash:
                storage.abandon()
            else:
                self.do(storage.close())
        # Memory cannot be reopened: the state is told what an opening would do.
        if not crash:
            self.memory._state.end_life("closed", self.clock())
        self.clock.advance(1)
        self.memory.life = new_life(self.memory.life.id + 1, self.clock())
        self.memory._state.open_life(self.memory.life)
        self.memory._next_id = self.memory._state.top_id
        above = jsonl.COMPACT_ABOVE
        jsonl.COMPACT_ABOVE = 1 if compact else above
        try:
            self.open()
        finally:
            jsonl.COMPACT_ABOVE = above
        self.forget_what_did_not_happen()

    # -- reads -------------------------------------------------------------------------------------------------------

    @rule(after=st.integers(0, 40))
    def read_changes(self, after: int) -> None:
        self.same(lambda storage: storage.changes(min(after, storage.last_seq)))

    @precondition(lambda self: self.all_documents)
    @rule(which=st.integers(0), at=st.none() | st.integers(0, 40), key=st.none() | st.sampled_from(["", "k"]))
    def read_document(self, which: int, at: int | None, key: str | None) -> None:
        id = self.all_documents[which % len(self.all_documents)]
        self.same(lambda storage: storage.document(id, at=at))
        self.same(lambda storage: storage.find_document("d", "conversation", 1, key, at=at))

    @rule(
        order=st.sampled_from(["ascending", "descending"]),
        limit=st.integers(1, 5),
        cursor=st.none() | st.integers(0, 80),
        conversation=st.none() | few,
        bound=st.none() | st.integers(0, 80),
        status=st.sampled_from([None, "pending", ("running", "sleeping"), ("terminal", "pending")]),
        owner=st.none() | few,
        marked=st.sampled_from([None, True, False]),
        live=st.booleans(),
    )
    def read_pages(
        self,
        order: Any,
        limit: int,
        cursor: int | None,
        conversation: int | None,
        bound: int | None,
        status: Any,
        owner: int | None,
        marked: bool | None,
        live: bool,
    ) -> None:
        paging: dict[str, Any] = {"order": order, "limit": limit, "cursor": cursor}
        self.same(lambda s: s.scan_entries(conversation=conversation, max_id=bound, **paging))
        self.same(lambda s: s.scan_entries(conversation=conversation, min_id=bound, **paging))
        self.same(lambda s: s.scan_tasks(status=status, owner=owner, abort_requested=marked, **paging))
        self.same(lambda s: s.scan_submissions(status=("queued", "placed") if live else None, **paging))
        self.same(lambda s: s.scan_conversations(**paging))
        self.same(lambda s: s.scan_documents(live=live, **paging))
        self.same(lambda s: s.latest_head(conversation or 1, max_id=bound))
        self.same(lambda s: s.scan_commits(after=cursor or 0, order=order, limit=limit))
        self.same(lambda s: s.submission_by_request(1, f"r{limit}"))
        self.same(lambda s: s.entry_commit(bound or 1))

    @invariant()
    def lives_and_attempts_are_the_same(self) -> None:
        Backends.steps += 1  # looked at after each step
        if self.others:
            self.same(lambda storage: storage.lives())
            self.same(lambda storage: storage.attempts())


def test_every_backend_answers_as_memory_does() -> None:
    Backends.steps = 0
    while Backends.steps < STEPS:  # a history may be shorter than it might be
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Backends,
            settings=settings(
                max_examples=max(10, STEPS // STEPS_IN_A_HISTORY),
                stateful_step_count=STEPS_IN_A_HISTORY,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    print(f"{Backends.steps} steps on each backend")
