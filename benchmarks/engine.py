"""What is measured of the engine, and the floors. Each function takes a folder of its own and gives figures."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiosqlite
import psutil

from pidurable_nb import (
    AgentChange,
    CompactionPolicy,
    Document,
    Extension,
    Harness,
    Registry,
    Session,
    Settings,
    SqliteStorage,
    tool,
)
from pidurable_nb.messages import AssistantMessage, TextBlock, ToolCall, UserMessage
from pidurable_nb.models import Finish, ModelEvent, ModelRequest, Reply, ScriptedModel, TextDelta
from pidurable_nb.records import ConversationId, DocumentId, DocumentRecord, Entry, EntryId
from pidurable_nb.storage import ChangeDocument, CreateDocument, PutEntry

from .figures import Figure, best_rate, median

ENTRY = "e" * 500
STATE = "d" * 300
MODEL = "scripted:bench"
SHORT = "An answer of about the length that people give in a chat, which is a line or two."
QUESTION = "A question of a few words?"


# -- floors ----------------------------------------------------------------------------------------------------------


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, payload TEXT)")
    connection.execute("CREATE TABLE states (id INTEGER PRIMARY KEY, payload TEXT)")
    connection.execute("INSERT INTO states VALUES (1, '')")


def _write(connection: sqlite3.Connection, turn: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO rows (payload) VALUES (?)", (ENTRY,))
    connection.execute("UPDATE states SET payload = ? WHERE id = 1", (f"{turn}{STATE}",))
    connection.execute("COMMIT")


def floor_sqlite3(folder: Path, count: int) -> float:
    """Commits per second of plain sqlite3: a row of 500 bytes inserted, one of 300 updated."""
    connection = sqlite3.connect(folder / "floor.sqlite", isolation_level=None)
    _prepare(connection)
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        for turn in range(count):
            _write(connection, turn)
        durations.append(time.perf_counter() - start)
    connection.close()
    return best_rate(durations, count)


async def floor_aiosqlite(folder: Path, count: int) -> float:
    """The same through aiosqlite's thread, with one callable for each commit."""
    async with aiosqlite.connect(folder / "aiosqlite.sqlite", isolation_level=None) as connection:
        await connection._execute(_prepare, connection._conn)
        durations = []
        for _ in range(3):
            start = time.perf_counter()
            for turn in range(count):
                await connection._execute(_write, connection._conn, turn)
            durations.append(time.perf_counter() - start)
    return best_rate(durations, count)


# -- commits ---------------------------------------------------------------------------------------------------------


class State(Document, kind="bench.state", scope="session"):
    """What a commit changes besides its entry."""

    text: str = ""


async def commits(folder: Path, committers: int, count: int) -> float:
    """Commits per second of an entry and a document, by so many at once."""
    async with Session.open(str(folder / f"commits-{committers}.sqlite")) as session:
        async with session.commit() as tx:
            conversation = (await tx.create_conversation()).id

        async def commit(turns: range) -> None:
            for turn in turns:
                async with session.commit() as tx:
                    await tx.append_entry("bench.entry", conversation=conversation, data={"text": ENTRY})
                    (await tx.doc(State)).text = f"{turn}{STATE}"

        durations = []
        for _ in range(3):
            start = time.perf_counter()
            await asyncio.gather(*(commit(range(index, count, committers)) for index in range(committers)))
            durations.append(time.perf_counter() - start)
    return best_rate(durations, count)


