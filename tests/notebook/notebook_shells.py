"""Shells to run cells in: one in this process, and real kernels spoken to as a front end does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.manager import KernelManager
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Shell:
    """An IPython shell in this process."""

    def __init__(self, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = shell
        self.names: dict[str, Any] = shell.user_ns
        self._capsys = capsys

    def run(self, cell: str) -> str:
        """Run a cell that must succeed; what it printed and displayed."""
        self._capsys.readouterr()
        result = self.shell.run_cell(cell, store_history=True)
        shown = self._capsys.readouterr()
        assert result.success, f"{cell!r} failed: {shown.out}{shown.err}"
        return ANSI.sub("", shown.out)

    def fails(self, cell: str) -> str:
        """Run a cell that must fail with one line and no traceback; that line."""
        self._capsys.readouterr()
        result = self.shell.run_cell(cell, store_history=True)
        shown = ANSI.sub("", "".join(self._capsys.readouterr()))
        assert not result.success, f"{cell!r} worked: {shown}"
        assert "Traceback" not in shown
        assert 'File "' not in shown
        assert "Cell In" not in shown
        lines = [line for line in shown.splitlines() if line.strip()]
        assert lines, "nothing was said"
        assert lines[-1].startswith("%durable: ")
        return lines[-1].removeprefix("%durable: ")

    def complete(self, line: str) -> list[str]:
        """What Tab makes of the last word of the line, as kernels ask for it."""
        with provisionalcompleter():
            offered = list(self.shell.Completer.completions(line, len(line)))
        return [(line[: item.start] + item.text).split()[-1] for item in offered]


_made: list[InteractiveShell] = []  # one for all tests: IPython keeps each that was ever made until the process ends


@contextmanager
def in_process_shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """A fresh shell of this process with the extension loaded; every session it opened is closed at the end."""
    from pidurable_nb import notebook

    if not _made:
        config = Config()
        config.HistoryManager.enabled = False
        _made.append(InteractiveShell(config=config))
    shell = _made[0]
    InteractiveShell.clear_instance()
    for kind in type(shell)._walk_mro():
        kind._instance = shell
    shell.reset(new_session=True)
    shell.user_ns["get_ipython"] = shell.get_ipython
    try:
        if "pidurable_nb" in shell.extension_manager.loaded:
            shell.run_line_magic("reload_ext", "pidurable_nb")
        else:
            shell.run_line_magic("load_ext", "pidurable_nb")
        yield Shell(shell, capsys)
    finally:
        while notebook.sessions():
            notebook.close()
        notebook.config(**dict.fromkeys(("model", "format", "once", "interpolation", "wait")))
        InteractiveShell.clear_instance()


@dataclass
class Ran:
    """What became of a cell in a kernel: ``outputs`` as messages, in order."""

    message: str
    status: str = "running"
    outputs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Everything it put out, as plain text."""
        said = []
        for output in self.outputs:
            content = output["content"]
            if output["msg_type"] == "stream":
                said.append(content["text"])
            elif output["msg_type"] == "error":
                said.append("\n".join(content["traceback"]) + "\n")
            elif output["msg_type"] in ("display_data", "execute_result", "update_display_data"):
                said.append(content["data"].get("text/plain", "") + "\n")
        return ANSI.sub("", "".join(said))

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The bundles that it displayed."""
        kinds = ("display_data", "execute_result")
        return [output["content"]["data"] for output in self.outputs if output["msg_type"] in kinds]


class Kernel:
    """A real kernel. ``cell`` names the cell of an execute request, as JupyterLab does; without it, as nbclient."""

    def __init__(self, cwd: Path, *, live: str | None = "0") -> None:
        self.cwd = cwd
        self._live = live
        self.manager: Any = None
        self.client: Any = None
        self._runs: dict[str, Ran] = {}
        self._log = cwd / "kernel.log"

    def start(self) -> Kernel:
        """Begin a life, with the extension loaded."""
        import os

        env = os.environ | {"PYTHONPATH": str(ROOT)}
        env.pop("PIDURABLE_NB_LIVE", None)
        if self._live is not None:
            env["PIDURABLE_NB_LIVE"] = self._live
        self.manager = KernelManager(kernel_name="python3")
        # What it says on its own stderr is about its transport; when a test fails, it is in its folder.
        with self._log.open("ab") as log:
            self.manager.start_kernel(cwd=str(self.cwd), env=env, stderr=log)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("%load_ext pidurable_nb")
        return self

    @property
    def pid(self) -> int:
        """The id of its process."""
        pid: int = self.manager.provisioner.pid
        return pid

    def send(self, code: str, *, cell: str | None = None) -> Ran:
        """Send an execute request and return at once."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        content["stop_on_error"] = False
        metadata = {} if cell is None else {"cellId": cell}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        ran = Ran(message["header"]["msg_id"])
        self._runs[ran.message] = ran
        return ran

    def wait(self, ran: Ran, *, timeout: float = 30.0, has: str | None = None) -> Ran:
        """Wait until it has ended, or until its output has the text."""
        began = time.monotonic()
        while ran.status == "running" or (has is not None and has not in ran.text):
            if has is not None and has in ran.text:
                break
            if has is not None and ran.status != "running" and ran.status != "late":
                raise AssertionError(f"it ended without {has!r}: {ran.text}")
            left = timeout - (time.monotonic() - began)
            assert left > 0, f"not after {timeout} s; so far: {ran.text}"
            self.pump(min(left, 0.2))
        ran.seconds = time.monotonic() - began
        return ran

    def pump(self, seconds: float) -> None:
        """Take one message that comes within so many seconds."""
        from queue import Empty

        try:
            message = self.client.get_iopub_msg(timeout=seconds)
        except Empty:
            return
        ran = self._runs.get(message["parent_header"].get("msg_id", ""))
        if message["msg_type"] == "update_display_data":
            # It belongs to the cell that has the display, whichever cell was running.
            ran = self._displayed(message["content"]["transient"]["display_id"]) or ran
        if ran is None:
            return
        if message["msg_type"] == "status":
            if message["content"]["execution_state"] == "idle":
                ran.status = "error" if any(out["msg_type"] == "error" for out in ran.outputs) else "ok"
        elif message["msg_type"] != "execute_input":
            ran.outputs.append(message)

    def late(self, ran: Ran) -> list[dict[str, Any]]:
        """The outputs of a cell, those too that came after its end."""
        self.pump(0.05)
        return ran.outputs

    def _displayed(self, display: str) -> Ran | None:
        for ran in self._runs.values():
            for output in ran.outputs:
                if output["content"].get("transient", {}).get("display_id") == display:
                    return ran
        return None

    def run(self, code: str, *, cell: str | None = None, timeout: float = 30.0) -> Ran:
        """Run a cell to its end."""
        return self.wait(self.send(code, cell=cell), timeout=timeout)

    def value(self, expression: str) -> Any:
        """The value of an expression, through JSON."""
        import json

        ran = self.run(f"import json; print('VALUE' + json.dumps({expression}))")
        assert ran.status == "ok", ran.text
        return json.loads(ran.text.split("VALUE", 1)[1])

    def interrupt(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """SIGKILL, sent to the process."""
        import os
        import signal

        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def shut_down(self) -> float:
        """Shut it down as a server does; how many seconds its process took to end."""
        began = time.monotonic()
        self.manager.request_shutdown()
        while self.manager.is_alive():
            assert time.monotonic() - began < 20, "it does not end"
            time.sleep(0.02)
        took = time.monotonic() - began
        self.end()
        return took

    def end(self) -> None:
        """Let go of the process, killing what still runs."""
        if self.client is None:
            return
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        else:
            self.manager.cleanup_resources()
        self.client = None
        self._runs.clear()
