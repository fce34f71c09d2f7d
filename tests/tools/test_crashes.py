"""The toolbox over crashes: real processes, killed around every commit (engine.md, section 12)."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any

import pytest

from pidurable_nb.testing import crash_sweep
from pidurable_nb.testing.sweep import Ending, Point

from . import sweep_scenarios as scenarios
from .support import alive


def conversations(ending: Ending) -> list[list[Any]]:
    """What each conversation holds, in the order in which they were made; results by their kind alone."""
    found: dict[int, list[Any]] = defaultdict(list)
    for _, conversation, kind, text, stop, _ in ending.transcript:
        if stop != "aborted":
            found[conversation].append((kind, text if kind != "pi.tool-result" else None))
    return [found[id] for id in sorted(found)]


def one_request_more_at_most(ending: Ending, baseline: Ending, point: Point) -> None:
    """Requests that were under way when the process died are sent again: two may be, of two conversations."""
    assert 0 <= ending.count("request") - baseline.count("request") <= 2


def the_same_conversations(ending: Ending, baseline: Ending, point: Point) -> None:
    one_request_more_at_most(ending, baseline, point)
    assert sorted(conversations(ending)) == sorted(conversations(baseline))


def test_a_subagent_in_the_foreground() -> None:
    sweep = crash_sweep(scenarios.foreground, check=the_same_conversations, when=["after"], same_transcript=False)
    assert sweep.baseline.outcome == ["done"]
    assert len(conversations(sweep.baseline)) == 3


def test_a_subagent_whose_call_a_person_decides() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        one_request_more_at_most(ending, baseline, point)
        assert ending.count("paid 5") <= 1

    sweep = crash_sweep(scenarios.asked_below, check=check, when=["after"], same_transcript=False)
    assert sweep.baseline.outcome == ["done", [0, 0]]
    assert sweep.baseline.count("paid 5") == 1


def test_a_subagent_in_the_background() -> None:
    sweep = crash_sweep(scenarios.background, check=the_same_conversations, when=["after"], same_transcript=False)
    report = "Report of the subagent 'ann':\n\nfound "
    assert sweep.baseline.outcome == [["done"] * 3, [report + "one", report + "two"]]
    assert len(conversations(sweep.baseline)) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_a_command_that_is_aborted() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        begun = point.directory / "begun"
        pids = [int(line) for line in begun.read_text().split()] if begun.exists() else []
        assert len(pids) <= 1, "it ran again"
        deadline = time.monotonic() + 20
        while any(map(alive, pids)):
            assert time.monotonic() < deadline, "it outlived its process"
            time.sleep(0.05)

    sweep = crash_sweep(scenarios.aborted_command, check=check, same_transcript=False)
    assert sweep.baseline.outcome == ["unanswered", "aborted"]


def test_a_handoff() -> None:
    sweep = crash_sweep(scenarios.handed_off, check=one_request_more_at_most, when=["after"])
    assert sweep.baseline.outcome == ["done", "done"]
    assert sweep.baseline.transcript[-1][3] == "read: Two are done. / Go on."


def test_files_that_are_changed_once() -> None:
    sweep = crash_sweep(scenarios.written_and_edited, when=["after"])
    assert sweep.baseline.outcome == ["done", "ONE two THREE\n"]
    assert all(not said.startswith("ValueError") for said in results(sweep.baseline))
    for point in sweep.points:
        assert point.ending is not None
        assert [said for said in results(point.ending) if "a.txt" not in said] == []


def results(ending: Ending) -> list[str]:
    return [str(text) for _, _, kind, text, _, _ in ending.transcript if kind == "pi.tool-result"]