async def storage_commits(folder: Path, committers: int, count: int) -> float:
    """The same through the Storage API, with batches made beforehand."""
    storage = await SqliteStorage.open(folder / f"storage-{committers}.sqlite")
    state = DocumentRecord(id=DocumentId(storage.mint_id()), kind="bench.state", scope="session", created_at=0)
    await storage.commit([CreateDocument(state, 1, {"text": ""})])

    def batch(turn: int) -> list[PutEntry | ChangeDocument]:
        id = EntryId(storage.mint_id())
        entry = Entry(id=id, conversation_id=ConversationId(1), kind="bench.entry", data={"text": ENTRY})
        text = f"{turn}{STATE}"
        if turn % 33 == 0:  # a base after 32 deltas, as documents are stored
            return [PutEntry(entry), ChangeDocument(state, 1, value={"text": text})]
        return [PutEntry(entry), ChangeDocument(state, 1, ops=[{"op": "replace", "path": "/text", "value": text}])]

    async def commit(batches: Iterable[list[PutEntry | ChangeDocument]]) -> None:
        for items in batches:
            await storage.commit(items)

    durations = []
    for _ in range(3):
        batches = iter([batch(turn) for turn in range(count)])
        start = time.perf_counter()
        await asyncio.gather(*(commit(batches) for _ in range(committers)))
        durations.append(time.perf_counter() - start)
    await storage.close()
    return best_rate(durations, count)


async def commit_figures(folder: Path, scale: float) -> AsyncIterator[Figure]:
    """Floors, and the engine's commits against them."""
    count = max(100, int(3000 * scale))
    plain = floor_sqlite3(folder, count)
    yield Figure("floor: plain sqlite3, one row and one update", plain, "commits/s")
    threaded = await floor_aiosqlite(folder, count)
    yield Figure("floor: aiosqlite, one callable per commit", threaded, "commits/s")
    for committers in (1, 16):
        rate = await storage_commits(folder, committers, count)
        name = f"the same through the Storage API, {committers} at once"
        yield Figure(
            name, rate, "commits/s", f"{rate / plain:.2f} of plain sqlite3, {rate / threaded:.2f} of aiosqlite"
        )
    one = await commits(folder, 1, count)
    yield Figure(
        "an entry and a document, 1 committer", one, "commits/s", f">= 3/4 of aiosqlite ({0.75 * threaded:,.0f})",
        one >= 0.75 * threaded,
    )  # fmt: skip
    many = await commits(folder, 16, count)
    yield Figure(
        "an entry and a document, 16 committers", many, "commits/s", f">= plain sqlite3 ({plain:,.0f})", many >= plain
    )


# -- turns -----------------------------------------------------------------------------------------------------------


@tool(replay="safe")
async def echo(text: str) -> str:
    """Give the text back."""
    return text


def _script(request: ModelRequest) -> Reply:
    if request.tools and request.messages[-1].role == "user":
        return Reply(tool_calls=[ToolCall(id=f"call-{len(request.messages)}", name="echo", arguments={"text": "x"})])
    return Reply(SHORT)


def open_harness(path: Path, *, tools: bool = False) -> Any:
    registry = Registry()
    if tools:
        registry.install(Extension("bench", tools=[echo]))
    model = ScriptedModel(_script, name=MODEL, record=False)
    return Harness.open(str(path), models=model, registry=registry)


async def turns(path: Path, count: int, *, tools: bool = False) -> list[float]:
    """How long each turn took, from the submission to the settled answer."""
    durations = []
    async with open_harness(path, tools=tools) as harness:
        root = await harness.root(agent=AgentChange(model=MODEL))
        for _ in range(count):
            start = time.perf_counter()
            await (await root.submit(QUESTION)).wait()
            durations.append(time.perf_counter() - start)
    return durations


async def turn_figures(folder: Path, scale: float, peer: dict[str, float]) -> AsyncIterator[Figure]:
    """Turns per second, with and without a tool, against the peer where it was measured."""
    count = max(20, int(300 * scale))
    for name, tools in (("turns", False), ("tool turns", True)):
        taken = await turns(folder / f"{name}.sqlite", count, tools=tools)
        rate = 1 / median(taken)
        other = peer.get(name)
        goal = "5 times pi-durable-python" + ("" if other is None else f" ({5 * other:,.0f})")
        yield Figure(
            f"{name}, scripted model, {count} of them",
            rate,
            "turns/s",
            goal,
            None if other is None else rate >= 5 * other,
        )


