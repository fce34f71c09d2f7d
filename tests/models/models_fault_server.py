"""Loopback HTTP servers that speak the protocols of OpenAI and Anthropic, and break them on command.

``FaultServer`` follows a *script*: a list of replies, one for each request, with what to send and how to end.
``BatchServer`` keeps batches, as both vendors' batch interfaces do. ``requests`` holds what came in.
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
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw or b"{}")
        return found


@dataclass
class Answer:
    """Server-sent ``events``, and then ``end``: ``finish`` it, ``cut`` the connection, or ``stall`` until it closes.

    ``drop`` closes the connection without a word.
    """

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
        self.stalled = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> FaultServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def reply(self, received: Received) -> Answer:
        """What is answered: the next of the script, unless a subclass knows better."""
        return self.script.pop(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = head[0].split()
            received = Received(method, path, headers, body)
            self.requests.append(received)
            await self._answer(self.reply(received), reader, writer)
        except ConnectionError:
            self.disconnected.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer.end == "drop":
            writer.transport.abort()
            return
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
            self.stalled.set()
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


def responses(
    *texts: str, finish: bool = True, call: dict[str, Any] | None = None, incomplete: str | None = None
) -> list[str]:
    """The events of an OpenAI Responses stream: one message, or one ``call`` (``call_id``, ``name``, ``arguments``).

    ``incomplete`` is the reason for which the answer ended early.
    """
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
    if call is not None:
        item: dict[str, Any] = {"id": "fc_1", "type": "function_call", "status": "in_progress", **call, "arguments": ""}
        place = {"item_id": "fc_1", "output_index": 0}
        done = {**item, **call, "status": "completed"}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.function_call_arguments.delta", **place, "delta": call["arguments"]},
        ]
        closing = [{"type": "response.function_call_arguments.done", **place, **call}]
    else:
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        whole = {**part, "text": "".join(texts)}
        done = {**item, "status": "completed", "content": [whole]}
        events = [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.content_part.added", **where, "part": part},
            *({"type": "response.output_text.delta", **where, "delta": text, "logprobs": []} for text in texts),
        ]
        closing = [
            {"type": "response.output_text.done", **where, "text": whole["text"], "logprobs": []},
            {"type": "response.content_part.done", **where, "part": whole},
        ]
    if finish:
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 105,
        }
        ended = {**response, "status": "completed", "output": [done], "usage": usage}
        if incomplete is not None:
            ended |= {"status": "incomplete", "incomplete_details": {"reason": incomplete}}
        events += [
            *closing,
            {"type": "response.output_item.done", "output_index": 0, "item": done},
            {"type": f"response.{ended['status']}", "response": ended},
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


# -- batches ---------------------------------------------------------------------------------------------------------


class BatchServer(FaultServer):
    """Batches of both vendors, each of one request. They run until ``outcome`` says how they end.

    ``outcome`` is ``running``, ``done`` (with ``text``, or a call of ``call``), ``errored``, ``expired`` or ``gone``.
    ``fault`` is answered to the next request instead. ``batches`` holds what was asked of each: a request body.
    """

    def __init__(self, text: str = "later", call: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.text = text
        self.call = call
        self.outcome = "running"
        self.fault: Answer | None = None
        self.batches: dict[str, dict[str, Any]] = {}
        self.cancelled: set[str] = set()
        self.files: dict[str, str] = {}

    def reply(self, received: Received) -> Answer:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            return fault
        path, _, _ = received.path.partition("?")
        found = self._anthropic(received, path) if "/messages/batches" in path else self._openai(received, path)
        return Answer(body=found if isinstance(found, str) else json.dumps(found))

    def _ended(self, id: str) -> str:
        return "cancelled" if id in self.cancelled else self.outcome

    def _openai(self, received: Received, path: str) -> Any:
        parts = path.removeprefix("/v1/").split("/")
        if parts[0] == "files" and received.method == "POST":
            text = received.raw.decode()
            self.files[f"file-{len(self.files) + 1}"] = text[text.index('{"custom_id"') : text.rindex("}") + 1]
            id = f"file-{len(self.files)}"
            return {"id": id, "object": "file", "bytes": 1, "created_at": 1, "filename": "b", "purpose": "batch"}
        if parts[0] == "files" and received.method == "DELETE":
            return {"id": parts[1], "object": "file", "deleted": True}
        if parts[0] == "files":
            return self.files[parts[1]]
        if received.method == "POST" and len(parts) == 1:
            id = f"batch_{len(self.batches) + 1}"
            self.batches[id] = json.loads(self.files[received.body["input_file_id"]])
        else:
            id = parts[1]
            if parts[-1] == "cancel":
                self.cancelled.add(id)
        return self._openai_batch(id)

    def _openai_batch(self, id: str) -> dict[str, Any]:
        outcome = self._ended(id)
        line: dict[str, Any] = {"id": "x", "custom_id": self.batches[id]["custom_id"], "response": None, "error": None}
        batch: dict[str, Any] = {
            "id": id,
            "object": "batch",
            "endpoint": "/v1/responses",
            "input_file_id": f"file-{id.removeprefix('batch_')}",
            "completion_window": "24h",
            "created_at": 1,
            "status": {"running": "in_progress", "done": "completed", "errored": "completed"}.get(outcome, outcome),
            "request_counts": {"total": 1, "completed": 0, "failed": 0},
        }
        if outcome == "done":
            last = responses(self.text, call=self.call)[-1].partition("data: ")[2]
            line["response"] = {"status_code": 200, "request_id": "r", "body": json.loads(last)["response"]}
            self.files[f"out-{id}"] = json.dumps(line)
            batch["output_file_id"] = f"out-{id}"
        elif outcome == "errored":
            body = {"error": {"message": "tools[0]: no", "type": "invalid_request_error", "code": None}}
            line["response"] = {"status_code": 400, "request_id": "r", "body": body}
            self.files[f"err-{id}"] = json.dumps(line)
            batch["error_file_id"] = f"err-{id}"
        return batch

    def _anthropic(self, received: Received, path: str) -> Any:
        parts = path.removeprefix("/v1/messages/batches").strip("/").split("/")
        if received.method == "POST" and parts == [""]:
            id = f"msgbatch_{len(self.batches) + 1}"
            (self.batches[id],) = received.body["requests"]
        else:
            id = parts[0]
            if parts[-1] == "cancel":
                self.cancelled.add(id)
        outcome = self._ended(id)
        if parts[-1] == "results":
            return json.dumps({"custom_id": self.batches[id]["custom_id"], "result": self._anthropic_result(outcome)})
        ended = outcome != "running"
        counts = {"processing": 1, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        return {
            "id": id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts,
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-02T00:00:00Z",
            "ended_at": "2026-01-01T01:00:00Z" if ended else None,
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"{self.url}/v1/messages/batches/{id}/results" if ended else None,
        }

    def _anthropic_result(self, outcome: str) -> dict[str, Any]:
        if outcome == "done":
            content: dict[str, Any] = {"type": "text", "text": self.text}
            if self.call is not None:
                arguments = json.loads(self.call["arguments"])
                content = {
                    "type": "tool_use",
                    "id": self.call["call_id"],
                    "name": self.call["name"],
                    "input": arguments,
                }
            message = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-5",
                "content": [content],
                "stop_reason": "tool_use" if self.call else "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1000, "output_tokens": 100},
            }
            return {"type": "succeeded", "message": message}
        if outcome == "errored":
            fault = {"type": "invalid_request_error", "message": "tools[0]: no"}
            return {"type": "errored", "error": {"type": "error", "error": fault, "request_id": "r"}}
        return {"type": "expired" if outcome == "expired" else "canceled"}
