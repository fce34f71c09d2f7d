"""What all tests share: the processes that they start are this checkout, and nobody watches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="session")
def environment() -> Iterator[None]:
    """Processes and kernels started by a test import this checkout; no kernel takes the test for a live front end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.setenv("PIDURABLE_NB_LIVE", "0")
        yield
