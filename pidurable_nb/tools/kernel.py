"""The tool ``python``: code in the namespace of the notebook's own kernel (engine.md, section 12; notebook.md).

The code runs on the kernel's main thread, as a cell of the user's would: it sees and makes the same variables. What it
prints is committed as it comes; the value of its last line, displays and figures become blocks of the result. A person
sees it where the call is shown, not among the outputs of cells; ``In`` and ``Out`` stay as they are.

IPython is not imported here: where no shell runs, there is nothing to run the code in.
"""

from __future__ import annotations

import _thread
import asyncio
import base64
import contextvars
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from ..agent.context import ToolContext
from ..agent.output import OutputBuffer
from ..agent.tool import OutputLimits, Tool, ToolResult, tool
from ..errors import DurableError, InvocationEnded
from ..messages import ContentBlock, ImageBlock, TextBlock

LOOK = 0.1
"""How often a running call is looked at, in seconds: whether it was stopped, or its time is over."""

AGAIN = 2.0
"""How long code that was interrupted may take to end, in seconds, before it is interrupted again."""

IMAGES = ("image/png", "image/jpeg")
"""The kinds of images that become blocks; other displays are shown as their text."""

TEXTS = ("text/markdown", "text/plain")
"""The forms in which a display is told to the model, the first that there is."""


def python(
    *,
    name: str = "python",
    approval: bool | Callable[[dict[str, Any]], bool] = True,
    timeout: float | None = None,
    limits: OutputLimits | None = None,
) -> Tool:
    """A tool that runs code in the kernel. A person is asked first unless ``approval=False``. Replay is unsafe.

    ``timeout`` bounds one call, in seconds; ``limits`` its text, by default to the last 50 KiB and 2,000 lines.
    Stopping the run, and the time limit, interrupt the code as Jupyter's interrupt button does; code that awaits is
    cancelled. It needs a session that was opened in a notebook: elsewhere a call is an error.
    """
    kept = limits or OutputLimits()

    @tool(name=name, in_kernel=True, approval=approval, output_limits=kept)
    def python(ctx: ToolContext, code: Annotated[str, Field(min_length=1)]) -> Any:
        """Run Python in the user's notebook kernel: its variables are there, and what is defined stays.

        Prints, the value of the last line, displays and figures come back."""
        shell = _shell()
        said = _Said(ctx, kept)
        # Code that awaits has to become a task of the kernel's loop: run here, it would turn the loop from inside of
        # itself, and a cell that comes meanwhile and waits for this call would never let it end.
        awaiting = _awaiting(shell, code)
        return _run(shell, said, ctx, code, timeout) if awaiting is None else _await(shell, said, awaiting, timeout)

    return python


def _run(shell: Any, said: _Said, ctx: ToolContext, code: str, timeout: float | None) -> ToolResult:
    """Run code that does not await."""
    alarm = _Alarm()
    with _captured(shell, said):
        try:
            with _watched(alarm, ctx, timeout):
                ended = shell.run_cell(code, store_history=False)
                error = ended.error_before_exec or ended.error_in_exec
        except KeyboardInterrupt as interrupt:
            error = interrupt
    if isinstance(error, KeyboardInterrupt):
        if alarm.why is None:
            raise KeyboardInterrupt  # a person's: it ends whatever waits in the kernel, too
        said.line(alarm.why)
    return said.result(is_error=error is not None)


def _awaiting(shell: Any, code: str) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """How to run code that awaits on its top level; ``None`` for any other, and where the shell does not await."""
    try:
        cell = shell.transform_cell(code)
    except Exception:  # the shell says it again when it runs the code
        return None
    if not shell.should_run_async(code, transformed_cell=cell):
        return None

    def run() -> Coroutine[Any, Any, Any]:
        coroutine: Coroutine[Any, Any, Any] = shell.run_cell_async(code, store_history=False, transformed_cell=cell)
        return coroutine

    return run


async def _await(
    shell: Any, said: _Said, run: Callable[[], Coroutine[Any, Any, Any]], timeout: float | None
) -> ToolResult:
    """Run code that awaits. The shell takes a cancellation for an error of the code's, as it takes everything."""
    with _captured(shell, said):
        async with asyncio.timeout(timeout) as limit:
            ended = await run()
        shell.events.trigger("post_execute")  # shows figures
    if limit.expired():
        said.line(_too_long(timeout))
    error = ended.error_before_exec or ended.error_in_exec
    return said.result(is_error=error is not None)


def _too_long(timeout: float | None) -> str:
    return f"The code was stopped after {timeout:g} s."


def _shell() -> Any:
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is None:
        raise DurableError(
            "there is no IPython shell in this process to run the code in: open the session in a notebook"
        )
    return shell


