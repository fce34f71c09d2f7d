"""Language models: the protocol, the scripted model, and the ones behind names (api.md, Models).

Importing this package is light: what needs pydantic-ai, an HTTP client or llama.cpp is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .catalog import Availability, DefaultModels, default_models
from .errors import is_overflow, is_retryable, redact, retry_after
from .local import LocalModel, on_progress
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

if TYPE_CHECKING:
    from .providers import ProviderModel

__all__ = [
    "Availability",
    "DefaultModels",
    "DeferredModel",
    "Finish",
    "Hang",
    "LocalModel",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "ModelSet",
    "ModelSource",
    "Models",
    "ProviderModel",
    "Reply",
    "RequestOptions",
    "ScriptedModel",
    "Step",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "default_models",
    "estimate_tokens",
    "is_overflow",
    "is_retryable",
    "on_progress",
    "redact",
    "retry_after",
]


def __getattr__(name: str) -> Any:
    if name == "ProviderModel":  # it imports pydantic-ai
        from .providers import ProviderModel

        return ProviderModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
