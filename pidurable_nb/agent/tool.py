"""Tools: functions that a model may call (engine.md, section 12).

A ``Tool`` is a name, a description, a JSON Schema of its arguments and a function. ``@tool`` makes one from a Python
function: the schema and the validation come from its annotations, the description from its docstring, and a parameter
annotated ``ToolContext`` is injected and not offered to the model.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from ..errors import InvalidValue, RegistryError
from ..messages import ContentBlock, ToolDeclaration, Usage
from ..values import JsonValue, check_json
from .schemas import schema_checker
from .state import Diagnostic

Replay: TypeAlias = Literal["safe", "unsafe"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """What is kept of a tool's output: ``bytes`` and ``lines``, at the ``head`` or at the ``tail``."""

    bytes: int = 50 * 1024
    lines: int = 2000
    keep: Literal["head", "tail"] = "tail"


@dataclass(frozen=True, slots=True)
class ToolControl:
    """What a result asks of the run: more tools, its end when all of the round ask so, or a handoff with a note."""

    add_tools: Sequence[str] = ()
    terminate: bool = False
    handoff: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gives back.

    ``content`` is text or blocks for the model, ``structured`` a value of the tool's declared type, ``details`` JSON
    for user interfaces, ``diagnostics`` remarks that the model sees in one closing block.
    """

    content: str | Sequence[ContentBlock] | None = None
    structured: Any = None
    is_error: bool = False
    details: JsonValue = None
    diagnostics: Sequence[Diagnostic] = ()
    usage: Usage | None = None
    control: ToolControl | None = None

    @property
    def text(self) -> str:
        """The text of the content, joined by line breaks."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(block.text for block in self.content if block.type == "text")


@dataclass(frozen=True, repr=False)
class Tool:
    """A tool. ``execute`` gets the arguments, and the context when it has a second parameter or one named ``ctx``.

    ``parameters`` is a JSON Schema of an object, which the arguments have to fit, or a pydantic model that validates
    them and is handed to ``execute``. ``replay`` is ``safe`` when running it twice does no harm; ``execution``
    ``sequential`` makes its whole round run one call after the other; ``approval`` is true, or a predicate of the
    arguments, when a person must agree; ``in_kernel`` runs it on the kernel's main thread; ``prepare_arguments``
    repairs arguments before validation; ``structured`` is the type of structured results; ``callers`` says who may
    call it; ``deferred`` leaves it out of what the model is offered until a control adds it.

    To ``help`` and ``inspect`` a tool is the function behind it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | type[BaseModel] = field(
        default_factory=lambda: {"type": "object", "properties": {}, "additionalProperties": False}
    )
    execute: Callable[..., Any] = field(kw_only=True)
    replay: Replay = field(default="unsafe", kw_only=True)
    execution: Literal["parallel", "sequential"] = field(default="parallel", kw_only=True)
    output_limits: OutputLimits = field(default_factory=OutputLimits, kw_only=True)
    callers: Literal["model", "tools", "both"] = field(default="both", kw_only=True)
    deferred: bool = field(default=False, kw_only=True)
    prepare_arguments: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    structured: Any = field(default=None, kw_only=True)
    approval: bool | Callable[[dict[str, Any]], bool] = field(default=False, kw_only=True)
    in_kernel: bool = field(default=False, kw_only=True)
    function: Callable[..., Any] | None = field(default=None, kw_only=True, repr=False)
    _declared: ToolDeclaration | None = field(default=None, init=False, repr=False, compare=False)
    _checker: Callable[[Any], str | None] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise RegistryError("a tool needs a name")
        if self.replay not in ("safe", "unsafe"):
            raise RegistryError(f"the tool {self.name} has replay={self.replay!r}; it is 'safe' or 'unsafe'")
        if not callable(self.execute):
            raise RegistryError(f"the tool {self.name} has nothing to execute")
        for option, value, allowed in (
            ("execution", self.execution, ("parallel", "sequential")),
            ("callers", self.callers, ("model", "tools", "both")),
        ):
            if value not in allowed:
                raise RegistryError(f"the tool {self.name} has {option}={value!r}; it is one of {', '.join(allowed)}")
        if not isinstance(self.approval, bool) and not callable(self.approval):
            raise RegistryError(f"the tool {self.name} has approval={self.approval!r}; it is True or a predicate")
        called = self.function or self.execute
        object.__setattr__(self, "__wrapped__", called)  # whose signature and source are shown
        object.__setattr__(self, "__doc__", inspect.getdoc(called) if self.function else self.description or None)

    def __repr__(self) -> str:
        try:
            signature = str(inspect.signature(self.function or self.execute))
        except ValueError:  # some builtins have none
            signature = "(…)"
        return f"<Tool {self.name}{signature}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function behind the tool, as Python code does."""
        return (self.function or self.execute)(*args, **kwargs)

    @property
    def declaration(self) -> ToolDeclaration:
        """The tool as a model sees it."""
        if self._declared is None:
            if isinstance(self.parameters, type):
                schema = self.parameters.model_json_schema(schema_generator=_PlainSchema)
            else:
                schema = dict(self.parameters)
            made = ToolDeclaration(name=self.name, description=self.description, parameters=schema)
            object.__setattr__(self, "_declared", made)
        assert self._declared is not None
        return self._declared

    def validate(self, arguments: Any) -> dict[str, JsonValue]:
        """The arguments in their checked JSON form. Raises ``ValueError`` with a message for the model.

        The first check against a schema written by hand loads the library for it, which takes a moment. Raises
        ``RegistryError`` when it is no JSON Schema.
        """
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments must be a JSON object, not {type(arguments).__name__}")
        if isinstance(self.parameters, type):
            try:
                checked = self.parameters.model_validate(arguments)
            except ValidationError as error:
                raise ValueError(explain(error)) from None
            arguments = checked.model_dump(mode="json", exclude_unset=True, by_alias=True)
        try:
            stored: dict[str, JsonValue] = check_json(arguments, "the arguments")
        except InvalidValue as error:
            raise ValueError(str(error)) from None
        if not isinstance(self.parameters, type):
            misfits = self._misfits(stored)
            if misfits is not None:
                raise ValueError(misfits)
        return stored

    def _misfits(self, arguments: dict[str, JsonValue]) -> str | None:
        if self._checker is None:
            object.__setattr__(self, "_checker", schema_checker(self.declaration.parameters, self.name))
        assert self._checker is not None
        return self._checker(arguments)

    def load(self, arguments: dict[str, JsonValue]) -> Any:
        """What ``execute`` gets: the model's instance, or the mapping."""
        return self.parameters.model_validate(arguments) if isinstance(self.parameters, type) else dict(arguments)

    def needs_approval(self, arguments: dict[str, JsonValue]) -> bool:
        """Whether a person must agree to a call with these arguments. Raises what its predicate raises."""
        return self.approval if isinstance(self.approval, bool) else bool(self.approval(arguments))

    def check_structured(self, value: Any) -> JsonValue:
        """A structured result in JSON form, validated against the declared type."""
        if self.structured is None:
            return value
        adapter = TypeAdapter(self.structured)
        return adapter.dump_python(adapter.validate_python(value), mode="json")

    def replaced(self, **changes: Any) -> Tool:
        """A copy with some options changed."""
        return replace(self, **changes)


