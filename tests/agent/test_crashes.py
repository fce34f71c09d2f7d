"""Conversations over crashes: real processes, killed after every commit (engine.md, sections 9, 11 and 12)."""

from __future__ import annotations

from typing import Any

import pytest
from testing import scenarios as turns

from pidurable_nb.testing import crash_sweep
from pidurable_nb.testing.sweep import Ending, Point

from . import sweep_scenarios as scenarios


def result_of(ending: Ending) -> str:
    """The text of the one tool result."""
    [text] = [text for _, _, kind, text, _, _ in ending.transcript if kind == "pi.tool-result"]
    return str(text)


def no_request_more_than_one(ending: Ending, baseline: Ending, point: Point) -> None:
    extra = ending.count("request") - baseline.count("request")
    assert 0 <= extra <= 1, f"{extra} requests more than without the kill"


def pays_once(amount: int) -> Any:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        no_request_more_than_one(ending, baseline, point)
        paid = [note for note in ending.notes if note.what.startswith("paid")]
        assert [note.what for note in paid] in ([], [f"paid {amount}"])
        assert all(int(note.text) >= 1 for note in paid), "it was paid before a person had decided"
        if not paid or result_of(ending) != f"paid {amount}":
            assert "interrupted" in result_of(ending)

    return check


def pays_never(ending: Ending, baseline: Ending, point: Point) -> None:
    no_request_more_than_one(ending, baseline, point)
    assert [note.what for note in ending.notes if note.what.startswith("paid")] == []
    assert "too much" in result_of(ending)


@pytest.mark.parametrize(
    ("scenario", "check"),
    [(scenarios.approved, pays_once(100)), (scenarios.edited, pays_once(5)), (scenarios.denied, pays_never)],
)
def test_a_call_that_waits_for_a_person(scenario: Any, check: Any) -> None:
    sweep = crash_sweep(scenario, check=check, when=["after"])
    assert sweep.baseline.outcome == ["done", None]
    cut = {
        (phase, end) for point in sweep.points if point.ending is not None for *_, phase, end in point.ending.attempts
    }
    assert ("approve", "cut_off") in cut, "no point cut off the phase that hears the decision"


def test_a_typed_answer_that_is_asked_for_twice() -> None:
    sweep = crash_sweep(scenarios.typed_answer, check=no_request_more_than_one, when=["after"])
    assert sweep.baseline.outcome == {"name": "Paris", "people": 2}


def test_a_steer_and_a_follow_up_while_a_round_runs() -> None:
    sweep = crash_sweep(scenarios.steer_and_follow_up, check=no_request_more_than_one, when=["after"])
    assert sweep.baseline.outcome == ["heard steer", "heard steer", "heard later"]


def test_a_reset_while_a_round_runs() -> None:
    sweep = crash_sweep(scenarios.reset_behind_a_round, check=no_request_more_than_one, when=["after"])
    statuses, reasons, read = sweep.baseline.outcome  # type: ignore[misc]
    assert (statuses, reasons) == (["unanswered", "done"], ["reset", None])
    assert read == ["the note", "following", "heard following"]


def test_a_limit_that_is_raised() -> None:
    sweep = crash_sweep(scenarios.limit_and_retry, check=no_request_more_than_one, when=["after"])
    assert sweep.baseline.outcome == ["unanswered", "limit", "continue", "done", None]


def test_nested_calls_that_are_made_at_once() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        no_request_more_than_one(ending, baseline, point)
        for number in range(4):
            assert ending.count(f"begun inner {number}") <= 1

    crash_sweep(scenarios.parallel_nested_calls, check=check, when=["after"])


def test_finish_and_drain_are_interrupted_at_each_commit() -> None:
    sweep = crash_sweep(turns.after_run, check=no_request_more_than_one)
    tidied = [kind for _, _, kind, *_ in sweep.baseline.transcript if kind == "test.tidied"]
    assert tidied == ["test.tidied"] * 2
    turns_of = [
        (phase, end)
        for point in sweep.points
        if point.ending is not None
        for _, kind, _, phase, end in point.ending.attempts
        if kind == "pi.generation"
    ]
    assert ("finish", "parked") in turns_of, "no process went on in the phase that creates the tasks"
    assert ("drain", "cut_off") in turns_of, "no point cut off the phase that ends the run"


COMPACTED = ["<summary>\nwhat was said\n</summary>", "fine", "second", "fine"]


@pytest.mark.parametrize(
    ("scenario", "later"),
    [
        (scenarios.compacted_by_hand, []),
        (scenarios.compacted_after_an_overflow, []),
        (scenarios.compacted_before_a_request, ["third", "fine"]),
        (scenarios.compacted_in_the_background, ["third", "fine"]),
        (scenarios.compaction_that_is_waited_for, ["third", "fine", "fourth", "fine"]),
    ],
)
def test_a_compaction(scenario: Any, later: list[str]) -> None:
    """Section 13: by hand, after an overflow, at the threshold, in the background, and one that a run waits for."""
    in_the_background = scenario in (scenarios.compacted_in_the_background, scenarios.compaction_that_is_waited_for)

    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        extra = ending.count("request") - baseline.count("request")
        assert 0 <= extra <= (2 if in_the_background else 1), f"{extra} requests more than without the kill"
        kinds = [kind for _, _, kind, *_ in ending.transcript]
        assert kinds.count("pi.compaction") == 1

    # A summary may come before or after the input that waits for it, once nobody holds it up any more.
    same = scenario is not scenarios.compaction_that_is_waited_for
    sweep = crash_sweep(scenario, check=check, when=["after"], same_transcript=same)
    assert sweep.baseline.outcome == [*COMPACTED, *later]
    ends = {
        end
        for point in sweep.points
        if point.ending is not None
        for _, kind, _, _, end in point.ending.attempts
        if kind == "pi.compaction"
    }
    assert "cut_off" in ends, "no point cut off a compaction"


def test_branches_of_a_conversation() -> None:
    """Section 6: a fork and a revised input, with documents by their policy."""
    sweep = crash_sweep(scenarios.forks, check=no_request_more_than_one, when=["after"])
    begun = ["first", "heard first", "second", "heard second"]
    assert sweep.baseline.outcome == [
        [begun, [*begun, "in the fork", "heard in the fork"], [*begun[:2], "otherwise", "heard otherwise"]],
        [["root"], ["root", "fork"], None],
    ]
