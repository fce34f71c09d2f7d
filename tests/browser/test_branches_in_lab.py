"""Branches, compaction and subagents as a person sees them in a real JupyterLab."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .lab import Lab
from .story import LONG, OPEN, SETUP, SHORT, Story, ask

pytestmark = pytest.mark.browser

WATCH, GRAPH, TIMELINE = "%durable watch", "%durable graph", "%durable timeline"

ANSWERS = """\
from pidurable_nb import notebook
answers = [entry.id for entry in notebook.current().history().entries if entry.role == "assistant"]"""

SMALL = """\
from pidurable_nb import CompactionPolicy, Settings, notebook
settings = Settings(compaction=CompactionPolicy(keep_recent_tokens=1))
notebook.open("chat.sqlite", model="scripted:story", settings=settings)"""

HELPER = f"""\
from pidurable_nb import AgentChange, notebook
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.tools import subagent_tool

call = ToolCall(id="call-1", name="helper", arguments={{"task": {LONG!r}}})
boss = ScriptedModel([Reply(tool_calls=[call]), "Thanks to the helper."], name="scripted:boss", by="transcript")
notebook.install(subagent_tool("helper", "Helps.", agent=AgentChange(model="scripted:story")))
notebook.open("chat.sqlite", model=boss)"""


def test_a_rewound_notebook_shows_both_branches_and_runs_again_without_asking(lab: Lab) -> None:
    cells = [SETUP, OPEN, ask(SHORT, "--wait"), ask("two", "--wait"), ANSWERS, "%durable rewind {answers[0]}"]
    cells += [ask("three", "--wait"), "%durable conversations", "%durable conversations 1", WATCH]
    story = Story.write(lab, "branches", cells)
    notebook = story.open()

    def all_is_shown() -> None:
        notebook.run_cell(9)
        talk = notebook.output(9).locator(".pd-talk")
        expect(talk).to_contain_text("You said: three", timeout=30_000)
        expect(talk).to_contain_text("Ready when you are.")
        expect(talk).not_to_contain_text("You said: two")
        assert "Ready when you are." in notebook.text(2)
        assert "You said: two" in notebook.text(3)
        assert "You said: three" in notebook.text(6)
        assert "what came later stays where it was" in notebook.text(5)
        compared = notebook.text(8)
        assert "two" in compared
        assert "three" in compared

    for cell in range(9):
        notebook.run_cell(cell)
    all_is_shown()
    listed = notebook.text(7)
    asked = story.requests()
    assert len(asked) == 3
    notebook.restart_and_run_all()
    all_is_shown()
    assert notebook.text(7).count("\n") == listed.count("\n")
    assert story.requests() == asked
    assert notebook.console == []
    notebook.close()


def test_a_compaction_is_seen_in_graph_timeline_and_transcript(lab: Lab) -> None:
    cells = [SETUP, SMALL, ask(SHORT, "--wait"), ask("two", "--wait"), GRAPH, TIMELINE, WATCH]
    cells += ["%durable compact", "%durable history"]
    story = Story.write(lab, "compaction", cells)
    notebook = story.open()
    for cell in range(9):
        notebook.run_cell(cell)
    expect(notebook.output(4)).to_contain_text("compaction", timeout=30_000)
    expect(notebook.output(5)).to_contain_text("compaction", timeout=30_000)
    for cell in (6, 8):
        expect(notebook.output(cell)).to_contain_text("asked for · in place of what was before", timeout=30_000)
    assert len(story.requests()) == 3
    assert notebook.console == []
    notebook.close()


def test_a_subagent_is_seen_under_its_call_and_in_its_card(lab: Lab) -> None:
    story = Story.write(lab, "subagent", [SETUP, HELPER, GRAPH, TIMELINE, WATCH, ask("Let it be told.")])
    notebook = story.open()
    for cell in range(6):
        notebook.run_cell(cell)
    graph = notebook.output(2)
    call = graph.get_by_role("treeitem").filter(has_text="helper(").last
    expect(call).to_contain_text("running", timeout=30_000)
    turns = graph.get_by_role("treeitem").filter(has_text="turn")
    expect(turns).to_have_count(2, timeout=30_000)
    assert [turn.get_attribute("aria-level") for turn in turns.all()] == ["1", "3"]
    for cell in (4, 5):
        expect(notebook.output(cell)).to_contain_text("nothing is lost but time", timeout=60_000)
        expect(notebook.output(cell)).to_contain_text("Thanks to the helper.", timeout=60_000)
    expect(notebook.output(3)).to_contain_text("helper(", timeout=30_000)
    assert story.requests() == [LONG]
    assert notebook.console == []
    notebook.close()
