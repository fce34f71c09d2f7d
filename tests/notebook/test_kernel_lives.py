"""Sessions in real kernels that are interrupted, restarted, shut down and killed; see notebook.md, "Engine thread"."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook_shells import Kernel

pytestmark = pytest.mark.kernel

SETUP = """
from pidurable_nb import notebook, tool
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel

def script(request):
    asked = [m.text for m in request.messages if m.role == "user"][-1]
    results = [m for m in request.messages if m.role == "tool"]
    if asked.startswith("hang"):
        return Hang(after="so far " * 5, tokens_per_second=60)
    if asked.startswith("long"):
        return Reply("a slow answer " * 100, tokens_per_second=25)
    if asked.startswith("slow"):
        return Reply("a slow answer " * 12, tokens_per_second=25)
    if asked.startswith("weather") and request.messages[-1].role == "user":
        return Reply(tool_calls=[ToolCall(id="call-1", name="weather", arguments={"city": "Paris"})])
    if asked.startswith("weather"):
        return Reply("It is " + request.messages[-1].text)
    if asked.startswith("fail"):
        return Reply(error="503 Service Unavailable")
    return Reply(f"You said {asked}")

model = ScriptedModel(script, name="scripted:test")
"""
OPEN = SETUP + 'chat = notebook.open("chat.sqlite", model=model)\n'


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(tmp_path).start()
    yield made
    made.end()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel with a live front end: its cells have ids."""
    made = Kernel(tmp_path, live=None).start()
    yield made
    made.end()


def opened(kernel: Kernel, code: str = OPEN) -> str:
    ran = kernel.run(code)
    assert ran.status == "ok", ran.text
    return ran.text


def until(condition: Callable[[], Any], *, timeout: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return answer


def rows(kernel: Kernel, query: str) -> list[Any]:
    """What the file holds, read beside the kernel, which may be busy or dead."""
    connection = sqlite3.connect(f"file:{kernel.cwd / 'chat.sqlite'}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def streaming(kernel: Kernel) -> None:
    """Wait until a part of an answer is stored."""

    def stored() -> int:
        return sum(
            text.count("so far ") + text.count("slow ") for (text,) in rows(kernel, "select payload from revisions")
        )

    until(lambda: stored() > 2)


STATUS = "chat.run(chat.harness.submissions().list)"
SUBMISSIONS = f"[(s.id, s.status, s.reason) for s in {STATUS}]"
LIVES = "[life.ended for life in chat.run(chat.harness.storage.lives)]"


# -- interrupts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [
        "%%durable --wait\nhang",
        "%durable ask hang",
        "%%durable --to answer\nhang",
        "chat.ask('hang')",
        "turn = chat.submit('hang'); turn.result()",
        "await chat.submit('hang')",
    ],
)
def test_an_interrupt_ends_the_cell_at_once_and_the_turn_a_second_later(kernel: Kernel, cell: str) -> None:
    opened(kernel)
    ran = kernel.send(cell)
    streaming(kernel)
    began = time.monotonic()
    kernel.interrupt()
    kernel.wait(ran, timeout=30)
    assert time.monotonic() - began < 3
    assert ran.text.strip().startswith("interrupted: the turn stops in a second")
    assert len(ran.text.strip().splitlines()) == 1
    assert kernel.value(SUBMISSIONS)[-1][1] != "unanswered", "it was aborted before the second was over"
    until(lambda: kernel.value(SUBMISSIONS)[-1][1:] == ["unanswered", "aborted"])
    assert 0.8 < time.monotonic() - began < 20
    shown = kernel.run("%durable history").text
    assert "so far so far" in shown
    assert "stopped, kept" in shown
    assert "cut off" not in shown
    assert "You said next" in kernel.run("%%durable\nnext").text


def test_an_interrupt_of_another_magic_leaves_the_turn_going(live: Kernel) -> None:
    opened(live)
    live.run("%%durable\nhang", cell="one")
    streaming(live)
    ran = live.send("print('begun')\n%durable wait", cell="two")
    live.wait(ran, has="begun")  # an idle kernel ignores interrupts
    live.interrupt()
    live.wait(ran)
    assert ran.text.strip().endswith("\ninterrupted: a turn that was going on goes on; %durable stop stops it")
    assert live.value(SUBMISSIONS)[0][1] not in ("done", "unanswered")


def test_an_interrupt_reaches_a_tool_on_the_kernel_thread(kernel: Kernel) -> None:
    opened(kernel)
    kernel.run(IN_KERNEL)
    ran = kernel.send("%%durable\nweather")
    kernel.wait(ran, has="in the kernel now")
    began = time.monotonic()
    kernel.interrupt()
    kernel.wait(ran, timeout=5)
    assert time.monotonic() - began < 1
    assert "interrupted: the turn stops in a second" in ran.text
    kernel.run("%durable wait")
    assert "weather was interrupted in the kernel" in kernel.run("%durable history").text
    assert "You said next" in kernel.run("%%durable\nnext").text


