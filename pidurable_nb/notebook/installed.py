"""What this kernel offers to every session: the extensions of its registry, and models by their names."""

from __future__ import annotations

import inspect
from typing import Any

from ..agent.extension import Extension
from ..agent.registry import Registry
from ..agent.tool import Tool, tool
from ..errors import NotebookError, RegistryError
from ..models import default_models

__all__ = ["TOOLS", "check_model", "install", "model_name", "registry"]

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
