"""Importing the package is quick and loads nothing that it does not need (quality.md, Speed and memory)."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "IPython",
    "aiosqlite",
    "anthropic",
    "anywidget",
    "httpx",
    "ipykernel",
    "ipywidgets",
    "jupyter_client",
    "jupyterlab",
    "openai",
    "pydantic_ai",
    "traitlets",
    "xllamacpp",
}

GOAL = 0.150
"""Seconds that the package may take beyond pydantic."""

TRIES = 5
"""The best of these counts: what else the machine does only ever adds time."""


def python(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def seconds(statement: str) -> float:
    """How much processor time a statement takes in a new interpreter that has pydantic loaded.

    Not the time on the wall: other tests and other people use the machine too.
    """
    code = f"""if True:
        import time
        from pydantic import BaseModel, TypeAdapter
        class Warm(BaseModel):
            x: int
        start = time.process_time()
        {statement}
        print(time.process_time() - start)
    """
    return min(float(python(code)) for _ in range(TRIES))


def test_importing_the_package_is_quick() -> None:
    assert seconds("import pidurable_nb") < GOAL / 3  # it loads its names on first use


def test_importing_what_opens_a_session_is_quick() -> None:
    # What a program pays that uses the engine. Twice the goal, since this runs on busy machines too; the benchmarks
    # print the figure itself.
    assert seconds("from pidurable_nb import Harness, Session, Settings, tool") < GOAL * 2


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, pidurable_nb; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert python(code) == "[]\n"


def test_the_engine_s_names_load_neither_providers_nor_notebooks_nor_a_database() -> None:
    code = (
        "import sys\n"
        "from pidurable_nb import Harness, Registry, Settings, Tool, ToolContext, tool\n"
        "import pidurable_nb.models, pidurable_nb.storage, pidurable_nb.errors, pidurable_nb.messages\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert python(code) == "[]\n"
