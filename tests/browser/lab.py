"""A real JupyterLab in a headless Chromium, driven from tests.

``Lab`` is one server on loopback with a home of its own, and one browser. ``Lab.open`` opens a notebook in a fresh
browser context and returns a ``LabNotebook``, which runs cells through the keyboard and the menus, as a person does,
reads what the page shows, and kills the kernel behind it. Every wait has a deadline and says what it waited for.

Playwright's synchronous interface keeps an event loop marked as running in its thread, so a ``Lab`` must be closed
before other tests use asyncio; the ``lab`` fixture lives as long as this package's tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, Playwright, expect, sync_playwright

CHROMIUM_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

WIDE = 1400
NARROW = 700

CULLED = "culled"
"""A kernel spec whose kernels the server culls when they have been idle for seconds with no page open."""

Theme = Literal["light", "dark"]


def find_chromium() -> str | None:
    """The path of a Chromium: ``PIDURABLE_CHROMIUM``, or the one that is installed, or ``None``."""
    named = os.environ.get("PIDURABLE_CHROMIUM")
    if named:
        return named
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def write_notebook(path: Path, cells: Sequence[str]) -> Path:
    """Write a notebook of these code cells; a cell that starts with ``#md`` is Markdown."""
    made = [
        new_markdown_cell(c.removeprefix("#md").strip()) if c.startswith("#md") else new_code_cell(c) for c in cells
    ]
    # Without a kernel spec JupyterLab asks for one in a dialog.
    path.parent.mkdir(parents=True, exist_ok=True)
    spec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": spec}), path)
    return path


