"""The Conversation widget in a real JupyterLab: what a person does with it, with the pointer and with keys alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from .lab import Lab, LabNotebook
from .story import HANG, LONG, OPEN, SETUP, SHORT, Story, ask

pytestmark = pytest.mark.browser

WATCH = "%durable watch"

TOOL = """\
from pidurable_nb import tool

@tool(approval=True)
def echo(text: str) -> str:
    "Say it back."
    return "echo: " + text

%durable install echo"""


def talk(notebook: LabNotebook, cell: int) -> Locator:
    return notebook.output(cell).locator(".pd-talk")


def write(widget: Locator, text: str) -> None:
    """Write a message and send it as the hint in the field says."""
    field = widget.get_by_role("textbox", name="Message")
    field.fill(text)
    field.press("Shift+Enter")
    expect(field).to_have_value("", timeout=30_000)


def test_a_conversation_is_watched_written_to_stopped_and_forked(lab: Lab) -> None:
    story = Story.write(lab, "talk", [SETUP, OPEN, WATCH, ask(SHORT)])
    notebook = story.open()
    for cell in range(3):
        notebook.run_cell(cell)
    widget = talk(notebook, 2)
    expect(widget.locator(".pd-badge")).to_have_text("ready")
    expect(widget).to_contain_text("Nothing was said yet.")

    # What a cell asks appears here, and what is written here is answered.
    notebook.run_cell(3)
    expect(widget).to_contain_text("Ready when you are.", timeout=30_000)
    write(widget, LONG)
    expect(widget.locator(".pd-badge")).to_have_text("answering", timeout=30_000)
    expect(widget).to_contain_text("small decision", timeout=30_000)
    write(widget, SHORT)
    expect(widget.get_by_role("list", name="Inbox")).to_contain_text(SHORT)
    widget.get_by_role("button", name=f"Withdraw follows: {SHORT}").click()
    expect(widget.get_by_role("list", name="Inbox")).to_be_hidden(timeout=30_000)
    widget.get_by_role("button", name="Stop this run").click()
    expect(widget.locator(".pd-badge")).to_have_text("ready", timeout=30_000)
    expect(widget).to_contain_text("stopped here · kept")

    # After a reload it goes on, and every button works.
    notebook.save()
    notebook.reload()
    widget = talk(notebook, 2)
    expect(widget).to_contain_text("stopped here · kept", timeout=60_000)
    answer = widget.locator(".pd-block", has_text="Ready when you are.")
    answer.hover()
    answer.get_by_role("button", name="Fork from entry").click()
    back = widget.get_by_role("button", name="Back to conversation 1")
    expect(back).to_be_visible(timeout=30_000)
    expect(widget).not_to_contain_text("small decision")
    write(widget, "On the branch")
    expect(widget).to_contain_text("You said: On the branch", timeout=30_000)
    back.click()
    expect(widget).to_contain_text("small decision", timeout=30_000)
    assert [record["status"] for record in story.submissions()] == ["done", "unanswered", "unanswered", "done"]
    assert notebook.console == []
    notebook.close()


def test_keys_alone_do_everything_and_none_of_them_reaches_the_notebook(lab: Lab) -> None:
    story = Story.write(lab, "keys", [SETUP, TOOL, OPEN, WATCH, ask(HANG), "%durable graph"])
    (story.folder / "hostile.txt").write_text("hello")
    notebook = story.open()
    for cell in range(4):
        notebook.run_cell(cell)
    widget = talk(notebook, 3)
    field = widget.get_by_role("textbox", name="Message")
    field.focus()
    notebook.page.keyboard.type("Run the tool.")
    notebook.page.keyboard.press("Tab")
    expect(widget.get_by_role("button", name="Send this message")).to_be_focused()
    notebook.page.keyboard.press("Enter")
    approve = widget.get_by_role("button", name="Approve this call")
    expect(approve).to_be_visible(timeout=30_000)
    approve.focus()
    notebook.page.keyboard.press("Enter")
    expect(widget.locator(".pd-tool .pd-state").first).to_have_text("done", timeout=30_000)
    expect(widget.locator(".pd-badge")).to_have_text("ready", timeout=30_000)

    # Letters that are commands of the notebook are none here, nor is Enter.
    cells = notebook.page.locator(".jp-Notebook .jp-Cell")
    before = cells.count()
    widget.locator(".pd-log").focus()
    for key in ("a", "b", "x", "Enter", "d", "d"):
        notebook.page.keyboard.press(key)
    assert cells.count() == before
    assert notebook.page.locator(".jp-Notebook.jp-mod-editMode").count() == 0

    # The stop of an answer is a press of a key as well.
    notebook.run_cell(4)
    notebook.wait_text(4, "three things")
    stop = notebook.output(4).get_by_role("button", name="Stop this answer")
    stop.focus()
    notebook.page.keyboard.press("Enter")
    expect(notebook.output(4).locator(".pd-answer")).to_have_count(0, timeout=30_000)
    assert "stopped" in notebook.text(4)
    assert story.submissions()[-1]["reason"] == "aborted"

    # So is the choice of a task in the graph.
    notebook.run_cell(5)
    tree = notebook.output(5).get_by_role("tree", name="Tasks")
    tree.get_by_role("treeitem").first.focus()
    notebook.page.keyboard.press("ArrowDown")
    notebook.page.keyboard.press("Enter")
    expect(notebook.output(5).get_by_role("region", name="Selected task")).to_contain_text("pi.", timeout=30_000)
    assert notebook.page.locator(".jp-Notebook.jp-mod-editMode").count() == 0
    assert notebook.console == []
    notebook.close()


def test_a_closed_session_leaves_the_static_form(lab: Lab) -> None:
    story = Story.write(lab, "talk-closed", [SETUP, OPEN, ask(SHORT, "--wait"), WATCH, "%durable close"])
    notebook = story.open()
    notebook.run_all()
    expect(talk(notebook, 3)).to_have_count(0, timeout=30_000)
    notebook.wait_text(3, "closed")
    assert "Ready when you are." in notebook.text(3)
    (output,) = notebook.save().cells[3].outputs
    assert sorted(output.data) == ["text/html", "text/plain"]
    assert len(str(output)) < 5000
    notebook.close()


HIDDEN = """() => {
  window.told = [];
  window.Notification = class {
    static permission = "granted";
    constructor(title, { body }) { window.told.push([title, body]); }
  };
  Object.defineProperty(document, "hidden", { get: () => true });
}"""


def test_the_dashboard_and_a_notification(lab: Lab) -> None:
    story = Story.write(lab, "board", [SETUP, OPEN, "%durable dashboard", "%durable notify on", ask(LONG)])
    notebook = story.open()
    notebook.page.evaluate(HIDDEN)
    for cell in range(5):
        notebook.run_cell(cell)
    board = notebook.output(2).locator(".pd-board")
    expect(board).to_contain_text("small decision", timeout=30_000)
    board.get_by_role("tab", name="Tasks").click()
    tasks = board.get_by_role("tree", name="Tasks")
    expect(tasks).to_contain_text("turn", timeout=30_000)
    tasks.get_by_text("turn").first.click()
    expect(board.get_by_role("tabpanel")).to_contain_text("pi.generation", timeout=30_000)
    board.get_by_role("tab", name="Timeline").click()
    expect(board.get_by_role("tabpanel")).to_contain_text(LONG, timeout=30_000)
    board.get_by_role("tab", name="Opening").click()
    expect(board.get_by_role("tabpanel")).to_contain_text("new session")
    notebook.page.wait_for_function("window.told.length > 0", timeout=60_000)
    assert notebook.page.evaluate("window.told") == [["the answer is there", LONG]]
    expect(notebook.output(3).locator(".pd-notify")).to_contain_text("notifications are on")
    assert notebook.console == []
    notebook.close()
