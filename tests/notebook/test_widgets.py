"""Live widgets without a page: what is sent, how often, how much, and what a page that missed something gets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import comm
import pytest

from pidurable_nb import patch
from pidurable_nb.notebook.view import AnswerView, TextItem, ToolItem
from pidurable_nb.notebook.widgets import AnswerWidget, LiveWidget, Publisher, esm, packed


class Wire(comm.base_comm.BaseComm):
    """A comm whose messages are kept in place of being sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        self.messages.append({"type": msg_type, "data": json.loads(json.dumps(data)), "at": time.monotonic()})


@pytest.fixture(autouse=True)
def _wires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "create_comm", lambda **kwargs: Wire(**kwargs))


@pytest.fixture
def publish() -> Publisher:
    """A publisher of the test's own, ten times as fast as the real one."""
    return Publisher(interval=0.01)


def wire(widget: LiveWidget) -> Wire:
    assert isinstance(widget.comm, Wire)
    return widget.comm


def custom(widget: LiveWidget) -> list[dict[str, Any]]:
    """What was sent to the page's own code."""
    return [m["data"]["content"] for m in wire(widget).messages if m["data"] and m["data"].get("method") == "custom"]


def size(messages: list[dict[str, Any]]) -> int:
    return sum(len(json.dumps(m["data"], ensure_ascii=False, separators=(",", ":"))) for m in messages)


def until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


def says(text: str, **changes: Any) -> AnswerView:
    return AnswerView(status="running", items=(TextItem(key="x", text=text, state="streaming"),)).replaced(**changes)


def hear(widget: LiveWidget, content: Any) -> None:
    """Deliver a message of a page."""
    widget._handle_custom_msg(content, [])


def test_opens_with_the_whole_present(publish: Publisher) -> None:
    widget = AnswerWidget(says("Hello"), publish=publish)
    opened = wire(widget).messages[0]
    assert opened["type"] == "comm_open"
    assert opened["data"]["state"]["state"] == {"seq": 0, "view": says("Hello").wire()}


def test_sends_growth_as_numbered_differences(publish: Publisher) -> None:
    widget = AnswerWidget(says("The capital of France"), publish=publish)
    widget.show(says("The capital of France is"))
    assert widget.flush()
    widget.show(says("The capital of France is Paris"))
    assert widget.flush()
    assert custom(widget) == [
        {"seq": 1, "ops": [{"op": "append", "path": "/items/0/text", "value": " is"}]},
        {"seq": 2, "ops": [{"op": "append", "path": "/items/0/text", "value": " Paris"}]},
    ]


