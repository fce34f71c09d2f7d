"""Sessions from Python: ``notebook.open``, ``Chat``, ``Turn``, ``Answer``; see notebook.md, "Python"."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from notebook_shells import Shell, in_process_shell

from pidurable_nb import Extension, Phase, RequestOptions, RetryPolicy, Settings, Task, TaskRun, notebook, tool
from pidurable_nb.errors import (
    ConversationBusy,
    NotebookError,
    SessionClosed,
    SessionInUse,
    StorageError,
    Unanswered,
    UnknownModel,
)
from pidurable_nb.messages import TextBlock, ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.models.protocol import ModelRequest
from pidurable_nb.notebook import frontend, opensession
from pidurable_nb.notebook.displays import Changing
from pidurable_nb.notebook.holding import remedy
from pidurable_nb.notebook.turns import TurnInterrupted
from pidurable_nb.notebook.view import StatusView


def answer(request: ModelRequest) -> Reply | Hang:
    asked = [message.text for message in request.messages if message.role == "user"][-1]
    if asked.startswith("hang"):
        return Hang(after="so far")
    if asked.startswith("fail"):
        return Reply(error="400 the request is bad")
    if asked.startswith("busy"):
        return Reply("half", error="503 Service Unavailable")
    return Reply(f"You said {asked}")


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(answer, name="scripted:chat")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "chat.sqlite"
    for chat in notebook.sessions():
        notebook.close(chat.name)


@pytest.fixture
def chat(path: Path, model: ScriptedModel) -> notebook.Chat:
    return notebook.open(path, model=model)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with in_process_shell(capsys) as made:
        yield made


def until(condition: Callable[[], Any], *, timeout: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
    return found


# -- asking ----------------------------------------------------------------------------------------------------------


def test_asking_blocks_and_gives_the_answer(chat: notebook.Chat) -> None:
    answer = chat.ask("hello")
    assert answer.text == str(answer) == "You said hello"
    assert answer.entry.kind == "pi.assistant"
    assert answer.usage.output_tokens > 0
    assert answer.submission.status == "done"
    assert repr(answer).startswith("<Answer ")
    assert answer._repr_mimebundle_()["text/markdown"] == "You said hello"


def test_submitting_returns_at_once_and_the_turn_gives_the_answer(chat: notebook.Chat) -> None:
    turn = chat.submit("hello")
    assert turn.result().text == "You said hello"
    assert turn.result().text == "You said hello"
    assert turn.view.status == "done"
    assert repr(turn) == f"<Turn {turn.id}: done>"


def test_a_turn_is_awaited_from_any_loop(chat: notebook.Chat) -> None:
    async def ask() -> list[str]:
        turns = [chat.submit("one"), chat.submit("two")]
        return [answer.text for answer in await asyncio.gather(*turns)]

    assert asyncio.run(ask()) == ["You said one", "You said two"]


def test_a_timeout_leaves_the_turn_going(chat: notebook.Chat) -> None:
    async def ask() -> None:
        await asyncio.wait_for(chat.submit("hang"), 0.3)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(ask())
    assert chat.status().state == "running"
    assert chat.stop()
    assert not chat.stop()


def test_blocks_are_content_too(chat: notebook.Chat, model: ScriptedModel) -> None:
    assert chat.ask([TextBlock("one"), TextBlock("two")]).text.startswith("You said one")
    with pytest.raises(ValueError, match="content"):
        chat.ask("   ")


def test_an_answer_that_does_not_come_raises_with_the_submission(chat: notebook.Chat) -> None:
    with pytest.raises(Unanswered) as raised:
        chat.ask("fail")
    assert raised.value.reason == "model_error"
    assert raised.value.submission.status == "unanswered"


def test_a_busy_conversation_queues_steers_or_rejects(chat: notebook.Chat) -> None:
    first = chat.submit("hang")
    behind = chat.follow_up("behind")
    until(lambda: behind.view.status == "queued" and behind.view.reason is not None)
    steered = chat.steer("steered")
    with pytest.raises(ConversationBusy):
        chat.submit("now", when_busy="reject")
    chat.stop()
    for turn in (first, behind, steered):
        with pytest.raises(Unanswered):
            turn.result()
        assert turn.view.status == "aborted"


def test_stopping_one_turn_leaves_the_next_one(chat: notebook.Chat) -> None:
    first = chat.submit("hang")
    behind = chat.follow_up("behind")
    until(lambda: first.view.items)
    chat.run(first._stop)
    assert behind.result().text == "You said behind"
    with pytest.raises(Unanswered):
        first.result()
    third = chat.submit("hang")
    fourth = chat.follow_up("hang on")
    chat.run(fourth._stop)
    with pytest.raises(Unanswered):
        fourth.result()
    assert third.view.status != "aborted"
    chat.stop()


def test_any_engine_api_runs_on_the_engine_thread(chat: notebook.Chat) -> None:
    chat.ask("hello")

    async def count(kind: str) -> tuple[int, str]:
        entries = await chat.conversation.entries().list()
        return sum(entry.kind == kind for entry in entries), threading.current_thread().name

    assert chat.run(count, "pi.user") == (1, "pidurable-engine")
    assert chat.run(chat.harness.task_graph).tasks == {}


# -- opening and closing ---------------------------------------------------------------------------------------------


def test_opening_again_gives_the_same_chat(chat: notebook.Chat, path: Path) -> None:
    assert notebook.open(path) is chat
    assert notebook.open(str(path), instructions="Be terse.") is chat
    assert chat.run(chat.conversation.agent).instructions == "Be terse."
    with pytest.raises(NotebookError, match="open here already"):
        notebook.open(path, name="other")
    assert notebook.current() is chat
    assert notebook.sessions() == (chat,)


def test_a_closed_chat_says_how_to_go_on(chat: notebook.Chat, path: Path) -> None:
    turn = chat.submit("hang")
    until(lambda: turn.view.items)
    chat.close()
    assert chat.closed
    assert chat.status().state == "closed"
    with pytest.raises(NotebookError, match="opens it again"):
        chat.ask("more")
    with pytest.raises(SessionClosed):
        turn.result()
    assert turn.view.problem == "the session was closed here: open it again to go on"
    chat.close()
    with pytest.raises(NotebookError, match="no session is open"):
        notebook.current()
    again = notebook.open(path)
    assert again is not chat
    assert again.recovery.previous == "closed"
    assert [row.what for row in again.recovery.rows] == ["request"]
    again.stop()


def test_closing_one_of_several_keeps_the_current_one(tmp_path: Path, path: Path) -> None:
    chats = [notebook.open(tmp_path / f"{name}.sqlite") for name in "abc"]
    notebook.use("a")
    notebook.close("b")
    assert notebook.current() is chats[0]
    notebook.close()
    assert notebook.current() is chats[2]
    chats[2].close()
    with pytest.raises(NotebookError, match="no session is open"):
        notebook.current()


def test_a_chat_is_a_context(path: Path, model: ScriptedModel) -> None:
    with notebook.open(path, model=model) as chat:
        chat.ask("hello")
    assert chat.closed
    assert notebook.sessions() == ()


def test_files_that_cannot_be_opened_raise_and_leave_nothing_open(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(StorageError):
        notebook.open(path)
    with pytest.raises((NotebookError, UnknownModel)):
        notebook.open(":memory:", model="nothing:here")
    assert notebook.sessions() == ()


def test_another_owner_in_this_process_is_named(path: Path, model: ScriptedModel) -> None:
    from pidurable_nb import Harness

    harness = notebook.engine().run(lambda: Harness.open(path, models=model).__aenter__())
    try:
        with pytest.raises(SessionInUse, match="since"):
            notebook.open(path)
    finally:
        notebook.engine().run(harness.close)


# -- waiting that ends early -----------------------------------------------------------------------------------------


def test_a_waiting_cell_stops_waiting_for_a_long_retry(path: Path, model: ScriptedModel) -> None:
    slow = Settings(retry=RetryPolicy(base_delay=300.0, max_delay=600.0))
    chat = notebook.open(path, model=model, settings=slow)
    turn = chat.submit("busy")
    turn.wait_for_cell()
    assert turn.view.status == "retrying"
    assert "503" in (turn.view.problem or "")
    chat.stop()


def test_a_waiting_cell_waits_through_a_short_retry(path: Path) -> None:
    model = ScriptedModel([Reply(error="503 Service Unavailable"), "well"], name="scripted:retry")
    quick = Settings(retry=RetryPolicy(base_delay=0.05, max_delay=0.1))
    chat = notebook.open(path, model=model, settings=quick)
    turn = chat.submit("try")
    turn.wait_for_cell()
    assert turn.result().text == "well"
    assert turn.view.attempt == 2


def test_a_waiting_cell_stops_waiting_for_a_provider_that_answers_later(path: Path) -> None:
    model = ScriptedModel([Hang()], name="scripted:later", deferred_poll_after=60.0)
    chat = notebook.open(path, model=model, settings=Settings(request=RequestOptions(deferred=True)))
    turn = chat.submit("later")
    turn.wait_for_cell()
    assert turn.view.status == "deferred"
    chat.stop()


def test_a_waiting_cell_stops_waiting_behind_a_run_that_waits(shell: Shell, path: Path, model: ScriptedModel) -> None:
    slow = Settings(retry=RetryPolicy(base_delay=300.0, max_delay=600.0))
    chat = notebook.open(path, model=model, settings=slow, show=False)
    chat.submit("busy", show=False)
    shown = shell.run("%%durable\nbehind it")
    assert "it is queued behind a run that waits itself" in shown
    assert "waiting" in shell.run("%durable status")
    chat.stop()


def test_waiting_for_what_is_held_back_says_so(path: Path, model: ScriptedModel) -> None:
    chat = notebook.open(path, model=model, paused=True)
    turn = chat.submit("hello")
    with pytest.raises(NotebookError, match="nothing would end: the session is paused"):
        chat.wait()
    chat.resume()
    chat.wait()
    assert turn.result().text == "You said hello"


def test_the_cell_says_why_it_stops_waiting_and_how_to_go_on(shell: Shell, path: Path, model: ScriptedModel) -> None:
    slow = Settings(retry=RetryPolicy(base_delay=300.0, max_delay=600.0))
    chat = notebook.open(path, model=model, settings=slow, show=False)
    shown = shell.run("%%durable --to reply\nbusy")
    assert "This cell ends here, and the turn goes on: the model failed and is asked again at " in shown
    assert "Run it again to bind reply once the answer is there; nothing is asked twice." in shown
    assert "reply" not in shell.names
    chat.stop()


def test_what_is_missing_is_one_list_with_one_remedy() -> None:
    assert remedy([]) == ()
    assert remedy(["tool a"]) == ("tool `a`: run its cell, or `%durable resume`",)
    assert remedy(["tool a", "tool b"]) == ("tools `a`, `b`: run their cells, or `%durable resume`",)
    assert remedy(["model m"]) == ("model `m`: register it or set its key, or `%durable resume`",)
    (mixed,) = remedy(["tool a", "tool b", "model m"])
    assert (
        mixed == "tools `a`, `b`, model `m`: run their cells, register the model or set its key, or `%durable resume`"
    )


def test_a_stop_says_which_tool_it_waits_for_and_how_long_the_answer_took(path: Path) -> None:
    began, leave = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        """Take its time."""
        began.set()
        leave.wait(10)
        return "done"

    model = ScriptedModel(
        [Reply("Let me see.", tool_calls=[ToolCall(id="c", name="slow", arguments={})]), Reply("so")],
        name="scripted:slow",
    )
    chat = notebook.open(path, model=model, show=False)
    chat.install(slow)
    try:
        turn = chat.submit("go", show=False)
        assert began.wait(10)
        chat._bridge.call_soon(turn._stop)
        until(lambda: turn.view.stopping == "stopping: waits for `slow` to return")
    finally:
        leave.set()
    until(lambda: turn.view.settled)
    assert turn.view.status == "aborted"
    assert turn.view.stopping is None


@pytest.mark.parametrize("command", ["stop", "close"])
def test_a_stop_and_a_close_that_wait_for_a_tool_say_so(
    shell: Shell, path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began, leave = threading.Event(), threading.Event()
    monkeypatch.setattr(opensession, "PATIENCE", 0.01)

    @tool
    def slow() -> str:
        """Take its time."""
        began.set()
        assert leave.wait(60)
        return "done"

    call = ToolCall(id="c", name="slow", arguments={})
    chat = notebook.open(path, model=ScriptedModel([Reply(tool_calls=[call])], name="scripted:slow"), show=False)
    chat.install(slow)
    chat.submit("go", show=False)
    assert began.wait(60)
    said = ""

    def told() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "waits for `slow` to return; an interrupt ends this waiting only" in said

    with ThreadPoolExecutor(1) as pool:
        try:
            ended = pool.submit(getattr(chat, command))
            until(told, timeout=60)
            assert not ended.done()
            if command == "close":
                assert "closing" in shell.run("%durable status")
                assert "what runs in it must return first" in shell.fails("%durable history")
        finally:
            leave.set()
        ended.result(60)


def test_a_stopped_answer_took_as_long_as_it_took(chat: notebook.Chat) -> None:
    turn = chat.submit("hang", request_id="x")
    until(lambda: turn.view.items)
    first = time.monotonic()
    until(lambda: time.monotonic() - first > 0.2)
    chat.stop()
    until(lambda: turn.view.settled)
    assert turn.view.elapsed is not None
    assert turn.view.elapsed >= 0.2
    again = chat.submit("hang", request_id="x")
    assert again.view.elapsed is not None
    assert again.view.elapsed >= 0.2
    assert ("stopped, kept",) in [entry.markers for entry in chat.history().entries]


# -- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux lists them")
def test_sessions_of_a_kernel_leave_no_open_files(tmp_path: Path) -> None:
    """In a process of its own: a blocking call under a running loop applies nest_asyncio2 to all of its process."""
    code = """
        import asyncio
        from pathlib import Path

        from pidurable_nb import notebook
        from pidurable_nb.models import ScriptedModel

        model = ScriptedModel(lambda request: "hello", name="scripted:files")

        def opened():
            return len(list(Path("/proc/self/fd").iterdir()))

        def life():
            with notebook.open("chat.sqlite", model=model) as chat:
                chat.ask("hello")

        async def kernel():
            # A blocking call under a running loop is what a cell is in a kernel.
            life()
            before = opened()
            for _ in range(3):
                life()
            print("kept" if opened() > before else "closed")

        asyncio.run(kernel())
        """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "closed"


# -- tools -----------------------------------------------------------------------------------------------------------


def test_tools_and_plain_functions_are_installed(path: Path) -> None:
    model = ScriptedModel(
        [
            Reply(tool_calls=[ToolCall(id="c1", name="double", arguments={"n": 21})]),
            lambda request: request.messages[-1].text,
        ],
        name="scripted:tools",
    )
    chat = notebook.open(path, model=model)

    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    chat.install(double)
    assert chat.ask("what").text == "42"


def test_a_tool_may_run_on_the_kernel_thread_while_a_call_waits(path: Path) -> None:
    model = ScriptedModel(
        [Reply(tool_calls=[ToolCall(id="c1", name="where", arguments={})]), lambda request: request.messages[-1].text],
        name="scripted:kernel",
    )
    chat = notebook.open(path, model=model)

    @tool(in_kernel=True)
    def where() -> str:
        return threading.current_thread().name

    chat.install(where)
    assert chat.ask("where").text == "MainThread"


# -- showing ---------------------------------------------------------------------------------------------------------


def test_answers_turns_and_chats_show_once(shell: Shell, path: Path, model: ScriptedModel) -> None:
    shell.names.update(notebook=notebook, path=path, model=model)
    assert shell.run("chat = notebook.open(path, model=model)").count("new session") == 1
    assert shell.run("chat").count("idle") == 1
    assert shell.run("chat.ask('hello')").count("You said hello") == 1
    assert shell.run("chat.submit('bye').result()").count("You said bye") == 1
    assert shell.run("turn = chat.submit('quiet'); turn.result(); None").count("You said") == 0
    assert shell.run("turn").count("You said quiet") == 1
    assert shell.run("turn.show()").count("You said quiet") == 1
    assert shell.run("turn.show()\nturn").count("You said quiet") == 1
    assert shell.run("chat.ask('hello').text") != ""


def test_a_repr_reads_no_storage(chat: notebook.Chat) -> None:
    answer = chat.ask("hello")
    turn = chat.submit("more")
    turn.result()
    chat.close()
    for shown in (answer, turn, chat):
        assert shown._repr_mimebundle_()["text/plain"]
        assert repr(shown)


SCRIPT = """
from pidurable_nb import notebook
with notebook.open("chat.sqlite", model="scripted:demo") as chat:
    answer = chat.ask("And in French?")
    print(answer.text)
    print(answer)
    chat.submit("Shown", show=True).result()
    turn = chat.submit("More")
    turn.result()
    turn.show()
