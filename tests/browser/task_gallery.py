"""Sample task graphs and timelines for the browser tests and for people.

``python -m tests.browser.task_gallery DIR`` writes the pictures of every sample, live and static, light and dark, wide
and narrow, to ``DIR``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pidurable_nb.notebook.graphview import GraphRow, GraphView
from pidurable_nb.notebook.render import to_html
from pidurable_nb.notebook.timelineview import TimelineRows, TimelineView
from pidurable_nb.records import (
    Attempt,
    Completed,
    ErrorInfo,
    Failed,
    Life,
    Pending,
    Running,
    Sleeping,
    SubmissionRecord,
    TaskRecord,
    TaskState,
    Terminal,
    Waiting,
)

from .lab import find_chromium
from .widget_gallery import HOSTILE, START, browser_page, launched, show_live, show_static

NOW = START + 7
"""What the pages of the gallery take for now."""

TURN = GraphView(
    rows=(
        GraphRow(9, "pi.generation", "turn", "completed", started_at=START - 40, ended_at=START - 31.2),
        GraphRow(
            12, "pi.tool", 'weather(city="Paris")', "completed", owner=9, started_at=START - 39, ended_at=START - 37
        ),
        GraphRow(
            21, "pi.generation", "turn", "waiting", phase="tools", about="waits for its 3 tasks", started_at=START - 4
        ),
        GraphRow(
            24,
            "pi.tool",
            'shell(command="make -j2 all && ./run-tests --verbose")',
            "running",
            phase="execute",
            owner=21,
            attempt=2,
            started_at=START - 3,
        ),
        GraphRow(
            25,
            "pi.tool",
            'search(query="durable execution")',
            "completed",
            owner=21,
            started_at=START - 3,
            ended_at=START - 1.4,
        ),
        GraphRow(
            26,
            "pi.tool",
            'deploy(target="staging")',
            "waiting",
            phase="approve",
            owner=21,
            about="waits for a person",
            started_at=START - 3,
        ),
        GraphRow(
            31,
            "report.nightly",
            'report.nightly(format="pdf")',
            "sleeping",
            phase="send",
            background=True,
            until=START + 3700,
            started_at=START - 900,
        ),
        GraphRow(
            32,
            "shop.payment",
            "shop.payment(amount=12.5)",
            "blocked",
            phase="capture",
            about="its code is not installed here",
            started_at=START - 800,
        ),
        GraphRow(
            33,
            "shop.checkout",
            "shop.checkout(order=7)",
            "waiting",
            phase="finish",
            edges=(32, 26),
            about="waits for 32, 26",
            started_at=START - 800,
        ),
        GraphRow(
            34,
            "shop.payment",
            "shop.payment(amount=3)",
            "running",
            phase="authorize",
            owner=33,
            aborting=True,
            started_at=START - 2,
        ),
        GraphRow(
            35,
            "shop.payment",
            "shop.payment(amount=4)",
            "failed",
            owner=33,
            about="the card was refused",
            started_at=START - 60,
            ended_at=START - 58,
        ),
    ),
    hidden=12,
)

MANY_STATES = ("completed", "completed", "running", "ready", "waiting", "sleeping")


def many(count: int = 1000) -> GraphView:
    """One task that owns ``count`` others, a few of them in trouble."""
    rows = [GraphRow(1, "batch", "batch(pages=1000)", "waiting", phase="all", about=f"waits for its {count} tasks")]
    for number in range(count):
        state = "blocked" if number % 400 == 7 else "failed" if number % 300 == 11 else MANY_STATES[number % 6]
        ended = state in ("completed", "failed")
        rows.append(
            GraphRow(
                id=number + 2,
                kind="page",
                title=f"page(number={number})",
                state=state,
                phase=None if ended else "fetch",
                owner=1,
                about="its code is not installed here"
                if state == "blocked"
                else "timed out"
                if state == "failed"
                else "",
                started_at=START - 20,
                ended_at=START - 10 if ended else None,
                until=START + 60 if state == "sleeping" else None,
            )
        )
    return GraphView(rows=tuple(rows))


GRAPHS: dict[str, GraphView] = {
    "graph": TURN,
    "graph-empty": GraphView(),
    "graph-held": TURN.replaced(
        rows=TURN.rows[2:6], hidden=0, held="waits for tool `weather`: run its cell, or `%durable resume`"
    ),
    "graph-many": many(),
    "graph-hostile": GraphView(
        rows=(
            GraphRow(1, HOSTILE, HOSTILE, HOSTILE, phase=HOSTILE, about=HOSTILE, edges=(2,)),
            GraphRow(2, "x", HOSTILE, "running"),
        ),
        held=HOSTILE,
    ),
}


def task(id: int, state: TaskState, **changes: object) -> TaskRecord:
    fields = {"kind": "pi.generation", "version": 1, "conversation_id": 1} | changes
    return TaskRecord.model_validate({"id": id, "state": state} | fields)


def call(id: int, name: str, owner: int, state: TaskState) -> TaskRecord:
    return task(id, state, kind="pi.tool", owner=owner, input={"name": name, "arguments": {"city": "Paris"}})


DONE = Terminal(outcome=Completed())


def crashed() -> TimelineView:
    """A night: a turn cut off by a crash, a long sleep, a closed session, and a turn that goes on now."""
    night = START - 8 * 3600
    rows = TimelineRows()
    rows.update(
        lives=[
            Life(1, 4242, "lab-3", night - 5, last_commit=20, last_commit_at=night + 14),
            Life(2, 4300, "lab-3", night + 25, last_commit_at=night + 60, ended="closed", ended_at=night + 62),
            Life(3, 5100, "lab-3", START - 3),
        ],
        questions=[
            SubmissionRecord(5, 1, "input", "done", entry=7, answer=15),
            SubmissionRecord(20, 1, "input", "placed", entry=21),
            SubmissionRecord(40, 1, "input", "queued"),
        ],
        prompts={
            5: "How is the weather in Paris, and what should I wear for a walk along the river?",
            20: "And tomorrow?",
            40: "Then book a table.",
        },
        tasks=[
            task(8, DONE),
            call(10, "weather", 8, DONE),
            call(11, "wardrobe", 8, Terminal(outcome=Failed(ErrorInfo("no such drawer")))),
            task(14, DONE),
            task(18, Sleeping({"phase": "send"}, START + 3600), kind="report.nightly", background=True),
            task(22, Waiting({"phase": "tools"}, (23, 24))),
            call(23, "weather", 22, Running({"phase": "execute"})),
            call(24, "forecast", 22, Running({"phase": "execute"})),
            task(30, Pending({"phase": "send"}), kind="mail.send", input={"to": "ada"}),
        ],
        attempts={
            8: [
                Attempt(8, 1, "prepare", night, night + 3, "parked"),
                Attempt(8, 2, "tools", night + 33, night + 33.2, "ended"),
            ],
            10: [
                Attempt(10, 1, "call", night + 3, night + 14, "cut_off"),
                Attempt(10, 2, "execute", night + 25.2, night + 33, "ended"),
            ],
            11: [Attempt(11, 1, "call", night + 3, night + 5, "ended")],
            14: [
                Attempt(14, 2, "prepare", night + 33.2, night + 38, "parked"),
                Attempt(14, 2, "retry", night + 46, night + 55, "ended"),
            ],
            18: [Attempt(18, 2, "collect", night + 40, night + 44, "parked")],
            22: [Attempt(22, 3, "prepare", START - 2, START + 1, "parked")],
            23: [Attempt(23, 3, "call", START + 1)],
            24: [Attempt(24, 3, "call", START + 1, None)],
            30: [Attempt(30, 2, "send", night + 58, night + 62, "parked")],
        },
    )
    return rows.view(NOW)


def many_turns(count: int = 300) -> TimelineView:
    """A session of many turns with pauses between them."""
    rows = TimelineRows()
    start = START - 90 * count
    tasks, questions, attempts, prompts = [], [], {}, {}
    for number in range(count):
        id, at = 10 * number + 5, start + 90 * number
        questions.append(SubmissionRecord(id, 1, "input", "done", entry=id + 1, answer=id + 5))
        prompts[id] = f"Question {number + 1}"
        tasks.append(task(id + 2, DONE))
        attempts[id + 2] = [Attempt(id + 2, 1, "prepare", at, at + 4, "ended")]
    rows.update(
        lives=[Life(1, 4242, "lab-3", start - 5)], questions=questions, prompts=prompts, tasks=tasks, attempts=attempts
    )
    return rows.view(NOW)


TIMELINES: dict[str, TimelineView] = {
    "timeline": crashed(),
    "timeline-empty": TimelineView(now=NOW),
    "timeline-many": many_turns(),
}


def main(folder: str) -> None:
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no chromium: install it (apt-get install chromium) or name it in PIDURABLE_CHROMIUM")
    with launched(chromium) as browser:
        for dark, width in ((False, 1200), (False, 480), (True, 1200), (True, 480)):
            looks = f"{'dark' if dark else 'light'}-{width}"
            for stem, views in (("graphs", GRAPHS), ("timelines", TIMELINES)):
                with browser_page(browser, dark=dark, width=width, calm=True) as page:
                    for name, view in views.items():
                        if "hostile" not in name:
                            show_live(page, name, view, caption=True)
                            show_static(page, f"static-{name}", to_html(view), caption=True)
                    page.screenshot(path=target / f"{stem}-{looks}.png", full_page=True)


if __name__ == "__main__":
    main(sys.argv[1])
