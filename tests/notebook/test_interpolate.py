"""Values of the notebook in prompts; see notebook.md, "Interpolation"."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pidurable_nb.notebook.interpolate import interpolate


class Table:
    def to_markdown(self) -> str:
        return "| a |\n|---|\n| 1 |"


class Broken:
    def _repr_markdown_(self) -> str:
        raise RuntimeError("no")

    def __str__(self) -> str:
        return "broken but printable"


class Rich:
    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/markdown": "**rich**", "text/html": "<b>rich</b>", "text/plain": "rich"}


class PlainBundle:
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, str]]:
        return {"text/plain": "plain bundle"}, {}


class Marked:
    def _repr_markdown_(self) -> str:
        return "*marked*"


NAMES: dict[str, Any] = {
    "x": 3,
    "name": "Bo",
    "d": {"key": "value"},
    "rows": [1, 2],
    "none": None,
    "table": Table(),
    "rich": Rich(),
    "plain": PlainBundle(),
    "marked": Marked(),
    "broken": Broken(),
    "Out": {3: "third"},
    "In": ["", "first", "second"],
    "shout": str.upper,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{x}", "3"),
        ("{ x }", "3"),
        ("{x + 1} and {name.lower()}", "4 and bo"),
        ('{d["key"]} {shout("}")}', "value }"),
        ("{[n * 2 for n in rows]}", "[2, 4]"),
        ("{none}", "None"),
        ("{d}", "{'key': 'value'}"),
        ("{Out[3]} {In[2]}", "third second"),
        ("{table}", "| a |\n|---|\n| 1 |"),
        ("{rich} {marked} {plain}", "**rich** *marked* plain bundle"),
        ("{broken}", "broken but printable"),
        # literal braces
        ("{{x}}", "{x}"),
        ("{{{x}}}", "{3}"),
        ("{{ {x} }}", "{ 3 }"),
        ("{{", "{"),
        ("}}", "}}"),
        ("f() {{ if (y) { return; } }}", "f() { if (y) { return; } }"),
        # what does not evaluate stays
        ("{nope}", "{nope}"),
        ("{}", "{}"),
        ("{", "{"),
        ("{x", "{x"),
        ("x}", "x}"),
        ("{1/0}", "{1/0}"),
        ("{import os}", "{import os}"),
        ("{print} {list} {Table}", "{print} {list} {Table}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": {"b": {}}}', '{"a": {"b": {}}}'),
        ('{"a": {x}}', '{"a": 3}'),
        ("{1}", "{1}"),
        ('{"x"}', '{"x"}'),
        ("{x, name}", "{x, name}"),
        ("function f(x) { return x; }", "function f(x) { return x; }"),
        ("if (x) {\n  name\n}", "if (x) {\n  name\n}"),
        ("a {b: c}", "a {b: c}"),
        ("$x ${x}", "$x $3"),
        ("{raise_exit()} {(lambda: 1)()}", "{raise_exit()} 1"),
        ("{'unclosed} {x}", "{'unclosed} 3"),
    ],
)
def test_what_evaluates_is_replaced_and_all_else_stays(text: str, expected: str) -> None:
    assert interpolate(text, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("about {nosuch}.", ["nosuch"]),
        ("{nosuch} and ({other}) and {nosuch}", ["nosuch", "other"]),
        ("first\n{nosuch}", ["nosuch"]),
        ("{x} {name.nosuch} {nosuch.more} {print} {nosuch + 1}", []),
        ("{{nosuch}} `{nosuch}` f'{nosuch}'", []),
        ('{"a": {nosuch}} {nosuch: 1} x = {nosuch} [{nosuch}]', []),
        (r"\frac{above}{below} and $x^{power}$", []),
        ("body {nosuch} else", ["nosuch"]),
        ("call({nosuch})", []),
        ("{for} {a b}", []),
    ],
)
def test_names_in_prose_that_are_not_defined_are_told(text: str, expected: list[str]) -> None:
    missing: list[str] = []
    assert interpolate(text, NAMES, missing=missing) == interpolate(text, NAMES)
    assert missing == expected


def test_an_expression_that_exits_does_not() -> None:
    def leave() -> None:
        raise SystemExit

    assert interpolate("{leave()}", {"leave": leave}) == "{leave()}"


def test_an_expression_defines_nothing() -> None:
    names: dict[str, Any] = {}
    assert interpolate("{(y := 3)}", names) == "3"
    assert names == {}


@given(st.text(alphabet="{}[]()'\"\\ax1 \n:", max_size=40))
def test_no_text_fails_and_text_without_braces_stays(text: str) -> None:
    shown = interpolate(text, {})
    assert isinstance(shown, str)
    if "{" not in text:
        assert shown == text


@given(
    st.recursive(
        st.none() | st.integers() | st.text('ab"\\ ,:', max_size=5),
        lambda inner: st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
        max_leaves=6,
    )
)
def test_json_stays(value: Any) -> None:
    import json

    text = json.dumps({"value": value}, indent=1)
    assert interpolate(text, {}) == text


def test_a_long_text_of_braces_takes_no_time() -> None:
    assert interpolate("{" * 3000, {}) == "{" * 1500
    assert len(interpolate("{ a" * 3000, {})) == 9000
