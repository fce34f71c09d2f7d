"""The Answer widget and the static forms in a real browser, in both themes, wide and narrow."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pidurable_nb import patch
from pidurable_nb.notebook import widgets
from pidurable_nb.notebook.markdown import to_html as markdown_to_html
from pidurable_nb.notebook.render import to_html
from pidurable_nb.notebook.view import AnswerView, TextItem

from .widget_gallery import (
    ANSWERS,
    CARDS,
    CONTRASTS,
    MARKDOWN,
    OVERFLOWS,
    START,
    XSS,
    browser_page,
    send,
    sent,
    show_live,
    show_static,
)

pytestmark = pytest.mark.browser

LOOKS = [(False, 1200), (False, 420), (True, 1200), (True, 420)]


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Page]:
    """One page, light and wide, that its tests fill and empty."""
    with browser_page(browser) as page:
        yield page


@pytest.fixture
def page(shared: Page) -> Iterator[Page]:
    yield shared
    shared.evaluate("document.body.replaceChildren()")


def says(text: str, **changes: Any) -> AnswerView:
    items = (TextItem(key="x", text=text, state="streaming"),)
    return AnswerView(status="running", started_at=START, can_stop=True, model="m", items=items).replaced(**changes)


def play(page: Page, name: str, views: list[AnswerView], first: int = 1) -> Iterator[AnswerView]:
    """Send the differences between ``views``, one message for each step; yields each view once it is shown."""
    for number, (old, new) in enumerate(pairwise(views), first):
        send(page, name, {"seq": number, "ops": patch.diff(old.wire(), new.wire())})
        yield new


def height(page: Page, name: str) -> float:
    return page.evaluate("(name) => document.getElementById(name).getBoundingClientRect().height", name)


# -- looks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dark", "width"), LOOKS, ids=lambda value: str(value))
def test_nothing_overflows_and_every_text_is_readable(browser: Browser, dark: bool, width: int) -> None:
    with browser_page(browser, dark=dark, width=width, calm=True) as page:
        for name, view in ANSWERS.items():
            show_live(page, f"live-{name}", view)
        for name, card in {**ANSWERS, **CARDS}.items():
            show_static(page, f"static-{name}", to_html(card))
        assert page.evaluate(OVERFLOWS) == []
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 200
        assert [found for found in contrasts if found[0] < 4.5] == []


@pytest.mark.parametrize("width", [1200, 420])
def test_no_part_covers_another(browser: Browser, width: int) -> None:
    with browser_page(browser, width=width, calm=True) as page:
        for name, view in ANSWERS.items():
            show_live(page, name, view)
        covered = page.evaluate(
            """() => {
              const groups = [".pd-header-left", ".pd-header", ".pd-body", ".pd-footer", ".pd-tool > summary",
                ".pd-tool-body", ".pd-answer"];
              const covered = [];
              for (const group of document.querySelectorAll(groups.join())) {
                const all = [...group.children].map((node) => [node, node.getBoundingClientRect()]);
                const boxes = all.filter(([, box]) => box.width && box.height);
                for (const [one, a] of boxes) for (const [other, b] of boxes) {
                  if (one === other) continue;
                  const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                  const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                  if (across > 1 && down > 1) covered.push(`${one.className} and ${other.className}`);
                }
              }
              return covered;
            }"""
        )
        assert covered == []


def test_looks_right_where_there_is_no_theme(browser: Browser) -> None:
    with browser_page(browser, bare=True, width=420, calm=True) as page:
        for name, view in ANSWERS.items():
            show_live(page, name, view)
            show_static(page, f"static-{name}", to_html(view))
        assert page.evaluate(OVERFLOWS) == []
        assert [found for found in page.evaluate(CONTRASTS) if found[0] < 4.5] == []


def test_nothing_moves_for_who_asked_for_less_motion(browser: Browser) -> None:
    moving = "() => document.getAnimations().length"
    with browser_page(browser) as page:
        show_live(page, "a", ANSWERS["streaming"])
        assert page.evaluate(moving) > 0
    with browser_page(browser, calm=True) as page:
        show_live(page, "a", ANSWERS["streaming"])
        assert page.evaluate(moving) == 0


# -- safety ----------------------------------------------------------------------------------------------------------


FORBIDDEN = {"script", "img", "iframe", "style", "link", "object", "embed", "form", "base", "meta", "video", "audio"}


def test_no_text_of_a_model_or_a_tool_runs_or_becomes_an_element(page: Page) -> None:
    show_live(page, "live", ANSWERS["hostile"])
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    for name, view in {**ANSWERS, **CARDS}.items():
        if "hostile" in name:
            show_static(page, name, to_html(view))
    show_live(page, "grown", says(""))
    cuts = [*range(0, len(XSS), 7), len(XSS)]
    for _ in play(page, "grown", [says(XSS[:cut]) for cut in cuts]):
        pass
    for link in page.query_selector_all("a"):
        link.dispatch_event("mouseover")
        link.hover(force=True, timeout=2000)
    found = page.evaluate(
        """() => ({
          hacked: window.hacked ?? null,
          elements: [...document.querySelectorAll("#live *, #grown *, [id*=hostile] *")].map((node) => node.localName),
          handlers: [...document.querySelectorAll("*")].flatMap((node) => [...node.attributes])
            .filter((attribute) => /^on|srcdoc|^src$/.test(attribute.name)).length,
          links: [...document.querySelectorAll("a")].map((node) => node.href),
        })"""
    )
    assert found["hacked"] is None
    assert found["handlers"] == 0
    assert not FORBIDDEN & set(found["elements"])
    assert found["links"]
    assert all(link.startswith("https://example.org/") for link in found["links"])


def test_the_images_of_a_result_are_shown_and_no_other_address_is_fetched(page: Page) -> None:
    show_live(page, "figures", ANSWERS["figures"])
    images = page.locator("#figures .pd-pictures img")
    expect(images).to_have_count(2)
    assert [images.nth(n).get_attribute("alt") for n in range(2)] == ["image 1 of the result", "image 2 of the result"]
    page.wait_for_function("[...document.querySelectorAll('#figures img')].every((image) => image.naturalWidth > 0)")
    kinds = ("text/html", "image/svg+xml")
    foreign = ("https://example.org/track.png", "javascript:alert(1)", *(f"data:{kind};base64,aGk=" for kind in kinds))
    [tool, text] = ANSWERS["figures"].items
    show_live(page, "foreign", ANSWERS["figures"].replaced(items=(tool.replaced(pictures=foreign), text)))
    expect(page.locator("#foreign .pd-tool")).to_have_count(1)
    expect(page.locator("#foreign img")).to_have_count(0)


# -- streaming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1200, 420])
def test_the_height_never_shrinks_while_an_answer_grows(browser: Browser, width: int) -> None:
    with browser_page(browser, width=width) as page:
        views = [says(MARKDOWN[:cut], output_tokens=cut // 4) for cut in [*range(0, len(MARKDOWN), 3), len(MARKDOWN)]]
        show_live(page, "a", views[0])
        last = height(page, "a")
        steps = 0
        for _ in play(page, "a", views):
            now = height(page, "a")
            assert now >= last
            steps += now > last
            last = now
        assert steps > 10


def test_an_answer_that_ends_keeps_its_height(page: Page) -> None:
    growing, ended = says(MARKDOWN), says(MARKDOWN, status="done", ended_at=START + 9, can_stop=False)
    show_live(page, "a", growing)
    before = height(page, "a")
    for _ in play(page, "a", [growing, ended]):
        pass
    assert abs(height(page, "a") - before) < 3


def test_grown_text_is_shown_as_text_that_was_there_at_once(page: Page) -> None:
    cuts = [*range(0, len(MARKDOWN), 5), len(MARKDOWN)]
    show_live(page, "grown", says(""))
    for _ in play(page, "grown", [says(MARKDOWN[:cut]) for cut in cuts]):
        pass
    show_live(page, "whole", says(MARKDOWN))
    shape = "(name) => document.querySelector(`#${name} .pd-md`).innerHTML"
    assert page.evaluate(shape, "grown") == page.evaluate(shape, "whole")


def test_what_is_finished_stays_the_same_node(page: Page) -> None:
    start = "First.\n\nSecond"
    show_live(page, "a", says(start))
    page.evaluate(
        "window.kept = [...document.querySelectorAll('#a .pd-md > *')].map((node) => [node, node.firstChild])"
    )
    for _ in play(
        page, "a", [says(start), says(start + " part.\n\n- list"), says(start + " part.\n\n- list\n- of two")]
    ):
        pass
    assert page.inner_text("#a .pd-md").split("\n\n")[:2] == ["First.", "Second part."]
    assert page.evaluate("kept.every(([node, text]) => node.isConnected && text.isConnected)")


def test_a_hundred_kilobytes_stay_fluid(page: Page) -> None:
    text = (MARKDOWN + "\n\n") * (100_000 // len(MARKDOWN))
    show_live(page, "a", says(text))
    spent = page.evaluate(
        """() => {
          const start = performance.now();
          for (let n = 0; n < 20; n += 1)
            models.a.emit({ seq: n + 1, ops: [{ op: "append", path: "/items/0/text", value: `more words ${n} ` }] });
          return (performance.now() - start) / 20;
        }"""
    )
    assert "more words 19" in page.inner_text("#a .pd-md > :last-child")
    assert spent < 50, f"{spent:.0f} ms for one update; ten a second must leave the page free"


def test_running_output_stays_at_its_end_unless_someone_scrolled_away(page: Page) -> None:
    view = ANSWERS["tools"]
    show_live(page, "a", view)
    box = "#a .pd-tool[data-tone=active] .pd-box:not([hidden]) pre"
    gap = f"((box) => box.scrollHeight - box.scrollTop - box.clientHeight)(document.querySelector({box!r}))"
    assert page.evaluate(gap) < 2

    def longer(old: AnswerView, lines: str) -> AnswerView:
        tool = old.items[2]
        return old.replaced(items=(*old.items[:2], tool.replaced(output=tool.output + lines), *old.items[3:]))

    views = [view, longer(view, "\none\ntwo\nthree"), longer(view, "\none\ntwo\nthree\nfour\nfive")]
    steps = play(page, "a", views)
    next(steps)
    assert page.evaluate(gap) < 2
    page.evaluate(f"document.querySelector({box!r}).scrollTop = 10")
    next(steps)
    assert page.evaluate(f"document.querySelector({box!r}).scrollTop") == 10


# -- sequence --------------------------------------------------------------------------------------------------------


def test_asks_once_at_its_start(page: Page) -> None:
    show_live(page, "a", says("Hello"))
    assert sent(page, "a") == [{"ask": "state", "seq": 0}]


def test_a_missed_number_is_noticed_and_the_whole_is_taken(page: Page) -> None:
    views = [
        says("Hello there, "),
        says("Hello there, good "),
        says("Hello there, good world "),
        says("Hello there, good world !"),
    ]
    ops = [patch.diff(old.wire(), new.wire()) for old, new in pairwise(views)]
    show_live(page, "a", views[0])
    send(page, "a", {"seq": 2, "ops": ops[1]})
    send(page, "a", {"seq": 3, "ops": ops[2]})
    assert sent(page, "a")[1:] == [{"ask": "state", "seq": 0}]
    assert page.inner_text("#a .pd-md") == "Hello there,"
    send(page, "a", {"seq": 2, "now": START, "view": views[2].wire()})
    assert page.inner_text("#a .pd-md") == "Hello there, good world"
    send(page, "a", {"seq": 2, "ops": ops[1]})
    send(page, "a", {"seq": 3, "ops": ops[2]})
    assert page.inner_text("#a .pd-md") == "Hello there, good world !"


def test_a_difference_that_does_not_fit_makes_it_ask_again(page: Page) -> None:
    show_live(page, "a", says("Hello"))
    send(page, "a", {"seq": 1, "ops": [{"op": "append", "path": "/nowhere/0/text", "value": "x"}]})
    assert sent(page, "a")[-1] == {"ask": "state", "seq": -1}


# -- people ----------------------------------------------------------------------------------------------------------


def test_stop_keeps_the_focus_says_so_and_is_sent_once(page: Page) -> None:
    views = [says("Hello"), says("Hello again, and more"), says("Hello again, and more of it")]
    show_live(page, "a", views[0])
    stop = page.get_by_role("button", name="Stop this answer")
    stop.focus()
    steps = play(page, "a", views)
    next(steps)
    assert page.evaluate("document.activeElement.textContent") == "Stop"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    (press,) = [message for message in sent(page, "a") if "do" in message]
    assert press["do"] == "stop"
    assert "stop is asked for…" in page.inner_text("#a .pd-footer")
    send(page, "a", {"heard": press["press"]})
    next(steps)
    assert page.evaluate("document.activeElement.textContent") == "Stop"
    stopped = views[-1].replaced(status="aborted", reason="aborted", can_stop=False, ended_at=START + 2)
    for _ in play(page, "a", [views[-1], stopped], first=3):
        pass
    assert "stop is asked for" not in page.inner_text("#a")
    assert page.inner_text("#a .pd-badge") == "stopped"


def test_a_press_that_nobody_hears_says_what_to_do_and_can_be_repeated(page: Page) -> None:
    show_live(page, "a", says("Hello"))
    stop = page.get_by_role("button", name="Stop this answer")
    stop.click()
    said = page.locator("#a .pd-asked")
    expect(said).to_have_text("nobody heard that: reload the page, or run %durable stop", timeout=10_000)
    assert said.locator("code").inner_text() == "%durable stop"
    stop.click()
    expect(said).to_have_text("stop is asked for…")
    first, second = [message["press"] for message in sent(page, "a") if "do" in message]
    assert first != second
    send(page, "a", {"heard": second})
    page.wait_for_timeout(2500)  # longer than it takes to be late
    expect(said).to_have_text("stop is asked for…")


def test_a_press_waits_for_a_running_cell_and_says_so(page: Page) -> None:
    show_live(page, "a", says("Hello"), kernel={"status": "busy"})
    page.get_by_role("button", name="Stop this answer").click()
    said = page.locator("#a .pd-asked")
    expect(said).to_contain_text("it has to wait while a cell runs", timeout=10_000)
    (press,) = [message["press"] for message in sent(page, "a") if "do" in message]
    send(page, "a", {"heard": press})
    expect(said).to_have_text("stop is asked for…")


def test_what_a_subshell_swallows_is_said_again_past_it(page: Page) -> None:
    show_live(page, "a", says("Hello"), kernel={"status": "idle", "supportsSubshells": True, "clientId": "page"})
    page.get_by_role("button", name="Stop this answer").click()
    page.wait_for_function("models.a.past.length > 0", timeout=10_000)
    (press,) = [message for message in sent(page, "a") if "do" in message]
    (message,) = page.evaluate("models.a.past")
    assert message["content"] == {"comm_id": "address", "data": {"method": "custom", "content": press}}
    assert (message["channel"], message["header"]["msg_type"]) == ("shell", "comm_msg")
    assert "subshell_id" not in message["header"]


def decided(page: Page) -> dict[str, Any]:
    """The newest decision that the page sent, without the name of the press."""
    press = [message for message in sent(page, "a") if message.get("do") == "decide"][-1]
    send(page, "a", {"heard": press["press"]})
    return {name: value for name, value in press.items() if name not in ("do", "press")}


def test_a_call_that_waits_is_decided_by_buttons_and_by_the_keyboard_alone(page: Page) -> None:
    view = ANSWERS["approval"]
    show_live(page, "a", view)
    group = page.get_by_role("group", name="Decide about this call")
    group.get_by_role("button", name="Approve this call").click()
    assert decided(page) == {"call": "c9", "approve": True}
    expect(group.get_by_role("button", name="Deny this call")).to_have_attribute("aria-disabled", "true")
    press = [message["press"] for message in sent(page, "a") if message.get("do") == "decide"][-1]
    send(page, "a", {"heard": press, "error": "no call 'c9' waits for a decision"})
    expect(group.get_by_role("status")).to_have_text("no call 'c9' waits for a decision")

    group.get_by_role("button", name="Edit the arguments of this call").focus()
    page.keyboard.press("Enter")
    field = group.get_by_label("arguments, as a JSON object")
    expect(field).to_be_focused()
    assert json.loads(field.input_value()) == {"amount": 120.5, "to": "DE12"}
    for wrong, said in (("{", "that is not JSON"), ("[1]", "arguments are a JSON object")):
        field.fill(wrong)
        page.keyboard.press("Control+Enter")
        expect(group.get_by_role("status")).to_contain_text(said)
    field.fill('{"amount": 5}')
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()
    expect(group.get_by_role("button", name="Edit the arguments of this call")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    assert decided(page) == {"call": "c9", "approve": True, "arguments": {"amount": 5}}


def test_a_denial_takes_a_note(page: Page) -> None:
    view = ANSWERS["approval"]
    show_live(page, "a", view)
    group = page.get_by_role("group", name="Decide about this call")
    group.get_by_role("button", name="Deny this call").click()
    page.keyboard.type("not today")
    page.keyboard.press("Enter")
    assert decided(page) == {"call": "c9", "approve": False, "note": "not today"}
    group.get_by_role("button", name="Deny this call").focus()
    running = view.replaced(
        status="running", items=(view.items[0], view.items[1].replaced(status="blocked", result="denied"))
    )
    for _ in play(page, "a", [view, running]):
        pass
    expect(group).to_be_hidden()
    assert page.evaluate("document.activeElement.localName") == "summary"


def test_folding_by_the_keyboard_survives_updates(page: Page) -> None:
    view = ANSWERS["tools"]
    show_live(page, "a", view)
    summary = page.locator("#a .pd-tool > summary").first
    summary.focus()
    page.keyboard.press("Enter")
    for _ in play(page, "a", [view, view.replaced(output_tokens=999)]):
        pass
    assert page.locator("#a .pd-tool").first.get_attribute("open") is None
    assert page.evaluate("document.activeElement.localName") == "summary"


def test_the_answer_is_announced_and_every_control_has_a_name(page: Page) -> None:
    show_live(page, "a", ANSWERS["crashed"])
    assert page.get_attribute("#a .pd-body", "aria-live") == "polite"
    assert page.get_attribute("#a section", "aria-label") == "Answer"
    assert page.get_attribute("#a .pd-struck .pd-md", "aria-label") == "cut off when its process ended · kept"
    assert page.evaluate(
        "[...document.querySelectorAll('#a button')].every((b) => b.getAttribute('aria-label') && b.type === 'button')"
    )


def test_the_cut_off_attempt_is_struck_through_above_the_new_one(page: Page) -> None:
    show_live(page, "a", ANSWERS["crashed"])
    texts = page.locator("#a .pd-text")
    assert texts.first.get_attribute("class") == "pd-text pd-struck"
    assert "cut off when its process ended · kept" in texts.first.inner_text()
    assert "line-through" in page.evaluate(
        "getComputedStyle(document.querySelector('#a .pd-struck .pd-md')).textDecorationLine"
    )
    assert texts.nth(1).inner_text() == "The capital of France is Paris. It"


def test_time_runs_by_itself_and_the_countdown_too(page: Page) -> None:
    show_live(page, "a", says("x"))
    show_live(page, "b", ANSWERS["retrying"])
    assert page.inner_text("#a .pd-time") == "7 s"
    assert page.inner_text("#b .pd-badge") == "retrying in 5 s"
    page.wait_for_function("parseInt(document.querySelector('#a .pd-time').textContent) >= 9", timeout=10_000)
    page.wait_for_function("/in [1-3] s$/.test(document.querySelector('#b .pd-badge').textContent)", timeout=10_000)


# -- one dialect -----------------------------------------------------------------------------------------------------

# Both renderings as one shape: elements, their addresses, starts and alignments, and their text.
SHAPES = """(pairs) => {
  const shape = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\\s+/g, " ");
    if (node.classList.contains("pd-copy")) return "";
    const inside = [...node.childNodes].map(shape).join("");
    if (node.classList.contains("pd-code")) return inside;
    const marks = [node.href || null, node.getAttribute("start")].filter((mark) => mark !== null);
    const align = node.dataset.align ?? (/^t[hd]$/.test(node.localName) ? node.style.textAlign : "");
    if (align && align !== "left") marks.push(align);
    return `<${[node.localName, ...marks].join(" ")}>${inside}</${node.localName}>`;
  };
  const blocks = / *(<\\/?(?:p|ul|ol|li|blockquote|pre|table|thead|tbody|tr|th|td|h\\d|hr)\\b[^>]*>) */g;
  const ends = / *(<\\/code><\\/pre>)/g;
  const breaks = /(<br><\\/br>) */g;
  const tidy = (text) => text.replace(blocks, "$1").replace(ends, "$1").replace(breaks, "$1");
  return pairs.map(([text, markup]) => {
    const live = document.createElement("div");
    markdownView(live)(text);
    const saved = new DOMParser().parseFromString(`<div>${markup}</div>`, "text/html").body.firstChild;
    return [live, saved].map((node) => tidy([...node.childNodes].map(shape).join("")));
  });
}"""

SNIPPETS = [
    MARKDOWN,
    XSS,
    "a\nb  \nc\\\nd",
    "*a **b** c* ***d*** **e*f*g** _h_ i_j_k __l__ ** m ** *n",
    "~~a~~ ~b~ ~~~c~~~ ~~d *e* f~~",
    "`a` ``b ` c`` ` d ` `e",
    "[a](https://b.c) [d [e] f](https://g.h) [i](<https://j.k/l m>) [n](https://o.p 'q') [r](s) [t][u] [v]",
    "[a *b* `c`](https://d.e/f_(g)_h) ![i](https://j.k) [![l](https://m.n)](https://o.p)",
    "<https://a.b/c?d=e&f> <mailto:g@h.i> <j@k.l> <m> <javascript:n>",
    "&amp; &lt;b&gt; &#65; &#x42; &nope; &copy; AT&T",
    "\\*a\\* \\# \\[b\\](c) \\\\ \\q",
    "# a\n## b ##\n###c\n####### d\n#\n# e # f",
    "- a\n- b\n\n  c\n- d",
    "- a\n  - b\n    - c\n  - d\n- e",
    "1. a\n1. b\n\n\n2. c\n5) d",
    "* a\n\n* b\n+ c\n- d",
    "- a\n\n\n- b\n  ```\n  c\n  ```\n- > d\n- # e",
    "- \n- a\n-\n- b",
    "a\n- b\n1. c\n2. d\n\na\n3. e",
    "> a\nb\n> c\n\n> d\n>\n> - e\n> > f",
    "```\na\n\n  b\n```\nc\n~~~ x\n```\n~~~\n  ```\n  d\n e",
    "- - -\n***\n___\n-- -\n* *",
    "a | b\n-|-\n1 | 2 | 3\n4\n\nc",
    "| a |\n|:-:|\n| `b \\| c` |\n> d",
    "|a|b|\n|-|\n|c|",
    "text before\n| a | b |\n|---|---|\n| **1** | [x](https://y.z) |\nafter",
    "a\n---\nb\n===\n\n    c\n\td",
    "1. a\n\n   b\n\n   ```py\n   c\n   ```\n\n2. d\n   - e\n\n     f",
    "**a:** b\n**c:** d\n\n- **e**: `f`\n- **g**: h",
]


@pytest.fixture
def shapes(page: Page) -> Any:
    module = (Path(widgets.__file__).parent / "static" / "markdown.js").read_text()
    page.evaluate(
        """async (text) => {
          const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
          window.markdownView = (await import(address)).markdownView;
        }""",
        module,
    )
    return lambda texts: page.evaluate(SHAPES, [[text, markdown_to_html(text)] for text in texts])


def test_live_and_saved_markdown_are_the_same(shapes: Any) -> None:
    for text, (live, saved) in zip(SNIPPETS, shapes(SNIPPETS), strict=True):
        assert live == saved, text


def test_hostile_nesting_does_not_hang_the_page(page: Page, shapes: Any) -> None:
    for text in (
        "[" * 20_000,
        "![" * 10_000,
        "*a_b " * 10_000,
        "> " * 10_000 + "a",
        "- " * 5_000 + "a",
        "> a\nb\n" * 5_000,
        "- a\nb\n" * 5_000,
        "".join("`" * n + " " for n in range(1, 200)),
        "[a](" * 5_000,
        "|" * 5_000 + "\n" + "|-" * 5_000,
        "~~~a" * 5_000,
        "<https:" * 5_000,
    ):
        took = page.evaluate(
            """(text) => {
              const start = performance.now();
              markdownView(document.createElement("div"))(text);
              return performance.now() - start;
            }""",
            text,
        )
        assert took < 2000, text[:20]


def test_random_answers_are_the_same_live_and_saved(shapes: Any) -> None:
    chance = random.Random(7)
    blocks = [block for text in SNIPPETS for block in re.split(r"\n{2,}", text)]
    texts = ["\n\n".join(chance.choices(blocks, k=5)) for _ in range(150)]
    for text, (live, saved) in zip(texts, shapes(texts), strict=True):
        assert live == saved, text
