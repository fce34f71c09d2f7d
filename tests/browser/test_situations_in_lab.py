"""What becomes of a notebook in a real JupyterLab when its surroundings change under an answer.

Its page is closed, its kernel is culled, suspended or restarted while a tool runs, or another notebook opens its file.
The kernel that is culled has a kernel spec of its own, ``lab.CULLED``, which makes the server wait for seconds only.
"""

from __future__ import annotations

import os
import re
import signal
import time

import nbformat
import psutil
import pytest
from playwright.sync_api import expect

from .lab import CULLED, Lab, LabNotebook, until
from .story import AFTER, HANG, LONG, OPEN, SETUP, SHORT, Story, ask

pytestmark = pytest.mark.browser

OBSERVE = "%durable open chat.sqlite --observe"


def wait_no_live_view(notebook: LabNotebook) -> None:
    """Wait until every answer has ended and has its static form."""
    expect(notebook.page.locator(".pd-answer")).to_have_count(0, timeout=60_000)


def statuses(story: Story) -> list[str]:
    """The stored statuses of all questions, oldest first."""
    return [str(record["status"]) for record in story.submissions()]


def test_a_culled_kernel_goes_on_from_its_last_commit(lab: Lab) -> None:
    story = Story.write(lab, "culled", [SETUP, OPEN, ask(SHORT), ask(HANG)])
    path = story.folder / "story.ipynb"
    written = nbformat.read(path, as_version=4)
    written.metadata.kernelspec.name = CULLED
    nbformat.write(written, path)
    notebook = story.open()
    notebook.run_all()
    notebook.wait_text(3, "three things")
    notebook.save()
    process = psutil.Process(notebook.kernel_pid())
    notebook.close()

    # A server culls only what no page looks at.
    until("the server culls it", lambda: not process.is_running(), timeout=90)
    assert story.ends() == ["closed"]
    assert statuses(story) == ["done", "placed"]

    notebook = story.open()
    notebook.run_all()
    assert "closed it cleanly" in notebook.text(1)
    assert "stored answer from" in notebook.text(2)
    notebook.wait_text(3, "attempt 2")
    notebook.wait_text(3, re.compile(r"three things(.|\n)*a radio that nobody"))
    expect(notebook.output(3).locator(".pd-struck")).to_contain_text("three things")
    assert story.requests() == [SHORT, HANG, HANG]
    assert statuses(story) == ["done", "placed"]
    notebook.close()


def test_a_page_that_was_closed_in_mid_answer_comes_back_and_stops_it_from_another_cell(lab: Lab) -> None:
    story = Story.write(lab, "away", [SETUP, OPEN, ask(HANG), ask(AFTER), "%durable stop", ask(SHORT)])
    notebook = story.open()
    for cell in range(4):
        notebook.run_cell(cell)
    notebook.wait_text(2, "three things")
    process = notebook.kernel_pid()
    notebook.save()
    notebook.close()

    # For the page that comes, the one answer is still under way and the other one still waits for it.
    notebook = story.open()
    assert notebook.kernel_pid() == process
    notebook.wait_text(2, "three things")
    expect(notebook.page.locator(".pd-badge")).to_have_text(["answering", "queued"], timeout=60_000)
    notebook.run_cell(4)
    assert "what was said so far is kept" in notebook.text(4)
    wait_no_live_view(notebook)
    assert "stopped" in notebook.text(2)
    assert "three things" in notebook.text(2)
    assert "stopped" in notebook.text(3)
    assert statuses(story) == ["unanswered", "unanswered"]
    assert story.requests() == [HANG]

    notebook.run_cell(5)
    notebook.wait_text(5, "Ready when you are.")
    notebook.close()


def test_a_second_notebook_is_told_who_has_the_file_and_observes_it(lab: Lab) -> None:
    story = Story.write(lab, "two", [SETUP, OPEN, ask(SHORT), ask(LONG)])
    lab.write("two/second.ipynb", [SETUP, OPEN, "%durable wait", "%durable history", ask(AFTER)])
    first = story.open()
    for cell in range(3):
        first.run_cell(cell)
    first.wait_text(2, "Ready when you are.")
    second = story.open(name="second.ipynb")
    second.run_cell(0)
    second.run_cell(1)
    refused = second.text(1)
    assert str(first.kernel_pid()) in refused
    assert OBSERVE in refused

    # What the line says works, and sees an answer that is asked for afterwards.
    second.set_source(1, OBSERVE)
    second.run_cell(1)
    assert f"process {first.kernel_pid()}" in second.text(1)
    second.run_cell(3)
    assert "Ready when you are." in second.text(3)
    first.run_cell(3)
    first.wait_text(3, "small decision")
    second.run_cell(2)
    second.run_cell(3)
    assert "nothing is lost but time" in second.text(3)

    second.run_cell(4)
    assert "Traceback" not in second.text(4)
    assert len(second.text(4).splitlines()) == 1, second.text(4)
    assert statuses(story) == ["done", "done"]
    assert story.requests() == [SHORT, LONG]
    second.close()
    first.close()


