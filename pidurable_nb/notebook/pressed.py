"""What pressed buttons do in a session: each press is done on the engine thread, and its page is told how it went.

What a page says is not trusted: a press takes from it what it knows, in the types that it expects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from ..agent.conversation import Conversation
from ..errors import DurableError
from ..values import JsonValue
from .bridge import Bridge

__all__ = ["Act", "connect", "decide", "number", "words"]

Act: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[JsonValue]]
"""What a button does with what its page said; the page gets what it returns."""


def connect(bridge: Bridge, widget: Any, actions: Mapping[str, Act]) -> None:
    """Have a live widget's buttons do ``actions``, by name, on the engine thread."""

    def button(act: Act) -> Callable[[dict[str, Any]], None]:
        async def press(message: dict[str, Any]) -> None:
            try:
                done = await act(message)
            except Exception as error:
                widget.answer(message, error=" ".join((str(error) or type(error).__name__).split()))
                if not isinstance(error, DurableError | ValueError):  # a fault of ours, which the loop logs
                    raise
            else:
                widget.answer(message, done=done)

        return lambda message: bridge.call_soon(press, message)

    for name, act in actions.items():
        widget.on_action(name, button(act))


async def decide(conversation: Conversation, message: Mapping[str, Any]) -> None:
    """Approve or deny a call, as ``%durable approve`` and ``deny`` do. Raises ``DurableError`` where none waits."""
    arguments, note = message.get("arguments"), message.get("note")
    await conversation.decide(
        words(message, "call"),
        approve=message.get("approve") is True,
        arguments=arguments if isinstance(arguments, dict) else None,
        note=note if isinstance(note, str) else None,
    )


def words(message: Mapping[str, Any], name: str) -> str:
    """A text that the page said. Raises ``ValueError`` when there is none."""
    value = message.get(name)
    if not isinstance(value, str):
        raise ValueError(f"the page did not say {name}")
    return value


def number(message: Mapping[str, Any], name: str) -> int:
    """A whole number that the page said. Raises ``ValueError`` when there is none."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"the page did not say {name}")
    return value
