"""pi-durable-python, measured in an environment of its own, so that nothing of it comes into ours."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

PACKAGE = "pi-durable-python"

SECONDS = ("first context", "sessions")
"""Its figures that are durations; the others are rates."""


def measure(folder: Path, scale: float) -> dict[str, float]:
    """Its figures by name; empty, with a line that says why, where it cannot be installed or run."""
    place = folder / "peer"
    venv.create(place, with_pip=True)
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    script = Path(__file__).with_name("peer_pi_durable.py")
    try:
        subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE], check=True, capture_output=True, timeout=300)
        ended = subprocess.run(
            [python, script, str(folder), str(scale)], check=True, capture_output=True, text=True, timeout=900
        )
    except subprocess.TimeoutExpired as error:
        print(f"{PACKAGE} was not measured: {error}")
        return {}
    except subprocess.CalledProcessError as error:
        said = error.stderr if isinstance(error.stderr, str) else error.stderr.decode(errors="replace")
        print(f"{PACKAGE} was not measured: {(said.strip().splitlines() or [str(error)])[-1]}")
        return {}
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures
