"""The static forms of the task graph and of the timeline."""

from __future__ import annotations

from .graphview import GraphRow, GraphView
from .markdown import LINE, TINT
from .markup import CARD, CELL, MONO, QUIET, ROW, TABLE, TONES, Html, badge, dots, el, join, quiet, sign, table, ticks
from .timelineview import Axis, TimelineBar, TimelineLife, TimelineRow, TimelineView
from .view import clean_output, clock_time, duration_words

__all__ = ["graph_html", "graph_text", "timeline_html", "timeline_text"]

ROWS = 40
"""Rows of a static timeline: the newest."""
LIVES = 12
"""Lives that it lists: the newest."""


# -- the graph -------------------------------------------------------------------------------------------------------


def graph_html(view: GraphView) -> Html:
    """A table with the tree in its first column."""
    parts: list[str] = [quiet(view.title)]
    if view.held:
        parts.append(el("div", el("span", "!", style=f"color:{TONES['warn']};font-weight:700"), " ", ticks(view.held)))
    rows = []
    for depth, item in view.lines():
        pad = f"padding-left:{1.2 * depth:.1f}em"
        if isinstance(item, str):
            rows.append([el("span", f"… {item}", style=f"{pad};{QUIET}"), "", "", ""])
            continue
        name = join([el("span", f"{item.id} ", style="opacity:.75"), el("code", item.title, style=MONO)])
        rows.append([el("span", "└ " if depth else "", name, style=pad), badge(item.badge), _phase(item), _rest(item)])
    if rows:
        parts.append(table(["task", "state", "phase", ""], rows))
    if view.hidden:
        parts.append(quiet(f"{view.hidden:,} that ended earlier are left out"))
    return el("div", *parts, style=CARD)


def _phase(row: GraphRow) -> str:
    return clean_output(row.phase or "")


def _rest(row: GraphRow) -> str:
    return dots(row.facts[1:] if row.phase else row.facts)


def graph_text(view: GraphView) -> str:
    """The tree, a task on each line."""
    lines = [view.title]
    if view.held:
        lines.append(f"! {clean_output(view.held)}")
    for depth, item in view.lines():
        indent = "  " * (depth + 1)
        if isinstance(item, str):
            lines.append(f"{indent}… {item}")
        else:
            state = f"{item.badge.icon} {item.badge.word}"
            lines.append(indent + " · ".join([f"{item.id} {item.title}", state, *map(clean_output, item.facts)]))
    if view.hidden:
        lines.append(f"  {view.hidden:,} that ended earlier are left out")
    return "\n".join(lines)


# -- the timeline ----------------------------------------------------------------------------------------------------

_HATCH = "repeating-linear-gradient(135deg,currentColor 0 1px,transparent 1px 5px)"
_BARS: dict[str, str] = {
    "parked": f"background:{TONES['active']}",
    "ended": f"background:{TONES['good']}",
    "cut_off": f"background:{TONES['bad']};border-right:2px dashed currentColor",
    "running": f"background:{TONES['active']};opacity:.7",
    "asleep": f"background:{_HATCH};opacity:.55",
    "idle": f"background:{_HATCH};opacity:.55",
    "waiting": "border-top:2px dotted currentColor;top:calc(50% - 1px);height:0;opacity:.6",
    "dead": "border-top:1px dashed currentColor;top:50%;height:0;opacity:.6",
    "span": "border-top:2px solid currentColor;top:calc(50% - 1px);height:0;opacity:.7",
}


def timeline_html(view: TimelineView) -> Html:
    """A table with the bars in its second column, and in words in its last."""
    shown = view.newest(ROWS)
    parts: list[str] = [quiet(view.title)]
    if shown.rows:
        parts.append(_timeline_table(shown))
    for life in shown.lives[-LIVES:]:
        parts.append(el("div", _life_sign(life), " ", life.words, style=QUIET))
    if shown.earlier:
        parts.append(quiet(f"{shown.earlier:,} earlier rows are left out"))
    return el("div", *parts, style=CARD)


