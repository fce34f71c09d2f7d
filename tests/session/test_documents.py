"""Documents (engine.md, section 4)."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pidurable_nb import Document, MemoryStorage, Session, SqliteStorage
from pidurable_nb.errors import DocumentMissing, DocumentVersionError, DurableError, InvalidDocument
from pidurable_nb.patch import apply
from pidurable_nb.session.documents import Address
from pidurable_nb.storage import ChangeDocument, CreateDocument

from .support import Notes, Todos, bounded, harness, session, stored


class Recorder:
    """Keeps the document items of every commit."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.items: list[Any] = []

    async def commit(self, batch: Any, *, at: float | None = None) -> int:
        batch = list(batch)
        self.items += [item for item in batch if isinstance(item, CreateDocument | ChangeDocument)]
        seq: int = await self._storage.commit(batch, at=at)
        return seq

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_storage"], name)


@asynccontextmanager
async def with_conversation(storage: Any = None) -> AsyncIterator[tuple[Session, Any]]:
    async with session(storage) as opened:
        async with opened.commit() as tx:
            home = (await tx.create_conversation()).id
        yield opened, home


async def change(opened: Session, doc: Any = Notes, scope: Any = None, key: str | None = None, **fields: Any) -> None:
    async with opened.commit() as tx:
        draft = await tx.doc(doc, scope, key=key)
        for name, value in fields.items():
            setattr(draft, name, value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"kind": "x", "fork": "as_of"}, "needs history"),
        ({"kind": "x", "scope": "session", "history": "rewindable"}, "conversation documents only"),
        ({"kind": "x", "scope": "task", "fork": "current"}, "conversation documents only"),
        ({"kind": "pi.mine"}, "belongs to the engine"),
        ({"kind": ""}, "needs a name"),
    ],
)
def test_a_class_that_makes_no_sense_is_refused(options: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        type("Bad", (Document,), {"__module__": "app"}, **options)


@bounded
async def test_the_first_access_creates_and_later_ones_return_the_same_draft() -> None:
    async with session() as opened:
        assert await opened.snapshot(Notes) is None
        async with opened.commit() as tx:
            draft = await tx.doc(Notes)
            assert await tx.doc(Notes) is draft
        assert await opened.snapshot(Notes) == Notes()


@bounded
async def test_only_transactions_create() -> None:
    async with with_conversation() as (opened, home):
        async with opened.commit() as tx:
            entry = await tx.append_entry("app.note", conversation=home)
        assert await opened.snapshot(Todos, home) is None
        assert await opened.snapshot_as_of(Todos, home, at=entry.id) is None
        with pytest.raises(DocumentMissing, match=r"create it with tx\.doc"):
            async with opened.watch_doc(Todos, home):
                pass
        assert await opened.snapshot(Todos, home) is None


@bounded
async def test_a_scope_and_a_key_are_asked_for_where_they_belong() -> None:
    class Family(Document, kind="test.family", scope="session", family=True):
        n: int = 0

    async with session() as opened, opened.commit() as tx:
        with pytest.raises(ValueError, match="say which"):
            await tx.doc(Todos)
        with pytest.raises(ValueError, match="give a key"):
            await tx.doc(Family)
        with pytest.raises(ValueError, match="takes no key"):
            await tx.doc(Notes, key="x")
        with pytest.raises(ValueError, match="declares no kind"):
            await tx.doc(Document)


@bounded
async def test_a_family_has_one_document_for_each_key_and_takes_its_seed_once() -> None:
    class Hits(Document, kind="test.hits", scope="session", family=True):
        path: str
        count: int = 0

    async with session() as opened:
        for _ in range(2):
            async with opened.commit() as tx:
                for key in ("a", "b"):
                    (await tx.doc(Hits, key=key, seed={"path": f"/{key}"})).count += 1
        async with opened.commit() as tx:
            await tx.doc(Hits, key="a", seed={"path": "/other"})
        found = [await opened.snapshot(Hits, key=key) for key in ("a", "b", "c")]
        assert found == [Hits(path="/a", count=2), Hits(path="/b", count=2), None]


@bounded
async def test_changes_are_stored_as_deltas_and_text_that_grows_as_appends() -> None:
    storage = Recorder(MemoryStorage())
    async with session(storage) as opened:
        await change(opened, text="a" * 100, items=[str(n) for n in range(50)])
        storage.items.clear()
        async with opened.commit() as tx:
            draft = await tx.doc(Notes)
            draft.text += "bc"
            draft.items.append("last")
            draft.extra["deep"] = {"list": [1, {"x": None}]}
        async with opened.commit() as tx:
            draft = await tx.doc(Notes)
            draft.extra["deep"]["list"][1]["x"] = True
            draft.extra["a/b~c"] = 1
        assert [list(item.ops) for item in storage.items] == [
            [
                {"op": "add", "path": "/items/-", "value": "last"},
                {"op": "append", "path": "/text", "value": "bc"},
                {"op": "add", "path": "/extra/deep", "value": {"list": [1, {"x": None}]}},
            ],
            [
                {"op": "replace", "path": "/extra/deep/list/1/x", "value": True},
                {"op": "add", "path": "/extra/a~1b~0c", "value": 1},
            ],
        ]
        found = await opened.snapshot(Notes)
        assert found is not None
        assert found.extra == {"deep": {"list": [1, {"x": True}]}, "a/b~c": 1}


@bounded
async def test_a_change_inside_values_of_any_type_is_noticed_and_snapshots_share_nothing() -> None:
    async with session() as opened:
        await change(opened, extra={"inner": {"list": [1]}})
        found = await opened.snapshot(Notes)
        assert found is not None
        found.extra["inner"]["list"].append("not stored")
        async with opened.commit() as tx:
            draft = await tx.doc(Notes)
            assert draft.extra == {"inner": {"list": [1]}}
            draft.extra["inner"]["list"].append(2)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with opened.commit() as tx:
                (await tx.doc(Notes)).extra["inner"]["list"].append("rolled back")
                raise ZeroDivisionError
        again = await opened.snapshot(Notes)
        assert again is not None
        assert again.extra == {"inner": {"list": [1, 2]}}
        assert (await stored(opened.storage, "test.notes"))["extra"] == {"inner": {"list": [1, 2]}}


@bounded
async def test_a_base_follows_after_32_deltas_unless_the_class_chooses() -> None:
    class Eager(Document, kind="test.eager", scope="session"):
        n: int = 0

        @classmethod
        def checkpoint_when(cls, value: dict[str, Any], ops: Any, deltas_since_base: int) -> bool:
            return bool(value["n"] % 2 == 0)

    storage = Recorder(MemoryStorage())
    async with session(storage) as opened:
        for n in range(70):
            await change(opened, text=str(n))
        bases = [index for index, item in enumerate(storage.items) if not getattr(item, "ops", ())]
        assert bases == [0, 33, 66]
        storage.items.clear()
        for n in range(6):
            await change(opened, Eager, n=n)
        assert [bool(getattr(item, "ops", ())) for item in storage.items] == [
            False,
            True,
            False,
            True,
            False,
            True,
        ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=4), max_size=6))
