"""Storage backends and the protocol that they share (engine.md, section 16).

``open_storage`` turns what a person writes into a storage; the classes open one kind each. A backend is loaded on first
use, so that importing the package stays quick.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import StorageRequestError
from .common import StorageWarning
from .protocol import (
    BatchItem,
    ChangeDocument,
    Changes,
    CommitInfo,
    CopyDocument,
    CreateDocument,
    EndAttempt,
    Order,
    Page,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    StartAttempt,
    Storage,
    StoredDocument,
)

if TYPE_CHECKING:
    from .jsonl import JsonlStorage
    from .memory import MemoryStorage
    from .sqlite import SqliteStorage

__all__ = [
    "BatchItem",
    "ChangeDocument",
    "Changes",
    "CommitInfo",
    "CopyDocument",
    "CreateDocument",
    "EndAttempt",
    "JsonlStorage",
    "MemoryStorage",
    "Order",
    "Page",
    "PutConversation",
    "PutEntry",
    "PutSubmission",
    "PutTask",
    "RetireDocument",
    "SqliteStorage",
    "StartAttempt",
    "Storage",
    "StorageWarning",
    "StoredDocument",
    "open_storage",
]

_BACKENDS = {"JsonlStorage": ".jsonl", "MemoryStorage": ".memory", "SqliteStorage": ".sqlite"}


def __getattr__(name: str) -> Any:
    if name not in _BACKENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_BACKENDS[name], __name__), name)
    globals()[name] = value
    return value


async def open_storage(where: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> Storage:
    """Open the storage that a text or a path names, and own it until it is closed.

    ``":memory:"`` is memory, ``"jsonl:DIR"`` or an existing folder a journal, any other path an SQLite file. Raises
    ``StorageRequestError`` for a text that names nothing that is included, and what the backend's ``open`` raises.
    """
    if not isinstance(where, (str, os.PathLike)):
        raise StorageRequestError(f"a storage is named by a text or a path, not by a {type(where).__name__}.")
    text = os.fspath(where)
    if not isinstance(text, str):
        raise StorageRequestError("a storage is named by a text or a path, not by bytes.")
    if not text.strip():
        raise StorageRequestError("an empty text names no storage; give a path, such as 'chat.sqlite'.")
    if isinstance(where, str):
        if text == ":memory:":
            from .memory import MemoryStorage

            return MemoryStorage(clock=clock)
        if text.startswith("jsonl:"):
            return await _open_journal(text.removeprefix("jsonl:"), clock)
        scheme, separator, _ = text.partition("://")
        if separator and scheme.isalnum():
            known = scheme in ("postgresql", "postgres")
            raise StorageRequestError(
                f"{'PostgreSQL is' if known else f'{scheme}:// storages are'} not included in this version; give a "
                "path for SQLite, such as 'chat.sqlite', or 'jsonl:DIR' for a journal."
            )
    if os.path.isdir(text):  # noqa: ASYNC240 - one look at a name, as quick as the opening that follows
        return await _open_journal(text, clock)
    from .sqlite import SqliteStorage

    return await SqliteStorage.open(text, clock=clock)


async def _open_journal(folder: str, clock: Callable[[], float]) -> Storage:
    if not folder:
        raise StorageRequestError("'jsonl:' names no folder; write 'jsonl:DIR'.")
    from .jsonl import JsonlStorage

    return await JsonlStorage.open(folder, clock=clock)
