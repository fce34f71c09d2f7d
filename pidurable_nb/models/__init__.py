"""Language models: the protocol, the scripted model, and the ones behind names (api.md, Models).

Importing this package is light: what needs pydantic-ai, an HTTP client or llama.cpp is imported when it is used.
"""

from __future__ import annotations

from .protocol import (
    DeferredModel,
    Finish,
    Model,
    ModelEvent,
    ModelRequest,
    Models,
    ModelSet,
    ModelSource,
    RequestOptions,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)
from .scripted import Hang, Reply, ScriptedModel, Step, estimate_tokens

__all__ = [
    "DeferredModel",
    "Finish",
    "Hang",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "ModelSet",
    "ModelSource",
    "Models",
    "Reply",
    "RequestOptions",
    "ScriptedModel",
    "Step",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "estimate_tokens",
]
