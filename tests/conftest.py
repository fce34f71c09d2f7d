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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the notebook come last, and may leave loops behind.

    A blocking call under a running loop applies nest_asyncio2 to all of the process: ``asyncio.run`` is another one for
    whatever follows, and loops with their sockets are left to the collector, which speaks up in the next test. What the
    package itself leaves behind is tested in processes of its own, by what they print.
    """
    notebook = ROOT / "tests" / "notebook"
    for item in items:
        if notebook in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
    items.sort(key=lambda item: notebook in item.path.parents)
