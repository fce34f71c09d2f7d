"""Make something go wrong at a named point of the engine, or of code of yours (docs/testing.md).

Inside ``with Faults() as faults`` every point that is reached is counted, and what was asked for happens there: an
error (``fail``), the death of the process (``kill``), a thread that waits until it is released (``hold``), or anything
else (``call``). The points are listed in ``pidurable_nb.faults.POINTS``. Outside of the block nothing happens.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Self

from ..faults import POINTS, Point, set_hook
from .clock import eventually


class Hold:
    """A thread that waits at a point. Made by ``Faults.hold``."""

    def __init__(self, point: str) -> None:
        self.point = point
        self._reached = threading.Event()
        self._released = threading.Event()

    @property
    def reached(self) -> bool:
        """Whether a thread waits there, or did."""
        return self._reached.is_set()

    async def until_reached(self, timeout: float = 20.0) -> None:
        """Wait until a thread waits there. Raises ``AssertionError`` after ``timeout`` seconds."""
        await eventually(self._reached.is_set, timeout=timeout)

    def release(self) -> None:
        """Let the thread go on. It may be called before it came, and more than once."""
        self._released.set()

    def _wait(self) -> None:
        self._reached.set()
        self._released.wait()


class Faults:
    """``with Faults() as faults``: what is to happen at which points of this process. One at a time.

    ``where`` restricts it to one storage, by its name: the path as it was given to ``open``, ``":memory:"`` for memory.
    ``own`` are names of points that code of yours reaches with ``pidurable_nb.faults.reach``. ``reached`` counts how
    often each point was reached in the block. Leaving the block releases everything that is held.
    """

    def __init__(self, *, where: str | os.PathLike[str] | None = None, own: Iterable[str] = ()) -> None:
        self.reached: Counter[str] = Counter()
        self._where = None if where is None else os.fspath(where).removeprefix("jsonl:")
        self._own = frozenset(own)
        self._armed: dict[str, list[tuple[int, int | None, Callable[[], object]]]] = {}
        self._holds: list[Hold] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        set_hook(self._at)
        return self

    def __exit__(self, *_: object) -> None:
        set_hook(None)
        for hold in self._holds:
            hold.release()

    def call(self, point: str, action: Callable[[], object], *, at: int = 1, times: int | None = 1) -> None:
        """Call ``action`` when the point is reached the ``at``-th time from now, and ``times`` times in a row.

        ``times=None`` goes on to the end of the block. It is called where the point lies, on the thread of the storage
        or on the event loop; what it raises arises there. Raises ``ValueError`` for a point that does not exist.
        """
        self._spec(point)
        if at < 1:
            raise ValueError(f"at={at}: the next time is the first, at=1")
        with self._lock:
            first = self.reached[point] + at
            last = None if times is None else first + times - 1
            self._armed.setdefault(point, []).append((first, last, action))

    def fail(
        self, point: str, error: BaseException | type[BaseException], *, at: int = 1, times: int | None = 1
    ) -> None:
        """Raise an error at the point. Raises ``ValueError`` where nothing can fail any more."""
        if not self._spec(point).can_fail:
            raise ValueError(f"nothing can fail at {point}: {POINTS[point].what}. Kill or hold there")

        def raise_it() -> None:
            raise error

        self.call(point, raise_it, at=at, times=times)

    def kill(self, point: str, *, at: int = 1) -> None:
        """End this process with SIGKILL at the point. For a process that a test started."""
        self.call(point, lambda: os.kill(os.getpid(), signal.SIGKILL), at=at)

    def hold(self, point: str, *, at: int = 1) -> Hold:
        """Have the thread that reaches the point wait until it is released, or the block ends.

        Raises ``ValueError`` for a point on the event loop, which would wait as a whole.
        """
        if not self._spec(point).on_thread:
            raise ValueError(f"{point} lies on the event loop, which would stand still: hold a point on a thread")
        hold = Hold(point)
        self._holds.append(hold)
        self.call(point, hold._wait, at=at)
        return hold

    def _spec(self, point: str) -> Point:
        if point in self._own:
            return Point("a point of the test's own", on_thread=True)
        found = POINTS.get(point)
        if found is None:
            raise ValueError(f"there is no point {point!r}; the points are {', '.join(POINTS)}, and those in own=")
        return found

    def _at(self, point: str, where: str) -> None:
        if self._where is not None and where != self._where and point not in self._own:
            return
        with self._lock:
            self.reached[point] += 1
            count = self.reached[point]
            due = [
                action
                for first, last, action in self._armed.get(point, ())
                if first <= count and (last is None or count <= last)
            ]
        for action in due:
            action()
