"""The Conversation widget in a real browser: how it looks, what its buttons say, and what it keeps as it changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from pidurable_nb import patch
from pidurable_nb.notebook.talkview import Chip, TalkView
from pidurable_nb.notebook.view import StatusRow, StatusView, TextItem

from .lab import until
from .talk_gallery import PAST, STREAMING, TALKS, asked, said
from .widget_gallery import CONTRASTS, MARKDOWN, OVERFLOWS, XSS, browser_page, send, sent, show_live

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Page]:
    with browser_page(browser, width=1000) as page:
        yield page


@pytest.fixture
def page(shared: Page) -> Iterator[Page]:
    yield shared
    shared.evaluate("document.body.replaceChildren()")


def play(page: Page, views: list[TalkView], first: int = 1) -> None:
    """Send the differences between views, one message for each step."""
    for seq, (old, new) in enumerate(pairwise(views), first):
        send(page, "a", {"seq": seq, "ops": patch.diff(old.wire(), new.wire())})


def pressed(page: Page) -> dict[str, Any]:
    """The newest press, heard, without its name."""
    press = [message for message in sent(page, "a") if "press" in message][-1]
    send(page, "a", {"heard": press["press"]})
    return {name: value for name, value in press.items() if name != "press"}


def answer(page: Page, **told: Any) -> None:
    """Tell what became of the newest press."""
    press = [message for message in sent(page, "a") if "press" in message][-1]
    send(page, "a", {"heard": press["press"], **told})


def block(page: Page, entry: int) -> Locator:
    return page.locator("#a .pd-block", has_text=f"#{entry} ")


@pytest.mark.parametrize(("dark", "width"), [(False, 1100), (False, 500), (True, 1100), (True, 500)])
def test_nothing_overflows_and_every_text_is_readable(browser: Browser, dark: bool, width: int) -> None:
    with browser_page(browser, dark=dark, width=width, calm=True) as page:
        for name, view in TALKS.items():
            show_live(page, name, view)
        assert page.evaluate(OVERFLOWS) == []
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 80
        assert [found for found in contrasts if found[0] < 4.5] == []


def test_a_message_is_written_sent_and_kept_until_it_is_stored(page: Page) -> None:
    show_live(page, "a", TALKS["idle"])
    field = page.get_by_role("textbox", name="Message")
    field.fill("And on Wednesday?")
    page.keyboard.press("Enter")  # a new line
    page.keyboard.type("Please.")
    page.keyboard.press("Shift+Enter")
    assert pressed(page) == {"do": "send", "text": "And on Wednesday?\nPlease.", "mode": "send"}
    button = page.get_by_role("button", name="Send this message")
    expect(button).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Shift+Enter")
    assert len([message for message in sent(page, "a") if message.get("do") == "send"]) == 1
    answer(page, error="an input needs content")
    expect(page.locator("#a .pd-footer .pd-said")).to_have_text("an input needs content")
    expect(field).to_have_value("And on Wednesday?\nPlease.")
    button.click()
    pressed(page)
    answer(page, done={"submission": 9})
    expect(field).to_have_value("")
    button.click()  # nothing is written
    expect(field).to_be_focused()
    assert len([message for message in sent(page, "a") if message.get("do") == "send"]) == 2


def test_a_busy_run_is_steered_or_followed(page: Page) -> None:
    show_live(page, "a", TALKS["streaming"])
    field = page.get_by_role("textbox", name="Message")
    field.fill("metric units")
    page.get_by_role("button", name="Steer the run with this message").click()
    assert pressed(page) == {"do": "send", "text": "metric units", "mode": "steer"}
    answer(page, done={"submission": 9})
    field.fill("and then?")
    page.keyboard.press("Shift+Enter")
    assert pressed(page) == {"do": "send", "text": "and then?", "mode": "follow_up"}
    answer(page, done={"submission": 10})
    expect(page.get_by_role("button", name="Send this message")).to_be_hidden()


def test_what_waits_is_withdrawn_and_the_run_stopped(page: Page) -> None:
    view = TALKS["streaming"]
    show_live(page, "a", view)
    inbox = page.get_by_role("list", name="Inbox")
    expect(inbox.get_by_role("listitem")).to_have_count(2)
    inbox.get_by_role("button", name="Withdraw steers: Use metric units").click()
    assert pressed(page) == {"do": "withdraw", "submission": 51}
    play(page, [view, view.replaced(waiting=view.waiting[1:])])
    expect(inbox.get_by_role("listitem")).to_have_count(1)
    page.get_by_role("button", name="Stop this run").click()
    assert pressed(page) == {"do": "stop"}


def test_entries_are_copied_forked_edited_and_tell_their_task(page: Page) -> None:
    clipboard = "{ clipboard: { value: { writeText: async (text) => { window.copied = text; } } } }"
    page.evaluate(f"Object.defineProperties(navigator, {clipboard})")
    show_live(page, "a", TALKS["idle"])
    entry = block(page, 35)
    entry.hover()
    entry.get_by_role("button", name="Copy entry 35").click()
    expect(entry.get_by_role("button", name="Copy entry 35")).to_have_text("copied")
    assert page.evaluate("window.copied").startswith("Rain on Monday, then **clear**")
    entry.get_by_role("button", name="Fork from entry 35").click()
    assert pressed(page) == {"do": "fork", "entry": 35}
    answer(page, done={"conversation": 7})
    entry.get_by_role("button", name="Show task 135").click()
    assert pressed(page) == {"do": "task", "task": 135}
    answer(page, done={"task": 135, "story": "a story of the task", "input": "{}"})
    expect(entry.locator(".pd-detail")).to_contain_text("a story of the task")
    entry.get_by_role("button", name="Show task 135").click()
    expect(entry.locator(".pd-detail")).to_be_hidden()

    question = block(page, 31)
    edit = question.get_by_role("button", name="Edit entry 31 and run it again")
    edit.focus()
    page.keyboard.press("Enter")
    field = question.get_by_role("textbox")
    expect(field).to_be_focused()
    expect(field).to_have_value("What will the *weather* be in Paris?")
    page.keyboard.press("Escape")
    expect(edit).to_be_focused()
    page.keyboard.press("Enter")
    field.fill("In Rome?")
    page.keyboard.press("Shift+Enter")
    assert pressed(page) == {"do": "again", "entry": 31, "text": "In Rome?"}
    answer(page, done={"submission": 8})
    expect(field).to_be_hidden()


def test_a_branch_leads_back(page: Page) -> None:
    show_live(page, "a", TALKS["streaming"])
    page.get_by_role("button", name="Back to conversation 1").click()
    assert pressed(page) == {"do": "open", "conversation": 1}


def test_a_failed_run_is_tried_again(page: Page) -> None:
    show_live(page, "a", TALKS["failed"])
    page.get_by_role("button", name="Go on after the run that failed").click()
    assert pressed(page) == {"do": "retry"}


def test_a_call_in_the_transcript_is_decided(page: Page) -> None:
    show_live(page, "a", TALKS["approval"])
    page.get_by_role("button", name="Approve this call").click()
    assert pressed(page) == {"do": "decide", "call": "c9", "approve": True}


def test_the_transcript_stays_at_its_end_unless_someone_reads_further_up(page: Page) -> None:
    def streaming(text: str) -> TalkView:
        assert STREAMING.answer is not None
        part = TextItem(key="a0.1", text=text, state="streaming")
        live = STREAMING.replaced(answer=STREAMING.answer.replaced(items=(part,)))
        return TALKS["streaming"].replaced(blocks=(*PAST, live))

    gap = "((log) => log.scrollHeight - log.scrollTop - log.clientHeight)(document.querySelector('#a .pd-log'))"
    views = [streaming("line\n\n" * n) for n in (1, 9, 18)]
    show_live(page, "a", views[0])
    assert page.evaluate(gap) < 2
    play(page, views[:2])
    expect(page.locator("#a .pd-streaming p")).to_have_count(9)
    assert page.evaluate(gap) < 2
    page.evaluate("document.querySelector('#a .pd-log').scrollTop = 40")
    play(page, views[1:], first=2)
    assert page.evaluate("document.querySelector('#a .pd-log').scrollTop") == 40


def test_the_transcript_is_at_its_end_when_it_is_shown_later_and_in_a_narrower_page(page: Page) -> None:
    at_end = """() => {
        const log = document.querySelector("#a .pd-log");
        return log.scrollTop > 0 && log.scrollHeight - log.scrollTop - log.clientHeight < 2;
    }"""
    page.evaluate("document.body.style.display = 'none'")  # as in a cell that is not attached yet
    show_live(page, "a", TALKS["streaming"])
    page.evaluate("document.body.style.display = ''")
    until("the log is at its end", lambda: page.evaluate(at_end), timeout=10)
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size({"width": 420, "height": before["height"]})
    until("it is there in a narrow page", lambda: page.evaluate(at_end), timeout=10)
    page.set_viewport_size(before)


def test_older_entries_come_above_what_one_reads(page: Page) -> None:
    view = TALKS["streaming"]
    show_live(page, "a", view)
    page.evaluate("document.querySelector('#a .pd-log').scrollTop = 0")
    page.get_by_role("button", name="Show older entries").click()
    assert pressed(page) == {"do": "older"}
    first = "document.querySelector('#a .pd-block:has(em)').getBoundingClientRect().top"
    before = page.evaluate(first)
    older = tuple(said(n, f"{n}.0", TextItem(key="a0.0", text=f"older {n}")) for n in range(5, 25))
    play(page, [view, view.replaced(blocks=(*older, *view.blocks), earlier=False)])
    assert page.evaluate("document.querySelector('#a .pd-log').scrollTop") > 100
    assert abs(page.evaluate(first) - before) < 40  # the button above went away
    expect(page.get_by_role("button", name="Show older entries")).to_be_hidden()


def test_what_stays_is_the_same_node_and_what_is_written_stays(page: Page) -> None:
    view = TALKS["streaming"]
    show_live(page, "a", view)
    page.get_by_role("textbox", name="Message").fill("half a sentence")
    page.evaluate("window.kept = [...document.querySelectorAll('#a .pd-block')]")
    assert STREAMING.answer is not None
    stored = said(41, "37.1", *STREAMING.answer.items)
    ended = view.replaced(state="idle", blocks=(*PAST, stored, asked(42, "next")), waiting=())
    play(page, [view, ended])
    assert page.evaluate("kept.every((node) => node.isConnected)")
    expect(page.locator("#a .pd-block")).to_have_count(len(PAST) + 2)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("half a sentence")
    expect(page.locator("#a .pd-badge")).to_have_text("ready")


def test_nothing_that_is_said_becomes_an_element(page: Page) -> None:
    hostile = TalkView(
        conversation=1,
        problem=XSS,
        model=XSS,
        waiting=(Chip(submission=1, mode="steers", text=XSS),),
        blocks=(asked(1, XSS), said(2, "1.0", TextItem(key="a0.0", text=XSS))),
    )
    show_live(page, "a", hostile)
    assert page.evaluate("window.hacked ?? null") is None
    assert page.locator("#a :is(script, img, iframe, style, [onerror], [onload])").count() == 0


def test_a_kernel_that_ended_takes_no_messages(page: Page) -> None:
    show_live(page, "a", TALKS["over"])
    expect(page.get_by_role("textbox", name="Message")).to_be_disabled()
    expect(page.locator("#a .pd-problem")).to_contain_text("open it again to go on")
    expect(page.get_by_role("button", name="Stop this run")).to_be_hidden()


def test_a_long_answer_in_a_long_transcript_stays_fluid(page: Page) -> None:
    past = tuple(said(n, f"{n}.0", TextItem(key="a0.0", text=MARKDOWN)) for n in range(60))
    text = (MARKDOWN + "\n\n") * (50_000 // len(MARKDOWN))
    assert STREAMING.answer is not None
    live = STREAMING.answer.replaced(items=(TextItem(key="a0.0", text=text, state="streaming"),))
    show_live(page, "a", TALKS["streaming"].replaced(blocks=(*past, STREAMING.replaced(answer=live))))
    spent = page.evaluate(
        """() => {
          const start = performance.now();
          const path = "/blocks/37.1/items/0/text";
          for (let n = 0; n < 20; n += 1)
            models.a.emit({ seq: n + 1, ops: [{ op: "append", path, value: `more ${n} ` }] });
          return (performance.now() - start) / 20;
        }"""
    )
    assert "more 19" in page.inner_text("#a .pd-streaming .pd-md > :last-child")
    assert spent < 50, f"{spent:.0f} ms for one update; ten a second must leave the page free"


def test_an_observed_session_is_read_and_not_written(page: Page) -> None:
    show_live(page, "a", TALKS["streaming"].replaced(writes=False))
    expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop this run")).to_be_hidden()
    entry = block(page, 35)
    entry.hover()
    expect(entry.get_by_role("button", name="Copy entry 35")).to_be_visible()
    expect(entry.get_by_role("button", name="Fork from entry 35")).to_be_hidden()


def test_notifications_come_while_nobody_looks_and_ask_the_browser_first(page: Page) -> None:
    page.evaluate(
        """() => {
          window.told = [];
          window.Notification = class {
            static permission = "default";
            static async requestPermission() { this.permission = window.answer; return this.permission; }
            constructor(title, { body }) { window.told.push(`${title}: ${body}`); }
          };
          window.answer = "default";
          Object.defineProperty(document, "hidden", { configurable: true, get: () => window.away });
        }"""
    )
    show_live(page, "a", StatusView(title="notifications are on", rows=(StatusRow("when", "a run ends"),)))
    allow = page.get_by_role("button", name="Allow in this browser")
    expect(page.locator("#a .pd-said")).to_have_text("the browser has not been asked yet")
    news = {"news": {"title": "the answer is there", "body": "one", "tag": "x"}}
    page.evaluate("window.away = true")
    send(page, "a", news)  # not allowed yet
    page.evaluate("window.answer = 'granted'")
    allow.click()
    expect(allow).to_be_hidden()
    send(page, "a", news)
    page.evaluate("window.away = false")
    send(page, "a", news)  # somebody looks
    assert page.evaluate("window.told") == ["the answer is there: one"]