def test_any_history_of_values_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("documents") / "s.sqlite"

    @bounded
    async def check() -> None:
        async with session(await SqliteStorage.open(path)) as opened:
            entries = []
            async with opened.commit() as tx:
                home = (await tx.create_conversation()).id
            for value in values:
                async with opened.commit() as tx:
                    (await tx.doc(Any_, home)).value = value
                    entries.append((await tx.append_entry("app.note", conversation=home)).id)
            for entry, value in zip(entries, values, strict=True):
                found = await opened.snapshot_as_of(Any_, home, at=entry)
                assert found is not None
                assert canonical(found.value) == canonical(value)
        async with session(await SqliteStorage.open(path)) as opened:
            newest = await opened.snapshot(Any_, home)
            assert (newest is None) == (not values)
            if newest is not None:
                assert canonical(newest.value) == canonical(values[-1])

    check()


def canonical(value: Any) -> str:
    """JSON with sorted keys: the order of an object's keys means nothing, 1 and 1.0 and True are three values."""
    return json.dumps(value, sort_keys=True)


class Any_(Document, kind="test.any", scope="conversation", history="rewindable"):
    value: dict[str, Any] = {}


class Color(Enum):
    RED = "red"


class Typed(Document, kind="test.typed", scope="session"):
    day: datetime.date = datetime.date(2020, 1, 1)
    color: Color = Color.RED
    pair: tuple[int, str] = (1, "a")
    names: set[str] = set()
    anything: Any = None


@bounded
async def test_types_that_json_lacks_are_stored_in_their_json_form_and_read_back() -> None:
    async with session() as opened:
        await change(opened, Typed, day=datetime.date(2024, 2, 29), pair=(2, "b"), names={"x"})
        assert await opened.snapshot(Typed) == Typed(day=datetime.date(2024, 2, 29), pair=(2, "b"), names={"x"})
        for lost in (datetime.date(2024, 1, 1), b"bytes", {"set"}, object()):
            with pytest.raises(InvalidDocument, match=rf"at \$\.anything, .*{type(lost).__name__}"):
                await change(opened, Typed, anything=lost)


