"""Real processes, killed before and after every commit of a scenario of tasks (quality.md, Tests)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pidurable_nb.testing import crash_sweep
from pidurable_nb.testing.sweep import Ending, Point, Sweep

from . import sweep_scenarios as scenarios


def texts(ending: Ending, what: str, process: int | None = None) -> list[str]:
    """What was noted under a name, oldest first."""
    return [note.text for note in ending.notes if note.what == what and process in (None, note.process)]


def attempts_end(ending: Ending, baseline: Ending, point: Point) -> None:
    """Every attempt has an end, those of the process that was killed alone were cut off, and nothing was reported."""
    assert not texts(ending, "report"), texts(ending, "report")
    assert all(end is not None for *_, end in ending.attempts), f"attempts without an end: {ending.attempts}"
    lives = {life for _, _, life, _, end in ending.attempts if end == "cut_off"}
    assert len(lives) <= point.kills, f"attempts of the lives {lives} were cut off"
    assert all(ending.lives[life - 1] is None for life in lives), f"cut off in {lives}, lives ended {ending.lives}"


def charged_once_per_process(ending: Ending, baseline: Ending, point: Point) -> None:
    """A charge is repeated by another process at most, and under the key that was stored before it."""
    attempts_end(ending, baseline, point)
    for process in (1, 2, 3):
        charges = Counter(texts(ending, "charged", process))
        assert not charges or max(charges.values()) == 1, f"process {process} charged {charges}"
    keys = {text.split()[-1] for text in texts(ending, "charged")}
    assert len(keys) <= 4, f"four payments were charged under {sorted(keys)}"


def aborted_bottom_up(ending: Ending, baseline: Ending, point: Point) -> None:
    """Every payment that may be aborted was before its checkout, and no phase ran once the mark was known stored."""
    charged_once_per_process(ending, baseline, point)
    aborted = texts(ending, "aborted")
    if "checkout" in aborted:
        first = aborted.index("checkout")
        assert "slow" not in aborted[first:], f"aborted in the order {aborted}"
        assert aborted[:first].count("slow") >= 4, f"aborted in the order {aborted}"
    if texts(ending, "ask", 1) == ["marked"]:
        assert not texts(ending, "charged", 2), "a payment went on after its checkout's abort mark was stored"


def sweep_of(scenario: Any, outcome: Any, check: Any = attempts_end, **options: Any) -> Sweep:
    sweep = crash_sweep(scenario, check=check, **options)
    assert sweep.baseline.outcome == outcome
    assert sweep.killed >= 0.8 * len(sweep.points) > 0
    return sweep


def test_a_checkout_with_a_refused_card_aborts_the_other_payments() -> None:
    outcome = [["aborted", "failed", "aborted", "aborted"], ["completed", "aborted", "failed", "aborted", "aborted"]]
    sweep_of(scenarios.checkout_with_a_refused_card, outcome, charged_once_per_process)


@pytest.mark.parametrize(("storage", "when"), [("sqlite", ("before", "after")), ("jsonl", ("after",))])
def test_a_checkout_aborted_from_outside_while_its_payments_run(storage: Any, when: Any) -> None:
    outcome = [None, ["aborted"] * 5]
    sweep_of(scenarios.checkout_aborted_while_it_runs, outcome, aborted_bottom_up, storage=storage, when=when)


def test_a_checkout_restarted_while_its_payments_run() -> None:
    outcome = [["completed"] * 4, ["completed"] * 5]
    sweep = sweep_of(scenarios.checkout_restarted_while_it_runs, outcome, charged_once_per_process)
    cut_off = [
        sum(kind == "s.payment" and end == "cut_off" for _, kind, _, _, end in point.ending.attempts)
        for point in sweep.points
        if point.ending is not None
    ]
    assert max(cut_off) == 4, "no point cut off all four payments"


def test_a_checkout_whose_recovery_is_killed_as_well() -> None:
    sweep = crash_sweep(
        scenarios.checkout_restarted_while_it_runs, check=charged_once_per_process, when=["after"], again=20
    )
    assert 15 <= sweep.killed_again <= 20
    cut_off = [
        len({life for _, kind, life, _, end in point.ending.attempts if kind == "s.payment" and end == "cut_off"})
        for point in sweep.points
        if point.ending is not None
    ]
    assert max(cut_off) == 2, "no pair cut off payments in both processes"


def test_three_levels_of_owners_end_bottom_up_with_the_outcomes_they_held() -> None:
    sweep_of(scenarios.nested_owners, [3, ["completed"] * 4])


def test_a_failure_held_at_the_top_of_three_levels_aborts_what_is_below() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        attempts_end(ending, baseline, point)
        assert "below" in texts(ending, "aborted")

    sweep_of(scenarios.nested_owners_that_fail, [None, ["failed", "completed", "completed", "aborted"]], check)


def test_a_sleep_ends_at_its_time_whoever_began_it() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        attempts_end(ending, baseline, point)
        assert len(set(texts(ending, "woke"))) == 1, "a restart changed the instant"

    sweep_of(scenarios.sleeping, [True, ["completed"]], check)


def test_a_task_stored_by_an_older_version_goes_on_in_the_newer_one() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        attempts_end(ending, baseline, point)
        assert not texts(ending, "old code"), "the older version ran what it had left to the newer one"
        assert set(texts(ending, "migrated")) <= {"1 first", "1 rest"}

    sweep = sweep_of(scenarios.migration, ["someone, 7 minutes", ["completed"]], check)
    migrated = {text for point in sweep.points if point.ending is not None for text in texts(point.ending, "migrated")}
    assert migrated == {"1 first", "1 rest"}


def test_a_definition_replaced_while_it_runs_hands_over() -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        attempts_end(ending, baseline, point)
        assert not texts(ending, "old code"), "the replaced definition ran on"

    sweep_of(scenarios.handover, ["by new code", ["completed"]], check)


@pytest.mark.parametrize(("storage", "when"), [("sqlite", ("before", "after")), ("jsonl", ("after",))])
def test_a_workflow_repeats_safe_steps_only_and_hears_a_signal_once(storage: Any, when: Any) -> None:
    def check(ending: Ending, baseline: Ending, point: Point) -> None:
        attempts_end(ending, baseline, point)
        effects = Counter(texts(ending, "effect"))
        assert effects.pop("pay", 0) <= 1, "an unsafe step ran twice"
        assert max(effects.values()) <= 2, f"a step ran again without need: {effects}"
        sent = [text for text in texts(ending, "signal") if text in ("kept", "delivered")]
        assert len(sent) <= 1, f"one signal was taken as {sent}"

    outcome = [["MONDAY", ["LEFT", "in a flow"], True], ["completed"] * 2]
    sweep = sweep_of(scenarios.workflow_with_everything, outcome, check, storage=storage, when=when)
    assert any("ask" in texts(point.ending, "effect") for point in sweep.points if point.ending is not None)
