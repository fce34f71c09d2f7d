"""A model that follows a script: for tests, tutorials, and notebooks that must cost nothing (api.md, Models).

A *step* is what one request is answered with: text, a ``Reply``, a ``Hang``, or a function of the request that returns
one of these. A script is a list of steps, or one function that answers every request.

Guarantees: the same request at the same step gives the same answer and the same usage. The model holds nothing that
belongs to an event loop or a thread, so that one object serves many of both at once.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..errors import ModelError, ScriptExhausted
from ..messages import (
    AssistantMessage,
    ContentBlock,
    Message,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolDeclaration,
    Usage,
)
from .protocol import Finish, ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolCallDelta

__all__ = ["Hang", "Reply", "ScriptedModel", "Step", "estimate_tokens"]

TOKEN_CHARACTERS = 4
"""How many characters count as one token, for rates and for usage."""

FINISHED: frozenset[StopReason] = frozenset({"stop", "length", "tool_use"})
"""The stop reasons of a finished answer: the others leave the same step to be asked again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Paced:
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.tokens_per_second is not None and not self.tokens_per_second > 0:
            raise ValueError(f"tokens_per_second must be above 0, not {self.tokens_per_second!r}")


@dataclass(frozen=True, slots=True)
class Reply(_Paced):
    """One answer: ``thinking``, then ``text``, then ``tool_calls``.

    ``error`` makes it a provider's error with that text, after what was streamed. ``stop_reason`` follows from these
    unless given, and ``usage`` is estimated. ``tokens_per_second`` streams it at that rate in real time, a token being
    four characters; without it, it comes at once.
    """

    text: str = ""
    thinking: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    error: str | None = None
    stop_reason: StopReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Hang(_Paced):
    """Stream the text ``after``, then never finish until cancelled."""

    after: str = ""


Step: TypeAlias = str | Reply | Hang | Callable[[ModelRequest], "Step | Awaitable[Step]"]
"""What one request is answered with."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What was counted in a request's messages, so that the next request counts only what it adds."""

    messages: tuple[Message, ...] = ()
    characters: int = 0
    answers: int = 0


