"""Extensions: named bundles of tools, prompt sections, hooks, wrappers and tasks (engine.md, section 10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import RegistryError
from ..messages import AssistantMessage, Message
from ..tasks import Task
from ..values import JsonValue
from .tool import Tool


@dataclass(frozen=True, slots=True)
class PromptInput:
    """What a section's function gets: the conversation, its agent, the names of the tools offered, and the time."""

    conversation_id: int
    agent: Any
    tools: tuple[str, ...]
    cwd: str | None
    now: float
    env: Any = None


SectionText: TypeAlias = str | None
SectionFunction: TypeAlias = Callable[[PromptInput], SectionText | Awaitable[SectionText]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the prompt. ``tag`` wraps its text in ``<key>…</key>``; ``None`` or empty text leaves it out."""

    key: str
    text: str | SectionFunction
    tag: bool = True


def section(key: str, text: str | SectionFunction, *, tag: bool = True) -> Section:
    """A prompt section: text, or a plain or async function of ``PromptInput`` that returns it."""
    if not key:
        raise RegistryError("a section needs a key")
    return Section(key, text, tag)


@dataclass(frozen=True, slots=True)
class Wrap:
    """A wrapper around whichever tool or section of a name wins."""

    kind: str
    name: str
    wrap: Callable[[Any], Any]


def wrap_tool(name: str, wrap: Callable[[Tool], Tool]) -> Wrap:
    """Replace a tool by what ``wrap`` makes of it, whichever extension it comes from."""
    return Wrap("tool", name, wrap)


def wrap_section(key: str, wrap: Callable[[Section], Section]) -> Wrap:
    """Replace a section by what ``wrap`` makes of it."""
    return Wrap("section", key, wrap)


# -- hooks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HookContext:
    """What every hook gets as ``ctx``: where it is called, and the harness's parts."""

    conversation_id: int
    task_id: int
    env: Any
    models: Any
    registry: Any
    settings: Any
    now: float
    run: Any = None


@dataclass(frozen=True, slots=True)
class GenerationHooks:
    """Hooks around requests; each may be plain or async. See the table of engine.md, section 10."""

    before_request: Callable[[tuple[Message, ...], HookContext], Any] | None = None
    after_response: Callable[[AssistantMessage, HookContext], Any] | None = None
    on_yield: Callable[[AssistantMessage, HookContext], Any] | None = None
    after_tools: Callable[[AssistantMessage, Sequence[Any], HookContext], Any] | None = None
    after_run: Callable[[Any, HookContext], Any] | None = None


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A tool call as hooks see it; ``parent`` is the task of the tool that made it, for a nested call."""

    id: str
    name: str
    arguments: dict[str, JsonValue]
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class ToolHooks:
    """Hooks around tool calls; each may be plain or async."""

    before_tool: Callable[[CallInfo, HookContext], Any] | None = None
    after_tool: Callable[[CallInfo, Any, HookContext], Any] | None = None
    on_abort: Callable[[CallInfo, Any, HookContext], Any] | None = None


@dataclass(frozen=True, slots=True)
class CompactionHooks:
    """Hooks around compactions. ``before_compact`` gets the messages that are to be summarised; the first extension
    whose hook returns ``Decline`` or ``Summary`` decides (engine.md, section 13)."""

    before_compact: Callable[[tuple[Message, ...], HookContext], Any] | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """``before_tool``: go on with these arguments."""

    arguments: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Block:
    """``before_tool``: refuse the call; the model gets the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Continue:
    """``on_yield``: go on with another user message instead of ending the run."""

    content: str


@dataclass(frozen=True, slots=True)
class Decline:
    """``before_compact``: do not compact now."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """``before_compact``: use this summary instead of asking a model."""

    text: str


@dataclass(frozen=True, slots=True)
class RunEndTask:
    """``after_run``: a durable task to run once the answer is stored."""

    task: type[Task[Any, Any]]
    input: Any


def run_end_task(task: type[Task[Any, Any]], input: Any) -> RunEndTask:
    """Ask for a task after a run, from ``after_run``; the conversation stays busy until it has ended."""
    return RunEndTask(task, input)


Hooks: TypeAlias = GenerationHooks | ToolHooks | CompactionHooks


@dataclass(frozen=True, slots=True)
class Extension:
    """A named bundle. Names of tasks are unique over all extensions, tool names and section keys within one."""

    name: str
    tools: Sequence[Tool] = ()
    tasks: Sequence[type[Task[Any, Any]]] = ()
    sections: Sequence[Section] = ()
    hooks: Sequence[Hooks] = ()
    wraps: Sequence[Wrap] = ()

    def __post_init__(self) -> None:
        parts: tuple[tuple[str, Any], ...] = (
            ("tools", Tool),
            ("sections", Section),
            ("wraps", Wrap),
            ("hooks", (GenerationHooks, ToolHooks, CompactionHooks)),
        )
        for name, kind in parts:
            for item in getattr(self, name):
                if not isinstance(item, kind):
                    hint = " (decorate the function with @tool)" if kind is Tool and callable(item) else ""
                    wanted = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
                    raise RegistryError(f"extension {self.name}: {item!r} in {name} is not a {wanted}{hint}")
        for task in self.tasks:
            if not (isinstance(task, type) and issubclass(task, Task) and hasattr(task, "name")):
                raise RegistryError(f"extension {self.name}: {task!r} is not a task class with a name")
        for what, names in (
            ("tool", [tool.name for tool in self.tools]),
            ("section", [part.key for part in self.sections]),
            ("task", [task.name for task in self.tasks]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise RegistryError(f"extension {self.name} has two {what}s named {name!r}")
        if not self.name:
            raise RegistryError("an extension needs a name")
