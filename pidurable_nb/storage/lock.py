"""The owner lock: a storage, by its real path, has one owner (engine.md, section 16).

The lock is the operating system's (``flock``; a locked byte on Windows) on a file of its own beside the storage. It
dies with the process, so a crash leaves nothing that must be cleaned up, and the file says who holds it: pid, host and
since when. It is a file of its own because SQLite uses POSIX locks on the database: closing any descriptor of the
database file would drop them.

The lock is not inherited. A child made by ``os.fork`` shares the parent's ``flock``, so it closes its copy at once;
otherwise it would keep the lock after the parent's death. ``filelock`` is not used for this: it may fall back to a
marker file, which a crash leaves behind, and it does not keep who holds the lock where a refused opening can read it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
import warnings
import weakref
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..errors import SessionInUse, StorageError
from ..faults import reach
from .common import StorageWarning

PATIENCE = 0.25
"""Seconds for which a held lock is tried again: a probe by an observer holds it for a moment."""

_CONTENTION = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}

if sys.platform == "win32":
    import msvcrt

    _LOCKED_BYTE = 1 << 30  # far behind the text, so that others can read who holds the lock

    def _lock(fd: int, *, shared: bool = False) -> None:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int, *, shared: bool = False) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock, as far as its file says."""

    pid: int | None = None
    host: str | None = None
    since: float | None = None


class OwnerLock:
    """The lock of one opened storage. ``acquire`` takes it, ``release`` gives it back and removes its file."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd: int | None = fd
        _held.add(self)

    @classmethod
    def acquire(cls, path: Path, name: str, since: float) -> OwnerLock:
        """Take the lock file at ``path`` for the storage called ``name``, opened at ``since``.

        Raises ``SessionInUse`` when another opening holds it, in this process or another, and ``StorageError`` when
        no lock can be taken there. May wait for ``PATIENCE`` seconds.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                reach("open.lock", name)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            except OSError as error:
                raise StorageError(
                    f"{name} cannot be opened: its lock file {path} cannot be written ({error.strerror}). Nothing was "
                    "changed. A session needs a folder that it may write to."
                ) from error
            try:
                _lock(fd)
                if _is_same_file(fd, path):
                    _write_holder(fd, since)
                    return cls(path, fd)
                os.close(fd)  # its last holder removed it while this call waited for it
                continue
            except OSError as error:
                holder = _read_holder(fd)
                os.close(fd)
                if error.errno not in _CONTENTION:
                    raise StorageError(
                        f"{name} cannot be opened: its folder does not support file locks ({error.strerror}), and "
                        "without them two processes could write to it at once. Move it to a local disk."
                    ) from error
                if time.monotonic() >= deadline:
                    raise _in_use(name, holder) from None
                time.sleep(0.02)

    def release(self) -> None:
        """Give the lock back. Does nothing the second time and in a forked child."""
        fd, self._fd = self._fd, None
        _held.discard(self)
        if fd is None:
            return
        try:
            if sys.platform != "win32":
                # Removed while it is held: who opened the file meanwhile sees that it is gone and makes a new one.
                os.unlink(self._path)
        except OSError:
            pass  # a folder that became read-only keeps a file that means nothing
        finally:
            os.close(fd)

    def _forget(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def holder(path: Path) -> LockHolder | None:
    """Who holds the lock file at ``path`` now, or ``None`` when nobody does. Never keeps an owner out."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        _lock(fd, shared=True)
    except OSError:
        return _read_holder(fd)
    else:
        return None
    finally:
        os.close(fd)


def _in_use(name: str, holder: LockHolder) -> SessionInUse:
    if holder.pid is None:
        who = "another process"
    elif holder.pid == os.getpid() and holder.host == socket.gethostname():
        who = f"this process (pid {holder.pid} on {holder.host})"
    else:
        who = f"process {holder.pid} on {holder.host}"
    since = "" if holder.since is None else f" since {datetime.fromtimestamp(holder.since):%Y-%m-%d %H:%M:%S}"
    return SessionInUse(
        f"{name} is in use by {who}{since}. A session has one owner: close it there first, or follow it from here "
        f"without owning it: observe({name!r}).",
        path=name,
        pid=holder.pid,
        host=holder.host,
        since=holder.since,
    )


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _write_holder(fd: int, since: float) -> None:
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
    try:
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, text.encode())
    except OSError:
        pass  # a full disk: the lock is held all the same, and only a refused opening would read this


def _read_holder(fd: int) -> LockHolder:
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        data = json.loads(os.read(fd, 4096))
        return LockHolder(int(data["pid"]), str(data["host"]), float(data["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return LockHolder()  # just being written


# -- forks -----------------------------------------------------------------------------------------------------------

_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# -- file systems ----------------------------------------------------------------------------------------------------

_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
}


def network_file_system(path: str | Path, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the network file system that holds ``path``, or ``None``; only Linux says which it is."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not rest:
            continue
        point = parts[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind if kind in _NETWORK else None


def warn_about_network(name: str, path: Path, *, reading: bool = False) -> None:
    """Warn when a storage lies where locks cannot be trusted; for an ``open`` method, which its caller is shown.

    ``reading`` is for one that is only followed.
    """
    kind = network_file_system(path)
    if kind is None:
        return
    if reading:
        what = "where what another machine commits may be seen late or not at all. Observe it where its owner works."
    else:
        what = "whose locks cannot be trusted: two machines could write to it at once. Keep sessions on a local disk."
    warnings.warn(f"{name} is on a network file system ({kind}), {what}", StorageWarning, stacklevel=3)
