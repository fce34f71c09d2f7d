"""Sample views, and pages that show them as a notebook would, for the browser tests and for people.

``python -m tests.browser.widget_gallery DIR`` writes the pictures of every sample, live and static, light and dark,
wide and narrow, to ``DIR``.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_path
from playwright.sync_api import Browser, Page, sync_playwright

from pidurable_nb.notebook.render import to_html
from pidurable_nb.notebook.view import (
    AnswerView,
    ErrorView,
    NoticeItem,
    RecoveryRow,
    RecoveryView,
    StatusRow,
    StatusView,
    TaskRow,
    TasksView,
    TextItem,
    ThinkingItem,
    ToolItem,
    TranscriptEntry,
    TranscriptView,
    View,
)
from pidurable_nb.notebook.widgets import AnswerWidget, ViewWidget
from pidurable_nb.notebook.widgets_notify import NotifyWidget
from pidurable_nb.notebook.widgets_talk import ConversationWidget, DashboardWidget
from pidurable_nb.notebook.widgets_tasks import GraphWidget, TimelineWidget

from .lab import CHROMIUM_ARGUMENTS, find_chromium

START = 1_900_000_000.0

MARKDOWN = """\
## What changed in the rates

The **second half** was driven by *three* things, in this order:

1. Demand fell by `4.2 %`, see [the report](https://example.org/report).
2. Supply grew:
   - new lines in the north
   - a ~~delayed~~ finished terminal
3. Nobody hedged.

| quarter | volume | price |
|:--------|-------:|:-----:|
| Q3      |  1,204 |  9.10 |
| Q4      |    988 |  8.75 |

> A note of caution: two of the series end in October.

```python
def change(before: float, after: float) -> float:
    \"\"\"Relative change.\"\"\"
    return (after - before) / before
```

That is all; ask me for the *monthly* figures if you need them.
"""

XSS = """\
<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2"> <svg onload="window.hacked = 3">

[a](javascript:window.hacked=4) [b](JaVaScRiPt:window.hacked=5) [c](data:text/html,<script>window.hacked=6</script>)
[d](vbscript:x) <javascript:window.hacked=7> ![x](javascript:window.hacked=8)
![y](https://example.org/"onerror="window.hacked=9) [e](https://example.org/"onmouseover="window.hacked=10)
[f](&#106;avascript:window.hacked=11) [g](\x01javascript:window.hacked=12)

```html" onmouseover="window.hacked=13
</code></pre><script>window.hacked = 14</script>
```

| <img src=x onerror=window.hacked=15> | b |
|---|---|
| `</td><script>window.hacked=16</script>` | <style>*{display:none}</style> |

<iframe srcdoc="<script>parent.hacked=17</script>"></iframe> <a href="javascript:window.hacked=18">x</a> &lt;script&gt;
"""

HOSTILE = (
    "</pre></details><script>window.hacked = 20</script><img src=x onerror='window.hacked = 21'>\x1b[31mred\x1b[0m"
)

WEATHER = ToolItem(
    key="c1",
    name="weather",
    arguments={"city": "Paris", "days": 3},
    status="done",
    replay="safe",
    duration=1.23,
    result="Mon 14°C, light rain\nTue 17°C, clear\nWed 16°C, clear",
)
BUILD = ToolItem(
    key="c2",
    name="shell",
    arguments={
        "command": "make -j2 all && ./run-tests --verbose --with-a-very-long-option=value",
        "cwd": "/home/ada/project",
    },
    status="running",
    replay="unsafe",
    dropped=12_400,
    output="\n".join(f"[{n:3d}/240] compiling module_{n}.c" for n in range(60, 90)),
)


def figure(width: int, height: int) -> str:
    """A chart as a tool would give it: one curve on white, as the ``data:`` address of a PNG."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            curve = height * (0.5 - 0.4 * math.sin(x / width * 7))
            rows.append(0x30 if abs(y - curve) < 2 else 0xFF)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


ANSWERS: dict[str, AnswerView] = {
    "figures": AnswerView(
        submission=31,
        status="done",
        model="local:smollm2",
        started_at=START,
        ended_at=START + 2,
        items=(
            ToolItem(
                key="c9",
                name="python",
                arguments={"code": "plot(rates)"},
                status="done",
                replay="unsafe",
                duration=0.4,
                result="[image 1]\n[image 2]",
                pictures=(figure(360, 120), figure(1600, 200)),
            ),
            TextItem(key="x", text="The rates swing."),
        ),
    ),
    "queued": AnswerView(submission=11, status="queued", model="openai:gpt-4.1", reason="after the answer before it"),
    "streaming": AnswerView(
        submission=12,
        status="running",
        model="local:smollm2",
        started_at=START,
        input_tokens=1204,
        output_tokens=96,
        can_stop=True,
        items=(
            ThinkingItem(key="t", text="The user wants a comparison. " * 9),
            TextItem(key="x", text=MARKDOWN[:330], state="streaming"),
        ),
    ),
    "empty": AnswerView(status="running", model="local:smollm2", started_at=START, can_stop=True),
    "done": AnswerView(
        submission=12,
        status="done",
        model="openai:gpt-4.1",
        started_at=START,
        ended_at=START + 12.4,
        input_tokens=1204,
        output_tokens=312,
        cost=0.0049,
        note="stored answer from 14:02 · --again asks anew",
        items=(TextItem(key="x", text=MARKDOWN),),
    ),
    "tools": AnswerView(
        submission=13,
        status="running",
        model="anthropic:claude-sonnet",
        started_at=START,
        can_stop=True,
        input_tokens=2210,
        output_tokens=148,
        items=(
            TextItem(key="a", text="Let me look at the weather first, then build."),
            WEATHER,
            BUILD,
            ToolItem(key="c3", name="search", arguments={"query": "x"}, status="pending", replay="safe"),
        ),
    ),
    "tools_ended": AnswerView(
        submission=13,
        status="done",
        model="anthropic:claude-sonnet",
        started_at=START,
        ended_at=START + 187,
        items=(
            WEATHER,
            BUILD.replaced(
                status="interrupted",
                result="The call was interrupted by a crash; whether it took effect is unknown.",
                diagnostics=(("warning", "2 of 240 files were not compiled"),),
            ),
            ToolItem(
                key="c4",
                name="read_file",
                arguments={"path": "/nope"},
                status="error",
                duration=0.01,
                result="no such file: /nope",
            ),
            ToolItem(key="c5", name="deploy", arguments={}, status="blocked", replay="unsafe"),
            ToolItem(
                key="c6", name="sleep", arguments={"seconds": 100}, status="aborted", replay="safe", duration=4200.0
            ),
            TextItem(key="a", text="The build was cut off; Tuesday is *clear*."),
        ),
    ),
    "crashed": AnswerView(
        submission=14,
        status="running",
        model="local:smollm2",
        attempt=2,
        started_at=START,
        can_stop=True,
        items=(
            ThinkingItem(key="t0", text="Paris, obviously.", state="aborted"),
            TextItem(
                key="x0",
                text="The capital of France is **Paris**. It lies on the Seine, and has been the",
                state="aborted",
            ),
            NoticeItem(key="n", text="the kernel died here; attempt 2", level="warn"),
            TextItem(key="x1", text="The capital of France is **Paris**. It", state="streaming"),
        ),
    ),
    "retrying": AnswerView(
        status="retrying",
        model="openai:gpt-4.1",
        attempt=3,
        started_at=START,
        retry_at=START + 12,
        retry_error="503 from the provider: the server is overloaded, please try again later",
        can_stop=True,
        items=(NoticeItem(key="n", text="attempt 2 failed: 503", level="error"),),
    ),
    "unanswered": AnswerView(
        status="unanswered",
        reason="model_error",
        detail_text="401 Unauthorized: set OPENAI_API_KEY, then %durable retry",
        model="openai:gpt-4.1",
        started_at=START,
        ended_at=START + 0.4,
    ),
    "aborted": AnswerView(
        status="aborted",
        reason="aborted",
        model="local:smollm2",
        started_at=START,
        ended_at=START + 3.1,
        output_tokens=40,
        items=(TextItem(key="x", text="It was a dark and stormy night; the rain fell in", state="aborted"),),
    ),
    "waiting": AnswerView(
        status="waiting",
        reason="a person must approve the call of deploy: %durable approve 7 or %durable deny 7",
        model="local:smollm2",
        started_at=START,
        can_stop=True,
        prompt="Deploy the thing\nand tell me how it went",
        show_prompt=True,
    ),
    "approval": AnswerView(
        status="waiting",
        reason='for you, to allow `transfer(amount=120.5, to="DE12")`: `%durable approve c9` or `%durable deny c9`',
        model="openai:gpt-4.1",
        started_at=START,
        can_stop=True,
        items=(
            TextItem(key="a", text="I would pay the invoice now."),
            ToolItem(
                key="c",
                name="transfer",
                call="c9",
                arguments={"amount": 120.5, "to": "DE12"},
                status="approval",
                replay="unsafe",
            ),
        ),
    ),
    "hostile": AnswerView(
        status="done",
        prompt=HOSTILE,
        show_prompt=True,
        model=HOSTILE,
        note=HOSTILE,
        reason=HOSTILE,
        detail_text=HOSTILE,
        items=(
            TextItem(key=HOSTILE, text=XSS),
            TextItem(key="b", text=XSS, state="aborted", label=HOSTILE),
            ThinkingItem(key="c", text=XSS),
            NoticeItem(key="d", text=HOSTILE, level="warn"),
            ToolItem(
                key="e",
                name=HOSTILE,
                arguments={HOSTILE: HOSTILE},
                output=HOSTILE,
                status="error",
                result=HOSTILE,
                details_text=HOSTILE,
                diagnostics=((HOSTILE, HOSTILE),),
            ),
        ),
    ),
}

CARDS: dict[str, View] = {
    "recovery": RecoveryView(
        path="chat.sqlite",
        opened_at=START,
        previous="crashed",
        previous_pid=4242,
        previous_host="lab-3",
        previous_opened_at=START - 900,
        previous_commit_at=START - 40,
        rows=(
            RecoveryRow(
                "submission",
                "Summarise the report…",
                "answering, 312 characters in",
                "goes on; the cut-off part is kept",
            ),
            RecoveryRow("request", "openai:gpt-4.1, attempt 1", "streaming", "is sent again with the same messages"),
            RecoveryRow("tool", 'weather(city="Paris")', "running for 2 s", "runs again: it is safe to repeat"),
            RecoveryRow(
                "tool", "shell(command=…)", "running for 40 s", "is reported as interrupted, not repeated", "warn"
            ),
            RecoveryRow("sleep", "wake at 15:00:00", "sleeping", "wakes at the same time"),
            RecoveryRow("queued", "And in French?", "first in the inbox", "is asked after the run"),
        ),
        paused=True,
        waiting_for=("tool `weather`: run its cell, or `%durable resume`",),
    ),
    "recovery_new": RecoveryView(path="chat.sqlite", opened_at=START),
    "recovery_closed": RecoveryView(
        path="chat.sqlite", previous="closed", previous_opened_at=START - 900, previous_commit_at=START - 40
    ),
    "error": ErrorView(
        message="chat.sqlite is open in another process (4242 on lab-3, since 13:55:02).",
        remedy="Close it there, or open it here with %durable open chat.sqlite --observe.",
        detail_text="SessionInUse: …\n  lock: chat.sqlite.lock",
    ),
    "status": StatusView(
        title="chat.sqlite",
        state="running",
        rows=(
            StatusRow("owner", "this kernel, process 4242, since 13:55:02"),
            StatusRow("model", "local:smollm2"),
            StatusRow("running", "submission 14 (attempt 2), tool shell for 12 s"),
            StatusRow("inbox", "2 queued"),
        ),
    ),
    "tasks": TasksView(
        rows=(
            TaskRow(
                id=21,
                kind="pi.generation",
                status="waiting",
                phase="tools",
                started_at=START,
                about="waits for 2 calls",
            ),
            TaskRow(
                id=22,
                kind="pi.tool",
                status="running",
                phase="execute",
                depth=1,
                attempt=2,
                started_at=START,
                about="shell",
            ),
            TaskRow(
                id=23,
                kind="pi.tool",
                status="blocked",
                phase="call",
                depth=1,
                about="weather: no such tool is installed",
            ),
            TaskRow(
                id=24,
                kind="report.nightly",
                status="completed",
                depth=0,
                started_at=START,
                ended_at=START + 62,
                background=True,
            ),
        ),
        all=True,
        hidden=3,
    ),
    "transcript": TranscriptView(
        conversation=1,
        earlier=12,
        entries=(
            TranscriptEntry(id=31, role="user", text="What is the *capital* of France?", at=START),
            TranscriptEntry(
                id=32,
                role="assistant",
                text="The capital of France is",
                at=START,
                model="local:smollm2",
                markers=("aborted", "cut off by a crash"),
                struck=True,
            ),
            TranscriptEntry(id=33, role="tool", title="weather", text="Mon 14°C\nTue 17°C", at=START + 1),
            TranscriptEntry(id=34, role="assistant", text="It is **Paris**.", at=START + 2, model="local:smollm2"),
            TranscriptEntry(id=35, role="marker", text="compaction", at=START + 3),
        ),
    ),
    "hostile_transcript": TranscriptView(
        entries=tuple(
            TranscriptEntry(id=n, role=role, text=XSS + HOSTILE, title=HOSTILE, model=HOSTILE, markers=(HOSTILE,))
            for n, role in enumerate(("user", "assistant", "tool", "system", "note", "marker"))
        )
    ),
    "hostile_recovery": RecoveryView(
        path=HOSTILE,
        previous="crashed",
        previous_host=HOSTILE,
        previous_pid=1,
        rows=(RecoveryRow("tool", HOSTILE, HOSTILE, HOSTILE),),
        waiting_for=(HOSTILE,),
    ),
    "hostile_error": ErrorView(message=HOSTILE, remedy=HOSTILE, detail_text=HOSTILE),
    "hostile_status": StatusView(title=HOSTILE, rows=(StatusRow(HOSTILE, HOSTILE),)),
    "hostile_tasks": TasksView(rows=(TaskRow(id=1, kind=HOSTILE, status=HOSTILE, phase=HOSTILE, about=HOSTILE),)),
}

WIDGETS: dict[str, type[ViewWidget]] = {
    "AnswerView": AnswerWidget,
    "GraphView": GraphWidget,
    "TimelineView": TimelineWidget,
    "TalkView": ConversationWidget,
    "DashboardView": DashboardWidget,
    "StatusView": NotifyWidget,
}
"""The widget that shows each kind of view."""

HARNESS = """
class FakeModel {
  constructor(state, kernel) {
    Object.assign(this, { state, sent: [], past: [], heard: {} });
    const signal = { connect() {}, disconnect() {} };
    const sendShellMessage = (message) => this.past.push(structuredClone(message));
    if (kernel) kernel = { ...kernel, sendShellMessage, statusChanged: signal, disposed: signal };
    this.widget_manager = { kernel };
  }
  get(name) { return { state: this.state, comm_id: "address" }[name]; }
  set() {}
  on(name, listener) { (this.heard[name] ??= new Set()).add(listener); }
  off(name, listener) { this.heard[name]?.delete(listener); }
  send(content) { this.sent.push(structuredClone(content)); }
  emit(content) { for (const listener of this.heard["msg:custom"] ?? []) listener(structuredClone(content)); }
}
window.models = {};
window.modules = {};
window.show = async (name, view, title = null, kernel = null, kind = "AnswerView") => {
  const source = () => URL.createObjectURL(new Blob([window.esm[kind]], { type: "text/javascript" }));
  const module = await (window.modules[kind] ??= import(source()));
  const model = (window.models[name] = new FakeModel({ seq: 0, view }, kernel));
  const definition = await module.default();
  await definition.initialize({ model });
  const host = document.createElement("div");
  host.className = "lm-Widget jupyter-widgets jp-OutputArea-output";
  host.id = name;
  if (title) {
    const head = document.createElement("div");
    head.className = "caption";
    head.textContent = title;
    document.body.append(head);
  }
  const child = document.createElement("div");
  child.className = "jp-OutputArea-child";
  child.append(host);
  document.body.append(child);
  window.models[name].host = host;
  definition.render({ model, el: host });
  model.emit({ seq: 0, now: window.harnessNow });
};
"""

LAYOUT = """
html body { display: block; margin: 12px; padding: 0; background: var(--jp-layout-color0);
       color: var(--jp-ui-font-color1); font-family: var(--jp-ui-font-family); font-size: var(--jp-ui-font-size1); }
.caption { margin: 14px 0 4px; opacity: .6; font-size: 11px; }
"""


OVERFLOWS = """() => {
  const wide = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wide.push("page " + document.documentElement.scrollWidth);
  for (const node of document.body.querySelectorAll("*")) {
    let scrolls = false;
    for (let up = node.parentElement; up && up !== document.body; up = up.parentElement)
      scrolls ||= ["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX);
    const box = node.getBoundingClientRect();
    if (!scrolls && box.width && box.right > width + 1) wide.push(`${node.tagName}.${node.className} ${box.right}`);
  }
  return wide;
}"""

# The contrast of every text with what is behind it, as a browser would paint it.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const paint = (color, alpha = 1) => {
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    const holder = text.parentElement;
    if (!text.data.trim() || !holder.checkVisibility({ visibilityProperty: true })) continue;
    if (holder.closest(".caption, .pd-copy, .pd-acts, [aria-hidden], [aria-disabled=true]")) continue;
    const chain = [];
    for (let up = holder; up; up = up.parentElement) chain.unshift(getComputedStyle(up));
    let ground = paint("white");
    let alpha = 1;
    for (const style of chain) {
      ground = paint(style.backgroundColor, alpha);
      alpha *= Number(style.opacity);
    }
    const front = paint(getComputedStyle(holder).color, alpha);
    const [low, high] = [light(ground), light(front)].sort((one, other) => one - other);
    found.push([(high + 0.05) / (low + 0.05), text.data.trim().slice(0, 40), holder.className || holder.tagName]);
  }
  return found;
}"""


def theme(name: str) -> str:
    """The style sheets that JupyterLab gives a notebook in its ``light`` or ``dark`` theme."""
    for folder in jupyter_path("nbconvert", "templates", "lab", "static"):
        path = Path(folder)
        if (path / f"theme-{name}.css").exists():
            return (path / "index.css").read_text() + (path / f"theme-{name}.css").read_text()
    raise FileNotFoundError("nbconvert's lab template is not installed; it holds JupyterLab's themes")


@contextmanager
def launched(chromium: str) -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def browser_page(
    browser: Browser, *, dark: bool = False, width: int = 1200, calm: bool = False, bare: bool = False
) -> Iterator[Page]:
    """A page that looks like an output area, with the harness loaded; ``bare`` has no theme at all."""
    page = browser.new_page(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if calm else "no-preference",
    )
    try:
        css = "body{margin:12px}" if bare else theme("dark" if dark else "light") + LAYOUT
        page.set_content(
            f"<!doctype html><html lang=en><head><title>gallery</title><style>{css}</style>"
            f"<style>{''.join(widget._css for widget in WIDGETS.values())}</style></head><body></body></html>"
        )
        modules = {kind: widget._esm for kind, widget in WIDGETS.items()}
        page.evaluate("([esm, now]) => { window.esm = esm; window.harnessNow = now; }", [modules, START + 7])
        page.add_script_tag(content=HARNESS)
        yield page
    finally:
        page.close()


def show_live(page: Page, name: str, view: Any, *, caption: bool = False, kernel: dict[str, Any] | None = None) -> None:
    """Render ``view`` in the page as a live widget with the id ``name``; ``kernel`` is what the page knows of it."""
    page.evaluate(
        "(given) => window.show(...given)",
        [
            name,
            WIDGETS[type(view).__name__](view).state["view"],
            name if caption else None,
            kernel,
            type(view).__name__,
        ],
    )


def show_static(page: Page, name: str, markup: str, *, caption: bool = False) -> None:
    """Put a static form in the page as JupyterLab would, in an element with the id ``name``."""
    page.evaluate(
        """([name, markup, title]) => {
          if (title) document.body.insertAdjacentHTML("beforeend", "<div class=caption>" + title + "</div>");
          const host = document.createElement("div");
          host.id = name;
          host.className = "jp-RenderedHTMLCommon jp-RenderedHTML jp-OutputArea-output";
          host.innerHTML = markup;
          const child = document.createElement("div");
          child.className = "jp-OutputArea-child";
          child.append(host);
          document.body.append(child);
        }""",
        [name, markup, name if caption else None],
    )


def send(page: Page, name: str, message: dict[str, Any]) -> None:
    """Deliver a message of the kernel to the widget ``name``."""
    page.evaluate("([name, message]) => window.models[name].emit(message)", [name, message])


def sent(page: Page, name: str) -> list[dict[str, Any]]:
    """What the widget ``name`` sent to the kernel."""
    return json.loads(page.evaluate("(name) => JSON.stringify(window.models[name].sent)", name))


def main(folder: str) -> None:
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no chromium: install it (apt-get install chromium) or name it in PIDURABLE_CHROMIUM")
    with launched(chromium) as browser:
        for dark, width in ((False, 1200), (False, 420), (True, 1200), (True, 420)):
            looks = f"{'dark' if dark else 'light'}-{width}"
            with browser_page(browser, dark=dark, width=width, calm=True) as page:
                for name, view in ANSWERS.items():
                    show_live(page, name, view, caption=True)
                page.screenshot(path=target / f"live-{looks}.png", full_page=True)
            with browser_page(browser, dark=dark, width=width) as page:
                for name, card in {**ANSWERS, **CARDS}.items():
                    if "hostile" not in name:
                        show_static(page, name, to_html(card), caption=True)
                page.screenshot(path=target / f"static-{looks}.png", full_page=True)


if __name__ == "__main__":
    main(sys.argv[1])
