"""The tool python: code in the shell of this process, what comes back of it, and how it is stopped."""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook_shells import Kernel, Shell, in_process_shell

from pidurable_nb import notebook, tools
from pidurable_nb.messages import ToolCall, ToolResultMessage
from pidurable_nb.models import Reply, ScriptedModel

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with in_process_shell(capsys) as made:
        yield made


class Python:
    """A session whose model runs the code that it is asked to run."""

    def __init__(self, path: Path, **options: Any) -> None:
        def answer(request: Any) -> Any:
            last = request.messages[-1]
            if last.role == "tool_result":
                return f"heard {last.text}"
            return Reply(
                tool_calls=[ToolCall(id=f"c{len(request.messages)}", name="python", arguments={"code": last.text})]
            )

        self.chat = notebook.open(
            path / "python.sqlite", model=ScriptedModel(answer, name="scripted:python"), show=False
        )
        self.chat.install(tools.python(**{"approval": False} | options))

    def submit(self, code: str) -> Any:
        return self.chat.submit(code, show=False)

    def run(self, code: str) -> ToolResultMessage:
        self.submit(code).result()
        return self.results()[-1]

    def results(self) -> list[ToolResultMessage]:
        async def read() -> list[ToolResultMessage]:
            entries = [entry async for entry in self.chat.conversation.entries(order="ascending")]
            return [entry.messages[0] for entry in entries if entry.kind == "pi.tool-result"]

        return self.chat.run(read)


@pytest.fixture
def python(shell: Shell, tmp_path: Path) -> Python:
    return Python(tmp_path)


def test_code_runs_in_the_user_s_namespace_on_the_main_thread(shell: Shell, python: Python) -> None:
    shell.names["table"] = [1, 2, 3]
    code = "import threading\ntotal = sum(table)\nprint('total', total)\nthreading.current_thread().name"
    message = python.run(code)
    assert (message.text, message.is_error) == ("total 6\n'MainThread'\n", False)
    assert shell.names["total"] == 6


