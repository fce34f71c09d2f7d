"""The Conversation widget over a real session: what it follows, and what each of its buttons does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import notebook, tool
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.notebook.chat import Chat
from pidurable_nb.notebook.live import LiveView
from pidurable_nb.notebook.talk import PAGE
from pidurable_nb.notebook.talkview import TalkView


def until(what: str, condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.01)
    return found


def answer(request: Any) -> Any:
    last = request.messages[-1]
    if last.role == "tool_result":
        return f"so: {last.text}"
    if last.text == "hang":
        return Hang("half of it")
    if last.text == "pay":
        return Reply(tool_calls=[ToolCall(id="call-1", name="pay", arguments={"amount": 100})])
    return f"you said {last.text}"


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    notebook.install(pay)
    chat = notebook.open(tmp_path / "talk.sqlite", model=ScriptedModel(answer, name="scripted:talk"), show=False)
    yield chat
    chat.close()


class Page:
    """What a page would do with the widget of a watched conversation."""

    def __init__(self, shown: LiveView[TalkView], monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown = shown
        self.told: dict[str, dict[str, Any]] = {}
        made: list[Any] = []
        make = shown._make_widget

        def widget(view: TalkView) -> Any:
            made.append(make(view))
            monkeypatch.setattr(made[0], "say", self._hear)
            return made[0]

        monkeypatch.setattr(shown, "_make_widget", widget)
        monkeypatch.setenv("PIDURABLE_NB_LIVE", "1")
        shown.show()
        (self.widget,) = made
        self._presses = 0

    def _hear(self, content: dict[str, Any]) -> None:
        if "done" in content or "error" in content:
            self.told[content["heard"]] = content

    @property
    def view(self) -> TalkView:
        return self.shown.view

    def press(self, name: str, **value: Any) -> Any:
        """Press a button and wait for what it tells."""
        told = self.press_only(name, **value)
        content = until(f"{name} is answered", lambda: self.told.get(told))
        assert "error" not in content, content["error"]
        return content["done"]

    def press_only(self, name: str, **value: Any) -> str:
        self._presses += 1
        press = f"p{self._presses}"
        self.widget._handle_custom_msg({"do": name, "press": press, **value}, [])
        return press

    def fails(self, name: str, **value: Any) -> str:
        told = self.press_only(name, **value)
        content = until(f"{name} is answered", lambda: self.told.get(told))
        return str(content["error"])

    def texts(self) -> list[str]:
        """What people and the model said, oldest first."""
        return [
            block.said.text if block.answer is None and block.said else block.answer.text if block.answer else ""
            for block in self.view.blocks
            if block.said is None or block.said.role in ("user", "assistant")
        ]

    def waits_for(self, *texts: str) -> None:
        until(f"{texts} are shown", lambda: self.texts() == list(texts))


@pytest.fixture
def page(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(chat.watch(), monkeypatch)


def test_a_message_is_sent_and_its_answer_appears(chat: Chat, page: Page) -> None:
    assert page.view.state == "idle"
    done = page.press("send", text="one", mode="send")
    page.waits_for("one", "you said one")
    until("it is idle", lambda: page.view.state == "idle")
    assert page.view.model == "scripted:talk"
    assert page.view.usage[0] == "1 request"
    record = chat.record(done["submission"])
    assert record.status == "done"  # type: ignore[union-attr]


def test_a_busy_run_is_steered_followed_withdrawn_from_and_stopped(page: Page) -> None:
    page.press("send", text="hang", mode="send")
    until("it answers", lambda: page.view.state == "running" and page.texts() == ["hang", "half of it"])
    page.press("send", text="be brief", mode="steer")
    follow = page.press("send", text="and then", mode="follow_up")["submission"]
    until("both wait", lambda: [chip.mode for chip in page.view.waiting] == ["steers", "follows"])
    page.press("withdraw", submission=follow)
    until("one waits", lambda: [chip.text for chip in page.view.waiting] == ["be brief"])
    assert page.fails("withdraw", submission=follow) == "it has ended before"
    page.press("stop")
    until("it is idle", lambda: page.view.state == "idle" and not page.view.waiting)
    assert page.view.stopping is None
    assert page.view.blocks[-1].wire()["items"][0]["label"] == "stopped here · kept"


def test_a_call_is_decided(page: Page) -> None:
    page.press("send", text="pay", mode="send")
    until("it waits for a person", lambda: page.view.state == "waiting")
    asks = [item["asks"] for block in page.view.wire()["blocks"].values() for item in block["items"]]
    assert [ask["call"] for ask in asks] == ["call-1"]
    page.press("decide", call="call-1", approve=True, arguments={"amount": 5})
    page.waits_for("pay", "", "so: paid 5")


def test_fork_from_an_answer_and_back(chat: Chat, page: Page) -> None:
    page.press("send", text="one", mode="send")
    page.waits_for("one", "you said one")
    first = page.view.blocks[-1].said
    assert first is not None
    page.press("send", text="two", mode="send")
    page.waits_for("one", "you said one", "two", "you said two")
    branch = page.press("fork", entry=first.id)["conversation"]
    page.waits_for("one", "you said one")
    assert page.view.origin == (chat.conversation.id, first.id)
    assert page.view.name == f"talk-{branch}"
    page.press("send", text="three", mode="send")
    page.waits_for("one", "you said one", "three", "you said three")
    assert page.view.conversation == branch
    page.press("open", conversation=chat.conversation.id)
    page.waits_for("one", "you said one", "two", "you said two")
    assert page.fails("open", conversation=99_999) == "there is no conversation 99999"


def test_a_question_is_edited_and_run_again_on_a_new_branch(chat: Chat, page: Page) -> None:
    page.press("send", text="one", mode="send")
    page.waits_for("one", "you said one")
    page.press("send", text="two", mode="send")
    page.waits_for("one", "you said one", "two", "you said two")
    asked = [block.said.id for block in page.view.blocks if block.said and block.said.role == "user"]
    page.press("again", entry=asked[1], text="other")
    page.waits_for("one", "you said one", "other", "you said other")
    assert chat.conversation.id == page.view.conversation  # the notebook goes on there
    # Before the first entry there is nothing to fork from.
    page.press("again", entry=asked[0], text="first")
    page.waits_for("first", "you said first")
    assert page.view.model == "scripted:talk"
    page.press("open", conversation=1)
    page.waits_for("one", "you said one", "two", "you said two")
    # Where the notebook is not, an edit leaves it where it is.
    here = chat.conversation.id
    page.press("again", entry=asked[1], text="third")
    page.waits_for("one", "you said one", "third", "you said third")
    assert chat.conversation.id == here != page.view.conversation


def test_a_notebook_that_is_rewound_is_followed(chat: Chat, page: Page) -> None:
    page.press("send", text="one", mode="send")
    page.waits_for("one", "you said one")
    first = page.view.blocks[-1].said
    assert first is not None
    page.press("send", text="two", mode="send")
    page.waits_for("one", "you said one", "two", "you said two")
    chat.rewind(first.id)
    page.waits_for("one", "you said one")
    assert page.view.conversation == chat.conversation.id


def test_older_entries_come_when_they_are_asked_for(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(PAGE):
        chat.note(f"note {number}")
    chat.ask("one")
    page = Page(chat.watch(), monkeypatch)
    assert page.view.earlier
    assert len(page.view.blocks) <= PAGE
    assert "note 0" not in str(page.view)
    page.press("older")
    until("all are shown", lambda: not page.view.earlier)
    assert page.view.blocks[0].said is not None
    assert page.view.blocks[0].said.text == "note 0"


def test_a_long_conversation_shows_its_newest_part_while_it_grows(page: Page, chat: Chat) -> None:
    for number in range(2 * PAGE):
        chat.note(f"note {number}")
    until("the newest is shown", lambda: f"note {2 * PAGE - 1}" in str(page.view.blocks[-1:]))
    assert page.view.earlier
    assert len(page.view.blocks) < 2 * PAGE


def test_a_task_tells_its_story(page: Page) -> None:
    page.press("send", text="one", mode="send")
    page.waits_for("one", "you said one")
    task = page.view.blocks[-1].task
    assert task is not None
    told = page.press("task", task=task)
    assert told["task"] == task
    assert "pi.generation" in told["story"]


def test_nonsense_is_refused_in_words(page: Page) -> None:
    assert page.fails("send", text=" ", mode="send").startswith("an input needs content")
    assert page.fails("send", text="x", mode="rm") == "a message is sent, steers or follows"
    assert page.fails("send", mode="send") == "the page did not say text"
    assert page.fails("fork", entry="1") == "the page did not say entry"
    assert page.fails("fork", entry=424242)
    assert page.fails("retry").startswith("conversation 1 has no failed run")


def test_a_session_that_closes_says_so(chat: Chat, page: Page) -> None:
    page.press("send", text="one", mode="send")
    page.waits_for("one", "you said one")
    chat.close()
    until("it says that it is over", lambda: page.view.state == "over")
    assert "open it again" in str(page.view.problem)


def test_an_observed_session_is_shown_and_takes_no_messages(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.ask("one")
    chat.close()
    observed = notebook.observe(chat.path, name="observed", show=False)
    try:
        page = Page(observed.watch(), monkeypatch)
        page.waits_for("one", "you said one")
        assert not page.view.writes
        assert page.fails("send", text="two", mode="send")
        assert page.press("task", task=page.view.blocks[-1].task)["story"]
        assert observed.dashboard().view.graph.can_abort is False
    finally:
        observed.close()


def test_a_dashboard_follows_all_of_its_parts(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(chat.dashboard(), monkeypatch)  # type: ignore[arg-type]
    view = lambda: page.shown.view  # noqa: E731
    page.press("send", text="one", mode="send")
    until("the answer is there", lambda: "you said one" in str(view().talk))  # type: ignore[attr-defined]
    until("its task is there", lambda: view().graph.rows)  # type: ignore[attr-defined]
    until("its row is there", lambda: view().timeline.rows)  # type: ignore[attr-defined]
    task = view().graph.rows[0].id  # type: ignore[attr-defined]
    assert page.press("select", task=task)["task"] == task
    chat.close()
    until("it says that it is over", lambda: view().talk.state == "over")  # type: ignore[attr-defined]
    html = page.shown._repr_mimebundle_()["text/html"]
    assert "you said one" in html


def test_where_nobody_watches_it_is_shown_once(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIDURABLE_NB_LIVE", "0")
    chat.ask("one")
    shown = chat.watch()
    shown.show()
    said = capsys.readouterr().out
    assert "you said one" in said
    assert "✓ ready · conversation 1 · scripted:talk" in said
    html = shown._repr_mimebundle_()["text/html"]
    assert "you said one" in html
    assert "<script" not in html