IN_KERNEL = """
import time
@tool(in_kernel=True)
def weather(city: str) -> str:
    print("in the kernel now", flush=True)
    time.sleep(30)
    return "late"
chat.install(weather)
"""


def test_an_interrupt_before_a_restart_aborts_nothing(kernel: Kernel) -> None:
    opened(kernel)
    ran = kernel.send("%%durable\nslow")
    streaming(kernel)
    kernel.interrupt()
    kernel.wait(ran, timeout=5)
    assert kernel.shut_down() < 3
    kernel.start()
    assert "closed it cleanly" in opened(kernel)
    again = kernel.run("%%durable\nslow")
    assert again.status == "ok"
    assert "a slow answer" in again.text
    assert kernel.value(SUBMISSIONS) == [[kernel.value(f"{STATUS}[0].id"), "done", None]]
    assert kernel.value(LIVES) == ["closed", None]


def test_stop_works_from_another_cell(live: Kernel) -> None:
    opened(live)
    first = live.run("%%durable\nhang", cell="one")
    second = live.run("%%durable\nlater", cell="two")
    assert first.status == second.status == "ok"
    streaming(live)
    stopped = live.run("%durable stop", cell="three")
    assert "stopped" in stopped.text
    assert [status[1:] for status in live.value(SUBMISSIONS)] == [["unanswered", "aborted"]] * 2
    assert "nothing was running" in live.run("%durable stop", cell="three").text


def test_an_interrupt_stops_one_turn_and_what_waits_behind_it_goes_on(live: Kernel) -> None:
    opened(live)
    waiting = live.send("%%durable --wait\nhang", cell="one")
    streaming(live)
    live.interrupt()
    live.wait(waiting)
    behind = live.run("%%durable --wait\nbehind", cell="two")
    assert "You said behind" in behind.text
    assert [status[1:] for status in live.value(SUBMISSIONS)] == [["unanswered", "aborted"], ["done", None]]


def test_answers_turns_and_chats_show_once_in_a_live_front_end(live: Kernel) -> None:
    opened(live)
    for code in (
        "chat.ask('hello')",
        "await chat.submit('hello')",
        "chat.submit('hello').result()",
        "chat.submit('hello')",
        "%%durable --wait\nhello",
        "%durable ask hello",
        "chat",
    ):
        ran = live.run(code, cell=code)
        assert ran.status == "ok", ran.text
        assert len(ran.displays) == 1, code


# -- the end of a kernel ---------------------------------------------------------------------------------------------


def test_a_kernel_told_to_shut_down_is_gone_in_time_and_its_session_goes_on(kernel: Kernel) -> None:
    opened(kernel)
    kernel.send("%%durable\nslow")
    streaming(kernel)
    assert kernel.shut_down() < 3
    kernel.start()
    card = opened(kernel)
    assert "closed it cleanly" in card
    assert "is asked again; the half answer is kept and marked" in card
    ran = kernel.run("%%durable\nslow")
    assert "✓ done" in ran.text
    assert "cut off when its process ended · kept" in ran.text
    assert kernel.value(SUBMISSIONS)[0][1] == "done"
    assert len(kernel.value(SUBMISSIONS)) == 1
    assert kernel.value(LIVES) == ["closed", None]


def test_a_live_kernel_is_gone_in_time_while_an_answer_streams_between_cells(live: Kernel) -> None:
    opened(live)
    assert live.run("%%durable\nlong", cell="one").status == "ok"
    streaming(live)
    assert live.shut_down() < 3
    live.start()
    assert "closed it cleanly" in opened(live)
    again = live.run("%%durable\nlong", cell="one")
    assert "answering" in again.text or "queued" in again.text
    live.run("%durable stop", cell="two")
    assert len(live.value(SUBMISSIONS)) == 1


