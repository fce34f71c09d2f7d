"""The commit queue of backends with a file: *group commit* on a worker thread (engine.md, rule 1.6 and section 16).

A commit is *sealed* where it is called: it gets its sequence and its place in the queue. The worker stores what is
queued in one transaction; each commit keeps its own result. When one of a group fails, those before it are stored, and
it and all called after it fail, since they may rest on it. Nothing of them stays.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, NoReturn, TypeVar

from ..errors import StorageError
from ..faults import reach
from .lock import OwnerLock
from .protocol import BatchItem
from .reading import Opening
from .worker import Abandoned, Worker, deliver

T = TypeVar("T")

GROUP_LIMIT = 256
"""The most commits that share a transaction."""


Settled = Callable[[int | None, StorageError | None], None]
"""What a commit's caller is told with, on its loop: the sequence, or the error."""


class Sealed:
    """One commit on its way: its place, its time, and how its caller is told on which loop."""

    __slots__ = ("at", "life", "loop", "seq", "settled", "top_id")

    loop: asyncio.AbstractEventLoop
    settled: Settled

    def __init__(self, seq: int, at: float, life: int, top_id: int) -> None:
        self.seq = seq
        self.at = at
        self.life = life
        self.top_id = top_id


S = TypeVar("S", bound=Sealed)


class _Outcome(Generic[S]):
    """What became of a group: the commits that are stored, those that failed, and why."""

    __slots__ = ("breaking", "error", "failed", "stored")

    def __init__(self) -> None:
        self.stored: list[S] = []
        self.failed: list[S] = []
        self.error: StorageError | None = None
        self.breaking = False


