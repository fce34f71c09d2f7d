"""A turn with a tool whose process is killed with SIGKILL at a moment of its choice, over each vendor's protocol.

The server and the judge are here and live on; the session is in a child (``python model_kills.py …``), which is killed
and then run again on the same file. What the judge saw becomes a row of docs/models.md, by way of ``model_failures``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_failures import CHAT, CLAUDE, PROTOCOLS, RESPONSES, answering, begun, environment
from models_fault_server import Answer, BatchServer, FaultServer, Received, anthropic, chat, error, responses

from pidurable_nb import Extension, Harness, Registry, RequestOptions, Settings, observe, tool
from pidurable_nb.models import DefaultModels
from pidurable_nb.testing import eventually

QUESTION = "What is the weather in Oslo?"
WEATHER = "sun over Oslo"
ARGUMENTS = '{"city": "Oslo"}'
ANSWERS = ("It is ", "sunny.")


def calling(id: str) -> list[str]:
    """The events of an answer that calls the tool, after a word of text where the protocol lets it."""
    if id == RESPONSES:
        return responses(call={"call_id": "call_1", "name": "weather", "arguments": ARGUMENTS})
    if id == CHAT:
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
        return chat({"tool_calls": [call]}, finish="tool_calls")
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}
    return anthropic((use, [{"type": "input_json_delta", "partial_json": ARGUMENTS}]), stop="tool_use")


class Turn(FaultServer):
    """Asks for the weather, and answers once it has a result. ``breaks`` is what it does first at ``when`` instead."""

    def __init__(
        self,
        id: str,
        when: int | None = None,
        breaks: Answer | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.id = id
        self.times: list[float] = []
        self._when = when
        self._breaks = breaks
        self._heard = heard

    def reply(self, received: Received) -> Answer:
        self._heard()
        self.times.append(time.monotonic())
        if len(self.requests) == self._when and self._breaks is not None:
            return self._breaks
        has_result = any(kind in received.raw for kind in (b"function_call_output", b'"tool"', b"tool_result"))
        return Answer(answering(self.id, *ANSWERS) if has_result else calling(self.id))


# -- the child -------------------------------------------------------------------------------------------------------


def _tool(folder: Path, replay: Any) -> Any:
    @tool(replay=replay)
    async def weather(city: str) -> str:
        """Current weather."""
        with (folder / "effects").open("a") as file:
            file.write(f"{city}\n")
        if (folder / "hold").exists():
            await asyncio.Event().wait()
        return f"sun over {city}"

    return weather


async def _child(id: str, folder: Path, replay: str, later: float, deferred: bool) -> None:
    registry = Registry()
    registry.install(Extension("weather", tools=[_tool(folder, replay)]))
    settings = Settings(model=id, request=RequestOptions(deferred=deferred))
    async with Harness.open(
        folder / "chat.sqlite",
        models=DefaultModels(),
        registry=registry,
        settings=settings,
        clock=lambda: time.time() + later,
    ) as harness:
        root = await harness.root()
        settled = await (await root.submit(QUESTION, request_id="q")).wait()
        entries = await root.entries(order="ascending").list()
        print(
            json.dumps(
                {
                    "status": settled.status,
                    "text": entries[-1].text,
                    "kept": [
                        [message.text, len(message.tool_calls)]
                        for entry in entries
                        for message in entry.messages
                        if message.role == "assistant" and message.stop_reason == "aborted"
                    ],
                    "results": [entry.text for entry in entries if entry.kind == "pi.tool-result"],
                }
            )
        )


@asynccontextmanager
async def _running(id: str, folder: Path, *, replay: str, later: float, deferred: bool) -> AsyncIterator[Any]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        id,
        str(folder),
        replay,
        str(later),
        "deferred" if deferred else "",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


# -- the moments -----------------------------------------------------------------------------------------------------


@dataclass
class _Scene:
    """What a kill needs to know of the child that is about to die."""

    server: FaultServer
    folder: Path

    async def live(self) -> Any:
        async with observe(self.folder / "chat.sqlite") as observer:
            return (await observer.view(1)).live

    async def until(self, condition: Callable[[Any], bool]) -> None:
        """Wait for a condition of what the child has stored; it has asked already, so that there is a session."""

        async def holds() -> bool:
            return bool(condition(await self.live()))

        await eventually(holds, timeout=60)


def _streams(live: Any) -> bool:
    return live.generation is not None and live.generation.message is not None and live.generation.message.content


async def _half_way(scene: _Scene) -> None:
    await scene.server.stalled.wait()
    await scene.until(_streams)


async def _asked(scene: _Scene) -> None:
    await scene.server.stalled.wait()


async def _tool_runs(scene: _Scene) -> None:
    effects = scene.folder / "effects"
    await eventually(lambda: effects.exists() and effects.read_text() != "", timeout=60)


async def _pauses(scene: _Scene) -> None:
    await eventually(lambda: bool(scene.server.requests), timeout=60)
    await scene.until(lambda live: live.generation is not None and live.generation.retry is not None)


async def _awaits(scene: _Scene) -> None:
    await eventually(lambda: bool(scene.server.requests), timeout=60)
    await scene.until(lambda live: live.generation is not None and live.generation.deferred is not None)


@dataclass(frozen=True)
class Kill:
    """When the child is killed: ``moment`` waits for it, ``breaks`` is what the server does at request ``when``."""

    name: str
    moment: Callable[[_Scene], Awaitable[None]]
    when: int | None = None
    breaks: Callable[[str], Answer] | None = None
    replay: str = "safe"
    hold: bool = False
    deferred: bool = False
    ids: tuple[str, ...] = PROTOCOLS


def _silence(id: str) -> Answer:
    return Answer(end="stall")


def _half(id: str) -> Answer:
    return Answer(begun(id), end="stall")


def _half_a_call(id: str) -> Answer:
    return Answer(calling(id)[: 3 if id != CHAT else 1], end="stall")


def _limit(id: str) -> Answer:
    return error(429, {"error": {"message": "Slow down.", "type": "rate_limit_error"}}, retry_after="3")


KILLS = (
    Kill("while the provider is silent", _asked, 1, _silence),
    Kill("half way through a tool call", _half_way, 1, _half_a_call),
    Kill("while a tool runs that is safe to repeat", _tool_runs, hold=True),
    Kill("while a tool runs that is not", _tool_runs, replay="unsafe", hold=True),
    Kill("half way through the answer after the tool", _half_way, 2, _half),
    Kill("in the pause after a 429 with `retry-after: 3`", _pauses, 1, _limit),
    Kill("while a batch is awaited", _awaits, deferred=True, ids=(RESPONSES, CLAUDE)),
)


async def run_kill(kill: Kill, id: str, folder: Path) -> str:
    """Kill a child at the moment, run another on the same empty folder, and say what the second one did."""
    server: FaultServer
    if kill.deferred:
        server = BatchServer(call={"call_id": "call_1", "name": "weather", "arguments": ARGUMENTS})
    else:
        server = Turn(id, kill.when, kill.breaks(id) if kill.breaks is not None else None)
    if kill.hold:
        (folder / "hold").touch()
    async with asyncio.timeout(180), server:
        with environment(server):
            async with _running(id, folder, replay=kill.replay, later=0.0, deferred=kill.deferred) as child:
                await kill.moment(_Scene(server, folder))
                child.send_signal(signal.SIGKILL)
                await child.wait()
            assert child.returncode == -signal.SIGKILL
            (folder / "hold").unlink(missing_ok=True)
            before = len(server.requests)
            if isinstance(server, BatchServer):
                return await _morning(kill, id, folder, server)
            async with _running(id, folder, replay=kill.replay, later=0.0, deferred=False) as child:
                out, _ = await child.communicate()
            assert child.returncode == 0
            return _told(kill, folder, json.loads(out), server, before)


async def _morning(kill: Kill, id: str, folder: Path, server: BatchServer) -> str:
    """The next process comes eight hours later and collects a call; the one after it, the answer to its result."""
    server.outcome = "done"
    async with _running(id, folder, replay=kill.replay, later=8 * 3600.0, deferred=True) as child:
        await _Scene(server, folder).until(
            lambda live: (
                len(server.batches) == 2 and live.generation is not None and live.generation.deferred is not None
            )
        )
        child.send_signal(signal.SIGKILL)  # and again, while the second batch is awaited
        await child.wait()
    server.call = None
    async with _running(id, folder, replay=kill.replay, later=16 * 3600.0, deferred=True) as child:
        out, _ = await child.communicate()
    found = json.loads(out)
    assert (found["status"], found["text"], found["results"]) == ("done", "later", [WEATHER])
    assert len(server.batches) == 2
    return "collects the answer, also on the next day, and sends nothing again"


def _told(kill: Kill, folder: Path, found: dict[str, Any], server: Turn, before: int) -> str:
    assert (found["status"], found["text"]) == ("done", "".join(ANSWERS))
    said = []
    if found["kept"]:
        ((text, calls),) = found["kept"]
        assert (text, calls) == (("", 1) if kill.breaks is _half_a_call else ("Hel", 0))
        said.append("keeps the half answer, marked as aborted")
    bodies = [request.body for request in server.requests]
    assert len(bodies) in (2, 3)
    if len(bodies) == 3:
        again = bodies[before]
        assert again == bodies[before - 1], "the request that is sent again is another one"
        if kill.moment is _pauses:
            assert server.times[1] - server.times[0] > 2.5
            said.append("waits for the rest of the pause")
        said.append("sends the same request again")
    effects = (folder / "effects").read_text().splitlines()
    (result,) = found["results"]
    if kill.moment is _tool_runs:
        if len(effects) == 2:
            assert result == WEATHER
            said.append("runs the tool again")
        else:
            assert "interrupted" in result
            said.append("does not run it again, and tells the model that it was interrupted")
    else:
        assert (effects, result) == (["Oslo"], WEATHER)
    return ", ".join(said)


if __name__ == "__main__":
    _, id, folder, replay, later, deferred = sys.argv
    asyncio.run(_child(id, Path(folder), replay, float(later), bool(deferred)))