def _timeline_table(view: TimelineView) -> Html:
    head_style = f"{CELL};border-top:0;font-weight:600;{QUIET}"
    axis = el("div", *_labels(view.axis), style="position:relative;height:1.3em")
    head = el(
        "tr",
        el("th", "task", style=f"{head_style};width:30%"),
        el("th", axis, style=f"{head_style};width:38%"),
        el("td", "", style=head_style),
    )
    body = []
    for row in view.rows:
        title = el("span", row.title, style=f"{MONO if row.key.startswith('t') else ''}")
        name = el("span", sign(row.badge), " ", title, style=f"padding-left:{1.1 * row.depth:.1f}em")
        body.append(
            el(
                "tr",
                el("td", name, style=CELL),
                el("td", _chart(view, row), style=f"{CELL};vertical-align:middle"),
                el("td", _words(row, view.now), style=f"{CELL};{QUIET}"),
                style=ROW,
            )
        )
    return el(
        "div",
        el("table", el("thead", head), el("tbody", *body), style=f"{TABLE};table-layout:fixed"),
        style="overflow-x:auto",
    )


def _labels(axis: Axis) -> list[Html]:
    """A few of the axis's times, as far apart as narrow pages need."""
    labels, last = [], -1.0
    for place, label, level in axis.ticks:
        if level or place - last < 0.3 or place > 0.8:
            continue
        last = place
        style = f"position:absolute;left:{place:.1%};white-space:nowrap;font-weight:400;border-left:1px solid {LINE}"
        labels.append(el("span", label, style=f"{style};padding-left:2px"))
    return labels


def _chart(view: TimelineView, row: TimelineRow) -> Html:
    inside: list[str] = []
    for start, end, _ in view.axis.breaks:
        inside.append(_box(start, end, f"top:0;bottom:0;background:{TINT}"))
    for life in view.lives:
        if life.number > 1:
            inside.append(_line(view.axis.place(life.start), "solid", "active"))
        if life.end is not None:
            inside.append(_line(view.axis.place(life.end), "dashed", "bad" if life.ended == "crashed" else "muted"))
    inside.extend(_bar(view, bar) for bar in row.bars)
    return el("div", *inside, style="position:relative;height:1em;min-width:6em", aria_hidden="true")


def _bar(view: TimelineView, bar: TimelineBar) -> Html:
    end = bar.end if bar.end is not None else bar.until if bar.until is not None else view.now
    look = _BARS[bar.how]
    place = "" if "top:" in look else "top:15%;bottom:15%;border-radius:2px;"
    return _box(view.axis.place(bar.start), view.axis.place(end), f"{place}{look}")


def _box(start: float, end: float, style: str) -> Html:
    return el(
        "div", style=f"position:absolute;left:{start:.2%};width:{max(0.0, end - start):.2%};min-width:2px;{style}"
    )


def _line(place: float, stroke: str, tone: str) -> Html:
    colour = TONES["bad"] if tone == "bad" else TONES["active"] if tone == "active" else "currentColor"
    return el("div", style=f"position:absolute;left:{place:.2%};top:-4px;bottom:-4px;border-left:1px {stroke} {colour}")


def _life_sign(life: TimelineLife) -> str:
    return {"crashed": "✕", "failed": "✕", "closed": "○", None: "◐"}[life.ended]


def _words(row: TimelineRow, now: float) -> str:
    """State, beginning, duration and what was special, in words."""
    said = [row.badge.word]
    if (took := row.duration(now)) is not None and row.start is not None:
        said += [f"from {clock_time(row.start)}", duration_words(took)]
    if row.attempts > 1:
        said.append(f"ran {row.attempts} times")
    cut = sum(bar.how == "cut_off" for bar in row.bars)
    if cut:
        said.append("cut off by a crash" if cut == 1 else f"cut off {cut} times")
    asleep = sum((bar.end or now) - bar.start for bar in row.bars if bar.kind == "asleep")
    if asleep:
        said.append(f"asleep {duration_words(asleep)}")
    return " · ".join(said)


def timeline_text(view: TimelineView) -> str:
    """A line for each row and each life."""
    shown = view.newest(ROWS)
    lines = [view.title]
    if shown.earlier:
        lines.append(f"  … {shown.earlier:,} earlier rows are left out")
    for row in shown.rows:
        lines.append(f"{'  ' * (row.depth + 1)}{row.badge.icon} {row.title} · {_words(row, view.now)}")
    lines.extend(f"  {_life_sign(life)} {life.words}" for life in shown.lives[-LIVES:])
    return "\n".join(lines)
