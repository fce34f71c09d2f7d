"""What users' tests and our own share (api.md, "Testing"). Each name is loaded on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import ManualClock, eventually
    from .conformance import storage_conformance
    from .faults import Faults, Hold
    from .killswitch import KillSwitch
    from .sweep import Stage, crash_sweep
    from .validation import check_stored, validate

__all__ = [
    "Faults",
    "Hold",
    "KillSwitch",
    "ManualClock",
    "Stage",
    "check_stored",
    "crash_sweep",
    "eventually",
    "storage_conformance",
    "validate",
]

_MODULES = {
    "Faults": ".faults",
    "Hold": ".faults",
    "KillSwitch": ".killswitch",
    "ManualClock": ".clock",
    "Stage": ".sweep",
    "check_stored": ".validation",
    "crash_sweep": ".sweep",
    "eventually": ".clock",
    "storage_conformance": ".conformance",
    "validate": ".validation",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "pytest" in sys.modules and name == "storage_conformance":
        # Its asserts then say what they compared, as those of a test module do.
        sys.modules["pytest"].register_assert_rewrite(f"{__name__}.conformance")
    value = getattr(import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value