class _Said:
    """What the code put out: its text, committed as it comes, and its images."""

    def __init__(self, ctx: ToolContext, limits: OutputLimits) -> None:
        self._ctx = ctx
        self._buffer = OutputBuffer(limits)
        self._images: list[ContentBlock] = []
        self._at_line_start = True

    def text(self, chunk: str) -> None:
        if not chunk:
            return
        self._buffer.append(chunk)
        self._at_line_start = chunk.endswith("\n")
        try:
            self._ctx.output(chunk)
        except InvocationEnded:  # the call was stopped; the code is about to be interrupted
            return

    def line(self, text: str) -> None:
        """Text on lines of its own."""
        self.text(("" if self._at_line_start else "\n") + text + ("" if text.endswith("\n") else "\n"))

    def display(self, data: dict[str, Any]) -> None:
        image = next((kind for kind in IMAGES if isinstance(data.get(kind), str | bytes)), None)
        if image is not None:
            content = data[image]
            encoded = content if isinstance(content, str) else base64.b64encode(content).decode()
            self._images.append(ImageBlock(image, encoded.replace("\n", "")))
            self.line(f"[image {len(self._images)}]")
            return
        text = next((data[kind] for kind in TEXTS if isinstance(data.get(kind), str)), None)
        if text is not None:
            self.line(text)

    def result(self, *, is_error: bool) -> ToolResult:
        if not self._images:
            return ToolResult(is_error=is_error)  # its content is the output
        text = self._buffer.text
        return ToolResult([*([TextBlock(text)] if text else []), *self._images], is_error=is_error)


_saying: contextvars.ContextVar[_Said | None] = contextvars.ContextVar("pidurable_python", default=None)
"""Whose output this is. What other threads put out, and a cell that runs while the code awaits, is not the code's."""


class _Stream:
    """``sys.stdout`` while the code runs; what is not the code's goes where it went before."""

    def __init__(self, said: _Said, before: Any) -> None:
        self._said = said
        self._before = before

    def write(self, text: str) -> int:
        if _saying.get() is not self._said:
            return int(self._before.write(text))
        self._said.text(str(text))
        return len(text)

    def flush(self) -> None:
        self._before.flush()

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)


class _Displays:
    """In place of the shell's publisher."""

    def __init__(self, said: _Said, before: Any) -> None:
        self._said = said
        self._before = before

    def publish(self, data: dict[str, Any], *args: Any, **options: Any) -> None:
        if _saying.get() is not self._said:
            self._before.publish(data, *args, **options)
        else:
            self._said.display(data)

    def clear_output(self, wait: bool = False) -> None:
        if _saying.get() is not self._said:  # what was committed of the code's stays
            self._before.clear_output(wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)


@contextmanager
def _captured(shell: Any, said: _Said) -> Iterator[None]:
    """Have the shell's output handed to ``said``: prints, displays, the value of the last line, tracebacks."""

    trap = shell.display_trap
    before = (sys.stdout, sys.stderr, sys.displayhook, trap.hook, shell.display_pub)
    present = shell.__dict__.get("_showtraceback")
    traceback_before = shell._showtraceback

    def show_value(value: Any) -> None:
        if _saying.get() is not said:
            before[3](value)
        elif value is not None:
            said.display(shell.display_formatter.format(value)[0])

    def show_traceback(kind: Any, error: Any, lines: list[str]) -> None:
        if _saying.get() is not said:
            traceback_before(kind, error, lines)
        else:
            said.line("\n".join(lines))

    token = _saying.set(said)
    sys.stdout, sys.stderr = _Stream(said, before[0]), _Stream(said, before[1])
    sys.displayhook = trap.hook = show_value
    shell.display_pub = _Displays(said, before[4])
    shell.__dict__["_showtraceback"] = show_traceback  # over the class's, which sends it to the front end
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.displayhook, trap.hook, shell.display_pub = before
        if present is None:
            del shell.__dict__["_showtraceback"]
        else:
            shell.__dict__["_showtraceback"] = present
        _saying.reset(token)


class _Alarm:
    """Why running code was interrupted, if it was by us."""

    def __init__(self) -> None:
        self.why: str | None = None


@contextmanager
def _watched(alarm: _Alarm, ctx: ToolContext, timeout: float | None) -> Iterator[None]:
    """Interrupt the block, which runs on the main thread, when its call is stopped or ``timeout`` seconds are over."""
    lock = threading.Lock()
    over = threading.Event()

    def watch() -> None:
        left = float("inf") if timeout is None else timeout
        while not over.wait(min(LOOK, left)):
            left -= LOOK
            if not ctx.cancelled and left > 0:
                continue
            alarm.why = "The call was stopped." if ctx.cancelled else _too_long(timeout)
            break
        while alarm.why is not None and not over.is_set():
            with lock:
                if not over.is_set():
                    _interrupt()
            over.wait(AGAIN)  # one that comes just before a call of the system does not end that call

    threading.Thread(target=watch, name="pidurable-python-alarm", daemon=True).start()
    try:
        yield
    finally:
        while not over.is_set():
            try:
                with lock:
                    over.set()
            except KeyboardInterrupt:  # ours came when the code had just ended; what comes after the block is spared
                if alarm.why is None:
                    over.set()
                    raise


def _interrupt() -> None:
    """Interrupt the main thread, in a call of the system too where there are signals for that."""
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


__all__ = ["python"]