async def growth_figures(folder: Path, scale: float) -> AsyncIterator[Figure]:
    """Whether a turn costs more after 3,000 than after 100, and what it leaves on disk."""
    last = max(400, int(3000 * scale))
    path = folder / "growth.sqlite"
    taken = await turns(path, last)
    early, late = median(taken[50:150]), median(taken[-100:])
    yield Figure("a turn after 100 turns", early * 1000, "ms")
    yield Figure(f"a turn after {last:,} turns", late * 1000, "ms", "within 10 % of the former", late <= 1.1 * early)
    size = path.stat().st_size / last
    yield Figure("the file, for each turn of short text", size, "bytes", "below 3,000", size < 3000)


async def compaction_figures(folder: Path, scale: float) -> AsyncIterator[Figure]:
    """Whether a conversation of 3,000 turns that is compacted on its way keeps its time for a turn and its memory."""
    last = max(600, int(3000 * scale))
    model = ScriptedModel(
        lambda request: Reply("What was said.") if "<conversation>" in request.messages[-1].text else Reply(SHORT),
        name=MODEL,
        record=False,
        context_window=4000,
    )
    policy = CompactionPolicy(reserve_tokens=500, keep_recent_tokens=500, background_tokens=500)
    taken, resident = [], []
    process = psutil.Process()
    async with Harness.open(folder / "compacted.sqlite", models=model, settings=Settings(compaction=policy)) as harness:
        root = await harness.root()
        for _ in range(last):
            start = time.process_time()
            await root.ask(QUESTION)
            taken.append(time.process_time() - start)
            resident.append(process.memory_info().rss)
        kept = len((await root.context()).entries)
        compactions = len(await harness.tasks(kind="pi.compaction").list())
    window = last // 6  # many compactions lie in it
    early, late = sum(taken[window : 2 * window]) / window, sum(taken[-window:]) / window
    yield Figure(
        f"compactions in {last:,} turns", compactions, "", "at least one in 100 turns", compactions >= last / 100
    )
    yield Figure(f"entries in memory after {last:,} turns", kept, "", "below 200", kept < 200)
    yield Figure("CPU of a turn early, compactions included", early * 1000, "ms")
    yield Figure(f"the same after {last:,} turns", late * 1000, "ms", "within 10 % of the former", late <= 1.1 * early)
    grown = (resident[-1] - resident[2 * window]) / 1e6
    yield Figure(f"memory that {last - 2 * window:,} more turns take", grown, "MB", "below 10", grown < 10)


# -- deltas ----------------------------------------------------------------------------------------------------------


class _Dripping:
    """A model that streams one answer in many small pieces, one for each millisecond."""

    id = MODEL
    context_window = 200_000
    max_output_tokens = 200_000

    def __init__(self, pieces: int, piece: str) -> None:
        self._pieces = pieces
        self._piece = piece

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for index in range(self._pieces):
            await asyncio.sleep(max(0.0, start + index / 1000 - loop.time()))
            yield TextDelta(self._piece)
        text = self._piece * self._pieces
        yield Finish(AssistantMessage(content=[TextBlock(text)], model=self.id, stop_reason="stop"))