import sys
print("IPython" in sys.modules, "ipywidgets" in sys.modules)
"""


def test_a_plain_script_prints_text(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("You ask: “And in French?”") == 2
    assert "You said: “More”" in done.stdout
    assert done.stdout.endswith("False False\n")


class Sleeper(Task[None, None], name="test.sleeper"):
    """A task that sleeps for a day."""

    class Nap(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.sleep_until(task.now() + 86_400, self)


def test_stop_leaves_background_tasks_alone_unless_it_is_told(path: Path, model: ScriptedModel) -> None:
    notebook.install(Extension("sleepers", tasks=[Sleeper]))
    chat = notebook.open(path, model=model)

    async def start() -> None:
        async with chat.conversation.commit() as tx:
            await tx.create_task(Sleeper, None, background=True)

    try:
        chat.run(start)
        assert not chat.stop()
        assert len(chat.tasks().rows) == 1
        assert chat.stop(background=True)
        assert chat.tasks().rows == ()
    finally:
        notebook.registry.uninstall("sleepers")


def test_a_wait_says_how_long_it_takes_where_somebody_watches(
    path: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def show(changing: Changing, view: StatusView) -> None:
        changing._handle = changing
        shown.append(view.title)
        if len(shown) == 2:
            threading.Thread(target=chat.stop).start()

    monkeypatch.setattr(frontend, "live_frontend", lambda: True)
    monkeypatch.setattr(Changing, "interval", 0.05)
    monkeypatch.setattr(Changing, "_show", show)
    chat = notebook.open(path, model=model, show=False)
    chat.submit("hang", show=False)
    chat.wait(show=True)
    assert len(shown) >= 3
    assert all(title.startswith("waiting until idle · ") for title in shown[:-1])
    assert shown[-1].startswith("idle after ")


def test_an_interrupt_while_a_question_is_being_stored_stops_its_turn(
    chat: notebook.Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = chat._asking.ask

    async def pressed(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.1)
        return await ask(*args)

    monkeypatch.setattr(chat._asking, "ask", pressed)
    with pytest.raises(TurnInterrupted):
        chat.submit("hang")

    async def reasons() -> list[str | None]:
        return [record.reason async for record in chat.harness.submissions()]

    until(lambda: chat.run(reasons) == ["aborted"])


def test_an_interrupt_between_the_calls_of_a_cell_stops_its_turn(chat: notebook.Chat) -> None:
    turn = chat.submit("hang")
    with pytest.raises(TurnInterrupted), turn.stopped_by_interrupt():
        raise KeyboardInterrupt
    until(lambda: turn.view.status == "aborted")


def test_a_stop_that_comes_when_its_session_is_closed_raises_nothing(
    chat: notebook.Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = chat.submit("hang")
    later: list[Callable[[], Any]] = []
    monkeypatch.setattr(chat._bridge, "later", lambda delay, stop: later.append(stop))
    with pytest.raises(TurnInterrupted), turn.stopped_by_interrupt():
        raise KeyboardInterrupt
    chat.close()
    [stop] = later
    assert chat._bridge.run(stop) is None
