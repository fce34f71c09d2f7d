"""The browser harness itself: what other browser tests rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab import Lab, until

pytestmark = pytest.mark.browser

COUNTER = """
import anywidget, traitlets

class Counter(anywidget.AnyWidget):
    _esm = '''
    export default { render({ model, el }) {
        const button = document.createElement("button");
        button.className = "smoke-counter";
        const show = () => { button.textContent = `count is ${model.get("value")}`; };
        button.onclick = () => { model.set("value", model.get("value") + 1); model.save_changes(); };
        model.on("change:value", show); show(); el.appendChild(button);
    } }
    '''
    value = traitlets.Int(0).tag(sync=True)

counter = Counter()
counter
"""


def test_a_notebook_runs_shows_a_widget_and_survives_the_kill_of_its_kernel(lab: Lab, tmp_path: Path) -> None:
    lab.write("smoke.ipynb", ["#md # Smoke", "print(6 * 7)", COUNTER, "print('value', counter.value)"])
    notebook = lab.open("smoke.ipynb")

    notebook.run_all()
    assert notebook.text(1) == "42"
    button = notebook.output(2).locator("button.smoke-counter")
    button.click()
    button.click()
    notebook.run_cell(3)
    assert notebook.text(3) == "value 2"

    before = notebook.kernel_pid()
    after = notebook.kill_kernel()
    assert after != before
    notebook.run_cell(3)
    assert "NameError" in notebook.text(3)

    notebook.restart_and_run_all()
    assert notebook.kernel_pid() not in (before, after)
    assert notebook.text(1) == "42"
    assert notebook.text(3) == "value 0"

    saved = notebook.save()
    assert saved.cells[1].outputs[0].text == "42\n"
    pictures = list(notebook.screenshots(tmp_path, "smoke"))
    assert [p.name for p in pictures] == [
        "smoke-light-1400.png",
        "smoke-light-700.png",
        "smoke-dark-1400.png",
        "smoke-dark-700.png",
    ]
    assert all(p.stat().st_size > 5_000 for p in pictures)
    assert notebook.console == []
    notebook.close()


def test_a_cell_is_interrupted_from_the_menu_and_the_output_so_far_stays(lab: Lab) -> None:
    lab.write(
        "stop.ipynb", ["import time\nfor i in range(600):\n    print('step', i, flush=True)\n    time.sleep(0.1)"]
    )
    notebook = lab.open("stop.ipynb", mode="doc", width=700)
    notebook.run_cell(0, wait=False)
    notebook.wait_text(0, "step 3")
    assert notebook.busy_cells() == [0]
    notebook.interrupt()
    notebook.wait_ran(0)
    assert "KeyboardInterrupt" in notebook.text(0)
    assert "step 3" in notebook.text(0)
    notebook.close()


WAITING = """
import asyncio, pathlib
from pidurable_nb.notebook.bridge import engine

async def close():
    pathlib.Path("closed").touch()

async def turn():
    print("waiting", flush=True)
    await asyncio.sleep(600)

engine().on_shutdown(close)
engine().run(turn, on_interrupt=lambda: engine().later(1.0, pathlib.Path("aborted").touch))
"""


def test_the_menu_interrupts_a_blocking_call_for_good_and_restarts_it_without(lab: Lab) -> None:
    """Stop means stop, restart means go on: what an interrupt asks for is taken back by the restart that follows it."""
    lab.write("menu.ipynb", [WAITING, "print('usable')"])
    notebook = lab.open("menu.ipynb")
    notebook.run_cell(0, wait=False)
    notebook.wait_text(0, "waiting")
    notebook.restart()
    assert (lab.root / "closed").exists()
    assert not (lab.root / "aborted").exists()

    notebook.run_cell(0, wait=False)
    notebook.wait_text(0, "waiting")
    notebook.interrupt()
    notebook.wait_ran(0, timeout=5)
    until("the abort is asked for", (lab.root / "aborted").exists)
    notebook.run_cell(1)
    assert notebook.text(1) == "usable"
    notebook.close()


def test_a_kernel_restarts_itself_through_jupyterlab(lab: Lab) -> None:
    lab.write(
        "again.ipynb", ["from pidurable_nb.notebook import kernels\nkernels.restart_this_kernel()", "print('new life')"]
    )
    notebook = lab.open("again.ipynb")
    before = notebook.kernel_pid()
    notebook.run_cell(0, wait=False)
    notebook.wait_ran(0)
    until("the kernel has another process", lambda: notebook.kernel_pid() not in (None, before))
    notebook.reconnect()
    assert "Error" not in notebook.text(0)
    notebook.run_cell(1)
    assert notebook.text(1) == "new life"
    notebook.close()
