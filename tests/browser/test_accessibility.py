"""Every widget and every static form, checked with axe-core (https://github.com/dequelabs/axe-core), in both themes."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from pidurable_nb.notebook.render import to_html
from pidurable_nb.notebook.view import StatusRow, StatusView

from .talk_gallery import TALKS
from .task_gallery import GRAPHS, TIMELINES
from .test_board_gallery import BOARD
from .widget_gallery import ANSWERS, CARDS, browser_page, show_live, show_static

pytestmark = pytest.mark.browser

NOTIFY = {"notify": StatusView(title="notifications are on", rows=(StatusRow("when", "a run ends"),))}
WIDGETS: dict[str, dict[str, Any]] = {
    "answers": ANSWERS,
    "talks": TALKS,
    "graphs": GRAPHS,
    "timelines": TIMELINES,
    "notify": NOTIFY,
}

# What holds for a whole page says nothing of a widget in it: a gallery has no landmarks and shows a widget many times.
RULES = {
    name: {"enabled": False} for name in ("region", "page-has-heading-one", "landmark-one-main", "landmark-unique")
}


def violations(page: Page) -> list[str]:
    """What axe finds, a line for each element."""
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    found = Axe().run(page, options={"rules": RULES}).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]} {_why(node)}" for rule in found for node in rule["nodes"]]


def _why(node: dict[str, Any]) -> str:
    return " ".join(check["message"] for check in (*node["any"], *node["all"], *node["none"]))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", WIDGETS)
def test_live_widgets(browser: Browser, kind: str, dark: bool) -> None:
    with browser_page(browser, dark=dark, width=1000, calm=True) as page:
        for name, view in WIDGETS[kind].items():
            show_live(page, name, view)
        page.add_style_tag(content=".pd-acts, .pd-copy { opacity: 1 !important }")  # as under the pointer
        assert violations(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_dashboard(browser: Browser, dark: bool) -> None:
    with browser_page(browser, dark=dark, width=1000, calm=True) as page:
        show_live(page, "board", BOARD)
        page.add_style_tag(content=".pd-acts, .pd-copy { opacity: 1 !important }")
        for name in ("Conversation", "Tasks", "Timeline", "Opening"):
            page.get_by_role("tab", name=name).click()
            assert violations(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_static_forms(browser: Browser, dark: bool) -> None:
    with browser_page(browser, dark=dark, width=1000, calm=True) as page:
        for kind, views in {**WIDGETS, "cards": CARDS}.items():
            for name, view in views.items():
                show_static(page, f"{kind}-{name}", to_html(view))
        assert violations(page) == []
