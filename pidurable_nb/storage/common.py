"""What the backends share: who this process is, checks of requests, and reading stored text."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import from_json

from ..errors import StorageCorrupt, StorageError, StorageRequestError
from ..patch import apply
from ..records import DocumentRecord, Life, SubmissionStatus, TaskStatus
from ..values import JsonValue, Value
from .protocol import (
    BatchItem,
    CopyDocument,
    CreateDocument,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
)

V = TypeVar("V", bound=Value)


class StorageWarning(UserWarning):
    """Something about where a session lies, or how it came there, that its owner should know."""


TASK_STATUSES: tuple[str, ...] = get_args(TaskStatus)
SUBMISSION_STATUSES: tuple[str, ...] = get_args(SubmissionStatus)


# -- who we are ------------------------------------------------------------------------------------------------------


def kernel_id() -> str | None:
    """The id of the Jupyter kernel that runs this process, from its connection file, or ``None`` outside of one.

    Nothing of Jupyter is imported: a kernel that is running has imported its application, or was started with the
    connection file among its arguments.
    """
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if app is not None and app.initialized():
        match = re.search(r"kernel-([^/\\]+)\.json$", str(app.instance().connection_file))
        if match:
            return match[1]
    if "ipykernel_launcher" in " ".join(sys.argv[:1]):
        for argument in sys.argv[1:]:
            match = re.search(r"kernel-([^/\\]+)\.json$", argument)
            if match:
                return match[1]
    return os.environ.get("JPY_SESSION_NAME") or None


def new_life(id: int, opened_at: float) -> Life:
    """The life of an opening by this process."""
    return Life(id=id, pid=os.getpid(), host=socket.gethostname(), kernel=kernel_id(), opened_at=opened_at)


def highest_id(items: Iterable[BatchItem], top: int) -> int:
    """The highest id that a batch uses, or ``top`` where that is higher: what ids are minted after."""
    for item in items:
        if isinstance(item, (PutConversation, PutEntry, PutTask, PutSubmission, CreateDocument, CopyDocument)):
            top = max(top, item.record.id)
    return top


# -- requests --------------------------------------------------------------------------------------------------------


def check_page(order: str, limit: int) -> bool:
    """Whether a scan goes downwards. Raises ``StorageRequestError`` for an order or a limit that makes no sense."""
    if order not in ("ascending", "descending"):
        raise StorageRequestError(f"the order {order!r} is neither 'ascending' nor 'descending'.")
    if limit < 1:
        raise StorageRequestError(f"a page of {limit} items cannot be read; ask for at least one.")
    return order == "descending"


def statuses(status: str | Sequence[str] | None, known: tuple[str, ...]) -> list[str] | None:
    """A status filter as a list. Raises ``StorageRequestError`` for a status that does not exist."""
    if status is None:
        return None
    wanted = [status] if isinstance(status, str) else list(status)
    for one in wanted:
        if one not in known:
            raise StorageRequestError(f"there is no status {one!r}; the statuses are {', '.join(known)}.")
    return wanted


def check_point(at: int | None, last_seq: int) -> None:
    """Raise ``StorageRequestError`` for a point in the history that is not stored."""
    if at is not None and not 0 <= at <= last_seq:
        raise StorageRequestError(f"there is no commit {at}; the last one is {last_seq}.")


def gone(record: DocumentRecord, at: int) -> StorageRequestError:
    """The error for a point that a document no longer keeps."""
    return StorageRequestError(
        f"the document {record.kind} ({record.id}) no longer keeps its value at commit {at}: "
        "only conversation documents with history='rewindable' keep their past."
    )


def keeps_history(record: DocumentRecord) -> bool:
    """Whether a document keeps what lies before its newest base (engine.md, section 4)."""
    return record.history == "rewindable" and record.scope == "conversation"


# -- stored text -----------------------------------------------------------------------------------------------------


def read_record(cls: type[V], payload: str | bytes, name: str) -> V:
    """A record from its stored form. Raises ``StorageCorrupt``, naming the storage, when it does not fit."""
    try:
        return cls.from_json(payload)
    except ValidationError as error:
        what = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in what["loc"]) or "the whole"
        shown = payload if isinstance(payload, str) else payload.decode("utf-8", "replace")
        raise StorageCorrupt(
            f"{name} holds a {cls.__name__} that this version cannot read ({where}: {what['msg']}); it starts "
            f"{shown[:80]!r}. Nothing was changed. Open it with the version that wrote it, or restore a copy."
        ) from error


def read_json(payload: str | bytes, name: str) -> JsonValue:
    """Plain JSON from its stored form. Raises ``StorageCorrupt`` when it is not JSON."""
    try:
        return from_json(payload)
    except ValueError as error:
        raise StorageCorrupt(f"{name} holds a document that is not JSON ({error}). Nothing was changed.") from error


def materialise(base: str | bytes, deltas: Sequence[str | bytes], record: DocumentRecord, name: str) -> JsonValue:
    """A document's value from its base and the deltas after it, oldest first."""
    value = read_json(base, name)
    for payload in deltas:
        ops: Any = read_json(payload, name)
        try:
            value = apply(value, ops)
        except (ValueError, TypeError, KeyError) as error:
            raise StorageCorrupt(
                f"{name} holds a change of the document {record.kind} ({record.id}) that does not fit it ({error}). "
                "Nothing was changed. Restore a copy of the file."
            ) from error
    return value


def check_in_place(path: Path, opened: os.stat_result, name: str) -> None:
    """Raise ``StorageError`` where the file that was opened lies at its path no longer.

    The system lets a file be written to that somebody moved or deleted, and throws away what a deleted one was given.
    """
    try:
        there = os.path.samestat(path.stat(), opened)
    except FileNotFoundError:
        there = False
    if not there:
        raise StorageError(
            f"{name} was moved, deleted or replaced while it was open, so nothing more can be stored in it. Put the "
            "file back and open it again, or open it at its new path; if it was deleted, restore a copy."
        )
