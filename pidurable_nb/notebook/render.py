"""The static forms of every view: HTML, Markdown and plain text.

``to_html`` gives HTML that needs neither a script nor a style sheet: it looks the same in JupyterLab, Notebook, VS Code
and nbconvert's pages, in light and dark, and stays readable where every style is removed, as on GitHub. Colours are the
page's (``--jp-*`` variables) with fallbacks, text takes the colour of what is around it, folding is ``<details>``.
``to_text`` is for terminals and for ``nbclient``. ``mimebundle`` gathers the forms for ``_repr_mimebundle_``.

Guarantee: every text of a view is escaped, or goes through ``markdown``; elements are made by ``markup`` alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import singledispatch

from . import markdown
from .dashboardview import DashboardView
from .graphview import GraphView
from .markdown import LINE
from .markup import (
    CARD,
    CELL,
    EMPTY,
    MONO,
    QUIET,
    ROW,
    TABLE,
    TONES,
    Html,
    badge,
    dots,
    el,
    fold,
    header,
    join,
    picture,
    pre,
    quiet,
    table,
    ticks,
)
from .render_tasks import graph_html, graph_text, timeline_html, timeline_text
from .talkview import TalkView
from .timelineview import TimelineView
from .view import (
    AnswerItem,
    AnswerView,
    ComparisonView,
    ConversationsView,
    ErrorView,
    NoticeItem,
    RecoveryView,
    StatusView,
    TasksView,
    TextItem,
    ThinkingItem,
    Tone,
    ToolItem,
    TranscriptEntry,
    TranscriptView,
    View,
    clean_output,
    clip,
    compact_arguments,
    duration_words,
    full_arguments,
)

__all__ = ["Shown", "entries_html", "fence", "mimebundle", "to_html", "to_markdown", "to_text"]

STATIC_LIMIT = 4_000
"""Characters of a tool's output or result in a static form, which is saved in the notebook."""

STATIC_BLOCKS = 20
"""Entries of a conversation's static form: the newest."""

STRUCK_OPEN_LIMIT = 600
"""A cut-off part is shown unfolded up to this many characters."""


# -- HTML ----------------------------------------------------------------------------------------------------------


@singledispatch
def _html(view: View) -> Html:
    raise TypeError(f"there is no HTML form of {type(view).__name__}")


def to_html(view: View) -> str:
    """The view as HTML without script or style sheet."""
    return str(_html(view))


@_html.register
def _(view: AnswerView) -> Html:
    facts = list(view.facts)
    if view.elapsed is not None:
        facts.append(duration_words(view.elapsed))
    parts = [header(view.badge, facts)]
    if view.show_prompt and view.prompt:
        parts.append(_prompt(view.prompt))
    if view.problem:
        parts.append(el("div", ticks(view.problem), style="margin:0 0 .4em"))
    parts.extend(_item_html(view, item) for item in view.items)
    footer = [*view.usage, *([view.note] if view.note else [])]
    if footer:
        parts.append(el("div", dots(footer), style=f"{QUIET};margin-top:.35em"))
    return el("div", *parts, style=CARD)


def _prompt(text: str) -> Html:
    style = f"margin:0 0 .5em;padding:0 0 0 .9em;border-left:3px solid {LINE};white-space:pre-wrap;opacity:.85"
    return el("blockquote", clip(text, STATIC_LIMIT), style=style)


def _item_html(view: AnswerView, item: AnswerItem) -> Html:
    if isinstance(item, TextItem):
        body = el("div", Html(markdown.to_html(item.text)))
        label = view.label(item)
        if label is None:
            return body
        if view.superseded(item):
            struck = el("del", Html(markdown.to_html(item.text)), style="text-decoration:line-through;opacity:.75")
            opened = len(item.text) <= STRUCK_OPEN_LIMIT
            return fold(
                label, struck, opened=opened, style=f"margin:.35em 0;padding-left:.9em;border-left:3px solid {LINE}"
            )
        return join([body, quiet(label)])
    if isinstance(item, ThinkingItem):
        label = view.label(item)
        title = f"{item.title} · {label}" if label else item.title
        return el("div", fold(title, el("div", Html(markdown.to_html(item.text)), style=QUIET)), style="")
    if isinstance(item, NoticeItem):
        return el("div", _notice_icon(item), " ", ticks(item.text), style="margin:.35em 0")
    return _tool_html(view, item)


