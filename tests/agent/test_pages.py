"""The examples of the pages on conversations, tools and extensions run as they stand, one after the other."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"

PRINTED = {
    "conversations.md": [
        "Paris.",
        "True done About two million.",
        "You are welcome. 7",
        "Paris 2100000 2",
        "pay {'amount': 100}",
        "I was told: paid 50",
        "limit - The run reached its limit of 1 turns (spent: ",
        "done",
        "True",
        "['We were counting.', 'Go on.']",
        "['Count.', 'One.', 'Go on.']",
        "2 * 2? | 3 * 3?",
        "Four. | Nine.",
        "['<summary>\\nWe spoke of Hamburg.\\n</summary>', 'Thanks.', 'You are welcome.']",
        "It comes word by word.",
    ],
    "tools.md": [
        '{"city":"Paris","temperature":21,"units":"c"}',
        "Invalid arguments for weather: city: Field required; town: Extra inputs are not permitted",
        "built",
        "step 1 of 2",
        "step 2 of 2",
        "",
        "<diagnostics>",
        "[warn] the cache was cold",
        "</diagnostics>",
        "page 0, page 1, page 2",
    ],
    "extensions.md": [
        "I COULD NOT",
        "The call was blocked: nothing is deleted here",
        "[('shell', 'Run a command, quietly.')]",
        "[] Answer in capitals.",
        "['shell']",
    ],
}


@pytest.mark.parametrize("page", PRINTED)
def test_the_examples_run_and_print_what_they_promise(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}

    async def main() -> None:
        for block in blocks:
            code = compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waits: Coroutine[Any, Any, None] | None = eval(code, names)
            if waits is not None:
                await asyncio.wait_for(waits, 30)

    asyncio.run(main())
    shown = capsys.readouterr().out.splitlines()
    assert [line[: len(wanted)] for line, wanted in zip(shown, PRINTED[page], strict=False)] == PRINTED[page], shown
    assert len(shown) == len(PRINTED[page])
