"""Questions on a ``%durable`` line.

IPython reads a line that ends in ``?`` as a call for help on its last word, also when a magic stands before it, so that
``%durable ask What is a kernel?`` would look up ``kernel``. The transformer here turns such a line into the call of the
magic that it is. ``%durable?`` alone stays a call for help.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_QUESTION = re.compile(r"^(\s*)%durable[ \t]+(\S.*\?)[ \t]*(\n?)$")


def transform(lines: list[str]) -> list[str]:
    """The lines of a cell, with questions on ``%durable`` lines made calls. Cells of other magics stay as they are."""
    if lines and lines[0].startswith("%%"):
        return lines
    return [_QUESTION.sub(_call, line) for line in lines]


def _call(match: re.Match[str]) -> str:
    indent, rest, end = match.groups()
    return f"{indent}get_ipython().run_line_magic('durable', {rest!r}){end}"


def install(transformers: list[Callable[[list[str]], list[str]]]) -> None:
    """Add the transformer to a shell's ``input_transformers_cleanup``, once."""
    if transform not in transformers:
        transformers.append(transform)
