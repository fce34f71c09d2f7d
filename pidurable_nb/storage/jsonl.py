"""A backend that people can read: one folder with an append-only journal of JSON lines (engine.md, section 16).

``journal.jsonl`` starts with a header. Each opening appends a line for its life, each commit one line, each clean end
one line. Every line carries a checksum of its text, ``crc``, first, so that a changed byte is always noticed::

    {"crc":"8c0f…","journal":{"format":"pidurable_nb","version":1}}
    {"crc":"…","life":{"id":1,"pid":4711,…}}
    {"crc":"…","seq":1,"at":1760000000.0,"life":1,"top":2,"items":[{"conversation":{…}},{"entry":{…}}]}
    {"crc":"…","ended":"closed","at":1760000009.5}

The state is kept in memory as well (``MemoryState``), and reads come from there; the journal is read once, at open.

*Torn tail.* A last line without its line break was never acknowledged, and opening removes it. Any other line that
does not parse is ``StorageCorrupt``, naming file and line, and then nothing is changed.

*Compaction.* When most of the journal is superseded, opening writes what counts to a new file and renames it over the
old one.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

from pydantic_core import from_json, to_json

from ..errors import DurableError, SchemaTooNew, StorageCorrupt, StorageError, StorageRequestError
from ..faults import reach
from ..records import Attempt, DocumentRecord, Life
from .common import check_in_place, highest_id, new_life
from .lock import OwnerLock, warn_about_network
from .memory import DocumentRow, MemoryState, Revision, Row
from .protocol import (
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
)
from .queued import QueuedStorage, Sealed, raise_translated
from .worker import Abandoned, call_once, plain_worker

JOURNAL = "journal.jsonl"
FORMAT_VERSION = 1

COMPACT_ABOVE = 1 << 20
"""Bytes below which a journal is never compacted."""

_CRC_START = b'{"crc":"'
_HEADER = f'"journal":{{"format":"pidurable_nb","version":{FORMAT_VERSION}}}'


# -- lines -----------------------------------------------------------------------------------------------------------


def line_of(body: str) -> bytes:
    """A line of the journal from the members of its object, without the braces."""
    rest = body.encode() + b"}"
    return b'%s%08x",%s\n' % (_CRC_START, zlib.crc32(rest), rest)


def read_line(line: bytes) -> dict[str, Any]:
    """The object of a line that was made by ``line_of``, without its line break. Raises ``ValueError``."""
    if not line.startswith(_CRC_START) or line[16:18] != b'",':
        raise ValueError("it does not start with a checksum")
    if zlib.crc32(line[18:]) != int(line[8:16], 16):
        raise ValueError("its text does not fit its checksum")
    value = from_json(line)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _item_text(item: BatchItem, name: str) -> str:
    """One item of a batch as JSON. A record's text is taken as it was encoded when the item was made."""
    if isinstance(item, PutEntry):
        return f'{{"entry":{item.payload}}}'
    if isinstance(item, PutTask):
        return f'{{"task":{item.payload}}}'
    if isinstance(item, PutSubmission):
        return f'{{"submission":{item.payload}}}'
    if isinstance(item, PutConversation):
        return f'{{"conversation":{item.payload}}}'
    if isinstance(item, CreateDocument):
        return f'{{"create":{item.record.to_json()},"version":{item.version},"value":{item.payload}}}'
    if isinstance(item, ChangeDocument):
        what = "ops" if item.ops else "value"
        return f'{{"change":{item.record.id},"version":{item.version},"{what}":{item.payload}}}'
    if isinstance(item, CopyDocument):
        at = "null" if item.at is None else item.at
        return f'{{"copy":{item.source},"record":{item.record.to_json()},"at":{at}}}'
    if isinstance(item, RetireDocument):
        return f'{{"retire":{item.id}}}'
    if isinstance(item, StartAttempt):
        return f'{{"start":{item.task},"phase":{_text(item.phase)}}}'
    if isinstance(item, EndAttempt):
        return f'{{"end":{item.task},"as":{_text(item.end)}}}'
    raise StorageError(f"{name}: a {type(item).__name__} cannot be part of a batch.")


