"""The crash sweep over the engine's own scenarios: real processes, killed before and after every commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pidurable_nb.faults import POINTS
from pidurable_nb.testing import crash_sweep
from pidurable_nb.testing.sweep import Ending, Point

from . import scenarios

Scenario = Callable[[Any], Awaitable[Any]]


def requests_and_effects(ending: Ending, baseline: Ending, point: Point) -> None:
    """A model request more at most for each kill, when one was under way; nothing unsafe twice; all attempts told."""
    extra = ending.count("request") - baseline.count("request")
    assert 0 <= extra <= point.kills, f"{extra} requests more than without a kill"
    counts = Counter(note.what for note in ending.notes)
    for what, count in counts.items():
        if what.startswith(("begun unsafe", "begun inner")):
            assert count == 1, f"{what}: {count} times"
        elif what.startswith("begun safe"):
            assert count <= 1 + point.kills, f"{what}: {count} times"
    lives = [end for end in ending.lives[:-1]]  # the last one is the sweep's own look
    if point.reached:
        assert lives == [None] * point.kills + ["closed"], f"the lives ended {ending.lives}"
    else:
        assert set(lives) == {"closed"}, f"the lives ended {ending.lives}"
    assert all(end is not None for *_, end in ending.attempts), f"attempts without an end: {ending.attempts}"


def seen_is_stored(ending: Ending, baseline: Ending, point: Point) -> None:
    """What an observer saw of an answer that was then cut off is a prefix of the attempt that was kept."""
    requests_and_effects(ending, baseline, point)
    seen = [note.text for note in ending.notes if note.what == "seen" and note.process == 1]
    if seen and ending.count("request", process=2):
        kept = [text for _, _, kind, text, stop, _ in ending.transcript if kind == "pi.assistant" and stop == "aborted"]
        assert len(kept) == 1, f"an observer saw {seen[-1]!r}; kept are {kept}"
        assert kept[0].startswith(max(seen, key=len)), f"an observer saw {seen[-1]!r}; kept is {kept[0]!r}"


@pytest.mark.parametrize("storage", ["sqlite", "jsonl"])
def test_a_plain_turn(storage: Any) -> None:
    sweep = crash_sweep(scenarios.plain_turn, storage=storage, check=requests_and_effects)
    assert sweep.killed == 2 * sweep.baseline.commits >= 10


def test_a_streamed_answer_keeps_what_was_seen_and_is_asked_once_more() -> None:
    sweep = crash_sweep(scenarios.slow_turn, check=seen_is_stored, when=["after"])
    assert sweep.killed >= 6
    cut_off = [
        point.ending for point in sweep.points if point.ending is not None and point.ending.count("request") == 2
    ]
    assert cut_off, "no point cut off a request"
    assert any(end == "cut_off" for ending in cut_off for *_, end in ending.attempts)


@pytest.mark.parametrize("scenario", [scenarios.safe_tool, scenarios.unsafe_tool])
def test_a_tool_turn(scenario: Scenario) -> None:
    sweep = crash_sweep(scenario, check=requests_and_effects)
    assert sweep.killed >= 20


def test_a_tool_turn_on_jsonl() -> None:
    crash_sweep(scenarios.unsafe_tool, storage="jsonl", check=requests_and_effects, when=["after"])


@pytest.mark.parametrize("scenario", [scenarios.parallel_round, scenarios.sequential_round])
def test_a_round_of_two_tools(scenario: Scenario) -> None:
    crash_sweep(scenario, check=requests_and_effects, when=["after"])


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.inbox,
        scenarios.nested_calls,
        scenarios.subagent,
        scenarios.after_run,
    ],
)
def test_longer_stories(scenario: Scenario) -> None:
    crash_sweep(scenario, check=requests_and_effects, when=["after"])


@pytest.mark.parametrize("scenario", [scenarios.retry, scenarios.deferred])
def test_durable_sleeps(scenario: Scenario) -> None:
    # A kill between the provider's failure and its commit leaves no error entry: the transcript may lack that line.
    crash_sweep(scenario, when=["after"], same_transcript=scenario is not scenarios.retry)


@pytest.mark.parametrize("storage", ["sqlite", "jsonl"])
def test_commits_full_of_documents(storage: Any) -> None:
    crash_sweep(scenarios.documents, storage=storage)


def test_the_sweep_fails_when_tools_execute_without_a_stored_intent() -> None:
    with pytest.raises(AssertionError, match="begun unsafe: 2 times"):
        crash_sweep(scenarios.without_intent, check=requests_and_effects, when=["after"])


def test_the_sweep_fails_when_partials_are_shown_without_being_stored() -> None:
    with pytest.raises(AssertionError, match="an observer saw"):
        crash_sweep(scenarios.without_flush, check=seen_is_stored, when=["after"])


def test_a_scenario_that_fails_without_a_crash_says_so() -> None:
    with pytest.raises(AssertionError, match=r"(?s)fails without any crash.*ZeroDivisionError") as raised:
        crash_sweep(scenarios.broken)
    assert "scenarios.py" in str(raised.value)


def test_a_scenario_that_no_process_can_import_is_refused() -> None:
    async def local(_stage: Any) -> None: ...

    with pytest.raises(ValueError, match="at the top of a module"):
        crash_sweep(local)


def test_the_process_that_goes_on_is_killed_as_well() -> None:
    said: list[str] = []
    sweep = crash_sweep(scenarios.unsafe_tool, check=requests_and_effects, again=24, out=said.append)
    pairs = [point for point in sweep.points if point.again is not None]
    assert (len(pairs), sweep.killed_again) == (24, 24)
    assert {point.when for point in pairs} == {"before", "after"}
    assert f"killed at {sweep.killed} points and at 24 pairs of points" in said[0]
    cut = [sum(end == "cut_off" for *_, end in point.ending.attempts) for point in pairs if point.ending is not None]
    assert max(cut) >= 2, "no pair cut off work and its recovery"


@pytest.mark.parametrize("storage", ["sqlite", "jsonl"])
def test_a_kill_at_every_named_point(storage: Any) -> None:
    """Whatever step of an opening, a commit, a read or a close is cut off: the next process ends the work."""
    points = [point for point in POINTS if point not in ("backup.copied", "follow.look")]
    sweep = crash_sweep(scenarios.plain_turn, storage=storage, when=points, commits=[1, 3])
    assert {point.when for point in sweep.points if point.reached} == set(points)
