"""Live widgets: one view each, kept present in every page that shows it.

A *live widget* holds the *present*: the sequence number and the whole value of what is shown. Its trait ``state``
always is the present, so that a page that reloads or a view that opens late gets all of it; but a change of it is not
sent as a trait. Instead the *publisher*, one daemon thread per process, sends the difference to what was sent last, as
a custom message ``{"seq": n, "ops": [...]}`` (``pidurable_nb.patch``), at most ten a second for each widget, and
always the last. Text that grows costs what was added (notebook.md, "Live widgets").

What a page sends: ``{"ask": "state", "seq": n}`` once at its start and whenever it missed a number, answered by the
publisher with ``{"seq": n, "now": seconds}`` and, where the page is behind, ``"view"`` with the whole value; and
``{"do": NAME, "press": ID, ...}`` for a pressed button. The publisher says ``{"heard": ID}`` to every press, and
``{"heard": ID, "done": VALUE}`` or ``{"heard": ID, "error": WORDS}`` where it has a result, so that a page knows when
nobody hears it. A page may say a press again: it counts once. Handlers may run on any thread and only hand work on.

A widget that has *finished* also says ``{"static": {"id": MODEL, "data": BUNDLE}}``, in a message and from then on in
``state``: the page puts the static form in its place, and answers ``{"do": "close"}`` when no view of it is left. So
the widget is there for as long as some page may need it, and a page that was reloaded in between ends with the static
form.
"""

from __future__ import annotations

import base64
import contextvars
import gzip
import hashlib
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from .. import patch
from .render import mimebundle
from .view import AnswerView

__all__ = ["AnswerWidget", "LiveWidget", "Publisher", "ViewWidget", "css", "esm", "packed", "publisher"]

_log = logging.getLogger(__name__)
_STATIC = Path(__file__).parent / "static"

INTERVAL = 0.1
"""Seconds between two messages of one widget."""

REMEMBERED = 256
"""Presses of a widget that are known again."""


# -- the page's side -----------------------------------------------------------------------------------------------

_IMPORT = re.compile(r"^import [^;]+;\n", re.MULTILINE)
_DEFAULT = re.compile(r"^export default [^;]+;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(?://.*)?\n", re.MULTILINE)
_CSS_COMMENT = re.compile(r"/\*.*?\*/\s*|^[ ]+", re.MULTILINE | re.DOTALL)
_LOADER = """\
const key = Symbol.for("pidurable_nb {digest}");
globalThis[key] ??= (async () => {{
  const packed = Uint8Array.from(atob("{packed}"), (char) => char.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const url = URL.createObjectURL(new Blob([text], {{ type: "text/javascript" }}));
  try {{
    return (await import(url)).default;
  }} finally {{
    URL.revokeObjectURL(url);
  }}
}})();
export default async () => (await globalThis[key])();
"""


