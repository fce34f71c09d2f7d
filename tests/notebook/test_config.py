"""Defaults of a kernel; see notebook.md, ``%durable config``."""

from __future__ import annotations

import pytest
from notebook_books import STORED, Book

from pidurable_nb import notebook
from pidurable_nb.errors import NotebookError
from pidurable_nb.models import ScriptedModel, default_models
from pidurable_nb.notebook import frontend


def test_config_shows_and_sets(book: Book) -> None:
    shown = book.shell.run("%durable config")
    assert "model none, format rich, once on, interpolation on, wait off" in shown
    assert "format text" in book.shell.run("%durable config format=text wait=on once=off")
    assert "format text, once off, interpolation on, wait on" in book.shell.run("%durable config")
    assert "format rich, once on, interpolation on, wait off" in book.shell.run("%durable config format= once= wait=")
    assert notebook.config(wait=True).wait


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("wait=perhaps", "wait takes on or off, not 'perhaps'"),
        ("format=html", "format takes rich or text, not 'html'"),
        ("colour=red", "there is no default colour; there are model, format, once, interpolation, wait"),
        ("wait", "write KEY=VALUE, not 'wait'"),
    ],
)
def test_a_wrong_default_is_one_line_and_changes_nothing(book: Book, change: str, said: str) -> None:
    before = notebook.config()
    assert said in book.shell.fails(f"%durable config once=off {change}")
    assert notebook.config() == before
    with pytest.raises(NotebookError):
        notebook.config(**{"colour": "red"})


@pytest.mark.parametrize("offered", ["wait=on", "format=text", "once=off", "model="])
def test_defaults_complete(book: Book, offered: str) -> None:
    assert offered in book.shell.complete(f"%durable config {offered[:3]}")


def test_once_off_asks_each_time(book: Book) -> None:
    book.run("a", "one")
    book.shell.run("%durable config once=off")
    assert STORED not in book.run("a", "one")
    assert STORED not in book.run("b", "two", magic="%durable ask")
    assert STORED not in book.run("b", "two", magic="%durable ask")
    assert STORED in book.run("a", "one", "--no-again")
    book.shell.run("%durable config once=on")
    assert STORED in book.run("a", "one")
    assert book.asked == 4


def test_interpolation_off_leaves_braces(book: Book) -> None:
    book.shell.names["city"] = "Paris"
    assert "You said in Paris" in book.run("a", "in {city}")
    book.shell.run("%durable config interpolation=off")
    assert "You said in {city}" in book.run("a", "in {city}")
    assert "You said at {city}" in book.run("b", "at {city}", magic="%durable ask")
    assert "You said in Paris" in book.run("a", "in {city}", "--no-raw")


def test_wait_on_keeps_live_cells_running(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "live_frontend", lambda: True)
    waited: list[int] = []
    monkeypatch.setattr(notebook.Turn, "wait_for_cell", lambda turn: waited.append(turn.result().entry.id))
    book.run("a", "one")
    assert waited == []
    book.shell.run("%durable config wait=on")
    book.run("b", "two")
    assert len(waited) == 1
    book.run("c", "three", "--no-wait")
    assert len(waited) == 1


def test_format_is_a_default_that_an_option_wins_over(book: Book) -> None:
    book.shell.run("%durable config format=text")
    assert book.run("a", "one").strip() == "You said one"
    assert book.run("b", "two", "--format rich").strip() != "You said two"


def test_model_is_that_of_sessions_that_are_created(book: Book) -> None:
    default_models.register(ScriptedModel(["default"], name="scripted:default"))
    default_models.register(ScriptedModel(["given"], name="scripted:given"))
    book.shell.run("%durable config model=scripted:default")
    book.shell.run("%durable open fresh.sqlite")
    assert "default" in book.run("a", "one")
    book.shell.run("%durable open given.sqlite --model scripted:given")
    assert "given" in book.run("a", "one")
    notebook.close("given")
    book.shell.run("%durable open given.sqlite")
    assert "scripted:given" in book.shell.run("%durable status")
    assert "no provider is named 'nosuch'" in book.shell.fails("%durable open x.sqlite --model nosuch:x")
