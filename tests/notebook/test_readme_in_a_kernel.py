"""The README's agent with two tools, as a reader runs it: watched, steered, killed, approved, exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pidurable_nb.notebook.kernels import ChildKernel, ChildRun

pytestmark = pytest.mark.kernel

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("### An agent with two tools") : README.index("## In Python")]
(AGENT,) = re.findall(r"^```py\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL)
CELLS = re.findall(r"^```text\n(.*?)\n```$", SECTION, flags=re.MULTILINE | re.DOTALL)
INLINE = re.findall(r"`(%durable [^`]+)`", SECTION)


def test_the_agent_with_two_tools_is_watched_steered_killed_approved_and_exported(tmp_path: Path) -> None:
    ask, watch, steer, crash, approve = CELLS
    timeline, export = INLINE
    kernel = ChildKernel("reader", cwd=tmp_path, env={"PIDURABLE_NB_LIVE": "1"})

    def run(code: str, *, wanted: str = "ok") -> ChildRun:
        done = kernel.run(code, quiet=True, timeout=60)
        assert done.status == wanted, done
        return done

    kernel.start()
    try:
        for cell in ("%load_ext pidurable_nb", AGENT, ask):
            run(cell)
        waits = "import asyncio\nwhile not {}:\n    await asyncio.sleep(0.1)"
        run(
            waits.format(
                "any(t.name == 'look' for t in notebook.current().run(notebook.current().conversation.view).live.tools)"
            )
        )
        assert "look" in run(watch).text
        run(steer)
        assert run(crash, wanted="killed").status == "killed"

        kernel.start()
        for cell in ("%load_ext pidurable_nb", AGENT, ask, watch, steer):
            run(cell)
        run(waits.format("notebook.current().approvals()"))
        run(approve)
        run("%durable wait")
        assert "process" in run(timeline).text
        run(export)
        history = run("%durable history").text
        assert history.count("Look at the sky over Paris") == history.count("Be brief.") == 1
    finally:
        kernel.kill()
    page = (tmp_path / "agent.html").read_text(encoding="utf-8")
    for text in (
        "Look at the sky over Paris and tell Ada.",
        "Be brief.",
        "rain over Paris",
        "It is done: sent: Take a coat.",
    ):
        assert text in page
