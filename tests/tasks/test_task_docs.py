"""The examples of the documentation of tasks and workflows run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["tasks.md", "workflows.md"])
def test_the_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    module = {"__name__": f"example_{page.partition('.')[0]}"}
    exec(compile("\n".join(blocks), str(DOCS / page), "exec"), module)
    if page == "tasks.md":
        assert "attempt 1 began at start" in capsys.readouterr().out
