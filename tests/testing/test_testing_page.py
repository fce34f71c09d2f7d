"""The examples of docs/testing.md run as they stand."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
SWEEP, FAILURE, OWN = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "test_crashes.py").write_text(SWEEP, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_crashes.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout
    assert "crash sweep of ask on sqlite: killed at " in ended.stdout
    assert " and at 5 pairs of points (" in ended.stdout


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (FAILURE, r"chat\.sqlite: database or disk is full\. Make room .*\nSessionEnd\(reason='failed', .*\n"),
        (OWN, "the bank said nothing\n"),
    ],
)
def test_the_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], example: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        code = compile(example, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names: dict[str, Any] = {}
        result = eval(code, names)
        if result is not None:
            await asyncio.wait_for(result, 60)

    asyncio.run(main())
    assert re.fullmatch(said, capsys.readouterr().out)
