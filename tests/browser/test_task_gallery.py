"""The Task graph and the Timeline in a real browser: looks, keys, folding, focus, and what they send."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from pidurable_nb import patch
from pidurable_nb.notebook.graphview import GraphRow, GraphView
from pidurable_nb.notebook.render import to_html
from pidurable_nb.notebook.timelineview import TimelineView
from pidurable_nb.notebook.widgets import css

from .task_gallery import GRAPHS, NOW, START, TIMELINES, TURN, crashed, many
from .test_gallery import LOOKS, height, page as page, shared as shared
from .widget_gallery import ANSWERS, CONTRASTS, HOSTILE, OVERFLOWS, browser_page, send, sent, show_live, show_static

pytestmark = pytest.mark.browser

SAMPLES: dict[str, GraphView | TimelineView] = {**GRAPHS, **TIMELINES}


def change(page: Page, name: str, old: Any, new: Any, seq: int = 1) -> None:
    """Deliver the difference between two views as the kernel does."""
    send(page, name, {"seq": seq, "ops": patch.diff(old.wire(), new.wire())})


def rows(page: Page, name: str) -> list[str]:
    """The visible lines, each as its text."""
    found: list[str] = page.locator(f"#{name} .pd-branch").evaluate_all(
        "(nodes) => nodes.map((node) => node.innerText.replace(/\\s+/g, ' ').trim())"
    )
    return found


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement?.dataset?.key ?? document.activeElement?.className"))


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def state_of(view: GraphView, id: int, **changes: Any) -> GraphView:
    """The view with one row changed."""
    changed = tuple(row.replaced(**changes) if row.id == id else row for row in view.rows)
    return view.replaced(rows=changed)


# -- looks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dark", "width"), LOOKS, ids=lambda value: str(value))
def test_nothing_overflows_and_every_text_is_readable(browser: Browser, dark: bool, width: int) -> None:
    with browser_page(browser, dark=dark, width=width, calm=True) as page:
        for name, view in SAMPLES.items():
            show_live(page, f"live-{name}", view)
            show_static(page, f"static-{name}", to_html(view))
        page.locator("#live-graph .pd-branch").nth(5).click()
        page.locator("#live-timeline .pd-branch").nth(2).click()
        assert page.evaluate(OVERFLOWS) == []
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 200
        assert [found for found in contrasts if found[0] < 4.5] == []


def test_looks_right_where_there_is_no_theme(browser: Browser) -> None:
    with browser_page(browser, bare=True, width=420, calm=True) as page:
        for name, view in SAMPLES.items():
            show_live(page, name, view)
            show_static(page, f"static-{name}", to_html(view))
        assert page.evaluate(OVERFLOWS) == []
        assert [found for found in page.evaluate(CONTRASTS) if found[0] < 4.5] == []


def test_the_style_sheet_that_widgets_share_may_come_again_last(browser: Browser) -> None:
    """JupyterLab loads the sheets of each kind of widget when the first of its kind is shown."""
    looks = """() => [...document.querySelectorAll(".pd, .pd *")].map((node) => {
      const { fontSize, maxWidth, color, padding, display, overflow } = getComputedStyle(node);
      return [node.getAttribute("class"), fontSize, maxWidth, color, padding, display, overflow].join();
    })"""
    with browser_page(browser, calm=True) as page:
        for name, view in {**ANSWERS, **SAMPLES}.items():
            show_live(page, name, view)
        before = page.evaluate(looks)
        page.add_style_tag(content=css("base.css"))
        assert page.evaluate(looks) == before


def test_nothing_moves_for_who_asked_for_less_motion(browser: Browser) -> None:
    moving = "() => document.getAnimations().length"
    with browser_page(browser) as page:
        show_live(page, "a", TURN)
        assert page.evaluate(moving) > 0
    with browser_page(browser, calm=True) as page:
        show_live(page, "a", TURN)
        show_live(page, "b", crashed())
        assert page.evaluate(moving) == 0


def test_hostile_texts_stay_texts(page: Page) -> None:
    show_live(page, "g", GRAPHS["graph-hostile"])
    show_static(page, "s", to_html(GRAPHS["graph-hostile"]))
    page.locator("#g .pd-branch").first.click()
    (asked,) = [message for message in sent(page, "g") if message.get("do") == "select"]
    send(page, "g", {"heard": asked["press"], "done": {"task": 1, "input": HOSTILE, "story": HOSTILE}})
    page.wait_for_function("document.querySelector('#g .pd-about pre').innerText.includes('script')")
    timeline = crashed()
    bad = tuple(row.replaced(title=HOSTILE, state=HOSTILE) for row in timeline.rows)
    show_live(page, "t", timeline.replaced(rows=bad))
    assert page.evaluate("window.hacked") is None


# -- the graph -------------------------------------------------------------------------------------------------------


def test_the_tree_has_roles_levels_and_names(page: Page) -> None:
    show_live(page, "g", TURN)
    tree = page.get_by_role("tree", name="Tasks")
    assert tree.count() == 1
    items = page.get_by_role("treeitem")
    seen = items.evaluate_all(
        """(all) => all.map((node) =>
          ["level", "setsize", "posinset", "expanded"].map((name) => node.getAttribute(`aria-${name}`)))"""
    )
    assert seen[:3] == [["1", "5", "1", "false"], ["1", "5", "2", "true"], ["2", "3", "1", None]]
    blocked = page.get_by_role("treeitem", name="task 32, shop.payment(amount=12.5), blocked, capture, its code is not")
    assert blocked.count() == 1
    assert page.get_by_role("region", name="Selected task").count() == 1


def test_it_is_moved_through_and_used_with_the_keyboard_alone(page: Page) -> None:
    show_live(page, "g", TURN)
    press(page, "Tab")
    assert focused(page) == "9"
    press(page, "ArrowRight", "ArrowDown")
    assert focused(page) == "12"  # it was folded, since it had ended
    press(page, "ArrowLeft", "ArrowLeft")
    assert focused(page) == "9"
    assert "12 weather" not in " ".join(rows(page, "g"))
    press(page, "End", "ArrowUp", "Enter")
    assert focused(page) == "34"
    assert page.locator("#g .pd-pick-name").inner_text() == "34 shop.payment(amount=3)"
    press(page, "Home", "PageDown")
    assert focused(page) == "35"
    page.locator("#g [data-key='24']").focus()
    press(page, "Enter", "Tab", "Tab", "Enter")
    (asked,) = [message for message in sent(page, "g") if message.get("do") == "abort"]
    assert asked["task"] == 24
    abort = page.get_by_role("button", name="Abort task 24")
    assert abort.get_attribute("aria-disabled") == "true"
    send(page, "g", {"heard": asked["press"], "done": "marked"})
    page.wait_for_function("document.querySelector('#g .pd-pick').innerText.includes('it is being aborted')")


def test_keys_of_the_tree_stay_in_the_tree(page: Page) -> None:
    show_live(page, "g", TURN)
    page.evaluate("window.leaked = []; document.addEventListener('keydown', (e) => window.leaked.push(e.key))")
    press(page, "Tab", "ArrowDown", "ArrowUp", "Enter", "End", "Control+s")
    assert page.evaluate("window.leaked") == ["Tab", "Control", "s"]


def test_the_focus_stays_on_its_task_while_others_come_and_go(page: Page) -> None:
    show_live(page, "g", TURN)
    page.locator("#g [data-key='26']").focus()
    new = GraphRow(23, "pi.tool", "first()", "running", phase="call", owner=21, started_at=START)
    more = TURN.replaced(rows=(*TURN.rows[:3], new, *TURN.rows[3:]))
    change(page, "g", TURN, more)
    assert focused(page) == "26"
    assert any("first()" in row for row in rows(page, "g"))
    fewer = more.replaced(rows=tuple(row for row in more.rows if row.id not in (24, 25)))
    change(page, "g", more, fewer, 2)
    assert focused(page) == "26"
    gone = fewer.replaced(rows=tuple(row for row in fewer.rows if row.id != 26))
    change(page, "g", fewer, gone, 3)
    assert focused(page) == "31"  # the next one in its place


def test_a_task_that_ends_keeps_its_place_and_nothing_below_jumps(page: Page) -> None:
    show_live(page, "g", TURN)
    before, tall = rows(page, "g"), height(page, "g")
    ended = state_of(TURN, 24, state="completed", phase=None, attempt=1, ended_at=NOW)
    change(page, "g", TURN, ended)
    after = rows(page, "g")
    assert [line.split()[0] for line in after] == [line.split()[0] for line in before]
    assert "completed · 10 s" in after[2]
    assert height(page, "g") == tall
    change(page, "g", ended, GraphView(rows=ended.rows[:2]), 2)
    assert height(page, "g") == tall


def test_times_go_on_between_messages(browser: Browser) -> None:
    with browser_page(browser) as page:
        show_live(page, "g", TURN)
        first = page.locator("#g [data-key='34']").inner_text()
        page.wait_for_function("(old) => document.querySelector('#g [data-key=\"34\"]').innerText !== old", arg=first)
        assert "wakes in 1 h 01 min" in page.locator("#g [data-key='31']").inner_text()
        change(page, "g", TURN, state_of(TURN, 26, until=START + 7200))  # a wait with a limit
        assert "waits for a person · for at most 1 h 59 min more" in page.locator("#g [data-key='26']").inner_text()


def test_waits_across_the_tree_are_arcs_and_those_of_the_selected_task_stand_out(page: Page) -> None:
    show_live(page, "g", TURN)
    assert page.locator("#g .pd-edges path").count() == 2
    assert page.locator("#g .pd-edges .pd-strong").count() == 0
    page.locator("#g [data-key='26']").click()
    assert page.locator("#g .pd-edges .pd-strong").count() == 1


def test_a_selected_task_is_asked_for_and_asked_for_again_when_it_moves(page: Page) -> None:
    show_live(page, "g", TURN)
    page.locator("#g [data-key='34']").click()
    pick = page.locator("#g .pd-pick")
    asked = [message for message in sent(page, "g") if message.get("do") == "select"]
    assert [message["task"] for message in asked] == [34]
    send(page, "g", {"heard": asked[0]["press"], "done": {"task": 34, "input": '{"amount": 3}', "story": "began"}})
    page.wait_for_function("document.querySelector('#g .pd-pick').innerText.includes('began')")
    assert "%durable task 34" in pick.inner_text()
    moved = state_of(TURN, 34, phase="capture")
    change(page, "g", TURN, moved)
    page.wait_for_function("window.models.g.sent.filter((m) => m.do === 'select').length === 2")
    assert "began" in pick.inner_text()  # what is known stays until more comes


def test_who_only_observes_has_no_abort(page: Page) -> None:
    show_live(page, "g", TURN.replaced(can_abort=False))
    page.locator("#g [data-key='34']").click()
    assert page.get_by_role("button", name="Abort").count() == 0


def test_a_thousand_tasks_are_one_line_that_opens(page: Page) -> None:
    view = many()
    show_live(page, "g", view)
    assert len(rows(page, "g")) == 9
    assert "1,000 tasks" in rows(page, "g")[1]
    assert all("blocked" in line or "failed" in line for line in rows(page, "g")[2:])
    page.locator("#g [data-key='fold 1']").click()
    assert len(rows(page, "g")) == 203
    page.locator("#g [data-key='more 1']").click()
    assert len(rows(page, "g")) == 403
    page.locator("#g [data-key='fold 1'] .pd-twist").click()
    assert len(rows(page, "g")) == 9


def test_a_thousand_tasks_stay_fluid(page: Page) -> None:
    """What an update costs the page, with two hundred of the tasks unfolded."""
    views = [many()]
    show_live(page, "g", views[0])
    page.locator("#g [data-key='fold 1']").click()
    for number in range(10):
        views.append(state_of(views[-1], 4 + 6 * number, state="completed", ended_at=NOW))
    messages = [
        {"seq": seq, "ops": patch.diff(views[seq - 1].wire(), views[seq].wire())} for seq in range(1, len(views))
    ]
    assert all(len(str(message)) < 600 for message in messages)
    spent = page.evaluate(
        """(messages) => {
          const start = performance.now();
          for (const message of messages) window.models.g.emit(message);
          return (performance.now() - start) / messages.length;
        }""",
        messages,
    )
    assert spent < 100  # milliseconds; it is about 8 on a slow machine, and 100 are there for each


# -- the timeline ----------------------------------------------------------------------------------------------------


def test_rows_of_the_timeline_are_a_table_that_says_its_bars(page: Page) -> None:
    show_live(page, "t", crashed())
    assert page.get_by_role("treegrid", name="Questions and tasks over time").count() == 1
    call = page.get_by_role("row", name='weather(city="Paris"), completed')
    assert "ran 2 times, cut off by a crash" in str(call.get_attribute("aria-label"))
    cell = call.get_by_role("gridcell").nth(1)
    words = str(cell.get_attribute("aria-label"))
    assert "attempt 1 at call" in words
    assert "cut off: its process died" in words
    assert "no process" in words
    assert page.locator("#t .pd-life-sign").all_inner_texts().count("✕") == 1
    assert page.locator("#t .pd-break").count() == 2


def test_bars_lie_in_order_and_inside_of_the_chart(page: Page) -> None:
    show_live(page, "t", crashed())
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("#t .pd-lane")].map((lane) => {
          const place = lane.getBoundingClientRect();
          return [...lane.children].map((bar) => {
            const box = bar.getBoundingClientRect();
            return [box.left - place.left, box.right - place.left, place.width];
          });
        })"""
    )
    for bars in boxes:
        for left, right, width in bars:
            assert -1 <= left <= right <= width + 6
        assert all(before[0] <= after[0] for before, after in pairwise(bars))


