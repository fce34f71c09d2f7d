"""Small programs that the storage tests run in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 20.0

PRELUDE = """
import asyncio, os, signal, sys, time
from pidurable_nb.records import *
from pidurable_nb.storage import *
where = sys.argv[1]

async def committed(where):
    storage = await open_storage(where)
    id = storage.mint_id()
    await storage.commit([PutEntry(Entry(id=id, conversation_id=1, kind="test.entry"))])
    return storage
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def command(code: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, *options, "-c", PRELUDE + textwrap.dedent(code), *arguments]


def run_script(code: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which must come soon."""
    return subprocess.run(
        command(code, *arguments, options=options),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


class Script:
    """A program that runs beside the test. It says that it is ready by printing a line."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command(code, *arguments),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().strip()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=TIMEOUT)
