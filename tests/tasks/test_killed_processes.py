"""Real processes, killed before and after every commit of a scenario of tasks (quality.md, Tests)."""

from __future__ import annotations

from typing import Any

import pytest

from pidurable_nb.testing import crash_sweep

from . import sweep_scenarios


@pytest.mark.parametrize(
    ("scenario", "outcome"),
    [
        (sweep_scenarios.checkout, ["completed", ["completed", "completed", "failed", "completed"]]),
        (sweep_scenarios.workflow_with_signal, ["completed", ["MONDAY", ["LEFT", "in a flow"], True]]),
    ],
)
def test_tasks_end_as_they_would_have_without_the_crash(scenario: Any, outcome: Any) -> None:
    sweep = crash_sweep(scenario)
    assert sweep.baseline.outcome == outcome
    assert sweep.killed == 2 * sweep.baseline.commits >= 20
