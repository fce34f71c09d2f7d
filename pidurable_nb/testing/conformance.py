"""The storage conformance suite: what every backend must do, as pytest tests (engine.md, section 16).

For people who write a backend. Say how to open one at a path, and assign the tests in a test module::

    # tests/test_my_storage.py
    from pidurable_nb.testing import storage_conformance

    TestMyStorage = storage_conformance(MyStorage.open)

``factory(path, clock=clock)`` is awaited and returns an opened storage. The path, inside a fresh folder, does not exist
at first; called again with the same path it opens what is stored there. A storage that keeps nothing passes
``persistent=False``, and the tests that reopen are left out. Everything else is the protocol's
(``pidurable_nb.storage``); tests of a crash are skipped where the storage has no ``abandon()``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ..errors import DurableError, InvalidValue, SessionClosed, SessionInUse, StorageError, StorageRequestError
from ..messages import TextBlock, UserMessage
from ..patch import Op
from ..records import (
    Completed,
    ConversationId,
    ConversationOwner,
    ConversationRecord,
    DocumentId,
    DocumentRecord,
    Entry,
    EntryId,
    ForkPoint,
    Pending,
    Running,
    Sleeping,
    SubmissionId,
    SubmissionRecord,
    TaskId,
    TaskRecord,
    Terminal,
)
from ..storage.protocol import (
    BatchItem,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    EndAttempt,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    StartAttempt,
    Storage,
)
from .clock import ManualClock

__all__ = ["PersistentStorageConformance", "StorageConformance", "storage_conformance"]

Factory = Callable[..., Awaitable[Storage]]

TIMEOUT = 30.0
"""Seconds that one test may take."""


# -- records to store ------------------------------------------------------------------------------------------------


def conversation(id: int, **fields: Any) -> ConversationRecord:
    return ConversationRecord(id=ConversationId(id), **fields)


def entry(id: int, conversation: int = 1, **fields: Any) -> Entry:
    return Entry(id=EntryId(id), conversation_id=ConversationId(conversation), kind="test.entry", **fields)


def task(id: int, state: Any = None, conversation: int = 1, **fields: Any) -> TaskRecord:
    return TaskRecord(
        id=TaskId(id),
        conversation_id=ConversationId(conversation),
        kind=fields.pop("kind", "test.task"),
        version=1,
        state=state or Pending(checkpoint={"phase": "start"}),
        **fields,
    )


def submission(id: int, status: Any = "queued", conversation: int = 1, **fields: Any) -> SubmissionRecord:
    return SubmissionRecord(
        id=SubmissionId(id), conversation_id=ConversationId(conversation), type="input", status=status, **fields
    )


def document(id: int, scope_id: int | None = 1, **fields: Any) -> DocumentRecord:
    fields = {"kind": "test.document", "scope": "conversation" if scope_id else "session", **fields}
    return DocumentRecord(id=DocumentId(id), scope_id=scope_id, created_at=0, **fields)


def replace(value: Any, path: str = "/n") -> list[Op]:
    return [{"op": "replace", "path": path, "value": value}]


def ids(records: list[Any]) -> list[int]:
    return [record.id for record in records]


async def minted(storage: Storage, count: int) -> list[int]:
    return [storage.mint_id() for _ in range(count)]


# -- the suite -------------------------------------------------------------------------------------------------------


def storage_conformance(factory: Factory, *, persistent: bool = True) -> type[StorageConformance]:
    """A class of pytest tests for the storages that ``factory`` opens; the module's docstring shows its use."""
    base = PersistentStorageConformance if persistent else StorageConformance
    return type("TestStorageConformance", (base,), {"factory": staticmethod(factory)})


