"""``doctor``: what is installed, whether sessions can lie here, and what is missing."""

from __future__ import annotations

import platform
import shutil
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from .terminal import Terminal

Verdict = Literal["ok", "missing", "broken"]

_NEEDED = ("pydantic", "aiosqlite", "ipywidgets", "anywidget", "nest-asyncio2", "markdown-it-py", "jsonschema")
_EXTRAS = {
    "lab": ("jupyterlab",),
    "models": ("pydantic-ai-slim", "openai", "anthropic"),
    "local": ("xllamacpp", "pydantic-ai-slim"),
}
_OLDEST_SQLITE = (3, 35, 0)
"""Older ones lack what the schema uses."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and what to do when it is not well. ``needed`` ones decide the exit."""

    what: str
    verdict: Verdict
    detail: str
    needed: bool = True


def doctor(folder: str = ".") -> int:
    """Print the findings; 0 when everything that is needed is well, else 1."""
    terminal = Terminal(sys.stdout)
    well = True
    for finding in findings(Path(folder)):
        mark, style = {"ok": ("✓", "green"), "missing": ("·", "yellow"), "broken": ("✗", "red")}[finding.verdict]
        terminal.line(f"{terminal.style(mark, style)} {finding.what:<16} {finding.detail}")
        well = well and (finding.verdict == "ok" or not finding.needed)
    terminal.line()
    terminal.line("All that is needed is here." if well else "Something that is needed is missing or broken.", "bold")
    return 0 if well else 1


def findings(folder: Path) -> Iterator[Finding]:
    """Everything that is looked at, in order. Leaves nothing behind."""
    from .. import __version__

    yield Finding("pidurable_nb", "ok", f"{__version__} in {Path(__file__).parents[1]}")
    supported = sys.version_info >= (3, 11)
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("Python", "ok" if supported else "broken", python)
    for name in _NEEDED:
        version = _version(name)
        yield Finding(name, "ok" if version else "broken", version or f"missing: pip install {name}")
    recent = sqlite3.sqlite_version_info >= _OLDEST_SQLITE
    older = f"; too old, {'.'.join(map(str, _OLDEST_SQLITE))} is needed"
    yield Finding("SQLite", "ok" if recent else "broken", sqlite3.sqlite_version + ("" if recent else older))
    yield from _place(folder)
    for extra, names in _EXTRAS.items():
        absent = [name for name in names if not _version(name)]
        if absent:
            detail = f"{', '.join(absent)} missing: pip install 'pidurable_nb[{extra}]'"
            yield Finding(f"extra {extra}", "missing", detail, needed=False)
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(f"{name} {_version(name)}" for name in names), needed=False)
    yield from _models()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _place(folder: Path) -> Iterator[Finding]:
    """Whether a session can lie in this folder: writing, locks, SQLite's log, room."""
    from ..errors import DurableError
    from ..storage.lock import network_file_system

    if not folder.is_dir():
        yield Finding("folder", "broken", f"{folder} is not a folder: name the one where sessions will lie")
        return
    kind = network_file_system(folder)
    if kind is None:
        yield Finding("file system", "ok", f"{folder.resolve()} is not on a network")
    else:
        yield Finding(
            "file system", "broken", f"{folder.resolve()} is on {kind}, whose locks cannot be trusted: use a local disk"
        )
    room = shutil.disk_usage(folder).free
    enough = room > 100_000_000
    yield Finding("room", "ok" if enough else "broken", f"{room / 1e9:.1f} GB free" + ("" if enough else ": make more"))
    try:
        with tempfile.TemporaryDirectory(prefix=".pidurable-doctor-", dir=folder) as place:
            yield _locks(Path(place))
            yield _log(Path(place))
    except OSError as error:
        yield Finding("writing", "broken", f"{folder.resolve()} cannot be written ({error.strerror}): choose another")
    except DurableError as error:
        yield Finding("locks", "broken", str(error))


def _locks(place: Path) -> Finding:
    from ..errors import SessionInUse
    from ..storage.lock import OwnerLock

    first = OwnerLock.acquire(place / "a.lock", "the doctor's file", time.time())
    try:
        OwnerLock.acquire(place / "a.lock", "the doctor's file", time.time()).release()
    except SessionInUse:
        return Finding("locks", "ok", "one owner at a time, and they die with their process")
    finally:
        first.release()
    return Finding("locks", "broken", "two owners got the same lock: use a local disk")


def _log(place: Path) -> Finding:
    connection = sqlite3.connect(place / "a.sqlite")
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.Error as error:
        return Finding("SQLite's log", "broken", f"{error}: use a local disk")
    finally:
        connection.close()
    if mode != "wal":
        return Finding("SQLite's log", "broken", "this file system does not support it: use a local disk")
    return Finding("SQLite's log", "ok", "write-ahead logging works")


MODELS = 8
"""How many models are told of when they cannot be used; `%durable models` lists all."""


def _models() -> Iterator[Finding]:
    from ..models import default_models

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are only looked for
        available = default_models.available()
    for model in available[:MODELS]:
        verdict: Verdict = "ok" if model.usable else "missing"
        yield Finding(f"{model.name}", verdict, model.missing or "can be used", needed=False)
    for model in available[MODELS:]:
        if model.usable:
            yield Finding(f"{model.name}", "ok", "can be used", needed=False)
