"""Typed answers: a run that ends with a value of a given type (api.md, ``Conversation.ask(output=…)``).

The run offers the model one more tool, ``final_answer``, whose parameters are the type's JSON Schema. Calling it ends
the run: the call is the answer. All of that is stored, so it survives a crash; the type itself is not, and the value is
validated where it is asked for. What does not fit is told to the model, which is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..errors import Unanswered
from ..messages import AssistantMessage, ContentBlock, ToolDeclaration
from ..records import Entry, SubmissionRecord
from ..values import check_json
from .state import OutputSpec
from .tool import explain

if TYPE_CHECKING:
    from .conversation import Conversation

T = TypeVar("T")

OUTPUT_TOOL = "final_answer"
"""The tool whose call ends a run with a typed answer."""

ATTEMPTS = 3
"""How often a model is asked before an answer that does not fit is given up."""


def declaration(spec: OutputSpec) -> ToolDeclaration:
    """The tool that a run offers for a typed answer."""
    about = "Give the final answer. Call it alone and exactly once, when everything else is done."
    return ToolDeclaration(name=OUTPUT_TOOL, description=about, parameters=spec.parameters)


def output_spec(type: Any) -> OutputSpec:
    """The form of a type's values: an object as it is, any other in an object's field ``value``."""
    schema = TypeAdapter(type).json_schema()
    if schema.get("type") == "object" and "properties" in schema:
        return OutputSpec(parameters=check_json(schema, "the schema of an answer"))
    definitions = schema.pop("$defs", None)
    wrapped: dict[str, Any] = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    if definitions is not None:
        wrapped["$defs"] = definitions
    return OutputSpec(parameters=check_json(wrapped, "the schema of an answer"), wrapped=True)


async def ask_typed(
    conversation: Conversation, content: str | Sequence[ContentBlock], output: type[T], options: dict[str, Any]
) -> T:
    """Ask until an answer fits the type. Raises ``Unanswered`` when there is none, or none that fits."""
    spec = output_spec(output)
    adapter: TypeAdapter[T] = TypeAdapter(output)
    request_id = options.pop("request_id", None)
    for attempt in range(1, ATTEMPTS + 1):
        id = None if request_id is None else request_id if attempt == 1 else f"{request_id}#{attempt}"
        submission = await conversation._submit(content, request_id=id, output=spec, **options)
        settled, entry = await conversation._answer_of(submission)
        try:
            return adapter.validate_python(_value(entry, spec), strict=False)
        except ValueError as error:  # pydantic's error is one
            why = explain(error) if isinstance(error, ValidationError) else str(error)
            if attempt == ATTEMPTS:
                raise _misfit(settled, why) from error
            content = f"That answer does not fit: {why}. Call {OUTPUT_TOOL} with a corrected one."
    raise AssertionError("the loop ends by returning or raising")


def _value(entry: Entry, spec: OutputSpec) -> Any:
    """The value in an answer: the call's arguments, or JSON in its text where the model did not call."""
    message = entry.messages[0]
    assert isinstance(message, AssistantMessage)
    call = next((call for call in message.tool_calls if call.name == OUTPUT_TOOL), None)
    if call is not None:
        value: Any = call.arguments
    else:
        text = message.text.strip()
        if text.startswith("```"):
            text = text.strip("`").removeprefix("json")
        try:
            value = json.loads(text)
        except ValueError:
            raise ValueError(f"the answer was text; call the tool {OUTPUT_TOOL} instead") from None
    if spec.wrapped and isinstance(value, dict) and set(value) == {"value"}:
        return value["value"]
    return value


def _misfit(settled: SubmissionRecord, why: str) -> Unanswered:
    return Unanswered(
        f"submission {settled.id} got an answer that does not fit its type after {ATTEMPTS} attempts: {why}",
        submission=settled,
    )
