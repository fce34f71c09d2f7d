"""What a person does with ``%%durable`` cells in a real JupyterLab besides waiting: stop, restart, reload, crash."""

from __future__ import annotations

import json
import re
import time

import psutil
import pytest
from playwright.sync_api import expect

from .lab import Lab, LabNotebook, until
from .story import AFTER, HANG, LONG, OPEN, SETUP, SHORT, Story, ask
from .widget_gallery import HOSTILE, XSS

pytestmark = pytest.mark.browser


def wait_no_live_view(notebook: LabNotebook) -> None:
    """Wait until every answer has ended and has its static form."""
    expect(notebook.page.locator(".pd-answer")).to_have_count(0, timeout=30_000)


def status_of(story: Story, question: int) -> str:
    """The stored status of the question that was asked so many questions after the first."""
    return str(story.submissions()[question]["status"])


def test_an_interrupt_stops_a_waiting_cell_and_a_restart_goes_on_with_it(lab: Lab) -> None:
    story = Story.write(lab, "waits", [SETUP, OPEN, ask(LONG, "--wait"), ask(SHORT), "print('usable')"])
    notebook = story.open()
    for cell in (0, 1):
        notebook.run_cell(cell)

    # Stop means stop: the cell ends at once, the turn a second later.
    notebook.run_cell(2, wait=False)
    notebook.wait_text(2, "small decision")
    assert notebook.busy_cells() == [2]
    notebook.interrupt()
    notebook.wait_ran(2, timeout=2)
    assert "interrupted: the turn stops in a second" in notebook.text(2)
    assert "Traceback" not in notebook.text(2)
    assert status_of(story, 0) == "placed"
    until("the turn is aborted", lambda: status_of(story, 0) == "unanswered", timeout=10)
    assert story.submissions()[0]["reason"] == "aborted"
    wait_no_live_view(notebook)
    assert "stopped" in notebook.text(2)
    assert "small decision" in notebook.text(2)
    assert "nothing is lost but time" not in notebook.text(2)
    notebook.run_cell(4)
    assert notebook.text(4) == "usable"
    notebook.run_cell(3)
    notebook.wait_text(3, "Ready when you are.")

    # Run again it stays stopped; --again asks anew, and a restart in the middle goes on with that.
    notebook.run_cell(2)
    assert "--again asks anew" in notebook.text(2)
    notebook.set_source(2, ask(LONG, "--wait --again"))
    notebook.run_cell(2, wait=False)
    notebook.wait_text(2, "small decision")
    notebook.restart()
    assert [record["status"] for record in story.submissions()] == ["unanswered", "done", "placed"]
    assert story.ends() == ["closed"]
    notebook.set_source(2, ask(LONG, "--wait"))
    notebook.run_all()
    assert re.search(r"small decision(.|\n)*nothing is lost but time", notebook.text(2))
    assert [record["status"] for record in story.submissions()] == ["unanswered", "done", "done"]
    assert story.requests() == [LONG, SHORT, LONG, LONG]
    assert notebook.console == []
    notebook.close()


def test_questions_queue_in_order_and_each_can_be_stopped(lab: Lab) -> None:
    cells = [
        SETUP,
        OPEN,
        ask(HANG),
        ask(LONG),
        ask(AFTER),
        "%durable stop",
        ask('What is {1 + 1} of {x: 3}? {"a": [1]}'),
    ]
    story = Story.write(lab, "queue", cells)
    notebook = story.open()
    for cell in range(5):
        notebook.run_cell(cell)
    notebook.wait_text(2, "three things")
    badges = notebook.page.locator(".pd-badge")
    expect(badges).to_have_text(["answering", "queued", "queued"])

    # A question that waits is taken back; one that runs is stopped, and the next one starts.
    notebook.output(4).get_by_role("button", name="Stop this answer").click()
    expect(badges).to_have_text(["answering", "queued"])
    assert "stopped" in notebook.text(4)
    notebook.output(2).get_by_role("button", name="Stop this answer").click()
    notebook.wait_text(3, "small decision")
    assert "three things" in notebook.text(2)
    notebook.run_cell(5)
    wait_no_live_view(notebook)
    assert "stopped" in notebook.text(3)
    assert "small decision" in notebook.text(3)
    assert [record["status"] for record in story.submissions()] == ["unanswered"] * 3
    assert story.requests() == [HANG, LONG]

    # The session goes on, and braces that are no values stay as they are.
    notebook.run_cell(6)
    notebook.wait_text(6, 'You said: What is 2 of {x: 3}? {"a": [1]}')
    wait_no_live_view(notebook)

    # Of two answers that are asked for one after the other, the second comes second.
    notebook.set_source(2, ask(LONG))
    notebook.set_source(3, ask(AFTER))
    notebook.run_cell(2)
    notebook.run_cell(3)
    notebook.wait_text(3, "queued")
    notebook.wait_text(3, "showing comes second")
    assert "nothing is lost but time" in notebook.text(2)
    asked = len(story.requests())
    notebook.run_cell(3)
    assert re.search(r"showing comes second(.|\n)*stored answer from", notebook.text(3))
    assert len(story.requests()) == asked
    assert notebook.console == []
    notebook.close()


