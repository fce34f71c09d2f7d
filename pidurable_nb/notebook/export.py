"""One file of a conversation, for people and programs that have neither a notebook nor this package.

The ending of the file says which: HTML, which is one page without a script that follows the reader's light or dark
theme; Markdown; or JSON, which holds the records as they are stored. What models, tools and people said is text: no
file has an element, a script, an image to fetch or a link that runs something, of theirs.

``collect`` reads, from a session that is open here as from one that is only observed; ``document`` writes.
"""

from __future__ import annotations

import html
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ..agent.conversation import Conversation
from ..agent.harness import Harness
from ..agent.observe import observe
from ..agent.state import UsageState
from ..errors import NotebookError
from ..messages import AssistantMessage
from ..records import ROOT, ConversationId, ConversationRecord, Entry
from ..values import Value
from .branches import BranchesState
from .markdown import safe_link
from .markup import Html, el, escape
from .present import transcript_view
from .render import entries_html, fence
from .view import TranscriptEntry, clock_time

__all__ = ["Collected", "collect", "document", "export_file", "format_of", "write_document"]

Format = Literal["html", "markdown", "json"]

_ENDINGS: dict[str, Format] = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
}

VERSION = 1
"""Of the JSON form. It grows when a reader of an older one could be misled."""


class Collected(Value):
    """A conversation as it is exported: everything that it shows, its parents' entries included."""

    session: str
    record: ConversationRecord
    model: str | None
    usage: UsageState
    entries: tuple[Entry, ...]
    stopped: tuple[int, ...] = ()
    """The entries of inputs whose run a person stopped."""

    @property
    def title(self) -> str:
        branch = "" if self.record.id == ROOT else f", conversation {self.record.id}"
        return f"{Path(self.session).name}{branch}"

    @property
    def facts(self) -> tuple[str, ...]:
        at = [message.timestamp for entry in self.entries for message in entry.messages if message.timestamp]
        facts = [f"{len(self.entries):,} entries"]
        facts += [self.model] if self.model else []
        facts += [f"{self.usage.total.total_tokens:,} tokens"] if self.usage.total.total_tokens else []
        return (*facts, f"{clock_time(min(at), date=True)} to {clock_time(max(at), date=True)}") if at else tuple(facts)


def format_of(path: str | os.PathLike[str]) -> Format:
    """The format that the ending of a path names. Raises ``NotebookError`` for another ending."""
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise NotebookError(f"{os.fspath(path)}: the ending says the format; there are .html, .md and .json")
    return _ENDINGS[ending]


async def collect(harness: Harness, conversation: ConversationId) -> Collected:
    """Read a conversation. Raises ``DurableError`` when there is none of that id."""
    source = Conversation(harness, conversation)
    view = await source.view()
    entries = await source.entries(order="ascending").list()
    shown = {entry.id for entry in entries}
    stopped = [
        record.entry
        async for record in harness.submissions(status="unanswered")
        if record.entry in shown and record.reason == "aborted"
    ]
    return Collected(
        session=harness.storage.name,
        record=view.record,
        model=view.agent.model,
        usage=view.usage,
        entries=tuple(entries),
        stopped=tuple(entry for entry in stopped if entry is not None),
    )


def document(collected: Collected, format: Format) -> str:
    """The text of the file."""
    return {"html": _page, "markdown": _markdown, "json": _json}[format](collected)


