"""``lab``: the tutorials, and JupyterLab opened on the first of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

from ..errors import NotebookError

QUICKSTART = "00-quickstart.ipynb"


def tutorials() -> Path:
    """The folder of the tutorials: in the installed package, or in the checkout that is imported."""
    package = Path(__file__).parents[1]
    for folder in (package / "_notebooks", package.parent / "notebooks"):
        if any(folder.glob("*.ipynb")):
            return folder
    raise NotebookError(
        "the tutorials are not part of this installation: install the package again, from a wheel or a checkout"
    )


def copy_tutorials(target: Path) -> tuple[list[str], list[str]]:
    """Copy the tutorials to ``target``: the names that were written, and those that differ there and were left.

    Raises ``NotebookError`` where the folder cannot be written.
    """
    written, left = [], []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for notebook in sorted(tutorials().glob("*.ipynb")):
            content = notebook.read_bytes()
            place = target / notebook.name
            if not place.exists():
                place.write_bytes(content)
                written.append(notebook.name)
            elif place.read_bytes() != content:
                left.append(notebook.name)
    except OSError as error:
        raise NotebookError(
            f"the tutorials cannot be copied to {target} ({error.strerror}): name another folder"
        ) from error
    return written, left


def lab(folder: str, *, open_it: bool = True, options: list[str] | None = None) -> int:
    """Copy the tutorials to a folder and become JupyterLab there."""
    target = Path(folder)
    if open_it and importlib.util.find_spec("jupyterlab") is None:
        raise NotebookError("JupyterLab is not installed: pip install 'pidurable_nb[lab]'")
    written, left = copy_tutorials(target)
    count = f"{len(written)} tutorial{'' if len(written) == 1 else 's'} copied"
    print(f"{target}: {count}" + (f", left as they are: {', '.join(left)}" if left else ""))
    if not open_it:
        return 0
    start = target / QUICKSTART
    return _become_lab(start if start.exists() else target, options or [])


def _become_lab(start: Path, options: list[str]) -> NoReturn:
    given = [*options]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in given:
        print("JupyterLab runs as root, since you are root")
        given.append("--allow-root")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(start), *given])