def esm(*names: str) -> str:
    """One ES module made of files of ``static/``: the last exports the widget, the others what it imports.

    A widget's module reaches the page as text and cannot import its neighbours, so they are joined here: each file
    declares names that none of the others declares, and imports only from files before it.
    """
    texts = [(_STATIC / name).read_text(encoding="utf-8") for name in names]
    texts = [*(_DEFAULT.sub("", text) for text in texts[:-1]), texts[-1]]
    return _COMMENT.sub("", "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts))


def packed(module: str) -> str:
    """A small module that stands for ``module``: compressed, and loaded once for all widgets of a page.

    Every answer of a notebook is a widget, and each sends its module when it opens: unpacked, a notebook of fifty
    answers would send the same text fifty times, and a short answer would cost a hundred times its length.
    """
    squeezed = gzip.compress(module.encode(), mtime=0)
    digest = hashlib.sha256(squeezed).hexdigest()[:16]
    return _LOADER.format(digest=digest, packed=base64.b64encode(squeezed).decode())


def css(*names: str) -> str:
    """One style sheet made of files of ``static/``."""
    return _CSS_COMMENT.sub("", "\n".join((_STATIC / name).read_text(encoding="utf-8") for name in names))


# -- the publisher -------------------------------------------------------------------------------------------------


class Publisher:
    """One daemon thread that sends what widgets have to say, each at most once per ``interval`` seconds.

    ``wake(widget)`` may be called on any thread, as often as one likes; the thread calls ``widget.publish()`` for it
    at once, or as soon as ``interval`` has passed since its last call. What was woken last is always sent.
    """

    def __init__(self, *, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[LiveWidget, float] = {}
        self._sending: LiveWidget | None = None
        self._thread: threading.Thread | None = None

    def wake(self, widget: LiveWidget) -> None:
        """Have ``widget`` send what it has to say."""
        with self._changed:
            if widget not in self._due:
                self._due[widget] = widget.published_at + self._interval
                self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():  # not started yet, or lost in a forked child
                self._thread = threading.Thread(target=self._run, name="pidurable_nb publisher", daemon=True)
                self._thread.start()

    def flush(self, widget: LiveWidget, timeout: float = 2.0) -> bool:
        """Send what ``widget`` has to say now; wait at most ``timeout`` seconds. Whether all was sent."""
        with self._changed:
            if widget in self._due:
                self._due[widget] = 0.0
                self._changed.notify_all()
            return self._changed.wait_for(lambda: widget not in self._due and self._sending is not widget, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sending = None
                self._changed.notify_all()
                widget = self._next()
                del self._due[widget]
                self._sending = widget
                widget.published_at = self._clock()
            try:
                widget.context.run(widget.publish)
            except Exception:
                # A page that is gone or a socket that is closed ends the show, never the work that it shows.
                _log.warning("a live display could not be updated; run its cell again to see it", exc_info=True)

    def _next(self) -> LiveWidget:
        """Wait, with the lock held, until a widget is due."""
        while True:
            if not self._due:
                self._changed.wait()
                continue
            widget, due = min(self._due.items(), key=lambda item: item[1])
            wait = due - self._clock()
            if wait <= 0:
                return widget
            self._changed.wait(wait)


_publisher: Publisher | None = None
_publisher_lock = threading.Lock()


def publisher() -> Publisher:
    """The publisher of this process."""
    global _publisher
    with _publisher_lock:
        if _publisher is None:
            _publisher = Publisher()
        return _publisher


# -- widgets -------------------------------------------------------------------------------------------------------


class LiveWidget(anywidget.AnyWidget):
    """The Python side of a live widget: ``state`` is ``{"seq": n, "view": value}``, the present."""

    state = traitlets.Dict().tag(sync=True)
    comm_id = traitlets.Unicode(help="its address, for a page that speaks past its comm").tag(sync=True)

    def __init__(self, value: dict[str, Any], *, publish: Publisher | None = None) -> None:
        self.published_at = float("-inf")
        self.context = contextvars.copy_context()
        """Where it was made. ipykernel has what a page says go where the last message to it came from: said in the
        context of a cell, that is the kernel's main shell; elsewhere it may be a subshell which JupyterLab has deleted
        since, as it does at a reload, and every button would be deaf."""
        self._publish = publish if publish is not None else publisher()
        self._present_lock = threading.Lock()
        self._next_value: Callable[[], dict[str, Any]] | None = None
        self._asked: list[int] = []
        self._static: dict[str, str] | None = None
        self._said: list[dict[str, Any]] = []
        self._traits_due: list[Any] = []
        self._presses: deque[str] = deque(maxlen=REMEMBERED)
        self._actions: dict[str, list[Callable[[dict[str, Any]], None]]] = {}
        address = uuid.uuid4().hex
        super().__init__(state={"seq": 0, "view": value}, comm_id=address, model_id=address)
        self.on_msg(self._hear)

    def notify_change(self, change: Any) -> None:
        """Tell observers in Python of every change, the page of none of ``state``: messages carry those."""
        if change["name"] == "state":
            traitlets.HasTraits.notify_change(self, change)
        else:
            super().notify_change(change)

    def send_state(self, key: Any = None) -> None:
        """Have traits sent by the publisher, as all else that a page hears; before it is open they are part of that."""
        if self.comm is None:
            return
        with self._present_lock:
            self._traits_due.append(key)
        self._publish.wake(self)

    def present(self, make: Callable[[], dict[str, Any]]) -> None:
        """Have ``make()`` shown. It runs on the publisher's thread, and not at all when a later one replaces it."""
        with self._present_lock:
            self._next_value = make
        self._publish.wake(self)

    def flush(self, timeout: float = 2.0) -> bool:
        """Send what is not sent yet, without waiting for the interval. Whether it was sent in time."""
        return self._publish.flush(self, timeout)

    def finish(self, static: dict[str, str]) -> None:
        """Have pages put this MIME bundle in place of the widget, after what was shown last. From any thread."""
        with self._present_lock:
            self._static = static
            self._asked.append(-1)
        self._publish.wake(self)

    def close(self) -> None:
        """End it, with the layout that ipywidgets made for it."""
        layout = self.layout
        super().close()
        layout.close()

    def say(self, content: dict[str, Any]) -> None:
        """Send pages something beside the present, after what is to be shown before it. From any thread."""
        with self._present_lock:
            self._said.append(content)
        self._publish.wake(self)

    def on_action(self, name: str, callback: Callable[[dict[str, Any]], None]) -> None:
        """Have ``callback`` called with the page's message ``{"do": NAME, …}``, on whichever thread hears of it.

        Nothing in the message is to be trusted. The page is told that it was heard; ``answer`` tells it more.
        """
        self._actions.setdefault(name, []).append(callback)

    def answer(self, message: dict[str, Any], *, done: Any = None, error: str | None = None) -> None:
        """Tell the page what became of its press: that it is done, with a JSON value, or why not. From any thread."""
        if isinstance(press := message.get("press"), str):
            self.say({"heard": press, "done": done} if error is None else {"heard": press, "error": error})

    def publish(self) -> None:
        """Send the difference to what was sent last, and the whole to who asked. Only the publisher calls this."""
        with self._present_lock:
            make, self._next_value = self._next_value, None
            asked, self._asked = self._asked, []
            said, self._said = self._said, []
            traits, self._traits_due = self._traits_due, []
            static = self._static
        seq, value = self.state["seq"], self.state["view"]
        if make is not None:
            new = make()
            if ops := patch.diff(value, new):
                seq, value = seq + 1, new
                # The present first: a page that asks from now on gets what the message is about to say.
                self.state = {"seq": seq, "view": value}
                self.send({"seq": seq, "ops": ops})
        for key in traits:
            super().send_state(key)
        for content in said:
            self.send(content)
        if asked:
            answer: dict[str, Any] = {"seq": seq, "now": time.time()}
            if any(known != seq for known in asked):
                answer["view"] = value
            self.send(answer)
            if static is not None:
                handed = {"id": self.model_id, "data": static}
                self.state = {"seq": seq, "view": value, "static": handed}
                self.send({"static": handed})

    def _hear(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """A message of a page. It is not trusted: what it may say is listed here, all else is nothing."""
        if not isinstance(content, dict):
            return
        if content.get("ask") == "state":
            known = content.get("seq")
            with self._present_lock:
                self._asked.append(known if isinstance(known, int) else -1)
            self._publish.wake(self)
        if content.get("do") == "close":
            if self._static is not None:
                self.close()
            return
        callbacks = self._actions.get(str(content.get("do")), ())
        if callbacks and isinstance(press := content.get("press"), str):
            with self._present_lock:
                known = press in self._presses
                self._presses.append(press)
            self.say({"heard": press})
            if known:
                return
        for callback in callbacks:
            callback(content)


class ViewWidget(LiveWidget):
    """The live form of a view.

    ``show`` takes each later view, from any thread, as often as it changes. The saved form of a display is the static
    form of the view at the moment of the display; whoever displays the widget calls ``finish`` when nothing more comes.
    """

    def __init__(self, view: Any, *, publish: Publisher | None = None) -> None:
        self._view = view
        super().__init__(self._wire(view), publish=publish)

    def _wire(self, view: Any) -> dict[str, Any]:
        """What pages get of ``view``. Called where the widget is made, then on the publisher's thread."""
        value: dict[str, Any] = view.wire()
        return value

    def show(self, view: Any) -> None:
        """Show ``view`` in place of the one before; pages follow within a tenth of a second."""
        self._view = view
        self.present(lambda: self._wire(view))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        live = super()._repr_mimebundle_(**kwargs)
        data, metadata = live if isinstance(live, tuple) else (live or {}, {})
        return {**data, **mimebundle(self._view)}, metadata


class AnswerWidget(ViewWidget):
    """The live form of an ``AnswerView`` (notebook.md, "Live widgets", 1)."""

    _esm = packed(esm("markdown.js", "live.js", "parts.js", "items.js", "answer.js"))
    _css = css("base.css", "answer.css")

    @property
    def view(self) -> AnswerView:
        """The view that was shown last."""
        view: AnswerView = self._view
        return view

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when someone presses Stop; it may run on any thread and must only hand work on."""
        self.on_action("stop", lambda _message: callback())