def test_a_reloaded_page_goes_on_live_and_ends_with_the_static_form(lab: Lab) -> None:
    widgets = "import ipywidgets\nlen(ipywidgets.widgets.widget._instances)"
    story = Story.write(lab, "reload", [SETUP, OPEN, ask(LONG), ask(AFTER), widgets])
    notebook = story.open()
    for cell in range(3):
        notebook.run_cell(cell)
    notebook.run_cell(3)
    notebook.wait_text(2, "small")
    notebook.save()
    notebook.reload()
    notebook.wait_text(2, "three things")
    wait_no_live_view(notebook)
    for cell, last in ((2, "nothing is lost but time"), (3, "showing comes second")):
        notebook.wait_text(cell, last)
        assert "done" in notebook.text(cell)
    saved = notebook.save()
    for cell in (2, 3):
        (output,) = saved.cells[cell].outputs
        assert sorted(output.data) == ["text/html", "text/markdown", "text/plain"]
        assert "<script" not in output.data["text/html"]
        assert len(json.dumps(output)) < 4000

    # The kernel lets go of a widget that no page needs any more.
    def widgets_left() -> str:
        notebook.run_cell(4)
        return notebook.text(4)

    until("the widgets are closed", lambda: widgets_left() == "0", every=0.3)

    # An answer that ends while nobody looks is there for the page that comes.
    notebook.set_source(2, ask(LONG, "--again"))
    notebook.run_cell(2)
    notebook.wait_text(2, "small")
    notebook.save()
    notebook.close()
    until("it is answered", lambda: [r["status"] for r in story.submissions()] == ["done"] * 3)
    notebook = story.open()
    notebook.wait_text(2, "nothing is lost but time")
    wait_no_live_view(notebook)
    assert sorted(notebook.save().cells[2].outputs[0].data) == ["text/html", "text/markdown", "text/plain"]
    notebook.close()


