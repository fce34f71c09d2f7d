"""Where tools touch files and processes: the object given to ``Harness.open(env=…)``.

An *environment* reads, writes and runs. Its paths are relative to its working directory, which ``at`` changes: tools
work at the ``cwd`` of their conversation's agent. ``LocalEnvironment`` is this machine; a container or a remote host is
another class with the methods of ``Environment``.

Guarantees of ``LocalEnvironment``:

- A file is replaced whole or not at all.
- With a ``root``, no path leads out of it, neither by ``..`` nor by a symbolic link. That keeps a model from mistakes;
  a *command* runs with the rights of this process and goes where they allow.
- A command gets the variables that are listed here and those that were given, and no others of this process: what is
  secret there stays there unless it is named.
- Nothing that a command started in its process group outlives it, nor its timeout, nor its cancellation, nor the death
  of this process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

INHERITED = (
    "CONDA_PREFIX",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "PYTHONPATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
)
"""The variables of this process that commands get."""

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for a command that is stopped."""

SPILLED = "pidurable-output-"
"""How the names of files that hold long output begin."""

# The first shell keeps the pipe that this process holds the other end of, and leaves a watcher behind that ends the
# whole group once that end closes, by this process or by its death. Then it becomes the shell that runs the command.
_GUARD = 'exec 3<&0 </dev/null; ((read -r _ <&3; kill -KILL 0) >/dev/null 2>&1 &); exec "$0" -c "$1" 3<&-'


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended: its exit code, negative for a signal; whether it was stopped for its time."""

    exit_code: int
    timed_out: bool = False


@runtime_checkable
class Environment(Protocol):
    """What the tools ask of an environment. ``read`` and ``write`` are called in worker threads."""

    timeout: float
    """The longest that a command may run, in seconds."""

    def at(self, cwd: str | None) -> Environment:
        """The same environment with another working directory; ``None`` keeps it."""
        ...

    def key(self, path: str) -> str:
        """A name of the file that is the same for every path to it. Raises ``PermissionError`` where it may not be."""
        ...

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file from an offset, at most ``size``. Raises ``OSError``."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Replace a file whole, making the directories above it. Raises ``OSError``."""
        ...

    def spill(self) -> tuple[str, IO[bytes]]:
        """A new file for output that is too long, and its path, which ``read`` takes."""
        ...

    async def run(self, command: str, output: Callable[[bytes], None], *, timeout: float | None = None) -> CommandEnd:
        """Run a shell command and hand over its output as it comes, both streams in one.

        Ends the command when it is cancelled, when ``output`` raises, and after ``timeout`` seconds.
        """
        ...


@dataclass(frozen=True)
class LocalEnvironment:
    """Files and processes of this machine.

    ``cwd`` is the working directory, ``root`` the directory that paths must stay in (none when not given), ``timeout``
    the longest that a command may run, in seconds, ``variables`` what commands get beside ``INHERITED``, and
    ``spill_to`` the directory for long output, by default the system's for temporary files. Commands need a POSIX
    system.
    """

    cwd: str | os.PathLike[str] = "."
    root: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    timeout: float = field(default=120.0, kw_only=True)
    variables: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    spill_to: str | os.PathLike[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        root = None if self.root is None else Path(os.path.realpath(self.root))
        cwd = Path(os.path.realpath(self.cwd))
        spill_to = Path(os.path.realpath(self.spill_to or tempfile.gettempdir()))
        if root is not None and not cwd.is_relative_to(root):
            raise PermissionError(f"the working directory {self.cwd} is outside of {root}, to which this is confined")
        for name, value in (("root", root), ("cwd", cwd), ("spill_to", spill_to)):
            object.__setattr__(self, name, value)

    def at(self, cwd: str | None) -> LocalEnvironment:
        """The same with another working directory, relative to this one. Raises ``PermissionError`` outside root."""
        return self if cwd is None else replace(self, cwd=Path(self.cwd, Path(cwd).expanduser()))

    def key(self, path: str) -> str:
        """The real path. Raises ``PermissionError`` outside of the root."""
        return str(self._resolve(path))

    def _resolve(self, path: str, *, reading: bool = False) -> Path:
        real = Path(os.path.realpath(Path(self.cwd, Path(path).expanduser())))
        spilled = reading and real.parent == self.spill_to and real.name.startswith(SPILLED)
        if self.root is not None and not real.is_relative_to(self.root) and not spilled:
            raise PermissionError(f"{path} is outside of {self.root}, to which this environment is confined")
        return real

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a regular file; a pipe or a device, which might never end, is an ``OSError``."""
        real = self._resolve(path, reading=True)
        mode = os.stat(real).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{path} is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is not a regular file")
        with open(real, "rb") as file:
            file.seek(offset)
            return file.read() if size is None else file.read(size)

    def write(self, path: str, data: bytes) -> None:
        """Write beside the file and rename over it: readers see the old content or the new. Keeps the file's mode."""
        real = self._resolve(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        if real.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        beside = real.with_name(f".pidurable-{secrets.token_hex(8)}")
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if real.exists():
                beside.chmod(stat.S_IMODE(real.stat().st_mode))
            beside.replace(real)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def spill(self) -> tuple[str, IO[bytes]]:
        """A new file that only this user may read."""
        descriptor, path = tempfile.mkstemp(prefix=SPILLED, suffix=".log", dir=self.spill_to)
        return path, os.fdopen(descriptor, "wb")

    async def run(self, command: str, output: Callable[[bytes], None], *, timeout: float | None = None) -> CommandEnd:
        """Run a command in ``bash`` where there is one, else ``sh``, in a process group of its own, without input.

        When the command ends, whatever it left running in its group is killed. ``timeout`` cannot exceed the
        environment's. A command that is stopped gets SIGTERM, and after a second SIGKILL.
        """
        if sys.platform == "win32":
            raise OSError("commands need a POSIX system: on Windows, work in WSL")
        limit = self.timeout if timeout is None else min(timeout, self.timeout)
        loop = asyncio.get_running_loop()
        transport, process = await loop.subprocess_exec(
            lambda: _Process(output),
            *("/bin/sh", "-c", _GUARD, _shell(), command),
            cwd=self.cwd,
            env={name: os.environ[name] for name in INHERITED if name in os.environ} | dict(self.variables),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        group = transport.get_pid()
        timed_out = False
        try:
            try:
                async with asyncio.timeout(limit):
                    await process.ended()
            except TimeoutError:
                timed_out = True
        finally:
            try:
                if not process.exited.is_set():
                    _signal(group, signal.SIGTERM)
                    await _at_most(GRACE, process.exited)
                _signal(group, signal.SIGKILL)
                await _at_most(5.0, process.exited)
                await _at_most(GRACE, process.drained)  # a process that left the group may hold the pipe for ever
            finally:
                transport.close()
        if process.error is not None:
            raise process.error
        code = transport.get_returncode()
        return CommandEnd(-signal.SIGKILL if code is None else code, timed_out)


class _Process(asyncio.SubprocessProtocol):
    """A command that runs: hands its output over, and tells when it has ended."""

    def __init__(self, output: Callable[[bytes], None]) -> None:
        self._output = output
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._over = asyncio.Event()
        self.error: BaseException | None = None

    async def ended(self) -> None:
        """Wait until the command exits, or its output cannot be taken."""
        await self._over.wait()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.error is None:
            try:
                self._output(data)
            except BaseException as error:  # raised by run()
                self.error = error
                self._over.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
        self._over.set()


def _shell() -> str:
    return shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin") or "/bin/sh"


async def _at_most(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
