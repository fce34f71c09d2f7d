"""Child kernels, what a kernel does to itself, and the bridge inside of a real kernel; see notebook.md, "Kernels"."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from pidurable_nb.errors import NotebookError
from pidurable_nb.notebook import frontend, kernels
from pidurable_nb.notebook.bridge import engine
from pidurable_nb.notebook.commands import run_in_child
from pidurable_nb.notebook.kernels import ChildKernel

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared() -> Iterator[ChildKernel]:
    """A child for the tests that leave it as they found it."""
    child = ChildKernel("shared").start()
    yield child
    child.kill()


@pytest.fixture
def child() -> Iterator[ChildKernel]:
    made = ChildKernel("child").start()
    yield made
    made.kill()


def until(condition: Callable[[], Any], *, timeout: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
    return answer


def gone(pid: int) -> bool:
    """Whether the process has ended, with all of its threads; one that nobody has waited for yet has."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        pass
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_code_runs_there_and_its_output_is_shown_here(shared: ChildKernel, capsys: pytest.CaptureFixture[str]) -> None:
    done = shared.run("import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
    assert done.status == "ok"
    assert done.error is None
    shown = capsys.readouterr()
    assert shown.out == "out\n42\n"
    assert shown.err == "err\n"
    assert "42" in done.text
    assert [o["output_type"] for o in done.outputs].count("execute_result") == 1


def test_an_error_is_shown_with_its_traceback(shared: ChildKernel, capsys: pytest.CaptureFixture[str]) -> None:
    done = shared.run("def inner(): return 1 / 0\ninner()")
    assert done.status == "error"
    assert done.error == "ZeroDivisionError: division by zero"
    assert "inner()" in done.text
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_quiet_shows_nothing_and_returns_all(shared: ChildKernel, capsys: pytest.CaptureFixture[str]) -> None:
    assert shared.run("print('secret')", quiet=True).text == "secret\n"
    assert capsys.readouterr().out == ""


def test_it_has_the_directory_the_import_path_and_no_live_front_end(shared: ChildKernel) -> None:
    code = (
        "import json, os, sys; print(json.dumps([os.getcwd(), sys.path, os.environ['PIDURABLE_NB_LIVE'], sys.prefix]))"
    )
    assert json.loads(shared.run(code, quiet=True).text) == [os.getcwd(), sys.path, "0", sys.prefix]


def test_its_directory_and_environment_can_be_chosen(tmp_path: Path) -> None:
    child = ChildKernel("elsewhere", cwd=tmp_path, env={"COLOUR": "blue"}).start()
    try:
        assert child.run("import os; print(os.getcwd(), os.environ['COLOUR'])", quiet=True).text == f"{tmp_path} blue\n"
    finally:
        child.kill()


STEPS = "import time\nfor step in range({}):\n    print('step', step, flush=True)\n    time.sleep(0.05)"


def test_run_returns_when_the_text_was_printed_and_leaves_the_code_running(
    shared: ChildKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shared.run(STEPS.format(12), until="step 3")
    assert done.status == "running"
    assert capsys.readouterr().out == "step 0\nstep 1\nstep 2\nstep 3\n"
    finished = shared.wait()
    assert finished.status == "ok"
    assert finished.text.endswith("step 11\n")
    assert shared.text == finished.text
    assert capsys.readouterr().out == ""


def test_run_returns_when_a_predicate_of_the_text_holds(shared: ChildKernel) -> None:
    done = shared.run(STEPS.format(12), until=lambda text: text.count("step") >= 4, quiet=True)
    assert done.status == "running"
    assert done.text.count("step") == 4
    assert shared.wait().status == "ok"


def test_code_that_ends_without_the_text_is_an_error_that_shows_what_there_was(shared: ChildKernel) -> None:
    with pytest.raises(NotebookError, match="never had 'never'; it was: something"):
        shared.run("print('something')", until="never", quiet=True)


def test_a_timeout_says_what_was_printed_and_leaves_the_code_running(shared: ChildKernel) -> None:
    with pytest.raises(NotebookError, match=r"has not printed 'step 999' after 0\.3 s and still runs"):
        shared.run(STEPS.format(1000), until="step 999", timeout=0.3, quiet=True)
    with pytest.raises(NotebookError, match=r"has not ended after 0\.1 s"):
        shared.wait(timeout=0.1)
    shared.interrupt()
    assert shared.wait(timeout=10).error == "KeyboardInterrupt: "


def test_code_can_run_in_the_background(shared: ChildKernel) -> None:
    assert shared.run("import time; time.sleep(0.2); print('late')", wait=False, quiet=True).status == "running"
    assert shared.wait(timeout=10).text == "late\n"


def test_interrupting_the_call_interrupts_the_code(shared: ChildKernel) -> None:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        shared.run("import time; time.sleep(60)", quiet=True)
    assert time.monotonic() - began < 3
    assert shared.run("print('usable')", quiet=True, timeout=10).text == "usable\n"


def test_kill_ends_the_process_in_the_middle_and_start_begins_another_life(child: ChildKernel, tmp_path: Path) -> None:
    trace = tmp_path / "interrupted"
    code = f"""
        import atexit, pathlib, time
        atexit.register(pathlib.Path({str(trace)!r}).touch)
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            pathlib.Path({str(trace)!r}).touch()
        """
    assert child.run(textwrap.dedent(code), until="ready", quiet=True).status == "running"
    first = child.pid
    assert first is not None
    child.kill()
    assert gone(first)
    assert not trace.exists()
    assert not child.running
    assert repr(child) == "<ChildKernel 'child': does not run>"
    child.kill()
    with pytest.raises(NotebookError, match="Kernel 'child' does not run; start it first"):
        child.run("1")

    child.start()
    assert child.lives == 2
    assert child.pid not in (None, first)
    assert child.run("atexit", quiet=True).error == "NameError: name 'atexit' is not defined"


def test_a_run_whose_process_is_killed_or_dies_says_so(child: ChildKernel) -> None:
    threading.Timer(0.3, lambda: os.kill(child.pid or 0, signal.SIGKILL)).start()
    done = child.run("import time; print('before', flush=True); time.sleep(60)", quiet=True)
    assert (done.status, done.text) == ("killed", "before\n")
    assert not child.running
    child.start()
    assert child.run("import os; os._exit(3)", quiet=True).status == "killed"


def test_a_cell_under_which_its_kernel_dies_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        run_in_child("mortal --then-kill", "import os; os._exit(3)")
        assert capsys.readouterr().out == "child kernel mortal died; the next cell in it starts it anew\n"
        run_in_child("mortal", "print('anew')")
        assert "anew" in capsys.readouterr().out
    finally:
        kernels.stop("mortal")


def test_starting_a_kernel_that_runs_changes_nothing_and_one_that_died_starts_anew(child: ChildKernel) -> None:
    first = child.pid
    assert child.start().pid == first
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: gone(first))
    assert child.start().pid != first
    second = child.pid
    assert child.restart().pid != second


def test_stop_lets_it_close_in_good_order_also_when_it_is_busy(child: ChildKernel, tmp_path: Path) -> None:
    trace = tmp_path / "closed"
    code = (
        f"import atexit, pathlib, time; atexit.register(pathlib.Path({str(trace)!r}).touch); print('ready', flush=True)"
    )
    child.run(f"{code}; time.sleep(60)", until="ready", quiet=True)
    pid = child.pid
    began = time.monotonic()
    child.stop()
    assert time.monotonic() - began < kernels.STOP_SECONDS
    assert pid is not None
    assert gone(pid)
    assert trace.exists()
    child.stop()


def test_stop_kills_what_does_not_end(child: ChildKernel) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    child.run(code, until="ready", quiet=True)
    pid = child.pid
    child.stop()
    assert pid is not None
    assert gone(pid)


def test_the_asynchronous_forms_run_on_the_engine_thread_side_by_side(shared: ChildKernel, child: ChildKernel) -> None:
    async def both() -> list[str]:
        code = "import time; time.sleep(0.3); print('done')"
        runs = await asyncio.gather(shared.run_async(code, quiet=True), child.run_async(code, quiet=True))
        return [run.text for run in runs]

    assert engine().run(both) == ["done\n", "done\n"]


def test_named_kernels_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotebookError, match=r"no child kernel 'x'; start it with `%durable kernel start x`"):
        kernels.get("x")
    one = kernels.start("one")
    try:
        assert kernels.start("one") is one is kernels.get("one")
        assert kernels.running() == (one,)
        with pytest.raises(NotebookError, match="no child kernel 'x'; there is one"):
            kernels.kill("x")
        kernels.kill("one")
        assert kernels.running() == ()
        assert kernels.restart("one") is one
        assert one.lives == 2
    finally:
        kernels.stop("one")
    with pytest.raises(NotebookError):
        kernels.get("one")


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_it_dies_with_its_parent_however_that_ends(end: str) -> None:
    code = f"""
        import os, signal
        from pidurable_nb.notebook import kernels
        print(kernels.start("orphan").pid, flush=True)
        kernels.get("orphan").run("import time; print('busy', flush=True); time.sleep(600)", until="busy", quiet=True)
        {end}
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, text=True, capture_output=True, timeout=30, check=False
    )
    assert done.stdout.strip().isdigit(), done.stderr
    assert done.stderr == ""
    until(lambda: gone(int(done.stdout)))


def execute(*cells: str) -> nbformat.NotebookNode:
    """Run a notebook with nbclient, which has no live front end."""
    notebook = new_notebook(cells=[new_code_cell(textwrap.dedent(cell).strip()) for cell in cells])
    # What it is must be told by its requests.
    environment = {name: value for name, value in os.environ.items() if name != frontend.LIVE_VARIABLE}
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute(env=environment)
    return notebook


def plain(cell: nbformat.NotebookNode) -> str:
    parts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "".join(part if part.endswith("\n") else part + "\n" for part in parts)


def test_in_a_notebook_output_appears_under_the_cell_that_ran_the_code() -> None:
    first, second, third = execute(
        "from pidurable_nb.notebook import kernels\nchild = kernels.start('child')\nprint('started')",
        """
        code = '''
        from IPython.display import display, Markdown
        print("hello")
        handle = display(Markdown("before"), display_id=True)
        handle.update(Markdown("after"))
        1 / 0
        '''
        print(child.run(code).status)
        """,
        "print(child.run('print(1 + 1)').status)\nchild.stop()",
    ).cells
    assert plain(first) == "started\n"
    kinds = [o.output_type for o in second.outputs]
    assert second.outputs[0].text == "hello\n"
    assert second.outputs[1].data["text/markdown"] == "after"
    assert kinds.count("display_data") == 1
    assert any(o.get("name") == "stderr" and "ZeroDivisionError" in o.text for o in second.outputs)
    assert plain(second).endswith("error\n")
    assert plain(third) == "2\nok\n"


def test_in_a_kernel_a_blocking_call_keeps_its_loop_turning_and_functions_reach_the_main_thread() -> None:
    cells = execute(
        """
        import asyncio, sys, threading, time
        from pidurable_nb.notebook.bridge import engine
        from pidurable_nb.notebook import frontend
        ticks = []
        async def tick():
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.01)
        ticker = asyncio.create_task(tick())
        async def here(delay):
            await asyncio.sleep(delay)
            return await engine().run_in_kernel(threading.current_thread) is threading.main_thread()
        print(frontend.in_kernel(), frontend.live_frontend(), "nest_asyncio2" in sys.modules)
        """,
        "print(await engine().run_async(here, 0.0), 'nest_asyncio2' in sys.modules)",
        "seen = len(ticks)\nprint(engine().run(here, 0.3), len(ticks) - seen > 5, 'nest_asyncio2' in sys.modules)",
        """
        idle = []
        async def between_cells():
            await asyncio.sleep(0.1)
            await engine().run_in_kernel(lambda: idle.append(threading.current_thread() is threading.main_thread()))
        engine().call_soon(between_cells)
        """,
        "await asyncio.sleep(0.3)\nprint(idle)",
    ).cells
    assert [plain(cell) for cell in cells] == ["True False False\n", "True False\n", "True True True\n", "", "[True]\n"]


def test_in_a_kernel_an_interrupt_ends_a_blocking_call_and_a_shutdown_takes_the_abort_back(
    child: ChildKernel, tmp_path: Path
) -> None:
    aborted, closed = tmp_path / "aborted", tmp_path / "closed"
    setup = f"""
        import asyncio, pathlib
        from pidurable_nb.notebook.bridge import engine
        aborted, closed = pathlib.Path({str(aborted)!r}), pathlib.Path({str(closed)!r})
        async def close():
            closed.touch()
        engine().on_shutdown(close)
        async def turn():
            print("waiting", flush=True)
            await asyncio.sleep(60)
        def wait(delay):
            engine().run(turn, on_interrupt=lambda: engine().later(delay, aborted.touch))
        """
    assert child.run(textwrap.dedent(setup), quiet=True).status == "ok"
    child.run("wait(0.2)", until="waiting", quiet=True)
    child.interrupt()
    assert child.wait(timeout=30).error == "KeyboardInterrupt: "
    until(aborted.exists)
    aborted.unlink()

    child.run("wait(1.0)", until="waiting", quiet=True)
    child.stop()
    assert closed.exists()
    assert not aborted.exists()


def test_a_function_between_cells_can_be_interrupted_and_the_kernel_lives_on(child: ChildKernel) -> None:
    setup = """
        import asyncio, time
        from pidurable_nb.notebook.bridge import engine
        state = []
        def slow():
            print("started", flush=True)
            time.sleep(60)
        async def between_cells():
            await asyncio.sleep(0.2)
            try:
                await engine().run_in_kernel(slow)
            except Exception as error:
                state.append(f"{type(error).__name__}: {error}")
        engine().call_soon(between_cells)
        """
    child.run(textwrap.dedent(setup), quiet=True)
    until(lambda: child.text == "started\n")
    child.interrupt()
    done = child.run("while not state:\n    time.sleep(0.01)\nprint(state)", quiet=True, timeout=20)
    assert done.text == "['NotebookError: slow was interrupted in the kernel.']\n"


def test_closing_begins_when_the_kernel_is_told_to_shut_down_though_a_cell_runs_on(
    child: ChildKernel, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    code = f"""
        import asyncio, pathlib, time
        from pidurable_nb.notebook.bridge import engine
        async def close():
            pathlib.Path({str(closed)!r}).touch()
        engine().on_shutdown(close)
        engine().run(asyncio.sleep, 0)
        print("ready", flush=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.05)
        """
    child.run(textwrap.dedent(code), until="ready", quiet=True)
    ask_to_shut_down(child)
    until(closed.exists)
    assert child.pid is not None
    assert not gone(child.pid)


def ask_to_shut_down(child: ChildKernel) -> None:
    """Send the message alone, without the interrupt that Jupyter sends before it."""

    async def ask() -> None:
        assert child._life is not None
        await child._life.manager.request_shutdown(restart=False)

    engine().run(ask)


def test_a_kernel_told_to_shut_down_is_gone_within_three_seconds_though_closing_hangs(child: ChildKernel) -> None:
    setup = """
        import asyncio
        from pidurable_nb.notebook.bridge import engine
        engine().on_shutdown(lambda: asyncio.sleep(600))
        engine().run(asyncio.to_thread, print, "ready")
        engine().call_soon(asyncio.to_thread, __import__("time").sleep, 600)
        """
    child.run(textwrap.dedent(setup), quiet=True)
    pid = child.pid
    assert pid is not None
    began = time.monotonic()
    ask_to_shut_down(child)
    until(lambda: gone(pid), timeout=4)
    assert time.monotonic() - began < 3.0


def test_a_blocking_call_does_not_keep_a_kernel_that_is_told_to_shut_down(child: ChildKernel) -> None:
    code = """
        import asyncio
        from pidurable_nb.notebook.bridge import engine
        async def turn():
            print("waiting", flush=True)
            await asyncio.sleep(600)
        engine().run(turn)
        """
    child.run(textwrap.dedent(code), until="waiting", quiet=True)
    pid = child.pid
    assert pid is not None
    ask_to_shut_down(child)
    until(lambda: gone(pid), timeout=3)


def test_crashing_this_kernel_kills_it_after_its_output_was_sent(child: ChildKernel) -> None:
    code = "from pidurable_nb.notebook import kernels; print('last words', end=''); kernels.crash_this_kernel()"
    done = child.run(code, quiet=True, timeout=20)
    assert (done.status, done.text) == ("killed", "last words")


class Server:
    """A real Jupyter server on loopback, asked over REST."""

    def __init__(self, home: Path, token: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.token = token
        self.runtime = home / "runtime"
        environment = os.environ | {
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
        }
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
            *(f"--port={port}", f"--ServerApp.root_dir={home}", f"--IdentityProvider.token={token}"),
        ]
        self.log = (home / "server.log").open("wb")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL
        )
        until(self.answers, timeout=30)

    def answers(self) -> bool:
        assert self.process.poll() is None
        try:
            self.ask("GET", "/api/status")
        except OSError:
            return False
        return True

    def ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self.url + path, method=method, data=b"{}" if method == "POST" else None)
        request.add_header("Authorization", f"token {self.token}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=20) as answer:
            return json.load(answer)

    def kernel_process(self, kernel: str) -> int | None:
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if any(f"kernel-{kernel}.json" in part for part in process.cmdline()):
                    return int(process.pid)
        return None

    def close(self) -> None:
        rest = psutil.Process(self.process.pid).children(recursive=True)
        for process in (self.process, *rest):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(30)
        self.log.close()


def test_a_kernel_restarts_itself_through_the_server_that_runs_it(tmp_path: Path) -> None:
    server = Server(tmp_path, "s3cret")
    client = BlockingKernelClient()
    try:
        kernel = server.ask("POST", "/api/kernels")["id"]
        client.load_connection_file(str(server.runtime / f"kernel-{kernel}.json"))
        client.start_channels()
        client.wait_for_ready(timeout=30)
        before = until(lambda: server.kernel_process(kernel))
        client.execute("from pidurable_nb.notebook import kernels; kernels.restart_this_kernel()")
        after = until(lambda: (p := server.kernel_process(kernel)) != before and p, timeout=20)
        assert after
        assert gone(before)
    finally:
        client.stop_channels()
        server.close()


def test_a_kernel_that_no_server_runs_says_so_in_one_line(child: ChildKernel, tmp_path: Path) -> None:
    code = f"import os; os.environ['JUPYTER_RUNTIME_DIR'] = {str(tmp_path)!r}\n"
    code += "from pidurable_nb.notebook import kernels; kernels.restart_this_kernel()"
    error = child.run(code, quiet=True).error
    assert error == (
        "NotebookError: No Jupyter server on this machine runs this kernel; restart it from the menu of your editor."
    )
    with pytest.raises(NotebookError, match="This is no Jupyter kernel"):
        kernels.restart_this_kernel()