def test_a_culled_kernel_leaves_a_turn_that_a_terminal_goes_on_with(kernel: Kernel) -> None:
    """A server culls an idle kernel as it shuts one down; what the kernel had under way goes on without a notebook."""
    opened(kernel)
    kernel.send("%%durable\nslow")
    streaming(kernel)
    kernel.shut_down()
    (kernel.cwd / "mymodel.py").write_text(SETUP + "from pidurable_nb.models import default_models\n")
    code = (
        "import mymodel, sys\nmymodel.default_models.register(mymodel.model)\n"
        "from pidurable_nb.cli import main\nsys.exit(main(['run', 'chat.sqlite']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=kernel.cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kernel.start()
    opened(kernel)
    ran = kernel.run("%%durable\nslow")
    assert "stored answer from " in ran.text
    assert kernel.value("len(model.requests)") == 0


def test_crash_kills_this_kernel(kernel: Kernel) -> None:
    opened(kernel)
    kernel.run("%%durable\nhello")
    kernel.send("%durable crash")
    until(lambda: not kernel.manager.is_alive())
    kernel.end()
    kernel.start()
    assert "died without closing it" in opened(kernel)
    assert "stored answer from " in kernel.run("%%durable\nhello").text


def test_a_killed_kernel_and_the_next_one_finish_the_answer(kernel: Kernel) -> None:
    opened(kernel)
    kernel.send("%%durable\nslow")
    streaming(kernel)
    kernel.kill()
    kernel.start()
    card = opened(kernel)
    assert "died without closing it" in card
    assert "is asked again; the half answer is kept and marked" in card
    ran = kernel.run("%%durable\nslow")
    assert "✓ done" in ran.text
    assert "attempt 2" in ran.text
    assert "cut off when its process ended · kept" in ran.text
    assert len(kernel.value(SUBMISSIONS)) == 1
    assert kernel.value("len(model.requests)") == 1


@pytest.mark.parametrize("how", ["idle", "streaming", "asked and waited"])
def test_a_script_that_forgets_to_close_exits_at_once_and_silently(tmp_path: Path, how: str) -> None:
    code = (
        OPEN
        + {
            "idle": "",
            "streaming": "turn = chat.submit('hang'); import time; time.sleep(0.3)",
            "asked and waited": "print(chat.ask('hello').text)",
        }[how]
    )
    code += "\nimport time; print('END', time.time())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    ended = time.time()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said, _, at = done.stdout.partition("END ")
    assert said == ("You said hello\n" if how == "asked and waited" else "")
    assert ended - float(at) < 2
    script = OPEN + f"print({LIVES})"
    again = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert again.stdout == "['closed', None]\n"


# -- while a cell computes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    ["sum(i * i for i in range(1000))", "square = np.linalg.inv(square @ square.T + np.eye(400))"],
    ids=["Python", "NumPy"],
)
def test_answers_go_on_while_a_cell_computes(live: Kernel, work: str) -> None:
    if "np." in work:
        pytest.importorskip("numpy")
        live.run("import numpy as np; square = np.random.default_rng(1).random((400, 400))")
    opened(live)
    live.run("%%durable\nlong", cell="one")
    until(lambda: len(rows(live, "select at from commits")) > 10)
    code = f"""
import time
began = time.time()
while time.time() < began + 5:
    {work}
ended = time.time()
"""
    ran = live.run(code, cell="two")
    assert ran.status == "ok", ran.text
    began, ended = live.value("[began, ended]")
    live.run("%durable stop", cell="three")
    commits = [at for (at,) in rows(live, "select at from commits order by seq") if began <= at <= ended]
    assert len(commits) > 15
    gaps = [later - earlier for earlier, later in zip([began, *commits], [*commits, ended], strict=True)]
    assert max(gaps) < 0.5, sorted(gaps)[-5:]


# -- opening before the tools exist ----------------------------------------------------------------------------------

TOOL = """
import time
@tool(replay="safe")
def weather(city: str) -> str:
    "The weather."
    time.sleep(SECONDS)
    return "sunny in " + city
chat.install(weather)
"""


def cut_off_in_a_tool(kernel: Kernel) -> None:
    opened(kernel)
    kernel.run(TOOL.replace("SECONDS", "600"))
    kernel.send("%%durable\nweather?")
    until(lambda: any('"execute"' in text for (text,) in rows(kernel, "select payload from tasks")))
    kernel.kill()
    kernel.start()


def test_recovered_calls_wait_for_the_cell_of_their_tool(kernel: Kernel) -> None:
    cut_off_in_a_tool(kernel)
    card = opened(kernel)
    assert "waiting for tool `weather`: run its cell, or `%durable resume`" in card
    assert "paused" in card
    assert "tool `weather`" in kernel.run("%durable status").text

    meanwhile = kernel.run("%%durable --to later\nmeanwhile", timeout=10)
    assert meanwhile.status == "ok"
    assert "This cell ends here: it " in meanwhile.text
    assert "tool `weather`: run its cell" in meanwhile.text
    same = kernel.run("%%durable\nweather?", timeout=10)
    assert "This cell ends here: it " in same.text

    assert kernel.run(TOOL.replace("SECONDS", "0")).status == "ok"
    kernel.run("%durable wait")
    assert [status[1] for status in kernel.value(SUBMISSIONS)] == ["done", "done"]
    shown = kernel.run("%durable history").text
    assert "It is sunny in Paris" in shown
    assert "You said meanwhile" in shown
    assert kernel.value("len(model.requests)") == 2


def test_resume_starts_without_the_tool(kernel: Kernel) -> None:
    cut_off_in_a_tool(kernel)
    opened(kernel)
    assert "resumed" in kernel.run("%durable resume").text
    kernel.run("%durable wait")
    assert "interrupted" in kernel.run("%durable history").text


