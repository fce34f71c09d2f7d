"""What is common to everything that asks a model: stopping a stream, and telling an error as a message."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import DurableError
from ..messages import AssistantMessage, ContentBlock
from ..models.errors import redact
from ..models.protocol import Finish, Model, ModelEvent, ModelRequest
from ..values import check_json, valid_text

__all__ = ["closing", "error_message", "final_message", "storable"]


@asynccontextmanager
async def closing(stream: AsyncIterator[ModelEvent]) -> AsyncIterator[AsyncIterator[ModelEvent]]:
    """Stop a stream when the block is left, where it can be stopped: a generator can, a bare iterator need not."""
    try:
        yield stream
    finally:
        stop = getattr(stream, "aclose", None)
        if stop is not None:
            await stop()


def error_message(error: BaseException, content: Sequence[ContentBlock] = ()) -> AssistantMessage:
    """What a model raised, as the message that is stored, without keys; ``content`` is what had arrived."""
    text = valid_text(redact(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__))
    kept: list[ContentBlock] = [block for block in content if block.type != "tool_call"]
    return AssistantMessage(content=kept, stop_reason="error", error=text)


def storable(message: object) -> AssistantMessage:
    """A model's terminal message as it can be stored.

    Models say what JSON cannot hold: half a character, ``NaN`` as an argument. Lone surrogates become ``\\ufffd`` and
    such numbers their names, which the tool's own check of its arguments judges. Raises ``TypeError`` for anything but
    a message, and ``InvalidValue`` for arguments that are nested too deeply.
    """
    if not isinstance(message, AssistantMessage):
        raise TypeError(f"the model's answer is a {type(message).__name__}, not an AssistantMessage")
    said = message.model_dump()
    stored = check_json(_repaired(said), "the model's answer")
    return message if stored == said else AssistantMessage.model_validate(stored)


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_repaired(item) for item in value]
    return value


async def final_message(model: Model, request: ModelRequest) -> AssistantMessage:
    """The terminal message of a request that nobody watches; what the model raises is one with the error."""
    try:
        async with closing(model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finish):
                    return storable(event.message)
    except Exception as error:
        return error_message(error)
    return error_message(DurableError("The stream ended before the answer was finished."))
