"""``python -m benchmarks``: one line for each figure with its goal, and all of them in ``benchmarks/results.json``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from . import engine, live, many, notebook, peers
from .figures import Figure

RESULTS = Path(__file__).with_name("results.json")

Group = Callable[[Path, float, dict[str, float]], AsyncIterator[Figure]]


async def _imports(folder: Path, scale: float, peer: dict[str, float]) -> AsyncIterator[Figure]:
    for figure in engine.import_figures():
        yield figure


async def _notebook(folder: Path, scale: float, peer: dict[str, float]) -> AsyncIterator[Figure]:
    for figure in notebook.notebook_figures():
        yield figure


async def _live(folder: Path, scale: float, peer: dict[str, float]) -> AsyncIterator[Figure]:
    for figure in live.live_figures():
        yield figure


GROUPS: dict[str, Group] = {
    "commits": lambda folder, scale, peer: engine.commit_figures(folder, scale),
    "turns": engine.turn_figures,
    "growth": lambda folder, scale, peer: engine.growth_figures(folder, scale),
    "compaction": lambda folder, scale, peer: engine.compaction_figures(folder, scale),
    "deltas": lambda folder, scale, peer: engine.delta_figures(folder, scale),
    "opening": engine.opening_figures,
    "tasks": lambda folder, scale, peer: many.task_figures(folder, scale),
    "nested": lambda folder, scale, peer: many.nested_figures(folder, scale),
    "sessions": many.session_figures,
    "notebook": _notebook,
    "live": _live,
    "imports": _imports,
}


async def measure(names: list[str], folder: Path, scale: float, peer: dict[str, float]) -> list[Figure]:
    """Measure groups one after another, and print each figure as it is known."""
    found = [
        Figure(f"pi-durable-python: {name}", value, "s" if name in peers.SECONDS else "1/s")
        for name, value in peer.items()
    ]
    for figure in found:
        print(figure, flush=True)
    for name in names:
        place = folder / name
        place.mkdir()
        gc.collect()  # what earlier groups left behind is not the cost of this one
        async for figure in GROUPS[name](place, scale, peer):
            found.append(figure)
            print(figure, flush=True)
    return found


def main() -> int:
    """Measure, print and store; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the work, for a quick look")
    parser.add_argument("--peers", action="store_true", help="measure pi-durable-python too, in a venv of its own")
    parser.add_argument("--folder", help="where the files are written (default: the system's temporary folder)")
    options = parser.parse_args()
    names = options.groups or list(GROUPS)
    if unknown := set(names) - set(GROUPS):
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(
        prefix="pidurable-bench-", dir=options.folder, ignore_cleanup_errors=True
    ) as place:
        folder = Path(place)
        peer = peers.measure(folder, options.scale) if options.peers else {}
        figures = asyncio.run(measure(names, folder, options.scale, peer))
    RESULTS.write_text(
        json.dumps(
            {
                "at": time.time(),
                "python": platform.python_version(),
                "sqlite": sqlite3.sqlite_version,
                "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
                "scale": options.scale,
                "figures": [figure.to_data() for figure in figures],
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
    missed = sum(figure.met is False for figure in figures)
    print(f"\n{missed} goals missed; all figures are in {RESULTS}" if missed else f"\nall figures are in {RESULTS}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
