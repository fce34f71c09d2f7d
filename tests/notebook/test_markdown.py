"""Markdown of untrusted text: what it shows, and that nothing of it becomes an element, an attribute or an address."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings, strategies as st

from pidurable_nb.notebook.markdown import safe_link, to_html

PLAIN = re.findall(r"\w+", "p h1 h2 h3 h4 h5 h6 ul li blockquote table thead tbody tr th td pre code hr em strong s")
ALLOWED: dict[str, set[str]] = {
    **{tag: {"style"} for tag in PLAIN},
    "br": set(),
    "ol": {"style", "start"},
    "a": {"style", "href", "target", "rel"},
}


class Strict(HTMLParser):
    """Fails on every element, attribute, style and address that the renderer does not write itself."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        for name, value in attrs:
            assert name in ALLOWED[tag], (tag, name)
            if name == "href":
                assert value is not None
                assert safe_link(value)
                self.links.append(value)
            elif name == "style":
                assert value is not None
                assert not re.search(r"url|expression|import|[<>\\]", value)
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"a processing instruction: {data}")


def parse(text: str) -> Strict:
    parser = Strict()
    parser.feed(to_html(text))
    parser.close()
    assert parser.open == []
    return parser


def bare(text: str) -> str:
    """The HTML without styles and line breaks between elements."""
    return re.sub(r">\n<", "><", re.sub(r' (?:style|target|rel)="[^"]*"', "", to_html(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a *b* **c** ~~d~~ `e`", "<p>a <em>b</em> <strong>c</strong> <s>d</s> <code>e</code></p>"),
        ("# a\n\nb", "<h1>a</h1><p>b</p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a", "<blockquote><p>a</p></blockquote>"),
        ("```py\na < b\n```", "<pre><code>a &lt; b\n</code></pre>"),
        (
            "|a|b|\n|-|-|\n|1|2|",
            "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
        ),
        ("[a](https://b.c)", '<p><a href="https://b.c">a</a></p>'),
        ("<https://b.c>", '<p><a href="https://b.c">https://b.c</a></p>'),
        ("a\n---", "<p>a</p><hr>"),
        ("a\n\n    b", "<p>a</p><p>b</p>"),
    ],
)
def test_shows_the_dialect(text: str, expected: str) -> None:
    assert bare(text) == expected


def test_keeps_the_alignment_of_columns() -> None:
    assert "text-align:right" in to_html("|a|\n|-:|\n|1|")


def test_shows_an_image_as_a_link_and_fetches_nothing() -> None:
    assert bare("![a *b*](https://c.d/e.png)") == '<p><a href="https://c.d/e.png">a b</a></p>'


def test_shows_an_image_inside_a_link_as_its_words() -> None:
    assert bare("[![a](https://b.c/d.png)](https://e.f)") == '<p><a href="https://e.f">a</a></p>'


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "//a.b",
        "x",
        "#",
        "https:",
    ],
)
def test_refuses_every_other_address(address: str) -> None:
    assert not safe_link(address)
    assert parse(f"[a]({address}) ![b]({address}) <{address}>").links == []


@given(
    st.lists(
        st.sampled_from(
            [
                *"<>&\"'`*_~[]()!|#-\\\n :=/",
                "<script>",
                "</p>",
                "javascript:",
                "https://a.b",
                "style=",
                "onload=",
                "```",
                "&lt;",
                "&#106;",
                "\x00",
                "a",
            ]
        ),
        max_size=40,
    ).map("".join)
)
@example('[a](https://b.c" onclick="x)')
@example("[a](https://b.c 'title\" onclick=x')")
@example('```a" onclick="x\n```')
@example("<!-- a --><![CDATA[b]]><?c?><!d>")
@settings(max_examples=300, deadline=None)
def test_no_text_becomes_markup(text: str) -> None:
    parse(text)


@pytest.mark.parametrize(
    "text", ["[" * 5000, "*a" * 5000, "> " * 5000 + "a", "a " + "`" * 5001, "- " * 2000 + "a", "![" * 3000]
)
def test_deep_nesting_ends(text: str) -> None:
    assert "".join(parse(text).words)
