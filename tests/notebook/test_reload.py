"""Installing again what was edited; see notebook.md, ``%durable reload``."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_books import Book

from pidurable_nb import notebook


@pytest.fixture
def shop(book: Book, monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    """A notebook beside modules."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    modules = set(sys.modules)
    yield book
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def described() -> dict[str, str]:
    """The tools that are installed, by name, with their descriptions."""
    return {
        tool.name: tool.description for extension in notebook.registry.snapshot().extensions for tool in extension.tools
    }


_ahead = itertools.count(10, 10)


def write(name: str, source: str) -> None:
    """Write a module so that Python sees that it has changed, however fast the test is."""
    path = Path(f"{name}.py")
    path.write_text(source)
    later = time.time() + next(_ahead)
    os.utime(path, (later, later))


def test_a_function_of_a_cell_is_installed_as_it_is_now(shop: Book) -> None:
    shop.shell.run('def weather():\n    "Old."')
    shop.shell.run("%durable install weather")
    assert "weather: is installed as it was: nothing has changed" in shop.shell.run("%durable reload")
    shop.shell.run('def weather():\n    "New."')
    assert described() == {"weather": "Old."}
    assert "weather: its new definition is installed" in shop.shell.run("%durable reload weather")
    assert described() == {"weather": "New."}


def test_what_is_called_otherwise_now_leaves_nothing_behind(shop: Book) -> None:
    shop.shell.run("from pidurable_nb import tool\n@tool(name='old')\ndef weather():\n    'W.'")
    shop.shell.run("%durable install weather")
    assert described() == {"old": "W."}
    shop.shell.run("@tool(name='new')\ndef weather():\n    'W.'")
    shop.shell.run("%durable reload")
    assert described() == {"new": "W."}


@pytest.mark.parametrize("kind", ["tool", "function", "extension"])
def test_what_was_imported_is_installed_as_its_module_defines_it_now(shop: Book, kind: str) -> None:
    decorated = "" if kind == "function" else "@tool\n"
    ending = "thing = Extension('shop', tools=[weather])\n" if kind == "extension" else "thing = weather\n"
    source = f"from pidurable_nb import Extension, tool\n{decorated}def weather():\n    'Old.'\n{ending}"
    write("my_shop", source)
    shop.shell.run("from my_shop import thing")
    shop.shell.run("%durable install thing")
    assert described() == {"weather": "Old."}
    write("my_shop", source.replace("Old", "New"))
    assert "thing: is installed as my_shop defines it now" in shop.shell.run("%durable reload")
    assert described() == {"weather": "New."}
    assert shop.shell.names["thing"] is sys.modules["my_shop"].thing  # type: ignore[attr-defined]


def test_a_module_that_cannot_be_loaded_is_one_line_and_leaves_what_was(shop: Book) -> None:
    write("my_broken", "def weather():\n    'Old.'\n")
    shop.shell.run("from my_broken import weather")
    shop.shell.run("%durable install weather")
    write("my_broken", "def weather(:\n")
    line = shop.shell.fails("%durable reload")
    assert line.startswith("the module my_broken cannot be loaded: SyntaxError: ")
    assert described() == {"weather": "Old."}


def test_what_cannot_be_reloaded_says_why(shop: Book) -> None:
    assert "nothing was installed by %durable install yet" in shop.shell.fails("%durable reload")
    shop.shell.run("def weather():\n    'W.'")
    assert "weather was not installed: `%durable install weather` does that" in shop.shell.fails(
        "%durable reload weather"
    )
    shop.shell.run("%durable install weather")
    shop.shell.run("del weather")
    assert "there is no weather in this notebook any more" in shop.shell.fails("%durable reload")


def test_installed_names_complete(shop: Book) -> None:
    shop.shell.run("def weather():\n    'W.'")
    shop.shell.run("%durable install weather")
    assert "weather" in shop.shell.complete("%durable reload w")