class _Counting:
    """A storage that counts the payload bytes handed to it."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def commit(self, batch: Any, **options: Any) -> int:
        items = list(batch)
        self.bytes += sum(len(getattr(item, "payload", "").encode()) for item in items)
        return int(await self._storage.commit(items, **options))


async def delta_figures(folder: Path, scale: float) -> AsyncIterator[Figure]:
    """CPU and bytes of an answer in 5,000 deltas of 20 characters, one each millisecond."""
    pieces = max(500, int(5000 * scale))
    piece = "twenty characters!! "
    request = ModelRequest(messages=(UserMessage([TextBlock(QUESTION)]),))
    waits = []
    for _ in range(3):  # the least is the stream's own: what else the machine does only ever adds
        start = time.process_time()
        async for _ in _Dripping(pieces // 5, piece).stream(request):
            pass
        waits.append(time.process_time() - start)
    alone = 5 * min(waits)
    model = _Dripping(pieces, piece)
    storage = _Counting(await SqliteStorage.open(folder / "deltas.sqlite"))
    async with Harness.open(storage, models=model) as harness:
        root = await harness.root(agent=AgentChange(model=MODEL))
        before = storage.bytes
        start = time.process_time()
        await root.ask(QUESTION)
        spent = time.process_time() - start - alone
        written = storage.bytes - before
    name = f"{pieces:,} deltas of 20 characters, one per ms"
    yield Figure(f"{name}: CPU beyond the stream's own", spent, "s", "below 0.2", spent < 0.2 * max(scale, 0.1))
    ratio = written / (20 * pieces)
    yield Figure(f"{name}: bytes written", ratio, "x text", "below 3", ratio < 3)


# -- opening ---------------------------------------------------------------------------------------------------------


async def _fill(path: Path, entries: int, *, head_at: int | None = None) -> None:
    """A conversation of so many entries, written as the engine would, but all at once."""
    async with open_harness(path) as harness:
        await harness.root(agent=AgentChange(model=MODEL))
        storage = harness.storage
        root = ConversationId(1)
        for start in range(0, entries, 1000):
            batch = []
            for index in range(start, min(start + 1000, entries)):
                id = EntryId(storage.mint_id())
                if index % 2:
                    answer = AssistantMessage(content=[TextBlock(SHORT)], model=MODEL, stop_reason="stop")
                    entry = Entry(id=id, conversation_id=root, kind="pi.assistant", messages=(answer,))
                else:
                    asked = UserMessage([TextBlock(QUESTION)])
                    head = id if index == head_at else None
                    entry = Entry(id=id, conversation_id=root, kind="pi.user", messages=(asked,), head=head)
                batch.append(PutEntry(entry))
            await storage.commit(batch)


async def _open_and_read(path: Path) -> tuple[float, float, float, int]:
    start = time.perf_counter()
    async with open_harness(path) as harness:
        opened = time.perf_counter() - start
        root = await harness.root()
        start = time.perf_counter()
        context = await root.context()
        read = time.perf_counter() - start
        start = time.perf_counter()
        await root.ask(QUESTION)
        answered = time.perf_counter() - start
    return opened, read, answered, len(context.entries)


async def opening_figures(folder: Path, scale: float, peer: dict[str, float]) -> AsyncIterator[Figure]:
    """Opening a long session, its first context, and its first turn."""
    entries = max(2000, int(100_000 * scale))
    path = folder / "long.sqlite"
    await _fill(path, entries)
    opened, read, answered, found = await _open_and_read(path)
    assert found == entries, found
    yield Figure(f"opening with {entries:,} entries", opened * 1000, "ms", "below 50", opened < 0.05)
    other = peer.get("first context")
    goal = "5 times faster than pi-durable-python" + ("" if other is None else f" ({other / 5 * 1000:,.0f})")
    yield Figure(
        f"first context of {entries:,} entries", read * 1000, "ms", goal, None if other is None else read * 5 <= other
    )
    yield Figure(f"first turn after {entries:,} entries", answered * 1000, "ms")
    headed = folder / "headed.sqlite"
    await _fill(headed, entries, head_at=entries - 100)
    _, read, _, found = await _open_and_read(headed)
    yield Figure(
        f"first context of {entries:,} entries, with a head", read * 1000, "ms", "reads only the last 100", found == 100
    )


# -- imports ---------------------------------------------------------------------------------------------------------


def _seconds(statement: str) -> float:
    """CPU time of a statement in a new process, where files are in the system's cache and bytecode is written."""
    code = (
        "import time\nfrom pydantic import BaseModel\n"
        "class First(BaseModel):\n    x: int\n"  # pydantic imports half of itself when the first model is made
        f"start = time.process_time()\n{statement}\nprint(time.process_time() - start)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode; the first run writes it
    durations = []
    for _ in range(7):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        durations.append(float(ended.stdout))
    return min(durations)  # what else the machine does only ever adds


def import_figures() -> list[Figure]:
    """What importing costs beyond pydantic."""
    root = _seconds("import pidurable_nb")
    used = _seconds("from pidurable_nb import Harness, Session, Settings, tool")
    return [
        Figure("import pidurable_nb, beyond pydantic", root * 1000, "ms", "below 150", root < 0.15),
        Figure("from pidurable_nb import Harness, beyond pydantic", used * 1000, "ms", "below 150", used < 0.15),
    ]
