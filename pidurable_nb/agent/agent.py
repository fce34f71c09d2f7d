"""With what a conversation runs: its agent, resolved from names, settings and the registry (engine.md, section 10)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..messages import SystemMessage, ToolDeclaration
from ..session.context import Shown
from .extension import CompactionHooks, Extension, GenerationHooks, PromptInput, ToolHooks
from .registry import RegistrySnapshot
from .settings import Settings
from .state import AgentState
from .tool import Tool


class Edit(BaseModel):
    """A change of a list of names instead of the whole list; items are names, or objects that have one."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    add: Sequence[Any] = ()
    remove: Sequence[Any] = ()


class AgentChange(BaseModel):
    """A change of a conversation's agent. A field that is given replaces or edits, ``None`` clears it so that the
    settings hold again, and one that is not given stays as it is. ``model`` is ``"provider:name"``."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    model: Any = None
    thinking: str | None = None
    extensions: Any = None
    tools: Any = None
    model_tools: Any = None
    instructions: str | None = None
    cwd: str | None = None

    def given(self) -> dict[str, Any]:
        """The fields that were given."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    name = getattr(item, "id", None) or getattr(item, "name", None)
    if not isinstance(name, str):
        raise ValueError(f"{item!r} is not a name and has none")
    return name


def apply_change(state: AgentState, change: Mapping[str, Any], everything: Callable[[str], Sequence[str]]) -> None:
    """Change the stored agent. ``everything(field)`` is what an edit of an unset list starts from."""
    unknown = set(change) - set(AgentState.model_fields)
    if unknown:
        known = ", ".join(AgentState.model_fields)
        raise TypeError(f"an agent has no {', '.join(sorted(unknown))}; it has {known}")
    for field, value in change.items():
        if field in ("extensions", "tools", "model_tools") and value is not None:
            if isinstance(value, str):
                raise TypeError(f"{field} takes a list of names or an Edit, not a text: write [{value!r}]")
            if isinstance(value, Edit):
                current = getattr(state, field)
                names = list(everything(field) if current is None else current)
                removed = {_name(item) for item in value.remove}
                names = [name for name in names if name not in removed]
                names += [name for item in value.add if (name := _name(item)) not in names]
            else:
                names = [_name(item) for item in value]
            setattr(state, field, tuple(names))
        else:
            text = _name(value) if field == "model" and value is not None else value
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{field} is a text or None, not {value!r}")
            setattr(state, field, text)


@dataclass(frozen=True)
class Agent:
    """A resolved agent: names turned into what is installed now; ``unresolved`` are names that are not.

    ``tools`` are all that it may call; ``offered`` those that the model is told about.
    """

    model: str | None
    thinking: str
    extensions: tuple[Extension, ...]
    tools: dict[str, Tool]
    instructions: str | None
    cwd: str | None
    unresolved: tuple[str, ...]
    registry: RegistrySnapshot
    selected: tuple[str, ...] | None
    model_tools: tuple[str, ...] | None = None

    @property
    def offered(self) -> dict[str, ToolDeclaration]:
        """What the model is told about, by name: ``model_tools`` where they are chosen, else all but deferred ones."""
        return {
            name: tool.declaration
            for name, tool in self.tools.items()
            if tool.callers != "tools" and (not tool.deferred if self.model_tools is None else name in self.model_tools)
        }

    def hooks(self, kind: type[Any]) -> list[tuple[str, Any]]:
        """The hooks of a kind with their extensions' names, in extension order."""
        return [(ext.name, hooks) for ext in self.extensions for hooks in ext.hooks if isinstance(hooks, kind)]


def resolve(
    state: AgentState | None,
    settings: Settings,
    registry: RegistrySnapshot,
    only_model: str | None,
    on_error: Callable[[str, str, Exception], None] | None = None,
) -> Agent:
    """The agent of a conversation. Names that are not installed are skipped and take effect again when they are."""
    state = state or AgentState()
    extensions = state.extensions if state.extensions is not None else settings.extensions
    chosen = registry.selected(extensions)
    tools = registry.tools(extensions, on_error)
    names = state.tools if state.tools is not None else settings.tools
    missing = [] if extensions is None else [f"extension {n}" for n in extensions if registry.extension(n) is None]
    if names is not None:
        missing += [f"tool {name}" for name in names if name not in tools]
        tools = {name: tools[name] for name in names if name in tools}
    model_tools = state.model_tools if state.model_tools is not None else settings.model_tools
    missing += [f"tool {name}" for name in model_tools or () if name not in tools]
    return Agent(
        model=state.model or settings.model or only_model,
        thinking=state.thinking or settings.thinking,
        extensions=chosen,
        tools=tools,
        instructions=state.instructions if state.instructions is not None else settings.instructions,
        cwd=state.cwd or settings.cwd,
        unresolved=tuple(missing),
        registry=registry,
        selected=extensions,
        model_tools=model_tools,
    )


INSTRUCTIONS = "instructions"
"""The key of the section that holds an agent's instructions."""


async def render_sections(
    agent: Agent,
    given: PromptInput,
    shown: Mapping[str, str],
    on_error: Callable[[str, str, Exception], None],
) -> dict[str, str]:
    """The prompt's sections in order. One that raises keeps its shown text and is reported (engine.md, section 10)."""
    rendered: dict[str, str] = {}
    if agent.instructions:
        rendered[INSTRUCTIONS] = agent.instructions
    for key, (part, extension) in agent.registry.sections(agent.selected, on_error).items():
        try:
            text: Any = part.text
            if callable(text):
                text = text(given)
                if inspect.isawaitable(text):
                    text = await text
            if text is not None and not isinstance(text, str):
                raise TypeError(f"the section {key!r} returned a {type(text).__name__}, not text")
        except Exception as error:
            on_error(extension, f"section {key!r}", error)
            if key in shown:
                rendered[key] = shown[key]
            continue
        if text:
            rendered[key] = f"<{key}>\n{text}\n</{key}>" if part.tag else text
    return rendered


def prompt_change(
    sections: Mapping[str, str], tools: Mapping[str, ToolDeclaration], shown: Shown, *, baseline: bool
) -> SystemMessage | None:
    """What the transcript does not show yet, ``None`` when it shows everything; ``baseline`` restates all of it."""
    if baseline:
        if not sections and not tools:
            return None
        return SystemMessage(sections=dict(sections), tools_added=list(tools.values()))
    changed: dict[str, str | None] = {key: text for key, text in sections.items() if shown.sections.get(key) != text}
    changed |= {key: None for key in shown.sections if key not in sections}
    added = [tool for name, tool in tools.items() if shown.tools.get(name) != tool]
    removed = [name for name in shown.tools if name not in tools]
    if not changed and not added and not removed:
        return None
    return SystemMessage(sections=changed, tools_added=added, tools_removed=removed)


__all__ = [
    "Agent",
    "AgentChange",
    "CompactionHooks",
    "Edit",
    "GenerationHooks",
    "ToolHooks",
    "apply_change",
    "prompt_change",
    "render_sections",
    "resolve",
]