class ScriptedModel:
    """A model that answers from ``steps``: one step for each request, then ``ScriptExhausted`` from the stream.

    ``steps`` is a sequence of steps, or one function that answers every request. With ``by="transcript"`` the step is
    chosen by how many finished answers the request's history holds, so that a new process goes on in the script and an
    attempt that was cut off gets the same step again. ``requests`` holds every request received, unless ``record`` is
    false; ``polls`` and ``cancels`` hold every deferred handle polled and cancelled.

    ``deferred_poll_after`` (seconds) makes a request that asks for ``deferred`` finish at once with a handle. The
    handle is JSON and holds the answer, so that any process can poll it; a ``Hang`` is never ready.

    A function that raises makes the stream raise the same.
    """

    def __init__(
        self,
        steps: Iterable[Step] | Callable[[ModelRequest], Any],
        *,
        name: str = "scripted:demo",
        by: Literal["request", "transcript"] = "request",
        context_window: int = 200_000,
        max_output_tokens: int = 32_000,
        deferred_poll_after: float | None = None,
        record: bool = True,
    ) -> None:
        if by not in ("request", "transcript"):
            raise ValueError(f'by must be "request" or "transcript", not {by!r}')
        if isinstance(steps, str | Reply | Hang):
            raise TypeError(f"steps is a list of steps; write [{type(steps).__name__}(...)] for a single one")
        self._every: Callable[[ModelRequest], Any] | None = steps if callable(steps) else None
        self._steps: tuple[Step, ...] = () if callable(steps) else tuple(steps)
        self.id = name
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self.requests: list[ModelRequest] = []
        self.polls: list[dict[str, Any]] = []
        self.cancels: list[dict[str, Any]] = []
        self._by = by
        self._poll_after = deferred_poll_after
        self._record = record
        self._asked = itertools.count()  # next() of it is atomic, so that two threads never get the same step
        self._read = _Read()

    def __repr__(self) -> str:
        script = "a function" if self._every is not None else f"{len(self._steps)} steps"
        return f"<ScriptedModel {self.id} of {script}>"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer with the next step. Raises ``ScriptExhausted`` when there is none, and what a function raises."""
        if self._record:
            self.requests.append(request)
        read = self._reading(request)
        step: Any = self._step(read)
        while callable(step):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        if isinstance(step, str):
            step = Reply(step)
        if not isinstance(step, Reply | Hang):
            raise TypeError(f"a step of {self.id} must be text, a Reply, a Hang or a function of these, not {step!r}")

        if self._poll_after is not None and request.options.deferred:
            answer = None if isinstance(step, Hang) else self._message(step, request, read)
            yield Finish(self._deferred(answer))
        elif isinstance(step, Hang):
            async for text in _paced(step.after, step.tokens_per_second):
                yield TextDelta(text)
            await asyncio.get_running_loop().create_future()
        else:
            rate = step.tokens_per_second
            async for text in _paced(step.thinking or "", rate):
                yield ThinkingDelta(text)
            async for text in _paced(step.text, rate):
                yield TextDelta(text)
            for call in step.tool_calls:
                yield ToolCallDelta(call.id, call.name)
                async for text in _paced(_json(call.arguments), rate):
                    yield ToolCallDelta(call.id, call.name, text)
            yield Finish(self._message(step, request, read))

    async def poll(self, handle: Mapping[str, Any]) -> AssistantMessage:
        """The answer that the handle holds, or the handle again where the step was a ``Hang``."""
        self.polls.append(dict(handle))
        answer = handle.get("answer")
        if answer is None:
            return AssistantMessage(model=self.id, stop_reason="deferred", deferred=dict(handle))
        try:
            return AssistantMessage.model_validate(answer)
        except ValueError as error:
            raise ModelError(
                f"{self.id} cannot read the answer in a deferred handle: {error}. "
                "The handle was made by another version or changed since; ask again."
            ) from error

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """Note the handle in ``cancels``; nothing else has to stop."""
        self.cancels.append(dict(handle))

    def _reading(self, request: ModelRequest) -> _Read:
        # A transcript mostly grows at its end. Counting only what was added keeps a turn's time free of its length;
        # comparing the tuples is by identity for messages that the caller keeps, which takes microseconds.
        last, messages = self._read, tuple(request.messages)
        if messages[: len(last.messages)] != last.messages:
            last = _Read()
        added = messages[len(last.messages) :]
        self._read = _Read(
            messages,
            last.characters + sum(_characters(message) for message in added),
            last.answers + sum(message.role == "assistant" and message.stop_reason in FINISHED for message in added),
        )
        return self._read

    def _step(self, read: _Read) -> Step:
        if self._every is not None:
            return self._every
        index = next(self._asked) if self._by == "request" else read.answers
        if index < len(self._steps):
            return self._steps[index]
        count = f"{len(self._steps)} step{'' if len(self._steps) == 1 else 's'}"
        if self._by == "request":
            raise ScriptExhausted(
                f"{self.id} has {count} and got request number {index + 1}. "
                'Give it a step for each request, or by="transcript" if a new process asks again.'
            )
        raise ScriptExhausted(
            f"{self.id} has {count} and was asked in a history of {index} finished answers. Give it more steps."
        )

    def _message(self, reply: Reply, request: ModelRequest, read: _Read) -> AssistantMessage:
        content: list[ContentBlock] = []
        if reply.thinking:
            content.append(ThinkingBlock(reply.thinking))
        if reply.text:
            content.append(TextBlock(reply.text))
        content.extend(reply.tool_calls)
        stop_reason: StopReason = "error" if reply.error is not None else "tool_use" if reply.tool_calls else "stop"
        usage = reply.usage
        if usage is None:
            offered = sum(
                len(tool.name) + len(tool.description) + len(_json(tool.parameters)) for tool in request.tools
            )
            usage = Usage(
                input_tokens=_tokens(read.characters + offered),
                output_tokens=_tokens(sum(_block_characters(block) for block in content)),
            )
        return AssistantMessage(
            content=content,
            model=self.id,
            stop_reason=reply.stop_reason or stop_reason,
            error=reply.error,
            usage=usage,
        )

    def _deferred(self, answer: AssistantMessage | None) -> AssistantMessage:
        handle = {
            "model": self.id,
            "poll_after": self._poll_after,
            "answer": None if answer is None else answer.to_data(),
        }
        return AssistantMessage(model=self.id, stop_reason="deferred", deferred=handle)


def estimate_tokens(messages: Iterable[Message]) -> int:
    """About how many tokens the messages take: a quarter of their characters."""
    return _tokens(sum(_characters(message) for message in messages))


def _tokens(characters: int) -> int:
    return -(-characters // TOKEN_CHARACTERS)


def _characters(message: Message) -> int:
    if message.role == "system":
        sections = sum(len(text) for text in message.sections.values() if text is not None)
        return sections + sum(map(_declared, message.tools_added))
    return sum(_block_characters(block) for block in message.content)


def _declared(tool: ToolDeclaration) -> int:
    return len(tool.name) + len(tool.description) + len(_json(tool.parameters))


def _block_characters(block: ContentBlock) -> int:
    if block.type == "tool_call":
        return len(block.name) + len(_json(block.arguments))
    return len(block.data) if block.type == "image" else len(block.text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


async def _paced(text: str, rate: float | None) -> AsyncIterator[str]:
    """The text in pieces: a token at a time at ``rate`` tokens per second, or a few at once without one."""
    if rate is None:
        for piece in _pieces(text, max(16, -(-len(text) // 4))):
            yield piece
        return
    # Each piece has its own due time, so that the rate holds where a sleep takes longer than asked.
    clock = asyncio.get_running_loop().time
    start = clock()
    for index, piece in enumerate(_pieces(text, TOKEN_CHARACTERS)):
        await asyncio.sleep(max(0.0, start + index / rate - clock()))
        yield piece
