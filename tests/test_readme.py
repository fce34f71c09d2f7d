"""The README's commands and examples work as they stand, and say the truth."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb.cli import summary

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


EXAMPLES = blocks("python")


def run(code: str, cwd: Path) -> str:
    """What the example prints. One that waits for something that never comes fails here, at the timeout."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=cwd)
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


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_runs_twice_in_a_row_and_shows_the_same_end(example: str, tmp_path: Path) -> None:
    first = run(example, tmp_path)
    second = run(example, tmp_path)
    assert second.strip()
    assert first.endswith(second)


def test_the_examples_pass_mypy_strict(tmp_path: Path) -> None:
    files = []
    for number, example in enumerate(EXAMPLES):
        file = tmp_path / f"example_{number}.py"
        file.write_text(example, encoding="utf-8")
        files.append(str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *files], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_tool_example_runs_the_tool_once_and_answers_from_the_file_when_run_again(tmp_path: Path) -> None:
    first = run(EXAMPLES[0], tmp_path)
    second = run(EXAMPLES[0], tmp_path)
    assert first == f"looking at the sky over Paris\n{second}"
    assert second == "I was told: 12 °C and rain in Paris\n"
    with closing(sqlite3.connect(tmp_path / "weather.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM submissions").fetchone() == (1,)
    stored = summary.read_stored(str(tmp_path / "weather.sqlite"))
    assert [len(stored.lives), len(stored.assistants)] == [2, 2]


def test_the_watch_example_shows_an_answer_growing_to_its_end_and_then_from_the_file(tmp_path: Path) -> None:
    shown = run(EXAMPLES[1], tmp_path)
    stored = summary.read_stored(str(tmp_path / "chat.sqlite"))
    answer = stored.assistants[-1][1].text
    growing = [line for line in shown.splitlines() if line.startswith("You ask: “Is")]
    assert len(set(growing)) >= 3
    assert all(answer.startswith(line) for line in growing)
    assert shown.endswith(f"{answer}\n")
    assert run(EXAMPLES[1], tmp_path) == f"{answer}\n"


def test_configure_reaches_the_file_that_the_watch_example_made(tmp_path: Path) -> None:
    run(EXAMPLES[1], tmp_path)
    assert run(EXAMPLES[2], tmp_path) == "scripted:demo\n"
    changed = EXAMPLES[2].replace('model="scripted:demo"', 'model="local:smollm2"')
    assert changed != EXAMPLES[2]
    assert run(changed, tmp_path) == "local:smollm2\n"


def test_the_examples_for_one_cell_are_blocks_of_one_cell() -> None:
    for block in blocks("text"):
        if "%%durable" in block:
            assert block.startswith("%%durable")


def test_links_and_pictures_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_the_magics_that_the_readme_names_exist() -> None:
    from pidurable_nb.notebook.commands import COMMANDS

    named = set(re.findall(r"%durable ([a-z]+)", README))
    assert named
    assert named <= set(COMMANDS)


def test_it_leads_to_every_page() -> None:
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages - set(re.findall(r"\]\(([^)#]+)\)", README)) == set()