WORKFLOW = """\
import time
from pathlib import Path
from pidurable_nb import Extension, notebook, workflow

def note(what: str) -> None:
    with Path("notes.log").open("a") as log:
        log.write(f"{what} {time.time()}\\n")

@workflow("nap", version=1)
async def nap(run, seconds: float) -> None:
    await run.step("asleep", note, "asleep")
    await run.sleep(seconds)
    await run.step("awake", note, "awake")

notebook.install(Extension("naps", tasks=[nap]))"""
NAP = 8.0
START = f"""\
async def start(chat):
    async with chat.conversation.commit() as tx:
        await tx.create_task(nap, {NAP})

notebook.current().run(start, notebook.current())"""


def test_a_machine_that_sleeps_loses_nothing_and_doubles_nothing(lab: Lab) -> None:
    """To a process, a suspended machine is a stop and a continuation: every instant in between passed without it."""
    story = Story.write(lab, "sleeps", [SETUP, WORKFLOW, OPEN, START, ask(LONG)])
    notes = story.folder / "notes.log"

    def noted() -> dict[str, float]:
        lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        assert len({what for what, _ in lines}) == len(lines), "a step ran twice"
        return {what: float(at) for what, at in lines}

    notebook = story.open()
    for cell in range(5):
        notebook.run_cell(cell)
    notebook.wait_text(4, "small")
    asleep = until("the workflow sleeps", lambda: noted().get("asleep"))
    process = notebook.kernel_pid()
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    try:
        until("the instant passes", lambda: time.time() > asleep + NAP + 1)
    finally:
        os.kill(process, signal.SIGCONT)

    awake = until("it wakes", lambda: noted().get("awake"), timeout=60)
    assert awake >= asleep + NAP
    notebook.wait_text(4, "nothing is lost but time", timeout=60)
    wait_no_live_view(notebook)
    assert notebook.text(4).count("The harbour wakes") == 1
    assert "attempt 2" not in notebook.text(4)
    assert notebook.kernel_pid() == process
    assert story.requests() == [LONG]
    assert statuses(story) == ["done"]
    assert sorted(noted()) == ["asleep", "awake"]
    assert notebook.console == []
    notebook.close()


TOOL = """\
import asyncio, time
from pathlib import Path
from pidurable_nb import tool

def begin() -> None:
    with Path("runs.log").open("a") as log:
        log.write("ran\\n")

{source}

%durable install echo"""
ASYNC = """\
@tool(replay="safe")
async def echo(text: str) -> str:
    "Say it."
    begin()
    while not Path("enough").exists():
        await asyncio.sleep(0.01)
    return text"""
PLAIN = """\
@tool
def echo(text: str) -> str:
    "Say it."
    begin()
    while not Path("enough").exists():
        time.sleep(0.01)
    return text"""


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_restart_from_the_menu_while_a_tool_runs(lab: Lab, kind: str) -> None:
    """An async tool is left at its next await; a plain function cannot be, and its session is left as by a crash."""
    source = ASYNC if kind == "async" else PLAIN
    cells = [SETUP, OPEN, TOOL.format(source=source), ask("Run the tool."), "%durable history"]
    story = Story.write(lab, f"tool-{kind}", cells)
    (story.folder / "hostile.txt").write_text("The quay is calm.")
    runs = story.folder / "runs.log"
    notebook = story.open()
    for cell in range(4):
        notebook.run_cell(cell)
    until("the tool runs", runs.exists)
    notebook.restart()
    assert story.ends() == ["closed" if kind == "async" else None]
    assert statuses(story) == ["placed"]

    # Opened at its top, the session waits for the tool that is defined further down.
    (story.folder / "enough").touch()
    notebook.run_cell(0)
    notebook.run_cell(1)
    card = notebook.text(1)
    assert ("closed it cleanly" if kind == "async" else "died without closing it") in card
    assert "waiting for tool echo" in card
    notebook.run_cell(2)
    notebook.run_cell(3)
    notebook.wait_text(3, "The quay is calm.")
    until("it is answered", lambda: statuses(story) == ["done"])
    wait_no_live_view(notebook)
    notebook.run_cell(4)
    assert ("The call was interrupted" in notebook.text(4)) == (kind == "plain")
    assert runs.read_text().split() == ["ran"] * (2 if kind == "async" else 1)
    assert story.requests() == ["Run the tool."] * 2
    notebook.close()
