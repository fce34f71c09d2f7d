"""Named points in the life of a session, where tests make something happen (engine.md, section 15; docs/testing.md).

A *point* is a place in the engine's code with a name: a transaction is written and not yet committed, an opening has
its lock and not yet its file. The code *reaches* it. Nothing happens there unless a test said otherwise with
``pidurable_nb.testing.Faults``, which raises an error, holds the thread, or kills the process.

``POINTS`` lists all of them, in the order in which an opening, a commit and a close pass them. They are steps that have
a name in the documentation, not lines of code: a name stays when the code moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

__all__ = ["POINTS", "Hook", "Point", "reach", "set_hook"]


class Point(NamedTuple):
    """What a point is.

    ``on_thread`` says that it lies on a thread of the storage, so that it can be held without holding the event loop;
    ``can_fail`` that an error may arise there: what is stored already cannot fail any more.
    """

    what: str
    on_thread: bool = False
    can_fail: bool = True


POINTS: dict[str, Point] = {
    # opening
    "open.lock": Point("the owner lock is about to be taken", on_thread=True),
    "open.file": Point("a new file, or a journal's compacted one, is whole and has not its name yet", on_thread=True),
    "open.life": Point("the opening's own step is written and not yet stored", on_thread=True),
    "open.stored": Point("the opening's own step is stored; the opening has not returned", on_thread=True),
    "open.load": Point("the session is about to read what is live"),
    # a commit
    "commit.line": Point("a commit has taken the line; its body has not begun"),
    "commit.ended": Point("the body ended well; nothing is validated or encoded"),
    "commit.sealed": Point("the commit is sealed; storage has not been asked"),
    "store.called": Point("storage was asked; it has not looked at the batch"),
    "store.begun": Point("a thread took the commits that wait; their transaction has not begun", on_thread=True),
    "store.written": Point("the transaction is written and not yet stored", on_thread=True),
    "store.done": Point("the transaction is stored; nobody has heard of it", on_thread=True, can_fail=False),
    "commit.stored": Point("the session heard that the commit is stored; committed state has not moved"),
    "commit.adopted": Point("committed state has moved; nothing was published"),
    "commit.published": Point("listeners and watches have the publication; the caller has not heard"),
    # a read
    "read.document": Point("a document that is not in memory is about to be read"),
    "read.called": Point("a read is about to look at the file", on_thread=True),
    "follow.look": Point("an observer is about to look for news", on_thread=True),
    # the end
    "backup.copied": Point("a backup is whole and has not its name yet", on_thread=True),
    "close.begun": Point("a close has begun; nothing was stopped"),
    "close.end": Point("everything is stored; the end of the life is not written", on_thread=True),
    "close.done": Point("the end is written and the file closed; the lock is still held", on_thread=True),
}

Hook: TypeAlias = Callable[[str, str], None]
"""What is called with a point and the name of the storage where it was reached."""

_hook: Hook | None = None


def reach(point: str, where: str = "") -> None:
    """Say that the code is at a point, of the storage named ``where``. May raise, or not return, as a test asked.

    Code of users may have points of its own, under other names.
    """
    if _hook is not None:
        _hook(point, where)


def set_hook(hook: Hook | None) -> None:
    """Have ``hook`` called at every point, or nothing any more. For ``pidurable_nb.testing.Faults``."""
    global _hook
    if hook is not None and _hook is not None:
        raise RuntimeError("points are watched by somebody else already: end the other block first")
    _hook = hook
