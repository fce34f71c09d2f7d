"""What users' tests and our own share (api.md, "Testing"). Each name is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import ManualClock, eventually
    from .conformance import storage_conformance
    from .killswitch import KillSwitch

__all__ = ["KillSwitch", "ManualClock", "eventually", "storage_conformance"]

_MODULES = {
    "KillSwitch": ".killswitch",
    "ManualClock": ".clock",
    "eventually": ".clock",
    "storage_conformance": ".conformance",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value
