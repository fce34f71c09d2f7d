"""The engine thread of this process, and the bridge over which the kernel's thread talks to it.

Words:

- The *engine thread* is one daemon thread with an event loop of its own. Harnesses live there: storage, models and
  tools go on while a cell computes, and stop neither for the kernel's loop nor for a widget.
- The *bridge* carries calls to it: ``run`` blocks, ``run_async`` is awaited, ``call_soon`` and ``later`` hand work
  over.
- The *kernel thread* is the main thread, which runs the cells. ``run_in_kernel`` brings a function back to it.

Guarantees:

- Importing this module starts no thread and patches nothing. The thread starts with the first call.
- A blocking call made while the caller's event loop runs keeps that loop turning. ``nest_asyncio2`` is applied at the
  first such call. The engine's own loop and tasks are out of its reach.
- A blocking call ends at once when the kernel is interrupted, at whatever moment that is, and one that could end only
  after itself raises ``WouldDeadlock`` (engine.md, 1.8).
- Nothing here keeps the interpreter alive: the thread, and the workers behind ``asyncio.to_thread``, are daemons.
  Whoever registered with ``on_shutdown`` is called when the interpreter ends or the kernel is told to shut down, for
  2.5 seconds all together, and is abandoned then, as a crash would.
- A child made by ``os.fork`` gets an engine thread of its own at its first call (engine.md, section 16).

notebook.md specifies it under "Engine thread".
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import contextvars
import inspect
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from pidurable_nb.errors import NotebookError, WouldDeadlock

__all__ = ["Bridge", "Later", "engine"]

T = TypeVar("T")

SHUTDOWN_SECONDS = 2.5
"""How long all callbacks of ``on_shutdown`` have together. A kernel told to shut down is gone within 3 s."""

KERNEL_PATIENCE = 10.0
"""How long ``run_in_kernel`` waits, outside of a kernel, for a main thread that neither waits here nor runs a loop."""

# A signal that arrives just before a thread blocks does not wake it, and its handler runs only when the thread runs
# Python code again. So a waiting thread looks up now and then.
_LOOK_UP = 0.1

# nest_asyncio2 replaces methods of the loop's class and asyncio.Task. The engine keeps what asyncio came with: the
# reentrant forms are slower, and reentering the engine's loop would be a bug.
_EngineLoop = cast(
    "type[asyncio.SelectorEventLoop]",
    type(
        "_EngineLoop",
        (asyncio.SelectorEventLoop,),
        {
            name: getattr(asyncio.SelectorEventLoop, name)
            for name in ("run_forever", "run_until_complete", "_run_once", "_check_running")
        },
    ),
)
_Task = asyncio.Task


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    return _Task(work, loop=loop, **options)


class Later:
    """Work that the engine thread will do after a delay, unless it is cancelled first. From any thread."""

    def __init__(self, bridge: Bridge, call: Callable[[], None]) -> None:
        self._bridge = bridge
        self._call: Callable[[], None] | None = call
        self._lock = threading.Lock()

    def cancel(self) -> bool:
        """Take the work back. True if it will not be done; false if it was done, or was taken back, before."""
        with self._lock:
            waiting, self._call = self._call is not None, None
        self._bridge._timers.discard(self)
        return waiting

    @property
    def waiting(self) -> bool:
        """Whether the work is still to be done."""
        return self._call is not None

    def _fire(self) -> None:
        with self._lock:
            call, self._call = self._call, None
        self._bridge._timers.discard(self)
        if call is not None:
            call()


class _DaemonExecutor(concurrent.futures.ThreadPoolExecutor):
    """The workers behind ``asyncio.to_thread`` and name lookups on the engine's loop, as daemon threads.

    The workers of its base are joined when the interpreter ends, so that one hanging name lookup would keep a kernel
    alive. asyncio accepts no other class as a loop's default executor.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=32, thread_name_prefix="pidurable-worker")
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._workers = 0
        self._idle = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # it belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._guard:
            self._jobs.put(job)
            if self._idle:
                self._idle -= 1
            elif self._workers < self._max_workers:
                self._workers += 1
                threading.Thread(target=self._work, name="pidurable-worker", daemon=True).start()
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job
            with self._guard:
                # A job that waits for a worker because all were busy takes this one without its becoming idle.
                if self._jobs.qsize() == 0:
                    self._idle += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._guard:
            for _ in range(self._workers):
                self._jobs.put(None)


