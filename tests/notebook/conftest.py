"""Notebooks for tests, fresh ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_books import Book, Life, Script
from notebook_shells import in_process_shell

from pidurable_nb.models import ScriptedModel
from pidurable_nb.notebook import installed


@pytest.fixture(autouse=True)
def nothing_stays_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every session of the process offers what is installed, so each test begins and ends with nothing."""
    monkeypatch.setattr(installed, "_named", {})
    yield
    for extension in installed.registry.snapshot().extensions:
        installed.registry.uninstall(extension)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: Script
) -> Iterator[Book]:
    monkeypatch.chdir(tmp_path)
    with in_process_shell(capsys) as shell:
        yield Book(shell, monkeypatch, ScriptedModel(script, name="scripted:book"))


@pytest.fixture(params=["same life", "next life"])
def life(request: pytest.FixtureRequest) -> Life:
    """What lies between two runs: nothing, or a restart."""
    return Book.restart if request.param == "next life" else lambda book: None
