"""Kernels: a second one to run code in and to crash, and what this one can do to itself.

A *child kernel* is a real Jupyter kernel of this interpreter, started by this process. Code that runs in it shows its
output in the current cell. It has one or more *lives*: ``kill`` sends SIGKILL to its process, ``start`` begins the
next life. Tutorials crash child kernels, so that they behave the same in JupyterLab, VS Code, nbval and CI.

Guarantees:

- ``kill`` reaches the process directly and never asks the kernel to shut down, which would interrupt its cell first.
- A child kernel has this process's directory, import path and environment, and no live front end
  (``PIDURABLE_NB_LIVE=0``). It dies with this process, however that ends.
- Every method has an asynchronous form, named with ``_async``, which runs on the engine thread; the blocking form is
  that one behind the bridge, and keeps the kernel's loop turning.

It needs jupyter_client and ipykernel, which are imported when the first child starts. notebook.md specifies it under
"Kernels".
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import http.client
import http.cookiejar
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, cast

from pidurable_nb.errors import NotebookError
from pidurable_nb.notebook import frontend
from pidurable_nb.notebook.bridge import Bridge, engine

if TYPE_CHECKING:
    from jupyter_client.asynchronous.client import AsyncKernelClient
    from jupyter_client.manager import AsyncKernelManager

__all__ = [
    "ChildKernel",
    "ChildRun",
    "crash_this_kernel",
    "get",
    "kill",
    "restart",
    "restart_this_kernel",
    "running",
    "start",
    "stop",
]

Output = dict[str, Any]
"""One output as a notebook file holds it, with ``transient`` where the kernel sent it, or ``update_display_data``."""

START_SECONDS = 60.0
STOP_SECONDS = 3.0
RESTART_SECONDS = 0.5
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM ends a process as hard
_WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChildRun:
    """What became of one piece of code in a child kernel.

    ``status`` is ``ok``, ``error`` (``error`` says which), ``running`` (its output has what was waited for, or nobody
    waited) or ``killed`` (the process died under it). ``text`` is what it printed and displayed so far, as plain text;
    ``outputs`` are the outputs in the form of a notebook file.
    """

    status: Literal["ok", "error", "running", "killed"]
    text: str = ""
    outputs: tuple[Output, ...] = ()
    error: str | None = None


class _Run:
    """One execute request and what came back for it."""

    def __init__(self, show: Callable[[Output], None] | None, until: str | Callable[[str], bool] | None) -> None:
        self.show = show
        # It belongs to the cell that ran the code, under which ipykernel then shows the output.
        self.context = contextvars.copy_context()
        self.until = until
        self.outputs: list[Output] = []
        self.text = ""
        self.error: str | None = None
        self.replied = False
        self.idle = False
        self.changed = asyncio.Event()
        self.met = False

    @property
    def done(self) -> bool:
        return self.replied and self.idle

    def take(self, output: Output) -> None:
        """Keep an output, show it, and see whether it is what was waited for."""
        before = len(self.text)
        self.text += _plain(output)
        self.outputs.append(output)
        shown: Output | None = output
        if self.until is not None and not self.met:
            end = self._found()
            if end is not None:
                self.met = True
                if output["output_type"] == "stream":
                    # What is shown ends where the text was found, however the pieces arrived.
                    text = output["text"][: max(0, end - before)]
                    shown = output | {"text": text if text.endswith("\n") else text + "\n"}
        elif self.met:
            shown = None
        if self.show is not None and shown is not None:
            self.context.run(self.show, shown)
        self.changed.set()

    def _found(self) -> int | None:
        if callable(self.until):
            return len(self.text) if self.until(self.text) else None
        assert self.until is not None
        at = self.text.find(self.until)
        return None if at < 0 else at + len(self.until)

    def result(self, status: Literal["ok", "error", "running", "killed"]) -> ChildRun:
        return ChildRun(status=status, text=self.text, outputs=tuple(self.outputs), error=self.error)


class _Life:
    """One process of a child kernel, with its connection and what runs in it."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient, pid: int, log: IO[bytes]) -> None:
        self.manager = manager
        self.client = client
        self.pid = pid
        self.log = log
        self.runs: dict[str, _Run] = {}
        self.latest: _Run | None = None
        self.readers: list[asyncio.Task[None]] = []
        self.over = False

    async def ended(self) -> bool:
        return self.over or not await self.manager.is_alive()

    def listen(self) -> None:
        self.readers = [asyncio.create_task(self._read_iopub()), asyncio.create_task(self._read_shell())]

    async def _read_iopub(self) -> None:
        while True:
            message = await self.client.get_iopub_msg(timeout=None)
            run = self.runs.get(message["parent_header"].get("msg_id", ""))
            if run is None:
                continue
            output = _output(message)
            if output is not None:
                run.take(output)
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                run.idle = True
                run.changed.set()

    async def _read_shell(self) -> None:
        while True:
            message = await self.client.get_shell_msg(timeout=None)
            run = self.runs.get(message["parent_header"].get("msg_id", ""))
            if run is None:
                continue
            content = message["content"]
            if content["status"] == "error":
                run.error = f"{content['ename']}: {content['evalue']}"
            elif content["status"] == "aborted":
                run.error = "aborted: an earlier cell failed"
            run.replied = True
            run.changed.set()

    async def dispose(self) -> None:
        """Let go of everything that a process left behind that has ended."""
        self.over = True
        for run in self.runs.values():
            run.changed.set()
        for reader in self.readers:
            reader.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        self.client.stop_channels()
        if self.manager.provisioner is not None:
            await self.manager.provisioner.wait()
        await self.manager.cleanup_resources(restart=False)
        self.log.close()


