"""The Answer widget in a real JupyterLab: it streams while a cell computes, survives a reload, and its button works."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from .lab import Lab, until

pytestmark = pytest.mark.browser

STREAM = """\
import threading, time
from pidurable_nb.notebook.view import AnswerView, TextItem
from pidurable_nb.notebook.widgets import AnswerWidget

def view(n, **changes):
    text = "".join(f"Sentence **{i}** of it.\\n\\n" for i in range(n))
    item = TextItem(key="x", text=text, state="streaming" if n < 2000 else "done")
    return AnswerView(status="running", can_stop=True, model="fake", items=(item,)).replaced(**changes)

def run():
    n = 0
    while n < 2000 and not stop.wait(0.03):
        n += 1
        widget.show(view(n))
    widget.show(view(n, status="aborted", reason="aborted", can_stop=False))

stop = threading.Event()
widget = AnswerWidget(view(0))
widget.on_stop(stop.set)
threading.Thread(target=run, daemon=True).start()
widget"""

COMPUTE = """\
end = time.monotonic() + 3
while time.monotonic() < end:
    sum(range(1000))"""


def test_the_answer_streams_reloads_and_stops(lab: Lab) -> None:
    lab.write("widget.ipynb", [STREAM, COMPUTE, "widget"])
    notebook = lab.open("widget.ipynb")
    notebook.run_cell(0)
    answer = notebook.output(0).locator(".pd-answer")
    expect(answer).to_be_visible()

    def sentences(cell: int) -> int:
        return notebook.text(cell).count("Sentence")

    notebook.run_cell(1, wait=False)
    seen: set[int] = set()

    def five_steps() -> bool:
        seen.add(sentences(0))
        return len(seen) >= 5

    until("five steps are seen while the cell computes", five_steps)
    assert notebook.busy_cells() == [1]
    assert answer.locator("strong").count() >= 5
    notebook.wait_ran(1)

    notebook.run_cell(2)
    until("a view that opens late shows the present", lambda: sentences(2) > max(seen))

    before = sentences(0)
    notebook.save()
    notebook.reload()
    until("the reloaded page shows the present and goes on", lambda: sentences(0) > before)
    now = sentences(0)
    until("it goes on after the reload", lambda: sentences(0) > now)

    notebook.output(0).get_by_role("button", name="Stop this answer").click()
    expect(notebook.output(0).locator(".pd-badge")).to_have_text("stopped", timeout=30_000)
    expect(notebook.output(2).locator(".pd-badge")).to_have_text("stopped", timeout=30_000)
    assert notebook.console == []

    saved = notebook.save().cells[0].outputs[0].data
    assert "answering" in saved["text/plain"]
    assert "<script" not in saved["text/html"]
    assert len(json.dumps(saved)) < 3000
    notebook.close()


DELETED_SUBSHELL = """async () => {
  const kernel = jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
  const deleted = new Set();
  for (const comm of kernel._comms.values()) {
    await comm.subshellStarted;
    await comm.send({ method: "request_state" }).done;
    deleted.add(comm.subshellId);
  }
  for (const id of deleted) await kernel.requestDeleteSubshell({ subshell_id: id }, true).done;
  return [...deleted];
}"""
"""What a reload leaves behind now and then: a page that speaks to a subshell which the kernel no longer has."""

OFF = "jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.sendShellMessage = () => ({})"


def test_a_button_reaches_a_kernel_that_has_deleted_the_subshell_it_speaks_to(lab: Lab) -> None:
    lab.write("deaf.ipynb", [STREAM])
    notebook = lab.open("deaf.ipynb")
    notebook.run_cell(0)
    stop = notebook.output(0).get_by_role("button", name="Stop this answer")
    expect(stop).to_be_visible()
    (deleted,) = notebook.page.evaluate(DELETED_SUBSHELL)
    assert deleted is not None
    stop.click()
    expect(notebook.output(0).locator(".pd-badge")).to_have_text("stopped", timeout=30_000)
    notebook.close()


def test_a_button_that_reaches_no_kernel_says_so(lab: Lab) -> None:
    lab.write("off.ipynb", [STREAM])
    notebook = lab.open("off.ipynb")
    notebook.run_cell(0)
    stop = notebook.output(0).get_by_role("button", name="Stop this answer")
    expect(stop).to_be_visible()
    notebook.page.evaluate(OFF)
    stop.click()
    said = notebook.output(0).locator(".pd-asked")
    expect(said).to_have_text("nobody heard that: reload the page, or run %durable stop", timeout=10_000)
    notebook.close()