def test_a_hundred_kilobytes_of_answer_cost_less_than_one_and_a_half_times_their_size() -> None:
    # Twenty characters a millisecond for five seconds are fifty messages; each flush stands for one of them.
    widget = AnswerWidget(says(""), publish=Publisher(interval=60))
    text = ""
    while len(text) < 100_000:
        text += "twenty characters, \n" if len(text) % 400 == 0 else "twenty characters.. "
        widget.show(says(text, output_tokens=len(text) // 4))
        if len(text) % 2000 == 0:
            assert widget.flush()
    widget.show(says(text, status="done", output_tokens=len(text) // 4))
    assert widget.flush()
    messages = wire(widget).messages
    assert widget.state["view"]["items"][0]["text"] == text
    assert len(custom(widget)) >= 50
    # The stream alone, then with the widget's own module and style sheet.
    assert size([m for m in messages if m["type"] != "comm_open"]) < 1.15 * len(text)
    assert size(messages) < 1.5 * len(text)


def test_never_sends_the_state_as_a_trait_while_open(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    seen: list[int] = []
    widget.observe(lambda change: seen.append(change["new"]["seq"]), "state")
    widget.show(says("b"))
    assert widget.flush()
    assert seen == [1]
    assert not [m for m in wire(widget).messages if m["data"] and m["data"].get("method") == "update"]


def test_a_page_that_reloads_gets_the_present(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    widget.show(says("b"))
    assert widget.flush()
    widget._handle_msg({"content": {"data": {"method": "request_state"}}, "buffers": []})
    assert widget.flush()
    assert wire(widget).messages[-1]["data"]["state"]["state"] == {"seq": 1, "view": says("b").wire()}


def test_many_changes_become_few_messages_and_the_last_always_arrives() -> None:
    widget = AnswerWidget(says(""), publish=Publisher(interval=0.05))
    start = time.monotonic()
    for number in range(300):
        widget.show(says(str(number)))
        time.sleep(0.001)
    until(lambda: widget.state["view"]["items"][0]["text"] == "299")
    took = time.monotonic() - start
    assert 2 <= len(custom(widget)) <= took / 0.05 + 2


def test_two_messages_of_a_widget_are_an_interval_apart() -> None:
    widget = AnswerWidget(says(""), publish=Publisher(interval=0.05))
    for number in range(60):
        widget.show(says(str(number)))
        time.sleep(0.003)
    until(lambda: widget.state["view"]["items"][0]["text"] == "59")
    times = [m["at"] for m in wire(widget).messages if m["data"] and m["data"].get("method") == "custom"]
    # A message leaves a little after its turn began; the turns themselves are an interval apart.
    assert min(later - earlier for earlier, later in pairwise(times)) > 0.03


def test_one_thread_sends_for_all_widgets(publish: Publisher) -> None:
    threads: set[str] = set()

    class Spy(AnswerWidget):
        def publish(self) -> None:
            threads.add(threading.current_thread().name)
            super().publish()

    widgets = [Spy(says("a"), publish=publish) for _ in range(5)]
    showing = [threading.Thread(target=lambda w=w: [w.show(says(str(n))) for n in range(20)]) for w in widgets]
    for thread in showing:
        thread.start()
    for thread in showing:
        thread.join()
    assert all(widget.flush() for widget in widgets)
    assert threads == {"pidurable_nb publisher"}
    assert [widget.state["view"]["items"][0]["text"] for widget in widgets] == ["19"] * 5


def test_differences_lead_to_the_present_in_order(publish: Publisher) -> None:
    views = [
        says("Let me look"),
        says(
            "Let me look it up.", items=(TextItem(key="x", text="Let me look it up."), ToolItem(key="c", name="look"))
        ),
        AnswerView(status="running", items=(ToolItem(key="c", name="look", status="running", output="one\n" * 9),)),
        AnswerView(status="running", items=(ToolItem(key="c", name="look", status="running", output="one\n" * 12),)),
        says("new", attempt=2, note="stored"),
        AnswerView(status="done"),
    ]
    widget = AnswerWidget(views[0], publish=publish)
    value = views[0].wire()
    for view in views[1:]:
        widget.show(view)
        assert widget.flush()
    for seq, message in enumerate(custom(widget), 1):
        assert message["seq"] == seq
        value = patch.apply(value, message["ops"])
    assert value == views[-1].wire()
    assert widget.view == views[-1]


def test_an_unchanged_view_sends_nothing(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    widget.show(says("a"))
    assert widget.flush()
    assert custom(widget) == []


def test_a_page_that_missed_a_number_gets_the_whole(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    widget.show(says("b"))
    assert widget.flush()
    hear(widget, {"ask": "state", "seq": 0})
    assert widget.flush()
    answer = custom(widget)[-1]
    assert (answer["seq"], answer["view"]) == (1, says("b").wire())
    assert abs(answer["now"] - time.time()) < 60


def test_a_page_that_is_present_gets_only_the_time(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    hear(widget, {"ask": "state", "seq": 0})
    assert widget.flush()
    assert set(custom(widget)[-1]) == {"seq", "now"}


def test_an_answer_to_a_page_never_overtakes_a_difference(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    widget.show(says("b"))
    hear(widget, {"ask": "state", "seq": -1})
    assert widget.flush()
    assert [message["seq"] for message in custom(widget)] == [1, 1] or [m["seq"] for m in custom(widget)] == [1, 1, 1]
    assert custom(widget)[-1]["view"] == says("b").wire()


def test_stop_calls_back_and_nothing_else_does(publish: Publisher) -> None:
    widget = AnswerWidget(says("a", can_stop=True), publish=publish)
    pressed: list[str] = []
    widget.on_stop(lambda: pressed.append("stop"))
    for content in ({"do": "stop"}, {"do": "rm"}, {"do": ["stop"]}, {"do": None}, "stop", None, [], {"ask": "all"}):
        hear(widget, content)
    assert pressed == ["stop"]


def test_an_action_gets_what_the_page_said_and_is_answered_beside_the_present(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    heard: list[dict[str, Any]] = []
    widget.on_action("select", heard.append)
    hear(widget, {"do": "select", "task": 4})
    assert heard == [{"do": "select", "task": 4}]
    widget.show(says("b"))
    widget.say({"detail": 4})
    assert widget.flush()
    assert [message.get("seq") for message in custom(widget)] == [1, None]
    assert custom(widget)[-1] == {"detail": 4}


def test_every_press_is_answered_and_counts_once(publish: Publisher) -> None:
    widget = AnswerWidget(says("a", can_stop=True), publish=publish)
    pressed: list[dict[str, Any]] = []
    widget.on_action("decide", pressed.append)
    press = {"do": "decide", "press": "p-1", "call": "c1"}
    hear(widget, press)
    hear(widget, press)
    assert widget.flush()
    assert pressed == [press]
    assert custom(widget) == [{"heard": "p-1"}, {"heard": "p-1"}]

    widget.answer(press, done={"entry": 3})
    widget.answer(press, error="no call waits")
    widget.answer({"do": "decide"}, done=1)
    assert widget.flush()
    assert custom(widget)[2:] == [{"heard": "p-1", "done": {"entry": 3}}, {"heard": "p-1", "error": "no call waits"}]

    hear(widget, {"do": "nothing", "press": "p-2"})
    hear(widget, {"do": "decide", "press": 7})
    assert widget.flush()
    assert len(custom(widget)) == 4  # only what does something is answered, and a press without a name is not


def test_a_page_knows_the_address_of_its_widget(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    assert wire(widget).messages[0]["data"]["state"]["comm_id"] == widget.model_id == wire(widget).comm_id


def test_the_saved_display_is_readable_without_widgets(publish: Publisher) -> None:
    done = AnswerView(status="done", items=(TextItem(key="x", text="It is **Paris**."),))
    data, _metadata = AnswerWidget(done, publish=publish)._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert data["text/markdown"] == "It is **Paris**."
    assert "<strong>Paris</strong>" in data["text/html"]
    assert data["text/plain"] == "✓ done\nIt is **Paris**."


def test_a_running_answer_is_saved_as_it_is_at_the_moment(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    widget.show(says("It is"))
    data, _metadata = widget._repr_mimebundle_()
    assert "It is" in data["text/html"]
    assert "text/markdown" not in data


def test_a_page_that_is_gone_stops_nothing(publish: Publisher, caplog: pytest.LogCaptureFixture) -> None:
    gone, here = AnswerWidget(says("a"), publish=publish), AnswerWidget(says("a"), publish=publish)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the socket is closed")

    wire(gone).publish_msg = fail  # type: ignore[method-assign]
    gone.show(says("b"))
    assert gone.flush()
    here.show(says("b"))
    assert here.flush()
    assert custom(here)[-1]["seq"] == 1
    assert "a live display could not be updated" in caplog.text


def test_closing_a_widget_silences_it(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    sink = wire(widget)
    widget.close()
    before = len(sink.messages)
    widget.show(says("b"))
    assert widget.flush()
    assert len(sink.messages) == before


def test_a_finished_widget_hands_its_static_form_to_every_page_and_ends_when_none_needs_it(publish: Publisher) -> None:
    widget = AnswerWidget(says("a"), publish=publish)
    sink = wire(widget)
    hear(widget, {"do": "close"})  # nobody ends what is not finished
    done = AnswerView(status="done", items=(TextItem(key="x", text="It is **Paris**."),))
    widget.show(done)
    static = {"text/plain": "It is Paris."}
    widget.finish(static)
    assert widget.flush()
    handed = {"static": {"id": widget.model_id, "data": static}}
    assert custom(widget)[-1] == handed
    assert custom(widget)[-2]["view"] == done.wire()

    hear(widget, {"ask": "state", "seq": 1})  # a page that comes later
    assert widget.flush()
    assert custom(widget).count(handed) == 2
    hear(widget, {"do": "close"})
    assert widget.comm is None
    assert sink.messages[-1]["type"] == "comm_close"


def test_the_module_is_one_text_that_imports_and_fetches_nothing() -> None:
    text = esm("markdown.js", "live.js", "parts.js", "items.js", "answer.js")
    assert AnswerWidget._esm == packed(text)
    assert "export default" in text
    assert text.count("export ") == 1
    assert not any(line.startswith("import ") for line in text.splitlines())
    for forbidden in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "new Function"):
        assert forbidden not in text
    assert "url(" not in AnswerWidget._css
    assert "@import" not in AnswerWidget._css


def test_the_publisher_keeps_no_process_alive() -> None:
    script = (
        "from pidurable_nb.notebook.widgets import AnswerWidget\n"
        "from pidurable_nb.notebook.view import AnswerView\n"
        "widget = AnswerWidget(AnswerView())\n"
        "widget.show(AnswerView(status='running'))\n"
        "assert widget.flush()\n"
        "print('over')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
