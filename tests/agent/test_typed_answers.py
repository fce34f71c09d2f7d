"""Typed answers: ``conversation.ask(…, output=T)`` (api.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from pidurable_nb import Conversation, Extension, Harness, LiveState, Registry, tool
from pidurable_nb.errors import Unanswered
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel


class City(BaseModel):
    name: str
    people: int


def final(**arguments: Any) -> Reply:
    return Reply(tool_calls=[ToolCall(id="final", name="final_answer", arguments=arguments)])


def ask(output: Any, *steps: Any, registry: Registry | None = None) -> tuple[Any, ScriptedModel, list[str]]:
    async def main() -> tuple[Any, ScriptedModel, list[str]]:
        model = ScriptedModel(list(steps))
        async with Harness.open(":memory:", models=model, registry=registry) as harness:
            root: Conversation = await harness.root()
            value = await root.ask("Which city?", output=output)
            kinds = [entry.kind async for entry in root.entries(order="ascending")]
            await root.wait_for_idle()
            return value, model, kinds

    return asyncio.run(main())


def test_the_call_of_the_final_tool_is_the_answer() -> None:
    value, model, kinds = ask(City, final(name="Paris", people=2_100_000))
    assert value == City(name="Paris", people=2_100_000)
    offered = {declared.name: declared for declared in model.requests[0].tools}
    assert set(offered["final_answer"].parameters["properties"]) == {"name", "people"}
    assert kinds == ["pi.user", "pi.system", "pi.assistant", "pi.tool-result"]


def test_a_type_that_is_no_object_stands_in_a_field() -> None:
    assert ask(list[int], final(value=[1, 2]))[0] == [1, 2]


def test_json_in_text_is_taken_where_the_model_did_not_call() -> None:
    assert ask(City, '```json\n{"name": "Rome", "people": 3}\n```')[0] == City(name="Rome", people=3)


def test_what_does_not_fit_is_told_and_asked_again() -> None:
    value, model, _ = ask(City, final(name="Paris", people="many"), final(name="Paris", people=2))
    assert value == City(name="Paris", people=2)
    assert "people" in model.requests[1].messages[-1].text


def test_an_answer_that_never_fits_is_unanswered() -> None:
    with pytest.raises(Unanswered, match="does not fit its type after 3 attempts"):
        ask(City, *[final(name="Paris")] * 3)


def test_a_retry_asks_for_the_typed_answer_again() -> None:
    async def main() -> None:
        model = ScriptedModel([Reply(error="400 no"), final(name="Paris", people=2)])
        async with Harness.open(":memory:", models=model) as harness:
            root = await harness.root()
            with pytest.raises(Unanswered, match="400 no"):
                await root.ask("Which city?", output=City)
            assert (await (await root.retry()).wait()).status == "done"
            assert [declared.name for declared in model.requests[1].tools] == ["final_answer"]
            assert [message.text for message in model.requests[1].messages if message.role == "user"] == ["Which city?"]
            assert [e.kind async for e in root.entries()][:2] == ["pi.tool-result", "pi.assistant"]
            assert (await root.view()).live == LiveState()

    asyncio.run(main())


def test_other_tools_run_before_the_final_one() -> None:
    @tool
    async def population(city: str) -> int:
        return 42

    registry = Registry()
    registry.install(Extension("facts", tools=[population]))
    both = Reply(
        tool_calls=[
            ToolCall(id="a", name="population", arguments={"city": "Paris"}),
            ToolCall(id="b", name="final_answer", arguments={"name": "Paris", "people": 0}),
        ]
    )
    value, model, _ = ask(City, both, final(name="Paris", people=42), registry=registry)
    assert value.people == 42
    results = [message.text for message in model.requests[1].messages if message.role == "tool_result"]
    assert results == ["42", "Call final_answer alone, when everything else is done."]


def test_the_tool_is_withdrawn_for_the_next_run_and_the_request_id_finds_the_stored_answer() -> None:
    async def main() -> None:
        model = ScriptedModel([final(name="Paris", people=1), "plain"])
        async with Harness.open(":memory:", models=model) as harness:
            root = await harness.root()
            first = await root.ask("Which city?", output=City, request_id="city")
            again = await root.ask("Which city?", output=City, request_id="city")
            assert first == again
            assert (await root.ask("And now?")).text == "plain"
            assert len(model.requests) == 2
            assert "final_answer" not in [declared.name for declared in model.requests[1].tools]

    asyncio.run(main())
