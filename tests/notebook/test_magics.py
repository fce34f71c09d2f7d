"""``%durable`` and ``%%durable`` in an IPython shell; see notebook.md, ``%durable``."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_shells import ROOT, Shell, in_process_shell

from pidurable_nb import notebook
from pidurable_nb.errors import NotebookError
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.models.protocol import ModelRequest
from pidurable_nb.notebook import commands
from pidurable_nb.notebook.commands import COMMANDS
from pidurable_nb.notebook.completing import option_names


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    for key in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    with in_process_shell(capsys) as made:
        yield made


def answer(request: ModelRequest) -> Reply | Hang:
    asked = [message.text for message in request.messages if message.role == "user"][-1]
    if asked.startswith("hang"):
        return Hang(after="so far")
    if asked.startswith("fail"):
        return Reply(error="400 the request is bad")
    if asked.startswith("again later"):
        return Reply(error="503 Service Unavailable, retry after 300 s")
    return Reply(f"You said {asked}")


@pytest.fixture
def chat(shell: Shell) -> notebook.Chat:
    model = ScriptedModel(answer, name="scripted:magics")
    opened = notebook.open("chat.sqlite", model=model, show=False)
    shell.names["model"] = model
    return opened


# -- loading ---------------------------------------------------------------------------------------------------------

LOAD = """
import sys, time
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
began = time.perf_counter()
shell.run_line_magic("load_ext", "pidurable_nb")
took = time.perf_counter() - began
heavy = [name for name in ("pydantic", "ipywidgets", "anywidget", "aiosqlite", "jupyter_client", "pidurable_nb.agent")
         if name in sys.modules]