class _PlainSchema(GenerateJsonSchema):
    """Schemas without the titles that pydantic makes up: they only cost tokens."""

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        made: dict[str, Any] = _untitled(super().generate(schema, mode))
        return made


def _untitled(schema: Any, *, names: bool = False) -> Any:
    if isinstance(schema, dict):
        return {
            key: _untitled(value, names=key in ("properties", "$defs") and not names)
            for key, value in schema.items()
            if names or not (key == "title" and isinstance(value, str))
        }
    return [_untitled(item) for item in schema] if isinstance(schema, list) else schema


def explain(error: ValidationError) -> str:
    """What does not fit, in words for a model."""
    parts = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "arguments"
        parts.append(f"{where}: {item['msg']}")
    return "; ".join(parts)


@overload
def tool(function: F, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Replay = "unsafe",
    execution: Literal["parallel", "sequential"] = "parallel",
    output_limits: OutputLimits | None = None,
    callers: Literal["model", "tools", "both"] = "both",
    deferred: bool = False,
    prepare_arguments: Callable[[Any], Any] | None = None,
    structured: Any = None,
    approval: bool | Callable[[dict[str, Any]], bool] = False,
    in_kernel: bool = False,
) -> Callable[[F], Tool]: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Replay = "unsafe",
    execution: Literal["parallel", "sequential"] = "parallel",
    output_limits: OutputLimits | None = None,
    callers: Literal["model", "tools", "both"] = "both",
    deferred: bool = False,
    prepare_arguments: Callable[[Any], Any] | None = None,
    structured: Any = None,
    approval: bool | Callable[[dict[str, Any]], bool] = False,
    in_kernel: bool = False,
) -> Any:
    """Make a tool of a function: ``@tool`` or ``@tool(replay="safe")``; the options are those of ``Tool``.

    A coroutine function runs on the engine's loop, a plain function in a worker thread. Calling the result calls the
    function. Raises ``RegistryError`` for a signature that no JSON object can fill.
    """
    names = sys._getframe(1).f_locals
    options: dict[str, Any] = {
        "replay": replay,
        "execution": execution,
        "output_limits": output_limits or OutputLimits(),
        "callers": callers,
        "deferred": deferred,
        "prepare_arguments": prepare_arguments,
        "structured": structured,
        "approval": approval,
        "in_kernel": in_kernel,
    }

    def make(function: Callable[..., Any]) -> Tool:
        return _from_function(function, name, description, names, options)

    return make(function) if function is not None else make


def _from_function(
    function: Callable[..., Any], name: str | None, description: str | None, names: Mapping[str, Any], options: Any
) -> Tool:
    from .context import ToolContext

    label = name or str(getattr(function, "__name__", ""))
    try:
        hints = typing.get_type_hints(function, localns=dict(names) | {"ToolContext": ToolContext}, include_extras=True)
    except NameError as error:
        raise RegistryError(
            f"the tool {label} has an annotation that cannot be resolved ({error}): define the type in the module"
        ) from error
    fields: dict[str, Any] = {}
    context_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if annotation is ToolContext:
            context_name = parameter.name
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise RegistryError(f"the tool {label} cannot offer {parameter}: a model passes arguments by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        # The alias keeps names that pydantic has a use for (copy, json, _x) free for arguments.
        fields[f"p_{parameter.name}"] = (annotation, Field(default, alias=parameter.name))
    model = create_model(
        f"{label}_arguments", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
    )

    def call(arguments: BaseModel, ctx: Any) -> Any:
        values = {name.removeprefix("p_"): getattr(arguments, name) for name in fields}
        if context_name is not None:
            values[context_name] = ctx
        return function(**values)

    execute: Callable[..., Any] = call
    if inspect.iscoroutinefunction(function):

        async def call_async(arguments: BaseModel, ctx: Any) -> Any:
            return await call(arguments, ctx)

        execute = call_async
    execute.__name__ = execute.__qualname__ = label  # what errors about the call name
    return Tool(
        name=label,
        description=description if description is not None else inspect.getdoc(function) or "",
        parameters=model,
        execute=execute,
        function=function,
        **options,
    )
