"""What notebooks cost: bytes that a streamed answer sends to the browser, and ``%load_ext``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import comm
from comm.base_comm import BaseComm

from pidurable_nb.notebook.talkview import Block, TalkView
from pidurable_nb.notebook.view import AnswerView, TextItem, TranscriptEntry, View
from pidurable_nb.notebook.widgets import AnswerWidget, Publisher, ViewWidget
from pidurable_nb.notebook.widgets_talk import ConversationWidget

from .figures import Figure

ANSWER = 100_000
PIECE = "twenty characters.. "


class _Counting(BaseComm):
    """A comm that counts the bytes of its messages in place of sending them."""

    sent = 0

    def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
        type(self).sent += len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())


def _shown(text: str, status: Literal["running", "done"] = "running") -> AnswerView:
    item = TextItem(key="x", text=text, state="streaming" if status == "running" else "done")
    return AnswerView(status=status, items=(item,))


def _talk(text: str, status: Literal["running", "done"] = "running") -> TalkView:
    """The same answer as the newest entry of a conversation, which is stored at its end."""
    said = TranscriptEntry(id=4, role="assistant", text="") if status == "done" else None
    return TalkView(conversation=1, blocks=(Block(key="1.0", said=said, answer=_shown(text, status)),))


def _streamed(kind: type[ViewWidget], shown: Callable[..., View]) -> int:
    """Bytes of an answer that grows by 20 characters each millisecond and is sent ten times a second."""
    with mock.patch.object(comm, "create_comm", lambda **options: _Counting(**options)):
        _Counting.sent = 0
        widget = kind(shown(""), publish=Publisher(interval=60))
        text = ""
        while len(text) < ANSWER:
            text += PIECE
            widget.show(shown(text))
            if len(text) % (100 * len(PIECE)) == 0:
                widget.flush()
        widget.show(shown(text, "done"))
        widget.flush()
        return _Counting.sent


def _load_ext() -> float:
    code = (
        "import time\nfrom IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\nstart = time.process_time()\n"
        "shell.run_line_magic('load_ext', 'pidurable_nb')\nprint(time.process_time() - start)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as in engine._seconds
    durations = []
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        durations.append(float(ended.stdout.splitlines()[-1]))
    return min(durations)  # what else the machine does only ever adds


def notebook_figures() -> Iterator[Figure]:
    """The browser's bytes and the extension's time."""
    for where, kind, shown in (("", AnswerWidget, _shown), (" in a conversation", ConversationWidget, _talk)):
        ratio = _streamed(kind, shown) / ANSWER
        what = f"bytes to the browser for a streamed answer of 100 kB{where}"
        yield Figure(what, ratio, "x text", "below 1.5", ratio < 1.5)
    loaded = _load_ext()
    yield Figure("%load_ext pidurable_nb", loaded * 1000, "ms", "below 300", loaded < 0.3)
