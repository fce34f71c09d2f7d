"""Calls on a storage's worker thread, and the way of their results back to the event loop.

The thread is a daemon: it never keeps an interpreter alive. A result whose loop has closed meanwhile is dropped, since
nobody waits for it any more; a traceback from a script that forgot to close would only confuse (engine.md, section 16).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """A queue of calls and the thread that takes them in order. ``stop`` ends the thread after what is queued."""

    def __init__(self, queue: SimpleQueue[Any], thread: threading.Thread, stop: Callable[[], object]) -> None:
        self._queue = queue
        self._thread = thread
        self._stop = stop
        thread.daemon = True

    def start(self) -> None:
        self._thread.start()

    def post(self, call: Callable[[], object]) -> None:
        """Queue a call that must not raise and whose result is not wanted."""
        self._queue.put_nowait((None, _Once(call)))

    def call(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a call; its result or exception arrives in the future."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result = call()
            except BaseException as error:
                deliver(loop, _fail, future, error)
            else:
                deliver(loop, _settle, future, result)

        self.post(job)
        return future

    def stop(self) -> None:
        """End the thread; to be called on it, as the last thing of the last call."""
        self._stop()


class _Once:
    """A call that lets go of what it holds: an idle thread keeps its last call, and must not keep a storage with it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class Abandoned(BaseException):
    """Raised by a call on the worker whose result must never arrive (see ``abandon`` of a backend)."""


def deliver(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Run a callback on a loop from another thread, or not at all when the loop has closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done() and not isinstance(error, Abandoned):
        future.set_exception(error)


def run_jobs(queue: SimpleQueue[Any]) -> None:
    """The body of a plain worker thread: take calls until one is ``None``."""
    while True:
        _, call = queue.get()
        if call is None:
            return
        call()


def plain_worker(name: str) -> Worker:
    """A worker with a thread of its own."""
    queue: SimpleQueue[Any] = SimpleQueue()
    thread = threading.Thread(target=run_jobs, args=(queue,), name=name)
    return Worker(queue, thread, lambda: queue.put_nowait((None, None)))


async def call_once(call: Callable[[], T], name: str) -> T:
    """Run one call on a daemon thread of its own."""
    worker = plain_worker(name)
    worker.start()

    def last() -> T:
        try:
            return call()
        finally:
            worker.stop()

    return await worker.call(last)