def until(what: str, condition: Callable[[], Any], *, timeout: float = 30.0, every: float = 0.1) -> Any:
    """Ask until the answer is true, and return it. Raises ``AssertionError`` that says what never happened."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"within {timeout:g} s it never happened: {what}"
        time.sleep(every)


class Lab:
    """One JupyterLab server over ``home / "notebooks"`` and one Chromium. Use it as a context manager."""

    def __init__(self, home: Path, *, chromium: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.root = home / "notebooks"
        self.root.mkdir(parents=True)
        self.url = ""
        self._chromium = chromium
        self._env = env or {}
        self._settings = home / "settings"
        self._log = home / "server.log"
        self._server: subprocess.Popen[bytes] | None = None
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._contexts: list[BrowserContext] = []

    def __enter__(self) -> Lab:
        try:
            self._configure(
                "@jupyterlab/apputils-extension", "notification", {"fetchNews": "false", "checkForUpdates": False}
            )
            # Cells outside of the viewport stay in the page, where a test can read them.
            self._configure("@jupyterlab/notebook-extension", "tracker", {"windowingMode": "none"})
            self._specify_culled()
            self._start_server()
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(
                executable_path=self._chromium, args=list(CHROMIUM_ARGUMENTS)
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser, then the server with all of its kernels."""
        for context in self._contexts:
            with contextlib.suppress(Error):
                context.close()
        self._contexts.clear()
        if self._browser is not None:
            self._browser.close()
            self._browser = None
        if self._playwright is not None:
            self._playwright.stop()
            self._playwright = None
        if self._server is not None:
            processes = psutil.Process(self._server.pid).children(recursive=True) if self._server.poll() is None else []
            self._server.terminate()
            try:
                self._server.wait(10)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(10)
            self._server = None
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _configure(self, extension: str, plugin: str, values: dict[str, Any]) -> None:
        path = self._settings / extension / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    def _specify_culled(self) -> None:
        # Longer than a page takes to connect to the kernel that was started for it.
        spec = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Culled",
            "language": "python",
            "metadata": {"cull_idle_timeout": 10, "debugger": False},
        }
        path = self.home / "data" / "kernels" / CULLED / "kernel.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(spec))

    def _start_server(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = os.environ | {
            "IPYTHONDIR": str(self.home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(self._settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.home / "workspaces"),
        }
        # These would decide for the kernels what the page should decide.
        for name in ("PIDURABLE_NB_LIVE", "PYTEST_CURRENT_TEST"):
            environment.pop(name, None)
        environment |= self._env
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"),
            *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.root}"),
            *("--IdentityProvider.token=", "--LabApp.extension_manager=readonly"),
            "--JupyterNotebookApp.expose_app_in_browser=True",
            # The culler runs, and culls only what asks for it by its kernel spec.
            *("--MappingKernelManager.cull_idle_timeout=86400", "--MappingKernelManager.cull_interval=1"),
            "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        ]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        def answers() -> bool:
            assert self._server is not None
            assert self._server.poll() is None, f"JupyterLab ended: {self._log.read_text()[-2000:]}"
            with contextlib.suppress(OSError):
                self.get("/api/status")
                return True
            return False

        until("JupyterLab answers", answers, timeout=60)

    def get(self, path: str) -> Any:
        """The JSON that the server's REST interface gives for this path."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """Write a notebook of these code cells into the server's directory."""
        return write_notebook(self.root / name, cells)

    def open(
        self, name: str, *, theme: Theme = "light", width: int = WIDE, height: int = 1000, mode: str = "lab"
    ) -> LabNotebook:
        """Open a notebook of the server's directory in a fresh browser context and wait for its kernel.

        ``mode`` is ``lab``, ``doc`` for the notebook without the rest of JupyterLab around it, or ``notebooks`` for
        Notebook 7.
        """
        assert self._browser is not None
        value = "JupyterLab Dark" if theme == "dark" else "JupyterLab Light"
        self._configure("@jupyterlab/apputils-extension", "themes", {"theme": value})
        context = self._browser.new_context(viewport={"width": width, "height": height})
        self._contexts.append(context)
        notebook = LabNotebook(self, name, context.new_page())
        notebook.load(mode)
        return notebook


class LabNotebook:
    """A notebook that is open in the page. ``page`` is Playwright's, for what has no method here.

    Cells are counted from 0, Markdown cells included.
    """

    def __init__(self, lab: Lab, name: str, page: Page) -> None:
        self.lab = lab
        self.name = name
        self.page = page
        self.console: list[str] = []
        """Errors that scripts in the page logged or did not catch."""
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("console", lambda line: self.console.append(line.text) if line.type == "error" else None)

    def load(self, mode: str = "lab") -> None:
        """Open the page, with a clean workspace, and wait until the notebook's kernel is idle."""
        address = f"notebooks/{self.name}" if mode == "notebooks" else f"{mode}/tree/{self.name}?reset"
        self.page.goto(f"{self.lab.url}/{address}", timeout=60_000)
        expect(self.page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=60_000)
        if mode == "lab":
            self._command("application:set-mode", {"mode": "single-document"})
            self.page.evaluate("jupyterapp.shell.collapseLeft && jupyterapp.shell.collapseLeft()")
        self.wait_ready()

    def reload(self) -> None:
        """Reload the page; the kernel lives on."""
        self.page.reload()
        expect(self.page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=60_000)
        until("the page reconnects to the kernel", lambda: self.kernel_status() in ("idle", "busy"), timeout=60)

    def close(self) -> None:
        """Close the page. The kernel lives on until the server ends."""
        self.page.context.close()

    def kernel_status(self) -> str:
        """``idle``, ``busy``, ``restarting``, ``dead``, … as the page sees it."""
        script = "jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel?.status ?? 'none'"
        return str(self.page.evaluate(script))

    def wait_ready(self, *, timeout: float = 60.0) -> None:
        """Wait until the kernel is connected and idle and no cell waits for it."""
        until("the kernel is idle", lambda: self.kernel_status() == "idle" and not self.busy_cells(), timeout=timeout)

    def busy_cells(self) -> list[int]:
        """The cells that run or wait to run: their prompt is ``[*]``."""
        prompts = self.page.locator(".jp-Notebook .jp-Cell").all_inner_texts()
        return [i for i, text in enumerate(prompts) if text.lstrip().startswith("[*]")]

    def cell(self, index: int) -> Locator:
        """The cell, for Playwright."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """The output area of the cell, for Playwright."""
        return self.cell(index).locator(".jp-Cell-outputWrapper")

    def text(self, index: int) -> str:
        """All text that the cell's outputs show."""
        outputs = self.output(index).locator(".jp-OutputArea-output")
        return "\n".join(text.strip() for text in outputs.all_inner_texts())

    def wait_text(self, index: int, text: str | re.Pattern[str], *, timeout: float = 30.0) -> str:
        """Wait until the cell's outputs show this text, and return all that they show."""
        found = text.search if isinstance(text, re.Pattern) else (lambda shown: text in shown)
        deadline = time.monotonic() + timeout
        while not found(shown := self.text(index)):
            assert time.monotonic() < deadline, f"cell {index} never showed {text!r} within {timeout:g} s: {shown!r}"
            self.page.wait_for_timeout(50)
        return shown

    def set_source(self, index: int, source: str) -> None:
        """Replace the text of the cell."""
        editor = self.cell(index).locator(".cm-content")
        editor.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def run_cell(self, index: int, *, wait: bool = True, timeout: float = 60.0) -> None:
        """Select the cell and press Ctrl+Enter; waits until it is under way, with ``wait`` until it has ended."""
        self.cell(index).locator(".jp-InputPrompt").click()
        with self._runs_something():
            self.page.keyboard.press("Control+Enter")
        if wait:
            self.wait_ran(index, timeout=timeout)

    def wait_ran(self, index: int, *, timeout: float = 60.0) -> None:
        """Wait until the cell has ended: its prompt is a number."""
        prompt = self.cell(index).locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=timeout * 1000)

    @contextlib.contextmanager
    def _runs_something(self, *, timeout: float = 60.0) -> Iterator[None]:
        """Wait, after what the block does, until a cell was seen waiting; it may have ended since.

        A cell that has run before looks as it will look afterwards, and is done before one could look.
        """
        self.page.evaluate(_NOTICE_RUN)
        yield
        self.page.wait_for_function("window.pidurableRan", timeout=timeout * 1000)

    def run_all(self, *, wait: bool = True, timeout: float = 120.0) -> None:
        """Run → Run All Cells."""
        with self._runs_something():
            self.menu("Run", "runmenu:run-all")
        if wait:
            self.wait_ready(timeout=timeout)

    def restart(self, *, timeout: float = 60.0) -> None:
        """Kernel → Restart Kernel…, confirmed; waits until another process answers."""
        before = self.kernel_pid()
        self.menu("Kernel", "kernelmenu:restart")
        self.confirm()
        until("the kernel has another process", lambda: self.kernel_pid() not in (None, before), timeout=timeout)
        until("the new kernel is idle", lambda: self.kernel_status() == "idle", timeout=timeout)

    def restart_and_run_all(self, *, wait: bool = True, timeout: float = 120.0) -> None:
        """Run → Restart Kernel and Run All Cells…, confirmed."""
        before = self.kernel_pid()
        with self._runs_something():
            self.menu("Run", "runmenu:restart-and-run-all")
            self.confirm()
        until("the kernel has another process", lambda: self.kernel_pid() not in (None, before), timeout=timeout)
        if wait:
            self.wait_ready(timeout=timeout)

    def interrupt(self) -> None:
        """Kernel → Interrupt Kernel."""
        self.menu("Kernel", "kernelmenu:interrupt")

    def reconnect(self) -> None:
        """Kernel → Reconnect to Kernel, after something else than the page has restarted it; waits until it is idle.

        Otherwise a cell that runs in the first moments may never look done: its last message comes before the server
        listens again.
        """
        self.menu("Kernel", "kernelmenu:reconnect-to-kernel")
        self.wait_ready()

    def menu(self, menu: str, command: str) -> None:
        """Choose an entry of the main menu by its command. In a narrow window the menu may be folded away."""
        entry = self.page.locator(".lm-MenuBar-item", has_text=re.compile(f"^{menu}$"))
        if not entry.is_visible():
            self._command(command, {})
            return
        entry.click()
        self.page.locator(f'.lm-Menu-item[data-command="{command}"]').first.click()

    def _command(self, command: str, arguments: dict[str, Any]) -> None:
        # Not awaited: a command may wait for a dialog that the next step answers.
        script = "([id, options]) => { jupyterapp.commands.execute(id, options).catch(() => undefined); }"
        self.page.evaluate(script, [command, arguments])

    def confirm(self) -> None:
        """Press the dialog's default button."""
        accept = self.page.locator(".jp-Dialog .jp-mod-accept").first
        accept.click()
        expect(accept).to_be_hidden()

    def kernel_id(self) -> str | None:
        """The id of this notebook's kernel, as the server knows it."""
        for session in self.lab.get("/api/sessions"):
            if session["path"] == self.name:
                return str(session["kernel"]["id"])
        return None

    def kernel_pid(self) -> int | None:
        """The process of this notebook's kernel, or ``None`` when there is none at the moment."""
        kernel = self.kernel_id()
        server = self.lab._server
        if kernel is None or server is None:
            return None
        for process in psutil.Process(server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if any(f"kernel-{kernel}.json" in part for part in process.cmdline()):
                    return int(process.pid)
        return None

    def kill_kernel(self, *, timeout: float = 60.0) -> int:
        """SIGKILL this notebook's kernel; waits until the server has started it again, and returns the new process.

        The page says in a dialog that the kernel died; it is closed.
        """
        pid = self.kernel_pid()
        assert pid is not None, f"{self.name} has no kernel to kill"
        os.kill(pid, signal.SIGKILL)
        dialog = self.page.locator(".jp-Dialog")
        expect(dialog).to_be_visible(timeout=timeout * 1000)
        self.confirm()
        new = until("the server restarts it", lambda: (p := self.kernel_pid()) != pid and p, timeout=timeout)
        # Nobody has asked it anything yet, so it may not have said that it is idle.
        until("the new kernel is there", lambda: self.kernel_status() in ("idle", "starting"), timeout=timeout)
        return int(new)

    def save(self) -> nbformat.NotebookNode:
        """Save with Ctrl+S and return what the file holds then."""
        path = self.lab.root / self.name
        self.page.evaluate("jupyterapp.shell.currentWidget.context.save()")
        until("the page has nothing unsaved", lambda: not self.page.evaluate(_DIRTY))
        return nbformat.read(path, as_version=4)

    def resize(self, width: int, height: int = 1000) -> None:
        """Give the window another size."""
        self.page.set_viewport_size({"width": width, "height": height})

    def theme(self, theme: Theme) -> None:
        """Switch the theme, and wait until the page has it."""
        name = "JupyterLab Dark" if theme == "dark" else "JupyterLab Light"
        self._command("apputils:change-theme", {"theme": name})
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
        # JupyterLab covers itself while it loads the theme.
        expect(self.page.locator("#jupyterlab-splash")).to_be_hidden()

    def screenshot(self, path: Path, *, cell: int | None = None) -> Path:
        """Save a picture of the window, or of one cell."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if cell is None:
            self.page.screenshot(path=path)
        else:
            self.cell(cell).screenshot(path=path)
        return path

    def screenshots(self, directory: Path, stem: str) -> Iterator[Path]:
        """Pictures in both themes, wide and narrow: ``stem-light-1400.png`` and so on."""
        for theme in ("light", "dark"):
            self.theme(theme)
            for width in (WIDE, NARROW):
                self.resize(width)
                yield self.screenshot(directory / f"{stem}-{theme}-{width}.png")


_NOTICE_RUN = """() => {
    window.pidurableRan = false;
    const waits = prompt => prompt.textContent.includes("*");
    const look = () => {
        if ([...document.querySelectorAll(".jp-Notebook .jp-InputPrompt")].some(waits)) {
            window.pidurableRan = true;
        }
    };
    window.pidurableObserver?.disconnect();
    window.pidurableObserver = new MutationObserver(look);
    const options = {subtree: true, childList: true, characterData: true};
    window.pidurableObserver.observe(document.querySelector(".jp-Notebook"), options);
    look();
}"""
_DIRTY = "jupyterapp.shell.currentWidget.context.model.dirty"
