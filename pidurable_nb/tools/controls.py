"""The tool ``handoff``: a model ends its context and leaves a note to what comes (engine.md, section 12)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..agent.tool import Tool, ToolControl, ToolResult, tool


def handoff(*, name: str = "handoff") -> Tool:
    """A tool with which a model starts its context anew from a note of its own. Replay is safe.

    The run ends as answered with the call. The next input is placed behind the note; what was said before stays stored
    and is no longer read.
    """

    @tool(name=name, replay="safe")
    async def handoff(
        note: Annotated[str, Field(min_length=1, description="All that the next context needs to go on")],
    ) -> ToolResult:
        """Start over with an empty context that holds only this note. Use it when a piece of work is done and what was
        said so far is no longer needed."""
        return ToolResult("The context starts anew with your note.", control=ToolControl(handoff=note))

    return handoff


__all__ = ["handoff"]
