"""The live form of a conversation (notebook.md, "Live widgets", 2)."""

from __future__ import annotations

from typing import Any

from .talkview import Block, TalkView
from .widgets import Publisher, ViewWidget, css, esm, packed

__all__ = ["ConversationWidget"]


class ConversationWidget(ViewWidget):
    """The live form of a ``TalkView``. Its buttons do nothing by themselves: ``pressed.connect`` gives them acts."""

    _esm = packed(esm("markdown.js", "live.js", "parts.js", "items.js", "conversation.js"))
    _css = css("base.css", "answer.css", "conversation.css")

    def __init__(self, view: TalkView, *, publish: Publisher | None = None) -> None:
        self._known: dict[str, tuple[Block, dict[str, Any]]] = {}
        super().__init__(view, publish=publish)

    def _wire(self, view: TalkView) -> dict[str, Any]:
        return view.wire(self._known)
