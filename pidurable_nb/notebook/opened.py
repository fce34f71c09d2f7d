"""Which sessions are open in this kernel, and which of them the magics use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NotebookError

if TYPE_CHECKING:
    from .chat import Chat

__all__ = ["close", "current", "is_current", "opened", "sessions", "use"]

_sessions: dict[str, Chat] = {}
_current: str | None = None


def opened(chat: Chat, name: str) -> None:
    """Note that a session is open, and make it the one that magics use."""
    global _current
    _sessions[name] = chat
    _current = name


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


def use(name: str) -> Chat:
    """Make another open session the one that magics use."""
    global _current
    chat = _sessions.get(name)
    if chat is None or chat.closed:
        known = ", ".join(chat.name for chat in sessions()) or "none"
        raise NotebookError(f"no session named {name!r} is open here; open are: {known}")
    _current = name
    return chat


def close(name: str | None = None) -> Chat:
    """Close a session, by default the current one; the one opened last of the others becomes the current one."""
    global _current
    before = _current
    chat = current() if name is None else use(name)
    chat.close()
    _sessions.pop(chat.name, None)
    if chat.name == before:
        rest = sessions()
        _current = rest[-1].name if rest else None
    else:
        _current = before
    return chat