def test_prints_values_displays_and_errors_come_back_in_order(
    python: Python, capsys: pytest.CaptureFixture[str]
) -> None:
    message = python.run(
        "import sys\nfrom IPython.display import Markdown\nprint('out', end='')\ndisplay(Markdown('**bold**'))\n"
        "print('err', file=sys.stderr)\n1/0"
    )
    assert message.is_error
    lines = message.text.splitlines()
    assert lines[:3] == ["out", "**bold**", "err"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "\x1b" not in message.text
    assert capsys.readouterr() == ("", "")


def test_a_syntax_error_is_an_error_result(python: Python) -> None:
    message = python.run("1 +")
    assert message.is_error
    assert "SyntaxError" in message.text


def test_code_that_awaits_for_too_long_is_cancelled(shell: Shell, tmp_path: Path) -> None:
    message = Python(tmp_path, timeout=0.5).run("print('begun')\nimport asyncio\nawait asyncio.sleep(600)")
    assert message.is_error
    assert message.text.startswith("begun\n")
    assert message.text.endswith("The code was stopped after 0.5 s.\n")


def test_magics_and_await_work_as_in_a_cell(python: Python) -> None:
    assert python.run("%pwd").text.strip("'\n") == str(Path.cwd())
    message = python.run("import asyncio\nawait asyncio.sleep(0, 'slept')")
    assert (message.text, message.is_error) == ("'slept'\n", False)


def test_images_become_blocks(python: Python) -> None:
    turn = python.submit(
        f"import base64\nfrom IPython.display import Image\nprint('a figure:')\n"
        f"display(Image(data=base64.b64decode({PNG!r}), format='png'))\nprint('and so on')"
    )
    answer = turn.result()
    text, image = python.results()[-1].content
    assert text.text == "a figure:\n[image 1]\nand so on\n"  # type: ignore[union-attr]
    assert (image.type, image.media_type) == ("image", "image/png")  # type: ignore[union-attr]
    assert base64.b64decode(image.data) == base64.b64decode(PNG)  # type: ignore[union-attr]
    assert f'<img src="data:image/png;base64,{image.data}"' in answer._repr_mimebundle_()["text/html"]  # type: ignore[union-attr]


def test_in_out_and_the_prompt_number_stay(shell: Shell, python: Python) -> None:
    shell.run("41")
    before = (shell.shell.execution_count, dict(shell.names["Out"]), len(shell.names["In"]))
    python.run("42")
    assert (shell.shell.execution_count, dict(shell.names["Out"]), len(shell.names["In"])) == before
    assert shell.run("'shown'").strip().endswith("'shown'"), "the shell shows things again"


def test_long_output_keeps_its_end(python: Python) -> None:
    message = python.run("for n in range(10_000): print(n)")
    assert "9999\n" in message.text
    assert "[warn] The output was cut to its end" in message.text


def test_a_call_that_takes_too_long_is_interrupted(shell: Shell, tmp_path: Path) -> None:
    message = Python(tmp_path, timeout=0.5).run("print('begun')\nimport time\ntime.sleep(600)")
    assert message.is_error
    assert message.text.startswith("begun\n")
    assert message.text.endswith("The code was stopped after 0.5 s.\n")


def test_stopping_the_run_interrupts_the_code(shell: Shell, python: Python) -> None:
    shell.names["begun"] = begun = threading.Event()
    turn = python.submit("begun.set()\nimport time\ntime.sleep(600)")

    def stop() -> None:
        assert begun.wait(30)
        python.chat._bridge.call_soon(python.chat.conversation.abort)

    threading.Thread(target=stop, daemon=True).start()
    started = time.monotonic()
    python.chat.wait()
    assert time.monotonic() - started < 60
    assert python.chat.record(turn.id).reason == "aborted"
    assert python.results()[-1].text.startswith("The call was aborted.")
    assert python.run("'again'").text == "'again'\n"


def test_a_person_s_interrupt_ends_what_waits(shell: Shell, python: Python) -> None:
    shell.names["begun"] = begun = threading.Event()
    # Not one long sleep: a signal that comes just before it begins would not end it.
    python.submit("begun.set()\nimport time\nwhile True: time.sleep(0.01)")

    def interrupt() -> None:
        assert begun.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        python.chat.wait()
    python.chat.stop()
    assert python.results()[-1].is_error


def test_a_person_is_asked_first_unless_the_user_says_otherwise(shell: Shell, tmp_path: Path) -> None:
    python = Python(tmp_path, approval=True)
    turn = python.submit("1 + 1")
    turn.wait_for_cell()
    assert turn.view.status == "waiting"
    [asked] = python.chat.approvals()
    assert asked.arguments == {"code": "1 + 1"}
    python.chat.approve(asked.call)
    turn.result()
    assert python.results()[-1].text == "2\n"
    assert tools.python().approval is True


SETUP = """
from pidurable_nb import notebook, tools
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel

def answer(request):
    last = request.messages[-1]
    if last.role == "tool_result":
        return f"heard {last.text}"
    call = ToolCall(id=f"c{len(request.messages)}", name="python", arguments={"code": last.text})
    return Reply(tool_calls=[call])

notebook.install(tools.python(approval=False))
chat = notebook.open("python.sqlite", model=ScriptedModel(answer, name="scripted:python"), show=False)
begun = done = False
"""

AWAITS = """
import asyncio
print("begin")
begun = True
while not done:
    await asyncio.sleep(0.01)
print("end")
6 * 7
"""


@pytest.mark.kernel
def test_between_the_cells_of_a_kernel_each_keeps_its_own_output(tmp_path: Path) -> None:
    """The cell that asked has ended; the code awaits, and other cells run meanwhile."""
    kernel = Kernel(tmp_path, live="1").start()
    try:
        assert kernel.run(SETUP, cell="a").status == "ok"
        assert kernel.run(f"turn = chat.submit({AWAITS!r}, show=False)", cell="b").status == "ok"
        assert eventually_true(kernel, "begun")
        other = kernel.run("print('other'); display('shown'); 'value'", cell="c")
        assert other.text.split() == ["other", "'shown'", "'value'"]
        assert "ZeroDivisionError" in kernel.run("1/0", cell="d").text
        kernel.run("done = True", cell="e")
        assert kernel.value("turn.result().text") == "heard begin\nend\n42\n"
        assert kernel.run("'after'", cell="f").text.split() == ["'after'"]

        sleep = "import asyncio\nslept = True\nawait asyncio.sleep(600)"
        kernel.run(f"slept = False; turn = chat.submit({sleep!r}, show=False)", cell="g")
        assert eventually_true(kernel, "slept")
        stopped = kernel.run("chat.stop(); print(chat.record(turn.id).reason)", cell="h")
        assert stopped.text.split() == ["aborted"]
        assert kernel.value("chat.submit('1 + 1', show=False).result().text") == "heard 2\n"
    finally:
        kernel.end()


def eventually_true(kernel: Kernel, expression: str) -> bool:
    deadline = time.monotonic() + 60
    while not kernel.value(expression):
        assert time.monotonic() < deadline, f"{expression} did not come true"
        time.sleep(0.05)
    return True
