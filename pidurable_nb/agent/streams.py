"""What is common to everything that asks a model: stopping a stream, and telling an error as a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ..errors import DurableError
from ..messages import AssistantMessage, ContentBlock
from ..models.errors import redact
from ..models.protocol import Finish, Model, ModelEvent, ModelRequest

__all__ = ["closing", "error_message", "final_message"]


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
    text = redact(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    kept: list[ContentBlock] = [block for block in content if block.type != "tool_call"]
    return AssistantMessage(content=kept, stop_reason="error", error=text)


async def final_message(model: Model, request: ModelRequest) -> AssistantMessage:
    """The terminal message of a request that nobody watches; what the model raises is one with the error."""
    try:
        async with closing(model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finish):
                    return event.message
    except Exception as error:
        return error_message(error)
    return error_message(DurableError("The stream ended before the answer was finished."))