import threading
print(took, heavy, threading.active_count())
"""


def test_loading_is_quick_and_does_nothing_else(tmp_path: Path) -> None:
    best = 10.0
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", LOAD], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        took, _, rest = done.stdout.partition(" ")
        assert rest.strip() == "[] 1"
        best = min(best, float(took))
    assert best < 0.3
    assert list(tmp_path.iterdir()) == []


# -- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(shell: Shell, name: str) -> None:
    shown = shell.run(f"%durable {name} --help")
    assert shown.startswith(f"usage: %durable {name}")
    assert f"example:  {COMMANDS[name].example}" in shown
    assert COMMANDS[name].example.startswith(f"%durable {name}")


@pytest.mark.parametrize("magic", ["%%durable", "%%durable_kernel"])
def test_cell_magics_explain_themselves(shell: Shell, magic: str) -> None:
    assert shell.run(f"{magic} --help\nx").startswith(f"usage: {magic}")


@pytest.mark.parametrize("line", ["%durable", "%durable --help", "%durable help", "%durable?"])
def test_the_list_of_commands_has_each_with_an_example(shell: Shell, line: str) -> None:
    shown = shell.run(line)
    for name, command in COMMANDS.items():
        assert re.search(rf"^\s*%durable {name}\b", shown, re.MULTILINE)
        assert command.about in shown
        assert command.example in shown
    assert "%%durable --to answer" in shown


def test_the_list_begins_with_what_everybody_uses(shell: Shell) -> None:
    used = re.findall(r"^    (%+durable(?:_kernel| \w+)?)", shell.run("%durable"), re.MULTILINE)
    assert used[:5] == ["%durable open", "%%durable", "%durable status", "%durable history", "%durable stop"]
    assert len(used) == len(set(used)) == len(COMMANDS) + 2


def test_the_documentation_has_a_section_for_each_command() -> None:
    text = (ROOT / "docs" / "magics.md").read_text()
    titles = re.findall(r"^## `(.+?)`$", text, re.MULTILINE)
    expected = [*(f"%durable {name}" for name in sorted(COMMANDS)), "%%durable", "%%durable_kernel"]
    assert sorted(titles) == sorted(expected)
    sections = dict(re.findall(r"^## `(.+?)`$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for name, command in COMMANDS.items():
        section = sections[f"%durable {name}"]
        assert command.example in section
        for option in option_names(command.parser):
            assert option == "--help" or f"`{option}" in section, f"{option} of {name}"
    for option in option_names(commands.CELL):
        assert option == "--help" or f"`{option}" in sections["%%durable"]
    for option in option_names(commands.KERNEL_CELL):
        assert option == "--help" or f"`{option}" in sections["%%durable_kernel"]


# -- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%durable ", "open"),
        ("%durable op", "open"),
        ("%durable open x --", "--model"),
        ("%durable open x --model ", "local:smollm2"),
        ("%durable open x --model scr", "scripted:demo"),
        ("%durable model local:smol", "local:smollm2"),
        ("%durable tasks --", "--all"),
        ("%durable kernel ", "restart"),
        ("%durable install ", "my_function"),
        ("%durable open ", "chat.sqlite"),
        ("%durable use ", "chat"),
        ("%durable configure th", "thinking="),
        ("%durable limits t", "tokens="),
        ("%durable export ", "chat.html"),
        ("%durable config w", "wait=on"),
        ("%durable stop --", "--background"),
        ("%%durable --", "--again"),
        ("%%durable --format ", "text"),
        ("%%durable_kernel --", "--until"),
    ],
)
def test_tab_completes(shell: Shell, chat: notebook.Chat, line: str, offered: str) -> None:
    shell.run("def my_function(): pass")
    assert offered in shell.complete(line)


def test_tab_completes_ids(shell: Shell, chat: notebook.Chat) -> None:
    for command in ("rewind", "fork", "show", "task", "abort", "withdraw", "signal", "approve"):
        assert not [word for word in shell.complete(f"%durable {command} ") if word.isdecimal()]
    answer = chat.ask("hello").entry.id
    chat.submit("hang", show=False)
    queued = chat.submit("later", show=False)
    for command in ("rewind", "fork", "show"):
        assert str(answer) in shell.complete(f"%durable {command} ")
    (task,) = (row.id for row in chat.tasks().rows)
    for command in ("task", "abort", "signal"):
        assert str(task) in shell.complete(f"%durable {command} ")
    assert str(queued.id) in shell.complete("%durable withdraw ")
    chat.fork(name="draft")
    assert "draft" in shell.complete("%durable conversations d")
    chat.stop()


def test_tab_completes_the_names_of_models(shell: Shell, tmp_path: Path) -> None:
    providers = shell.complete("%durable model ")
    assert {"scripted:demo", "openai:", "anthropic:", "groq:", "local:smollm2"} <= set(providers)
    for provider in ("openai:", "anthropic:", "groq:"):
        offered = shell.complete(f"%durable model {provider}")
        assert len(offered) >= 2, provider
        assert all(name.startswith(provider) for name in offered), offered
        assert shell.complete(f"%durable open x --model {offered[0][:-1]}") != []
    (tmp_path / "qwen.gguf").write_bytes(b"GGUF")
    (tmp_path / "more").mkdir()
    (tmp_path / "notes.txt").touch()
    shown = shell.complete(f"%durable model local:{tmp_path}/")
    assert {f"local:{tmp_path}/qwen.gguf", f"local:{tmp_path}/more/"} <= set(shown)
    assert f"local:{tmp_path}/notes.txt" not in shown
    assert "openai:" not in shell.complete("%durable model local:/no/such/folder/")


def test_models_that_can_be_used_now_come_first(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    said = shell.run("%durable models")
    assert "sk-test" not in said
    lines = [line for line in said.splitlines() if ":" in line]
    ready = [index for index, line in enumerate(lines) if "ready" in line]
    missing = [index for index, line in enumerate(lines) if "set ANTHROPIC_API_KEY" in line or "pip install" in line]
    assert ready
    assert missing
    assert max(ready) < min(missing)


def test_tab_offers_no_command_twice_and_nothing_in_a_text(shell: Shell) -> None:
    assert "open" not in shell.complete("%durable ask op")
    assert shell.complete("%durable use zz") == []


# -- one line for each failure ---------------------------------------------------------------------------------------


def test_paths_that_are_no_session_say_so_and_stay_as_they_were(shell: Shell, tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(500)
    (tmp_path / "picture.png").write_bytes(png)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("create table things (name)")
    other.commit()
    other.close()
    before = (tmp_path / "other.sqlite").read_bytes()
    assert "picture.png is not a session" in shell.fails("%durable open picture.png")
    assert "other.sqlite is an SQLite file of another program" in shell.fails("%durable open other.sqlite")
    assert "writ" in shell.fails("%durable open /proc/chat.sqlite")
    assert "picture.png" in shell.fails("%durable open picture.png/chat.sqlite")
    assert (tmp_path / "picture.png").read_bytes() == png
    assert (tmp_path / "other.sqlite").read_bytes() == before
    assert "no session is open" in shell.run("%durable status")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%durable opne x", "there is no command 'opne': did you mean open"),
        ("%durable opn x", "there is no command 'opn': did you mean open?"),
        ("%durable hist", "there is no command 'hist': did you mean history?"),
        ("%durable install my_functio", "run the cell that defines it (did you mean my_function?)"),
        ("%durable xyzzy", "there is no command 'xyzzy': `%durable` alone lists the commands"),
        ("%durable open", "the following arguments are required: path"),
        ("%durable open x.sqlite --modle y", "unrecognized arguments: --modle y; it is used so: %durable open"),
        ("%durable open 'x.sqlite", "a quote is not closed"),
        ("%durable open x.sqlite --model nope", "there is no model 'nope'"),
        ("%durable open x.sqlite --model nope:x", "no provider is named 'nope'"),
        ("%durable open x.sqlite --model openai:gpt-5-mini", "OPENAI_API_KEY"),
        ("%durable open x.sqlite --model anthropic:claude-sonnet-5", "ANTHROPIC_API_KEY"),
        ("%durable ask hello", "no session is open: `%durable open chat.sqlite` opens or creates one"),
        ("%%durable\nhello", "no session is open"),
        ("%%durable\n   \n", "the cell is empty"),
        ("%%durable --bogus\nhello", "unrecognized arguments: --bogus"),
        ("%%durable --to 3x\nhello", "--to 3x: that is not a name for a variable"),
        ("%%durable --to class\nhello", "--to class: that is not a name for a variable"),
        ("%%durable --steer --reject\nhello", "not allowed with argument"),
        ("%durable history many", "invalid int value: 'many'"),
        ("%durable use nothing", "no session or branch named 'nothing' is open here; open are: none"),
        ("%durable close nothing", "no session named 'nothing' is open here; open are: none"),
        ("%durable close", "no session is open"),
        ("%durable install nothing", "there is no nothing in this notebook"),
        ("%durable kernel explode x", "invalid choice: 'explode'"),
        ("%durable kernel kill nobody", "no child kernel 'nobody'"),
        ("%durable restart", "no Jupyter kernel"),
    ],
)
def test_a_failure_is_one_line_that_says_what_to_do(shell: Shell, cell: str, said: str) -> None:
    shell.run("def my_function(): pass")
    assert said in shell.fails(cell)


def test_a_fault_of_ours_is_one_line_too(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise KeyError("broken")

    monkeypatch.setattr(commands.sessions, "current", broken)
    with caplog.at_level("DEBUG", logger="pidurable_nb"):
        said = shell.fails("%durable usage")
    assert said.startswith("KeyError: 'broken'. This is a fault of pidurable_nb.")
    assert "in broken" in caplog.text


def test_a_failed_open_leaves_nothing_open(shell: Shell, tmp_path: Path) -> None:
    shell.fails("%durable open x.sqlite --model nope")
    assert "no session is open" in shell.run("%durable status")
    shell.run("%durable open x.sqlite --model scripted:demo")


def test_closed_sessions_give_one_clear_line(shell: Shell, chat: notebook.Chat) -> None:
    assert "closed chat.sqlite" in shell.run("%durable close")
    for cell in (
        "%durable ask x",
        "%%durable\nx",
        "%durable usage",
        "%durable history",
        "%durable stop",
        "%durable close",
    ):
        assert shell.fails(cell) == "no session is open: `%durable open chat.sqlite` opens or creates one"
    shell.names["chat"] = chat
    assert "closed" in shell.run("chat")
    with pytest.raises(NotebookError, match=r"`%durable open chat\.sqlite` opens it again"):
        chat.ask("x")


def test_an_answer_that_does_not_come_is_one_line(shell: Shell, chat: notebook.Chat) -> None:
    said = shell.fails("%%durable\nfail please")
    assert said.startswith("there is no answer: the model failed")
    assert "400 the request is bad" in said


def test_no_model_says_how_to_choose_one(shell: Shell) -> None:
    shell.run("%durable open empty.sqlite")
    assert shell.fails("%%durable --id question\nhello") == (
        "there is no answer: the conversation has no model: %durable model NAME sets one"
    )
    assert "the model is scripted:demo" in shell.run("%durable model scripted:demo")
    shown = shell.run("%%durable --id question\nhello")
    assert "You said: “hello”" in shown
    assert "attempt 2 of this cell" in shown


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%durable limits turns=-1", "turns cannot be -1: Input should be greater than or equal to 0"),
        ("%durable limits cost=nan", "cost cannot be nan: Input should be greater than or equal to 0"),
        ("%durable history -3", "-3 entries cannot be shown; give a number from 1"),
        ("%durable history 0", "0 entries cannot be shown; give a number from 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(shell: Shell, chat: notebook.Chat, line: str, said: str) -> None:
    assert said in shell.fails(line)
    assert shell.run("%durable limits").strip() == "limits: none"


def test_reject_says_that_a_run_goes_on(shell: Shell, chat: notebook.Chat) -> None:
    chat.submit("hang", show=False)
    assert "busy" in shell.fails("%%durable --reject\nhello")
    assert "stopped" in shell.run("%durable stop")


# -- opening ---------------------------------------------------------------------------------------------------------


def test_open_shows_its_card_once_and_gives_the_chat(shell: Shell) -> None:
    shown = shell.run("%durable open notes.sqlite --model scripted:demo")
    assert shown.count("new session") == 1
    shown = shell.run("again = %durable open notes.sqlite")
    assert "this kernel" in shown
    assert "recovered" not in shown
    assert shell.names["again"] is notebook.current()
    assert shell.run("%durable open ./notes.sqlite").count("this kernel") == 1


def test_the_same_file_and_the_same_name_twice(shell: Shell, chat: notebook.Chat, tmp_path: Path) -> None:
    said = shell.fails("%durable open ./chat.sqlite --as other")
    assert said == "./chat.sqlite is open here already, as chat: `%durable use chat` switches to it"
    (tmp_path / "sub").mkdir()
    assert "choose another name with --as NAME" in shell.fails("%durable open sub/chat.sqlite")
    shell.run("%durable open sub/chat.sqlite --as second")
    assert notebook.current().name == "second"
    assert "using chat.sqlite" in shell.run("%durable use chat")
    status = shell.run("%durable status")
    assert "second" in status
    assert "not the current session" in status or "sub/chat.sqlite" in status
    shell.run("%durable close second")
    assert notebook.current() is chat


def test_paths_may_have_spaces_values_and_backslashes(shell: Shell, tmp_path: Path) -> None:
    shell.names["where"] = "a folder"
    (tmp_path / "a folder").mkdir()
    shell.run('%durable open "a folder/one.sqlite"')
    shell.run("%durable open {where}/two.sqlite")
    assert (tmp_path / "a folder" / "one.sqlite").exists()
    assert (tmp_path / "a folder" / "two.sqlite").exists()
    assert commands._split(r"C:\data\chat.sqlite --as x") == [r"C:\data\chat.sqlite", "--as", "x"]


def test_journals_and_memory_open_too(shell: Shell, tmp_path: Path) -> None:
    shell.run("%durable open jsonl:journal --model scripted:demo")
    assert (tmp_path / "journal").is_dir()
    assert "this kernel" in shell.run("%durable open jsonl:journal")
    shell.run("%durable open :memory: --model scripted:demo")
    assert "this kernel" in shell.run("%durable open :memory:")


# -- asking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "asked"),
    [
        ("%%durable\n  plain text  \n", "plain text"),
        ("%%durable\ntwo\nlines", "two\nlines"),
        ("%%durable\n{value} and {value + 1}", "7 and 8"),
        ("%%durable --raw\n{value}", "{value}"),
        ('%%durable\n{"json": {"a": [1, 2]}} and {{value}}', '{"json": {"a": [1, 2]}} and {value}'),
        ("%%durable\ndef f(): return {x for x in y}", "def f(): return {x for x in y}"),
        ("%%durable\ncost $value and $HOME", "cost $value and $HOME"),
        (
            '%durable ask {value} $value "quoted" it\'s fine --to x # not a comment',
            '7 $value "quoted" it\'s fine --to x # not a comment',
        ),
        ("%durable ask What is {value}?", "What is 7?"),
        ("%durable follow on {value}", "on 7"),
        ("%durable steer to {value}", "to 7"),
        ("%%durable\n{Out[1]} {In[1]}", "'shown' 'shown'"),
        ("%%durable\nwhy {Err[2]}", None),
    ],
)
def test_the_text_arrives_as_meant(shell: Shell, chat: notebook.Chat, cell: str, asked: str | None) -> None:
    shell.names["value"] = 7
    shell.names["Out"][1] = "'shown'"
    shell.names["In"][:] = ["", "'shown'"]
    shell.shell.history_manager.exceptions[2] = {"ename": "E", "evalue": "v", "traceback": ["\x1b[31mE: v\x1b[0m"]}
    shown = shell.run(cell)
    request = shell.names["model"].requests[-1]
    if asked is None:
        asked = "why E: v"
    assert request.messages[-1].text == asked
    assert "✓ done" in shown
    assert f"You said {asked.splitlines()[0]}" in shown


def test_a_name_that_is_not_defined_is_said_and_sent_as_written(
    shell: Shell, chat: notebook.Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.shell.run_cell("%%durable\nTell me of {nosuch}.")
    assert capsys.readouterr().err == "`{nosuch}` is not defined here: sent as written\n"
    assert shell.names["model"].requests[-1].messages[-1].text == "Tell me of {nosuch}."
    shell.shell.run_cell('%%durable --raw\nTell me of {nosuch} and {"json": 1}')
    shell.shell.run_cell('%%durable\nA schema: {"json": {"nosuch": 1}} and `{nosuch}`')
    assert capsys.readouterr().err == ""


def test_to_binds_the_answer(shell: Shell, chat: notebook.Chat) -> None:
    shown = shell.run("%%durable --to reply\nhello")
    assert shown.count("You said hello") == 1
    reply = shell.names["reply"]
    assert reply.text == str(reply) == "You said hello"
    assert reply.entry.text == reply.text
    assert reply.usage.output_tokens > 0
    assert reply.submission.status == "done"
    assert shell.run("reply").count("You said hello") == 1
    assert shell.run("%%durable --to other\n{reply}").count("You said You said hello") == 1


def test_text_streams_as_text(shell: Shell, chat: notebook.Chat) -> None:
    assert shell.run("%%durable --format text\nhello") == "You said hello\n"
    assert shell.run("%%durable --format text --to reply\nbye") == "You said bye\n"
    assert shell.names["reply"].text == "You said bye"


def test_an_id_names_the_submission(shell: Shell, chat: notebook.Chat) -> None:
    shell.run("%%durable --id first\nhello")
    assert "stored answer" in shell.run("%%durable --id first\nhello")
    said = shell.fails("%%durable --id first\nsomething else")
    assert said == "the id 'first' was used for another text, “hello”: choose another id, or leave it out"
    assert "attempt 2" in shell.run("%%durable --id first --again\nhello")
    assert len(shell.names["model"].requests) == 2
    assert chat.ask("hello", request_id="first").submission.request_id == "first#2"


def test_what_is_shown_of_a_session(shell: Shell, chat: notebook.Chat) -> None:
    assert "no live tasks" in shell.run("%durable tasks")
    shell.run("%durable ask one")
    assert shell.run("%durable usage").startswith("usage · 1 request\n")
    assert "1 request · " in shell.run("%durable status")
    shell.run("%durable ask two")
    assert "2 tasks" in shell.run("%durable tasks --all")
    history = shell.run("%durable history")
    assert "You said one" in history
    assert "You said two" in history
    assert "You said one" not in shell.run("%durable history 2")
    assert "2 requests" in shell.run("%durable usage")
    assert "scripted:magics" in shell.run("%durable usage")
    assert "idle" in shell.run("%durable status")
    assert "scripted:demo" in shell.run("%durable models")
    for lists in ("usage", "models", "tools"):
        assert "idle" not in shell.run(f"%durable {lists}")  # no state is meant
    shell.run("%durable wait")
    assert "nothing was running" in shell.run("%durable stop")


def test_tools_are_installed_from_the_notebook(shell: Shell, chat: notebook.Chat) -> None:
    assert "no tools" in shell.run("%durable tools")
    shell.run(
        "from pidurable_nb import tool\n\n"
        "@tool(replay='safe')\ndef look(word: str) -> str:\n    'Look a word up.'\n    return word"
    )
    assert "installed look" in shell.run("%durable install look")
    shown = shell.run("%durable tools")
    assert "Look a word up. · safe to repeat" in shown
    assert "not a tool, a function or an extension" in shell.fails("value = 3\n%durable install value")


def test_retry_goes_on_after_a_failure(shell: Shell, chat: notebook.Chat) -> None:
    assert "no failed run" in shell.fails("%durable retry")
    shell.fails("%%durable\nfail please")
    shell.run("%durable retry")
    assert len(shell.names["model"].requests) == 2


def test_the_status_says_that_a_session_is_paused(shell: Shell, chat: notebook.Chat) -> None:
    notebook.close()
    shell.run("%durable open chat.sqlite --paused")
    assert "! paused" in shell.run("%durable status")
    shell.run("%durable resume")
    assert "paused" not in shell.run("%durable status")
