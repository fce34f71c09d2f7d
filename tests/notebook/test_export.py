"""One file of a conversation: what it holds, what it must not hold, and that its session is only read."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt
from notebook_books import Book

from pidurable_nb import notebook, tool
from pidurable_nb.errors import NotebookError
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.notebook.export import safe_markdown
from pidurable_nb.notebook.markdown import safe_link

HOSTILE = """<script>alert(1)</script>
<img src=x onerror=alert(2)> ![a](http://example.org/track.png) [click](javascript:alert(3)) [ok](https://example.org)

[ref]

[ref]: javascript:alert(4)

```python
print("<b>code</b>")"""


class Elements(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


@pytest.fixture
def chat(book: Book) -> notebook.Chat:
    """A session with a question, a call, its result and a hostile answer."""

    @tool(replay="safe")
    def weather(city: str) -> str:
        """Current weather of a city."""
        return f"<i>rain</i> in {city}\n" * 3

    notebook.install(weather)
    steps: list[Any] = [
        Reply("Let me look.", tool_calls=[ToolCall(id="c", name="weather", arguments={"city": "<Paris>"})]),
        HOSTILE,
        "and **more**",
    ]
    made = notebook.open("out.sqlite", model=ScriptedModel(steps, name="scripted:out"), show=False)
    made.ask("How is the weather, <script>you</script>?")
    made.ask("And?")
    return made


def test_the_page_is_self_contained_and_safe(chat: notebook.Chat) -> None:
    page = chat.export("out.html").read_text()
    found = Elements(page)
    assert not found.tags & {"script", "img", "iframe", "link", "object", "embed", "form", "i"}
    assert not [name for name in found.attributes if name.startswith("on")]
    assert found.links == ["http://example.org/track.png", "https://example.org"]
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    for text in ("How is the weather", "Let me look.", "&quot;city&quot;", "rain", "<strong>more</strong>"):
        assert text in page
    assert page.startswith("<!doctype html>")


def test_markdown_keeps_what_is_safe_and_shows_the_rest_as_text(chat: notebook.Chat) -> None:
    text = chat.export("out.md").read_text()
    tokens = MarkdownIt("commonmark", {"html": True}).parse(text)
    children = [child for token in tokens for child in token.children or ()]
    assert not [token for token in tokens if token.type == "html_block"]
    assert not [child for child in children if child.type in ("html_inline", "image")]
    links = [str(child.attrGet("href")) for child in children if child.type == "link_open"]
    assert all(map(safe_link, links))
    assert 'print("<b>code</b>")' in text
    assert "and **more**" in text
    assert any(token.type == "hr" for token in tokens[-8:]), "a fence that was not closed swallowed the rest"


def test_json_holds_the_records(chat: notebook.Chat) -> None:
    data = json.loads(chat.export("out.json").read_text())
    entries = chat.run(chat.conversation.entries(order="ascending").list)
    assert data["entries"] == [entry.to_data() for entry in entries]
    assert data["conversation"]["id"] == 1
    assert data["version"] == 1
    assert data["usage"]["requests"] == 3


def test_the_magic_replaces_the_file_and_refuses_other_endings(book: Book, chat: notebook.Chat) -> None:
    Path("out.md").write_text("old")
    assert "exported to out.md" in book.shell.run("%durable export out.md")
    assert "old" not in Path("out.md").read_text().splitlines()
    line = book.shell.fails("%durable export out.sqlite")
    assert "the ending says the format; there are .html, .md and .json" in line
    with pytest.raises(NotebookError):
        chat.export("out.pdf")
    line = book.shell.fails("%durable export nosuch/out.md")
    assert "nosuch/out.md cannot be written: No such file or directory. Choose another path." in line
    assert not list(Path().glob(".out*"))


def test_the_branch_of_the_notebook_is_exported(chat: notebook.Chat) -> None:
    first = next(entry.id for entry in chat.history().entries if entry.role == "assistant")
    chat.rewind(first)
    assert "and **more**" not in chat.export("out.md").read_text()
    assert "and **more**" not in command("out.sqlite", "cli.md")
    assert "and **more**" in command("out.sqlite", "cli.md", "--conversation", "1")


def command(*arguments: str) -> str:
    """Run the export in a process of its own, and read its file."""
    line = [sys.executable, "-m", "pidurable_nb", "export", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Path(arguments[1]).read_text()


def test_another_process_exports_while_the_owner_works_on(chat: notebook.Chat) -> None:
    assert command("out.sqlite", "cli.html") == chat.export("out.html").read_text()
    assert not chat.closed
    notebook.close()
    assert json.loads(command("out.sqlite", "cli.json"))["usage"]["requests"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch.sqlite", "x.md"], "nosuch.sqlite"),
        (["out.sqlite", "x.txt"], "there are .html, .md and .json"),
        (["out.sqlite", "nosuch/x.md"], "nosuch"),
        (["out.sqlite", "x.md", "--conversation", "99"], "99"),
    ],
)
def test_a_wrong_command_is_one_line(chat: notebook.Chat, arguments: list[str], said: str) -> None:
    line = [sys.executable, "-m", "pidurable_nb", "export", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert not Path("x.md").exists()


@given(st.text(alphabet="<>[]()!`*_~#-= \n\\&;:abjavscriptimgonx/\"'", max_size=80))
def test_no_text_becomes_html_or_an_unsafe_link(text: str) -> None:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    reader.validateLink = lambda address: True  # type: ignore[method-assign]
    for token in reader.parse(safe_markdown(text)):
        assert token.type != "html_block"
        for child in token.children or ():
            assert child.type not in ("html_inline", "image")
            assert child.type != "link_open" or safe_link(str(child.attrGet("href")))
