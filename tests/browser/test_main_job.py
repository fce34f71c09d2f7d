"""The main job in a real JupyterLab: an answer streams, its kernel dies in the middle, and the answer is finished."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from .lab import Lab, LabNotebook, until
from .story import AFTER, HANG, LONG, OPEN, SETUP, SHORT, Story, ask, faults, pictures, sample, samples

pytestmark = pytest.mark.browser

CELLS = [SETUP, OPEN, ask(SHORT), ask(LONG), ask(AFTER)]
LINE = 26
"""Pixels: how much an answer may move when its static form replaces the live one."""


def growth(noted: list[dict[str, Any]]) -> list[str]:
    """The different texts that a live view showed, in order."""
    texts: list[str] = []
    for seen in noted:
        if seen["form"] == "live" and seen["text"] and seen["text"] not in texts[-1:]:
            texts.append(seen["text"])
    return texts


def assert_calm(noted: list[dict[str, Any]]) -> None:
    """It shows something all the time, never gets lower while it is live, and hardly moves when it has ended."""
    forms = [seen["form"] for seen in noted]
    assert "none" not in forms
    assert sorted(forms) == forms, "the live form came back after the static one"
    for before, after in pairwise(noted):
        if after["form"] == "live":
            assert after["height"] >= before["height"] - 1, (before, after)
        else:
            assert abs(after["height"] - before["height"]) <= LINE, (before, after)


def wait_finished(notebook: LabNotebook) -> None:
    """Wait until the last question is answered, which comes after all others, and the live views are gone."""
    notebook.wait_text(4, "showing comes second")
    expect(notebook.page.locator(".pd-answer")).to_have_count(0)


def test_an_answer_streams_and_ends_calmly(lab: Lab) -> None:
    story = Story.write(lab, "calm", CELLS)
    notebook = story.open()
    sample(notebook, [2, 3, 4])
    notebook.run_all()
    notebook.wait_text(3, "three things")
    assert notebook.output(4).locator(".pd-badge").inner_text() == "queued"
    wait_finished(notebook)

    texts = growth(samples(notebook, 3))
    assert len(texts) >= 5
    assert all(len(later) >= len(earlier) for earlier, later in pairwise(texts))
    for cell in (2, 3, 4):
        assert_calm(samples(notebook, cell))
    assert story.requests() == [SHORT, LONG, AFTER]
    assert [record["status"] for record in story.submissions()] == ["done"] * 3
    assert notebook.console == []
    notebook.close()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_an_answer_survives_its_kernel(lab: Lab, how: str) -> None:
    story = Story.write(lab, f"survives-{how}", CELLS)
    notebook = story.open()
    notebook.run_all()
    notebook.wait_text(3, "small decision")
    asked = [(record["id"], record["request_id"]) for record in story.submissions()]
    if how == "kill":
        notebook.kill_kernel()
    else:
        notebook.restart()
    badges = notebook.page.locator(".pd-badge")
    expect(badges).to_have_text(["kernel ended", "kernel ended"])
    assert notebook.output(3).get_by_role("button").count() == 0
    assert "in the evening" not in notebook.text(3).lower()
    assert faults(notebook) == []

    sample(notebook, [3])
    notebook.run_all()
    assert "recovered" in notebook.text(1)
    assert ("died without closing it" if how == "kill" else "closed it cleanly") in notebook.text(1)
    assert "“Tell me about a harbour.”" in notebook.text(1)
    assert re.search(r"Ready when you are\.(.|\n)*stored answer from \d\d:\d\d · --again asks anew", notebook.text(2))
    notebook.wait_text(3, "attempt 2")
    notebook.wait_text(3, re.compile(r"cut off(.|\n)*small decision(.|\n)*The harbour wakes(.|\n)*small decision"))
    assert notebook.output(3).locator(".pd-badge").inner_text() == "answering"
    struck = notebook.output(3).locator(".pd-struck")
    expect(struck).to_have_count(1)
    assert struck.bounding_box()["y"] < notebook.output(3).locator(".pd-streaming").bounding_box()["y"]  # type: ignore[index]
    assert "small decision" in struck.inner_text()
    wait_finished(notebook)

    assert len(growth(samples(notebook, 3))) >= 5
    finished = story.submissions()
    assert [(record["id"], record["request_id"]) for record in finished] == asked
    assert [record["status"] for record in finished] == ["done"] * 3
    assert story.requests() == [SHORT, LONG, LONG, AFTER]
    assert notebook.output(3).locator("del").count() == 1
    assert "nothing is lost but time" in notebook.text(3)

    # All of it once more, in the same life: nothing is asked, and each answer is there at once.
    notebook.run_all()
    for cell in (2, 3, 4):
        assert "stored answer from" in notebook.text(cell)
    assert "nothing is lost but time" in notebook.text(3)
    assert story.requests() == [SHORT, LONG, LONG, AFTER]
    assert story.ends()[0] == (None if how == "kill" else "closed")
    saved = notebook.save()
    assert all("widget" not in media for cell in saved.cells for out in cell.outputs for media in out.get("data", {}))
    assert notebook.console == []
    notebook.close()


def test_nothing_overlaps_or_is_cut_off_in_any_look(lab: Lab, tmp_path: Path) -> None:
    """Mid-answer, with an attempt that was cut off above it and another question waiting; then stopped."""
    story = Story.write(lab, "looks", [SETUP, OPEN, ask(SHORT), ask(HANG), ask(AFTER)])
    notebook = story.open()
    notebook.run_all()
    notebook.wait_text(3, "three things")
    notebook.kill_kernel()
    notebook.run_all()
    notebook.wait_text(3, "a radio")
    assert len(list(pictures(notebook, tmp_path, "mid-answer"))) == 4

    notebook.output(3).get_by_role("button", name="Stop this answer").click()
    notebook.wait_text(4, "showing comes second")
    expect(notebook.page.locator(".pd-answer")).to_have_count(0)
    assert "stopped" in notebook.text(3)
    assert "a radio" in notebook.text(3)
    assert len(list(pictures(notebook, tmp_path, "stopped"))) == 4
    records = story.submissions()
    assert [record["status"] for record in records] == ["done", "unanswered", "done"]
    assert records[1]["reason"] == "aborted"
    until("the kernel is idle", lambda: notebook.kernel_status() == "idle")
    notebook.close()
