"""The same work on pi-durable-python. Run by ``peers`` with the peer's own interpreter; imports nothing of ours."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from statistics import median

from pi_durable import Harness, Model, create_registry, create_session, define_doc, define_extension, define_tool
from pi_durable.context import BACKGROUND_CONTEXT as CONTEXT
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage

ENTRY, STATE = "e" * 500, "d" * 300
SHORT = "An answer of about the length that people give in a chat, which is a line or two."
QUESTION = "A question of a few words?"
USAGE = {"input": 10, "output": 10, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 20, "cost": {"total": 0}}


class Stream:
    """One finished answer."""

    def __init__(self, message):
        self._message = message

    async def __aiter__(self):
        yield {"type": "start", "partial": {**self._message, "content": []}}
        reason = self._message["stopReason"]
        yield {"type": "done", "reason": reason, "message": self._message}

    async def result(self):
        return self._message


class Models:
    """Answers at once, or asks for the tool when a person spoke last and there is one."""

    model = Model(provider="bench", model_id="bench", context_window=10_000_000, max_tokens=1000)

    def get_model(self, provider, model_id):
        return self.model

    def stream_simple(self, model, context, options=None):
        messages = context["messages"]
        last = messages[-1]
        if messages[0].get("toolsAdded") and last["role"] == "user":
            call = {"type": "toolCall", "id": f"call-{len(messages)}", "name": "echo", "arguments": {}}
            content, reason = [call], "toolUse"
        else:
            content, reason = [{"type": "text", "text": SHORT}], "stop"
        return Stream(
            {
                "role": "assistant",
                "content": content,
                "stopReason": reason,
                "api": "bench",
                "provider": "bench",
                "model": "bench",
                "usage": USAGE,
                "timestamp": 0,
            }
        )

    stream = stream_simple


State = define_doc(
    {
        "kind": "bench.state",
        "version": 1,
        "scope": "session",
        "initial": lambda: {"text": ""},
        "checkpoint_when": lambda value, ops, info: info["deltasSinceBase"] >= 32,
    }
)


async def commits(folder, count):
    session = create_session(await open_posix_sqlite_storage(str(folder / "peer-commits.sqlite")))
    holder = {}

    async def create(tx):
        holder["id"] = (await tx.create_root_conversation())["id"]

    await session.commit(create, CONTEXT)
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        for turn in range(count):

            async def body(tx, turn=turn):
                await tx.append_entry(holder["id"], {"kind": "bench.entry", "data": {"text": ENTRY}})
                (await tx.doc(State)).text = f"{turn}{STATE}"

            await session.commit(body, CONTEXT)
        durations.append(time.perf_counter() - start)
    await session.close(CONTEXT)
    return count / median(durations)


async def execute(*_):
    return {"content": [{"type": "text", "text": "x"}]}


async def opened(path, *, tools=False):
    registry = create_registry()
    if tools:
        schema = {"type": "object", "properties": {}}
        echo = define_tool(name="echo", description="Echo.", parameters=schema, execute=execute, replay="safe")
        registry.install(define_extension(name="bench", tools=[echo]))
    storage = await open_posix_sqlite_storage(str(path))
    options = {"models": Models(), "registry": registry, "settings": {"compaction": {"enabled": False}}}
    harness = await Harness.open(storage, options, CONTEXT)
    root = await harness.root(CONTEXT, {"agent": {"model": {"provider": "bench", "modelId": "bench"}}})
    return harness, root


async def turn(root):
    submission = await root.submit({"type": "input", "content": QUESTION}, CONTEXT)
    settled = await submission.wait(CONTEXT)
    if settled["status"] != "done":
        raise SystemExit(f"a turn of the peer failed: {settled}")


async def turns(path, count, *, tools=False):
    harness, root = await opened(path, tools=tools)
    durations = []
    for _ in range(count):
        start = time.perf_counter()
        await turn(root)
        durations.append(time.perf_counter() - start)
    await harness.close(CONTEXT)
    return 1 / median(durations)


async def first_context(path, entries):
    harness, root = await opened(path)
    for start in range(0, entries, 1000):

        async def body(tx, start=start):
            for index in range(start, min(start + 1000, entries)):
                message = (
                    {"role": "user", "content": QUESTION, "timestamp": 0}
                    if index % 2 == 0
                    else {
                        "role": "assistant",
                        "content": [{"type": "text", "text": SHORT}],
                        "stopReason": "stop",
                        "api": "bench",
                        "provider": "bench",
                        "model": "bench",
                        "usage": USAGE,
                        "timestamp": 0,
                    }
                )
                await tx.append_entry(1, {"kind": "bench.entry", "model": [message]})

        await harness.commit(body, CONTEXT)
    await harness.close(CONTEXT)
    harness, root = await opened(path)
    start = time.perf_counter()
    await root.context(CONTEXT)
    taken = time.perf_counter() - start
    await harness.close(CONTEXT)
    return taken


async def sessions(folder, count):
    async def session(index):
        harness, root = await opened(folder / f"peer-session-{index}.sqlite")
        for _ in range(5):
            await turn(root)
        return harness

    start = time.perf_counter()
    harnesses = await asyncio.gather(*(session(index) for index in range(count)))
    taken = time.perf_counter() - start
    for harness in harnesses:
        await harness.close(CONTEXT)
    return taken


async def main():
    folder, scale = Path(sys.argv[1]), float(sys.argv[2])
    figures = {}
    for name, measured in (
        ("commits", lambda: commits(folder, max(50, int(1000 * scale)))),
        ("turns", lambda: turns(folder / "peer-turns.sqlite", max(20, int(300 * scale)))),
        ("tool turns", lambda: turns(folder / "peer-tools.sqlite", max(20, int(300 * scale)), tools=True)),
        ("sessions", lambda: sessions(folder, max(10, int(200 * scale)))),
        ("first context", lambda: first_context(folder / "peer-long.sqlite", max(2000, int(100_000 * scale)))),
    ):
        try:
            figures[name] = await measured()
        except Exception as error:
            print(f"{name} of the peer was not measured: {error!r}", file=sys.stderr)
    print(json.dumps(figures))


asyncio.run(main())