def _notice_icon(item: NoticeItem) -> Html:
    icon = el("span", item.badge.icon, style=f"color:{TONES[item.badge.tone]};font-weight:700")
    return icon if item.level == "info" else join([icon, " ", el("strong", item.badge.word)])


def _tool_html(view: AnswerView, item: ToolItem) -> Html:
    call = el("code", f"{item.name}({compact_arguments(item.arguments) if item.arguments else ''})", style=MONO)
    summary = join([badge(item.badge), " ", call, el("span", *(f" · {fact}" for fact in item.facts[1:]), style=QUIET)])
    parts: list[str] = []
    where = None if view.submission is None else f"%durable show {view.submission}"
    if arguments := full_arguments(item.arguments):
        parts += [quiet("arguments"), pre(clip(arguments, STATIC_LIMIT, where))]
    if output := item.shown_output.strip("\n"):
        parts += [quiet("output"), pre(clip(output, STATIC_LIMIT, where))]
    if item.result:
        parts += [quiet("result"), pre(clip(clean_output(item.result), STATIC_LIMIT, where))]
    parts += [picture(address, f"image {number} of the result") for number, address in enumerate(item.pictures, 1)]
    if item.details_text:
        parts += [quiet("details"), pre(clip(clean_output(item.details_text), STATIC_LIMIT, where))]
    parts += [el("div", el("strong", severity), f": {message}") for severity, message in item.diagnostics]
    if not parts:
        return el("div", summary, style="margin:.35em 0")
    return fold(summary, *parts, opened=bool(item.pictures) or item.status in ("error", "interrupted", "blocked"))


@_html.register
def _(view: RecoveryView) -> Html:
    parts = [header(view.badge, [view.path]), el("div", ticks(view.headline))]
    if view.summary:
        parts.append(el("div", view.summary))
    if view.rows:
        rows = [
            [
                el("span", _level_icon(row.level), " ", row.what, style="white-space:nowrap"),
                el("strong", row.title, style="font-weight:600"),
                ticks(row.was),
                ticks(row.will),
            ]
            for row in view.rows
        ]
        parts.append(table(["in flight", "", "was", "now"], rows))
    parts.extend(el("div", _waits(), ticks(text), style="margin-top:.35em") for text in view.waiting_for)
    if view.paused and not view.waiting_for:
        parts.append(el("div", _waits("paused: "), "%durable resume goes on", style="margin-top:.35em"))
    return el("div", *parts, style=CARD)


def _waits(words: str = "waiting for ") -> Html:
    icon = el("span", "!", style=f"color:{TONES['warn']};font-weight:700")
    return join([icon, " ", el("strong", words, style="font-weight:600")])


def _level_icon(level: str) -> Html:
    tone: Tone = {"info": "active", "warn": "warn", "error": "bad"}[level]  # type: ignore[assignment]
    return el("span", _LEVEL_ICONS[level], style=f"color:{TONES[tone]};font-weight:700")


_LEVEL_ICONS = {"info": "↻", "warn": "!", "error": "✕"}


@_html.register
def _(view: ErrorView) -> Html:
    parts = [el("div", badge(view.badge), el("span", " · ", style=QUIET), ticks(view.message))]
    if view.remedy:
        parts.append(el("div", ticks(view.remedy), style="margin-top:.2em"))
    if view.detail_text:
        parts.append(fold("details", pre(clip(clean_output(view.detail_text), STATIC_LIMIT))))
    return el("div", *parts, style=CARD)


@_html.register
def _(view: StatusView) -> Html:
    parts = [header(view.badge, [view.title, *([] if view.current else ["not the current session"])])]
    if view.rows:
        name = f"{CELL};width:1%;white-space:nowrap;{QUIET}"
        rows = (
            el(
                "tr",
                el("th", row.name, style=f"{name};font-weight:400", scope="row"),
                el("td", row.value, style=CELL),
                style=ROW,
            )
            for row in view.rows
        )
        parts.append(el("table", el("tbody", *rows), style=TABLE))
    return el("div", *parts, style=CARD)


