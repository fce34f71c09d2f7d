"""Failures of providers and kills of processes, in sessions over the vendors' clients, as the docs tell them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from model_failures import CASES, PROTOCOLS, Case, documented, row_of, run_case, table_of
from model_kills import KILLS, Kill, run_kill
from model_turns import anthropic_turn, responses_turn

from pidurable_nb.testing import crash_sweep
from pidurable_nb.testing.sweep import Ending, Point

WRITE = "run python tests/models/model_failures.py to write the tables of docs/models.md anew"


def named(value: Any) -> str:
    return value if isinstance(value, str) else str(value.name)


@pytest.mark.parametrize("id", PROTOCOLS)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_failure_is_met_as_the_documentation_says(case: Case, id: str) -> None:
    assert asyncio.run(run_case(case, id)) == row_of(case.name, documented("failures")), WRITE


@pytest.mark.parametrize(("kill", "id"), [(kill, id) for kill in KILLS for id in kill.ids], ids=named)
def test_a_kill_is_survived_as_the_documentation_says(kill: Kill, id: str, tmp_path: Path) -> None:
    assert asyncio.run(run_kill(kill, id, tmp_path)) == row_of(kill.name, documented("kills")), WRITE


@pytest.mark.parametrize(("name", "given"), [("failures", CASES), ("kills", KILLS)])
def test_the_tables_hold_these_cases_and_no_others(name: str, given: Any) -> None:
    table = documented(name)
    rows = [(case.name, row_of(case.name, table) or "") for case in given]
    head = [cell.strip() for cell in table.splitlines()[0].strip("|").split("|")]
    assert table == table_of(head, rows), WRITE


def one_effect(ending: Ending, baseline: Ending, point: Point) -> None:
    """A tool that is safe to repeat ran once or, where its call was cut off, twice."""
    assert 1 <= ending.count("effect") <= 2
    assert ending.count("request") - baseline.count("request") in (0, 1)


@pytest.mark.parametrize("turn", [responses_turn, anthropic_turn])
def test_a_turn_with_a_tool_survives_a_kill_before_and_after_every_commit(turn: Any) -> None:
    sweep = crash_sweep(turn, check=one_effect, timeout=120.0)
    assert sweep.baseline.outcome == ["done", "It is sunny."]
    assert sweep.killed >= 10