def test_stop_ends_what_waits_for_a_tool(kernel: Kernel) -> None:
    cut_off_in_a_tool(kernel)
    opened(kernel)
    kernel.run("%%durable\nmeanwhile", timeout=10)
    assert "stopped" in kernel.run("%durable stop", timeout=10).text
    assert [status[1:] for status in kernel.value(SUBMISSIONS)] == [["unanswered", "aborted"]] * 2
    assert "You said next" in kernel.run("%%durable\nnext").text


def test_a_session_opened_paused_starts_with_resume(kernel: Kernel) -> None:
    opened(kernel, SETUP + 'chat = notebook.open("chat.sqlite", model=model, paused=True)\n')
    ran = kernel.run("%%durable\nhello", timeout=10)
    assert "This cell ends here: it " in ran.text
    assert "`%durable resume` starts it" in ran.text
    kernel.run("%durable resume")
    kernel.run("%durable wait")
    assert "You said hello" in kernel.run("%%durable\nhello", timeout=10).text


# -- a second kernel -------------------------------------------------------------------------------------------------


def test_a_second_kernel_is_told_who_holds_the_file_and_since_when(kernel: Kernel, tmp_path: Path) -> None:
    opened(kernel)
    other = Kernel(tmp_path).start()
    try:
        ran = other.run("%durable open chat.sqlite")
        assert ran.status == "error"
        assert len(ran.text.strip().splitlines()) == 1
        assert f"process {kernel.pid}" in ran.text
        assert " since 2" in ran.text
        assert "`%durable open chat.sqlite --observe` reads and follows it" in ran.text
        kernel.run("%durable close")
        assert other.run("%durable open chat.sqlite").status == "ok"
    finally:
        other.end()


# -- running a cell again --------------------------------------------------------------------------------------------


def test_a_cell_finds_its_submission_in_every_life_and_in_every_front_end(live: Kernel) -> None:
    opened(live)
    live.run("%%durable --wait\none", cell="a")
    live.run("%%durable --wait\ntwo", cell="b")
    live.run("%%durable --wait\none", cell="c")
    first = live.value(SUBMISSIONS)
    assert len(first) == 3
    live.kill()
    live.start()
    opened(live)
    for cell, text in (("a", "one"), ("b", "two"), ("c", "one"), ("a", "one")):
        ran = live.run(f"%%durable --wait\n{text}", cell=cell)
        assert f"You said {text}" in ran.text
        assert "stored answer from " in ran.text
        assert "changed since" not in ran.text
    assert live.value(SUBMISSIONS) == first
    live.kill()
    runner = Kernel(live.cwd).start()
    try:
        opened(runner)
        for text in ("one", "two", "one"):
            assert "stored answer from " in runner.run(f"%%durable\n{text}").text
        assert runner.value(SUBMISSIONS) == first
        assert runner.value("len(model.requests)") == 0
    finally:
        runner.end()


def test_an_unfinished_submission_is_followed_live_by_the_same_cell(live: Kernel) -> None:
    opened(live)
    live.run("%%durable\nslow", cell="a")
    streaming(live)
    live.kill()
    live.start()
    opened(live)
    ran = live.run("%%durable\nslow", cell="a")
    assert ran.status == "ok"
    assert "application/vnd.jupyter.widget-view+json" in ran.displays[0]
    live.run("%durable wait", cell="b")
    until(lambda: any(output["msg_type"] == "update_display_data" for output in live.late(ran)))
    final = [output for output in ran.outputs if output["msg_type"] == "update_display_data"][-1]["content"]["data"]
    assert "application/vnd.jupyter.widget-view+json" not in final
    assert "✓ done" in final["text/plain"]
    assert len(live.value(SUBMISSIONS)) == 1


def test_a_killed_kernel_is_on_its_branch_in_the_next_life(live: Kernel) -> None:
    cells = [
        ("a", "%%durable --to first\none"),
        ("b", "%%durable --wait\ntwo"),
        ("c", "%durable rewind {first.entry.id}"),
        ("d", "%%durable --wait\ntwo"),
    ]
    here = "[chat.conversation.id, len(chat.conversations().rows), len(chat.run(chat.harness.submissions().list))]"
    opened(live)
    for cell, code in cells:
        assert live.run(code, cell=cell).status == "ok"
    before = live.value(here)
    assert before[1:] == [2, 3]
    live.kill()
    live.start()
    opened(live)
    assert live.value(here) == before
    for cell, code in cells:
        ran = live.run(code, cell=cell)
        assert ran.status == "ok", ran.text
        assert cell == "c" or "stored answer from " in ran.text
    assert live.value(here) == before
    assert live.value("len(model.requests)") == 0
