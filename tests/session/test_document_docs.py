"""The examples of the documentation of documents run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "example_documents"})
    assert capsys.readouterr().out == "['write docs'] → ['write docs', 'read them']\n"
