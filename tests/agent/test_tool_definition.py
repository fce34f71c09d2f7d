"""What a tool is made of: a function, options, and the schema of its arguments (engine.md, section 12)."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
import subprocess
import sys
from typing import Any

import pytest

from pidurable_nb import (
    Replace,
    Tool,
    ToolContext,
    ToolHooks,
    tool,
)
from pidurable_nb.errors import RegistryError

from .support import Chat, bounded, call, calls, codes, eventually, one_call


def test_a_function_gives_name_description_and_schema() -> None:
    @tool(replay="safe")
    async def weather(city: str, units: str = "c", *, ctx: ToolContext) -> str:
        """Current weather of a city."""
        return city

    declared = weather.declaration
    assert (declared.name, declared.description) == ("weather", "Current weather of a city.")
    assert declared.parameters == {
        "additionalProperties": False,
        "properties": {"city": {"type": "string"}, "units": {"type": "string", "default": "c"}},
        "required": ["city"],
        "type": "object",
    }
    assert weather.replay == "safe"


@pytest.mark.parametrize(
    "options",
    [{"replay": "maybe"}, {"execution": "sometimes"}, {"callers": "nobody"}, {"name": ""}, {"approval": "yes"}],
)
def test_options_that_make_no_sense_are_refused(options: Any) -> None:
    with pytest.raises(RegistryError):
        Tool(**({"name": "x", "execute": lambda: None} | options))


def test_signatures_that_no_json_object_can_fill_are_refused() -> None:
    with pytest.raises(RegistryError, match="by name"):

        @tool
        def stars(*args: int) -> None: ...


def test_help_shows_the_function_behind_a_tool_and_every_option_of_the_decorator() -> None:
    @tool(replay="safe")
    async def weather(city: str, units: str = "c") -> str:
        """Current weather of a city."""
        return f"{city} {units}"

    assert str(inspect.signature(weather)) == "(city: 'str', units: 'str' = 'c') -> 'str'"
    assert inspect.getdoc(weather) == "Current weather of a city."
    assert "async def weather(city" in inspect.getsource(inspect.unwrap(weather))
    shown = pydoc.plain(pydoc.render_doc(weather, renderer=pydoc.plaintext))
    assert "<Tool weather(city: 'str', units: 'str' = 'c') -> 'str'>" in shown
    assert "Current weather of a city." in shown
    assert inspect.signature(weather.replaced(replay="unsafe")) == inspect.signature(weather)
    by_hand = Tool("raw", "What it does.", execute=lambda arguments: "x")
    assert (repr(by_hand), inspect.getdoc(by_hand)) == ("<Tool raw(arguments)>", "What it does.")
    assert repr(Tool("built in", execute=print)).startswith("<Tool built in(")
    offered = set(inspect.signature(tool).parameters) - {"function"}
    options = {field.name for field in dataclasses.fields(Tool) if field.init and field.name not in ("parameters",)}
    assert offered == options - {"execute", "function"}


# -- schemas written by hand -----------------------------------------------------------------------------------------


PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "units": {"enum": ["c", "f"]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
        "at": {"anyOf": [{"type": "object", "required": ["lat"]}, {"type": "string"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["arguments: 'city' is a required property"]),
        ({"city": 3}, ["city: 3 is not of type 'string'"]),
        ({"city": "Bonn", "units": "k"}, ["units: 'k' is not one of ['c', 'f']"]),
        ({"city": "Bonn", "days": [1, 0, "x"]}, ["days.1: 0 is less than the minimum of 1", "days.2: 'x' is not of"]),
        ({"city": "Bonn", "at": {}}, ["at: 'lat' is a required property"]),
        ({"city": "Bonn", "speed": 1}, ["'speed' was unexpected"]),
        ({"city": "Bonn", "days": [0] * 9}, ["days.0: 0 is less than the minimum of 1", "and 4 more"]),
        ({"city": "x" * 100_000, "units": "y" * 100_000}, ["[…]"]),
    ],
)
@bounded
async def test_a_schema_written_by_hand_is_checked_and_the_model_hears_what_does_not_fit(
    arguments: dict[str, Any], words: list[str]
) -> None:
    """Section 12: validate, for ``Tool(parameters=<schema>)``."""
    chat = Chat()
    ran: list[Any] = []
    message, data = await one_call(chat, Tool("place", "", PLACE, execute=ran.append), arguments=arguments)
    assert (data["code"], message.is_error, ran) == ("invalid_arguments", True, [])
    assert message.text.startswith("Invalid arguments for place: ")
    assert [word for word in words if word not in message.text] == []
    assert len(message.text) < 2000
    assert chat.reports == []


@bounded
async def test_arguments_that_fit_a_schema_written_by_hand_are_handed_over_as_they_are() -> None:
    given = {"city": "Bonn", "units": "c", "days": [1, 2], "at": {"lat": 50.7}}
    message, data = await one_call(Chat(), Tool("place", "", PLACE, execute=lambda found: found), arguments=given)
    assert (json.loads(message.text), data.get("code")) == (given, None)


@bounded
async def test_replaced_and_approved_arguments_are_checked_against_a_schema_written_by_hand() -> None:
    chat = Chat()
    chat.install(hooks=[ToolHooks(before_tool=lambda info, ctx: Replace({"city": 1}))])
    message, data = await one_call(chat, Tool("place", "", PLACE, execute=str), arguments={"city": "Bonn"})
    assert (data["code"], "city: 1 is not of type" in message.text) == ("invalid_arguments", True)
    chat = Chat(calls(call("place", {"city": "Bonn"})), "done")
    chat.install(Tool("place", "", PLACE, execute=str, approval=True))
    async with chat.open() as (_, root):
        submission = await root.submit("go")

        async def asked() -> Any:
            return (await root.view()).live.approvals

        await eventually(asked)
        await root.decide("call-place", approve=True, arguments={"city": "x"})
        await submission.wait()
        assert await codes(root) == ["invalid_arguments"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "properties": {"x": {"type": "whole"}}}, "no JSON Schema: properties.x.type: 'whole'"),
        ({"type": "object", "$ref": "#/$defs/none"}, "'/$defs/none', which is not in the schema"),
        ({"type": "object", "$ref": "http://127.0.0.1:9/x.json"}, "which is not in the schema"),
    ],
)
@bounded
async def test_a_schema_that_is_none_or_refers_elsewhere_is_reported_and_nothing_is_fetched(
    schema: dict[str, Any], words: str
) -> None:
    chat = Chat()
    message, data = await one_call(chat, Tool("broken", "", schema, execute=str))
    assert data["code"] == "invalid_arguments"
    assert words in message.text
    assert [report.kind for report in chat.reports] == ["task_error"]


def test_what_checks_schemas_is_loaded_only_for_one_that_was_written_by_hand() -> None:
    code = """if True:
        import sys
        from pidurable_nb import Tool, tool
        @tool
        def made(x: int) -> int:
            return x
        made.validate({"x": 1})
        raw = Tool("raw", execute=str)
        assert raw.declaration and "jsonschema" not in sys.modules
        raw.validate({})
        assert "jsonschema" in sys.modules
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
