"""A turn with a tool over each vendor's protocol, as scenarios of the crash sweep: client and server in one process."""

from __future__ import annotations

from typing import Any

# What a request imports, so that the processes that fork from the runner of the sweep have it already.
import anthropic  # noqa: F401
import openai  # noqa: F401
import pydantic_ai.models.anthropic
import pydantic_ai.models.openai  # noqa: F401
from model_failures import CLAUDE, RESPONSES, environment
from model_kills import QUESTION, Turn

from pidurable_nb import Extension, Harness, Registry, tool
from pidurable_nb.models import DefaultModels
from pidurable_nb.testing import Stage


async def _turn(stage: Stage, id: str) -> Any:
    @tool(replay="safe")
    async def weather(city: str) -> str:
        """Current weather."""
        stage.note("effect")
        return f"sun over {city}"

    registry = Registry()
    registry.install(Extension("weather", tools=[weather]))
    async with Turn(id, heard=lambda: stage.note("request")) as server:
        with environment(server):
            async with await Harness.open(stage.storage, models=DefaultModels(), registry=registry) as harness:
                root = await harness.root()
                await root.configure(model=id)
                settled = await (await root.submit(QUESTION, request_id="q")).wait()
                answer = await root.entry(settled.answer) if settled.answer is not None else None
                return [settled.status, answer.text if answer is not None else None]


async def responses_turn(stage: Stage) -> Any:
    return await _turn(stage, RESPONSES)


async def anthropic_turn(stage: Stage) -> Any:
    return await _turn(stage, CLAUDE)