@bounded
async def test_nesting_and_size_have_limits_that_are_named_and_large_values_pass() -> None:
    async with session() as opened:
        deep: Any = []
        for _ in range(1000):
            deep = [deep]
        with pytest.raises(InvalidDocument, match="nested deeper than"):
            await change(opened, extra={"deep": deep})
        await change(opened, text="x" * 2_000_000)
        found = await opened.snapshot(Notes)
        assert found is not None
        assert len(found.text) == 2_000_000


# -- versions --------------------------------------------------------------------------------------------------------


class V1(Document, kind="test.versions", scope="session"):
    name: str = ""


class V2(Document, kind="test.versions", version=2, scope="session"):
    names: list[str] = []

    @classmethod
    def migrate(cls, value: dict[str, Any], from_version: int) -> dict[str, Any]:
        assert from_version == 1
        value["names"] = [value.pop("name")]
        return value


@bounded
async def test_an_older_value_is_migrated_for_reads_and_stored_by_the_next_transaction_that_opens_it() -> None:
    storage = Recorder(MemoryStorage())
    async with session(storage) as opened:
        await change(opened, V1, name="ada")
        storage.items.clear()
        for _ in range(2):
            assert await opened.snapshot(V2) == V2(names=["ada"])
        assert await stored(storage, "test.versions") == {"name": "ada"}
        assert storage.items == []
        async with opened.watch_doc(V2) as watch:
            assert watch.value == V2(names=["ada"])
            async with opened.commit() as tx:
                await tx.doc(V2)
            assert await stored(storage, "test.versions") == {"names": ["ada"]}
            assert [(item.version, item.value) for item in storage.items] == [(2, {"names": ["ada"]})]
            await change(opened, V2, names=["ada", "bob"])
            assert (await anext(watch)).value == V2(names=["ada"])
            assert (await anext(watch)).value == V2(names=["ada", "bob"])
        with pytest.raises(DocumentVersionError, match=r"stored by version 2.*has version 1"):
            await opened.snapshot(V1)
        with pytest.raises(DocumentVersionError):
            await change(opened, V1, name="lost")
        assert await opened.snapshot(V2) == V2(names=["ada", "bob"])


@bounded
async def test_a_migration_that_raises_fails_its_caller_and_changes_nothing() -> None:
    class V3(Document, kind="test.versions", version=3, scope="session"):
        @classmethod
        def migrate(cls, value: dict[str, Any], from_version: int) -> dict[str, Any]:
            value.clear()
            raise LookupError("cannot")

    async with session() as opened:
        await change(opened, V1, name="ada")
        with pytest.raises(LookupError):
            await opened.snapshot(V3)
        with pytest.raises(LookupError):
            await change(opened, V3)
        assert await opened.snapshot(V1) == V1(name="ada")


@bounded
async def test_a_value_that_does_not_fit_names_the_document_and_the_place() -> None:
    class Other(Document, kind="test.versions", scope="session"):
        name: int = 0

    async with session() as opened:
        await change(opened, V1, name="ada")
        with pytest.raises(InvalidDocument, match=r"test\.versions.*\$\.name"):
            await opened.snapshot(Other)


# -- the end of a document -------------------------------------------------------------------------------------------


@bounded
async def test_retiring_and_creating_again_gives_a_new_incarnation() -> None:
    storage = MemoryStorage()
    async with session(storage) as opened:
        await change(opened, text="first")
        before = await storage.find_document("test.notes", "session")
        async with opened.watch_doc(Notes) as watch:
            async with opened.commit() as tx:
                await tx.retire_doc(Notes)
                await tx.retire_doc(Notes)
            assert [change.value async for change in watch] == [None]
            assert watch.end is not None
            assert watch.end.reason == "retired"
        assert await opened.snapshot(Notes) is None
        async with opened.commit() as tx:
            assert (await tx.doc(Notes)) == Notes()
            await tx.retire_doc(Notes)  # created and retired at once: nothing
        assert await opened.snapshot(Notes) is None
        await change(opened, text="second")
        after = await storage.find_document("test.notes", "session")
        assert before is not None
        assert after is not None
        assert after.id > before.id
        assert after.created_at > before.created_at


@bounded
async def test_retiring_and_creating_in_one_commit_ends_a_watch_on_the_old_one() -> None:
    async with session() as opened:
        await change(opened, text="first")
        async with opened.watch_doc(Notes) as watch:
            async with opened.commit() as tx:
                await tx.retire_doc(Notes)
                draft = await tx.doc(Notes)
                assert draft.text == ""
                draft.text = "second"
            assert [change.value async for change in watch] == [None]
            assert watch.end is not None
            assert watch.end.reason == "retired"
        found = await opened.snapshot(Notes)
        assert found is not None
        assert found.text == "second"


