"""Which sessions are open in this kernel, and which of them the magics use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotebookError

if TYPE_CHECKING:
    from .chat import Chat

__all__ = [
    "check_name",
    "close",
    "current",
    "is_current",
    "listen",
    "mains",
    "opened",
    "session_name",
    "sessions",
    "use",
]

_sessions: dict[str, Chat] = {}
_current: str | None = None
_listeners: list[Callable[[Chat], object]] = []


def session_name(path: str) -> str:
    """The name of a session that was given none: its file's, without the ending."""
    return Path(path.removeprefix("jsonl:")).stem or path


def check_name(name: str) -> None:
    """Raise ``NotebookError`` for a name that another session has, or that could be the id of a conversation."""
    if not name.strip() or name.isdecimal():
        raise NotebookError(f"{name!r} is no name: choose one that is not a number")
    taken = _sessions.get(name)
    if taken is not None and not taken.closed:
        raise NotebookError(f"a session named {name} is open on {taken.path}: choose another name with --as NAME")


def opened(chat: Chat, name: str, *, current: bool = True) -> None:
    """Note that a session is open, and make it the one that magics use."""
    global _current
    _sessions[name] = chat
    if current:
        _current = name
    for listener in list(_listeners):
        listener(chat)


def listen(listener: Callable[[Chat], object]) -> Callable[[], None]:
    """Have ``listener`` called with each session that is opened from now on. Returns what ends that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def is_current(name: str) -> bool:
    """Whether magics use the session of this name."""
    return _current == name


def current() -> Chat:
    """The session that magics use. Raises ``NotebookError`` when none is open."""
    chat = _sessions.get(_current) if _current is not None else None
    if chat is None or chat.closed:
        chat = next(reversed(sessions()), None)
    if chat is None:
        raise NotebookError("no session is open: `%durable open chat.sqlite` opens or creates one")
    return chat


def sessions() -> tuple[Chat, ...]:
    """The sessions opened in this kernel that are still open."""
    return tuple(chat for chat in _sessions.values() if not chat.closed)


def mains() -> tuple[Chat, ...]:
    """The same without branches that were forked off: one for each open file."""
    return tuple(chat for chat in sessions() if not chat.is_fork)


def use(name: str) -> Chat:
    """Make another open session, or a branch of one, the one that magics use: by its name, or a conversation's id."""
    global _current
    chat = _sessions.get(name)
    if chat is None or chat.closed:
        chat = _branch(name)
    _current = chat.name
    return chat


def _branch(name: str) -> Chat:
    """A branch of the current session, else of another one that is open."""
    open_ones = sessions()
    if not name.isdecimal():
        for chat in sorted(open_ones, key=lambda chat: not is_current(chat.name)):
            if name in chat.branch_names():
                return chat.branch(name)
    elif open_ones:
        return current().branch(int(name))
    known = ", ".join(dict.fromkeys(name for chat in open_ones for name in (chat.name, *chat.branch_names()))) or "none"
    raise NotebookError(f"no session or branch named {name!r} is open here; open are: {known}")


def close(name: str | None = None) -> Chat:
    """Close a session, by default the current one; the one opened last of the others becomes the current one."""
    global _current
    before = _current
    chat = current() if name is None else _sessions.get(name)
    if chat is None or chat.closed:
        known = ", ".join(chat.name for chat in sessions()) or "none"
        raise NotebookError(f"no session named {name!r} is open here; open are: {known}")
    chat.close()
    for ended in [name for name, other in _sessions.items() if other.closed]:
        del _sessions[ended]
    rest = sessions()
    _current = before if before in _sessions else rest[-1].name if rest else None
    return chat
