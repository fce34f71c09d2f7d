"""A subcommand of ``%durable``: its parser, its help, and the list of all (notebook.md, the table of commands).

The modules ``commands*`` register what they do here with ``command``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

from ..errors import NotebookError
from . import frontend
from .displays import display
from .render import mimebundle, to_text
from .view import View

__all__ = ["COMMANDS", "TEXT", "Command", "HelpShown", "Parser", "command", "json_object", "show", "usage"]


class HelpShown(Exception):
    """The help was asked for and printed: there is nothing to do."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises one line and prints help without leaving."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100),
            **options,
        )

    def error(self, message: str) -> NoReturn:
        raise NotebookError(f"{message}; it is used so: {usage(self)} (--help says more)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown


def usage(parser: argparse.ArgumentParser) -> str:
    """How a command is used, in one line."""
    return " ".join(parser.format_usage().removeprefix("usage: ").replace("[-h]", "").split())


Text: TypeAlias = Literal["required", "optional"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand: its name, its parser, and what it does. ``text`` means that the rest of its line is a text."""

    name: str
    about: str
    example: str
    parser: argparse.ArgumentParser
    act: Callable[[Any, argparse.Namespace], Any]
    text: Text | None = None  # the rest of the line is text, which must or may be there


COMMANDS: dict[str, Command] = {}


def command(
    name: str, about: str, example: str, *arguments: tuple[Any, dict[str, Any]], text: Text | None = None
) -> Callable[[Callable[[Any, argparse.Namespace], Any]], Callable[..., Any]]:
    """Register a subcommand."""

    def register(act: Callable[[Any, argparse.Namespace], Any]) -> Callable[..., Any]:
        parser = Parser(prog=f"%durable {name}", description=_sentence(about), epilog=f"example:  {example}")
        for names, options in arguments:
            explained = options | {"help": options["help"].replace("%", "%%")}  # argparse fills in %(default)s
            parser.add_argument(*((names,) if isinstance(names, str) else names), **explained)
        COMMANDS[name] = Command(name=name, about=about, example=example, parser=parser, act=act, text=text)
        return act

    return register


def _sentence(about: str) -> str:
    return f"{about[:1].upper()}{about[1:]}."


TEXT = ("text", {"nargs": "+", "help": "the rest of the line; {name} inserts a value of the notebook"})


def show(view: View) -> None:
    """Display a view in a notebook, or print it as text."""
    if frontend.in_ipython():
        display(mimebundle(view))
    else:
        print(to_text(view))


def json_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object from an option's text. Raises ``NotebookError`` with one line."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise NotebookError(f"{option} takes a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise NotebookError(f"{option} takes a JSON object of the call's arguments")
    return value


# Each registers its commands; they use what stands above.
from . import commands_branches, commands_inbox, commands_live, commands_records  # noqa: E402, F401