class ChildKernel:
    """A second kernel: ``start`` it, ``run`` code in it, ``kill`` it, start it again.

    ``cwd`` and ``env`` (added to this process's environment) are for its process. Nothing starts before ``start``.
    """

    def __init__(
        self,
        name: str = "child",
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        bridge: Bridge | None = None,
    ) -> None:
        self.name = name
        self._cwd = cwd
        self._env = dict(env or {})
        self._bridge = bridge or engine()
        self._life: _Life | None = None
        self._lock: asyncio.Lock | None = None
        self._unregister: Callable[[], None] | None = None
        self.lives = 0
        """How many processes it has had."""

    @property
    def pid(self) -> int | None:
        """The id of its process, or ``None`` when it does not run."""
        return None if self._life is None else self._life.pid

    @property
    def running(self) -> bool:
        """Whether it was started, and not killed or stopped since. ``run`` finds out when it died by itself."""
        return self._life is not None

    @property
    def text(self) -> str:
        """What the latest code has printed so far in this life, also after ``run`` returned."""
        return "" if self._life is None or self._life.latest is None else self._life.latest.text

    def __repr__(self) -> str:
        state = f"runs as process {self.pid}" if self.running else "does not run"
        return f"<ChildKernel {self.name!r}: {state}>"

    def start(self) -> ChildKernel:
        """Start its process and wait until it answers; nothing when it runs already. Returns itself.

        Raises ``NotebookError`` when jupyter_client or ipykernel is missing, or the process does not come up.
        """
        return self._bridge.run(self.start_async)

    def run(
        self,
        code: str,
        *,
        until: str | Callable[[str], bool] | None = None,
        timeout: float | None = None,
        wait: bool = True,
        quiet: bool = False,
    ) -> ChildRun:
        """Run the code in it and show its output here, as it arrives, an error with its traceback.

        Waits until the code has ended. With ``until``, returns as soon as the output has that text (or satisfies that
        predicate, called with all of the text) and leaves the code running; what is shown ends with that text. With
        ``wait=False`` returns at once. ``quiet`` shows nothing; the result has it all the same. Interrupting interrupts
        the code.

        Raises ``NotebookError`` when the kernel does not run, or when ``timeout`` seconds pass first; the code goes on.
        """
        return self._bridge.run(
            lambda: self.run_async(code, until=until, timeout=timeout, wait=wait, quiet=quiet),
            on_interrupt=self.interrupt,
        )

    def wait(self, *, timeout: float | None = None) -> ChildRun:
        """Wait until the latest code has ended. Raises ``NotebookError`` as ``run`` does."""
        return self._bridge.run(lambda: self.wait_async(timeout=timeout), on_interrupt=self.interrupt)

    def interrupt(self) -> None:
        """Interrupt what runs in it, as the stop button does."""
        if self._life is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._life.pid, signal.SIGINT)

    def kill(self) -> None:
        """End its process with SIGKILL, now, whatever it does. Nothing when it does not run."""
        self._bridge.run(self.kill_async)

    def restart(self) -> ChildKernel:
        """Kill it and start it again. Returns itself."""
        return self._bridge.run(self.restart_async)

    def stop(self) -> None:
        """Shut it down in good order, so that it closes what it has open; killed when that takes more than 3 s."""
        self._bridge.run(self.stop_async)

    async def start_async(self) -> ChildKernel:
        """``start``, on the engine thread."""
        async with self._one_at_a_time():
            if self._life is not None and await self._life.ended():
                await self._end()
            if self._life is None:
                self._life = await self._launch()
                self.lives += 1
                self._unregister = self._bridge.on_shutdown(self.kill_async)
        return self

    async def run_async(
        self,
        code: str,
        *,
        until: str | Callable[[str], bool] | None = None,
        timeout: float | None = None,
        wait: bool = True,
        quiet: bool = False,
    ) -> ChildRun:
        """``run``, on the engine thread."""
        life = self._alive()
        run = _Run(None if quiet else show_output, until)
        # Otherwise a kernel drops what arrives while it still deals with the error of what ran before.
        life.runs[life.client.execute(code, allow_stdin=False, stop_on_error=False)] = run
        life.latest = run
        if not wait:
            return run.result("running")
        return await self._follow(life, run, timeout)

    async def wait_async(self, *, timeout: float | None = None) -> ChildRun:
        """``wait``, on the engine thread."""
        life = self._alive()
        if life.latest is None:
            raise NotebookError(f"Kernel {self.name!r} has run nothing since it started; there is nothing to wait for.")
        life.latest.until = None
        return await self._follow(life, life.latest, timeout)

    async def kill_async(self) -> None:
        """``kill``, on the engine thread."""
        life = self._life
        if life is not None:
            # Before the lock: a start or a stop that hangs is a reason to kill.
            with contextlib.suppress(ProcessLookupError):
                os.kill(life.pid, _KILL)
        async with self._one_at_a_time():
            if self._life is life:
                await self._end()

    async def restart_async(self) -> ChildKernel:
        """``restart``, on the engine thread."""
        await self.kill_async()
        return await self.start_async()

    async def stop_async(self) -> None:
        """``stop``, on the engine thread."""
        async with self._one_at_a_time():
            life = self._life
            if life is None:
                return
            if life.latest is not None and not life.latest.done:
                self.interrupt()
            await life.manager.request_shutdown(restart=False)
            deadline = time.monotonic() + STOP_SECONDS
            while not await life.ended():
                if time.monotonic() > deadline:
                    os.kill(life.pid, _KILL)
                    break
                await asyncio.sleep(0.05)
            await self._end()

    def _one_at_a_time(self) -> asyncio.Lock:
        # Made on the engine's loop, to which it belongs.
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    def _alive(self) -> _Life:
        if self._life is None:
            raise NotebookError(f"Kernel {self.name!r} does not run; start it first.")
        return self._life

    async def _end(self) -> None:
        life, self._life = self._life, None
        if self._unregister is not None:
            self._unregister()
            self._unregister = None
        if life is not None:
            await life.dispose()

    async def _follow(self, life: _Life, run: _Run, timeout: float | None) -> ChildRun:
        settled = await self._settle(life, run, timeout)
        if settled.status == "killed":
            async with self._one_at_a_time():
                if self._life is life:
                    await self._end()
        return settled

    async def _settle(self, life: _Life, run: _Run, timeout: float | None) -> ChildRun:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if run.until is not None and run.met:
                return run.result("running")
            if run.done:
                if run.until is not None:
                    raise NotebookError(
                        f"The code in kernel {self.name!r} ended{f' with {run.error}' if run.error else ''} and its "
                        f"output never had {_wanted(run.until)}; it was: {_tail(run.text)}"
                    )
                return run.result("error" if run.error else "ok")
            if await life.ended():
                return run.result("killed")
            if deadline is not None and time.monotonic() >= deadline:
                raise NotebookError(
                    f"The code in kernel {self.name!r} {'has not ended' if run.until is None else 'has not printed '}"
                    f"{'' if run.until is None else _wanted(run.until)} after {timeout:g} s and still runs; "
                    f"its output so far: {_tail(run.text)}"
                )
            run.changed.clear()
            # The output wakes this up; looking up is for a process that dies without a word.
            left = 0.1 if deadline is None else max(0.0, min(0.1, deadline - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.changed.wait(), left)

    async def _launch(self) -> _Life:
        try:
            import ipykernel  # noqa: F401  # the process needs it
            from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
            from jupyter_client.manager import AsyncKernelManager
        except ImportError as error:
            raise NotebookError(
                f"A child kernel needs the package {error.name}; install it with: pip install ipykernel"
            ) from error

        class ThisPython(KernelSpecManager):
            # The installed kernels may belong to another environment.
            def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
                argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
                return KernelSpec(argv=argv, display_name=kernel_name, language="python")

        environment = os.environ | {frontend.LIVE_VARIABLE: "0"} | self._env
        # The session name says which notebook a kernel belongs to; this one belongs to none.
        environment.pop("JPY_SESSION_NAME", None)
        manager = AsyncKernelManager(kernel_spec_manager=ThisPython())
        # Its own words to the process's streams would turn up in the middle of a cell.
        log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        client: AsyncKernelClient | None = None
        try:
            await manager.start_kernel(env=environment, cwd=os.fspath(self._cwd or os.getcwd()), stdout=log, stderr=log)
            client = manager.client()
            client.start_channels(hb=False)  # the process itself says whether it lives
            await client.wait_for_ready(timeout=START_SECONDS)
        except BaseException as error:
            if client is not None:
                client.stop_channels()
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)
            log.seek(0)
            said = log.read().decode(errors="replace")
            log.close()
            if isinstance(error, (RuntimeError, OSError)):
                raise NotebookError(f"Kernel {self.name!r} did not start: {error} {_tail(said)}".rstrip()) from error
            raise
        life = _Life(manager, client, cast("Any", manager.provisioner).pid, log)
        life.listen()
        run = _Run(None, None)
        path = f"__import__('sys').path[:] = {sys.path!r}"
        life.runs[client.execute(path, silent=True)] = run
        settled = await self._settle(life, run, START_SECONDS)
        if settled.status != "ok":
            await life.dispose()
            raise NotebookError(f"Kernel {self.name!r} died while it started.")
        return life


