"""Approving and denying from cells (notebook.md, ``%durable approve|deny``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pidurable_nb import notebook, tool
from pidurable_nb.errors import DurableError, NotebookError
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.notebook import commands
from pidurable_nb.notebook.chat import Chat
from pidurable_nb.notebook.render import to_text
from pidurable_nb.notebook.turns import Turn
from pidurable_nb.tools import subagent_tool


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    paid: list[int] = []

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    notebook.install(pay)
    call = Reply(tool_calls=[ToolCall(id="call-1", name="pay", arguments={"amount": 100})])
    model = ScriptedModel([call, lambda request: f"so: {request.messages[-1].text}"], name="scripted:bank")
    chat = notebook.open(tmp_path / "bank.sqlite", model=model, show=False)
    chat.paid = paid  # type: ignore[attr-defined]
    yield chat
    chat.close()


def asked(chat: Chat) -> Turn:
    """A turn that waits for a person: the waiting cell stops waiting and says so."""
    turn = chat.submit("pay", show=False)
    turn.wait_for_cell()
    assert turn.view.status == "waiting"
    return turn


def run(line: str) -> Any:
    return commands.run_line(SimpleNamespace(user_ns={}), line)


def test_a_waiting_cell_stops_and_says_what_is_asked_and_how_to_answer(chat: Chat) -> None:
    reason = asked(chat).view.reason
    assert reason is not None
    assert "pay(amount=100)" in reason
    assert "%durable approve call-1" in reason
    assert [item.call for item in chat.approvals()] == ["call-1"]
    chat.stop()


def test_a_subagent_s_call_is_asked_about_in_the_cell_that_waits_for_it(tmp_path: Path) -> None:
    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "tool_result":
            return f"so: {last.text}"
        name, given = ("pay", {"amount": 5}) if last.text == "Pay." else ("helper", {"task": "Pay."})
        return Reply(tool_calls=[ToolCall(id=f"call-{name}", name=name, arguments=given)])

    notebook.install(pay, subagent_tool("helper", "Helps."))
    model = ScriptedModel(answer, name="scripted:below")
    chat = notebook.open(tmp_path / "below.sqlite", model=model, show=False)
    try:
        turn = asked(chat)
        assert turn.view.reason is not None
        assert "pay(amount=5)" in turn.view.reason
        assert "%durable approve call-pay" in turn.view.reason
        run("approve")
        assert turn.result().text == "so: so: paid 5"
    finally:
        chat.close()


def test_approve_lets_it_run(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    turn = asked(chat)
    run("approve")
    assert turn.result().text == "so: paid 100"
    assert chat.paid == [100]  # type: ignore[attr-defined]
    assert "approved call-1" in capsys.readouterr().out


def test_status_and_card_name_the_call_that_waits(chat: Chat) -> None:
    turn = asked(chat)
    shown = chat.status()
    assert shown.state == "waiting"
    (row,) = [row for row in shown.rows if row.name == "waits for you"]
    assert row.value == "call-1 `pay(amount=100)`: `%durable approve CALL` or `%durable deny CALL`"
    assert "pay(amount=100) · waits for you" in to_text(turn.view)
    assert "waits for a person" in to_text(chat.tasks())
    said = commands._stops_waiting(turn.view, None)
    assert said.startswith("This cell ends here: it waits for you, to allow `pay(amount=100)`")
    assert "goes on" not in said
    chat.stop()


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_decision_in_a_paused_session_says_that_it_stays_paused(
    chat: Chat, decision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(chat)
    path, model = chat.path, chat.status().rows[2].value
    chat.close()
    again = notebook.open(path, paused=True, show=False)
    try:
        (row,) = [row for row in again.recovery.rows if row.what == "tool"]
        assert (row.was, row.level) == ("waiting for you", "warn")
        run("status")
        assert "! paused" in capsys.readouterr().out
        run(decision)
        said = capsys.readouterr().out
        assert "later: the session is paused: `%durable resume` starts it" in said
        assert "the run goes on" not in said
        assert again.harness.hold
        run("resume")
        again.wait()
        assert chat.paid == ([100] if decision == "approve" else [])  # type: ignore[attr-defined]
        assert again.status().rows[2].value == model
    finally:
        again.close()


def test_approve_with_edited_arguments(chat: Chat) -> None:
    turn = asked(chat)
    run("""approve call-1 --edit '{"amount": 7}'""")
    assert turn.result().text == "so: paid 7"


def test_deny_tells_the_model_the_note(chat: Chat) -> None:
    turn = asked(chat)
    run("deny --note 'too expensive'")
    assert "too expensive" in turn.result().text
    assert chat.paid == []  # type: ignore[attr-defined]


def test_errors_are_clear(chat: Chat) -> None:
    with pytest.raises(NotebookError, match="no call waits for you"):
        run("approve")
    turn = asked(chat)
    with pytest.raises(NotebookError, match="JSON object"):
        run("approve --edit '[1]'")
    with pytest.raises(DurableError, match="no call 'other' waits"):
        run("deny other")
    run("approve")
    turn.result()


@pytest.mark.parametrize(
    ("press", "paid", "said"),
    [
        ({"approve": True}, [100], "so: paid 100"),
        ({"approve": True, "arguments": {"amount": 3}}, [3], "so: paid 3"),
        ({"approve": False, "note": "too much"}, [], "too much"),
    ],
)
def test_the_buttons_of_a_card_decide_as_the_magics_do(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, press: dict[str, Any], paid: list[int], said: str
) -> None:
    monkeypatch.setenv("PIDURABLE_NB_LIVE", "1")
    turn = asked(chat)
    turn.show()
    widget = turn._widget
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "say", told.append)
    widget._handle_custom_msg({"do": "decide", "press": "p1", "call": "call-1", **press}, [])
    assert said in turn.result().text
    assert chat.paid == paid  # type: ignore[attr-defined]
    assert told == [{"heard": "p1"}, {"heard": "p1", "done": None}]


def test_a_button_that_comes_too_late_or_says_nonsense_is_told_so(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIDURABLE_NB_LIVE", "1")
    turn = asked(chat)
    turn.show()
    widget = turn._widget
    told: list[Any] = []
    monkeypatch.setattr(widget, "say", lambda content: told.append(content.get("error")))
    chat.deny("call-1")
    turn.result()
    for press, said in (({"call": "call-1"}, "no call 'call-1' waits"), ({"call": 7}, "the page did not say call")):
        widget._handle_custom_msg({"do": "decide", "press": said, **press}, [])
        chat.run(lambda: asyncio.sleep(0))
        assert said in told[-1]
    assert chat.paid == []  # type: ignore[attr-defined]
