"""The command line, ``python -m pidurable_nb`` (notebook.md, Command line).

A *command* is a module of this package with a function of its own name. It is imported when it is called, so that
``--help`` and a wrong word cost nothing. Exit codes: 0 done, 1 failed, 2 a wrong command line, 3 waits for something
that this process lacks, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..errors import DurableError

__all__ = ["main"]

_DESCRIPTION = """\
Agents that survive kill -9: every turn, tool call and piece of state is committed before it is shown.

Begin with `demo`; it takes less than a minute and needs no key."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` shows what there is\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="pidurable-nb", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    demo = commands.add_parser(
        "demo",
        help="an answer that streams, a kill -9, and the answer completed",
        description="Start a real process, have it ask a model, kill it with SIGKILL in the middle of the answer, "
        "start it again, and see the answer completed; then the same with two tools. Exits 1 when what is stored at "
        "the end does not show a full recovery.",
    )
    demo.add_argument(
        "--model",
        help="the model that is asked: a name such as local:smollm2, anthropic:… or scripted:demo "
        "(default: local:smollm2 when it is installed, else a script)",
    )
    demo.add_argument("--keep", metavar="PATH", help="keep the session in this new file, to look at it afterwards")

    lab = commands.add_parser(
        "lab",
        help="copy the tutorials and open JupyterLab on the quickstart",
        description="Copy the tutorial notebooks to DIR and open JupyterLab on the quickstart. A notebook there that "
        "differs from the tutorial is left as it is.",
    )
    lab.add_argument("dir", nargs="?", default="pidurable-tutorials", metavar="DIR", help="default: %(default)s")
    lab.add_argument("--no-open", action="store_true", help="only copy the notebooks")
    lab.add_argument("options", nargs="*", metavar="-- OPTIONS", help="options for JupyterLab, after --")

    run = commands.add_parser(
        "run",
        help="go on with a session without a notebook, until it is idle",
        description="Open a session, go on with what was under way, and end when it is idle (exit 0) or waits for "
        "something that this process cannot give it (exit 3). Interrupting it leaves everything to be gone on with.",
    )
    run.add_argument("path", metavar="PATH", help="the session's file")
    run.add_argument(
        "--install",
        action="append",
        default=[],
        metavar="MODULE:EXTENSION",
        help="install an Extension, or a @tool function, from a module; may be given again",
    )
    run.add_argument("--model", help="the model of conversations that chose none")
    run.add_argument("--anyway", action="store_true", help="go on even where tools, models or tasks are missing")

    inspect = commands.add_parser(
        "inspect",
        help="what a session's file holds, without opening it",
        description="Lives, conversations, live tasks and open submissions of a session, read without owning it: its "
        "owner, if any, works on.",
    )
    inspect.add_argument("path", metavar="PATH", help="the session's file")
    inspect.add_argument("--json", action="store_true", help="as JSON")

    export = commands.add_parser(
        "export",
        help="a conversation as one HTML, Markdown or JSON file",
        description="Write a conversation to one file that needs neither a notebook nor this package. The session is "
        "read without owning it: its owner, if any, works on.",
    )
    export.add_argument("path", metavar="PATH", help="the session's file")
    export.add_argument("out", metavar="OUT", help="the file to write; .html, .md and .json say the format")
    export.add_argument(
        "--conversation", type=int, metavar="ID", help="another one than that on which the session's notebook is"
    )

    doctor = commands.add_parser(
        "doctor",
        help="versions, locks, file system, and what is missing",
        description="Check what the package needs and what it can use here. Exits 1 when something needed is missing.",
    )
    doctor.add_argument("dir", nargs="?", default=".", metavar="DIR", help="where sessions will lie (default: here)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's) and return its exit code. Raises ``SystemExit`` as argparse does."""
    parser = _parser()
    given = list(sys.argv[1:] if argv is None else argv)
    names = ["demo", "doctor", "export", "inspect", "lab", "run"]
    word = next((text for text in given if not text.startswith("-")), None)
    if word is not None and given[0] == word and word not in names:
        near = difflib.get_close_matches(word, names, n=1)
        parser.error(f"there is no command {word!r}" + (f", but {near[0]!r}" if near else ""))
    options = parser.parse_args(given)
    if options.version:
        from .. import __version__

        print(f"pidurable_nb {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return _call(options)
    except KeyboardInterrupt:
        print("interrupted; what was committed is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's own flush fails too
        return 1
    except DurableError as error:
        print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
        return 1


def _call(options: argparse.Namespace) -> int:
    if options.command == "demo":
        from .demo import demo

        return demo(model=options.model, keep=options.keep)
    if options.command == "lab":
        from .lab import lab

        return lab(options.dir, open_it=not options.no_open, options=options.options)
    if options.command == "run":
        from .run import run

        return run(options.path, install=options.install, model=options.model, anyway=options.anyway)
    if options.command == "inspect":
        from .inspect import inspect

        return inspect(options.path, as_json=options.json)
    if options.command == "export":
        from .export import export

        return export(options.path, options.out, conversation=options.conversation)
    from .doctor import doctor

    return doctor(options.dir)
