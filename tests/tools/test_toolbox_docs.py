"""The examples of the pages on the toolbox and on subagents run, and say what the pages say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "said"),
    [("toolbox.md", "hello\n"), ("subagents.md", "The researcher says: It was the gardener.\n")],
)
def test_the_examples_run(page: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    code = compile("\n".join(blocks), str(DOCS / page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ran = eval(code, {"__name__": "example"})
    assert inspect.iscoroutine(ran)
    asyncio.run(ran)
    assert capsys.readouterr().out.startswith(said)