class StorageConformance:
    """The tests of any storage; ``storage_conformance`` fills in ``factory``."""

    factory: Callable[..., Awaitable[Storage]]

    # -- how a test runs ---------------------------------------------------------------------------------------------

    def run(self, folder: Path, body: Callable[[Storage], Awaitable[None]]) -> None:
        """Run a body with one opened storage, which is closed after it."""

        async def main() -> None:
            async with asyncio.timeout(TIMEOUT), self.opened(folder) as storage:
                await body(storage)

        asyncio.run(main())

    async def open(self, folder: Path, name: str = "storage", clock: Callable[[], float] | None = None) -> Storage:
        return await type(self).factory(folder / name, clock=clock or ManualClock(1000.0))

    @asynccontextmanager
    async def opened(
        self, folder: Path, name: str = "storage", clock: Callable[[], float] | None = None
    ) -> AsyncIterator[Storage]:
        storage = await self.open(folder, name, clock)
        try:
            yield storage
        finally:
            await storage.close()

    # -- commits and ids ---------------------------------------------------------------------------------------------

    def test_a_new_storage_is_empty(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            assert isinstance(storage, Storage)
            assert storage.last_seq == 0
            assert await storage.conversation(1) is None
            assert await storage.entry(1) is None
            assert await storage.task(1) is None
            assert await storage.submission(1) is None
            assert await storage.submission_by_request(1, "r") is None
            assert await storage.latest_head(1) is None
            assert await storage.entry_commit(1) is None
            assert await storage.document(1) is None
            assert await storage.find_document("test.document", "session") is None
            assert (await storage.scan_commits()).items == []
            assert (await storage.scan_entries()).items == []
            assert await storage.attempts() == []
            changes = await storage.changes(0)
            assert (changes.seq, changes.entries, changes.documents) == (0, [], [])

        self.run(tmp_path, body)

    def test_commits_are_numbered_without_gaps_and_keep_their_time_and_life(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            assert await storage.commit([PutConversation(conversation(storage.mint_id()))], at=10.5) == 1
            assert await storage.commit([], at=11.5) == 2
            assert await storage.commit([PutEntry(entry(storage.mint_id()))]) == 3
            assert storage.last_seq == 3
            infos = (await storage.scan_commits()).items
            assert [(info.seq, info.at, info.life) for info in infos] == [
                (1, 10.5, storage.life.id),
                (2, 11.5, storage.life.id),
                (3, 1000.0, storage.life.id),
            ]
            page = await storage.scan_commits(after=1, order="descending", limit=1)
            assert [info.seq for info in page.items] == [3]
            assert page.next == 3
            assert (await storage.scan_commits(after=2, limit=1)).next is None
            info = await storage.entry_commit(2)
            assert info is not None
            assert info.seq == 3

        self.run(tmp_path, body)

    def test_ids_grow_over_all_kinds(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            first = await minted(storage, 3)
            assert first == sorted(set(first))
            assert first[0] >= 1
            await storage.commit([PutConversation(conversation(first[0])), PutEntry(entry(first[2]))])
            assert storage.mint_id() > first[2]

        self.run(tmp_path, body)

    def test_calls_are_applied_in_their_order(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            new = await minted(storage, 60)
            seqs = await asyncio.gather(*(storage.commit([PutEntry(entry(id))]) for id in new))
            assert seqs == list(range(1, 61))
            for id, seq in zip(new, seqs, strict=True):
                info = await storage.entry_commit(id)
                assert info is not None
                assert info.seq == seq

        self.run(tmp_path, body)

    def test_a_failed_commit_leaves_no_trace(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b, c, d, e = await minted(storage, 5)
            existing: list[BatchItem] = [
                PutConversation(conversation(1000)),
                PutTask(task(a, owner=TaskId(7))),
                PutSubmission(submission(b, request_id="r1")),
                CreateDocument(document(c), 1, {"n": 0}),
                StartAttempt(TaskId(a), "start"),
            ]
            await storage.commit(existing)
            doomed: list[BatchItem] = [
                PutConversation(conversation(1001)),
                PutEntry(entry(d, head=EntryId(d))),
                PutTask(task(a, Terminal(outcome=Completed(result=1)))),
                PutSubmission(submission(b, "done", request_id="r1")),
                PutSubmission(submission(1002, request_id="r2")),
                ChangeDocument(document(c), 2, replace(1)),
                ChangeDocument(document(c), 2, value={"n": 2}),
                RetireDocument(DocumentId(c)),
                CreateDocument(document(e), 1, {"n": 9}),
                EndAttempt(TaskId(a), "ended"),
                RetireDocument(DocumentId(999_999)),
            ]
            with pytest.raises(StorageError):
                await storage.commit(doomed)
            assert storage.last_seq == 1
            assert await storage.conversation(1001) is None
            assert await storage.entry(d) is None
            assert await storage.latest_head(1) is None
            assert await storage.task(a) == task(a, owner=TaskId(7))
            assert await storage.submission(b) == submission(b, request_id="r1")
            assert await storage.submission_by_request(1, "r2") is None
            stored = await storage.document(c)
            assert stored is not None
            assert (stored.value, stored.version, stored.seq, stored.deltas) == ({"n": 0}, 1, 1, 0)
            assert stored.record.retired_at is None
            found = await storage.find_document("test.document", "conversation", 1)
            assert found is not None
            assert found.id == c
            assert await storage.document(e) is None
            (attempt,) = await storage.attempts()
            assert attempt.end is None
            assert ids((await storage.scan_tasks(status="pending")).items) == [a]
            assert (await storage.changes(1)).seq == 1
            assert len((await storage.scan_commits()).items) == 1
            assert await storage.commit([PutEntry(entry(d))]) == 2

        self.run(tmp_path, body)

    def test_what_follows_a_failing_commit_fails_with_it_and_what_precedes_is_stored(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            new = await minted(storage, 8)
            await storage.commit([PutEntry(entry(new[0]))])
            batches = [[PutEntry(entry(id))] for id in new[1:4]] + [[PutEntry(entry(new[0]))]]
            results = await asyncio.gather(*map(storage.commit, batches), return_exceptions=True)
            assert results[:3] == [2, 3, 4]
            assert isinstance(results[3], StorageError)
            assert storage.last_seq == 4
            # A storage may be quick enough to settle the failure before the next call; together is what counts.
            calls = [storage.commit([PutEntry(entry(id))]) for id in (new[0], new[5])]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(results[0], StorageError)
            stored = (await storage.entry(new[5])) is not None
            assert stored == (not isinstance(results[1], BaseException))
            if not stored:
                assert isinstance(results[1], StorageError)
            after = storage.last_seq
            assert await storage.commit([PutEntry(entry(new[6]))]) == after + 1

        self.run(tmp_path, body)

    def test_cancelling_the_caller_does_not_undo_a_commit(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = await minted(storage, 2)
            call = asyncio.ensure_future(storage.commit([PutEntry(entry(a))]))
            await asyncio.sleep(0)  # the call is made; its result is not there yet, or is
            call.cancel()
            await asyncio.wait([call])
            assert await storage.commit([PutEntry(entry(b))]) == 2
            assert await storage.entry(a) == entry(a)

        self.run(tmp_path, body)

    @pytest.mark.parametrize(
        "again",
        [
            PutEntry(entry(2)),
            PutConversation(conversation(1)),
            CreateDocument(document(3, kind="test.other"), 1, {}),
            CreateDocument(document(50), 1, {}),
            PutSubmission(submission(51, request_id="r")),
            ChangeDocument(document(52), 1, value={}),
            RetireDocument(DocumentId(53)),
            CopyDocument(DocumentId(54), document(55, kind="test.copy")),
            CopyDocument(DocumentId(3), document(55, kind="test.copy"), at=0),
        ],
        ids=lambda item: type(item).__name__,
    )
    def test_what_a_batch_may_not_do_is_refused(self, tmp_path: Path, again: BatchItem) -> None:
        async def body(storage: Storage) -> None:
            await minted(storage, 4)
            await storage.commit(
                [
                    PutConversation(conversation(1)),
                    PutEntry(entry(2)),
                    CreateDocument(document(3), 1, {"n": 1}),
                    PutSubmission(submission(4, request_id="r")),
                ]
            )
            with pytest.raises(StorageError) as caught:
                await storage.commit([again])
            assert not isinstance(caught.value, StorageRequestError)
            assert storage.last_seq == 1
            await storage.commit([PutEntry(entry(storage.mint_id()))])

        self.run(tmp_path, body)

    # -- records -----------------------------------------------------------------------------------------------------

    def test_records_come_back_as_they_were(self, tmp_path: Path) -> None:
        data = {
            "text": "line\nNUL \x00 quote ' \" back\\slash é 漢 🎉  ",
            "numbers": [0, -1, 2**53, 2**70, 1.5, 1e-300, -0.0, 1e300],
            "none": None,
            "nested": [{"a": []}, [[]], True, False, ""],
        }
        records: list[Any] = [
            conversation(1),
            conversation(
                2,
                parent=ForkPoint(conversation=ConversationId(1), at=EntryId(3)),
                owner=ConversationOwner(conversation=ConversationId(1), task=TaskId(4)),
            ),
            entry(3, messages=(UserMessage([TextBlock("hi")]),), data=data, head=EntryId(3), by_task=TaskId(4)),
            task(4, Sleeping(checkpoint={"phase": "p", "x": None}, until=12.25), input=data, memos={"m": [1]}),
            submission(5, "unanswered", reason="aborted", detail=data, request_id="r-ü"),
        ]
        put = [PutConversation, PutConversation, PutEntry, PutTask, PutSubmission]

        async def body(storage: Storage) -> None:
            await minted(storage, 5)
            await storage.commit([make(record) for make, record in zip(put, records, strict=True)])
            assert await storage.conversation(1) == records[0]
            assert await storage.conversation(2) == records[1]
            assert await storage.entry(3) == records[2]
            assert await storage.task(4) == records[3]
            assert await storage.submission(5) == records[4]
            assert await storage.submission_by_request(1, "r-ü") == records[4]

        self.run(tmp_path, body)

    def test_tasks_and_submissions_are_replaced(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = await minted(storage, 2)
            await storage.commit([PutTask(task(a)), PutSubmission(submission(b, request_id="r"))])
            ended = task(a, Terminal(outcome=Completed(result={"x": 1})), abort_requested=True, ended_at=4.0)
            settled = submission(b, "done", request_id="r", answer=EntryId(9))
            await storage.commit([PutTask(task(a, Running(checkpoint={"phase": "p"}))), PutTask(ended)])
            await storage.commit([PutSubmission(settled)])
            assert await storage.task(a) == ended
            assert await storage.submission_by_request(1, "r") == settled
            assert ids((await storage.scan_tasks(status="terminal", abort_requested=True)).items) == [a]
            assert (await storage.scan_tasks(status=("pending", "running"))).items == []
            assert (await storage.scan_submissions(status="queued")).items == []

        self.run(tmp_path, body)

    def test_reads_are_detached(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = await minted(storage, 2)
            data = {"list": [1]}
            record = entry(a, data=data)
            value = {"list": [1]}
            await storage.commit([PutEntry(record), CreateDocument(document(b), 1, value)])
            data["list"].append(2)
            record.data["list"].append(3)
            value["list"].append(4)
            for _ in range(2):
                found = await storage.entry(a)
                stored = await storage.document(b)
                assert found is not None
                assert stored is not None
                assert found.data == {"list": [1]}
                assert stored.value == {"list": [1]}
                found.data["list"].append(5)
                stored.value["list"].append(6)
                (scanned,) = (await storage.scan_entries()).items
                scanned.data["list"].append(7)

        self.run(tmp_path, body)

    def test_large_values_are_stored(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = await minted(storage, 2)
            text = "é" * 2_000_000
            await storage.commit([PutEntry(entry(a, data=text)), CreateDocument(document(b), 1, {"n": text})])
            found = await storage.entry(a)
            stored = await storage.document(b)
            assert found is not None
            assert stored is not None
            assert found.data == text
            assert stored.value == {"n": text}

        self.run(tmp_path, body)

    def test_what_is_not_unicode_is_refused_before_a_commit(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            with pytest.raises(InvalidValue):
                PutEntry(entry(1, data={"x": "\ud800"}))
            with pytest.raises(InvalidValue):
                CreateDocument(document(1, key="\ud800"), 1, {})
            with pytest.raises(InvalidValue):
                ChangeDocument(document(1), 1, replace("\udfff"))
            assert storage.last_seq == 0

        self.run(tmp_path, body)

    # -- scans -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("order", ["ascending", "descending"])
    def test_scans_go_by_id_in_pages(self, tmp_path: Path, order: Any) -> None:
        async def body(storage: Storage) -> None:
            new = await minted(storage, 11)
            # Stored out of order, and not all at once: order is by id.
            for id in new[5:] + new[:5]:
                await storage.commit([PutEntry(entry(id, conversation=1 if id != new[3] else 2))])
            expected = [id for id in new if id != new[3]]
            if order == "descending":
                expected.reverse()
            found: list[int] = []
            cursor: int | None = None
            pages = 0
            while True:
                page = await storage.scan_entries(conversation=1, order=order, limit=4, cursor=cursor)
                found += ids(page.items)
                pages += 1
                if page.next is None:
                    break
                cursor = page.next
            assert found == expected
            assert pages == 3
            exact = await storage.scan_entries(conversation=1, order=order, limit=10)
            assert exact.next is None
            bounded = await storage.scan_entries(conversation=1, min_id=new[1], max_id=new[4], order=order)
            assert ids(bounded.items) == [id for id in expected if new[1] <= id <= new[4]]
            everything = await storage.scan_entries(order=order)
            assert len(everything.items) == 11
            assert (await storage.scan_entries(conversation=3, order=order)).items == []
            beyond = await storage.scan_entries(min_id=new[-1] + 1, order=order)
            assert beyond.items == []

        self.run(tmp_path, body)

    def test_heads_are_found(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b, c, d, e = await minted(storage, 5)
            await storage.commit(
                [
                    PutEntry(entry(a)),
                    PutEntry(entry(b, head=EntryId(a))),
                    PutEntry(entry(c)),
                    PutEntry(entry(d, head=EntryId(d))),
                    PutEntry(entry(e, conversation=2, head=EntryId(e))),
                ]
            )
            found = [await storage.latest_head(1, max_id=bound) for bound in (None, d, c, b, a)]
            assert [record and record.id for record in found] == [d, d, b, b, None]
            other = await storage.latest_head(2)
            assert other is not None
            assert other.id == e

        self.run(tmp_path, body)

    def test_tasks_are_filtered(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b, c, d = await minted(storage, 4)
            await storage.commit(
                [
                    PutTask(task(a)),
                    PutTask(task(b, Running(checkpoint={"phase": "p"}), conversation=2, owner=TaskId(a))),
                    PutTask(task(c, kind="test.other", background=True, abort_requested=True)),
                    PutTask(task(d, Terminal(outcome=Completed()), owner=TaskId(a))),
                ]
            )

            async def scan(**filters: Any) -> list[int]:
                return ids((await storage.scan_tasks(**filters)).items)

            assert await scan() == [a, b, c, d]
            assert await scan(order="descending") == [d, c, b, a]
            assert await scan(conversation=2) == [b]
            assert await scan(kind="test.other") == [c]
            assert await scan(status="running") == [b]
            assert await scan(status=("pending", "terminal")) == [a, c, d]
            assert await scan(status=()) == []
            assert await scan(owner=a) == [b, d]
            assert await scan(owner=a, status=("pending", "running")) == [b]
            assert await scan(abort_requested=True) == [c]
            assert await scan(abort_requested=False) == [a, b, d]
            assert await scan(background=True) == [c]
            assert await scan(conversation=1, status="pending", kind="test.task", background=False) == [a]
            assert await scan(status=("pending", "running"), limit=2) == [a, b]
            assert await scan(status=("pending", "running"), cursor=b) == [c]

        self.run(tmp_path, body)

    def test_submissions_and_conversations_are_filtered(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b, c, d, e = await minted(storage, 5)
            owner = ConversationOwner(conversation=ConversationId(d), task=TaskId(77))
            await storage.commit(
                [
                    PutSubmission(submission(a)),
                    PutSubmission(submission(b, "placed", conversation=2)),
                    PutSubmission(submission(c, "done")),
                    PutConversation(conversation(d)),
                    PutConversation(conversation(e, owner=owner)),
                ]
            )
            assert ids((await storage.scan_submissions()).items) == [a, b, c]
            assert ids((await storage.scan_submissions(conversation=1)).items) == [a, c]
            assert ids((await storage.scan_submissions(status=("queued", "placed"))).items) == [a, b]
            assert ids((await storage.scan_submissions(conversation=2, status="placed")).items) == [b]
            assert ids((await storage.scan_submissions(status="done", order="descending")).items) == [c]
            assert ids((await storage.scan_conversations()).items) == [d, e]
            assert ids((await storage.scan_conversations(owner_task=77)).items) == [e]
            assert ids((await storage.scan_conversations(owner_conversation=d)).items) == [e]
            assert (await storage.scan_conversations(owner_conversation=e)).items == []
            assert ids((await storage.scan_conversations(limit=1, order="descending")).items) == [e]

        self.run(tmp_path, body)

    def test_a_request_that_makes_no_sense_fails_only_itself(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = await minted(storage, 2)
            await storage.commit([PutEntry(entry(a)), CreateDocument(document(b), 1, {})])
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: storage.scan_entries(limit=0),
                lambda: storage.scan_entries(order="sideways"),  # type: ignore[arg-type]
                lambda: storage.scan_tasks(status="asleep"),  # type: ignore[arg-type]
                lambda: storage.scan_submissions(status=["lost"]),  # type: ignore[list-item]
                lambda: storage.document(b, at=2),
                lambda: storage.find_document("test.document", "conversation", 1, at=2),
                lambda: storage.changes(-1),
            ]
            for call in calls:
                with pytest.raises(StorageRequestError):
                    await call()
            assert await storage.entry(a) is not None

        self.run(tmp_path, body)

    # -- documents ---------------------------------------------------------------------------------------------------

    def test_documents_are_materialised_from_bases_and_deltas(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            (a,) = await minted(storage, 1)
            record = document(a)
            await storage.commit([CreateDocument(record, 1, {"n": 0, "log": "start of the log."})])
            await storage.commit([ChangeDocument(record, 1, replace(1))])
            append: list[Op] = [{"op": "append", "path": "/log", "value": " more"}]
            await storage.commit([ChangeDocument(record, 2, append)])
            await storage.commit([])
            stored = await storage.document(a)
            assert stored is not None
            assert stored.record == record.replaced(created_at=1)
            assert stored.value == {"n": 1, "log": "start of the log. more"}
            assert (stored.version, stored.seq, stored.deltas) == (2, 3, 2)
            await storage.commit([ChangeDocument(record, 3, value={"n": 5})])
            stored = await storage.document(a)
            assert stored is not None
            assert (stored.value, stored.version, stored.seq, stored.deltas) == ({"n": 5}, 3, 5, 0)
            await storage.commit([ChangeDocument(record, 3, replace(6)), ChangeDocument(record, 3, replace(7))])
            stored = await storage.document(a)
            assert stored is not None
            assert (stored.value, stored.seq) == ({"n": 7}, 6)

        self.run(tmp_path, body)

    def test_rewindable_documents_keep_every_point(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            (a,) = await minted(storage, 1)
            record = document(a, history="rewindable", fork="as_of")
            await storage.commit([])
            await storage.commit([CreateDocument(record, 1, {"n": 0})])
            for n in range(1, 7):
                change = ChangeDocument(record, 1, value={"n": n}) if n == 3 else ChangeDocument(record, 1, replace(n))
                await storage.commit([change])
                await storage.commit([])
            assert await storage.document(a, at=1) is None
            for seq, n in ((2, 0), (3, 1), (4, 1), (5, 2), (7, 3), (8, 3), (9, 4), (13, 6), (14, 6)):
                stored = await storage.document(a, at=seq)
                assert stored is not None
                assert stored.value == {"n": n}
                assert stored.seq <= seq

        self.run(tmp_path, body)

    @pytest.mark.parametrize("scope", ["latest", "session", "task"])
    def test_other_documents_keep_only_what_their_newest_base_needs(self, tmp_path: Path, scope: str) -> None:
        async def body(storage: Storage) -> None:
            (a,) = await minted(storage, 1)
            fields: dict[str, Any] = {"history": "latest" if scope == "latest" else "rewindable"}
            if scope == "session":
                record = document(a, None, **fields)
            else:
                record = document(a, scope="conversation" if scope == "latest" else "task", **fields)
            await storage.commit([CreateDocument(record, 1, {"n": 0})])
            await storage.commit([ChangeDocument(record, 1, replace(1))])
            stored = await storage.document(a, at=1)
            assert stored is not None
            assert stored.value == {"n": 0}
            await storage.commit([ChangeDocument(record, 1, value={"n": 2})])
            await storage.commit([ChangeDocument(record, 1, replace(3))])
            for seq in (1, 2):
                with pytest.raises(StorageRequestError):
                    await storage.document(a, at=seq)
            for point, n in ((3, 2), (4, 3), (None, 3)):
                stored = await storage.document(a, at=point)
                assert stored is not None
                assert stored.value == {"n": n}

        self.run(tmp_path, body)

    def test_incarnations_follow_each_other(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = await minted(storage, 2)
            await storage.commit([CreateDocument(document(a), 1, {"n": 1})])
            await storage.commit([RetireDocument(DocumentId(a))])
            assert await storage.find_document("test.document", "conversation", 1) is None
            await storage.commit([CreateDocument(document(b), 1, {"n": 2})])
            with pytest.raises(StorageError):
                await storage.commit([ChangeDocument(document(a), 1, value={})])
            with pytest.raises(StorageError):
                await storage.commit([RetireDocument(DocumentId(a))])
            points = [await storage.find_document("test.document", "conversation", 1, at=at) for at in range(4)]
            assert [record and record.id for record in points] == [None, a, None, b]
            assert points[1] == document(a).replaced(created_at=1, retired_at=2)
            assert await storage.document(a, at=2) is None
            last = await storage.document(a)
            assert last is not None
            assert (last.value, last.record.retired_at) == ({"n": 1}, 2)
            assert ids((await storage.scan_documents(kind="test.document")).items) == [b]
            assert ids((await storage.scan_documents(live=False)).items) == [a, b]
            # Retired and created again within one commit.
            c = storage.mint_id()
            await storage.commit([RetireDocument(DocumentId(b)), CreateDocument(document(c), 1, {"n": 3})])
            found = await storage.find_document("test.document", "conversation", 1)
            assert found is not None
            assert found.id == c

        self.run(tmp_path, body)

    def test_addresses_are_told_apart(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            records = [
                document(storage.mint_id(), None),
                document(storage.mint_id(), 1),
                document(storage.mint_id(), 2),
                document(storage.mint_id(), 1, scope="task"),
                document(storage.mint_id(), 1, kind="test.other"),
                document(storage.mint_id(), 1, key=""),
                document(storage.mint_id(), 1, key="a/b 'q' \x00 🎉"),
                document(storage.mint_id(), None, key="k"),
            ]
            await storage.commit([CreateDocument(record, 1, {"id": record.id}) for record in records])
            for record in records:
                for at in (None, 1):
                    found = await storage.find_document(record.kind, record.scope, record.scope_id, record.key, at=at)
                    assert found == record.replaced(created_at=1)
            assert ids((await storage.scan_documents(scope="task")).items) == [records[3].id]
            assert ids((await storage.scan_documents(scope="conversation", scope_id=2)).items) == [records[2].id]
            everything = [record.id for record in records]
            page = await storage.scan_documents(limit=5)
            rest = await storage.scan_documents(limit=5, cursor=page.next)
            assert ids(page.items) + ids(rest.items) == everything
            assert ids((await storage.scan_documents(order="descending")).items) == everything[::-1]

        self.run(tmp_path, body)

    def test_documents_are_copied(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            source, now, then, both, later = await minted(storage, 5)
            record = document(source, history="rewindable", fork="as_of")
            await storage.commit([CreateDocument(record, 3, {"n": 0})])
            await storage.commit([ChangeDocument(record, 4, replace(1))])
            await storage.commit(
                [
                    CopyDocument(DocumentId(source), document(now, 2)),
                    CopyDocument(DocumentId(source), document(then, 3), at=1),
                    ChangeDocument(record, 5, replace(2)),
                    CopyDocument(DocumentId(source), document(both, 4)),
                    ChangeDocument(document(both, 4), 5, replace(20)),
                ]
            )
            await storage.commit([ChangeDocument(record, 5, replace(3)), RetireDocument(DocumentId(source))])
            await storage.commit([CopyDocument(DocumentId(source), document(later, 5), at=3)])
            stored = [await storage.document(id) for id in (now, then, both, later)]
            assert [found and (found.value, found.version) for found in stored] == [
                ({"n": 1}, 4),
                ({"n": 0}, 3),
                ({"n": 20}, 5),
                ({"n": 2}, 5),
            ]
            assert stored[0] is not None
            assert stored[0].record.created_at == 3
            assert (stored[0].seq, stored[0].deltas) == (3, 0)

        self.run(tmp_path, body)

    # -- the feed ----------------------------------------------------------------------------------------------------

    def test_changes_list_what_is_new_in_its_newest_form(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b, c, d, e, f, g = await minted(storage, 7)
            await storage.commit([PutConversation(conversation(a)), PutEntry(entry(b)), PutTask(task(c))])
            await storage.commit([PutSubmission(submission(d)), CreateDocument(document(e), 1, {"n": 0})])
            await storage.commit([PutTask(task(c, Terminal(outcome=Completed()))), PutEntry(entry(f))])
            await storage.commit([ChangeDocument(document(e), 1, replace(1))])
            await storage.commit([CreateDocument(document(g, 2), 1, {}), PutSubmission(submission(d, "done"))])
            await storage.commit([RetireDocument(DocumentId(g))])

            everything = await storage.changes(0)
            assert everything.seq == 6
            assert ids(everything.conversations) == [a]
            assert ids(everything.entries) == [b, f]
            assert everything.tasks == [task(c, Terminal(outcome=Completed()))]
            assert everything.submissions == [submission(d, "done")]
            assert [(found.record.id, found.value) for found in everything.documents] == [(e, {"n": 1})]
            assert ids(everything.retired) == [g]

            later = await storage.changes(3)
            assert (later.conversations, later.entries, later.tasks) == ([], [], [])
            assert ids(later.submissions) == [d]
            assert [found.record.id for found in later.documents] == [e]
            newest = await storage.changes(5)
            assert (newest.documents, ids(newest.retired)) == ([], [g])
            nothing = await storage.changes(6)
            assert nothing.seq == 6
            assert not any((nothing.entries, nothing.tasks, nothing.submissions, nothing.documents, nothing.retired))

        self.run(tmp_path, body)

    # -- lives and attempts ------------------------------------------------------------------------------------------

    def test_a_life_is_written_by_opening(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            (life,) = await storage.lives()
            assert life == storage.life
            assert (life.pid, life.opened_at, life.last_commit, life.ended) == (os.getpid(), 1000.0, None, None)
            await storage.commit([], at=1001.0)
            (life,) = await storage.lives()
            assert (life.last_commit, life.last_commit_at, life.ended) == (1, 1001.0, None)

        self.run(tmp_path, body)

    def test_attempts_are_kept(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            a, b = TaskId(storage.mint_id()), TaskId(storage.mint_id())
            await storage.commit([StartAttempt(a, "one"), StartAttempt(b, "start")], at=1.0)
            await storage.commit([EndAttempt(a, "parked")], at=2.0)
            await storage.commit([StartAttempt(a, "two"), EndAttempt(b, "ended")], at=3.0)
            await storage.commit([EndAttempt(b, "ended")], at=4.0)  # it has none: nothing happens
            found = [(x.task, x.phase, x.started_at, x.end, x.ended_at) for x in await storage.attempts()]
            assert found == [
                (a, "one", 1.0, "parked", 2.0),
                (b, "start", 1.0, "ended", 3.0),
                (a, "two", 3.0, None, None),
            ]
            assert [attempt.phase for attempt in await storage.attempts(task=a)] == ["one", "two"]
            assert {attempt.life for attempt in await storage.attempts()} == {storage.life.id}

        self.run(tmp_path, body)

    # -- opening, copies and the end ---------------------------------------------------------------------------------

    def test_a_closed_storage_refuses_calls(self, tmp_path: Path) -> None:
        async def body(storage: Storage) -> None:
            last = asyncio.ensure_future(storage.commit([PutEntry(entry(storage.mint_id()))]))
            await asyncio.sleep(0)
            await storage.close()
            await storage.close()
            assert await last == 1  # called before the end, so it is stored
            with pytest.raises(SessionClosed):
                await storage.commit([])
            with pytest.raises(DurableError):
                await storage.entry(1)

        self.run(tmp_path, body)


class PersistentStorageConformance(StorageConformance):
    """The tests of a storage that keeps what it stored: the others, and those that reopen."""

    def run_reopening(self, folder: Path, body: Callable[[], Awaitable[None]]) -> None:
        """Run a body that opens by itself."""

        async def main() -> None:
            async with asyncio.timeout(TIMEOUT):
                await body()

        asyncio.run(main())

    def abandon(self, storage: Storage) -> None:
        if not hasattr(storage, "abandon"):
            pytest.skip("this storage cannot be abandoned")
        storage.abandon()

    def test_a_stored_id_is_never_given_again(self, tmp_path: Path) -> None:
        async def body() -> None:
            given: list[int] = []
            for _ in range(3):
                async with self.opened(tmp_path) as storage:
                    new = await minted(storage, 4)
                    assert not given or new[0] > max(given)
                    await storage.commit([PutEntry(entry(new[1]))])
                    await storage.commit([StartAttempt(TaskId(new[2]), "start")])
                    given += new[:3]  # known to the storage by then, stored or not

        self.run_reopening(tmp_path, body)

    def test_lives_follow_each_other(self, tmp_path: Path) -> None:
        async def body() -> None:
            clock = ManualClock(1.0)
            storage = await self.open(tmp_path, clock=clock)
            await storage.commit([], at=2.0)
            clock.set(3.0)
            await storage.close()
            clock.set(4.0)
            storage = await self.open(tmp_path, clock=clock)
            assert storage.last_seq == 1
            clock.set(5.0)
            await storage.close(ended="failed")
            async with self.opened(tmp_path, clock=clock) as storage:
                first, second, third = await storage.lives()
                assert (first.opened_at, first.last_commit, first.last_commit_at) == (1.0, 1, 2.0)
                assert (first.ended, first.ended_at) == ("closed", 3.0)
                assert (second.opened_at, second.last_commit, second.ended) == (4.0, None, "failed")
                assert third == storage.life
                assert first.id < second.id < third.id

        self.run_reopening(tmp_path, body)

    def test_attempts_of_a_dead_life_are_cut_off_with_its_last_commit(self, tmp_path: Path) -> None:
        async def body() -> None:
            storage = await self.open(tmp_path)
            a, b = TaskId(storage.mint_id()), TaskId(storage.mint_id())
            await storage.commit([StartAttempt(a, "start"), PutTask(task(a))], at=5.0)
            await storage.commit([StartAttempt(b, "start"), EndAttempt(b, "parked")], at=6.0)
            self.abandon(storage)
            async with self.opened(tmp_path) as storage:
                first, second = await storage.attempts()
                assert (first.end, first.ended_at) == ("cut_off", 6.0)
                assert second.end == "parked"
                dead, _ = await storage.lives()
                assert (dead.ended, dead.last_commit, dead.last_commit_at) == (None, 2, 6.0)
                await storage.commit([EndAttempt(a, "ended")])
                assert (await storage.attempts())[0].end == "cut_off"
                await storage.commit([StartAttempt(a, "again")], at=9.0)
            async with self.opened(tmp_path) as storage:
                ends = [(attempt.end, attempt.ended_at) for attempt in await storage.attempts(task=a)]
                assert ends == [("cut_off", 6.0), ("cut_off", 9.0)]

        self.run_reopening(tmp_path, body)

    def test_everything_is_there_after_reopening(self, tmp_path: Path) -> None:
        async def body() -> None:
            async with self.opened(tmp_path) as storage:
                a, b, c, d, e = await minted(storage, 5)
                record = document(e, history="rewindable")
                await storage.commit([PutConversation(conversation(a)), PutEntry(entry(b, head=EntryId(b)))])
                await storage.commit([PutTask(task(c, owner=TaskId(c))), PutSubmission(submission(d, request_id="r"))])
                await storage.commit([CreateDocument(record, 1, {"n": 0}), StartAttempt(TaskId(c), "start")])
                await storage.commit([ChangeDocument(record, 1, replace(1))])
                before = await storage.changes(0)
            for _ in range(2):
                async with self.opened(tmp_path) as storage:
                    assert storage.last_seq == 4
                    assert await storage.changes(0) == before
                    assert ids((await storage.scan_tasks(status="pending")).items) == [c]
                    head = await storage.latest_head(1)
                    assert head is not None
                    assert head.id == b
                    assert await storage.submission_by_request(1, "r") is not None
                    past = await storage.document(e, at=3)
                    assert past is not None
                    assert past.value == {"n": 0}
                    assert len((await storage.scan_commits()).items) == 4
            async with self.opened(tmp_path) as storage:
                assert await storage.commit([ChangeDocument(record, 1, replace(2))]) == 5

        self.run_reopening(tmp_path, body)

    def test_what_was_committed_survives_a_crash(self, tmp_path: Path) -> None:
        async def body() -> None:
            storage = await self.open(tmp_path)
            a, b = await minted(storage, 2)
            await storage.commit([PutEntry(entry(a))])
            under_way = asyncio.ensure_future(storage.commit([PutEntry(entry(b))]))
            await asyncio.sleep(0)
            self.abandon(storage)
            async with self.opened(tmp_path) as storage:
                assert await storage.entry(a) == entry(a)
                assert storage.last_seq == (1 if await storage.entry(b) is None else 2)
                assert storage.mint_id() > a
            under_way.cancel()

        self.run_reopening(tmp_path, body)

    def test_a_storage_has_one_owner(self, tmp_path: Path) -> None:
        async def body() -> None:
            async with self.opened(tmp_path) as storage:
                with pytest.raises(SessionInUse) as caught:
                    await self.open(tmp_path)
                assert caught.value.pid == os.getpid()
                await storage.commit([PutEntry(entry(storage.mint_id()))])
            async with self.opened(tmp_path) as storage:
                assert storage.last_seq == 1

        self.run_reopening(tmp_path, body)

    def test_a_backup_is_a_consistent_copy(self, tmp_path: Path) -> None:
        async def body() -> None:
            async with self.opened(tmp_path) as storage:
                a, b = await minted(storage, 2)
                await storage.commit([PutEntry(entry(a))])
                await storage.backup(tmp_path / "copy")
                await storage.commit([PutEntry(entry(b))])
                with pytest.raises(StorageRequestError):
                    await storage.backup(tmp_path / "copy")
                async with self.opened(tmp_path, "copy") as copy:
                    assert (copy.last_seq, await copy.entry(a), await copy.entry(b)) == (1, entry(a), None)
                    await copy.commit([PutEntry(entry(copy.mint_id()))])
                assert storage.last_seq == 2

        self.run_reopening(tmp_path, body)
