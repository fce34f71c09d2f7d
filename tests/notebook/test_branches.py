"""Branches of a notebook: forked, rewound to, listed, compared, compacted; see notebook.md, ``%durable``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from notebook_books import CHANGED, STORED, Book, Life, Script

from pidurable_nb import notebook
from pidurable_nb.errors import DurableError, NotebookError, Unanswered
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.models.protocol import ModelRequest


def answers(book: Book) -> list[int]:
    """The entries of the answers that this branch shows."""
    return [entry.id for entry in book.chat.history().entries if entry.role == "assistant"]


def said(chat: notebook.Chat) -> list[str]:
    """What was asked, as the chat shows it."""
    return [entry.text for entry in chat.history().entries if entry.role == "user"]


def read_last(book: Book) -> list[str]:
    """What the model was asked last, with what came before."""
    return [message.text for message in book.model.requests[-1].messages if message.role == "user"]


# -- rewinding -------------------------------------------------------------------------------------------------------


def test_rewinding_goes_on_from_an_earlier_entry(book: Book) -> None:
    book.run("a", "one")
    book.run("b", "two")
    first = answers(book)[0]
    shown = book.run("c", str(first), magic="%durable rewind")
    branch = book.chat.conversation.id
    assert branch != 1
    assert f"conversation {branch} goes on after #{first}" in shown
    book.run("d", "three")
    assert read_last(book) == ["one", "three"]
    assert said(book.chat) == ["one", "three"]
    assert said(book.chat.branch(1)) == ["one", "two"]


def test_the_next_life_is_on_the_branch(book: Book) -> None:
    book.run("a", "one")
    book.chat.rewind(answers(book)[0])
    branch = book.chat.conversation.id
    book.restart()
    assert book.chat.conversation.id == branch
    book.run("new", "two")
    assert read_last(book) == ["one", "two"]


@pytest.mark.parametrize("runner", [False, True], ids=["with cell ids", "without cell ids"])
def test_running_all_again_forks_and_asks_nothing_twice(book: Book, runner: bool) -> None:
    book.runner = runner
    book.run("a", "one")
    book.run("b", "two")
    entries = answers(book)

    def rest() -> list[str]:
        shown = [book.run("c", str(entries[0]), magic="%durable rewind")]
        shown.append(book.run("d", "two"))  # the same question once more, from there
        shown.append(book.run("e", "three"))
        shown.append(book.run("f", str(entries[0]), magic="%durable rewind"))
        return [*shown, book.run("g", "two")]

    rest()
    before = book.submissions, len(book.chat.conversations().rows), book.chat.conversation.id
    assert before[1] == 3
    for _ in range(2):
        book.restart()
        first = [book.run("a", "one"), book.run("b", "two")]
        again = rest()
        assert (book.submissions, len(book.chat.conversations().rows), book.chat.conversation.id) == before
        for shown in (first[0], again[1], again[2], again[4]):
            assert STORED in shown
            assert CHANGED not in shown
            assert "another branch" not in shown.replace("in conversation 1, another branch", "")
        assert "in conversation 1, another branch" in first[1]
    assert book.asked == 5


def test_a_cell_that_ran_before_the_rewind_asks_again_on_the_new_branch(book: Book) -> None:
    book.run("a", "one")
    book.run("b", "two")
    first = answers(book)[0]
    book.run("c", str(first), magic="%durable rewind")
    assert STORED in book.run("a", "one")  # it is in sight
    assert STORED not in book.run("b", "two")  # what it asked was left behind
    assert said(book.chat) == ["one", "two"]
    assert book.asked == 3


def test_running_a_rewind_again_goes_back_to_its_branch(book: Book) -> None:
    book.run("a", "one")
    book.run("b", str(answers(book)[0]), magic="%durable rewind")
    branch = book.chat.conversation.id
    book.run("c", "two")
    book.run("d", str(answers(book)[0]), magic="%durable rewind")
    assert book.chat.conversation.id != branch
    book.run("b", str(answers(book)[0]), magic="%durable rewind")
    assert book.chat.conversation.id == branch
    assert STORED in book.run("c", "two")
    assert len(book.chat.conversations().rows) == 3


def test_rewinding_reaches_what_was_left_behind(book: Book) -> None:
    book.run("a", "one")
    book.run("b", "two")
    first, second = answers(book)
    book.chat.rewind(first)
    book.run("c", "three")
    book.chat.rewind(second)
    book.run("d", "four")
    assert read_last(book) == ["one", "two", "four"]


def test_a_new_question_comes_after_what_the_branch_shows(book: Book, life: Life) -> None:
    book.run("a", "one")
    book.run("b", "two")
    book.run("c", str(answers(book)[0]), magic="%durable rewind")
    book.run("d", "three")
    life(book)
    book.run("a", "one")
    book.run("b", "two, edited")  # is no longer before it
    book.run("c", str(answers(book)[0]), magic="%durable rewind")
    assert CHANGED not in book.run("d", "three")


def test_a_question_that_failed_before_the_rewind_is_asked_on_the_branch(book: Book, script: Script) -> None:
    book.run("a", "one")
    script.fail = True
    book.fails("b", "two")
    script.fail = False
    book.run("c", str(answers(book)[0]), magic="%durable rewind")
    book.restart()
    assert "You said two" in book.run("b", "two")
    assert STORED in book.run("b", "two")
    assert said(book.chat) == ["one", "two"]


def test_notes_and_resets_are_found_over_branches(book: Book) -> None:
    book.run("a", "remember", magic="%durable note")
    book.run("b", "one")
    book.run("c", str(answers(book)[0]), magic="%durable rewind")
    before = book.submissions
    book.restart()
    book.run("a", "remember", magic="%durable note")
    assert book.submissions == before


@pytest.mark.parametrize("entry", ["999", "x"])
def test_rewinding_to_what_there_is_not_says_so(book: Book, entry: str) -> None:
    book.run("a", "one")
    line = book.shell.fails(f"%durable rewind {entry}")
    assert "there is no entry 999: `%durable history` shows their ids" in line or "invalid int value: 'x'" in line
    assert book.chat.conversation.id == 1


# -- forking ---------------------------------------------------------------------------------------------------------


def test_a_fork_goes_on_by_itself(book: Book) -> None:
    book.run("a", "one")
    shown = book.run("b", "--as draft", magic="%durable fork")
    assert "`%durable use draft` works on it" in shown
    assert book.chat.conversation.id == 1
    book.run("c", "two")
    book.run("d", "draft", magic="%durable use")
    book.run("e", "three")
    assert read_last(book) == ["one", "three"]
    assert said(book.chat) == ["one", "two"]
    assert said(notebook.current()) == ["one", "three"]
    book.run("f", "book", magic="%durable use")
    book.run("g", "four")
    assert read_last(book) == ["one", "two", "four"]


@pytest.mark.parametrize("runner", [False, True], ids=["with cell ids", "without cell ids"])
def test_running_all_again_finds_the_fork(book: Book, runner: bool) -> None:
    book.runner = runner

    def cells() -> list[str]:
        book.run("a", "one")
        book.run("b", "--as draft", magic="%durable fork")
        book.run("c", "draft", magic="%durable use")
        return [book.run("d", "two"), book.run("e", "", magic="%durable conversations")]

    before = cells()
    for _ in range(2):
        book.restart()
        again = cells()
        assert STORED in again[0]
        assert again[1] == before[1]
    assert book.asked == 2


def test_a_branch_is_found_by_name_in_the_next_life(book: Book) -> None:
    book.run("a", "one")
    draft = book.chat.fork(name="draft")
    assert draft.ask("two").text == "You said two"
    draft.rewind(draft.history().entries[1].id)
    where = draft.conversation.id
    book.restart()
    assert "draft" in book.shell.complete("%durable use d")
    book.run("b", "draft", magic="%durable use")
    assert notebook.current().conversation.id == where
    assert notebook.current().name == "draft"
    assert book.chat.branch("draft") is notebook.current()


def test_a_fork_can_be_made_at_an_entry_and_used_by_its_id(book: Book) -> None:
    book.run("a", "one")
    book.run("b", "two")
    branch = book.chat.fork(answers(book)[0])
    assert branch.name == f"book-{branch.conversation.id}"
    assert said(branch) == ["one"]
    book.run("c", str(branch.conversation.id), magic="%durable use")
    assert notebook.current() is branch
    assert book.chat.branch(1) is book.chat


def test_closing_a_branch_closes_its_session(book: Book) -> None:
    book.run("a", "one")
    draft = book.chat.fork(name="draft")
    book.restart()
    with pytest.raises(NotebookError, match="no session named 'draft' is open here; open are: book"):
        notebook.close("draft")
    draft = book.chat.branch("draft")
    notebook.use("draft")
    notebook.close()
    assert draft.closed
    assert book.chat.closed
    assert notebook.sessions() == ()


def test_opening_again_is_not_confused_by_branches(book: Book) -> None:
    book.run("a", "one")
    book.chat.fork(name="draft")
    notebook.use("draft")
    assert notebook.open("book.sqlite", show=False) is book.chat
    assert notebook.current() is book.chat


def test_what_cannot_be_forked_says_why(book: Book) -> None:
    assert "there is nothing to fork yet: ask something first" in book.shell.fails("%durable fork")
    book.run("a", "one")
    book.chat.fork(name="draft")
    assert "a session named draft is open" in book.shell.fails("%durable fork --as draft")
    assert "a session named book is open" in book.shell.fails("%durable fork --as book")
    assert "'12' is no name" in book.shell.fails("%durable fork --as 12")
    assert "there is no entry 999" in book.shell.fails("%durable fork 999")
    line = book.shell.fails("%durable use nosuch")
    assert "no session or branch named 'nosuch' is open here; open are: book, draft" in line
    assert "there is no branch 999; there are 1, draft" in book.shell.fails("%durable use 999")
    book.restart()
    line = book.shell.fails("%durable fork --as draft")
    assert "there is a branch named draft: `%durable use draft` works on it" in line


def test_a_request_id_makes_forking_and_rewinding_idempotent(book: Book, life: Life) -> None:
    book.run("a", "one")
    entry = answers(book)[0]
    fork = book.chat.fork(request_id="f").conversation.id
    book.chat.rewind(entry, request_id="r")
    branch = book.chat.conversation.id
    life(book)
    assert book.chat.fork(request_id="f").conversation.id == fork
    book.chat.rewind(entry, request_id="r")
    assert book.chat.conversation.id == branch
    assert len(book.chat.conversations().rows) == 3


# -- saying something differently ------------------------------------------------------------------------------------


def test_editing_a_question_runs_on_from_it_and_keeps_the_original(book: Book) -> None:
    book.run("a", "one")
    book.run("b", "two")
    question = [entry.id for entry in book.chat.history().entries if entry.role == "user"][1]
    turn = book.chat.edit(question, "two, but better")
    assert turn.result().text == "You said two, but better"
    assert read_last(book) == ["one", "two, but better"]
    assert said(book.chat) == ["one", "two, but better"]
    assert said(book.chat.branch(1)) == ["one", "two"]
    branch = book.chat.conversation.id
    book.restart()
    assert book.chat.conversation.id == branch
    assert STORED in book.run("a", "one")


def test_an_edit_with_a_request_id_is_made_once(book: Book, life: Life) -> None:
    book.run("a", "one")
    book.run("b", "two")
    question = [entry.id for entry in book.chat.history().entries if entry.role == "user"][1]
    first = book.chat.edit(question, "better", request_id="edit").result()
    life(book)
    again = book.chat.edit(question, "better", request_id="edit").result()
    assert again.entry == first.entry
    assert said(book.chat) == ["one", "better"]
    assert len(book.chat.conversations().rows) == 2
    assert book.asked == 3


def test_the_first_question_can_be_edited(book: Book) -> None:
    book.run("a", "one")
    question = next(entry.id for entry in book.chat.history().entries if entry.role == "user")
    book.chat.edit(question, "first").result()
    assert read_last(book) == ["first"]
    book.restart()
    assert said(book.chat) == ["first"]
    assert STORED in book.run("a", "one")


def test_only_questions_can_be_edited(book: Book) -> None:
    book.run("a", "one")
    with pytest.raises(DurableError, match="is no input"):
        book.chat.edit(answers(book)[0], "x")
    with pytest.raises(DurableError, match="has no entry 999"):
        book.chat.edit(999, "x")
    assert book.chat.conversation.id == 1


# -- looking ---------------------------------------------------------------------------------------------------------


def test_conversations_are_listed_as_a_tree(book: Book) -> None:
    book.run("a", "one")
    entry = answers(book)[0]
    draft = book.chat.fork(name="draft")
    draft.ask("a very different question")
    book.chat.rewind(entry)
    branch = book.chat.conversation.id
    shown = book.run("b", "", magic="%durable conversations")
    assert shown.splitlines() == [
        "3 conversations",
        "  1 · one",
        f"    {draft.conversation.id} draft · from #{entry} · a very different question",
        f"    {branch} · you are here · from #{entry}",
    ]
    html = book.chat.conversations()
    assert [row.current for row in html.rows] == [False, False, True]
    assert f"conversation {branch}, a branch of 1 from #{entry}" in book.run("c", "", magic="%durable status")


def test_two_branches_are_compared(book: Book) -> None:
    book.run("a", "one")
    entry = answers(book)[0]
    draft = book.chat.fork(name="draft")
    draft.ask("left")
    book.run("b", "right")
    shown = book.run("c", "draft", magic="%durable conversations")
    lines = shown.splitlines()
    assert lines[0] == f"they share 2 entries, through #{entry}"
    assert (
        lines.index("conversation 1:")
        < lines.index("    right")
        < lines.index(f"conversation {draft.conversation.id}, draft:")
    )
    assert "    You said left" in lines
    found = book.chat.compare("draft", 1)
    assert [item.text for item in found.ours] == ["left", "You said left"]
    assert [item.text for item in found.theirs] == ["right", "You said right"]
    assert "name one branch, to compare it with this one, or two" in book.shell.fails("%durable conversations 1 2 3")
    with pytest.raises(NotebookError, match="there is no branch nosuch"):
        book.chat.compare("nosuch")


def test_branches_of_an_observed_session_are_looked_at_and_not_made(book: Book) -> None:
    book.run("a", "one")
    entry = answers(book)[0]
    book.chat.fork(name="draft").ask("two")
    notebook.close()
    book.shell.run("%durable open book.sqlite --observe")
    assert "draft" in book.shell.run("%durable conversations")
    assert "You said two" in book.shell.run("%durable conversations draft")
    for line in ("fork", "fork --as other", f"rewind {entry}", "compact"):
        assert "observe" in book.shell.fails(f"%durable {line}")
    book.shell.run("%durable use draft")
    assert "You said two" in book.shell.run("%durable history")
    assert "nobody" in book.shell.run("%durable status")
    book.shell.run("%durable export draft.md")
    assert "You said two" in Path("draft.md").read_text()


# -- compacting ------------------------------------------------------------------------------------------------------


class Compactor:
    """A model that answers at length, and summarises when it is asked to."""

    def __init__(self) -> None:
        self.summaries = 0
        self.fail = False
        self.hang = False

    def __call__(self, request: ModelRequest) -> Reply | Hang:
        if any("compaction" in message.sections for message in request.messages if message.role == "system"):
            self.summaries += 1
            if self.fail:
                return Reply(error="400 no")
            if self.hang:
                return Hang(after="the")
            asked = request.messages[-1].text
            return Reply("the gist of it" + (", with numbers" if "Keep the numbers." in asked else ""))
        return Reply("long " * 20_000)


@pytest.fixture
def compactor(book: Book) -> Compactor:
    made = Compactor()
    book.model = ScriptedModel(made, name="scripted:book")
    notebook.close()
    book.open()
    return made


def test_compacting_waits_and_says_what_came_of_it(book: Book, compactor: Compactor) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        book.run(cell, text)
    shown = book.run("c", "Keep the numbers.", magic="%durable compact")
    assert "done · compacted" in shown
    assert "the gist of it, with numbers" in shown
    assert "the gist of it" in book.run("d", "", magic="%durable context")
    assert said(book.chat) == ["one", "two"]


@pytest.mark.parametrize("runner", [False, True], ids=["with cell ids", "without cell ids"])
def test_running_all_again_compacts_nothing_twice(book: Book, compactor: Compactor, runner: bool) -> None:
    book.runner = runner
    for _ in range(3):
        for cell, text in (("a", "one"), ("b", "two")):
            book.run(cell, text)
        assert "the gist of it" in book.run("c", "", magic="%durable compact")
        assert compactor.summaries == 1
        assert len(book.model.requests) == 3
        book.restart()


def test_a_compaction_that_a_kernel_left_is_waited_for_by_the_same_cell(book: Book, compactor: Compactor) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        book.run(cell, text)
    compactor.hang = True
    book.cell = "c"
    book.shell.names["chat"] = book.chat
    book.shell.run("request = chat.cell_request('compact', '', cell='c')")
    task = book.chat.run(book.chat._branches.compact, None, book.shell.names["request"])
    deadline = time.monotonic() + 30
    while not compactor.summaries:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    compactor.hang = False
    book.restart()
    assert "the gist of it" in book.run("c", "", magic="%durable compact")
    tasks = book.chat.run(book.chat.harness.tasks(kind="pi.compaction").list)
    assert [found.id for found in tasks] == [task]


def test_a_short_context_is_left_alone(book: Book) -> None:
    book.run("a", "one")
    assert "nothing to compact: the context is short enough" in book.run("b", "", magic="%durable compact")


def test_a_failed_compaction_says_why_and_is_tried_again(book: Book, compactor: Compactor) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        book.run(cell, text)
    compactor.fail = True
    book.cell = "c"
    assert "the compaction has failed: 400 no" in book.shell.fails("%durable compact")
    compactor.fail = False
    assert "the gist of it" in book.run("c", "", magic="%durable compact")


def test_a_paused_session_is_not_waited_for(book: Book, tmp_path: Path) -> None:
    chat = notebook.open("paused.sqlite", model=book.model, paused=True, show=False)
    with pytest.raises(NotebookError, match="nothing would end: the session is paused"):
        chat.compact()


# -- while something runs --------------------------------------------------------------------------------------------


def test_a_run_on_the_branch_that_was_left_goes_on_and_can_be_stopped(book: Book) -> None:
    book.run("a", "one")
    left = book.submit("b", "hang there")
    book.chat.rewind(answers(book)[0])
    book.run("c", "three")
    assert said(book.chat) == ["one", "three"]
    book.chat.stop()
    assert not left.view.settled
    book.chat.run(left._stop)
    with pytest.raises(Unanswered):
        left.result()
    assert left.view.status == "aborted"


def test_an_unfinished_question_of_the_branch_that_was_left_is_attached_to(book: Book) -> None:
    book.run("a", "one")
    left = book.submit("b", "hang there")
    book.run("c", str(answers(book)[0]), magic="%durable rewind")
    book.restart()
    again = book.submit("b", "hang there")
    assert again.id == left.id
    assert not again.view.settled
    assert len(book.submissions) == 2
    book.chat.run(again._stop)
