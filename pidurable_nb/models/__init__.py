"""Language models: the protocol, the scripted model, and the ones behind names (api.md, Models).

Importing this package is light: each name is loaded when it is first used, and what needs pydantic-ai, an HTTP client
or llama.cpp is imported when it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalog import (
        Availability as Availability,
        DefaultModels as DefaultModels,
        default_models as default_models,
    )
    from .errors import (
        ErrorKind as ErrorKind,
        error_kind as error_kind,
        is_overflow as is_overflow,
        is_retryable as is_retryable,
        redact as redact,
        retry_after as retry_after,
    )
    from .local import (
        LocalModel as LocalModel,
        on_progress as on_progress,
    )
    from .protocol import (
        CountingModel as CountingModel,
        DeferredModel as DeferredModel,
        Finish as Finish,
        Model as Model,
        ModelEvent as ModelEvent,
        ModelRequest as ModelRequest,
        Models as Models,
        ModelSet as ModelSet,
        ModelSource as ModelSource,
        RequestOptions as RequestOptions,
        TextDelta as TextDelta,
        ThinkingDelta as ThinkingDelta,
        ToolCallDelta as ToolCallDelta,
    )
    from .providers import (
        ProviderModel as ProviderModel,
    )
    from .recording import (
        RecordingModel as RecordingModel,
        ReplayModel as ReplayModel,
    )
    from .scripted import (
        Hang as Hang,
        Reply as Reply,
        ScriptedModel as ScriptedModel,
        Step as Step,
        estimate_tokens as estimate_tokens,
    )

_HOME = {
    "Availability": "catalog",
    "CountingModel": "protocol",
    "DefaultModels": "catalog",
    "DeferredModel": "protocol",
    "ErrorKind": "errors",
    "Finish": "protocol",
    "Hang": "scripted",
    "LocalModel": "local",
    "Model": "protocol",
    "ModelEvent": "protocol",
    "ModelRequest": "protocol",
    "ModelSet": "protocol",
    "ModelSource": "protocol",
    "Models": "protocol",
    "ProviderModel": "providers",
    "RecordingModel": "recording",
    "ReplayModel": "recording",
    "Reply": "scripted",
    "RequestOptions": "protocol",
    "ScriptedModel": "scripted",
    "Step": "scripted",
    "TextDelta": "protocol",
    "ThinkingDelta": "protocol",
    "ToolCallDelta": "protocol",
    "default_models": "catalog",
    "error_kind": "errors",
    "estimate_tokens": "scripted",
    "is_overflow": "errors",
    "is_retryable": "errors",
    "on_progress": "local",
    "redact": "errors",
    "retry_after": "errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