class _KernelCall:
    """One function that waits for the kernel thread."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.args = args
        # The caller's context decides under which cell ipykernel shows what the function prints.
        self.context = contextvars.copy_context()
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.task: asyncio.Task[Any] | None = None


class Bridge:
    """The engine thread and all ways to reach it. A process needs one: ``engine()``.

    Blocking calls are for the kernel thread and for other threads of the user; the engine thread itself awaits.
    """

    def __init__(self, *, shutdown_seconds: float = SHUTDOWN_SECONDS, kernel_patience: float = KERNEL_PATIENCE) -> None:
        self._shutdown_seconds = shutdown_seconds
        self._kernel_patience = kernel_patience
        self._forget()
        _bridges.add(self)

    def _forget(self) -> None:
        # After a fork the lock may be held by a thread that no longer exists, so nothing is taken over, and the
        # parent's loop is kept but not closed: closing it would take its pipe off the selector that both share.
        if (loop := getattr(self, "_loop", None)) is not None:
            _left_behind.append(loop)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._spawned: set[asyncio.Future[Any]] = set()
        self._timers: set[Later] = set()
        self._closers: dict[object, Callable[[], Awaitable[object]]] = {}
        self._deadline: float | None = None
        self._closed = threading.Event()
        self._clean = True
        self._calls: collections.deque[_KernelCall] = collections.deque()
        self._current: _KernelCall | None = None
        self._waiting = 0
        self._doorbells: list[Callable[[], None]] = []
        self._main_loop: weakref.ref[asyncio.AbstractEventLoop] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The engine's event loop; starts the thread when there is none yet."""
        with self._lock:
            if self._deadline is not None:
                raise _ended()
            if self._loop is None:
                loop = _EngineLoop()
                loop.set_task_factory(_make_task)
                loop.set_default_executor(_DaemonExecutor())
                loop.set_exception_handler(self._report)
                self._loop = loop
                self._thread = threading.Thread(target=self._main, args=(loop,), name="pidurable-engine", daemon=True)
                self._thread.start()
                _hook_kernel()
            return self._loop

    @property
    def here(self) -> bool:
        """Whether the calling thread is the engine thread."""
        return threading.current_thread() is self._thread

    @property
    def shutting_down(self) -> bool:
        """Whether the interpreter ends, or the kernel was told to shut down or to restart."""
        return self._deadline is not None

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
                break
            except (KeyboardInterrupt, SystemExit):
                # asyncio lets these through a loop. They reach whoever waits for the task that raised them, and
                # sys.exit() in a tool must not take the sessions of others with it.
                continue
        loop.close()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # What is abandoned at the end of the process is no news.
        if self._deadline is None:
            loop.default_exception_handler(context)

    def run(
        self,
        work: Callable[..., Awaitable[T]] | Awaitable[T],
        /,
        *args: Any,
        on_interrupt: Callable[[], object] | None = None,
        shield: bool = False,
    ) -> T:
        """Do the work on the engine thread, wait for it and return its result or raise its error.

        ``work`` is a coroutine function, called with ``args`` on the engine thread, or something to await there.
        While the caller waits, its running event loop keeps turning, and functions of ``run_in_kernel`` are served.

        An interrupt (SIGINT) ends the call at once: the work is cancelled, unless ``shield`` lets it go on, then
        ``on_interrupt`` is called on the calling thread, then ``KeyboardInterrupt`` is raised. A callback of the
        caller's loop that is running then is waited for; a second interrupt is raised in it.

        Raises ``WouldDeadlock`` on the engine thread itself (engine.md, 1.8), ``NotebookError`` when the kernel is
        shutting down or when the caller's loop cannot be kept turning, and ``concurrent.futures.CancelledError`` when
        the work was cancelled.
        """
        if self.here:
            _discard(work)
            raise WouldDeadlock(
                "A blocking call was made on the engine's own thread, which would wait for itself. "
                "Await the asynchronous form there."
            )
        loop = _running_loop()
        if loop is not None and not isinstance(loop, asyncio.BaseEventLoop):
            _discard(work)
            raise NotebookError(f"A blocking call cannot keep a {type(loop).__name__} turning; await it instead.")
        interrupts = _Interrupts()
        done: concurrent.futures.Future[T] | None = None
        try:
            with interrupts:
                try:
                    done = self._submit(work, args)
                except BaseException:
                    _discard(work)
                    raise
                self._await_here(loop, done, interrupts)
            if interrupts.seen:
                raise KeyboardInterrupt
            return done.result()
        except concurrent.futures.CancelledError:
            if self.shutting_down:
                raise _ended() from None
            raise
        except KeyboardInterrupt:
            if done is not None and not shield:
                done.cancel()
            if on_interrupt is not None:
                on_interrupt()
            raise

    def _await_here(
        self, loop: asyncio.BaseEventLoop | None, done: concurrent.futures.Future[Any], interrupts: _Interrupts
    ) -> None:
        """Wait until the work is done or the kernel is interrupted."""
        main = threading.current_thread() is threading.main_thread()
        interrupted = self._current
        if main:
            # The function that is running on the kernel thread waits here; another may take its place until it goes on.
            self._current = None
            self._waiting += 1
        try:
            if loop is not None:
                self._wait_turning(loop, done, interrupts, main=main)
            else:
                self._wait(done, interrupts, main=main)
        finally:
            if main:
                self._waiting -= 1
                self._current = interrupted if interrupted is not None and not interrupted.future.done() else None

    def _wait_turning(
        self,
        loop: asyncio.BaseEventLoop,
        done: concurrent.futures.Future[Any],
        interrupts: _Interrupts,
        *,
        main: bool,
    ) -> None:
        _make_reentrant(loop)
        if main:
            self._main_loop = weakref.ref(loop)
        arrived = loop.create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def ring(_: object = None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrive)

        timer: asyncio.TimerHandle | None = None

        def look_up() -> None:
            nonlocal timer
            timer = loop.call_later(_LOOK_UP, look_up)

        look_up()
        done.add_done_callback(ring)
        interrupts.on_press(ring)
        if main and self._calls:
            self._ring()
        try:
            loop.run_until_complete(arrived)
        except RuntimeError:
            # The loop was stopped under this call, which is how ipykernel ends when it is told to shut down.
            if done.done():
                return
            done.cancel()
            raise _ended() from None
        finally:
            if timer is not None:
                timer.cancel()

    def _wait(self, done: concurrent.futures.Future[Any], interrupts: _Interrupts, *, main: bool) -> None:
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()

        def ring(_: object = None) -> None:
            bell.put(None)

        done.add_done_callback(ring)
        interrupts.on_press(ring)
        if main:
            self._doorbells.append(ring)
        try:
            while not done.done() and not interrupts.seen:
                if main:
                    self._pump()
                if done.done():
                    break
                try:
                    bell.get(timeout=_LOOK_UP)
                except queue.Empty:
                    continue
        finally:
            if main:
                self._doorbells.remove(ring)

    async def run_async(self, work: Callable[..., Awaitable[T]] | Awaitable[T], /, *args: Any) -> T:
        """The same, awaited from any event loop. Cancelling the awaiting task cancels the work."""
        if self.here:
            return await (work(*args) if callable(work) else work)
        if threading.current_thread() is threading.main_thread():
            self._main_loop = weakref.ref(asyncio.get_running_loop())
        try:
            done = self._submit(work, args)
        except BaseException:
            _discard(work)
            raise
        return await asyncio.wrap_future(done)

    def _submit(
        self, work: Callable[..., Awaitable[T]] | Awaitable[T], args: tuple[Any, ...]
    ) -> concurrent.futures.Future[T]:
        loop = self.loop
        if inspect.iscoroutine(work):
            return asyncio.run_coroutine_threadsafe(work, loop)

        async def call() -> T:
            return await (work(*args) if callable(work) else work)

        return asyncio.run_coroutine_threadsafe(call(), loop)

    def call_soon(self, fn: Callable[..., object], /, *args: Any) -> None:
        """Hand ``fn(*args)`` to the engine thread and return. ``fn`` may be a coroutine function.

        An error goes to the loop's exception handler, which logs it. Dropped when the kernel is shutting down.
        """
        if self._deadline is None:
            self.loop.call_soon_threadsafe(self._spawn, fn, args)

    def _spawn(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        result = fn(*args)
        if inspect.isawaitable(result):
            # asyncio holds tasks weakly.
            task = asyncio.ensure_future(result)
            self._spawned.add(task)
            task.add_done_callback(self._spawned.discard)

    def later(self, delay: float, fn: Callable[..., object], /, *args: Any) -> Later:
        """Have the engine thread call ``fn(*args)`` after ``delay`` seconds, unless the handle is cancelled first.

        ``fn`` may be a coroutine function. A shutdown or a restart of the kernel cancels what is waiting. So an
        interrupt can ask for an abort one second later that a restart, which interrupts first, takes back.
        """
        loop = self.loop
        handle = Later(self, lambda: self._spawn(fn, args))
        self._timers.add(handle)
        due = time.monotonic() + delay
        loop.call_soon_threadsafe(lambda: loop.call_later(max(0.0, due - time.monotonic()), handle._fire))
        return handle

    async def run_in_kernel(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Call ``fn(*args)`` on the kernel's main thread and return its result; awaited on the engine thread.

        One function at a time, in the order of the calls: between cells, and while a blocking call waits. A function
        that makes a blocking call itself makes room until that ends. A coroutine function runs on the kernel's loop.
        What the function prints appears under the cell of the caller's context. Cancelling takes back a function that
        has not started, and cancels a coroutine.

        In a kernel it may have to wait until the running cell ends. Elsewhere, raises ``NotebookError`` when the main
        thread neither waits in ``run`` nor runs an event loop for ten seconds. An interrupted function raises
        ``NotebookError``, and the blocking call that was waiting ends.
        """
        call = _KernelCall(fn, args)
        self._calls.append(call)
        waiter = asyncio.wrap_future(call.future)
        unreachable_since: float | None = None
        try:
            while not waiter.done():
                if self._ring() or call.future.running():
                    unreachable_since = None
                elif unreachable_since is None:
                    unreachable_since = time.monotonic()
                elif time.monotonic() - unreachable_since >= self._kernel_patience and call.future.cancel():
                    raise NotebookError(
                        f"{_name(fn)} must run on the main thread, which neither waits in a blocking call nor runs an "
                        "event loop; wait for the run there, or declare the tool without in_kernel."
                    )
                await asyncio.wait({waiter}, timeout=min(1.0, self._kernel_patience / 4))
            return waiter.result()
        finally:
            waiter.cancel()
            task = call.task
            if task is not None and not task.done():
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _ring(self) -> bool:
        """Tell the kernel thread that functions wait for it. False when nothing there would hear it."""
        heard = False
        for doorbell in tuple(self._doorbells):
            doorbell()
            heard = True
        loop = _kernel_loop() or (None if self._main_loop is None else self._main_loop())
        if loop is not None and loop.is_running():
            # An empty context: ipykernel runs all cells in one, and a callback made in that would have to wait for
            # the end of the cell.
            loop.call_soon_threadsafe(self._pump, context=contextvars.Context())
            heard = True
        return heard

    def _pump(self) -> None:
        """Run the functions that wait for the kernel thread, which this is."""
        while self._current is None and self._calls:
            call = self._calls.popleft()
            if not call.future.set_running_or_notify_cancel():
                continue
            self._current = call
            try:
                with _interruptible():
                    result = call.context.run(call.fn, *call.args)
                    if inspect.iscoroutine(result):
                        self._pump_coroutine(call, result)
                        continue
            except KeyboardInterrupt:
                self._finish(call, error=NotebookError(f"{_name(call.fn)} was interrupted in the kernel."))
                if self._waiting:
                    raise
                # Between cells nothing would catch it, and it would end the kernel's loop, and so the kernel.
            except BaseException as error:  # it belongs to whoever awaits run_in_kernel
                self._finish(call, error=error)
            else:
                self._finish(call, result)

    def _pump_coroutine(self, call: _KernelCall, work: Coroutine[Any, Any, Any]) -> None:
        loop = _running_loop()
        if loop is None:
            self._finish(call, asyncio.run(work))
            return

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                self._finish(call, error=NotebookError(f"{_name(call.fn)} was cancelled in the kernel."))
            elif (error := task.exception()) is not None:
                self._finish(call, error=error)
            else:
                self._finish(call, task.result())
            self._pump()

        call.task = task = loop.create_task(work, context=call.context)
        task.add_done_callback(done, context=contextvars.Context())

    def _finish(self, call: _KernelCall, result: Any = None, *, error: BaseException | None = None) -> None:
        if self._current is call:
            self._current = None
        if error is None:
            call.future.set_result(result)
        elif isinstance(error, (KeyboardInterrupt, SystemExit, asyncio.CancelledError)):
            # These steer a loop when a task raises them; the engine's loop is not theirs to steer.
            failure = NotebookError(f"{_name(call.fn)} ended with {type(error).__name__} in the kernel.")
            failure.__cause__ = error
            call.future.set_exception(failure)
        else:
            call.future.set_exception(error)

    def on_shutdown(self, close: Callable[[], Awaitable[object]], /) -> Callable[[], None]:
        """Have ``close()`` awaited on the engine thread when the interpreter ends or the kernel is shut down.

        All that are registered run at the same time and have 2.5 s together; what is not done then is abandoned, as a
        crash would. Returns a function that takes the registration back.
        """
        key = object()
        self._closers[key] = close

        def remove() -> None:
            self._closers.pop(key, None)

        return remove

    def begin_shutdown(self) -> None:
        """Start to close, and return. Waiting ``later`` work is cancelled; new calls are refused. From any thread."""
        with self._lock:
            if self._deadline is not None:
                return
            self._deadline = time.monotonic() + self._shutdown_seconds
            loop = self._loop
        for timer in tuple(self._timers):
            timer.cancel()
        if loop is None:
            self._closed.set()
        else:
            loop.call_soon_threadsafe(self._spawn, self._close, ())

    def shutdown(self) -> bool:
        """Close, and wait for it until 2.5 s after it began. True if everything had ended by then.

        The process's own bridge does this when the interpreter ends.
        """
        if self.here:
            raise WouldDeadlock("The engine thread cannot wait for its own end; call shutdown from another thread.")
        self.begin_shutdown()
        assert self._deadline is not None
        self._closed.wait(max(0.0, self._deadline - time.monotonic()))
        if self._clean and self._closed.is_set() and self._thread is not None:
            self._thread.join(max(0.1, self._deadline - time.monotonic()))
        _bridges.discard(self)
        return self._clean and self._closed.is_set()

    async def _close(self) -> None:
        assert self._deadline is not None
        loop = asyncio.get_running_loop()

        async def call(close: Callable[[], Awaitable[object]]) -> None:
            await close()

        closing = {asyncio.create_task(call(close)) for close in self._closers.values()}
        if closing:
            _, late = await asyncio.wait(closing, timeout=max(0.0, self._deadline - time.monotonic()))
            self._clean = not late
        for task in closing:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                loop.default_exception_handler({"message": "closing at shutdown failed", "exception": error})
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=max(0.0, self._deadline - time.monotonic()))
        if all(task.done() for task in rest):
            await loop.shutdown_asyncgens()
            loop.stop()
        else:
            self._clean = False
        self._closed.set()


_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()
_left_behind: list[asyncio.AbstractEventLoop] = []
_engine: Bridge | None = None
_engine_lock = threading.Lock()


def engine() -> Bridge:
    """The bridge of this process; always the same object. Its thread starts with the first call over it."""
    global _engine
    with _engine_lock:
        if _engine is None:
            _engine = Bridge()
            atexit.register(_engine.shutdown)
        return _engine


def _after_fork() -> None:
    global _engine_lock
    _engine_lock = threading.Lock()
    for bridge in tuple(_bridges):
        bridge._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _kernel() -> Any:
    """The ipykernel of this process, or ``None``. Imports nothing."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None)


def _kernel_loop() -> asyncio.AbstractEventLoop | None:
    return getattr(getattr(_kernel(), "io_loop", None), "asyncio_loop", None)


def _hook_kernel() -> None:
    """Begin to close as soon as the kernel is told to shut down.

    That message arrives on the kernel's control thread, while a cell may still be running; ``atexit`` comes only when
    the main thread has left, and may find most of the time used up.
    """
    kernel = _kernel()
    if kernel is None or getattr(kernel.do_shutdown, "_pidurable", False):
        return
    inner = kernel.do_shutdown

    def do_shutdown(restart: bool) -> Any:
        for bridge in tuple(_bridges):
            bridge.begin_shutdown()
        return inner(restart)

    do_shutdown._pidurable = True  # type: ignore[attr-defined]  # marks it as hooked
    kernel.do_shutdown = do_shutdown


class _Interrupts:
    """The interrupt button, while a blocking call of the main thread waits; of no effect on other threads.

    The first press is noted and ends the wait, and a second one raises wherever the thread is, as with
    ``asyncio.Runner``. Raised at once, the first would be lost where Python ignores errors, as in a ``__del__``, and
    could leave the loop that runs inside of another half restored.
    """

    def __init__(self) -> None:
        self.seen = False
        self._ring: Callable[[], None] | None = None
        self._before: Any = None

    def on_press(self, ring: Callable[[], None]) -> None:
        """Have this called at the first press, or now when that has come."""
        self._ring = ring
        if self.seen:
            ring()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):  # the kernel is not idle, and nobody ignores interrupts
                self._before = before
                signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *_: object) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: object) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
        if self._ring is not None:
            self._ring()


