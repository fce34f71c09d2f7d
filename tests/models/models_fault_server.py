"""A loopback HTTP server that speaks the streaming protocols of OpenAI and Anthropic, and breaks them on command.

A *script* is a list of replies, one for each request: what to send, and how to end. ``requests`` holds what came in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Answer:
    """Server-sent ``events``, and then ``end``: ``finish`` it, ``cut`` the connection, or ``stall`` until it closes."""

    events: Sequence[str] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    end: str = "finish"


class FaultServer:
    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[Received] = []
        self.disconnected = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> FaultServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(Received(head[0].split()[1], headers, json.loads(body or b"{}")))
            await self._answer(self.script.pop(0), reader, writer)
        except ConnectionError:
            self.disconnected.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = "application/json" if answer.body is not None else "text/event-stream"
        head = [f"HTTP/1.1 {answer.status} Status", f"content-type: {kind}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.body is not None:
            data = answer.body.encode()
            head += [f"content-length: {len(data)}", "connection: close", "", ""]
            writer.write("\r\n".join(head).encode() + data)
            await writer.drain()
            return
        head += ["transfer-encoding: chunked", "connection: close", "", ""]
        writer.write("\r\n".join(head).encode())
        for event in answer.events:
            data = event.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        if answer.end == "finish":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        elif answer.end == "stall":
            await reader.read()
            self.disconnected.set()
        elif answer.end == "cut":
            writer.transport.abort()


def error(status: int, body: Any, **headers: str) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return Answer(status=status, body=text, headers={name.replace("_", "-"): value for name, value in headers.items()})


def sse(data: Any, event: str | None = None) -> str:
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def chat(*deltas: dict[str, Any], finish: str | None = "stop", usage: dict[str, Any] | None = None) -> list[str]:
    """The events of a Chat Completions stream."""

    def chunk(choices: list[Any], **more: Any) -> str:
        base = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
        return sse({**base, "choices": choices, **more})

    events = [chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    if finish is not None:
        events.append(chunk([{"index": 0, "delta": {}, "finish_reason": finish}]))
        events.append(chunk([], usage=usage or {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}))
        events.append(sse("[DONE]"))
    return events


def responses(*texts: str, finish: bool = True) -> list[str]:
    """The events of an OpenAI Responses stream with one message."""
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "in_progress",
    }
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **where, "part": part},
        *({"type": "response.output_text.delta", **where, "delta": text, "logprobs": []} for text in texts),
    ]
    if finish:
        whole = {**part, "text": "".join(texts)}
        done = {**item, "status": "completed", "content": [whole]}
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 105,
        }
        events += [
            {"type": "response.output_text.done", **where, "text": whole["text"], "logprobs": []},
            {"type": "response.content_part.done", **where, "part": whole},
            {"type": "response.output_item.done", "output_index": 0, "item": done},
            {
                "type": "response.completed",
                "response": {**response, "status": "completed", "output": [done], "usage": usage},
            },
        ]
    return [sse({**event, "sequence_number": index}, event["type"]) for index, event in enumerate(events)]


def anthropic(
    *blocks: tuple[dict[str, Any], Sequence[dict[str, Any]]], stop: str | None = "end_turn", usage: Any = None
) -> list[str]:
    """The events of an Anthropic Messages stream; a block is its start and its deltas."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 10, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    if stop is not None:
        delta = {"stop_reason": stop, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
        events.append({"type": "message_stop"})
    return [sse(event, event["type"]) for event in events]
