"""Which front ends count as live; see notebook.md, "What is shown"."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb.errors import NotebookError
from pidurable_nb.notebook import frontend

SHAPES = sorted((Path(__file__).parent / "shapes").glob("*.json"))


def executing(monkeypatch: pytest.MonkeyPatch, request: dict[str, Any]) -> None:
    """Be a kernel that executes this request."""
    kernel = types.SimpleNamespace(get_parent=lambda channel: request)
    shell = types.SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.delenv(frontend.LIVE_VARIABLE, raising=False)


@pytest.mark.parametrize("path", SHAPES, ids=lambda p: p.stem)
def test_a_front_end_is_told_by_its_execute_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = json.loads(path.read_text())
    executing(monkeypatch, shape["request"])
    assert frontend.in_kernel()
    assert frontend.live_frontend() is shape["live"]
    assert frontend.cell_id() == shape["cell"]


def test_the_variable_decides_before_the_request_does(monkeypatch: pytest.MonkeyPatch) -> None:
    executing(monkeypatch, {"metadata": {"cellId": "a"}})
    monkeypatch.setenv(frontend.LIVE_VARIABLE, "0")
    assert not frontend.live_frontend()
    executing(monkeypatch, {"metadata": {}})
    monkeypatch.setenv(frontend.LIVE_VARIABLE, "1")
    assert frontend.live_frontend()
    monkeypatch.setenv(frontend.LIVE_VARIABLE, "yes")
    with pytest.raises(NotebookError, match="PIDURABLE_NB_LIVE is 'yes'; set it to 1"):
        frontend.live_frontend()


def test_colab_is_live_though_it_names_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    executing(monkeypatch, {"metadata": {}})
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    assert frontend.live_frontend()
    assert frontend.cell_id() is None


def test_plain_python_has_no_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.delenv(frontend.LIVE_VARIABLE, raising=False)
    assert not frontend.in_ipython()
    assert not frontend.in_kernel()
    assert not frontend.live_frontend()
    assert frontend.cell_id() is None
    assert frontend.request() == {}
