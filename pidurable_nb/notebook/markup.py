"""Elements of the static forms: HTML that needs neither a script nor a style sheet.

Every text is escaped where it is put into an element; only ``Html`` is taken as it is. Colours are the page's
(``--jp-*`` variables) with fallbacks, so that both themes, and pages without any, show the same.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from .markdown import CODE_FONT, LINE, TINT
from .view import Badge, Tone, clean_output

__all__ = [
    "CARD",
    "CELL",
    "EMPTY",
    "MONO",
    "QUIET",
    "ROW",
    "TABLE",
    "TONES",
    "Html",
    "badge",
    "dots",
    "el",
    "escape",
    "fold",
    "header",
    "join",
    "picture",
    "pre",
    "quiet",
    "sign",
    "table",
    "ticks",
]


class Html(str):
    """Text that is HTML already; every other text is escaped where it is put into an element."""

    __slots__ = ()


EMPTY = Html("")


def escape(text: str) -> str:
    """Text as it stands in HTML."""
    return html.escape(clean_output(text))


_DATE = re.compile(r"(\d{4}-\d\d-\d\d)")


def ticks(text: str) -> Html:
    """``text``, of which parts between backticks are shown as code, and dates stay on one line."""
    parts = re.split(r"`([^`\n]+)`", text)
    return join(el("code", part, style=MONO) if index % 2 else _dates(part) for index, part in enumerate(parts))


def _dates(text: str) -> Html:
    """A line breaks at none of the hyphens of a date."""
    parts = _DATE.split(text)
    return join(el("span", part, style="white-space:nowrap") if index % 2 else part for index, part in enumerate(parts))


def el(tag: str, *children: str | None, style: str = "", **attributes: str) -> Html:
    """An element. In names of attributes ``_`` stands for ``-``, at the end for nothing (``class_``)."""
    inside = "".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None)
    if style:
        attributes["style"] = style
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    return Html(f"<{tag}{names}>{inside}</{tag}>")


def picture(address: str, what: str) -> Html:
    """An image that is part of the page: its address holds it."""
    shown = el("img", src=address, alt=what, style="display:block;max-width:100%;margin:.3em 0 0;border-radius:4px")
    return Html(shown.removesuffix("</img>"))


def join(parts: Iterable[str], separator: str = "") -> Html:
    """Texts and elements one after another."""
    return Html(separator.join(part if isinstance(part, Html) else escape(part) for part in parts))


def _tone(name: str, fallback: str) -> str:
    """A colour of the page, mixed with that of the text, which makes it readable on a light and on a dark page."""
    return f"color-mix(in srgb, var(--jp-{name}-color1, {fallback}) 65%, currentColor)"


TONES: dict[Tone, str] = {
    "muted": "inherit",
    "active": _tone("brand", "#1976d2"),
    "good": _tone("success", "#388e3c"),
    "warn": _tone("warn", "#ef6c00"),
    "bad": _tone("error", "#d32f2f"),
}
CARD = (
    f"border:1px solid {LINE};border-radius:6px;padding:7px 12px 8px;margin:2px 0;line-height:1.5;"
    "max-width:62em;box-sizing:border-box;"
    "overflow-wrap:anywhere"
)
QUIET = "opacity:.75;font-size:.92em"
PRE = (
    f"margin:.3em 0 0;padding:6px 9px;background:{TINT};border-radius:4px;overflow:auto;max-height:16em;"
    f"font-family:{CODE_FONT};font-size:.9em;line-height:1.4;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
)
MONO = f"font-family:{CODE_FONT};font-size:.92em;background:none;padding:0"
_SUMMARY = "cursor:pointer"
CELL = f"padding:3px 14px 3px 0;text-align:left;vertical-align:top;border:0;border-top:1px solid {LINE};background:none"
TABLE = (
    "border-collapse:collapse;margin:.4em 0 0;width:100%;font-size:.95em;border:0;table-layout:auto;line-height:1.4;"
    "overflow-wrap:break-word"
)
# Rows that a theme would tint and mark under the pointer keep the ground of the card.
ROW = "background:none"


def badge(shown: Badge) -> Html:
    """A state: its sign in its colour, and its word."""
    return el("strong", sign(shown), " ", shown.word, style="font-weight:600;white-space:nowrap")


def sign(shown: Badge) -> Html:
    """The sign of a state alone, where its word stands elsewhere."""
    return el("span", shown.icon, style=f"color:{TONES[shown.tone]};font-weight:700", aria_hidden="true")


def dots(parts: Iterable[str]) -> Html:
    """Facts on one line."""
    return join(parts, " · ")


def header(shown: Badge | None, facts: Iterable[str]) -> Html:
    """The first line of a card: a state, where there is one, and facts."""
    facts = list(facts)
    style = "margin:0 0 .35em"
    if shown is None:
        return el("div", dots(facts), style=style)
    rest = el("span", " · ", dots(facts), style=QUIET) if facts else EMPTY
    return el("div", badge(shown), rest, style=style)


def quiet(*children: str) -> Html:
    """A line that stands back."""
    return el("div", *children, style=QUIET)


def fold(summary: str, *children: str, opened: bool = False, style: str = "margin:.35em 0") -> Html:
    """Something that opens and closes without a script."""
    element = el("details", el("summary", summary, style=_SUMMARY), *children, style=style)
    return Html(element.replace("<details", "<details open", 1)) if opened else element


def pre(text: str, style: str = PRE) -> Html:
    """A box of plain text, which the keyboard can scroll."""
    return el("pre", text, style=style, tabindex="0")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Html:
    """A table that scrolls sideways where it has to."""
    head = list(head)
    titles = (
        el(
            "thead",
            el(
                "tr",
                *(
                    el(
                        "th" if name else "td",
                        name,
                        style=f"{CELL};border-top:0;font-weight:600;white-space:nowrap;{QUIET}",
                    )
                    for name in head
                ),
            ),
        )
        if head
        else EMPTY
    )
    body = (el("tr", *(el("td", cell, style=CELL) for cell in row), style=ROW) for row in rows)
    table = el("table", titles, el("tbody", *body), style=TABLE)
    return el("div", table, style="overflow-x:auto", tabindex="0")
