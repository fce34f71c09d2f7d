"""The tool python where no kernel is; what it does in one is tested with the notebook's own tests."""

from __future__ import annotations

import subprocess
import sys

from pidurable_nb import tools

from .support import bounded, use


@bounded
async def test_without_a_kernel_it_is_an_error() -> None:
    message, data = await use(None, tools.python(approval=False), code="1")
    assert data["code"] == "tool_error"
    assert "no kernel" in message.text


def test_the_module_imports_neither_ipython_nor_mcp() -> None:
    code = "import sys, pidurable_nb.tools; sys.exit('IPython' in sys.modules or 'mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
