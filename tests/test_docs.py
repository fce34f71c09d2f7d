"""The pages under docs/ and the list of tutorials: examples run, links lead somewhere, words are real."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pidurable_nb.cli import _parser
from pidurable_nb.tasks import core

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "notebooks" / "README.md", ROOT / "CHANGELOG.md"])
names = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_python_examples_are_valid_and_import_what_exists(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        tree = compile(block, str(page), "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        wanted = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        ended = subprocess.run([sys.executable, "-c", "\n".join(wanted)], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_every_tutorial_is_in_the_list() -> None:
    listed = re.findall(
        r"^- \[.*\]\((.*\.ipynb)\): .+", (ROOT / "notebooks" / "README.md").read_text("utf-8"), flags=re.MULTILINE
    )
    assert listed == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


# -- the command line ------------------------------------------------------------------------------------------------


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(action.choices)


def test_the_page_of_the_command_line_tells_every_command_and_option() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name, parser in commands().items():
        section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
        assert section is not None, name
        told = set(re.findall(r"--[a-z-]+", section[1]))
        known = {option for action in parser._actions for option in action.option_strings}
        assert told - {"--no-browser", "--port"} <= known, name


def test_the_examples_of_the_command_line_parse() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    assert lines
    for line in lines:
        words = line.split()
        assert words[:3] == ["python", "-m", "pidurable_nb"]
        assert _parser().parse_args(words[3:]).command == words[3]


# -- architecture ----------------------------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_layers_in_the_picture_are_the_tested_ones() -> None:
    from test_layers import LAYERS

    picture = blocks(ARCHITECTURE, "mermaid")[0]
    drawn = re.findall(r"^    \w+\[\"(.*?)<br/><i>", picture, flags=re.MULTILINE)
    drawn_names = [set(re.split(r" · |<br/>", names)) for names in drawn]
    tested = [set(names) - {"__main__"} for names in LAYERS]
    tested[:2] = [tested[0] | tested[1]]
    assert drawn_names == tested


def test_the_files_it_names_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", ARCHITECTURE)
    assert len(named) > 5
    package = ROOT / "pidurable_nb"
    assert [name for name in named if not ((package / name).exists() or (ROOT / name).exists())] == []


def test_the_instructions_it_names_are_the_core_s() -> None:
    decided = re.search(r"instructions \((.*?)\) out", ARCHITECTURE, flags=re.DOTALL)
    assert decided is not None
    named = set(re.findall(r"`(\w+)`", decided[1]))
    assert named == {kind.__name__ for kind in core.Instruction.__args__}


def test_the_phases_it_draws_are_the_generation_s() -> None:
    from pidurable_nb.agent.generation import GenerationTask

    turn = blocks(ARCHITECTURE, "mermaid")[2]
    drawn = set(re.findall(r"\b([a-z]+) -->", turn)) | set(re.findall(r"--> ([a-z]+)", turn))
    assert drawn == {"prepare", "request", "retry", "poll", "tools"}
    assert drawn <= {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in vars(GenerationTask)}


def test_the_phases_it_tells_of_are_all_there_are() -> None:
    from pidurable_nb.agent.generation import GenerationTask
    from pidurable_nb.agent.toolrun import ToolTask
    from pidurable_nb.tasks import Phase

    drawn = re.findall(r"--> ([a-z]+)", blocks(ARCHITECTURE, "mermaid")[2])
    told = {*drawn, *re.findall(r"`([a-z]+)`", ARCHITECTURE)}
    for task in (GenerationTask, ToolTask):
        phases = {name for name, value in vars(task).items() if isinstance(value, type) and issubclass(value, Phase)}
        assert {name.lower() for name in phases} <= told


def test_the_states_it_draws_are_the_records() -> None:
    from typing import get_args

    from pidurable_nb.records import TaskStatus

    task = blocks(ARCHITECTURE, "mermaid")[3]
    drawn = set(re.findall(r"\b([a-z]+) -->", task)) | set(re.findall(r"--> ([a-z]+)", task))
    assert drawn == set(get_args(TaskStatus))


def test_the_changes_of_state_it_draws_are_allowed() -> None:
    from pidurable_nb.tasks.rules import TABLE

    task = blocks(ARCHITECTURE, "mermaid")[3]
    drawn = {(before, after) for before, after in re.findall(r"^    ([a-z]+) --> ([a-z]+)", task, flags=re.MULTILINE)}
    assert drawn - {(row.before, row.after) for row in TABLE} == set()