_children: dict[str, ChildKernel] = {}
"""The child kernels that were started by name, running or not."""


def start(name: str) -> ChildKernel:
    """Start the child kernel of that name, or return it when it runs. What ``%durable kernel start`` does."""
    return _children.setdefault(name, ChildKernel(name)).start()


def get(name: str) -> ChildKernel:
    """The child kernel of that name. Raises ``NotebookError`` when none was started."""
    try:
        return _children[name]
    except KeyError:
        known = ", ".join(sorted(_children))
        remedy = f"there is {known}" if known else f"start it with `%durable kernel start {name}`"
        raise NotebookError(f"There is no child kernel {name!r}; {remedy}.") from None


def kill(name: str) -> None:
    """Kill the child kernel of that name with SIGKILL. Raises ``NotebookError`` when none was started."""
    get(name).kill()


def restart(name: str) -> ChildKernel:
    """Kill the child kernel of that name and start it again. Raises ``NotebookError`` when none was started."""
    return get(name).restart()


def stop(name: str) -> None:
    """Shut the child kernel of that name down and forget it. Raises ``NotebookError`` when none was started."""
    get(name).stop()
    _children.pop(name, None)


def running() -> tuple[ChildKernel, ...]:
    """The named child kernels that run, by name."""
    return tuple(child for _, child in sorted(_children.items()) if child.running)