def test_what_cannot_work_says_so_in_one_line(lab: Lab) -> None:
    cells = [
        SETUP,
        OPEN,
        "%%durable\n  ",
        "%durable open other.sqlite --model nosuch:model",
        "%durable opne x",
        "%durable open picture.png",
        "%durable model nosuch:model",
        ask(SHORT),
    ]
    story = Story.write(lab, "errors", cells)
    notebook = story.open()
    (story.folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    for cell in (0, 1, 7):
        notebook.run_cell(cell)
    pid = notebook.kernel_pid()

    def fails(cell: int) -> str:
        notebook.run_cell(cell)
        text = notebook.text(cell)
        assert "Traceback" not in text
        assert len(text.splitlines()) == 1, text
        return text

    assert "the cell is empty" in fails(2)
    assert "nosuch" in fails(3)
    assert not (story.folder / "other.sqlite").exists()
    assert "did you mean open" in fails(4)

    assert "picture.png" in fails(5)
    assert (story.folder / "picture.png").stat().st_size == 508
    assert "nosuch" in fails(6)

    # A second kernel on the same file: who holds it, and since when.
    lab.write("errors/second.ipynb", [SETUP, OPEN])
    second = story.open(name="second.ipynb")
    second.run_cell(0)
    second.run_cell(1)
    text = second.text(1)
    assert "Traceback" not in text
    assert len(text.splitlines()) == 1, text
    assert str(pid) in text
    assert re.search(r"since .*\d\d:\d\d", text)
    second.close()
    notebook.run_cell(7)
    assert "stored answer" in notebook.text(7)
    assert "changed" not in notebook.text(7)
    notebook.close()


def test_a_crash_from_a_cell_and_a_shutdown_from_the_menu(lab: Lab) -> None:
    story = Story.write(lab, "crash", [SETUP, OPEN, ask(LONG)])
    notebook = story.open()
    notebook.run_all()
    notebook.wait_text(2, "small decision")
    before = notebook.kernel_pid()
    notebook.page.evaluate("jupyterapp.commands.execute('notebook:insert-cell-below')")
    notebook.set_source(3, "%durable crash")
    notebook.run_cell(3, wait=False)
    expect(notebook.page.locator(".jp-Dialog")).to_be_visible(timeout=60_000)
    notebook.confirm()
    until("the kernel has another process", lambda: notebook.kernel_pid() not in (None, before))
    until("it is there", lambda: notebook.kernel_status() in ("idle", "starting"))
    notebook.set_source(3, "print('after')")
    notebook.run_all()
    assert "died without closing it" in notebook.text(1)
    notebook.wait_text(2, "attempt 2")
    notebook.wait_text(2, "small decision")

    # Shutting down in the middle of the second attempt: gone at once, closed, and open again in the next kernel.
    process = psutil.Process(notebook.kernel_pid())
    notebook.menu("Kernel", "kernelmenu:shutdown")
    began = time.monotonic()
    until("the kernel is gone", lambda: not process.is_running(), timeout=10, every=0.02)
    assert time.monotonic() - began < 3
    assert story.ends() == [None, "closed"]
    notebook.reload()
    notebook.wait_ready()
    notebook.run_all()
    assert "closed it cleanly" in notebook.text(1)
    notebook.wait_text(2, "nothing is lost but time")
    assert story.requests() == [LONG] * 3
    assert [record["status"] for record in story.submissions()] == ["done"]
    notebook.close()


TOOL = """\
from pidurable_nb import tool

@tool
def echo(text: str) -> str:
    "Say it."
    print(text)
    return text

%durable install echo"""


def test_nothing_that_a_model_or_a_tool_says_runs(lab: Lab) -> None:
    story = Story.write(
        lab, "hostile", [SETUP, TOOL, OPEN, ask("Run the tool."), "%durable history", "%durable tasks --all"]
    )
    hostile = XSS + HOSTILE
    (story.folder / "hostile.txt").write_text(hostile)
    notebook = story.open()
    notebook.run_all()
    assert notebook.output(3).locator(".pd-answer").count() == 1
    wait_no_live_view(notebook)
    notebook.run_all()
    assert "window.hacked" in notebook.text(3)
    assert "window.hacked" in notebook.text(4)
    notebook.save()
    notebook.reload()
    assert "window.hacked" in notebook.wait_text(4, "echo")
    assert notebook.page.evaluate("window.hacked") is None
    made = ".jp-OutputArea-output :is(script, img, svg:not(.pd-icon), iframe, style, [onerror], [onload])"
    assert notebook.page.locator(made).count() == 0
    addresses = notebook.page.locator(".jp-OutputArea-output a").evaluate_all("nodes => nodes.map(node => node.href)")
    assert all(address.startswith(("https:", "http:", "mailto:")) for address in addresses), addresses
    notebook.close()


def test_the_same_in_notebook_7(lab: Lab) -> None:
    pytest.importorskip("notebook", reason="pip install notebook")
    story = Story.write(lab, "seven", [SETUP, OPEN, ask(SHORT), ask(LONG)])
    notebook = story.open(mode="notebooks")
    for cell in range(4):
        notebook.run_cell(cell)
    notebook.wait_text(3, "small decision")
    live = notebook.output(3).locator(".pd-answer")
    expect(live).to_have_count(1)
    notebook.wait_text(3, "nothing is lost but time")
    expect(live).to_have_count(0)
    notebook.run_cell(2)
    assert "stored answer" in notebook.text(2)
    records = story.submissions()
    assert [record["status"] for record in records] == ["done", "done"]
    assert all(record["request_id"].startswith("cell:") for record in records)
    notebook.close()