@_html.register
def _(view: TasksView) -> Html:
    parts = [quiet(view.title)]
    if view.rows:
        rows = []
        for row in view.rows:
            kind = join([el("code", row.kind, style=MONO), *([" · background"] if row.background else [])])
            indented = el(
                "span", "└ " if row.depth else "", kind, style=f"padding-left:{1.1 * max(0, row.depth - 1):.1f}em"
            )
            attempt = str(row.attempt) if row.attempt > 1 else ""
            rows.append([f"{row.id}", indented, badge(row.badge), row.phase or "", attempt, row.time, row.about])
        parts.append(table(["id", "kind", "status", "phase", "attempt", "time", ""], rows))
    if view.hidden:
        parts.append(quiet(f"and {view.hidden:,} more"))
    return el("div", *parts, style=CARD)


@_html.register
def _(view: TranscriptView) -> Html:
    parts = [quiet(view.title)]
    if view.earlier:
        parts.append(quiet(f"… {view.earlier:,} earlier"))
    parts.extend(map(_entry_html, view.entries))
    return el("div", *parts, style=CARD)


def entries_html(entries: Iterable[TranscriptEntry]) -> str:
    """Entries of a transcript one below the other, their texts in full, as HTML without script or style sheet."""
    return str(join(_entry_html(entry, limit=None) for entry in entries))


def _entry_html(entry: TranscriptEntry, limit: int | None = STATIC_LIMIT) -> Html:
    if entry.role in ("user", "assistant"):
        body = el("div", Html(markdown.to_html(entry.text)))
    elif "\n" in entry.text or len(entry.text) > 200:
        text = clean_output(entry.text)
        body = pre(text if limit is None else clip(text, limit, f"%durable show {entry.id}"))
    else:
        body = el("div", clean_output(entry.text), style=QUIET)
    if entry.struck:
        body = el("del", body, style="text-decoration:line-through;opacity:.75")
    return _said_html(entry.who, entry.facts, body)


def _said_html(who: str, facts: Iterable[str], body: Html) -> Html:
    """One entry of a transcript: who, when, and what was said."""
    facts = list(facts)
    rest = el("span", " · ", dots(facts), style=QUIET) if facts else EMPTY
    head = el("div", el("strong", who, style="font-weight:600"), rest)
    return el("div", head, body, style=f"border-top:1px solid {LINE};padding:.4em 0 0;margin:.4em 0 0")


@_html.register
def _(view: ConversationsView) -> Html:
    rows = []
    for row in view.rows:
        name = el("strong", row.title, style="font-weight:600") if row.current else el("span", row.title)
        indented = el("div", name, style=f"padding-left:{row.depth * 1.4:g}em;white-space:nowrap")
        rows.append([indented, el("span", dots(row.facts), style=QUIET), row.said])
    return el("div", quiet(view.title), table(["conversation", "", "asked last"], rows), style=CARD)


@_html.register
def _(view: ComparisonView) -> Html:
    sides = (
        el(
            "div",
            el("strong", title, style="font-weight:600"),
            *(map(_entry_html, entries) if entries else [quiet("nothing more")]),
            style="flex:1 1 18em;min-width:0",
        )
        for title, entries in ((view.left, view.ours), (view.right, view.theirs))
    )
    both = el("div", *sides, style="display:flex;flex-wrap:wrap;gap:.6em 1.6em;margin:.4em 0 0")
    return el("div", quiet(view.title), both, style=CARD)


@_html.register
def _(view: TalkView) -> Html:
    parts = [header(view.badge, view.facts)]
    if view.problem:
        parts.append(el("div", ticks(view.problem), style="margin:0 0 .4em"))
    if view.earlier or len(view.blocks) > STATIC_BLOCKS:
        parts.append(quiet("… earlier entries are left out; %durable history shows them"))
    for block in view.blocks[-STATIC_BLOCKS:]:
        if block.answer is not None:
            body = join(_item_html(block.answer, item) for item in block.answer.items)
            parts.append(_said_html(block.who, block.facts, body))
        elif block.said is not None:
            parts.append(_entry_html(block.said))
    parts.extend(quiet(f"{chip.mode}: {chip.text}") for chip in view.waiting)
    if view.usage:
        parts.append(el("div", dots(view.usage), style=f"{QUIET};margin-top:.5em"))
    return el("div", *parts, style=CARD)