def show_output(output: Output) -> None:
    """Show one output of another kernel in the current cell; as plain text outside of IPython."""
    kind = output["output_type"]
    if kind == "stream":
        stream = sys.stderr if output["name"] == "stderr" else sys.stdout
        stream.write(output["text"])
        stream.flush()
    elif kind == "error":
        sys.stderr.write("\n".join(output["traceback"]) + "\n")
        sys.stderr.flush()
    elif kind == "clear_output":
        if frontend.in_ipython():
            from IPython.display import clear_output

            clear_output(output["wait"])  # type: ignore[no-untyped-call]
    else:
        data = {kind: value for kind, value in output["data"].items() if kind != _WIDGET}
        if frontend.in_ipython():
            from IPython.display import publish_display_data

            publish_display_data(  # type: ignore[no-untyped-call]
                data,
                output["metadata"],
                transient=output.get("transient"),
                update=kind == "update_display_data",
            )
        else:
            sys.stdout.write(data.get("text/plain", "") + "\n")
            sys.stdout.flush()


def _output(message: Mapping[str, Any]) -> Output | None:
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        return {"output_type": kind, "name": content["name"], "text": content["text"]}
    if kind == "error":
        return {"output_type": kind} | {name: content[name] for name in ("ename", "evalue", "traceback")}
    if kind == "clear_output":
        return {"output_type": kind, "wait": content["wait"]}
    if kind not in ("display_data", "update_display_data", "execute_result"):
        return None
    output = {"output_type": kind, "data": content["data"], "metadata": content["metadata"]}
    if kind == "execute_result":
        output["execution_count"] = content["execution_count"]
    if content.get("transient"):
        output["transient"] = content["transient"]
    return output


