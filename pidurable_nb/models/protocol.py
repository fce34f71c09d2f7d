"""The model protocol: a request goes in, events come out (api.md, Models).

A *model* streams one response. Its events are deltas and, last, one ``Finish`` with the whole message; the deltas are
what is committed and shown while it streams, the finished message is what is stored. A model raises nothing for what a
provider answers: an error of the provider is a ``Finish`` whose message has ``stop_reason="error"``. What it raises
all the same is stored as such an error too.

A *deferred* answer finishes with ``stop_reason="deferred"`` and a handle in ``message.deferred``: any JSON mapping,
with ``poll_at`` (epoch seconds) or ``poll_after`` (seconds) saying when to ask. Such a model also has ``poll`` and
``cancel``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..messages import AssistantMessage, Message, ToolDeclaration
from ..values import Value
from .errors import REDACTED, is_secret


class RequestOptions(Value):
    """How a request is sent. ``timeout`` is in seconds.

    ``cache`` and ``deferred`` are hints that a provider may ignore. ``tool_choice`` is ``"auto"``, ``"required"`` (some
    tool), ``"none"``, or the name of the tool to call; it holds for every request, also the ones after a tool's result.
    """

    timeout: float | None = None
    max_retries: int | None = None
    headers: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    max_tokens: int | None = None
    cache: str = "default"
    deferred: bool = False
    tool_choice: str | None = None

    def without_secrets(self) -> RequestOptions:
        """The options as they may be stored: a header that carries a key keeps its name and loses its value."""
        headers = {name: REDACTED if is_secret(name, value) else value for name, value in self.headers.items()}
        return self if headers == self.headers else self.replaced(headers=headers)

    def with_secrets(self, given: RequestOptions) -> RequestOptions:
        """Stored options with the values that those headers have in ``given``; one that it lacks is left out."""
        if REDACTED not in self.headers.values():
            return self
        headers = {
            name: given.headers.get(name, REDACTED) if value == REDACTED else value
            for name, value in self.headers.items()
        }
        return self.replaced(headers={name: value for name, value in headers.items() if value != REDACTED})


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request: ``messages`` lead with the system message where there is one; ``tools`` are those offered."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDeclaration, ...] = ()
    thinking: str = "off"
    options: RequestOptions = field(default_factory=RequestOptions)
    session_id: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that goes on the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """Reasoning that goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A tool call that is being written; ``arguments_json`` is what its arguments grew by."""

    id: str
    name: str
    arguments_json: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The whole response; always the last event."""

    message: AssistantMessage


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ToolCallDelta | Finish


@runtime_checkable
class Model(Protocol):
    """A language model. Cancelling the iteration stops the request."""

    @property
    def id(self) -> str:
        """``"provider:name"``."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens that a request and its answer may take together."""
        ...

    @property
    def max_output_tokens(self) -> int: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]: ...


@runtime_checkable
class DeferredModel(Model, Protocol):
    """A model that can answer later."""

    async def poll(self, handle: Mapping[str, Any]) -> AssistantMessage:
        """The answer, or another message with ``stop_reason="deferred"`` while there is none."""
        ...

    async def cancel(self, handle: Mapping[str, Any]) -> None: ...


@runtime_checkable
class CountingModel(Model, Protocol):
    """A model that counts tokens itself, for compactions; for others a token is taken for four characters."""

    def count_tokens(self, message: Message) -> int:
        """How many tokens a message takes in a request, tool declarations included. Called often, on the engine's loop:
        quick, and without effects."""
        ...


@runtime_checkable
class Models(Protocol):
    """Models by id."""

    def get(self, id: str) -> Model | None: ...


ModelSource: TypeAlias = Model | Models | Iterable[Model] | Mapping[str, Model]
"""What ``models=`` takes, or a zero-argument callable that returns one of these and is called at each use."""


class ModelSet:
    """Models by id, and the only one among them where there is just one."""

    def __init__(self, source: ModelSource | Callable[[], ModelSource]) -> None:
        self._source = tuple(source) if isinstance(source, Iterator) else source
        if not callable(source) or hasattr(source, "stream") or hasattr(source, "get"):
            self._models()  # what is no model is told at once

    def _models(self) -> Models | dict[str, Model]:
        source: Any = self._source
        if not hasattr(source, "stream") and not hasattr(source, "get") and callable(source):
            source = source()
        if hasattr(source, "stream"):
            return {_checked(source).id: source}
        if isinstance(source, Mapping):
            return {id: _checked(model) for id, model in source.items()}
        if hasattr(source, "get"):
            return source  # type: ignore[no-any-return]
        if isinstance(source, Iterable) and not isinstance(source, str):
            return {_checked(model).id: model for model in source}
        return {"": _checked(source)}  # which tells what it is

    def get(self, id: str) -> Model | None:
        """The model of this id, or ``None``. Raises ``UnknownModel`` where the source knows what is missing."""
        return self._models().get(id)

    def only(self) -> Model | None:
        """The model, where exactly one was given; it is the default of every conversation (engine.md, section 10)."""
        models = self._models()
        if isinstance(models, dict) and len(models) == 1:
            return next(iter(models.values()))
        return None


def _checked(model: Any) -> Model:
    if isinstance(model, type) or not hasattr(model, "stream") or not isinstance(getattr(model, "id", None), str):
        hint = "; for models by name, give models=default_models" if isinstance(model, str) else ""
        raise TypeError(
            f"models= takes a model, several, a mapping by id, a Models, or a function that returns one of these; "
            f"{model!r} is no model{hint}"
        )
    return model  # type: ignore[no-any-return]