@_html.register
def _(view: DashboardView) -> Html:
    return join(_html(part) for part in (view.talk, view.graph, view.timeline, view.recovery))


_html.register(GraphView, graph_html)
_html.register(TimelineView, timeline_html)


# -- Markdown ------------------------------------------------------------------------------------------------------


def to_markdown(view: View) -> str:
    """The view as Markdown: for an answer its text, with calls and notices as quoted lines; else a code block."""
    if not isinstance(view, AnswerView):
        return fence(to_text(view))
    parts = []
    if view.show_prompt and view.prompt:
        parts.append(_quote(view.prompt))
    for item in view.items:
        if isinstance(item, TextItem):
            label = view.label(item)
            if view.superseded(item):
                parts.append(_quote(f"*{label}*\n\n{item.text.strip()}"))
            elif item.text.strip():
                parts.append(item.text.strip("\n") + (f"\n\n*{label}*" if label else ""))
        elif isinstance(item, ToolItem):
            parts.append(_quote(f"{_code(_call(item))} · {' · '.join(item.facts)}"))
        elif isinstance(item, NoticeItem):
            parts.append(_quote(f"{item.text}"))
    if view.status != "done":
        parts.insert(0, f"**{view.badge.word}**{f' · {view.problem}' if view.problem else ''}")
    return "\n\n".join(parts)