def _plain(output: Output) -> str:
    if output["output_type"] == "stream":
        return cast("str", output["text"])
    if output["output_type"] == "error":
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"])) + "\n"
    text = output.get("data", {}).get("text/plain")
    return f"{text}\n" if text else ""


def _wanted(until: str | Callable[[str], bool]) -> str:
    return repr(until) if isinstance(until, str) else "what was waited for"


def _tail(text: str) -> str:
    text = text.strip()
    return (f"…{text[-300:]}" if len(text) > 300 else text) or "nothing"


def crash_this_kernel() -> NoReturn:
    """End this process with SIGKILL, after what it has printed is on its way. Nothing is closed; that is the point."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # ipykernel hands its messages to another thread and that one to ZeroMQ's; neither says when they are sent.
    time.sleep(0.2)
    os.kill(os.getpid(), _KILL)
    raise AssertionError("unreachable: the process is dead")


def restart_this_kernel(*, timeout: float = 10.0) -> None:
    """Have the Jupyter server that runs this kernel restart it, as its menu does.

    Returns at once; the restart begins half a second later. ``timeout`` in seconds bounds each question to a server.

    Raises ``NotebookError``, one line, outside of a kernel, and where no Jupyter server runs this kernel: VS Code and
    nbclient run theirs themselves. Should the server refuse later, a line under the cell says so.
    """
    server = _find_server(_kernel_id(), timeout)

    def ask() -> None:
        # A cell that is still running when its kernel ends may never be told so, and would look busy for good.
        time.sleep(RESTART_SECONDS)
        try:
            server.post("restart")
        except urllib.error.HTTPError as error:
            print(f"The Jupyter server refused to restart this kernel ({error}); use its menu.", file=sys.stderr)
        except (OSError, http.client.HTTPException):
            # The restart ended the connection, or this process, before there was an answer.
            return

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(ask,), name="pidurable-restart", daemon=True).start()


def _kernel_id() -> str:
    if not frontend.in_kernel():
        raise NotebookError("This is no Jupyter kernel, so there is nothing to restart; start the program again.")
    from ipykernel.connect import get_connection_file

    found = re.fullmatch(r"kernel-(.+)\.json", pathlib.Path(get_connection_file()).name)
    return found[1] if found else ""


class _Server:
    """A running Jupyter server and its kernel of that id, asked over its REST interface."""

    def __init__(self, info: Mapping[str, Any], kernel: str, timeout: float) -> None:
        self._url = info["url"].rstrip("/")
        self._token = info.get("token") or os.environ.get("JUPYTERHUB_API_TOKEN", "")
        self._kernel = f"{self._url}/api/kernels/{kernel}"
        self._timeout = timeout
        self._cookies = http.cookiejar.CookieJar()
        # The server is on this machine; no proxy is asked.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(self._cookies)
        )

    def has_it(self) -> bool:
        try:
            return bool(json.loads(self._send("GET", self._kernel)).get("id"))
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def post(self, action: str) -> None:
        headers = {}
        if not self._token:
            # A server without a token wants the cookie that its pages set, repeated in a header.
            with contextlib.suppress(urllib.error.HTTPError):
                self._send("GET", f"{self._url}/login")
            for cookie in self._cookies:
                if cookie.name == "_xsrf":
                    headers["X-XSRFToken"] = cookie.value or ""
        self._send("POST", f"{self._kernel}/{action}", headers)

    def _send(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
        if method == "POST":
            request.data = b"{}"
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"token {self._token}")
        with self._opener.open(request, timeout=self._timeout) as answer:
            return cast("bytes", answer.read())


def _find_server(kernel: str, timeout: float) -> _Server:
    try:
        from jupyter_server.serverapp import list_running_servers
    except ImportError:
        servers: list[Mapping[str, Any]] = []
    else:
        # The one that started this kernel, before any other.
        servers = sorted(list_running_servers(), key=lambda info: info.get("pid") != os.getppid())
    if kernel:
        for info in servers:
            server = _Server(info, kernel, timeout)
            if server.has_it():
                return server
    raise NotebookError("No Jupyter server on this machine runs this kernel; restart it from the menu of your editor.")
