"""Values of the notebook in the text of a cell (notebook.md, Interpolation).

``{expression}`` becomes the value of the expression when it evaluates in the user's namespace; braces that do not, such
as JSON and code, stay as they are written. ``{{`` is a literal brace, and so is the ``}}`` that closes it. Rich objects
insert Markdown where they have it.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

_BRACE = re.compile(r"\{\{?|\}")

LONGEST = 1000
"""Characters of an expression at most, so that a text full of braces takes no time."""

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def interpolate(text: str, names: Mapping[str, Any], *, missing: list[str] | None = None) -> str:
    """``text`` with its ``{expressions}`` replaced. Evaluation never raises: what does not evaluate stays.

    ``missing`` gets each name in braces of its own that stands in prose and is not defined.
    """
    parts: list[str] = []
    braces: list[str] = []  # those that are open: "{" as written, "{{" for a literal one
    position = 0
    while match := _BRACE.search(text, position):
        parts.append(text[position : match.start()])
        position = match.end()
        brace = match[0]
        if brace == "{{":
            braces.append(brace)
            parts.append("{")
        elif brace == "{":
            end = _end(text, match.start())
            replaced = None if end is None else _evaluate(text[position:end], names)
            if replaced is None or end is None:
                if missing is not None and end is not None and not braces:
                    name = text[position:end]
                    if name not in missing and _is_missing(name, names) and _in_prose(text, match.start(), end):
                        missing.append(name)
                braces.append(brace)
                parts.append(brace)
            else:
                parts.append(replaced)
                position = end + 1
        else:
            opened = braces.pop() if braces else "{"
            if opened == "{{" and text.startswith("}", position):
                position += 1
            parts.append(brace)
    parts.append(text[position:])
    return "".join(parts)


def _is_missing(name: str, names: Mapping[str, Any]) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in names and not hasattr(builtins, name)


def _in_prose(text: str, start: int, end: int) -> bool:
    """Whether braces stand as a word among words: not in quoted code, and not in TeX, CSS or an assignment."""
    before, after = text[:start].removesuffix("("), text[end + 1 : end + 2]
    if before.count("`") % 2 or (before and not before[-1].isspace()):
        return False
    return before.rstrip()[-1:] not in tuple("=,[{\\") and (not after or after.isspace() or after in ".,;:!?)")


def _end(text: str, brace: int) -> int | None:
    """The closing brace of the expression that opens at ``brace``; brackets and quotes inside it are its own."""
    depth = 0
    quote: str | None = None
    position = brace
    while position < min(len(text), brace + LONGEST):
        char = text[position]
        if quote is not None:
            if char == "\\":
                position += 1
            elif char == quote:
                quote = None
        elif char in "'\"":
            quote = char
        elif char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
            if depth == 0:
                return position if char == "}" else None
        elif char == "\n" and depth == 1:
            return None  # an expression stands on one line; a brace that opens a block does not
        position += 1
    return None


def _evaluate(source: str, names: Mapping[str, Any]) -> str | None:
    source = source.strip()
    try:
        parsed = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(parsed, ast.Constant | ast.Set | ast.Tuple):
        return None  # {1}, {"a"} and {a, b} are data as often as not; nobody needs braces to write a constant
    try:
        value = eval(compile(ast.Expression(parsed), "<prompt>", "eval"), {**names})
        # Prose and code about `list` or `print` mean the word.
        return None if isinstance(value, _CODE) else as_text(value)
    except (Exception, SystemExit):  # whatever the user's expression raises: the text stays as written
        return None


def as_text(value: Any) -> str:
    """A value as text for a prompt: Markdown where it has it, else its plain text."""
    if isinstance(value, str):
        return value
    for form in (_markdown, _bundle, _table):
        try:
            text = form(value)
        except Exception:  # a form that fails, or that needs a package that is not there (pandas: tabulate)
            continue
        if isinstance(text, str):
            return text
    return str(value)


def _markdown(value: Any) -> Any:
    return value._repr_markdown_()


def _bundle(value: Any) -> Any:
    data = value._repr_mimebundle_(include=("text/markdown", "text/plain"))
    data = data[0] if isinstance(data, tuple) else data
    return data.get("text/markdown") or data.get("text/plain")


def _table(value: Any) -> Any:
    return value.to_markdown()