class _interruptible:
    """While a function runs here, an interrupt is raised in it: ipykernel ignores SIGINT when it is idle."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        if self._before is not signal.default_int_handler and self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _ended() -> NotebookError:
    return NotebookError("This kernel is shutting down; go on in its next life.")


def _make_reentrant(loop: asyncio.BaseEventLoop) -> None:
    """Let the loop be run again from inside of itself.

    nest_asyncio2 also makes every thread that asks for a loop get a new one, which nobody closes: aiosqlite asks on its
    worker thread, and would leave three open files behind for each storage that closes. That part is taken back.
    """
    import nest_asyncio2

    policy = type(asyncio.get_event_loop_policy())
    before = policy.get_event_loop
    nest_asyncio2.apply(loop, run_close_loop=True)
    nested = policy.get_event_loop
    elsewhere = getattr(before, "_elsewhere", before)

    def get_event_loop(self: asyncio.AbstractEventLoopPolicy) -> asyncio.AbstractEventLoop:
        main = threading.current_thread() is threading.main_thread()
        found: asyncio.AbstractEventLoop = (nested if main else elsewhere)(self)
        return found

    get_event_loop._elsewhere = elsewhere  # type: ignore[attr-defined]  # what was there before the first call
    policy.get_event_loop = get_event_loop  # type: ignore[method-assign]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _discard(work: object) -> None:
    if inspect.iscoroutine(work):
        work.close()


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))
