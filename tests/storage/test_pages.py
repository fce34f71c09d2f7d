"""The examples of docs/storage.md and docs/observing.md run as they stand."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Harness
from pidurable_nb.models import Reply, ScriptedModel

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


async def run(block: str, names: dict[str, Any]) -> None:
    """Run an example as a notebook cell would."""
    code = compile(block, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result: Coroutine[Any, Any, None] | None = eval(code, names)
    if result is not None:
        await asyncio.wait_for(result, 30)


def test_the_examples_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    *examples, suite = blocks("storage.md")
    names: dict[str, Any] = {}

    async def main() -> None:
        for example in examples:
            await run(example, names)

    asyncio.run(main())
    assert {path.name for path in tmp_path.iterdir()} == {
        "chat.sqlite",
        "careful.sqlite",
        "copy.sqlite",
        "journal",
    }
    first, second, third, attempts = capsys.readouterr().out.splitlines()
    assert first.endswith(" closed")
    assert second.endswith(" closed")
    assert (third.split()[0], third.split()[-1], attempts) == ("3", "None", "[]")

    (tmp_path / "test_my_storage.py").write_text(suite, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_my_storage.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) > 20


def test_the_example_of_observing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("observing.md")
    answer = "It" + " grows word by word" * 8  # for seconds: a busy machine may look rarely

    async def main() -> None:
        model = ScriptedModel([Reply(answer, tokens_per_second=15)])
        async with Harness.open("chat.sqlite", models=model) as harness:
            root = await harness.root()
            submission = await root.submit("How does an answer come?")
            await run(example, {})
            assert (await submission.wait()).status == "done"

    asyncio.run(main())
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("Owner(pid=")
    grown = [line for line in shown if line.startswith("It")]
    assert len(grown) > 1
    assert all(answer.startswith(text) for text in grown)
