"""Layers import downwards only, and the engine knows nothing of notebooks (docs/architecture.md, Layers)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import pidurable_nb

PACKAGE = Path(pidurable_nb.__file__).parent
NAME = "pidurable_nb"

LAYERS: list[tuple[str, ...]] = [
    ("values", "errors", "faults"),
    ("messages", "records", "patch"),
    ("models.protocol", "models.errors"),
    ("storage",),
    ("session",),
    ("tasks",),
    ("agent",),
    ("models",),
    ("tools",),
    ("testing",),
    ("notebook",),
    ("cli", "__main__"),
]
"""Lowest first. A module belongs to the longest name that it begins with."""

ENGINE = range(LAYERS.index(("tools",)) + 1)
"""The layers that people use without a notebook."""

NOTEBOOK_PACKAGES = {
    "IPython",
    "anywidget",
    "comm",
    "ipykernel",
    "ipywidgets",
    "jupyter_client",
    "jupyter_core",
    "jupyter_server",
    "jupyterlab",
    "nest_asyncio2",
    "traitlets",
}


@dataclass(frozen=True)
class Import:
    importer: str
    line: int
    module: str
    """The whole dotted name of what is imported."""


def modules() -> dict[str, Path]:
    """Every module of the package by its name inside it; the root itself is ``""``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def layer(module: str) -> int:
    """The layer of a module of the package."""
    best, found = -1, -1
    for index, names in enumerate(LAYERS):
        for name in names:
            if (module == name or module.startswith(name + ".")) and len(name) > best:
                best, found = len(name), index
    assert found >= 0, f"{module} belongs to no layer: add it to LAYERS"
    return found


def imports(module: str, source: str) -> Iterator[Import]:
    """What a module imports, functions included, but for what only type checkers see."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = [NAME, *filter(None, package.split("."))]
                assert node.level <= len(parts), f"{module}:{node.lineno} reaches out of the package"
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                yield Import(module, node.lineno, resolved(base, alias.name))


def resolved(base: str, name: str) -> str:
    """Where a name comes from: a module, or for the root's names, their homes."""
    inside = base.removeprefix(NAME).lstrip(".")
    if base == NAME or base.startswith(NAME + "."):
        below = f"{inside}.{name}".lstrip(".")
        if below in MODULES:
            return f"{NAME}.{below}"
        if base == NAME and name in pidurable_nb._HOME:
            return f"{NAME}.{pidurable_nb._HOME[name]}"
    return base


def own(found: Import) -> str | None:
    """The module inside the package that is imported, ``None`` for one of others."""
    return found.module.removeprefix(NAME + ".") if found.module.startswith(NAME + ".") else None


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_module_imports_from_its_own_layer_and_those_below(module: str) -> None:
    upwards = [
        f"{module}:{found.line} imports {target}"
        for found in imports(module, MODULES[module].read_text(encoding="utf-8"))
        if (target := own(found)) is not None and layer(target) > layer(module)
    ]
    assert upwards == []


@pytest.mark.parametrize("module", [name for name in MODULES if name and layer(name) in ENGINE])
def test_an_engine_module_imports_nothing_of_notebooks(module: str) -> None:
    found = [
        f"{module}:{found.line} imports {found.module}"
        for found in imports(module, MODULES[module].read_text(encoding="utf-8"))
        if found.module.partition(".")[0] in NOTEBOOK_PACKAGES
    ]
    assert found == []


def test_the_root_is_imported_by_name_only_on_top() -> None:
    """Below the command line, an import of the root would hide what is imported."""
    bare = [
        f"{found.importer}:{found.line}"
        for module, path in MODULES.items()
        if module and layer(module) < layer("testing")
        for found in imports(module, path.read_text(encoding="utf-8"))
        if found.module == NAME
    ]
    assert bare == []


def test_the_engine_runs_without_the_notebook_packages_being_loaded() -> None:
    names = [f"{NAME}.{name}" for name in MODULES if name and layer(name) in ENGINE and name != "models.local_server"]
    code = f"""if True:
        import importlib, sys
        for name in {names!r}:
            importlib.import_module(name)
        loaded = sorted({NOTEBOOK_PACKAGES!r} & {{name.partition(".")[0] for name in sys.modules}})
        sys.exit(f"loaded: {{loaded}}" if loaded else 0)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_the_engine_works_where_the_notebook_packages_cannot_be_imported() -> None:
    code = f"""if True:
        import asyncio, sys
        sys.modules.update(dict.fromkeys({sorted(NOTEBOOK_PACKAGES)!r}))  # None makes an import fail
        from pidurable_nb import Harness
        from pidurable_nb.models import ScriptedModel

        async def main():
            async with Harness.open(":memory:", models=ScriptedModel(["Paris"])) as harness:
                answer = await (await harness.root()).ask("What is the capital of France?")
                print(answer.text)

        asyncio.run(main())
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "Paris\n"), ended.stderr


# -- the test itself -------------------------------------------------------------------------------------------------


def test_imports_are_found_wherever_they_stand() -> None:
    source = """if True:
        from typing import TYPE_CHECKING
        import os.path
        from ..values import Value
        from .. import messages, Harness
        from . import lock
        if TYPE_CHECKING:
            from ..agent.harness import Harness
        else:
            from ..notebook import render
        def later():
            from pidurable_nb.agent.harness import Harness
    """
    found = {found.module for found in imports("storage.sqlite", source)}
    assert found == {
        "typing",
        "os.path",
        "pidurable_nb.values",
        "pidurable_nb.messages",
        "pidurable_nb.agent.harness",
        "pidurable_nb.storage.lock",
        "pidurable_nb.notebook.render",
    }


def test_the_model_contract_lies_below_the_engine_and_the_models_above_it() -> None:
    assert layer("models.protocol") < layer("storage") < layer("agent") < layer("models.scripted")
