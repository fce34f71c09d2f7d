"""Forks and what they copy (engine.md, section 6), and contexts through them (section 5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pidurable_nb import AgentChange, Document, Harness, InboxState, MemoryStorage, Phase, Task, TaskRun, UsageState
from pidurable_nb.agent.state import ProviderState
from pidurable_nb.errors import CommitReentered, DurableError
from pidurable_nb.messages import TextBlock, UserMessage
from pidurable_nb.models import ScriptedModel
from pidurable_nb.session import compare_entries
from pidurable_nb.testing import eventually

from .support import Todos, bounded, harness, turns


class Current(Document, kind="test.current", scope="conversation", fork="current"):
    items: list[str] = []


class Initial(Document, kind="test.initial", scope="conversation"):
    items: list[str] = []


class Members(Document, kind="test.members", scope="conversation", fork="current", family=True):
    n: int = 0


async def step(conversation: Any, text: str) -> Any:
    """One commit that writes an entry and extends all three documents."""
    async with conversation.commit() as tx:
        entry = await tx.append_entry("app.said", messages=[UserMessage([TextBlock(text)])])
        for doc in (Todos, Current, Initial):
            (await tx.doc(doc)).items.append(text)
    return entry.id


async def items(opened: Harness, doc: Any, conversation: Any) -> Any:
    found = await opened.snapshot(doc, conversation.id)
    return None if found is None else found.items


async def texts(conversation: Any) -> list[str]:
    return [entry.text async for entry in conversation.entries(order="ascending")]


@bounded
async def test_a_fork_sees_entries_through_its_point_and_gets_documents_by_their_policy() -> None:
    async with harness() as opened:
        root = await opened.root()
        ids = [await step(root, text) for text in "abcd"]
        child = await root.fork(ids[1])
        await step(root, "e")
        assert await texts(child) == ["a", "b"]
        assert await items(opened, Todos, child) == ["a", "b"]
        assert await items(opened, Current, child) == ["a", "b", "c", "d"]
        assert await items(opened, Initial, child) is None
        await step(child, "x")
        assert await texts(child) == ["a", "b", "x"]
        assert await texts(root) == ["a", "b", "c", "d", "e"]
        assert await items(opened, Todos, root) == ["a", "b", "c", "d", "e"]
        assert await items(opened, Todos, child) == ["a", "b", "x"]
        assert [m.text for m in (await child.context()).messages] == ["a", "b", "x"]
        record = (await child.view()).record
        assert record.parent is not None
        assert (record.parent.conversation, record.parent.at, record.owner) == (root.id, ids[1], None)


@bounded
async def test_forks_of_forks_look_entries_and_documents_up_through_their_ancestry() -> None:
    async with harness() as opened:
        root = await opened.root()
        a, b, _c = [await step(root, text) for text in "abc"]
        child = await root.fork(b)
        x = await step(child, "x")
        await step(child, "y")
        grandchild = await child.fork(x)
        early = await grandchild.fork(a)  # an entry that its grandparent wrote
        assert await texts(grandchild) == ["a", "b", "x"]
        assert await texts(early) == ["a"]
        assert await items(opened, Todos, early) == ["a"]
        for conversation, at, expected in (
            (grandchild, a, ["a"]),
            (grandchild, x, ["a", "b", "x"]),
            (early, a, ["a"]),
        ):
            assert await opened.snapshot_as_of(Todos, conversation.id, at=at) == Todos(items=expected)
        assert await opened.snapshot_as_of(Todos, early.id, at=b) is None
        assert await early.entry(b) is None
        assert await root.entry(x) is None
        with pytest.raises(DurableError, match="has no entry"):
            await early.fork(b)
        with pytest.raises(DurableError, match="has no entry"):
            await early.context(at=x)


@bounded
async def test_entries_page_through_ancestors_in_both_orders_and_within_bounds() -> None:
    async with harness() as opened:
        conversation = await opened.root()
        ids: list[Any] = []
        for level in range(3):
            for n in range(4):
                ids.append(await step(conversation, f"{level}{n}"))
            conversation = await conversation.fork(ids[-1])
        ids.append(await step(conversation, "last"))
        for order in ("ascending", "descending"):
            expected = ids if order == "ascending" else ids[::-1]
            for low, high in ((None, None), (ids[2], ids[9]), (ids[5], ids[5]), (None, ids[3]), (ids[11], None)):
                bounded_ids = [id for id in expected if (low is None or id >= low) and (high is None or id <= high)]
                scan = conversation.entries(min_id=low, max_id=high, order=order)  # type: ignore[arg-type]
                assert [entry.id for entry in await scan.list()] == bounded_ids
                for size in (1, 2, 3, 5, 100):
                    seen: list[Any] = []
                    cursor: Any = None
                    while True:
                        page = await scan.page(size, cursor)
                        assert len(page.items) <= size
                        seen += [entry.id for entry in page.items]
                        cursor = page.next
                        if cursor is None:
                            break
                    assert seen == bounded_ids
        async with conversation.commit() as tx:
            assert [entry.id for entry in await tx.scan_entries().list()] == ids[::-1]
            first = await tx.scan_entries(conversation=opened_root(), order="ascending", min_id=ids[1]).first()
            assert first is not None
            assert first.id == ids[1]


def opened_root() -> Any:
    return 1


@bounded
async def test_a_context_as_of_an_entry_is_what_a_fork_there_starts_with() -> None:
    async with harness() as opened:
        root = await opened.root()
        ids = [await step(root, text) for text in "ab"]
        async with root.commit() as tx:
            summary = await tx.append_entry("app.head", messages=[UserMessage([TextBlock("sum")])], head=ids[1])
        ids += [summary.id, await step(root, "c")]
        async with root.commit() as tx:
            again = await tx.append_entry("app.head", messages=[UserMessage([TextBlock("new")])], head="self")
        ids += [again.id, await step(root, "d")]
        for at in ids:
            child = await root.fork(at)
            ours, theirs = await root.context(at=at), await child.context()
            assert ours.messages == theirs.messages
            assert [entry.id for entry in ours.entries] == [entry.id for entry in theirs.entries]
            assert ours.head == theirs.head
        assert [m.text for m in (await root.context(at=ids[3])).messages] == ["sum", "b", "c"]


@bounded
async def test_a_head_may_lie_in_an_ancestor_and_a_context_is_read_again_for_it() -> None:
    async with harness() as opened:
        root = await opened.root()
        a, b, c = [await step(root, text) for text in "abc"]
        child = await root.fork(c)
        async with child.commit() as tx:
            await tx.append_entry("app.head", messages=[UserMessage([TextBlock("from c")])], head=c)
        assert [m.text for m in (await child.context()).messages] == ["from c", "c"]
        async with child.watch() as watch:
            async with child.commit() as tx:  # further back than what is in memory
                await tx.append_entry("app.head", messages=[UserMessage([TextBlock("from b")])], head=b)
            assert [m.text for m in (await child.context()).messages] == ["from b", "b", "c"]
            while not (watch.value.entries and watch.value.entries[0].id == b):
                await anext(watch)
        assert a < b


@bounded
async def test_a_watch_whose_context_cannot_be_read_again_ends_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[Any] = []
    async with harness(on_report=reports.append) as opened:
        root = await opened.root()
        _, b, c = [await step(root, text) for text in "abc"]
        child = await root.fork(c)
        async with child.commit() as tx:
            await tx.append_entry("app.head", head=c)
        error = LookupError("a bug")

        async def broken(_id: int) -> Any:
            raise error

        async with child.watch() as watch:
            async with child.commit() as tx:
                await tx.append_entry("app.head", head=b)
                monkeypatch.setattr(opened, "_context", broken)
            assert [change async for change in watch] == []
            assert watch.end is not None
            assert (watch.end.reason, watch.end.error) == ("failed", error)
        monkeypatch.undo()
        await eventually(lambda: bool(reports))
        assert [(report.kind, report.error) for report in reports] == [("listener_error", error)]
        await step(child, "goes on")


@bounded
async def test_the_agent_is_kept_as_of_the_point_and_session_inbox_and_usage_start_anew() -> None:
    model = ScriptedModel(lambda request: "answer", name="scripted:one")
    other = ScriptedModel(lambda request: "other", name="scripted:two")
    async with harness(models=[model, other]) as opened:
        root = await opened.root(agent=AgentChange(model="scripted:one", instructions="before"))
        settled = await (await root.submit("hi")).wait()
        await root.configure(model="scripted:two", instructions="after")
        child = await root.fork(settled.answer)  # type: ignore[arg-type]
        changed = await root.fork(settled.answer, agent=AgentChange(thinking="high"))  # type: ignore[arg-type]
        agent, theirs = await child.agent(), await changed.agent()
        assert (agent.model, agent.instructions) == ("scripted:one", "before")
        assert (theirs.model, theirs.thinking) == ("scripted:one", "high")
        assert await opened.snapshot(UsageState, child.id) == UsageState()
        assert await opened.snapshot(InboxState, child.id) == InboxState()
        providers = [await opened.snapshot(ProviderState, id) for id in (root.id, child.id, changed.id)]
        assert len({provider.session_id for provider in providers if provider is not None}) == 3
        assert (await child.ask("go on")).text == "answer"
        assert (await root.ask("go on")).text == "other"


@bounded
async def test_branches_are_compared_by_what_they_share_and_what_each_has_after_it() -> None:
    async with harness() as opened:
        root = await opened.root()
        a, b, _c = [await step(root, text) for text in "abc"]
        early, late = await root.fork(a), await root.fork(b)
        x = await step(late, "x")
        await step(early, "y")
        deep, back = await late.fork(x), await late.fork(a)  # the second at an entry that late's parent wrote
        await step(deep, "z")
        apart = await opened.create_conversation()
        await step(apart, "alone")
        for ours, theirs, at, left, right in (
            (root, late, b, ["c"], ["x"]),
            (late, root, b, ["x"], ["c"]),
            (early, late, a, ["y"], ["b", "x"]),
            (root, deep, b, ["c"], ["x", "z"]),
            (deep, late, x, ["z"], []),
            (back, deep, a, [], ["b", "x", "z"]),
            (root, back, a, ["b", "c"], []),
            (root, apart, None, ["a", "b", "c"], ["alone"]),
        ):
            found = await ours.compare(theirs)
            assert (found.at, [e.text for e in found.ours], [e.text for e in found.theirs]) == (at, left, right)
            whole = [await one.entries(order="ascending").list() for one in (ours, theirs)]
            assert compare_entries(*whole) == found
        pairs = (await early.compare(late)).pairs()
        assert [(left and left.text, right and right.text) for left, right in pairs] == [("y", "b"), (None, "x")]
        same = await late.compare(late)
        assert (same.at, same.ours, same.theirs) == (x, (), ())
        async with harness() as second:
            with pytest.raises(ValueError, match="another session"):
                await root.compare(await second.root())


@bounded
async def test_an_earlier_input_is_said_differently_in_a_branch_and_the_original_is_kept() -> None:
    model = ScriptedModel(lambda request: f"heard {request.messages[-1].text}", name="scripted:one")
    other = ScriptedModel(lambda request: "other", name="scripted:two")
    async with harness(models=[model, other]) as opened:
        root = await opened.root(agent=AgentChange(model="scripted:one"))
        for text in "abc":
            await root.ask(text, kind=None if text == "a" else "app.question")
        original = await root.entries(order="ascending").list()
        await root.configure(model="scripted:two")
        asked = {entry.text: entry for entry in original}
        branch, submission = await root.revise(asked["b"].id, "B", data={"why": "typo"})
        assert (await submission.wait()).status == "done"
        assert await texts(branch) == ["a", "heard a", "B", "heard B"]
        revised = (await branch.entries(order="ascending").list())[2]
        assert (revised.kind, revised.data) == ("app.question", {"why": "typo"})
        found = await root.compare(branch)
        assert (found.at, len(found.ours), len(found.theirs)) == (original[1].id, 4, 2)
        # The very first input has no entry before it to fork at.
        first, submission = await root.revise(asked["a"].id, "A")
        assert (await submission.wait()).status == "done"
        assert await texts(first) == ["A", "heard A"]
        assert (await root.compare(first)).at is None
        # A branch of a branch, at an entry that its parent wrote.
        again, submission = await branch.revise(asked["a"].id, "again")
        await submission.wait()
        assert await texts(again) == ["again", "heard again"]
        assert await root.entries(order="ascending").list() == original
        await root.reset("note")
        note = await root.entries().first()
        assert note is not None
        for entry, words in ((original[1], "no input"), (note, "no input"), (revised, "has no entry")):
            with pytest.raises(DurableError, match=words):
                await root.revise(entry.id, "x")
        with pytest.raises(ValueError, match="needs content"):
            await root.revise(asked["a"].id, " ")


@bounded
async def test_a_document_that_was_retired_and_made_again_is_copied_once_and_as_it_is() -> None:
    async with harness() as opened:
        root = await opened.root()
        at = await step(root, "a")
        async with root.commit() as tx:
            for doc in (Current, Todos):
                await tx.retire_doc(doc)
            for key in ("x", "y"):
                (await tx.doc(Members, key=key)).n = 1
        async with root.commit() as tx:
            (await tx.doc(Current)).items.append("second life")
            await tx.retire_doc(Members, key="x")
        child = await root.fork(at)
        assert await items(opened, Current, child) == ["second life"]
        assert await items(opened, Todos, child) == ["a"]  # it lived at that point
        assert await opened.snapshot(Members, child.id, key="x") is None
        assert await opened.snapshot(Members, child.id, key="y") == Members(n=1)


@bounded
async def test_a_fork_in_a_transaction_can_be_worked_on_at_once_and_rolls_back_with_it() -> None:
    async with harness() as opened:
        root = await opened.root()
        at = await step(root, "a")
        async with root.commit() as tx:
            record = await tx.fork_conversation(root.id, at)
            (await tx.doc(Todos, record.id)).items.append("in the same commit")
            await tx.append_entry("app.said", conversation=record.id)
        child = await opened.conversation(record.id)
        assert await items(opened, Todos, child) == ["a", "in the same commit"]
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with root.commit() as tx:
                lost = await tx.fork_conversation(root.id, at)
                raise ZeroDivisionError
        assert await opened.conversation(lost.id) is None
        with pytest.raises(DurableError, match="fork at it in the next one"):  # noqa: PT012
            async with root.commit() as tx:
                entry = await tx.append_entry("app.said")
                await tx.fork_conversation(root.id, entry.id)


@bounded
async def test_creating_runs_the_hosts_callback_in_the_same_commit_and_init_once() -> None:
    created: list[Any] = []

    async def on_created(tx: Any, record: Any) -> None:
        created.append(record.id)
        await tx.append_entry("app.born", conversation=record.id)

    async def init(tx: Any, record: Any) -> None:
        (await tx.doc(Todos, record.id)).items.append("init")

    async with harness(conversation_created=on_created) as opened:
        first, second = await asyncio.gather(opened.root(init=init), opened.root(init=init))
        assert first.id == second.id == 1
        await opened.root(agent=AgentChange(model="scripted:ignored"), init=init)
        at = (await first.entries().list())[0].id
        child = await first.fork(at, init=init)
        other = await opened.create_conversation()
        assert created == [1, child.id, other.id]
        assert await items(opened, Todos, first) == ["init"]
        assert await items(opened, Todos, child) == ["init", "init"]
        assert (await first.agent()).model is None
        async with first.commit():
            with pytest.raises(CommitReentered):
                await first.fork(at)


@bounded
async def test_a_callback_that_raises_creates_nothing() -> None:
    async def on_created(tx: Any, record: Any) -> None:
        raise ZeroDivisionError

    async with Harness.open(":memory:", conversation_created=on_created) as opened:
        with pytest.raises(ZeroDivisionError):
            await opened.root()
        assert await opened.conversation(1) is None


class BetweenReads:
    """A storage with something that happens right after a head was looked up, once."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.then: Any = None

    async def latest_head(self, *args: Any, **options: Any) -> Any:
        found = await self._storage.latest_head(*args, **options)
        then, self.then = self.then, None
        if then is not None:
            await then()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_storage"], name)


