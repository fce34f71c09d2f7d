"""The README's commands and examples work as they stand, and say the truth."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from pidurable_nb.cli import summary

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def run(code: str, cwd: Path) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_newcomer_needs_exactly_two_commands() -> None:
    setup, tests = blocks("bash")
    assert len(setup.splitlines()) == len(tests.splitlines()) == 1
    assert setup.startswith("python3 -m venv .venv && ")
    assert setup.endswith(".venv/bin/python -m pidurable_nb demo\n")
    assert tests == ".venv/bin/python -m pytest\n"


def test_the_setup_names_extras_that_exist() -> None:
    extras = re.search(r"-e '\.\[(.*?)\]'", blocks("bash")[0])
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", project, flags=re.MULTILINE), extra


def test_ci_runs_the_readme_s_own_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert "pip install" not in script, "what CI installs is what the README installs"


def test_the_quickstart_answers_and_answers_from_the_file_when_run_again(tmp_path: Path) -> None:
    quickstart = blocks("python")[0]
    first = run(quickstart, tmp_path)
    assert "Is it raining in Paris?" in first
    assert run(quickstart, tmp_path) == first
    with closing(sqlite3.connect(tmp_path / "chat.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM submissions").fetchone() == (1,)
    stored = summary.read_stored(str(tmp_path / "chat.sqlite"))
    assert [len(stored.lives), len(stored.assistants)] == [2, 1]


def test_the_watch_example_shows_an_answer_growing(tmp_path: Path) -> None:
    first, second = blocks("python")
    run(first, tmp_path)
    shown = run(second, tmp_path)
    stored = summary.read_stored(str(tmp_path / "chat.sqlite"))
    answer = stored.assistants[-1][1].text
    growing = [line for line in shown.splitlines() if line.startswith("You ask: “And")]
    assert len(set(growing)) >= 3
    assert all(answer.startswith(line) for line in growing)


def test_links_and_pictures_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_the_magics_that_the_readme_names_exist() -> None:
    from pidurable_nb.notebook.commands import COMMANDS

    named = set(re.findall(r"%durable ([a-z]+)", README))
    assert named
    assert named <= set(COMMANDS)
