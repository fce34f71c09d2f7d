"""Which front end runs the current cell, and whether it is live.

A front end is *live* when a person watches: it shows widgets and output that changes after the cell has ended. A runner
such as nbclient, nbval, nbconvert or papermill takes what a cell has put out by its end.

The difference is in the execute request. JupyterLab 4, Notebook 7 and VS Code name the cell in its metadata
(``cellId``; VS Code's is the cell's address); runners send no metadata at all. ``tests/notebook/shapes`` holds requests
as they were recorded. ``PIDURABLE_NB_LIVE`` set to ``1`` or ``0`` decides instead. notebook.md specifies it under "What
is shown" and "Running a cell again".

Nothing here imports IPython: where it was not imported before, there is no kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pidurable_nb.errors import NotebookError

__all__ = ["cell_id", "in_ipython", "in_kernel", "live_frontend", "request"]

LIVE_VARIABLE = "PIDURABLE_NB_LIVE"


def in_ipython() -> bool:
    """Whether this code runs under IPython, in a kernel or in a terminal."""
    return _shell() is not None


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    return getattr(_shell(), "kernel", None) is not None


def live_frontend() -> bool:
    """Whether a live front end runs the current cell. To be asked while it executes, or in a context made then.

    Raises ``NotebookError`` when ``PIDURABLE_NB_LIVE`` is neither ``0`` nor ``1`` nor empty.
    """
    forced = os.environ.get(LIVE_VARIABLE, "")
    if forced not in ("", "0", "1"):
        raise NotebookError(f"{LIVE_VARIABLE} is {forced!r}; set it to 1 (live), to 0 (not live), or not at all.")
    if forced:
        return forced == "1"
    if not in_kernel():
        return False
    # Colab sends no cell ids, and its kernels always carry this package of its own.
    return "google.colab" in sys.modules or cell_of(request()) is not None


def cell_id() -> str | None:
    """The id of the cell that is executing, or ``None`` where the front end names none, or outside of a kernel."""
    return cell_of(request())


def request() -> Mapping[str, Any]:
    """The request that the kernel is executing: header, metadata, content. Empty outside of a kernel."""
    kernel = getattr(_shell(), "kernel", None)
    return {} if kernel is None else kernel.get_parent("shell") or {}


def cell_of(message: Mapping[str, Any]) -> str | None:
    """The id of the cell that an execute request names, or ``None``."""
    name = (message.get("metadata") or {}).get("cellId")
    return name if isinstance(name, str) and name else None


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None
