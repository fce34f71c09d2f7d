"""Which submission a cell stands for, in every life of its kernel; see notebook.md, "Running a cell again"."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from notebook_books import CHANGED, STORED, Book, Life, Script

from pidurable_nb import notebook, tool
from pidurable_nb.errors import Unanswered
from pidurable_nb.models import ScriptedModel
from pidurable_nb.notebook import frontend
from pidurable_nb.notebook.cells import Order, Provenance


def test_a_cell_finds_its_submission_again(book: Book, life: Life) -> None:
    assert STORED not in book.run("a", "one")
    before = book.submissions
    life(book)
    shown = book.run("a", "one")
    assert "You said one" in shown
    assert STORED in shown
    assert "--again asks anew" in shown
    assert CHANGED not in shown
    assert book.submissions == before
    assert book.asked == 1


def test_cells_with_equal_texts_are_told_apart(book: Book, life: Life) -> None:
    for cell in "abc":
        book.run(cell, "same")
    before = book.submissions
    assert len(before) == 3
    life(book)
    for cell in "abc":
        assert STORED in book.run(cell, "same")
    assert book.submissions == before
    assert STORED not in book.run("copy of a", "same")
    assert len(book.submissions) == 4


def test_a_cell_that_moved_keeps_its_submission(book: Book) -> None:
    book.run("a", "same")
    book.run("b", "same")
    by_cell = {cell: book.submit(cell, "same").id for cell in "ab"}
    book.restart()
    assert {cell: book.submit(cell, "same").id for cell in "ba"} == by_cell
    assert book.asked == 2


def test_an_edited_cell_asks_anew_and_undoing_the_edit_finds_the_first(book: Book, life: Life) -> None:
    book.run("a", "one")
    assert STORED not in book.run("a", "one, but better")
    assert book.asked == 2
    life(book)
    assert STORED in book.run("a", "one")
    assert STORED in book.run("a", "one, but better")
    assert book.asked == 2


def test_a_text_is_what_it_is_after_interpolation(book: Book, life: Life) -> None:
    book.shell.names["city"] = "Paris"
    book.run("a", "weather in {city}")
    life(book)
    assert STORED in book.run("a", "weather in {city}")
    book.shell.names["city"] = "Rome"
    assert "You said weather in Rome" in book.run("a", "weather in {city}")
    assert book.asked == 2


def test_a_cell_that_asks_the_same_in_a_loop_asks_each_time(book: Book, life: Life) -> None:
    loop = "for _ in range(3):\n    get_ipython().run_line_magic('durable', 'ask again and again')"

    def run() -> None:
        # An execution has a number, by which it is told from the next one.
        book.cell = "a"
        book.shell.run(loop)

    run()
    assert book.asked == 3
    life(book)
    run()
    assert book.asked == 3


@pytest.mark.parametrize("magic", ["%durable ask", "%durable steer", "%durable follow"])
def test_line_magics_find_theirs_too(book: Book, life: Life, magic: str) -> None:
    book.run("a", "hello", magic=magic)
    assert book.submissions[0][3] is not None
    life(book)
    assert STORED in book.run("a", "hello", magic=magic)
    assert book.asked == 1


def test_notes_and_resets_are_written_once(book: Book, life: Life) -> None:
    book.run("a", "remember this", magic="%durable note")
    book.run("b", "chapter two", magic="%durable reset")
    before = book.submissions
    assert len(before) == 2
    life(book)
    book.run("a", "remember this", magic="%durable note")
    book.run("b", "chapter two", magic="%durable reset")
    assert book.submissions == before
    book.run("c", "remember this", magic="%durable note")
    assert len(book.submissions) == 3


# -- without cell ids ------------------------------------------------------------------------------------------------


def test_without_cell_ids_the_nth_run_of_a_text_finds_the_nth(book: Book) -> None:
    book.runner = True
    for text in ("one", "same", "two", "same"):
        book.run("", text)
    before = book.submissions
    assert len(before) == 4
    book.restart()
    for text in ("one", "same", "two", "same"):
        shown = book.run("", text)
        assert STORED in shown
        assert CHANGED not in shown
    assert book.submissions == before
    assert STORED not in book.run("", "same")


def test_front_ends_with_and_without_ids_share_what_is_stored(book: Book) -> None:
    for cell, text in (("a", "one"), ("b", "same"), ("c", "same")):
        book.run(cell, text)
    book.restart()
    book.runner = True
    for text in ("one", "same", "same"):
        assert STORED in book.run("", text)
    assert STORED not in book.run("", "only here")
    book.restart()
    book.runner = False
    assert STORED in book.run("d", "only here")
    assert book.asked == 4


SHAPES = sorted((Path(__file__).parent / "shapes").glob("*.json"))


@pytest.mark.parametrize("path", SHAPES, ids=[path.stem for path in SHAPES])
def test_run_all_finds_everything_under_each_front_end(book: Book, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    shape = json.loads(path.read_text())["request"]
    executions = itertools.count()
    monkeypatch.setattr(frontend, "cell_id", lambda: frontend.cell_of(frontend.request()))
    monkeypatch.setattr(frontend, "live_frontend", lambda: False)  # so that every cell shows its end

    def run_all(*cells: tuple[int, str]) -> list[bool]:
        stored = []
        for number, text in cells:
            metadata = dict(shape["metadata"])
            if "cellId" in metadata:
                metadata["cellId"] = f"{metadata['cellId']}{number}"
            header = shape["header"] | {"msg_id": f"{next(executions)}"}
            request = shape | {"metadata": metadata, "header": header}
            monkeypatch.setattr(frontend, "request", lambda request=request: request)
            stored.append(STORED in book.shell.run(f"%%durable\n{text}"))
        return stored

    cells = ((0, "one"), (1, "same"), (2, "same"), (3, "three"))
    assert run_all(*cells) == [False] * 4
    for _ in range(2):
        book.restart()
        assert run_all(*cells) == [True] * 4
    assert book.asked == 4
    book.restart()
    assert run_all((0, "one"), (9, "one, edited"), (1, "same")) == [True, False, True]


VS_CODE = "vscode-notebook-cell:/home/me/{}.ipynb#W{}sZmlsZQ%3D%3D"


def test_a_cell_in_vs_code_finds_its_own_while_the_notebook_is_open(book: Book) -> None:
    for number, text in enumerate(("one", "same", "same")):
        book.run(VS_CODE.format("a", number), text)
    by_cell = [book.submit(VS_CODE.format("a", number), "same").id for number in (1, 2)]
    assert [book.submit(VS_CODE.format("a", number), "same").id for number in (2, 1)] == by_cell[::-1]
    assert STORED not in book.run(VS_CODE.format("a", 3), "same")
    assert book.asked == 4


@pytest.mark.parametrize("name", ["a", "copy of a"])
def test_addresses_that_vs_code_gives_anew_ask_nothing_twice(book: Book, name: str) -> None:
    for number, text in enumerate(("one", "same", "same")):
        book.run(VS_CODE.format("a", number), text)
    before = book.submissions
    book.restart()
    for number, text in enumerate(("one", "same", "same"), start=1):  # a cell was inserted at the top
        shown = book.run(VS_CODE.format(name, number), text)
        assert STORED in shown
        assert CHANGED not in shown
    assert book.submissions == before
    book.restart()
    for cell, text in (("x", "one"), ("y", "same"), ("z", "same")):  # and now in JupyterLab
        assert STORED in book.run(cell, text)
    assert book.submissions == before


def test_a_copied_notebook_whose_cells_keep_their_ids_asks_nothing_twice(book: Book) -> None:
    for cell, text in (("a", "one"), ("b", "same"), ("c", "same")):
        book.run(cell, text)
    before = book.submissions
    book.restart()  # the copy has a kernel of its own
    for cell, text in (("a", "one"), ("b", "same"), ("c", "same")):
        assert STORED in book.run(cell, text)
    assert book.submissions == before


@pytest.mark.parametrize("jump", [-3600.0, 3600.0], ids=["back", "ahead"])
def test_a_clock_that_jumps_changes_neither_order_nor_what_is_found(book: Book, jump: float) -> None:
    book.run("a", "one")
    clock = book.chat.harness.clock
    book.chat.harness.clock = lambda: clock() + jump
    shown = book.run("b", "two")
    assert not re.search(r"-\d", shown), "a time below zero"
    book.run("c", "three")
    book.chat.harness.clock = clock
    assert [entry.text for entry in book.chat.history().entries if entry.role == "user"] == ["one", "two", "three"]
    book.restart()
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        shown = book.run(cell, text)
        assert STORED in shown
        assert CHANGED not in shown
    assert book.asked == 3


# -- what has changed ------------------------------------------------------------------------------------------------


def test_an_edited_earlier_cell_is_told_of(book: Book, life: Life) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        book.run(cell, text)
    life(book)
    assert CHANGED not in book.run("a", "one")
    assert STORED not in book.run("b", "two, edited")
    for _ in range(2):
        shown = book.run("c", "three")
        assert STORED in shown
        assert f"{CHANGED}what was asked before it" in shown
    assert CHANGED not in book.run("b", "two, edited")
    assert CHANGED not in book.run("a", "one")
    assert STORED not in book.run("c", "three", "--again")
    shown = book.run("c", "three")
    assert STORED in shown
    assert CHANGED not in shown
    assert book.asked == 5


def test_asking_an_earlier_cell_again_is_told_of(book: Book) -> None:
    book.run("a", "one")
    book.run("b", "two")
    book.run("a", "one", "--again")
    assert f"{CHANGED}what was asked before it" in book.run("b", "two")


def test_reordered_cells_are_told_of(book: Book) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        book.run(cell, text)
    book.restart()
    assert CHANGED not in book.run("a", "one")
    assert f"{CHANGED}what was asked before it" in book.run("c", "three")
    assert f"{CHANGED}what was asked before it" in book.run("b", "two")
    assert book.asked == 3


def test_looking_at_an_earlier_cell_again_is_no_change(book: Book) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        book.run(cell, text)
    for cell, text in (("a", "one"), ("c", "three"), ("b", "two"), ("b", "two")):
        assert CHANGED not in book.run(cell, text)


def test_trying_texts_in_one_cell_is_no_change(book: Book) -> None:
    book.run("a", "one")
    for text in ("two", "two!", "two!!"):
        book.run("b", text)
    assert CHANGED not in book.run("b", "two!!")
    assert CHANGED not in book.run("a", "one")


def test_another_model_is_told_of(book: Book, life: Life) -> None:
    book.run("a", "one")
    life(book)
    book.chat.configure(model=ScriptedModel(["other"], name="scripted:other"))
    shown = book.run("a", "one")
    assert f"{CHANGED}the model (scripted:book then, scripted:other now)" in shown
    assert "--again asks anew" in shown
    assert "other" in book.run("a", "one", "--again")
    assert CHANGED not in book.run("a", "one")


def test_other_tools_are_told_of(book: Book) -> None:
    @tool
    def look() -> str:
        return "seen"

    book.run("a", "one")
    notebook.install(look)
    try:
        assert f"{CHANGED}the tools" in book.run("a", "one")
    finally:
        notebook.registry.uninstall("notebook")
    assert CHANGED not in book.run("a", "one")


# -- what has not been answered --------------------------------------------------------------------------------------


def test_a_failed_submission_is_asked_anew_under_the_same_id(book: Book, script: Script, life: Life) -> None:
    script.fail = True
    book.fails("a", "one")
    life(book)
    book.fails("a", "one")
    script.fail = False
    life(book)
    shown = book.run("a", "one")
    assert "You said one" in shown
    assert "attempt 3 of this cell" in shown
    first, second, third = [request or "" for *_, request in book.submissions]
    assert second == f"{first}#2"
    assert third == f"{first}#3"
    life(book)
    assert STORED in book.run("a", "one")
    assert book.asked == 3


def test_without_cell_ids_the_next_life_asks_a_failed_one_anew_under_the_same_id(book: Book, script: Script) -> None:
    book.runner = True
    script.fail = True
    book.fails("", "one")
    script.fail = False
    book.restart()
    assert "attempt 2 of this cell" in book.run("", "one")
    first, second = [request or "" for *_, request in book.submissions]
    assert second == f"{first}#2"
    book.restart()
    assert STORED in book.run("", "one")
    assert STORED not in book.run("", "one"), "a second run stands for a second question"
    assert book.asked == 3


def test_an_aborted_submission_stays_aborted_until_it_is_asked_again(book: Book, life: Life) -> None:
    book.submit("a", "hang one")
    book.chat.stop()
    life(book)
    for _ in range(2):
        shown = book.run("a", "hang one")
        assert "stopped before" in shown
        assert "--again asks anew" in shown
    assert len(book.submissions) == 1
    assert "nothing is bound to x" in book.fails("a", "hang one", "--to x")
    turn = book.submit("a", "hang one", again=True)
    assert len(book.submissions) == 2
    book.chat.stop()
    with pytest.raises(Unanswered):
        turn.result()
    assert turn.view.status == "aborted"


def test_an_unfinished_submission_is_attached_to(book: Book, life: Life) -> None:
    first = book.submit("a", "hang one")
    life(book)
    again = book.submit("a", "hang one")
    assert again.id == first.id
    assert not again.view.settled
    book.chat.stop()
    assert len(book.submissions) == 1


def test_again_asks_anew_each_time_and_the_newest_is_found(book: Book, life: Life) -> None:
    book.run("a", "one")
    book.run("a", "one", "--again")
    assert "attempt 3 of this cell" in book.run("a", "one", "--again")
    newest = book.submissions[-1][0]
    life(book)
    assert book.submit("a", "one").id == newest
    assert book.asked == 3


# -- the pure part ---------------------------------------------------------------------------------------------------


def test_differences_are_said_in_words() -> None:
    then = Provenance(model="a:b", tools=("x",))
    assert then.differences(then, moved=False) is None
    assert then.differences(Provenance(model=None), moved=True) == (
        "what was asked before it and the model (a:b then, none now) and the tools"
    )


def test_the_first_run_of_a_life_knows_nothing_of_what_precedes() -> None:
    order = Order()
    assert not order.found(7, "c", after=6, known=True)
    assert order.found(5, "a", after=4, known=True)
    assert not order.found(8, "d", after=5, known=True)
    assert not order.found(9, "e", after=None, known=False)
