"""``%durable``, ``%%durable`` and ``%%durable_kernel`` (notebook.md, the table of commands).

Each subcommand is one function with a parser of its own, a help text and an example. They are thin over ``chat``. A
failure is one line that says what to do, never a traceback of ours.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from ..errors import DurableError, NotebookError
from . import chat as sessions
from . import frontend, kernels
from .chat import Chat, Turn, _display
from .interpolate import interpolate
from .render import mimebundle, to_text
from .view import AnswerView, StatusRow, StatusView, TextItem

__all__ = ["DurableMagics", "MagicError"]


class MagicError(NotebookError):
    """What a failed magic raises: it stops the run of the notebook and shows as its one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31m%durable: {self}\x1b[0m"]


class MagicInterrupted(KeyboardInterrupt):
    """An interrupt of a magic that waited; what it means was said when it came."""

    def _render_traceback_(self) -> list[str]:
        return ["interrupted"]


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises one line and prints help without leaving."""

    def error(self, message: str) -> NoReturn:
        raise NotebookError(f"{message} ({self.format_usage().strip().replace('usage: ', '')})")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _HelpShown


class _HelpShown(Exception):
    pass


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, its parser, and what it does with the session of magics."""

    name: str
    about: str
    example: str
    parser: _Parser
    act: Callable[[DurableMagics, argparse.Namespace], Any]
    raw: bool = False  # the rest of the line is text


COMMANDS: dict[str, Command] = {}


def command(
    name: str, about: str, example: str, *arguments: tuple[Any, dict[str, Any]], raw: bool = False
) -> Callable[[Callable[[DurableMagics, argparse.Namespace], Any]], Callable[..., Any]]:
    """Register a subcommand."""

    def register(act: Callable[[DurableMagics, argparse.Namespace], Any]) -> Callable[..., Any]:
        parser = _Parser(prog=f"%durable {name}", description=about, epilog=f"example:  {example}")
        for names, options in arguments:
            parser.add_argument(*((names,) if isinstance(names, str) else names), **options)
        COMMANDS[name] = Command(name, about, example, parser, act, raw)
        return act

    return register


_TEXT = ("text", {"nargs": "*", "help": "the text; {name} inserts a value of the notebook"})

_CELL = _Parser(
    prog="%%durable",
    description="Ask with the text of the cell; the answer streams below it. Running it again finds what is stored.",
    epilog="example:  %%durable --to answer",
)
_CELL.add_argument("--to", metavar="VAR", help="wait, and bind the answer to a variable")
_CELL.add_argument("--wait", action="store_true", help="keep the cell running until the answer is there")
_busy = _CELL.add_mutually_exclusive_group()
_busy.add_argument("--steer", action="store_true", help="into the busy run, after its present tool round")
_busy.add_argument("--follow-up", action="store_true", help="after the busy run (the default)")
_busy.add_argument("--reject", action="store_true", help="fail when a run is going on")
_CELL.add_argument("--again", action="store_true", help="ask anew although an answer is stored")
_CELL.add_argument("--id", help="name the submission instead of deriving its id from the text")
_CELL.add_argument("--raw", action="store_true", help="insert no values: every brace stays as written")
_CELL.add_argument(
    "--format",
    choices=("rich", "text"),
    default="rich",
    help="how a waiting cell shows the answer: rich (one display), or text that streams to standard output",
)

_KERNEL_CELL = _Parser(
    prog="%%durable_kernel",
    description="Run the cell in a child kernel, which can be killed without harm to this one.",
    epilog='example:  %%durable_kernel lab --until "the fifth word"',
)
_KERNEL_CELL.add_argument("name", help="the child kernel; it is started when it does not run")
_KERNEL_CELL.add_argument("--until", help="return when its output has this text, and leave the code running")
_KERNEL_CELL.add_argument("--timeout", type=float, help="fail when it takes longer, in seconds; the code goes on")
_KERNEL_CELL.add_argument("--quiet", action="store_true", help="show no output")
_KERNEL_CELL.add_argument("--then-kill", action="store_true", help="send it SIGKILL as soon as that is so")


@magics_class
class DurableMagics(Magics):
    """The magics of one shell."""

    @line_cell_magic  # type: ignore[untyped-decorator]
    def durable(self, line: str, cell: str | None = None) -> Any:
        """Ask an agent that survives its kernel.

        ``%%durable`` asks with the text of the cell. ``%durable COMMAND --help`` explains a command.
        """
        return self._guarded(lambda: self._line(line) if cell is None else self._cell(line, cell))

    @cell_magic  # type: ignore[untyped-decorator]
    def durable_kernel(self, line: str, cell: str) -> None:
        """Run the cell in a child kernel: ``%%durable_kernel NAME [--until TEXT] [--timeout S] [--then-kill]``."""
        self._guarded(lambda: self._run_in_child(line, cell))

    def _guarded(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except _HelpShown:
            return None
        except MagicError:
            raise
        except (DurableError, ValueError, TypeError, OSError) as error:
            raise MagicError(_one_line(error)) from None
        except KeyboardInterrupt:
            raise MagicInterrupted from None

    # -- %durable ----------------------------------------------------------------------------------------------------

    def _line(self, line: str) -> Any:
        name, _, rest = line.strip().partition(" ")
        if name in ("", "--help", "-h", "help"):
            print(help_text())
            return None
        found = COMMANDS.get(name)
        if found is None:
            close = [known for known in COMMANDS if known.startswith(name[:2])]
            hint = f"did you mean {' or '.join(close)}?" if close else "%durable lists the commands."
            raise NotebookError(f"there is no command {name!r}; {hint}")
        if found.raw:
            if rest.strip() in ("--help", "-h"):
                found.parser.print_help()
                return None
            return found.act(self, argparse.Namespace(text=self._interpolated(rest.strip())))
        return found.act(self, found.parser.parse_args(_split(rest)))

    def _interpolated(self, text: str) -> str:
        return interpolate(text, self.shell.user_ns) if self.shell is not None else text

    # -- %%durable ---------------------------------------------------------------------------------------------------

    def _cell(self, line: str, cell: str) -> None:
        options = _CELL.parse_args(_split(line))
        text = cell if options.raw else self._interpolated(cell)
        self.ask(text, options)

    def ask(self, text: str, options: argparse.Namespace) -> None:
        """Submit a cell's text and show its answer."""
        text = text.strip()
        if not text:
            raise NotebookError("the cell is empty: write what to ask below the %%durable line")
        if options.to is not None and not options.to.isidentifier():
            raise NotebookError(f"--to {options.to!r} is not a name for a variable")
        chat = sessions.current()
        when_busy = "steer" if options.steer else "reject" if options.reject else "follow_up"
        turn = chat.submit_cell(
            text, cell=frontend.cell_id(), when_busy=when_busy, again=options.again, id=options.id
        )
        live = frontend.live_frontend()
        waits = options.wait or options.to is not None or not live
        if live:
            turn.show()
        if not waits:
            return
        streamed = _Streamed(turn) if options.format == "text" and not live else None
        try:
            chat.wait_for_cell(turn)
        finally:
            if streamed is not None:
                streamed.end()
        if not turn.view.settled:
            print(f"the cell stops waiting: {_why_parked(turn.view)}")
        elif options.to is not None and self.shell is not None:
            self.shell.user_ns[options.to] = chat._wait_for(turn)
        if not live and (streamed is None or not turn.view.settled):
            turn.show()
        if turn.view.status == "unanswered":
            raise NotebookError(turn.view.problem or "there is no answer")

    # -- %%durable_kernel --------------------------------------------------------------------------------------------

    def _run_in_child(self, line: str, cell: str) -> None:
        options = _KERNEL_CELL.parse_args(_split(line))
        child = kernels.start(options.name)
        child.run(cell, until=options.until, timeout=options.timeout, quiet=options.quiet)
        if options.then_kill:
            pid = child.pid
            child.kill()
            print(f"SIGKILL: child kernel {options.name} is dead", end="\n" if pid else "")


class _Streamed:
    """An answer as plain text on standard output, piece by piece as it is committed."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._printed: dict[str, int] = {}
        self._last: str | None = None
        self._open = False
        turn._listeners.append(self._show)
        self._show(turn.view)

    def _show(self, view: AnswerView) -> None:
        for item in view.items:
            if isinstance(item, TextItem) and item.state in ("streaming", "done"):
                done = self._printed.get(item.key, 0)
                if len(item.text) > done:
                    if self._last not in (None, item.key):
                        print()
                    print(item.text[done:], end="", flush=True)
                    self._printed[item.key] = len(item.text)
                    self._last, self._open = item.key, not item.text.endswith("\n")

    def end(self) -> None:
        self._turn._listeners.remove(self._show)
        self._show(self._turn.view)
        if self._open:
            print(flush=True)


def _why_parked(view: AnswerView) -> str:
    if view.status == "retrying":
        return f"the answer is tried again later ({view.retry_error})"
    if view.status == "deferred":
        return "the provider answers later"
    return f"the session waits {view.reason or 'for a person'}"


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise NotebookError(f"the line cannot be read: {error}") from None


def _one_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return " ".join(text.split())


def help_text() -> str:
    """Every command with what it does, and an example each."""
    width = max(len(name) for name in COMMANDS)
    lines = ["%%durable [--to VAR] [--wait] [--again] …   ask with the text of the cell", ""]
    for name in sorted(COMMANDS):
        found = COMMANDS[name]
        lines.append(f"%durable {name:<{width}}  {found.about}")
        lines.append(f"         {'':<{width}}  {found.example}")
    lines += ["", "%%durable_kernel NAME   run the cell in a child kernel", "", "%durable COMMAND --help explains one."]
    return "\n".join(lines)


def complete(shell: Any, event: Any) -> list[str]:
    """Tab completion of commands, their options and the names they take."""
    words = event.line[: len(event.line)].split()
    fresh = event.line.endswith(" ")
    if len(words) <= 1 or (len(words) == 2 and not fresh):
        return sorted(COMMANDS)
    found = COMMANDS.get(words[1])
    if found is None:
        return []
    options = [name for action in found.parser._actions for name in action.option_strings if name.startswith("--")]
    if words[1] == "use":
        options += [chat.name for chat in sessions.sessions()]
    if words[1] == "kernel":
        options += ["start", "kill", "restart", "stop", *(child.name for child in kernels.running())]
    if words[1] == "install":
        options += [name for name, value in shell.user_ns.items() if not name.startswith("_") and callable(value)]
    if words[1] in ("open", "model"):
        options += ["local:smollm2", "scripted:demo", "openai:", "anthropic:"]
    return options


# -- commands --------------------------------------------------------------------------------------------------------


@command(
    "open",
    "open or create a session and show what was recovered",
    "%durable open chat.sqlite --model local:smollm2",
    ("path", {"help": "a file; jsonl:DIR for a journal; :memory: for none"}),
    ("--model", {"help": "provider:name, such as local:smollm2 or openai:gpt-5-mini"}),
    ("--instructions", {"help": "what the model is told first"}),
    ("--paused", {"action": "store_true", "help": "start nothing before %durable resume"}),
    (("--as",), {"dest": "name", "metavar": "NAME", "help": "a name for %durable use"}),
)
def _open(magics: DurableMagics, options: argparse.Namespace) -> Chat:
    return sessions.open(
        options.path,
        model=options.model,
        instructions=options.instructions,
        paused=options.paused,
        name=options.name,
        show=True,
    )


@command(
    "close",
    "close the session; what was running goes on at the next opening",
    "%durable close",
    ("name", {"nargs": "?", "help": "by default the current one"}),
)
def _close(magics: DurableMagics, options: argparse.Namespace) -> None:
    chat = sessions.close(options.name)
    print(f"closed {chat.path}")


@command("status", "what is open, who owns it, what runs", "%durable status")
def _status(magics: DurableMagics, options: argparse.Namespace) -> None:
    shown = sessions.sessions()
    if not shown:
        _show(StatusView(title="no session is open", state="closed", rows=(StatusRow(name="next", value="%durable open chat.sqlite"),)))
    for chat in shown:
        _show(chat.status())


@command("use", "switch to another open session", "%durable use chat", ("name", {"help": "its name"}))
def _use(magics: DurableMagics, options: argparse.Namespace) -> None:
    print(f"using {sessions.use(options.name).path}")


@command("resume", "start what waits, also without tools that are missing", "%durable resume")
def _resume(magics: DurableMagics, options: argparse.Namespace) -> None:
    sessions.current().resume()
    print("resumed")


@command("ask", "ask one line", "%durable ask What is the capital of {country}?", _TEXT, raw=True)
def _ask(magics: DurableMagics, options: argparse.Namespace) -> None:
    if not options.text:
        raise NotebookError("ask what? %durable ask TEXT")
    magics.ask(options.text, _CELL.parse_args([]))


@command("steer", "a message into the busy run, after its present tool round", "%durable steer Use metric units", _TEXT, raw=True)
def _steer(magics: DurableMagics, options: argparse.Namespace) -> None:
    if not options.text:
        raise NotebookError("steer with what? %durable steer TEXT")
    magics.ask(options.text, _CELL.parse_args(["--steer"]))


@command("follow", "a message after the busy run", "%durable follow And in French?", _TEXT, raw=True)
def _follow(magics: DurableMagics, options: argparse.Namespace) -> None:
    if not options.text:
        raise NotebookError("follow with what? %durable follow TEXT")
    magics.ask(options.text, _CELL.parse_args(["--follow-up"]))


@command("stop", "withdraw queued inputs and stop the run", "%durable stop")
def _stop(magics: DurableMagics, options: argparse.Namespace) -> None:
    sessions.current().stop()
    print("stopped: nothing runs in this conversation")


@command("wait", "wait until the conversation is idle", "%durable wait")
def _wait(magics: DurableMagics, options: argparse.Namespace) -> None:
    sessions.current().wait()


@command("retry", "go on after a run that ended without an answer", "%durable retry")
def _retry(magics: DurableMagics, options: argparse.Namespace) -> None:
    chat = sessions.current()
    chat.retry()
    _show(chat.history(2))


@command(
    "tasks",
    "live tasks as a tree",
    "%durable tasks --all",
    ("--all", {"action": "store_true", "help": "those that have ended too"}),
)
def _tasks(magics: DurableMagics, options: argparse.Namespace) -> None:
    _show(sessions.current().tasks(all=options.all))


@command(
    "history",
    "the transcript",
    "%durable history 4",
    ("count", {"nargs": "?", "type": int, "help": "only the last so many entries"}),
)
def _history(magics: DurableMagics, options: argparse.Namespace) -> None:
    _show(sessions.current().history(options.count))


@command("usage", "tokens and cost, per model and tool", "%durable usage")
def _usage(magics: DurableMagics, options: argparse.Namespace) -> None:
    usage = sessions.current().usage()
    rows = [
        StatusRow(
            name=name,
            value=f"{spent.input_tokens + spent.cache_read_tokens + spent.cache_write_tokens:,} tokens in, "
            f"{spent.output_tokens:,} out" + (f", ${spent.cost:.4f}" if spent.cost else ""),
        )
        for name, spent in (*usage.models.items(), *usage.tools.items())
    ]
    _show(StatusView(title=f"usage · {usage.requests} requests", state="idle", rows=tuple(rows)))


@command("model", "the model of this conversation", "%durable model openai:gpt-5-mini", ("name", {"help": "provider:name"}))
def _model(magics: DurableMagics, options: argparse.Namespace) -> None:
    sessions.current().configure(model=options.name)
    print(f"the model is {options.name} from the next request on")


@command("models", "what can be used now, and what is missing for the rest", "%durable models")
def _models(magics: DurableMagics, options: argparse.Namespace) -> None:
    from ..models import default_models

    rows = tuple(
        StatusRow(name=item.name, value="ready" if item.usable else (item.missing or "not usable"))
        for item in default_models.available()
    )
    _show(StatusView(title="models", state="idle", rows=rows))


@command(
    "install",
    "install a @tool function, a function or an Extension from the notebook",
    "%durable install weather",
    ("names", {"nargs": "+", "metavar": "VAR", "help": "names of this notebook"}),
)
def _install(magics: DurableMagics, options: argparse.Namespace) -> None:
    names = magics.shell.user_ns if magics.shell is not None else {}
    missing = [name for name in options.names if name not in names]
    if missing:
        raise NotebookError(f"there is no {', '.join(missing)} in this notebook: run the cell that defines it")
    sessions.install(*(names[name] for name in options.names))
    print(f"installed {', '.join(options.names)}")


@command("tools", "the tools that the model is offered", "%durable tools")
def _tools(magics: DurableMagics, options: argparse.Namespace) -> None:
    chat = sessions.current()
    agent = chat.run(chat.conversation.agent)
    rows = tuple(
        StatusRow(
            name=name,
            value=f"{tool.description.splitlines()[0] if tool.description else 'no description'} · "
            f"{'safe to repeat' if tool.replay == 'safe' else 'not repeated after a crash'}",
        )
        for name, tool in agent.tools.items()
    )
    _show(StatusView(title="tools" if rows else "no tools: %durable install NAME", state="idle", rows=rows))


@command("crash", "SIGKILL this kernel, as a crash would", "%durable crash")
def _crash(magics: DurableMagics, options: argparse.Namespace) -> None:
    kernels.crash_this_kernel()


@command("restart", "restart this kernel through its Jupyter server", "%durable restart")
def _restart(magics: DurableMagics, options: argparse.Namespace) -> None:
    kernels.restart_this_kernel()
    print("the kernel restarts")


@command(
    "kernel",
    "a child kernel to crash safely",
    "%durable kernel kill lab",
    ("action", {"choices": ("start", "kill", "restart", "stop"), "help": "kill is SIGKILL; stop lets it close first"}),
    ("name", {"help": "its name"}),
)
def _kernel(magics: DurableMagics, options: argparse.Namespace) -> None:
    if options.action == "start":
        kernels.start(options.name)
        print(f"child kernel {options.name} runs")
    elif options.action == "kill":
        kernels.kill(options.name)
        print(f"SIGKILL: child kernel {options.name} is dead")
    elif options.action == "restart":
        kernels.restart(options.name)
        print(f"child kernel {options.name} was killed and runs again")
    else:
        kernels.stop(options.name)
        print(f"child kernel {options.name} has stopped")


def _show(view: Any) -> None:
    if frontend.in_ipython():
        _display(mimebundle(view))
    else:
        print(to_text(view))


def register(shell: Any) -> None:
    """Register the magics and their completion with a shell."""
    shell.register_magics(DurableMagics)
    for key in ("%durable", "durable"):
        shell.set_hook("complete_command", complete, str_key=key)