@bounded
async def test_a_head_that_is_stored_while_a_context_is_read_is_its_head() -> None:
    storage = BetweenReads(MemoryStorage())
    async with harness(storage) as opened:
        root = await opened.root()
        ids = [await step(root, text) for text in "abc"]

        async def summarise() -> None:
            async with child.commit() as tx:
                await tx.append_entry("app.head", messages=[UserMessage([TextBlock("sum")])], head=ids[2])

        for by_watch in (False, True):
            child = await root.fork(ids[2])
            storage.then = summarise
            if by_watch:
                async with child.watch() as watch:
                    assert [entry.text for entry in watch.value.entries] == ["c", "sum"]
            assert [m.text for m in (await child.context()).messages] == ["sum", "c"]
            assert storage.then is None


class Counted(Document, kind="test.counted", scope="task"):
    n: int = 0


class Waits(Task[None, None], name="test.waits", version=1):
    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await asyncio.Event().wait()


@bounded
async def test_tasks_and_their_documents_stay_where_they_are() -> None:
    async with harness() as opened:
        root = await opened.root()
        async with root.commit() as tx:
            entry = await tx.append_entry("app.said")
            task = await tx.create_task(Waits, None)
            (await tx.doc(Counted, task)).n = 3
        child = await root.fork(entry.id)
        assert [record.id for record in await opened.tasks().list()] == [task]
        assert await opened.tasks(conversation=child.id).list() == []
        found = (await opened.storage.scan_documents(scope="task")).items
        assert [(record.kind, record.scope_id) for record in found] == [("test.counted", task)]
        assert child.id not in {record.scope_id for record in found}


class StoredLate:
    """A storage whose commits, while it is told so, are stored at once and come back when they are let go."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self.stored = asyncio.Event()
        self.go = asyncio.Event()
        self.late = False

    async def commit(self, batch: Any, *, at: float | None = None) -> int:
        seq: int = await self._storage.commit(batch, at=at)
        if self.late:
            self.stored.set()
            await self.go.wait()
        return seq

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_storage"], name)


@bounded
async def test_an_entry_that_is_read_before_its_commit_settled_is_read_once() -> None:
    storage = StoredLate()
    async with harness(storage) as opened:
        root = await opened.root()
        at = await step(root, "a")
        child = await root.fork(at)
        storage.late = True
        writing = asyncio.create_task(step(child, "b"))
        await storage.stored.wait()
        reading = asyncio.create_task(child.context())
        viewing = asyncio.create_task(child.view())
        await turns(50)
        storage.go.set()
        await writing
        assert [m.text for m in (await reading).messages] == ["a", "b"]
        assert [entry.text for entry in (await viewing).entries] == ["a", "b"]
        assert [m.text for m in (await child.context()).messages] == ["a", "b"]
