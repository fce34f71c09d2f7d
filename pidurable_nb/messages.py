"""What is said: blocks, messages and usage.

A *message* is what a model reads or writes. Its ``content`` is a list of *blocks*; a plain string is accepted and
becomes one text block. Everything here is immutable and is stored as it is (engine.md, section 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from .values import JsonValue, Value

__all__ = [
    "AssistantMessage",
    "ContentBlock",
    "ImageBlock",
    "Message",
    "StopReason",
    "SystemMessage",
    "TextBlock",
    "ThinkingBlock",
    "ToolCall",
    "ToolDeclaration",
    "ToolResultMessage",
    "Usage",
    "UserMessage",
    "content_blocks",
    "text_of",
]


class TextBlock(Value):
    """Text. In an answer it is Markdown by custom, never HTML."""

    text: str
    type: Literal["text"] = "text"


class ThinkingBlock(Value):
    """Reasoning that the model showed; ``signature`` is the provider's proof, sent back with it."""

    text: str
    signature: str | None = None
    type: Literal["thinking"] = "thinking"


class ImageBlock(Value):
    """An image: ``media_type`` as in ``image/png``, ``data`` in base64."""

    media_type: str
    data: str
    type: Literal["image"] = "image"


class ToolCall(Value):
    """A model's request to call a tool; ``id`` is the provider's and names the call in its result."""

    id: str
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    type: Literal["tool_call"] = "tool_call"


ContentBlock: TypeAlias = Annotated[TextBlock | ThinkingBlock | ImageBlock | ToolCall, Field(discriminator="type")]
"""One block of a message."""


def _as_blocks(value: Any) -> Any:
    return [TextBlock(value)] if isinstance(value, str) else value


Content: TypeAlias = Annotated[list[ContentBlock], BeforeValidator(_as_blocks)]


def content_blocks(content: str | Iterable[ContentBlock]) -> list[ContentBlock]:
    """A list of blocks from text or blocks."""
    return [TextBlock(content)] if isinstance(content, str) else list(content)


def text_of(blocks: Iterable[ContentBlock]) -> str:
    """The text blocks, joined by line breaks."""
    return "\n".join(block.text for block in blocks if block.type == "text")


class Usage(Value):
    """Tokens and cost of one request. ``input_tokens`` excludes what a cache gave; ``cost`` is in US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost=self.cost + other.cost,
        )


class _Spoken:
    """A message with content; each declares the field itself, since its place among the others differs."""

    if TYPE_CHECKING:

        @property
        def content(self) -> list[ContentBlock]: ...

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks."""
        return text_of(self.content)


class UserMessage(_Spoken, Value):
    """What a person, or the program for them, said."""

    content: Content = Field(default_factory=list)
    timestamp: float | None = None
    role: Literal["user"] = "user"


StopReason: TypeAlias = Literal["stop", "length", "tool_use", "error", "aborted", "deferred"]


class AssistantMessage(_Spoken, Value):
    """One response of a model.

    ``model`` is ``"provider:name"``; ``thinking`` the level it was asked with; ``error`` the provider's text when
    ``stop_reason`` is ``error``; ``duration`` seconds; ``deferred`` the handle to poll when it is ``deferred``.
    """

    content: Content = Field(default_factory=list)
    model: str = ""
    thinking: str | None = None
    stop_reason: StopReason = "stop"
    error: str | None = None
    usage: Usage = Field(default_factory=Usage)
    duration: float | None = None
    timestamp: float | None = None
    deferred: dict[str, JsonValue] | None = None
    role: Literal["assistant"] = "assistant"

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls it asks for, in order."""
        return [block for block in self.content if block.type == "tool_call"]


class ToolDeclaration(Value):
    """A tool as a model sees it; ``parameters`` is a JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class SystemMessage(Value):
    """A change of what leads the conversation: sections set (text) or removed (``None``), tools added and removed."""

    sections: dict[str, str | None] = Field(default_factory=dict)
    tools_added: list[ToolDeclaration] = Field(default_factory=list)
    tools_removed: list[str] = Field(default_factory=list)
    timestamp: float | None = None
    role: Literal["system"] = "system"

    @property
    def text(self) -> str:
        """The sections that it sets, joined by blank lines."""
        return "\n\n".join(text for text in self.sections.values() if text is not None)


class ToolResultMessage(_Spoken, Value):
    """The result of one call. ``details`` is for user interfaces and is not sent to the model."""

    call_id: str
    tool_name: str
    content: Content = Field(default_factory=list)
    is_error: bool = False
    details: JsonValue = None
    usage: Usage | None = None
    duration: float | None = None
    timestamp: float | None = None
    role: Literal["tool_result"] = "tool_result"


Message: TypeAlias = Annotated[
    UserMessage | AssistantMessage | SystemMessage | ToolResultMessage, Field(discriminator="role")
]
"""Any message."""
