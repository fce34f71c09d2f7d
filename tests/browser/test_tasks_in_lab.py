"""The Task graph and the Timeline in a real JupyterLab: they move while a cell computes, reload, act and end static."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .lab import Lab, LabNotebook, until
from .story import HANG, LONG, OPEN, SETUP, SHORT, Story, ask, pictures

pytestmark = pytest.mark.browser

GRAPH, TIMELINE = "%durable graph", "%durable timeline"
COMPUTE = f"""\
import time
from pathlib import Path
from pidurable_nb import notebook
notebook.current().submit({LONG!r}, show=False)
end = time.monotonic() + 120
while not Path("enough").exists() and time.monotonic() < end:
    sum(range(1000))"""


def lines(notebook: LabNotebook, cell: int) -> str:
    """The rows that the widget of a cell shows, each on a line."""
    rows = notebook.output(cell).locator(".pd-branch").all_inner_texts()
    return "\n".join(" ".join(row.split()) for row in rows)


def test_both_move_while_a_cell_computes_and_survive_a_reload(lab: Lab, tmp_path: Path) -> None:
    story = Story.write(lab, "tasks", [SETUP, OPEN, GRAPH, TIMELINE, ask(SHORT), COMPUTE, ask(HANG)])
    notebook = story.open()
    for cell in range(5):
        notebook.run_cell(cell)
    expect(notebook.output(2).locator(".pd-graph")).to_be_visible()
    expect(notebook.output(3).locator(".pd-timeline")).to_be_visible()
    until("the graph shows the first turn", lambda: "completed" in lines(notebook, 2))

    # The turn begins and ends within a cell that computes.
    notebook.run_cell(5, wait=False)
    until("the turn ends in the graph", lambda: lines(notebook, 2).count("completed") == 2, timeout=60)
    until("and in the timeline", lambda: notebook.output(3).locator(".pd-lane .pd-how-ended").count() == 2)
    assert "Tell me about a harbour" in lines(notebook, 3)
    assert notebook.busy_cells() == [5]
    (story.folder / "enough").touch()
    notebook.wait_ran(5)

    notebook.run_cell(6)
    until("a turn hangs", lambda: "turn running · request" in lines(notebook, 2))
    notebook.save()
    notebook.reload()
    until("the graph is there after a reload", lambda: "turn running · request" in lines(notebook, 2))
    until("the timeline is there after a reload", lambda: "Begin, and never end" in lines(notebook, 3))

    running = notebook.output(2).locator(".pd-branch", has_text="running")
    running.click()
    pick = notebook.output(2).locator(".pd-pick")
    expect(pick).to_contain_text(re.compile(r"began at prepare"))
    expect(pick).to_contain_text('"phase": "request"')
    # What the notebook does with these keys in command mode would be seen: cells selected, split or deleted.
    cells = notebook.page.locator(".jp-Notebook .jp-Cell").count()
    for key in ("ArrowUp", "ArrowUp", "ArrowDown", "End", "Enter"):
        notebook.page.keyboard.press(key)
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == cells
    expect(notebook.page.locator(":focus")).to_have_class(re.compile("pd-branch"))
    assert len(list(pictures(notebook, tmp_path, "tasks"))) == 4

    notebook.resize(1400)
    pick.get_by_role("button", name="Abort").click()
    until("the abort is done", lambda: "aborted" in lines(notebook, 2))
    until("the answer says so", lambda: "stopped" in notebook.text(6))
    assert [record["status"] for record in story.submissions()] == ["done", "done", "unanswered"]
    until("the timeline says so", lambda: notebook.output(3).locator(".pd-lane .pd-how-running").count() == 0)
    assert notebook.console == []
    notebook.close()


def test_a_crash_is_drawn_and_a_closed_session_leaves_static_forms(lab: Lab, tmp_path: Path) -> None:
    story = Story.write(lab, "crash-drawn", [SETUP, OPEN, ask(HANG), GRAPH, TIMELINE, "%durable close"])
    notebook = story.open()
    for cell in range(5):
        notebook.run_cell(cell)
    until("it hangs", lambda: "running" in lines(notebook, 3))
    notebook.kill_kernel()
    expect(notebook.output(3).locator(".pd-note")).to_contain_text("kernel ended")
    for cell in range(5):
        notebook.run_cell(cell)
    until("it goes on", lambda: "attempt 2" in lines(notebook, 3))
    timeline = notebook.output(4)
    expect(timeline.locator(".pd-life-sign", has_text="✕")).to_have_count(1)
    expect(timeline.locator(".pd-lane .pd-how-cut_off")).to_have_count(1)
    assert "1 crash" in notebook.text(4)
    assert len(list(pictures(notebook, tmp_path, "crash"))) == 4

    notebook.run_cell(5)
    expect(notebook.page.locator(".pd-graph, .pd-timeline")).to_have_count(0)
    saved = notebook.save()
    for cell, words in ((3, "attempt 2"), (4, "cut off by a crash")):
        (output,) = saved.cells[cell].outputs
        assert set(output.data) == {"text/plain", "text/html"}
        assert words in output.data["text/plain"]
        assert len(output.data["text/html"]) < 12_000
    assert notebook.console == []
    notebook.close()
