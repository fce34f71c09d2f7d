"""Notifications: what is worth telling, and where it is told."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import notebook, tool
from pidurable_nb.agent.state import LiveApproval, LiveRun, LiveState, RunFailure
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.notebook import frontend, notifying
from pidurable_nb.notebook.chat import Chat
from pidurable_nb.notebook.notifying import Notice, news, notify, ring

RUN = LiveRun(task=9, first=1, inputs=(2,))
NEXT = LiveRun(task=12, first=5, inputs=(3,))
ASKS = LiveApproval(call="c1", name="pay", at=1.0, arguments={"amount": 5})


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (LiveState(), LiveState(run=RUN), []),
        (LiveState(run=RUN), LiveState(), ["the answer is there"]),
        (LiveState(run=RUN), LiveState(run=NEXT), ["the answer is there"]),
        (LiveState(run=RUN), LiveState(run_failure=RunFailure(reason="model_error", first=1)), ["there is no answer"]),
        (LiveState(run=RUN), LiveState(run_failure=RunFailure(reason="aborted", first=1)), []),
        (LiveState(run=RUN), LiveState(run=RUN, approvals=(ASKS,)), ["waits for you, to allow pay(amount=5)"]),
        (LiveState(run=RUN, approvals=(ASKS,)), LiveState(run=RUN, approvals=(ASKS,)), []),
    ],
)
def test_what_is_worth_telling(before: LiveState, after: LiveState, said: list[str]) -> None:
    assert list(news(before, after)) == said


def until(what: str, condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.01)
    return found


def answer(request: Any) -> Any:
    last = request.messages[-1]
    if last.text == "hang":
        return Hang("half")
    if last.text == "pay":
        return Reply(tool_calls=[ToolCall(id="call-1", name="pay", arguments={"amount": 100})])
    return f"so: {last.text}"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """What is told, in order, while notifications are on in a live front end."""
    monkeypatch.setenv("PIDURABLE_NB_LIVE", "1")
    found: list[tuple[str, str]] = []
    notify(True)
    assert notifying._notifier is not None
    say = lambda content: found.append((content["news"]["title"], content["news"]["body"]))  # noqa: E731
    monkeypatch.setattr(notifying._notifier.widget, "say", say)
    yield found
    notify(False)


@pytest.fixture
def chat(tmp_path: Path, told: list[tuple[str, str]]) -> Iterator[Chat]:
    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    notebook.install(pay)
    chat = notebook.open(tmp_path / "told.sqlite", model=ScriptedModel(answer, name="scripted:told"), show=False)
    yield chat
    chat.close()


def test_a_run_that_ends_or_waits_is_told_and_one_that_is_stopped_is_not(
    chat: Chat, told: list[tuple[str, str]]
) -> None:
    chat.submit("one", show=False).result()
    until("its end is told", lambda: told == [("the answer is there", "one")])
    told.clear()
    turn = chat.submit("pay", show=False)
    until("it waits", lambda: told == [("waits for you, to allow pay(amount=100)", "pay")])
    chat.approve("call-1")
    turn.result()
    until("its end is told", lambda: told[1:] == [("the answer is there", "pay")])
    told.clear()
    hanging = chat.submit("hang", show=False)
    until("it answers", lambda: hanging.view.items)
    chat.stop()
    chat.submit("two", show=False).result()
    until("the next one's end is told", lambda: told == [("the answer is there", "two")])


def test_off_is_off(chat: Chat, told: list[tuple[str, str]]) -> None:
    notify(False)
    chat.submit("one", show=False).result()
    chat.close()  # all that was to be told has been told by then
    assert told == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_rings_and_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.__stdout__", terminal)
    ring(Notice(title="the answer is there", body="one", tag="x"))
    assert terminal.getvalue() == "\x1b]9;the answer is there: one\x1b\\\a"


def test_a_file_gets_no_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.__stdout__", file)
    ring(Notice(title="the answer is there", body="one", tag="x"))
    assert file.getvalue() == ""
    assert not frontend.in_kernel()