class QueuedStorage(Opening, Generic[S]):
    """A storage whose commits and reads run on one worker thread, in the order in which they were called.

    It is used from one event loop. A backend adds ``_seal``, which makes a commit ready on the caller's side and raises
    where it cannot be stored at all; ``_transaction``, which stores a group on the worker, all of it or nothing;
    ``_end``, which ends the life and closes the file; and ``_translated``.
    """

    _worker: Worker
    _lock: OwnerLock
    _forget: weakref.finalize[..., Any] | None

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        super().__init__(name)
        self._clock = clock
        self._sealed_seq = 0
        self._queue: deque[S] = deque()
        self._posted = False  # a call on the worker that has not yet begun will take what is queued
        self._several = False  # the last group had several commits: wait for the others of this turn of the loop
        self._broken: StorageError | None = None
        self._abandoned = False
        self._forget = None
        self._storing = threading.Lock()

    def _seal(self, batch: Iterable[BatchItem], seq: int, at: float, life: int, top_id: int) -> S:
        raise NotImplementedError

    def _transaction(self, group: list[S]) -> None:
        raise NotImplementedError

    def _translated(self, error: BaseException) -> BaseException:
        """An error of the backend as one of ours, where it is one that we know."""
        raise NotImplementedError

    async def commit(self, batch: Iterable[BatchItem], *, at: float | None = None) -> int:
        self._guard()  # first: a forked child has no loop that could make a future
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def settled(seq: int | None, error: StorageError | None) -> None:
            if stored.done():
                return
            if error is not None:
                stored.set_exception(error)
            elif seq is not None:
                stored.set_result(seq)

        self.enqueue(batch, settled, at=at)
        return await stored

    def enqueue(self, batch: Iterable[BatchItem], settled: Settled, *, at: float | None = None) -> None:
        """Ask for a commit without waiting for it: ``settled`` is called later, on this loop, in the order of asking.

        Raises at once what makes the batch impossible, as ``commit`` does.
        """
        self._guard()
        reach("store.called", self.name)
        when = self._clock() if at is None else at
        sealed = self._seal(batch, self._sealed_seq + 1, when, self.life.id, self._next_id)
        self._sealed_seq = sealed.seq
        self._next_id = sealed.top_id
        sealed.loop = asyncio.get_running_loop()
        sealed.settled = settled
        self._queue.append(sealed)
        if not self._posted:  # asked after the commit was queued: who takes the queue has said so before
            self._posted = True
            if self._several:
                sealed.loop.call_soon(self._worker.post, self._store_queued)
            else:
                self._worker.post(self._store_queued)

    def _call(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Have a call made on the worker, after the commits that were called before it."""
        if self._queue:
            self._worker.post(self._store_queued)
        return self._worker.call(call)

    def _store_queued(self) -> None:
        """Store what is queued; on the worker."""
        with self._storing:
            self._posted = False
            group: list[S] = []
            while self._queue and len(group) < GROUP_LIMIT:
                group.append(self._queue.popleft())
            if not group or self._abandoned:
                return
            if len(group) == GROUP_LIMIT:
                self._posted = True
                self._worker.post(self._store_queued)
            outcome = self._store(group)
        if outcome.stored:
            reach("store.done", self.name)
        deliver(group[0].loop, self._settle, outcome)

    def _store(self, group: list[S]) -> _Outcome[S]:
        outcome: _Outcome[S] = _Outcome()
        if self._broken is not None:
            outcome.failed, outcome.error = group, self._broken
            return outcome
        try:
            self._transaction(group)
            outcome.stored = group
            return outcome
        except Exception as error:
            if len(group) == 1:
                outcome.failed, outcome.error = group, self._failure(error)
        if outcome.error is None:
            # Which one failed is found by storing them one by one; those before it are good.
            for index, sealed in enumerate(group):
                try:
                    self._transaction([sealed])
                    outcome.stored.append(sealed)
                except Exception as error:
                    outcome.failed, outcome.error = group[index:], self._failure(error)
                    break
            else:
                return outcome
        outcome.breaking = True
        self._broken = outcome.error
        return outcome

    def _failure(self, error: Exception) -> StorageError:
        translated = self._translated(error)
        if isinstance(translated, StorageError):
            if translated is not error:
                translated.__cause__ = error
            return translated
        failure = StorageError(f"{self.name} could not store a commit: {error!r}. Nothing of it was stored.")
        failure.__cause__ = error
        return failure

    def _settle(self, outcome: _Outcome[S]) -> None:
        """Hand out the results of a group; on the loop."""
        self._several = len(outcome.stored) > 1
        for sealed in outcome.stored:
            self.last_seq = sealed.seq
            sealed.settled(sealed.seq, None)
        if outcome.error is None:
            return
        failed = outcome.failed
        if outcome.breaking:
            # What was called meanwhile counted on the failed commit; what is called from now on does not.
            with self._storing:
                failed = failed + list(self._queue)
                self._queue.clear()
                self._broken = None
            self._sealed_seq = self.last_seq
        for index, sealed in enumerate(failed):
            first = outcome.breaking and index == 0
            sealed.settled(None, outcome.error if first else self._after(outcome.error))

    def _after(self, error: StorageError) -> StorageError:
        later = StorageError(f"{self.name}: a commit before this one failed, so this one was not stored: {error}")
        later.__cause__ = error
        return later

    async def _read(self, read: Callable[..., T], *args: Any) -> T:
        self._guard()

        def call() -> T:
            if self._abandoned:
                raise Abandoned
            try:
                reach("read.called", self.name)
                return read(*args)
            except Exception as error:
                raise_translated(error, self._translated(error))

        return await self._call(call)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end(self, ended: Literal["closed", "failed"], ended_at: float) -> None:
        """Write the end of the life and close the file, which is closed even when this raises; on the worker."""
        raise NotImplementedError

    async def close(self, *, ended: Literal["closed", "failed"] = "closed") -> None:
        if self._closed:
            return
        self._guard()
        self._closed = True
        if self._forget is not None:
            self._forget.detach()
        ended_at = self._clock()

        def end() -> None:
            try:
                self._end(ended, ended_at)
                reach("close.done", self.name)
            except Exception as error:
                if ended == "closed":  # a storage that failed may well be unable to write its end
                    raise_translated(error, self._translated(error))
            finally:
                self._lock.release()
                self._worker.stop()

        await self._call(end)

    def abandon(self) -> None:
        """Stop as a crash would: nothing more is stored, no call under way returns, and the owner lock is free.

        For tests and the kill switch: the life stays open, as a dead process leaves it.
        """
        with self._storing:
            if self._abandoned:
                return
            self._abandoned = True
            self._closed = True
            if self._forget is not None:
                self._forget()

    def _when_forgotten(self, close_file: Callable[[], object]) -> None:
        """Have the file closed and the lock released when this object goes away without ``close``."""
        self._forget = weakref.finalize(self, _forgotten, self._worker, self._lock, close_file)
        self._forget.atexit = False


def _forgotten(worker: Worker, lock: OwnerLock, close_file: Callable[[], object]) -> None:
    lock.release()

    def end() -> None:
        close_file()
        worker.stop()

    worker.post(end)


def raise_translated(error: BaseException, translated: BaseException) -> NoReturn:
    """Raise an error in the form that callers know, with the original as its cause when that is another one."""
    if translated is error:
        raise error
    raise translated from error
