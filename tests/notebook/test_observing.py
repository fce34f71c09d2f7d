"""A notebook follows a session that another process works on; see notebook.md, ``%durable open --observe``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from notebook_shells import Shell, in_process_shell

from pidurable_nb import notebook
from pidurable_nb.errors import NotebookError, SessionInUse, StorageError, StorageRequestError
from pidurable_nb.models import ScriptedModel
from pidurable_nb.notebook.observing import ObservedChat

OWNER = """
import sys
from pidurable_nb import notebook
from pidurable_nb.models import Hang, ScriptedModel

model = ScriptedModel(lambda request: Hang(after="half an answer") if sys.argv[2] == "hang" else "the whole answer",
                      name="scripted:owner")
chat = notebook.open(sys.argv[1], model=model, show=False)
print("open", flush=True)
for line in sys.stdin:
    if line.strip() == "ask":
        chat.submit("tell me", request_id="one", show=False)
    elif line.strip() == "wait":
        chat.wait()
    else:
        break
    print(line.strip(), flush=True)
chat.close()
"""


class Owner:
    def __init__(self, where: str, what: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", OWNER, where, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hears("open")

    def hears(self, word: str) -> None:
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline().strip() == word

    def tell(self, word: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(30)


@contextmanager
def owner(where: str, what: str) -> Iterator[Owner]:
    made = Owner(where, what)
    try:
        yield made
    finally:
        if made.popen.poll() is None:
            made.kill()
        for stream in (made.popen.stdin, made.popen.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    with in_process_shell(capsys) as made:
        yield made


def text_of(shown: Any) -> str:
    text: str = shown._repr_mimebundle_()["text/plain"]
    return text


def until(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("where", ["chat.sqlite", "jsonl:chat"])
def test_a_session_is_followed_over_the_death_of_its_owner(shell: Shell, where: str) -> None:
    with owner(where, "hang") as first:
        shell.run(f"%durable open {where} --observe")
        chat = notebook.current()
        assert isinstance(chat, ObservedChat)
        assert chat.owner is not None
        assert chat.owner.pid == first.popen.pid
        status = text_of(chat.status())
        assert f"process {first.popen.pid} on " in status
        assert "nothing can be written" in status
        first.tell("ask")
        until(lambda: "half an answer" in text_of(chat.history()) or chat.status().state == "running")
        until(lambda: _partial(chat) == "half an answer")
        first.kill()
        status = text_of(chat.status())
        assert chat.status().state == "paused"
        assert f"nobody · process {first.popen.pid} was killed" in status
        with pytest.raises(NotebookError, match=r"nobody has .* open"):
            chat.wait()
    with owner(where, "answer") as second:
        assert chat.owner is not None
        assert chat.owner.pid == second.popen.pid
        chat.wait()
        assert [entry.text for entry in chat.history().entries][-2:] == ["half an answer", "the whole answer"]
        assert chat.status().state == "idle"
        assert chat.usage().requests == 1  # the one that was cut off told no usage
        second.tell("close")
        assert second.popen.wait(60) == 0
    until(lambda: chat.owner is None)
    assert "nobody · process" in text_of(chat.status())
    shell.run("%durable close")
    assert chat.closed


def _partial(chat: notebook.Chat) -> str | None:
    async def read() -> str | None:
        generation = (await chat.conversation.view()).live.generation
        return None if generation is None or generation.message is None else generation.message.text

    return chat.run(read)


def test_everything_that_would_write_is_refused_and_leaves_the_session_as_it_is(shell: Shell) -> None:
    with owner("chat.sqlite", "answer") as working:
        working.tell("ask")
        working.hears("ask")
        working.tell("wait")
        working.hears("wait")
        chat = notebook.observe("chat.sqlite", show=False)
        before = chat.observer.last_seq
        entry = chat.history().entries[-1].id
        assert entry is not None
        for write in (
            lambda: chat.submit("x"),
            lambda: chat.submit_cell("x", cell="c"),
            lambda: chat.steer("x"),
            lambda: chat.note("x"),
            lambda: chat.reset("x"),
            lambda: chat.stop(),
            lambda: chat.resume(),
            lambda: chat.configure(thinking="high"),
            lambda: chat.fork(),
            lambda: chat.rewind(entry),
            lambda: chat.compact(),
            lambda: chat.limit(turns=1),
            lambda: chat.backup("copy.sqlite"),
        ):
            with pytest.raises(StorageRequestError, match="only observed here, so nothing can be written"):
                write()
        assert not chat.closed
        assert chat.observer.last_seq == before
        assert chat.observer.end is None
        assert [entry.text for entry in chat.history().entries][-1] == "the whole answer"
    assert not Path("copy.sqlite").exists()


def test_magics_say_in_one_line_what_an_observer_cannot_do(shell: Shell) -> None:
    with owner("chat.sqlite", "answer"):
        shell.run("%durable open chat.sqlite --observe --as theirs")
        assert notebook.current().name == "theirs"
        failed = shell.fails("%durable ask What is it?")
        assert "only observed here" in failed
        assert "\n" not in failed.strip()
        assert "--as alone" in shell.fails("%durable open chat.sqlite --observe --model scripted:demo")


def test_a_session_that_nobody_has_is_observed_and_then_taken_over(shell: Shell) -> None:
    with owner("chat.sqlite", "answer") as working:
        observed = notebook.observe("chat.sqlite", show=False)
        assert notebook.observe("chat.sqlite", show=False) is observed
        with pytest.raises(SessionInUse):
            notebook.open("chat.sqlite", show=False)
        assert not observed.closed
        assert notebook.current() is observed
        working.tell("close")
        assert working.popen.wait(60) == 0
    chat = notebook.open("chat.sqlite", model=ScriptedModel(["mine"], name="scripted:mine"), show=False)
    assert observed.closed
    assert notebook.current() is chat
    assert not chat.observed
    assert chat.ask("whose?", show=False).text == "mine"
    with pytest.raises(NotebookError, match="open here already"):
        notebook.observe("chat.sqlite")


def test_what_cannot_be_observed_is_refused(shell: Shell, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        notebook.observe("missing.sqlite")
    with pytest.raises(StorageRequestError, match="in memory cannot be observed"):
        notebook.observe(":memory:")
