"""The Dashboard in a real browser: its tabs, its filters, and what one part sends to another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from pidurable_nb import patch
from pidurable_nb.notebook.dashboardview import DashboardView
from pidurable_nb.notebook.view import RecoveryView

from .talk_gallery import PAST, TALKS
from .task_gallery import GRAPHS, TIMELINES
from .widget_gallery import CARDS, CONTRASTS, HOSTILE, OVERFLOWS, browser_page, send, sent, show_live

pytestmark = pytest.mark.browser

RECOVERY = CARDS["recovery"]
assert isinstance(RECOVERY, RecoveryView)
GRAPH = next(iter(GRAPHS.values()))
TIMELINE = next(iter(TIMELINES.values()))
BOARD = DashboardView(talk=TALKS["streaming"], graph=GRAPH, timeline=TIMELINE, recovery=RECOVERY)


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Page]:
    with browser_page(browser, width=1000, calm=True) as page:
        yield page


@pytest.fixture
def page(shared: Page) -> Iterator[Page]:
    show_live(shared, "a", BOARD)
    yield shared
    shared.evaluate("document.body.replaceChildren()")


def test_the_parts_are_in_tabs_that_keys_choose(page: Page) -> None:
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_text(["Conversation", "Tasks", "Timeline", "Opening"])
    tabs.nth(0).focus()
    for index, name in ((1, "Task graph"), (2, "Timeline"), (3, "What was found at the opening"), (0, "Conversation")):
        page.keyboard.press("ArrowRight")
        expect(tabs.nth(index)).to_be_focused()
        expect(tabs.nth(index)).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("region", name=name, exact=True)).to_be_visible()
        expect(page.get_by_role("tabpanel")).to_have_count(1)


def test_the_opening_says_what_was_found(page: Page) -> None:
    page.get_by_role("tab", name="Opening").click()
    panel = page.get_by_role("tabpanel")
    expect(panel.locator(".pd-badge")).to_have_text("paused")
    expect(panel.get_by_role("row")).to_have_count(len(RECOVERY.rows) + 1)
    expect(page.get_by_role("group", name="Filters")).to_be_hidden()


def test_filters_hold_for_all_parts(page: Page) -> None:
    blocks = page.locator("#a .pd-block:visible")
    expect(blocks).to_have_count(len(PAST) + 1)
    page.get_by_label("Filter by status").select_option("ended well")
    page.get_by_label("Filter by status").select_option("badly")
    expect(blocks).to_have_count(1)
    expect(blocks).to_contain_text("I will look for hotels")
    page.get_by_label("Filter by status").select_option("")
    page.get_by_label("Filter by kind").select_option("tasks")
    expect(blocks).to_have_count(1)
    expect(blocks).to_contain_text("weather")
    page.get_by_role("tab", name="Timeline").click()
    page.get_by_label("Filter by kind").select_option("said")
    rows = page.locator("#a .pd-timeline .pd-branch")
    few = rows.count()
    page.get_by_label("Filter by kind").select_option("")
    assert rows.count() > few > 0


def test_a_change_reaches_the_part_that_it_is_for(page: Page) -> None:
    page.get_by_role("tab", name="Tasks").click()
    page.get_by_role("tab", name="Conversation").click()
    after = BOARD.replaced(talk=TALKS["idle"], graph=GRAPH.replaced(held="paused: `%durable resume` starts it"))
    send(page, "a", {"seq": 1, "ops": patch.diff(BOARD.wire(), after.wire())})
    expect(page.locator("#a .pd-talk .pd-badge").first).to_have_text("ready")
    page.get_by_role("tab", name="Tasks").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("%durable resume")


def test_an_entry_leads_to_its_task(page: Page) -> None:
    task = GRAPH.rows[0].id
    talk = TALKS["idle"]
    last = talk.blocks[-1].replaced(task=task)
    after = BOARD.replaced(talk=talk.replaced(blocks=(*talk.blocks[:-1], last)))
    send(page, "a", {"seq": 1, "ops": patch.diff(BOARD.wire(), after.wire())})
    block = page.locator("#a .pd-block").last
    block.hover()
    block.get_by_role("button", name=f"Show task {task}").click()
    expect(page.get_by_role("tab", name="Tasks")).to_be_focused()
    assert [m["task"] for m in sent(page, "a") if m.get("do") == "select"] == [task]
    # What the graph no longer holds is told under its entry.
    page.get_by_role("tab", name="Conversation").click()
    other = page.locator("#a .pd-block", has_text="#33 ")
    other.hover()
    other.get_by_role("button", name="Show task 133").click()
    assert [m["task"] for m in sent(page, "a") if m.get("do") == "task"] == [133]


@pytest.mark.parametrize(("dark", "width"), [(False, 1100), (False, 500), (True, 1100), (True, 500)])
def test_nothing_overflows_and_every_text_is_readable(browser: Browser, dark: bool, width: int) -> None:
    with browser_page(browser, dark=dark, width=width, calm=True) as page:
        show_live(page, "a", BOARD)
        for name in ("Conversation", "Tasks", "Timeline", "Opening"):
            page.get_by_role("tab", name=name).click()
            assert page.evaluate(OVERFLOWS) == []
            assert [found for found in page.evaluate(CONTRASTS) if found[0] < 4.5] == []


def test_nothing_that_was_found_becomes_an_element(page: Page) -> None:
    recovery = CARDS["hostile_recovery"]
    show_live(page, "h", BOARD.replaced(recovery=recovery))
    page.locator("#h").get_by_role("tab", name="Opening").click()
    assert HOSTILE[:10] in page.locator("#h .pd-found").inner_text()
    assert page.evaluate("window.hacked ?? null") is None
    assert page.locator("#h :is(script, img, iframe, style, [onerror], [onload])").count() == 0
