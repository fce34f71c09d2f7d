"""The ``lab`` fixture: one JupyterLab and one Chromium for all browser tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .lab import Lab, find_chromium
from .widget_gallery import launched


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running ``Lab``. Without a Chromium the test is skipped on a person's machine and fails in CI."""
    chromium = find_chromium()
    if chromium is None:
        reason = "no chromium: install it (apt-get install chromium) or name it in PIDURABLE_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with Lab(tmp_path_factory.mktemp("lab"), chromium=chromium) as running:
        yield running


@pytest.fixture(scope="package")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """One Chromium: that of the ``lab`` fixture where the run has one, since Playwright starts once in a thread.

    Without any the test is skipped on a person's machine and fails in CI.
    """
    if any("lab" in getattr(item, "fixturenames", ()) for item in request.session.items):
        shared = request.getfixturevalue("lab")._browser
        assert shared is not None
        yield shared
        return
    chromium = find_chromium()
    if chromium is None:
        reason = "no chromium: install it (apt-get install chromium) or name it in PIDURABLE_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with launched(chromium) as browser:
        yield browser
