"""What this kernel offers to every session: the extensions of its registry, and models by their names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from types import ModuleType
from typing import Any

from ..agent.extension import Extension
from ..agent.registry import Registry
from ..agent.tool import Tool, tool
from ..errors import NotebookError, RegistryError
from ..models import default_models

__all__ = [
    "TOOLS",
    "check_model",
    "install",
    "install_named",
    "installable",
    "model_name",
    "names",
    "registry",
    "reload",
]

registry = Registry()
"""The extensions of this kernel; every session opened here uses them."""

TOOLS = "notebook"
"""The name of the extension that holds the tools installed one by one."""


def install(*items: Any) -> None:
    """Install tools, functions (made into tools) and extensions for every session of this kernel.

    A tool replaces an earlier one of its name. Raises ``RegistryError`` for anything else.
    """
    tools: list[Tool] = []
    for item in items:
        if isinstance(item, Extension):
            registry.install(item)
        elif isinstance(item, Tool):
            tools.append(item)
        elif inspect.isfunction(item):
            tools.append(tool(item))
        else:
            raise RegistryError(f"{item!r} is not a tool, a function or an extension: decorate the function with @tool")
    if tools:
        present = registry.snapshot().extension(TOOLS)
        kept = {old.name: old for old in (present.tools if present is not None else ())}
        kept |= {new.name: new for new in tools}
        registry.install(Extension(TOOLS, tools=list(kept.values())))


_named: dict[str, Any] = {}
"""What was installed by the name of a variable, as it was then."""


def install_named(items: Mapping[str, Any]) -> None:
    """Install the values of variables; ``reload`` finds them again by these names."""
    install(*items.values())
    for name, item in items.items():
        old = _named.get(name)
        if old is not None and _title(old) != _title(item):  # it is called otherwise now
            _remove(old)
        _named[name] = item


def installable(namespace: Mapping[str, Any]) -> list[str]:
    """The variables that could be installed: tools, functions and extensions."""
    return [
        name
        for name, value in namespace.items()
        if not name.startswith("_") and (isinstance(value, Tool | Extension) or inspect.isfunction(value))
    ]


def names() -> list[str]:
    """The variables that were installed."""
    return sorted(_named)


def reload(namespace: MutableMapping[str, Any], wanted: Iterable[str] = ()) -> dict[str, str]:
    """Install variables again, by default all that were installed: as their cell defines them now, or, where they were
    imported, as their module does once it is loaded again; ``namespace`` then has the new one.

    Returns what was done with each. Raises ``NotebookError`` for one that was never installed or is not defined, and
    for a module that cannot be loaded.
    """
    chosen = list(wanted) or names()
    if not chosen:
        raise NotebookError("nothing was installed by %durable install yet")
    missing = [name for name in chosen if name not in _named]
    if missing:
        raise NotebookError(f"{', '.join(missing)} was not installed: `%durable install {missing[0]}` does that")
    gone = [name for name in chosen if name not in namespace]
    if gone:
        raise NotebookError(f"there is no {', '.join(gone)} in this notebook any more: run the cell that defines it")
    done: dict[str, str] = {}
    loaded: dict[str, ModuleType] = {}
    for name in chosen:
        done[name] = "its new definition is installed"
        if namespace[name] is _named[name]:
            home = _home(_named[name])
            if home is None:
                done[name] = "is installed as it was: nothing has changed"
            else:
                module, attribute = home
                if module.__name__ not in loaded:
                    loaded[module.__name__] = _load(module)
                namespace[name] = getattr(loaded[module.__name__], attribute)
                done[name] = f"is installed as {module.__name__} defines it now"
        install_named({name: namespace[name]})
    return done


def _home(item: Any) -> tuple[ModuleType, str] | None:
    """The module that an object was imported from, and its name there; ``None`` for one of the notebook's own."""
    function = (item.function or item.execute) if isinstance(item, Tool) else item
    of_function = sys.modules.get(getattr(function, "__module__", None) or "")
    candidates = [of_function] if of_function is not None and of_function.__name__ != "__main__" else []
    candidates += [module for name, module in list(sys.modules.items()) if name != "__main__"]
    for module in candidates:
        if getattr(module, "__file__", None):
            for attribute, value in list(vars(module).items()):
                if value is item and attribute not in ("_", "__"):
                    return module, attribute
    return None


def _load(module: ModuleType) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.reload(module)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise NotebookError(f"the module {module.__name__} cannot be loaded: {why}") from error


def _title(item: Any) -> tuple[str, str]:
    """What kind of thing is installed, and its name."""
    if isinstance(item, Extension):
        return "extension", item.name
    return "tool", item.name if isinstance(item, Tool) else item.__name__


def _remove(item: Any) -> None:
    kind, name = _title(item)
    present = registry.snapshot().extension(TOOLS)
    if kind == "extension":
        registry.uninstall(name)
    elif present is not None:
        registry.install(Extension(TOOLS, tools=[tool for tool in present.tools if tool.name != name]))


def model_name(model: Any) -> str:
    """The name of a model; an object answers to its own from now on."""
    if isinstance(model, str):
        return model
    default_models.register(model)
    return str(model.id)


def check_model(name: str) -> None:
    """Raise ``NotebookError`` or ``UnknownModel`` with one line when there is no such model."""
    if default_models.get(name) is None:
        raise NotebookError(
            f"there is no model {name!r}: names are provider:name, such as local:smollm2, openai:gpt-5-mini or "
            "scripted:demo"
        )
