"""Markdown of models and tools as HTML that is safe and that keeps its looks without a style sheet.

The dialect is CommonMark with tables and strikethrough, less what a stream cannot show steadily or a notebook does not
need: underlined headings, code by indentation, link definitions, raw HTML. ``static/markdown.js`` shows the same
dialect in the live widgets, and a browser test holds the two together.

Guarantees: nothing of the text reaches the page as an element, an attribute other than a link's address, a script or a
style. A link's address is http, https or mailto, or the link is text. An image is not fetched: it is a link with its
description. Styles are inline, since GitHub and saved pages drop style sheets, and take their colours from the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

__all__ = ["safe_link", "to_html"]

_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\x00-\x20]+\Z", re.IGNORECASE)

CODE_FONT = "var(--jp-code-font-family, ui-monospace, SFMono-Regular, Menlo, Consolas, monospace)"
# Not a variable of the page: in a notebook that is not trusted yet JupyterLab drops every declaration that has one.
LINE = "rgba(128,128,128,.35)"
TINT = "rgba(128,128,128,.12)"
"""A shade that darkens a light page and lightens a dark one."""

_STYLES = {
    "p": "margin:0 0 .6em",
    "h1": "font-size:1.35em;margin:.9em 0 .4em;font-weight:600;line-height:1.3",
    "h2": "font-size:1.2em;margin:.9em 0 .4em;font-weight:600;line-height:1.3",
    "h3": "font-size:1.08em;margin:.8em 0 .3em;font-weight:600;line-height:1.3",
    "h4": "font-size:1em;margin:.8em 0 .3em;font-weight:600;line-height:1.3",
    "h5": "font-size:1em;margin:.8em 0 .3em;font-weight:600;line-height:1.3",
    "h6": "font-size:1em;margin:.8em 0 .3em;font-weight:600;line-height:1.3",
    "ul": "margin:0 0 .6em;padding-left:1.6em",
    "ol": "margin:0 0 .6em;padding-left:1.6em",
    "li": "margin:.15em 0",
    "blockquote": f"margin:0 0 .6em;padding:0 0 0 .9em;border-left:3px solid {LINE};opacity:.85",
    "table": "border-collapse:collapse;margin:0 0 .6em;font-size:.95em;display:block;overflow-x:auto;width:max-content;"
    "max-width:100%;table-layout:auto",
    "th": f"border:1px solid {LINE};padding:3px 9px;font-weight:600;text-align:left;background:{TINT}",
    "td": f"border:1px solid {LINE};padding:3px 9px;text-align:left",
    "hr": f"border:0;border-top:1px solid {LINE};margin:.8em 0",
    "a": "color:var(--jp-content-link-color, LinkText);text-decoration:underline",
}
_PRE = (
    f"margin:0 0 .6em;padding:8px 10px;background:{TINT};border-radius:4px;overflow-x:auto;"
    f"font-family:{CODE_FONT};font-size:.93em;line-height:1.45;white-space:pre;word-break:normal"
)
# What a theme does to code inside the box is undone.
_PRE_CODE = "font:inherit;color:inherit;background:none;padding:0;white-space:pre"
_CODE = f"font-family:{CODE_FONT};font-size:.93em;background:{TINT};border-radius:3px;padding:.1em .3em"


def safe_link(address: str) -> bool:
    """Whether ``address`` may be a link: http, https or mailto, with no space or control character in it."""
    return _ADDRESS.match(address) is not None


class _Renderer(RendererHTML):
    """HTML with inline styles. It makes every attribute itself and copies none from a token but a link's address."""

    def renderToken(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        if token.hidden:
            return ""
        if token.nesting == -1:
            return f"</{token.tag}>" + ("\n" if token.block else "")
        style = _STYLES.get(token.tag, "")
        if token.tag in ("th", "td"):
            align = str(token.attrGet("style") or "").removeprefix("text-align:")
            if align in ("left", "right", "center"):
                style = style.replace("text-align:left", f"text-align:{align}")
        elif token.tag in ("ul", "ol") and token.level > 0:
            style = style.replace("0 0 .6em", "0 0 .2em")
        start = ""
        if token.tag == "ol" and isinstance(number := token.attrGet("start"), int):
            start = f' start="{number}"'
        return f"<{token.tag}{start}{_style(style)}>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        address = str(tokens[idx].attrGet("href") or "")
        # The parser has refused every other address already; should it ever not, the link has none.
        return _anchor(address) if safe_link(address) else "<a>"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        address = str(token.attrGet("src") or "")
        words = self.renderInlineAsText(token.children, options, env) or "image"
        if safe_link(address) and not _inside_link(tokens, idx):
            return f"{_anchor(address)}{escapeHtml(words)}</a>"
        return escapeHtml(words)

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<pre{_style(_PRE)}><code{_style(_PRE_CODE)}>{escapeHtml(tokens[idx].content)}</code></pre>\n"

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<code{_style(_CODE)}>{escapeHtml(tokens[idx].content)}</code>"


def _style(style: str) -> str:
    return f' style="{escapeHtml(style)}"' if style else ""


def _inside_link(tokens: Sequence[Token], idx: int) -> bool:
    return sum(token.nesting for token in tokens[:idx] if token.type.startswith("link_")) > 0


def _anchor(address: str) -> str:
    return f'<a href="{escapeHtml(address)}" target="_blank" rel="noopener noreferrer"{_style(_STYLES["a"])}>'


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 40}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.disable(["html_block", "html_inline", "lheading", "code", "reference"])
    # Instances are given one parser; the function is read from the instance, where assigning it is the documented way.
    setattr(parser, "validateLink", safe_link)  # noqa: B010
    return parser


_PARSER = _parser()


def to_html(text: str, *, inline: bool = False) -> str:
    """HTML of the Markdown ``text``; with ``inline`` its inline parts only, without a paragraph."""
    env: dict[str, Any] = {}
    return str(_PARSER.renderInline(text, env) if inline else _PARSER.render(text, env)).strip()
