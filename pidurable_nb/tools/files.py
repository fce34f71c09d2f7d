"""The tools ``read``, ``write`` and ``edit`` over an environment (engine.md, section 12).

All three are safe to repeat. ``read`` changes nothing. ``write`` and ``edit`` store, before they change a file, what it
was and what it is to be: a call that is run again after a crash finds out which of the two the file is. One that
somebody else changed meanwhile is left alone, but for an edit of which the file itself shows whether it was made.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import io
import threading
import weakref
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from ..agent.context import ToolContext
from ..agent.state import Diagnostic
from ..agent.tool import Tool, ToolResult, tool
from ..messages import ImageBlock
from .environment import Environment, LocalEnvironment

LINES = 2000
"""The most lines that one ``read`` gives."""

BYTES = 40 * 1024
"""The most bytes of text that one ``read`` gives."""

IMAGE_BYTES = 5 * 1024 * 1024
"""The largest image that ``read`` gives: providers take no larger ones."""

CHANGED_BYTES = 64 * 1024 * 1024
"""The largest file that ``write`` and ``edit`` change: what it holds is in memory, some of it more than once."""

DIFF_CHARS = 20_000
"""How much of a diff an edit keeps for user interfaces."""

_CHUNK = 1 << 20
_COUNTED = 64 * _CHUNK
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)

Path = Annotated[str, Field(description="Absolute, or relative to the working directory")]


def environment_of(env: Any, cwd: str | None) -> Environment:
    """The environment of a call: the harness's, or this process's directory, at the agent's working directory."""
    given = LocalEnvironment() if env is None else env
    if not isinstance(given, Environment):
        raise TypeError(f"the harness was opened with env={given!r}, which is no Environment: use LocalEnvironment(…)")
    return given.at(cwd)


def _environment(ctx: ToolContext) -> Environment:
    return environment_of(ctx.env, ctx.agent().cwd)


# -- read ------------------------------------------------------------------------------------------------------------


def read(*, name: str = "read") -> Tool:
    """A tool that reads a file: lines of text, or an image as a block. Replay is safe."""

    @tool(name=name, replay="safe")
    def read(
        ctx: ToolContext,
        path: Path,
        start: Annotated[int, Field(ge=1, description="The first line, from 1")] = 1,
        lines: Annotated[int, Field(ge=1, le=LINES, description="How many lines")] = LINES,
    ) -> ToolResult:
        """Read a text file, or an image (PNG, JPEG, GIF, WebP). The result of a long file says how to go on."""
        env = _environment(ctx)
        head = env.read(path, 0, 8192)
        media = _media_type(head)
        if media is not None:
            data = env.read(path, 0, IMAGE_BYTES + 1)
            if len(data) > IMAGE_BYTES:
                raise ValueError(f"{path} is an image of more than {IMAGE_BYTES // 1024 // 1024} MB: make it smaller")
            return ToolResult([ImageBlock(media, base64.b64encode(data).decode())], details={"media_type": media})
        if b"\0" in head:
            raise ValueError(f"{path} is neither text nor an image")
        return _lines(ctx, env, path, start, lines)

    return read


def _lines(ctx: ToolContext, env: Environment, path: str, start: int, count: int) -> ToolResult:
    reader = io.BufferedReader(_Reader(ctx, env, path), _CHUNK)
    number, whole = 1, True
    while number < start:
        line = reader.readline(_CHUNK)
        if not line:
            raise ValueError(f"{path} has {number - whole} lines, so there is no line {start}")
        whole = line.endswith(b"\n")
        number += whole
    kept: list[bytes] = []
    left = b""
    size = 0
    while len(kept) < count:
        line = reader.readline(BYTES + 1)
        if size + len(line) > BYTES:
            left = line
            break
        if not line:
            break
        kept.append(line)
        size += len(line)
    notes = []
    if left and not kept:
        kept, left = [left[:BYTES]], b""
        notes.append(
            Diagnostic(f"Line {start} is longer than {BYTES} bytes; this is its beginning.", "warn", "truncated")
        )
        while not (line := reader.readline(_CHUNK)).endswith(b"\n") and line:
            pass
    end = start + len(kept) - 1
    if left or reader.peek(1):
        rest, counted = _count(reader, left)
        total = f"{end + rest}" if counted else f"more than {end + rest}"
        notes.append(Diagnostic(f"Lines {start} to {end} of {total}; go on with start={end + 1}.", "info", "more"))
    elif not kept:
        notes.append(Diagnostic("The file is empty." if start == 1 else f"There is no line {start}.", "info"))
    return ToolResult(b"".join(kept).decode("utf-8", "replace"), diagnostics=notes)


def _count(reader: io.BufferedReader[Any], left: bytes) -> tuple[int, bool]:
    """How many lines follow, as far as it is worth counting, and whether that is all."""
    newlines, last, size = left.count(b"\n"), left[-1:], 0
    while size < _COUNTED:
        chunk = reader.read(_CHUNK)
        if not chunk:
            return newlines + (last != b"\n"), True
        newlines, last, size = newlines + chunk.count(b"\n"), chunk[-1:], size + len(chunk)
    return newlines, False


class _Reader(io.RawIOBase):
    """A file of an environment as a stream."""

    def __init__(self, ctx: ToolContext, env: Environment, path: str) -> None:
        self._ctx = ctx
        self._env = env
        self._path = path
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._ctx.cancelled:
            raise InterruptedError("the call was stopped")
        data = self._env.read(self._path, self._offset, len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


def _media_type(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in _IMAGES if head.startswith(magic)), None)