def fence(text: str, language: str = "") -> str:
    """A block of code, whatever is in it."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text}\n{ticks}"


def _code(text: str) -> str:
    ticks = "`"
    while ticks in text:
        ticks += "`"
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _call(item: ToolItem) -> str:
    return f"{item.name}({compact_arguments(item.arguments) if item.arguments else ''})"


# -- text ----------------------------------------------------------------------------------------------------------

TEXT_WIDTH = 100


@singledispatch
def _text(view: View) -> str:
    raise TypeError(f"there is no text form of {type(view).__name__}")


def to_text(view: View) -> str:
    """The view as plain text for a terminal, without escape sequences."""
    return clean_output(_text(view))


def _line(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _indent(text: str, by: str = "    ") -> str:
    return textwrap.indent(text.strip("\n"), by)


@_text.register
def _(view: AnswerView) -> str:
    elapsed = "" if view.elapsed is None else duration_words(view.elapsed)
    lines = [_line(f"{view.badge.icon} {view.badge.word}", *view.facts, elapsed, *view.usage)]
    if view.show_prompt and view.prompt:
        lines.append(_indent(clean_output(clip(view.prompt, STATIC_LIMIT)), "> "))
    if view.problem:
        lines.append(clean_output(view.problem))
    lines.extend(text for item in view.items if (text := _item_text(view, item)))
    if view.note:
        lines.append(f"({view.note})")
    return "\n".join(lines)


def _item_text(view: AnswerView, item: AnswerItem) -> str:
    if isinstance(item, ThinkingItem):
        return f"[{_line(item.title, view.label(item) or '')}]"
    if isinstance(item, NoticeItem):
        return f"{item.badge.icon} {clean_output(item.text)}"
    if isinstance(item, ToolItem):
        lines = [_line(f"{item.badge.icon} {clean_output(_call(item))}", *item.facts)]
        shown = item.result if item.result is not None else item.shown_output
        if shown:
            lines.append(_indent(clean_output(clip(shown, STATIC_LIMIT))))
        lines += [f"    {severity}: {clean_output(message)}" for severity, message in item.diagnostics]
        return "\n".join(lines)
    label, text = view.label(item), clean_output(item.text.strip("\n"))
    if label is None:
        return text
    return f"~~ {label} ~~\n{_indent(text, '~ ')}" if view.superseded(item) else f"{text}\n[{label}]"


@_text.register
def _(view: RecoveryView) -> str:
    lines = [_line(f"{view.badge.icon} {view.badge.word}", view.path), view.headline]
    if view.summary:
        lines.append(view.summary)
    for row in view.rows:
        lines.append(f"  {_LEVEL_ICONS[row.level]} {row.what} {row.title} · was: {row.was} · now: {row.will}")
    lines += [f"! waiting for {text}" for text in view.waiting_for]
    if view.paused and not view.waiting_for:
        lines.append("! paused: %durable resume goes on")
    return "\n".join(lines)


@_text.register
def _(view: ErrorView) -> str:
    return " ".join(part for part in (f"{view.badge.icon} {view.message}", view.remedy) if part)


@_text.register
def _(view: StatusView) -> str:
    state = "" if view.badge is None else f"{view.badge.icon} {view.badge.word}"
    lines = [_line(state, view.title, "" if view.current else "not the current session")]
    width = max((len(row.name) for row in view.rows), default=0)
    lines += [f"  {row.name:<{width}}  {row.value}" for row in view.rows]
    return "\n".join(lines)


@_text.register
def _(view: TasksView) -> str:
    lines = [view.title]
    for row in view.rows:
        attempt = f"attempt {row.attempt}" if row.attempt > 1 else ""
        kind = f"{'  ' * row.depth}{row.id} {row.kind}"
        state = f"{row.badge.icon} {row.badge.word}"
        background = "background" if row.background else ""
        lines.append("  " + _line(kind, state, row.phase or "", attempt, row.time, background, row.about))
    if view.hidden:
        lines.append(f"  and {view.hidden:,} more")
    return "\n".join(lines)


@_text.register
def _(view: TranscriptView) -> str:
    lines = [view.title]
    if view.earlier:
        lines.append(f"… {view.earlier:,} earlier")
    lines.extend(map(_entry_text, view.entries))
    return "\n".join(lines)


def _entry_text(entry: TranscriptEntry) -> str:
    text = _indent(clip(entry.text, STATIC_LIMIT), "  ~ " if entry.struck else "  ")
    return f"{_line(entry.who, *entry.facts)}\n{text}"


@_text.register
def _(view: ConversationsView) -> str:
    lines = [view.title]
    for row in view.rows:
        lines.append("  " * (row.depth + 1) + _line(row.title, *row.facts, row.said))
    return "\n".join(lines)


@_text.register
def _(view: ComparisonView) -> str:
    lines = [view.title]
    for title, entries in ((view.left, view.ours), (view.right, view.theirs)):
        lines.append(f"{title}:")
        lines.extend(_indent(_entry_text(entry), "  ") for entry in entries)
        if not entries:
            lines.append("  nothing more")
    return "\n".join(lines)


@_text.register
def _(view: TalkView) -> str:
    lines = [_line(f"{view.badge.icon} {view.badge.word}", *view.facts)]
    if view.problem:
        lines.append(f"  {view.problem}")
    if view.earlier or len(view.blocks) > STATIC_BLOCKS:
        lines.append("… earlier entries are left out; %durable history shows them")
    for block in view.blocks[-STATIC_BLOCKS:]:
        lines.append(_line(block.who, *block.facts))
        if block.answer is not None:
            lines.extend(_indent(_item_text(block.answer, item), "  ") for item in block.answer.items)
        elif block.said is not None:
            lines.append(_indent(clip(block.said.text, STATIC_LIMIT), "  ~ " if block.said.struck else "  "))
    lines.extend(f"{chip.mode}: {chip.text}" for chip in view.waiting)
    if view.usage:
        lines.append(" · ".join(view.usage))
    return "\n".join(lines)


@_text.register
def _(view: DashboardView) -> str:
    return "\n\n".join(map(to_text, (view.talk, view.graph, view.timeline, view.recovery)))


_text.register(GraphView, graph_text)
_text.register(TimelineView, timeline_text)


# -- all of them ---------------------------------------------------------------------------------------------------


def mimebundle(view: View) -> dict[str, str]:
    """The static forms of ``view`` by media type: text and HTML, and Markdown for an answer that is settled."""
    forms: dict[str, Callable[[View], str]] = {"text/plain": to_text, "text/html": to_html}
    if isinstance(view, AnswerView) and view.settled:
        forms["text/markdown"] = to_markdown
    return {media: form(view) for media, form in forms.items()}


@dataclass(frozen=True)
class Shown:
    """An object that shows itself as ``view`` does: as the last value of a cell, in ``display`` and in a terminal."""

    view: View

    def __repr__(self) -> str:
        return to_text(self.view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return mimebundle(self.view)