def write_document(path: str | os.PathLike[str], text: str) -> None:
    """Write the file whole, or leave what is there. Raises ``NotebookError`` where that cannot be done."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(target)
    except OSError as error:
        raise NotebookError(f"{path} cannot be written: {error.strerror}. Choose another path.") from error
    finally:
        with suppress(OSError):  # such as a folder that is none
            beside.unlink(missing_ok=True)


async def export_file(
    session: str | os.PathLike[str], out: str | os.PathLike[str], *, conversation: int | None = None
) -> Collected:
    """Export a conversation of a session that this process need not own, by default that on which its notebook is.

    Nothing is written to the session, and its owner, if there is one, works on. Raises what ``observe`` raises,
    ``NotebookError`` for an ending that names no format, and ``DurableError`` for a conversation that does not exist.
    """
    format = format_of(out)
    async with observe(session) as observer:
        if conversation is None:
            state = await observer.snapshot(BranchesState) or BranchesState()
            conversation = state.line("")[-1]
        collected = await collect(observer._follower, ConversationId(conversation))
    write_document(out, document(collected, format))
    return collected


# -- the forms -------------------------------------------------------------------------------------------------------


def _told(collected: Collected) -> list[TranscriptEntry]:
    """The entries as people read them, with the arguments of calls in full."""
    shown = transcript_view(collected.entries, stopped=collected.stopped).entries
    told = []
    for entry, line in zip(collected.entries, shown, strict=True):
        message = entry.messages[0] if entry.messages else None
        if isinstance(message, AssistantMessage) and message.tool_calls:
            parts = [message.text] if message.text else []
            for call in message.tool_calls:
                parts.append(f"calls `{call.name}`")
                parts.append(fence(json.dumps(call.arguments, ensure_ascii=False, indent=1), "json"))
            line = line.replaced(text="\n\n".join(parts))
        told.append(line)
    return told


_STYLE = """
:root { color-scheme: light dark; }
body {
  margin: 0; padding: 2rem 1rem; line-height: 1.5; color: #1b1b1f; background: #fff;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  --jp-brand-color1: #1976d2; --jp-success-color1: #388e3c; --jp-warn-color1: #ef6c00; --jp-error-color1: #d32f2f;
}
main { max-width: 48rem; margin: 0 auto; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; line-height: 1.3; }
header p { margin: 0 0 1.2rem; opacity: .75; font-size: .92rem; }
@media (prefers-color-scheme: dark) {
  body {
    color: #e4e4e8; background: #18181b; --jp-content-link-color: #8ab4f8;
    --jp-brand-color1: #64b5f6; --jp-success-color1: #81c784; --jp-warn-color1: #ffb74d; --jp-error-color1: #e57373;
  }
}
@media print { pre { max-height: none !important; } }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is run or fetched, whatever a fault of ours let through."""


def _page(collected: Collected) -> str:
    head = (
        '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(collected.title)}</title>\n<style>{_STYLE}</style>"
    )
    header = el("header", el("h1", collected.title), el("p", " · ".join(collected.facts)))
    main = el("main", header, Html(entries_html(_told(collected))))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{main}\n</body>\n</html>\n'


def _markdown(collected: Collected) -> str:
    parts = [f"# {_plain(collected.title)}", _plain(" · ".join(collected.facts))]
    for entry in _told(collected):
        parts += ["---", f"**{_plain(entry.who)}** · {_plain(' · '.join(entry.facts))}"]
        if entry.struck:
            parts.append(_quoted(safe_markdown(entry.text)))
        elif entry.role in ("user", "assistant"):
            parts.append(safe_markdown(entry.text))
        elif entry.text:
            parts.append(fence(entry.text))
    return "\n\n".join(part for part in parts if part) + "\n"


def _json(collected: Collected) -> str:
    data: dict[str, Any] = {
        "format": "pidurable_nb conversation",
        "version": VERSION,
        "session": collected.session,
        "conversation": collected.record.to_data(),
        "model": collected.model,
        "usage": collected.usage.model_dump(mode="json"),
        "entries": [entry.to_data() for entry in collected.entries],
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


# -- Markdown of others ----------------------------------------------------------------------------------------------


def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    setattr(reader, "validateLink", lambda address: True)  # noqa: B010  (what it lets through is judged here)
    return reader


_READER = _reader()


def safe_markdown(text: str) -> str:
    """Markdown that means the same, without HTML, images and links that are neither http, https nor mailto.

    Where there is one, the lines that hold it become plain text. A fence that is not closed is closed, so that it ends
    with its message.
    """
    for _ in range(4):
        tokens = _READER.parse(text)
        bad = {number for token in tokens if _is_unsafe(token) for number in range(*(token.map or (0, 0)))}
        if not bad:
            break
        lines = text.split("\n")
        for number in bad:
            lines[number] = _plain(lines[number])
        text = "\n".join(lines)
    else:
        return fence(text)
    last = tokens[-1] if tokens else None
    if last is not None and last.type == "fence" and last.map is not None:
        closed = text.rstrip("\n").split("\n")[-1].strip()
        if last.map[1] - last.map[0] < 2 or set(closed) != set(last.markup) or len(closed) < len(last.markup):
            text = f"{text.rstrip()}\n{last.markup}"
    return text


def _is_unsafe(token: Token) -> bool:
    if token.type == "html_block":
        return True
    for child in token.children or ():
        if child.type in ("html_inline", "image"):
            return True
        if child.type == "link_open" and not safe_link(str(child.attrGet("href") or "")):
            return True
    return False


def _plain(text: str) -> str:
    """Text whose characters mean themselves."""
    text = html.escape(text, quote=False)
    for character in "\\`*_[]!|":
        text = text.replace(character, f"\\{character}")
    return text


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