# -- write and edit --------------------------------------------------------------------------------------------------


def write(*, name: str = "write", approval: bool | Callable[[dict[str, Any]], bool] = False) -> Tool:
    """A tool that writes a whole file, with the directories above it. Replay is safe."""

    @tool(name=name, replay="safe", approval=approval)
    def write(ctx: ToolContext, path: Path, content: str) -> ToolResult:
        """Write a file, replacing what it held. Directories that are missing are made."""
        data = content.encode()
        change = _replace(ctx, path, lambda before: data)
        lines = content.count("\n") + (bool(content) and not content.endswith("\n"))
        what = "created" if change.created else "replaced"
        return ToolResult(
            f"{what} {path}: {lines} lines, {len(data)} bytes", details={"path": path, "bytes": len(data)}
        )

    return write


def edit(*, name: str = "edit", approval: bool | Callable[[dict[str, Any]], bool] = False) -> Tool:
    """A tool that replaces one exact piece of text in a file. Replay is safe."""

    @tool(name=name, replay="safe", approval=approval)
    def edit(
        ctx: ToolContext,
        path: Path,
        old: Annotated[str, Field(min_length=1, description="The text to replace, exactly as it stands, once")],
        new: Annotated[str, Field(description="The text in its place")],
    ) -> ToolResult:
        """Replace one piece of text in a file. It must occur exactly once: add lines around it until it does."""
        spoken: list[str] = []

        def change(before: bytes | None) -> bytes:
            if before is None:
                raise FileNotFoundError(f"{path} does not exist")
            text, edited = _edited(path, before, old, new)
            diff = difflib.unified_diff(text.splitlines(), edited.splitlines(), path, path, lineterm="", n=2)
            spoken.append("\n".join(diff))
            return edited.encode()

        def moved(now: bytes) -> bytes | None:
            text, gone, came = _pieces(path, now, old, new)
            if gone in came:  # it looks the same before and after
                return None
            if gone in text:
                return change(now)
            return now if came and came in text else None

        done = _replace(ctx, path, change, moved)
        if done.again:
            return ToolResult(f"edited {path}", diagnostics=[Diagnostic("It was done before the call was cut off.")])
        [diff] = spoken
        return ToolResult(f"edited {path}", details={"path": path, "diff": diff[:DIFF_CHARS]})

    return edit


def _pieces(path: str, data: bytes, old: str, new: str) -> tuple[str, str, str]:
    """The text of a file, and both pieces with its line ends."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    if "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    return text, old, new


def _edited(path: str, before: bytes, old: str, new: str) -> tuple[str, str]:
    """The text of a file before and after. Raises ``ValueError`` with what a model needs to do better."""
    text, old, new = _pieces(path, before, old, new)
    if old == new:
        raise ValueError("old and new are the same text")
    places = []
    place = text.find(old)
    while place >= 0:
        places.append(text.count("\n", 0, place) + 1)
        place = text.find(old, place + 1)
    if len(places) > 1:
        lines = ", ".join(map(str, places[:10])) + (", …" if len(places) > 10 else "")
        raise ValueError(f"the text occurs {len(places)} times in {path}, at lines {lines}: add lines around it")
    if not places:
        first = old.strip().partition("\n")[0].strip()
        near = [number for number, line in enumerate(text.splitlines(), 1) if first and first in line]
        hint = f"; its first line is at line {near[0]}, what follows there differs" if near else ""
        raise ValueError(f"the text does not occur in {path}{hint}: read the file again")
    return text, text.replace(old, new)


class _Change:
    """What became of a replacement: whether it made the file, and whether an earlier run of the call had done it."""

    def __init__(self, created: bool, again: bool) -> None:
        self.created = created
        self.again = again


_locks: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_locks_guard = threading.Lock()


def _replace(
    ctx: ToolContext,
    path: str,
    change: Callable[[bytes | None], bytes],
    moved: Callable[[bytes], bytes | None] = lambda now: None,
) -> _Change:
    """Replace a file by what ``change`` makes of it, once, however often the call runs. One at a time for each file.

    ``moved`` is asked when the call was cut off and the file is neither what it was nor what it was to be: another call
    of the same round may have come first. It gives what the file is to be now, or ``None`` when nobody can know.
    """
    env = _environment(ctx)
    key = env.key(path)
    with _locks_guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        try:
            before: bytes | None = env.read(path, 0, CHANGED_BYTES + 1)
        except FileNotFoundError:
            before = None
        if before is not None and len(before) > CHANGED_BYTES:
            raise ValueError(f"{path} holds more than {CHANGED_BYTES // 1024 // 1024} MB: change it with a command")
        found = _digest(before)
        plan = ctx.memo("file")
        if plan is not None and found == plan[1]:
            after = before
        elif plan is None or found == plan[0]:
            after = change(before)
        else:
            after = None if before is None else moved(before)
            if after is None:
                raise ValueError(
                    f"the call was cut off before, and {path} was changed by somebody else since: it was left as it is"
                )
        if plan is None:
            plan = ctx.memo("file", [found, _digest(after)])
            again = False
        else:
            again = after == before
        if after is not None and not again:
            env.write(path, after)
        return _Change(created=plan[0] is None, again=again)


def _digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


__all__ = ["edit", "environment_of", "read", "write"]
