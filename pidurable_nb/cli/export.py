"""``export``: a conversation as one file, read without owning its session."""

from __future__ import annotations

import asyncio
import sys

from ..notebook.export import export_file


def export(path: str, out: str, *, conversation: int | None = None) -> int:
    """Export; 1 where the file cannot be written."""
    try:
        collected = asyncio.run(export_file(path, out, conversation=conversation))
    except OSError as error:
        print(f"pidurable-nb export: {error}", file=sys.stderr)
        return 1
    print(f"{out}: {len(collected.entries):,} entries of {collected.title}")
    return 0
