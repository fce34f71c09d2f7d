"""The engine thread and its bridge; see notebook.md, "Engine thread"."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb.errors import NotebookError, WouldDeadlock
from pidurable_nb.notebook.bridge import Bridge, engine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    made = Bridge(kernel_patience=0.4)
    yield made
    assert made.shutdown(), "something on the engine thread did not end"


def python(code: str, *, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own; what asyncio patches stays there."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=timeout,
        check=False,
    )


def ends_well(code: str, *, timeout: float = 30.0) -> str:
    done = python(code, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def test_a_blocking_call_returns_the_result_of_a_function_and_of_a_coroutine(bridge: Bridge) -> None:
    assert bridge.run(add, 1, 2) == 3
    assert bridge.run(add(3, 4)) == 7


def test_the_work_runs_on_one_daemon_thread_that_starts_with_the_first_call() -> None:
    bridge = Bridge()
    assert bridge._thread is None

    async def where() -> threading.Thread:
        return threading.current_thread()

    thread = bridge.run(where)
    assert thread.daemon
    assert thread is bridge.run(where)
    assert thread is not threading.current_thread()
    assert bridge.shutdown()
    assert not thread.is_alive()


def test_an_error_of_the_work_is_raised_to_the_caller(bridge: Bridge) -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        bridge.run(fail)


def test_sys_exit_in_the_work_does_not_end_the_engine(bridge: Bridge) -> None:
    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        bridge.run(leave)
    assert bridge.run(add, 1, 1) == 2


def test_cancelled_work_is_told_to_the_caller(bridge: Bridge) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(concurrent.futures.CancelledError):
        bridge.run(give_up)


def test_a_blocking_call_on_the_engine_thread_would_deadlock(bridge: Bridge) -> None:
    async def outer() -> None:
        bridge.run(add(1, 2))

    with pytest.raises(WouldDeadlock, match="engine's own thread"):
        bridge.run(outer)


def test_the_context_of_the_caller_reaches_the_work(bridge: Bridge) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("cell 3")

    async def read() -> str:
        return variable.get()

    assert bridge.run(read) == "cell 3"


def test_work_can_be_awaited_from_another_loop_and_its_cancellation_propagates(bridge: Bridge) -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main() -> None:
        assert await bridge.run_async(add, 2, 3) == 5
        task = asyncio.create_task(bridge.run_async(hang))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled.wait(5)


def test_on_the_engine_thread_run_async_simply_awaits(bridge: Bridge) -> None:
    async def outer() -> int:
        return await bridge.run_async(add, 1, 1) + await bridge.run_async(add(1, 1))

    assert bridge.run(outer) == 4


def test_work_is_handed_over_without_waiting(bridge: Bridge) -> None:
    done = threading.Event()

    async def work(value: int) -> None:
        await asyncio.sleep(0)
        assert bridge.here
        assert value == 7
        done.set()

    bridge.call_soon(work, 7)
    assert done.wait(5)


def test_later_work_is_done_once_or_taken_back(bridge: Bridge) -> None:
    done = threading.Event()
    first = bridge.later(0.02, done.set)
    taken: list[int] = []
    second = bridge.later(30.0, taken.append, 1)
    assert second.waiting
    assert second.cancel()
    assert not second.cancel()
    assert done.wait(5)
    assert not first.cancel()
    assert taken == []


def test_a_shutdown_takes_back_what_was_for_later() -> None:
    bridge = Bridge()
    fired: list[int] = []
    handle = bridge.later(0.3, fired.append, 1)
    bridge.begin_shutdown()
    assert not handle.waiting
    assert bridge.shutdown()
    assert fired == []
    with pytest.raises(NotebookError, match="shutting down"):
        bridge.run(add(1, 2))


def test_an_interrupt_ends_the_call_at_once_and_cancels_the_work(bridge: Bridge) -> None:
    cancelled = threading.Event()
    asked: list[str] = []

    async def hang() -> None:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bridge.run(hang, on_interrupt=lambda: asked.append("abort"))
    assert time.monotonic() - began < 2
    assert asked == ["abort"]
    assert cancelled.wait(5)


def test_shielded_work_goes_on_after_an_interrupt(bridge: Bridge) -> None:
    release: list[Callable[[], None]] = []
    finished = threading.Event()

    async def hold() -> None:
        event = asyncio.Event()
        loop = asyncio.get_running_loop()
        release.append(lambda: loop.call_soon_threadsafe(event.set))
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        await event.wait()
        finished.set()

    with pytest.raises(KeyboardInterrupt):
        bridge.run(hold, shield=True)
    assert not finished.is_set()
    release[0]()
    assert finished.wait(5)


def test_functions_run_on_the_main_thread_one_at_a_time_while_a_call_waits(bridge: Bridge) -> None:
    running: list[int] = []
    seen: list[tuple[threading.Thread, int]] = []

    def fn(value: int) -> int:
        running.append(value)
        seen.append((threading.current_thread(), len(running)))
        time.sleep(0.01)
        running.remove(value)
        return value * 2

    async def work() -> list[int]:
        return await asyncio.gather(*(bridge.run_in_kernel(fn, n) for n in range(5)))

    assert bridge.run(work) == [0, 2, 4, 6, 8]
    assert seen == [(threading.main_thread(), 1)] * 5


def test_a_function_on_the_main_thread_may_make_a_blocking_call_that_needs_the_main_thread(bridge: Bridge) -> None:
    async def inner() -> int:
        return int(await bridge.run_in_kernel(lambda: 21))

    async def outer() -> int:
        return int(await bridge.run_in_kernel(lambda: bridge.run(inner) * 2))

    assert bridge.run(outer) == 42


def test_a_coroutine_function_runs_on_a_loop_of_the_main_thread(bridge: Bridge) -> None:
    async def fn() -> threading.Thread:
        await asyncio.sleep(0)
        return threading.current_thread()

    async def work() -> Any:
        return await bridge.run_in_kernel(fn)

    assert bridge.run(work) is threading.main_thread()

    async def main() -> Any:
        return await bridge.run_async(work)

    assert asyncio.run(main()) is threading.main_thread()


def test_the_error_of_a_function_on_the_main_thread_reaches_who_awaits_it(bridge: Bridge) -> None:
    def fail() -> None:
        raise LookupError("in the kernel")

    def leave() -> None:
        sys.exit(1)

    async def work(fn: Callable[[], None]) -> str:
        try:
            await bridge.run_in_kernel(fn)
        except (LookupError, NotebookError) as error:
            return str(error)
        return "no error"

    assert bridge.run(work, fail) == "in the kernel"
    assert "leave ended with SystemExit" in bridge.run(work, leave)


def test_a_function_that_no_main_thread_will_run_is_an_error_not_a_hang(bridge: Bridge) -> None:
    async def work() -> None:
        await bridge.run_in_kernel(print)

    outcome = concurrent.futures.Future[BaseException | None]()

    def other_thread() -> None:
        try:
            bridge.run(work)
        except NotebookError as error:
            outcome.set_result(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=other_thread, daemon=True).start()
    error = outcome.result(10)
    assert isinstance(error, NotebookError)
    assert "must run on the main thread" in str(error)


def test_an_interrupted_function_fails_and_the_call_ends(bridge: Bridge) -> None:
    failures: list[str] = []

    def stubborn() -> None:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.01)

    async def work() -> None:
        try:
            await bridge.run_in_kernel(stubborn)
        except NotebookError as error:
            failures.append(str(error))

    with pytest.raises(KeyboardInterrupt):
        bridge.run(work, shield=True)
    deadline = time.monotonic() + 5
    while not failures and time.monotonic() < deadline:
        time.sleep(0.01)
    assert failures
    assert "interrupted" in failures[0]


def test_threads_behind_to_thread_are_daemons_and_are_reused(bridge: Bridge) -> None:
    async def work() -> list[threading.Thread]:
        first = await asyncio.to_thread(threading.current_thread)
        both = await asyncio.gather(*(asyncio.to_thread(threading.current_thread) for _ in range(2)))
        return [first, *both]

    threads = bridge.run(work)
    assert all(thread.daemon for thread in threads)


def test_more_jobs_than_workers_are_all_done(bridge: Bridge) -> None:
    async def work() -> int:
        def job(n: int) -> int:
            time.sleep(0.001)
            return n

        return sum(await asyncio.gather(*(asyncio.to_thread(job, n) for n in range(300))))

    assert bridge.run(work) == sum(range(300))


def test_what_registered_is_closed_at_shutdown_unless_it_took_that_back() -> None:
    bridge = Bridge()
    closed: list[str] = []

    async def close(name: str) -> None:
        assert bridge.here
        closed.append(name)

    bridge.on_shutdown(lambda: close("a"))
    remove = bridge.on_shutdown(lambda: close("b"))
    remove()
    bridge.run(add, 1, 1)
    assert bridge.shutdown()
    assert bridge.shutdown()
    assert closed == ["a"]


def test_what_does_not_close_in_time_is_abandoned() -> None:
    bridge = Bridge(shutdown_seconds=0.3)
    closed: list[str] = []
    release = threading.Event()

    async def hang() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    async def close() -> None:
        closed.append("quick")

    bridge.on_shutdown(hang)
    bridge.on_shutdown(close)
    bridge.run(add, 1, 1)
    began = time.monotonic()
    assert not bridge.shutdown()
    assert time.monotonic() - began < 1
    assert closed == ["quick"]
    release.set()
    assert bridge._loop is not None
    bridge._loop.call_soon_threadsafe(bridge._loop.stop)
    assert bridge._thread is not None
    bridge._thread.join(5)


def test_there_is_one_engine_in_a_process() -> None:
    assert engine() is engine()


def test_importing_patches_nothing_and_starts_no_thread() -> None:
    assert (
        ends_well("""
        import asyncio, sys, threading
        before = asyncio.Task, asyncio.run
        import pidurable_nb.notebook.bridge, pidurable_nb.notebook.frontend, pidurable_nb.notebook.kernels
        assert (asyncio.Task, asyncio.run) == before
        assert threading.active_count() == 1
        for name in ("nest_asyncio2", "IPython", "jupyter_client", "ipykernel", "zmq"):
            assert name not in sys.modules, name
        print("clean")
        """)
        == "clean\n"
    )


def test_a_blocking_call_keeps_the_running_loop_of_its_thread_turning() -> None:
    """In a process of its own: this is what applies nest_asyncio2."""
    assert (
        ends_well("""
        import asyncio, threading
        from pidurable_nb.notebook.bridge import engine

        async def main():
            ticks = []

            async def tick():
                while True:
                    ticks.append(1)
                    await asyncio.sleep(0.01)

            ticker = asyncio.create_task(tick())
            before = asyncio.Task
            seen = len(ticks)
            assert engine().run(work, 0.3) == "done"
            assert len(ticks) - seen > 5, len(ticks)
            assert asyncio.Task is not before
            assert type(engine().run(kind)) is before
            inside = await engine().run_async(engine().run_in_kernel, threading.current_thread)
            assert inside is threading.main_thread()
            assert engine().run(engine().run_in_kernel, nested) == 4
            ticker.cancel()

        async def kind():
            return asyncio.current_task()

        def nested():
            return engine().run(work, 0.01, 4)

        async def work(delay, value="done"):
            await asyncio.sleep(delay)
            return value

        asyncio.run(main())
        import sys
        assert "nest_asyncio2" in sys.modules
        print("turned")
        """)
        == "turned\n"
    )


def test_a_blocking_call_in_a_turning_loop_is_interrupted_at_once() -> None:
    assert (
        ends_well("""
        import asyncio, os, signal, threading, time
        from pidurable_nb.notebook.bridge import engine

        async def hang():
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(60)

        async def main():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            began = time.monotonic()
            try:
                engine().run(hang, on_interrupt=lambda: print("asked"))
            except KeyboardInterrupt:
                print("interrupted", time.monotonic() - began < 2)
            await asyncio.sleep(0)

        asyncio.run(main())
        """)
        == "asked\ninterrupted True\n"
    )


PRESSES = 1500


@pytest.mark.parametrize("turning", [False, True], ids=["no loop", "a turning loop"])
def test_no_interrupt_is_lost_at_whatever_moment_it_arrives(turning: bool) -> None:
    # Python raises a KeyboardInterrupt in a __del__ as well, where it is ignored, and a signal just before a thread
    # blocks does not wake it. Another process presses at random moments around the start of the wait.
    assert (
        ends_well(f"""
        import asyncio, mmap, os, random, signal, time
        from pidurable_nb.notebook.bridge import engine

        shared, this = mmap.mmap(-1, 4096), os.getpid()
        presses = os.fork()
        if presses == 0:
            random.seed(1)
            while os.getppid() == this:
                if shared[0]:
                    until = time.perf_counter() + random.random() * 0.0004
                    while time.perf_counter() < until:
                        pass
                    shared[0] = 0
                    os.kill(this, signal.SIGINT)
            os._exit(0)

        async def hang():
            await asyncio.sleep(20)

        def wait():
            slowest = 0.0
            for _ in range({PRESSES}):
                began = time.monotonic()
                try:
                    shared[0] = 1
                    engine().run(hang)
                except KeyboardInterrupt:
                    pass
                slowest = max(slowest, time.monotonic() - began)
            print("all heard", slowest < 10)

        async def turn():
            wait()

        if {turning}:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(turn())
            loop.close()
        else:
            wait()
        os.kill(presses, signal.SIGKILL)
        """)
        == "all heard True\n"
    )


def test_a_second_interrupt_is_raised_in_a_callback_that_holds_the_loop() -> None:
    assert (
        ends_well("""
        import asyncio, os, signal, threading, time
        from pidurable_nb.notebook.bridge import engine

        async def press():
            await asyncio.sleep(0.2)
            for _ in range(100):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.2)

        def hold():
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                print("raised here")
                raise

        async def main():
            asyncio.get_running_loop().call_later(0.1, hold)
            began = time.monotonic()
            try:
                engine().run(press)
            except KeyboardInterrupt:
                print("ended", time.monotonic() - began < 20)

        asyncio.run(main())
        """)
        == "raised here\nended True\n"
    )


def test_a_process_that_forgets_everything_exits_at_once() -> None:
    began = time.monotonic()
    ends_well("""
        import asyncio, time
        from pidurable_nb.notebook.bridge import engine

        async def hang():
            await asyncio.to_thread(time.sleep, 60)

        engine().call_soon(hang)
        engine().later(60, print)
        engine().run(asyncio.sleep, 0.1)
        """)
    assert time.monotonic() - began < 3


def test_a_process_that_ends_closes_what_registered() -> None:
    assert (
        ends_well("""
        import asyncio
        from pidurable_nb.notebook.bridge import engine

        async def close():
            await asyncio.sleep(0.05)
            print("closed")

        engine().on_shutdown(close)
        engine().run(asyncio.sleep, 0)
        """)
        == "closed\n"
    )


def test_a_forked_child_has_an_engine_of_its_own_and_the_parent_keeps_its() -> None:
    assert (
        ends_well("""
        import asyncio, os, sys, threading
        from pidurable_nb.notebook.bridge import engine

        async def where():
            return os.getpid(), threading.get_ident()

        async def close():
            print("closed in", "parent" if os.getpid() == parent else "child", flush=True)

        parent = os.getpid()
        engine().on_shutdown(close)
        assert engine().run(where)[0] == parent
        child = os.fork()
        if child == 0:
            assert engine().run(where)[0] == os.getpid()
            grandchild = os.fork()
            if grandchild == 0:
                assert engine().run(where)[0] == os.getpid()
                sys.exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 5
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert engine().run(where)[0] == parent
        """)
        == "closed in parent\n"
    )
