"""What ``%durable``, ``%%durable`` and ``%%durable_kernel`` do (notebook.md, the table of commands).

Each subcommand is one function with a parser of its own, a help text and an example, in ``COMMANDS``. They are thin
over ``chat``. Failures are raised as errors whose text is one line that says what to do; ``magics`` shows them so.
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import shlex
import sys
from collections.abc import Iterable
from typing import Any

from ..agent.conversation import WhenBusy
from ..errors import NotebookError, SessionClosed, SessionInUse
from ..models import default_models
from . import frontend, installed, kernels, observing, opened as sessions, opening
from .chat import Chat
from .command import COMMANDS, TEXT, Command, HelpShown, Parser, command, show, usage
from .defaults import defaults
from .interpolate import interpolate
from .turns import Turn
from .view import AnswerView, StatusRow, StatusView, TextItem, clean_output, clock_time, plural

__all__ = ["CELL", "COMMANDS", "KERNEL_CELL", "Command", "help_text", "run_cell", "run_in_child", "run_line"]


CELL = Parser(
    prog="%%durable",
    description="Ask with the text of the cell; the answer streams below it. Running it again finds what is stored.",
    epilog="example:  %%durable --to answer",
)
CELL.add_argument("--to", metavar="VAR", help="wait, and bind the answer to a variable")
CELL.add_argument(
    "--wait", action=argparse.BooleanOptionalAction, help="keep the cell running until the answer is there"
)
_busy = CELL.add_mutually_exclusive_group()
_busy.add_argument("--steer", action="store_true", help="into the busy run, after its present tool round")
_busy.add_argument("--follow-up", action="store_true", help="after the busy run (the default)")
_busy.add_argument("--reject", action="store_true", help="fail when a run is going on")
CELL.add_argument("--again", action=argparse.BooleanOptionalAction, help="ask anew although an answer is stored")
CELL.add_argument("--id", help="name the submission instead of deriving its id from the text")
CELL.add_argument("--raw", action=argparse.BooleanOptionalAction, help="insert no values: every brace stays as written")
CELL.add_argument(
    "--format",
    choices=("rich", "text"),
    help="how a waiting cell shows the answer: rich (one display), or text that streams to standard output",
)

KERNEL_CELL = Parser(
    prog="%%durable_kernel",
    description="Run the cell in a child kernel, which can be killed without harm to this one.",
    epilog='example:  %%durable_kernel lab --until "the fifth word"',
)
KERNEL_CELL.add_argument("name", help="the child kernel; it is started when it does not run")
KERNEL_CELL.add_argument("--until", help="return when its output has this text, and leave the code running")
KERNEL_CELL.add_argument("--timeout", type=float, help="fail when it takes longer, in seconds; the code goes on")
KERNEL_CELL.add_argument("--quiet", action="store_true", help="show no output")
KERNEL_CELL.add_argument("--then-kill", action="store_true", help="send it SIGKILL as soon as that is so")


# -- running a line or a cell ----------------------------------------------------------------------------------------


def run_line(shell: Any, line: str) -> Any:
    """Do what a ``%durable`` line says."""
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if name in ("", "--help", "-h", "help"):
        print(help_text())
        return None
    found = COMMANDS.get(name)
    if found is None:
        hint = _did_you_mean(name, COMMANDS) or "`%durable` alone lists the commands"
        raise NotebookError(f"there is no command {name!r}: {hint}")
    try:
        if found.text and rest not in ("--help", "-h"):
            if not rest and found.text == "required":
                raise NotebookError(f"{name} needs a text: {found.example}")
            return found.act(shell, argparse.Namespace(text=_interpolated(shell, rest)))
        return found.act(shell, found.parser.parse_args([_interpolated(shell, word) for word in _split(rest)]))
    except HelpShown:
        return None


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names what was meant, or nothing: what begins so, else what is spelt nearly so."""
    names = list(known)
    close = [item for item in names if item.startswith(name)][:3]
    close = close or difflib.get_close_matches(name, names, n=2, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else ""


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Ask with the text of a ``%%durable`` cell."""
    try:
        options = CELL.parse_args(_split(line))
    except HelpShown:
        return
    _ask(shell, _interpolated(shell, cell, raw=options.raw), options)


def run_in_child(line: str, cell: str) -> None:
    """Run a ``%%durable_kernel`` cell in its child kernel."""
    try:
        options = KERNEL_CELL.parse_args(_split(line))
    except HelpShown:
        return
    child = kernels.start(options.name)
    done = child.run(cell, until=options.until, timeout=options.timeout, quiet=options.quiet)
    if done.status == "killed":
        print(f"child kernel {options.name} died; the next cell in it starts it anew")
    elif options.then_kill:
        child.kill()
        print(f"SIGKILL: child kernel {options.name} is dead")


def _interpolated(shell: Any, text: str, *, raw: bool | None = None) -> str:
    """A text with the values that it names; ``raw`` leaves it as it is, by default what ``%durable config`` says."""
    if not defaults().interpolation if raw is None else raw:
        return text
    missing: list[str] = []
    done = interpolate(text, {"Err": _Errors(shell), **shell.user_ns}, missing=missing)
    for name in missing:
        print(f"`{{{name}}}` is not defined here: sent as written", file=sys.stderr)
    return done


class _Errors:
    """``Err[4]`` in a text: how the execution of that number failed, traceback included."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __getitem__(self, number: int) -> str:
        error = self._shell.history_manager.exceptions[number]
        return clean_output("\n".join(error["traceback"]))


def _split(line: str) -> list[str]:
    """The words of a line. Quotes keep spaces; a backslash is a character like any other, as paths have it."""
    words = shlex.shlex(line, posix=True)
    words.whitespace_split = True
    words.commenters = words.escape = ""
    try:
        return list(words)
    except ValueError:
        raise NotebookError(f"a quote is not closed in: {line.strip()}") from None


def _ask(shell: Any, text: str, options: argparse.Namespace) -> None:
    """Submit a cell's text and show its answer."""
    text = text.strip()
    if not text:
        raise NotebookError("the cell is empty: write what to ask below the %%durable line")
    if options.to is not None and (not options.to.isidentifier() or keyword.iskeyword(options.to)):
        raise NotebookError(f"--to {options.to}: that is not a name for a variable; --to answer would be one")
    chat = sessions.current()
    when_busy: WhenBusy = "steer" if options.steer else "reject" if options.reject else "follow_up"
    again = not defaults().once if options.again is None else options.again
    waits = defaults().wait if options.wait is None else options.wait
    turn = chat.submit_cell(text, cell=frontend.cell_id(), when_busy=when_busy, again=again, id=options.id)
    live = frontend.live_frontend()
    with turn.stopped_by_interrupt():
        if live:
            turn.show()
            if not waits and options.to is None:
                return
        streamed = _Streamed(turn) if (options.format or defaults().format) == "text" and not live else None
        try:
            turn.wait_for_cell()
        finally:
            if streamed is not None:
                streamed.end()
        if not live and (streamed is None or not turn.view.settled):
            turn.show()
    if not turn.view.settled:
        print(_stops_waiting(turn.view, options.to))
    elif turn.view.status == "unanswered":
        raise NotebookError(f"there is no answer: {turn.view.problem or 'nothing says why'}")
    elif options.to is not None and turn.view.status == "aborted":
        raise NotebookError(f"the turn was stopped, so nothing is bound to {options.to}; --again asks anew")
    elif options.to is not None:
        shell.user_ns[options.to] = turn.result()


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


def _stops_waiting(view: AnswerView, to: str | None) -> str:
    """Why a cell no longer waits for a turn, and how to get its answer."""
    alone = view.status in ("retrying", "deferred")  # what needs a person does not go on by itself
    if view.status == "retrying":
        at = f" at {clock_time(view.retry_at)}" if view.retry_at is not None else ""
        why = f"the model failed and is asked again{at}"
    elif view.status == "deferred":
        why = "the provider answers later"
    elif view.status == "queued":
        why = "it is queued behind a run that waits itself (`%durable status` says for what)"
    else:
        reason = view.problem or "for a person"
        why = f"it is {reason}" if reason.startswith("paused") else f"it waits {reason}"
    then = f"to bind {to} once the answer is there" if to is not None else "to see the answer"
    goes_on = ", and the turn goes on" if alone else ""
    return f"This cell ends here{goes_on}: {why}. Run it again {then}; nothing is asked twice."


FIRST = ("open", "status", "history", "stop")
"""The commands that the help explains first; ``%%durable`` comes after ``open``."""


def _explained(names: Iterable[str]) -> list[str]:
    found = [COMMANDS[name] for name in names]
    return [line for item in found for line in (usage(item.parser), f"    {item.about}", f"    {item.example}")]


def help_text() -> str:
    """Every command with what it does, and an example each; those that everybody uses first."""
    rest = sorted(COMMANDS.keys() - set(FIRST))
    lines = ["The first five to know:", *_explained(FIRST[:1])]
    lines += [
        "%%durable [--to VAR] [--wait] [--again] …",
        "    ask with the text of the cell; running the cell again finds the stored answer",
        "    %%durable --to answer",
    ]
    lines += [*_explained(FIRST[1:]), "", "All others:", *_explained(rest)]
    lines += [
        "%%durable_kernel NAME [--until TEXT] [--timeout S] [--then-kill]",
        "    run the cell in a child kernel, which can be killed without harm to this one",
        '    %%durable_kernel lab --until "the fifth word" --then-kill',
        "",
        "%durable COMMAND --help explains one; {name} in a text inserts a value of the notebook.",
    ]
    return "\n".join(lines)


# -- commands --------------------------------------------------------------------------------------------------------


@command(
    "open",
    "open or create a session and show what was recovered",
    "%durable open chat.sqlite --model local:smollm2",
    ("path", {"help": "a file; jsonl:DIR for a journal; :memory: for none"}),
    ("--model", {"help": "provider:name, such as local:smollm2 or openai:gpt-5-mini"}),
    ("--instructions", {"help": "what the model is told first"}),
    ("--paused", {"action": "store_true", "help": "start nothing before %durable resume"}),
    ("--observe", {"action": "store_true", "help": "read and follow what another process works on; write nothing"}),
    (("--as",), {"dest": "name", "metavar": "NAME", "help": "a name for %durable use"}),
)
def _open(shell: Any, options: argparse.Namespace) -> Chat:
    if options.observe:
        if options.model or options.instructions or options.paused:
            raise NotebookError("an observer changes nothing: --observe goes with --as alone")
        return observing.observe(options.path, name=options.name, show=True)
    try:
        return opening.open(
            options.path,
            model=options.model,
            instructions=options.instructions,
            paused=options.paused,
            name=options.name,
            show=True,
        )
    except SessionInUse as error:
        raise NotebookError(f"{error} Here `%durable open {options.path} --observe` reads and follows it.") from None


@command(
    "close",
    "close the session; what was running goes on at the next opening",
    "%durable close",
    ("name", {"nargs": "?", "help": "by default the current one"}),
)
def _close(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.close(options.name)
    print(f"closed {chat.path}")


@command("status", "what is open, who owns it, what runs", "%durable status")
def _status(shell: Any, options: argparse.Namespace) -> None:
    shown = sessions.sessions()
    if not shown:
        show(
            StatusView(
                title="no session is open",
                state="closed",
                rows=(StatusRow(name="next", value="%durable open chat.sqlite"),),
            )
        )
    for chat in shown:
        try:
            show(chat.status())
        except SessionClosed as error:  # while it closes, nothing of it can be read
            show(StatusView(title=chat.path, state="closed", rows=(StatusRow(name="closing", value=str(error)),)))


@command("use", "switch to another open session", "%durable use chat", ("name", {"help": "its name"}))
def _use(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.use(options.name)
    branch = f"{chat.name}, conversation {chat.conversation.id} of " if chat.is_fork else ""
    print(f"using {branch}{chat.path}")


@command("resume", "start what waits, also without tools that are missing", "%durable resume")
def _resume(shell: Any, options: argparse.Namespace) -> None:
    sessions.current().resume()
    print("resumed")


@command("ask", "ask one line", "%durable ask What is the capital of {country}?", TEXT, text="required")
def _ask_line(shell: Any, options: argparse.Namespace) -> None:
    _ask(shell, options.text, CELL.parse_args([]))


@command(
    "steer",
    "put a message into the busy run, after its present tool round; idle, it asks",
    "%durable steer Use metric units",
    TEXT,
    text="required",
)
def _steer(shell: Any, options: argparse.Namespace) -> None:
    _ask(shell, options.text, CELL.parse_args(["--steer"]))


@command("follow", "ask after the busy run", "%durable follow And in French?", TEXT, text="required")
def _follow(shell: Any, options: argparse.Namespace) -> None:
    _ask(shell, options.text, CELL.parse_args(["--follow-up"]))


@command(
    "stop",
    "withdraw queued inputs and stop the run",
    "%durable stop --background",
    ("--background", {"action": "store_true", "help": "stop background tasks too"}),
)
def _stop(shell: Any, options: argparse.Namespace) -> None:
    stopped = sessions.current().stop(background=options.background)
    print("stopped; what was said so far is kept" if stopped else "nothing was running")


@command("wait", "wait until the conversation is idle", "%durable wait")
def _wait(shell: Any, options: argparse.Namespace) -> None:
    sessions.current().wait()


@command("retry", "go on after a run that ended without an answer", "%durable retry")
def _retry(shell: Any, options: argparse.Namespace) -> None:
    chat = sessions.current()
    chat.retry()
    show(chat.history(2))


@command(
    "tasks",
    "live tasks as a tree",
    "%durable tasks --all",
    ("--all", {"action": "store_true", "help": "those that have ended too"}),
)
def _tasks(shell: Any, options: argparse.Namespace) -> None:
    show(sessions.current().tasks(all=options.all))


@command(
    "history",
    "the transcript",
    "%durable history 4",
    ("count", {"nargs": "?", "type": int, "help": "only the last so many entries"}),
)
def _history(shell: Any, options: argparse.Namespace) -> None:
    show(sessions.current().history(options.count))


@command("usage", "tokens and cost, per model and tool", "%durable usage")
def _show_usage(shell: Any, options: argparse.Namespace) -> None:
    usage = sessions.current().usage()
    rows = [
        StatusRow(
            name=name,
            value=f"{spent.input_tokens + spent.cache_read_tokens + spent.cache_write_tokens:,} tokens in, "
            f"{spent.output_tokens:,} out" + (f", ${spent.cost:.4f}" if spent.cost else ""),
        )
        for name, spent in (*usage.models.items(), *usage.tools.items())
    ]
    show(StatusView(title=f"usage · {plural(usage.requests, 'request')}", rows=tuple(rows)))


@command(
    "model", "the model of this conversation", "%durable model openai:gpt-5-mini", ("name", {"help": "provider:name"})
)
def _model(shell: Any, options: argparse.Namespace) -> None:
    sessions.current().configure(model=options.name)
    print(f"the model is {options.name} from the next request on")


@command("models", "what can be used now, and what is missing for the rest", "%durable models")
def _models(shell: Any, options: argparse.Namespace) -> None:
    found = sorted(default_models.available(), key=lambda item: not item.usable)
    rows = tuple(
        StatusRow(name=item.name, value="ready" if item.usable else (item.missing or "not usable")) for item in found
    )
    show(StatusView(title="models", rows=rows))


@command(
    "install",
    "install a @tool function, a function or an Extension from the notebook",
    "%durable install weather",
    ("names", {"nargs": "+", "metavar": "VAR", "help": "names of this notebook"}),
)
def _install(shell: Any, options: argparse.Namespace) -> None:
    names = shell.user_ns
    missing = [name for name in options.names if name not in names]
    if missing:
        usable = installed.installable(names)
        hints = [hint for name in missing if (hint := _did_you_mean(name, usable))]
        hint = f" ({' '.join(hints)})" if hints else ""
        raise NotebookError(f"there is no {', '.join(missing)} in this notebook: run the cell that defines it{hint}")
    installed.install_named({name: names[name] for name in options.names})
    print(f"installed {', '.join(options.names)}")


@command(
    "reload",
    "install again what was edited since, in a cell or in a module",
    "%durable reload weather",
    ("names", {"nargs": "*", "metavar": "VAR", "help": "by default all that %durable install has installed"}),
)
def _reload(shell: Any, options: argparse.Namespace) -> None:
    done = installed.reload(shell.user_ns, options.names)
    for name, how in done.items():
        print(f"{name}: {how}")


@command("tools", "the tools that the model is offered", "%durable tools")
def _tools(shell: Any, options: argparse.Namespace) -> None:
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
    title = "tools" if rows else "no tools: %durable install NAME"
    show(StatusView(title=title, rows=rows))


@command("crash", "SIGKILL this kernel, as a crash would", "%durable crash")
def _crash(shell: Any, options: argparse.Namespace) -> None:
    kernels.crash_this_kernel()


@command("restart", "restart this kernel through its Jupyter server", "%durable restart")
def _restart(shell: Any, options: argparse.Namespace) -> None:
    kernels.restart_this_kernel()
    print("the kernel restarts")


@command(
    "kernel",
    "a child kernel to crash safely",
    "%durable kernel kill lab",
    ("action", {"choices": ("start", "kill", "restart", "stop"), "help": "kill is SIGKILL; stop lets it close first"}),
    ("name", {"help": "its name"}),
)
def _kernel(shell: Any, options: argparse.Namespace) -> None:
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