@bounded
async def test_a_retired_draft_cannot_be_used() -> None:
    async with session() as opened, opened.commit() as tx:
        draft = await tx.doc(Notes)
        await tx.retire_doc(Notes)
        with pytest.raises(DurableError):
            draft.text = "lost"


@bounded
async def test_the_value_as_of_an_entry_is_that_of_the_end_of_its_commit() -> None:
    async with with_conversation() as (opened, home):
        entries = []
        for n in range(4):
            async with opened.commit() as tx:
                entries.append((await tx.append_entry("app.note", conversation=home)).id)
                (await tx.doc(Todos, home)).items.append(str(n))  # after the entry, in the same commit
        async with opened.commit() as tx:
            await tx.retire_doc(Todos, home)
        async with opened.commit() as tx:
            gone = (await tx.append_entry("app.note", conversation=home)).id
        for n, entry in enumerate(entries):
            assert await opened.snapshot_as_of(Todos, home, at=entry) == Todos(items=[str(i) for i in range(n + 1)])
        assert await opened.snapshot_as_of(Todos, home, at=gone) is None
        assert await opened.snapshot_as_of(Todos, home, at=10_000) is None  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="keeps no history"):
            await opened.snapshot_as_of(Notes, home, at=entries[0])


@bounded
async def test_unused_documents_leave_memory_and_watched_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Document, kind="test.other", scope="session"):
        n: int = 0

    async with session() as opened:
        await change(opened, text="unused")
        await change(opened, Other, n=1)
        async with opened.watch_doc(Other):
            now = time.monotonic()
            later = SimpleNamespace(monotonic=lambda: now + 601)
            monkeypatch.setattr("pidurable_nb.session.session.time", later)
            async with opened.commit() as tx:
                await tx.create_conversation()
            await asyncio.sleep(0)
            held = {address.kind for address in opened._committed.documents}
            assert held == {"test.other"}
            assert Address("test.notes") not in opened._sealed.documents
            found = await opened.snapshot(Notes)
            assert found is not None
            assert found.text == "unused"


@bounded
async def test_documents_are_there_after_a_reopen(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with session(await SqliteStorage.open(path)) as opened:
        for n in range(40):
            await change(opened, text="x" * n, items=[str(n)])
    async with session(await SqliteStorage.open(path)) as opened:
        assert await opened.snapshot(Notes) == Notes(text="x" * 39, items=["39"])
        await change(opened, text="y")
        assert await opened.snapshot(Notes) == Notes(text="y", items=["39"])


@bounded
async def test_frames_of_a_watch_tell_the_operations_between_values() -> None:
    async with session() as opened:
        await change(opened, text="start " * 5)
        async with opened.watch_doc(Notes) as watch:
            assert watch.value is not None
            value = watch.value.model_dump(mode="json")
            for n in range(5):
                async with opened.commit() as tx:
                    draft = await tx.doc(Notes)
                    draft.text += str(n)
                    draft.items.insert(0, str(n))
                frame = await anext(watch)
                value = apply(value, frame.ops)
                assert frame.value is not None
                assert value == frame.value.model_dump(mode="json")


@bounded
async def test_a_document_whose_class_is_not_here_is_left_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sqlite")

    class Gone(Document, kind="test.gone", scope="session"):
        items: list[str] = []

    async with Session.open(path) as opened:
        async with opened.commit() as tx:
            (await tx.doc(Gone)).items.append("kept")
        before = await stored(opened.storage, "test.gone")
    async with Session.open(path) as opened:  # by a process that knows nothing of it
        async with opened.commit() as tx:
            (await tx.doc(Notes)).text = "mine"
        assert await stored(opened.storage, "test.gone") == before == {"items": ["kept"]}
    async with Session.open(path) as opened:
        assert await opened.snapshot(Gone) == Gone(items=["kept"])


@bounded
async def test_documents_can_be_read_and_written_at_any_time_in_a_body_and_default_to_its_conversation() -> None:
    async with harness() as opened:
        root = await opened.root()
        async with root.commit() as tx:
            await tx.append_entry("app.note", data=1)
            todos = await tx.doc(Todos)  # a table was written; documents are no tables
            todos.items.append("first")
            await tx.append_entry("app.note", data=2)
            assert (await tx.doc(Todos)).items == ["first"]
            todos.items.append("second")
        assert await opened.snapshot(Todos, root.id) == Todos(items=["first", "second"])
        assert {entry.conversation_id for entry in await root.entries().list()} == {root.id}