def test_a_selected_row_is_read_out_attempt_by_attempt(page: Page) -> None:
    show_live(page, "t", crashed())
    press(page, "Tab", "Tab", "Tab", "Tab", "ArrowDown", "ArrowDown", "Enter")
    lines = page.locator("#t .pd-words > div").all_inner_texts()
    assert lines[0] == 'weather(city="Paris") · completed'
    assert lines[1].startswith("attempt 1 at call:")
    assert lines[1].endswith("11 s, cut off: its process died")
    assert lines[2].startswith("no process:")
    assert len(lines) == 4


def test_running_bars_grow_between_messages(browser: Browser) -> None:
    with browser_page(browser) as page:
        show_live(page, "t", crashed())
        width = "(key) => parseFloat(document.querySelector(`#t [data-key='${key}'] .pd-how-running`).style.width)"
        first = page.evaluate(width, "t23")
        page.wait_for_function(f"([key, first]) => ({width})(key) > first", arg=["t23", first])


def test_a_long_session_opens_at_its_newest_questions(page: Page) -> None:
    show_live(page, "t", TIMELINES["timeline-many"])
    lines = rows(page, "t")
    assert "“Question 300”" in lines[-2]
    assert sum("turn" in line for line in lines) == 8
    bars = page.locator("#t .pd-lane .pd-run")
    widths = bars.evaluate_all("(all) => all.map((node) => node.getBoundingClientRect().width)")
    assert min(widths[-7:]) > 5
    assert page.locator("#t .pd-tick").count() >= 2
    fit = page.get_by_role("button", name="Fit to the width")
    fit.click()
    scrolls = "() => { const n = document.querySelector('#t .pd-lanes'); return n.scrollWidth - n.clientWidth; }"
    assert page.evaluate(scrolls) <= 1
    assert fit.get_attribute("aria-disabled") == "true"
    page.get_by_role("button", name="Wider").click()
    assert page.evaluate(scrolls) > 100


def test_folding_a_question_hides_its_turns(page: Page) -> None:
    show_live(page, "t", crashed())
    before = len(rows(page, "t"))
    page.locator("#t .pd-branch").first.focus()
    press(page, "ArrowLeft")
    assert len(rows(page, "t")) == before - 4
    press(page, "ArrowRight")
    assert len(rows(page, "t")) == before