def _text(value: Any) -> str:
    return to_json(value).decode()


# -- reading a journal -----------------------------------------------------------------------------------------------


class Replay:
    """Reads lines into a state. A line that does not fit raises ``ValueError``, ``KeyError`` or ``TypeError``."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    def line(self, line: bytes) -> None:
        data = read_line(line)
        state = self.state
        if "items" in data:
            life = int(data["life"])
            if data["seq"] != state.seq + 1:
                raise ValueError(f"it is commit {data['seq']}, and commit {state.seq + 1} is expected")

            def apply(seq: int, at: float) -> None:
                for item in data["items"]:
                    self._item(item, seq, at, life)

            state.commit(apply, float(data["at"]), life, int(data["top"]))
        elif "pid" in data.get("life", ()):
            state.open_life(Life.model_validate(data["life"]))
        elif "ended" in data:
            state.end_life(data["ended"], float(data["at"]))
        elif "kept" in data:
            self._kept(data["kept"], data["rows"])
        else:
            raise ValueError("this version does not know what it is")

    def _item(self, item: dict[str, Any], seq: int, at: float, life: int) -> None:
        state = self.state
        what = next(iter(item))
        value = item[what]
        if what == "entry":
            state.put_entry(value["id"], value["conversation_id"], value.get("head"), _text(value), seq)
        elif what in ("task", "submission", "conversation"):
            self._record(what, value, seq)
        elif what == "create":
            record = DocumentRecord.model_validate(value)
            state.create_document(record, item["version"], _text(item["value"]), seq)
        elif what == "change":
            base = "value" in item
            state.change_document(value, item["version"], base, _text(item["value" if base else "ops"]), seq)
        elif what == "copy":
            state.copy_document(value, DocumentRecord.model_validate(item["record"]), item["at"], seq)
        elif what == "retire":
            state.retire_document(value, seq)
        elif what == "start":
            state.start_attempt(value, item["phase"], at, life)
        elif what == "end":
            state.end_attempt(value, item["as"], at)
        else:
            raise ValueError(f"this version does not know the item {what!r}")

    def _record(self, what: str, value: dict[str, Any], seq: int) -> None:
        state = self.state
        payload = _text(value)
        if what == "task":
            state.put_task(
                value["id"],
                Row(
                    seq,
                    payload,
                    value["conversation_id"],
                    value["kind"],
                    value["state"]["status"],
                    value.get("owner"),
                    background=value["background"],
                    abort_requested=value["abort_requested"],
                ),
            )
        elif what == "submission":
            row = Row(seq, payload, value["conversation_id"], status=value["status"])
            row.request_id = value.get("request_id")
            state.put_submission(value["id"], row)
        else:
            owner = value.get("owner") or {}
            row = Row(seq, payload, owner=owner.get("task"), owner_conversation=owner.get("conversation"))
            state.put_conversation(value["id"], row)

    def _kept(self, what: str, rows: list[Any]) -> None:
        """Rows of a compacted journal, which stand before its first commit."""
        state = self.state
        state.restoring()
        if what == "commits":
            for at, life in rows:
                state.commit(_nothing, float(at), int(life))
        elif what == "lives":
            for row in rows:
                life = Life.model_validate(row)
                state.open_life(life)
        elif what == "attempts":
            state.restore_attempts([Attempt.model_validate(row) for row in rows])
        elif what == "documents":
            for row in rows:
                record = DocumentRecord.model_validate(row["record"])
                revisions = [
                    Revision(seq, version, bool(base), _text(value)) for seq, version, base, value in row["revisions"]
                ]
                state.restore_document(DocumentRow(record, revisions))
        elif what == "top":
            state.top_id = int(rows[0])
        elif what == "entry":
            for seq, value in rows:
                state.put_entry(value["id"], value["conversation_id"], value.get("head"), _text(value), seq)
                state.touch_at(seq, what, value["id"])
        else:
            for seq, value in rows:
                self._record(what, value, seq)
                state.touch_at(seq, what, value["id"])


def _nothing(seq: int, at: float) -> None:
    """An empty commit, whose content follows in other lines."""


def replay(state: MemoryState, content: bytes, end: int, journal: Path, first: int = 1) -> int:
    """Read whole lines into a state, up to byte ``end``, the first being line ``first`` of the journal.

    Returns how many they are. Raises ``StorageCorrupt`` for a line that cannot be read, and ``SchemaTooNew``.
    """
    reader = Replay(state)
    start, number = 0, first
    while start < end:
        stop = content.index(b"\n", start)
        line = content[start:stop]
        try:
            if number == 1:
                _check_header(read_line(line), journal)
            else:
                reader.line(line)
        except SchemaTooNew:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, DurableError) as error:
            raise StorageCorrupt(
                f"{journal}, line {number}, cannot be read ({error}). Nothing was changed. Restore a copy; "
                "or keep the lines before it in a new folder, which gives the session as it was then."
            ) from error
        start = stop + 1
        number += 1
    return number - first


def _check_header(header: dict[str, Any], journal: Path) -> None:
    found = header.get("journal")
    if not isinstance(found, dict) or found.get("format") != "pidurable_nb":
        raise ValueError("it is not the header of a session's journal")
    if int(found["version"]) > FORMAT_VERSION:
        raise SchemaTooNew(
            f"{journal} was written by a newer version of pidurable_nb (its format is {found['version']}, "
            f"this version knows {FORMAT_VERSION}). Nothing was changed. Upgrade the package to open it."
        )


def compacted(state: MemoryState) -> Iterator[bytes]:
    """The lines of a journal that holds a state and nothing superseded."""
    yield line_of(_HEADER)
    # What an opening derives from its commits is not part of what it wrote.
    lives = [life.replaced(last_commit=None, last_commit_at=None).to_data() for life in state.lives()]
    for rows in _chunks(lives):
        yield line_of(f'"kept":"lives","rows":{_text(rows)}')
    for rows in _chunks(state.commits):
        yield line_of(f'"kept":"commits","rows":{_text(rows)}')
    yield line_of(f'"kept":"top","rows":[{state.top_id}]')
    for rows in _chunks([attempt.to_data() for attempt in state.attempts(None)]):
        yield line_of(f'"kept":"attempts","rows":{_text(rows)}')
    for what, table in (
        ("conversation", state.conversations_by_id),
        ("entry", state.entries_by_id),
        ("task", state.tasks_by_id),
        ("submission", state.submissions_by_id),
    ):
        for found in _chunks([f"[{row.seq},{row.payload}]" for row in table.values()]):
            yield line_of(f'"kept":"{what}","rows":[{",".join(found)}]')
    for document in state.documents_by_id.values():
        revisions = ",".join(
            f"[{revision.seq},{revision.version},{'true' if revision.base else 'false'},{revision.payload}]"
            for revision in document.revisions
        )
        row = f'{{"record":{document.record.to_json()},"revisions":[{revisions}]}}'
        yield line_of(f'"kept":"documents","rows":[{row}]')


def _chunks(rows: list[Any], size: int = 500) -> Iterator[list[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# -- the storage -----------------------------------------------------------------------------------------------------


class _Line(Sealed):
    """A commit as its items and its line, made when it was called."""

    __slots__ = ("items", "line")

    items: list[BatchItem]
    line: bytes


class JsonlStorage(QueuedStorage[_Line]):
    """A journal in a folder, owned by this process while it is open (engine.md, section 16). Made by ``open``."""

    _fd: int
    _opened: os.stat_result

    def __init__(self, folder: str | os.PathLike[str], fsync: bool, clock: Callable[[], float]) -> None:
        super().__init__(os.fspath(folder), clock)
        self.path = Path(os.path.realpath(folder))
        self._journal = self.path / JOURNAL
        self._fsync = fsync
        self._size = 0
        self._lost: StorageError | None = None
        self._reads = self._state = MemoryState(str(self._journal))
        self._worker = plain_worker(f"jsonl {self.name}")

    @classmethod
    async def open(
        cls, dir: str | os.PathLike[str], *, fsync: bool = False, clock: Callable[[], float] = time.time
    ) -> JsonlStorage:
        """Open the journal in a folder and own it, or start one in a folder that is empty or does not exist yet.

        ``fsync`` waits for the disk after each group of commits. ``clock`` gives the time of this life and of commits
        that do not bring their own.

        Raises ``SessionInUse`` while it is open elsewhere, ``SchemaTooNew``, ``StorageCorrupt`` for a journal that
        cannot be read, and ``StorageError`` where the file system refuses. None of them changes anything.
        """
        storage = cls(dir, fsync, clock)
        warn_about_network(storage.name, storage.path)
        storage._worker.start()
        try:
            await storage._worker.call(storage._open)
        except BaseException:
            storage.abandon()
            raise
        return storage

    # -- opening, on the worker --------------------------------------------------------------------------------------

    def _open(self) -> None:
        opened_at = self._clock()
        made = self._make_folder()
        try:
            self._lock = OwnerLock.acquire(self.path / "owner.lock", self.name, opened_at)
        except BaseException:
            if made:
                self._remove_folder()
            self._worker.stop()
            raise
        fd: int | None = None
        try:
            content = self._read_journal()
            end = self._replay(content) if content else 0
            if not content:
                self._write_new([line_of(_HEADER)])
            elif self._is_mostly_superseded(end):
                self._write_new(compacted(self._state))
            elif end < len(content):
                os.truncate(self._journal, end)
            self.life = new_life(len(self._state.lives()) + 1, opened_at)
            fd = os.open(self._journal, os.O_WRONLY | os.O_APPEND)
            self._opened = os.fstat(fd)
            self._size = self._opened.st_size
            self._fd = fd
            reach("open.life", self.name)
            self._append(line_of(f'"life":{self.life.to_json()}'))
            reach("open.stored", self.name)
            self._state.open_life(self.life)
            self.last_seq = self._sealed_seq = self._state.seq
            self._next_id = self._state.top_id
            with self._storing:
                if self._abandoned:
                    raise Abandoned
                self._when_forgotten(lambda: os.close(fd))
        except BaseException as error:
            if fd is not None:
                os.close(fd)
            self._lock.release()
            if made:
                self._remove_folder()
            self._worker.stop()
            raise_translated(error, self._translated(error))

    def _make_folder(self) -> bool:
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise self._stopped(StorageCorrupt(f"{self.name} is not a folder, so it cannot hold a journal."))
        if self.path.is_dir():
            others = set(os.listdir(self.path)) - {JOURNAL, JOURNAL + ".new", "owner.lock"}
            if others and not os.path.lexists(self._journal):
                raise self._stopped(
                    StorageCorrupt(
                        f"{self.name} is a folder with other files and without a journal, so it is not a session. "
                        "Nothing was changed. Choose an empty folder, or one that does not exist yet."
                    )
                )
            return False
        try:
            os.mkdir(self.path, 0o700)
        except OSError as error:
            raise self._stopped(
                StorageError(f"the folder {self.name} cannot be made ({error.strerror}). Make it, or choose another.")
            ) from error
        return True

    def _stopped(self, error: StorageError) -> StorageError:
        self._worker.stop()
        return error

    def _remove_folder(self) -> None:
        try:
            os.rmdir(self.path)
        except OSError:
            pass  # something else was put there meanwhile

    def _read_journal(self) -> bytes:
        try:
            return self._journal.read_bytes()
        except FileNotFoundError:
            return b""

    def _replay(self, content: bytes) -> int:
        """Read every line into the state; returns where the torn tail starts, which is the end when there is none."""
        end = content.rfind(b"\n") + 1
        if not end:
            raise StorageCorrupt(
                f"{self._journal} is not a journal: its first line has no end. Nothing was changed. "
                "Choose another folder, or restore a copy."
            )
        replay(self._state, content, end, self._journal)
        return end

    def _is_mostly_superseded(self, size: int) -> bool:
        if size < COMPACT_ABOVE:
            return False
        state = self._state
        tables = (state.conversations_by_id, state.entries_by_id, state.tasks_by_id, state.submissions_by_id)
        kept = sum(len(row.payload) for table in tables for row in table.values())
        kept += sum(len(revision.payload) for row in state.documents_by_id.values() for revision in row.revisions)
        return size > 4 * (kept + 40 * len(state.commits))

    def _write_new(self, lines: Iterable[bytes]) -> None:
        """Write a whole journal to a new file and rename it into place."""
        draft = self._journal.with_name(JOURNAL + ".new")
        draft.unlink(missing_ok=True)
        try:
            fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            reach("open.file", self.name)
            os.replace(draft, self._journal)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    # -- commits -----------------------------------------------------------------------------------------------------

    def _seal(self, batch: Iterable[BatchItem], seq: int, at: float, life: int, top_id: int) -> _Line:
        items = list(batch)
        parts = ",".join(_item_text(item, self.name) for item in items)
        sealed = _Line(seq, at, life, highest_id(items, top_id))
        sealed.items = items
        sealed.line = line_of(
            f'"seq":{seq},"at":{_text(float(at))},"life":{life},"top":{sealed.top_id},"items":[{parts}]'
        )
        return sealed

    def _transaction(self, group: list[_Line]) -> None:
        if self._lost is not None:
            raise self._lost
        reach("store.begun", self.name)
        check_in_place(self._journal, self._opened, str(self._journal))
        state = self._state
        undo: list[Callable[[], object]] = []
        try:
            for sealed in group:

                def apply(seq: int, at: float, sealed: _Line = sealed) -> None:
                    state.apply(sealed.items, seq, at, sealed.life)

                state.commit(apply, sealed.at, sealed.life, sealed.top_id, undo)
            reach("store.written", self.name)
            self._append(b"".join(sealed.line for sealed in group))
        except BaseException:
            for step in reversed(undo):
                step()
            raise

    def _append(self, data: bytes) -> None:
        """Write whole lines at the end, or nothing."""
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
            if self._fsync:
                os.fsync(self._fd)
        except OSError:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError as error:
                # Lines that were refused may stand in the file now; writing on would make them part of the history.
                self._lost = StorageError(f"{self._journal} cannot be written ({error.strerror}). Open it again.")
            raise
        self._size += len(data)

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, OSError) and not isinstance(error, DurableError):
            return StorageError(
                f"{self._journal} cannot be read or written ({error.strerror}). What was committed is safe. Check the "
                "disk's free space and the permissions, and open it again."
            )
        return error

    # -- copies and the end ------------------------------------------------------------------------------------------

    async def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the live session to a new folder, without holding up its commits.

        Raises ``StorageRequestError`` when the path is taken or cannot be written.
        """
        size = await self._read(lambda: self._size)

        def copy() -> None:
            target = Path(os.path.realpath(path))
            draft: Path | None = None
            if os.path.lexists(target):
                raise StorageRequestError(f"{path} exists already; a backup needs a new path.")
            try:
                draft = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
                copied = os.open(draft / JOURNAL, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
                with open(self._journal, "rb") as source, os.fdopen(copied, "wb") as file:
                    left = size
                    while left and (piece := source.read(min(left, 1 << 20))):
                        file.write(piece)
                        left -= len(piece)
                reach("backup.copied", self.name)
                os.rename(draft, target)
            except OSError as error:
                raise StorageRequestError(f"a backup of {self.name} cannot be written to {path}: {error}.") from error
            finally:
                if draft is not None:
                    shutil.rmtree(draft, ignore_errors=True)

        await call_once(copy, "backup")

    def _end(self, ended: Literal["closed", "failed"], ended_at: float) -> None:
        try:
            reach("close.end", self.name)
            if self._lost is None:
                self._append(line_of(f'"ended":{_text(ended)},"at":{_text(ended_at)}'))
        finally:
            os.close(self._fd)
