"""Plain text for terminals: a few colours, wrapped streams, and neither where they are not wanted.

Colour is used only on a terminal, never with ``NO_COLOR`` set (https://no-color.org) or ``TERM=dumb``, and is never the
only sign of anything. Symbols become ASCII where the output cannot encode them.
"""

from __future__ import annotations

import os
import shutil
from typing import TextIO

__all__ = ["Stream", "Terminal", "when"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "strike": "9"}
_ASCII = {"│": "|", "✗": "x", "✓": "ok", "·": "-", "…": "...", "→": "->", "─": "-", "×": "x", "“": '"', "”": '"'}


class Terminal:
    """Writes to one text file. Everything is flushed at once, since a person watches."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.tty = file.isatty()
        self.colour = self.tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = max(40, min(shutil.get_terminal_size((80, 24)).columns, 100))
        try:
            "".join(_ASCII).encode(file.encoding or "ascii")
        except UnicodeEncodeError:
            self._plain = True
        else:
            self._plain = False

    def style(self, text: str, *names: str) -> str:
        """The text in these styles, or as it is where there is no colour."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def write(self, text: str) -> None:
        """Write text as it is."""
        if self._plain:
            for symbol, replacement in _ASCII.items():
                text = text.replace(symbol, replacement)
            encoding = self._file.encoding or "ascii"
            text = text.encode(encoding, "replace").decode(encoding)
        self._file.write(text)
        self._file.flush()

    def line(self, text: str = "", *styles: str) -> None:
        """Write one line."""
        self.write(self.style(text, *styles) + "\n")

    def status(self, text: str) -> None:
        """A line that the next one replaces; nothing where output is not a terminal."""
        if self.tty:
            self.write(f"\r\x1b[K{self.style(text[: self.width - 1], 'dim')}" if text else "\r\x1b[K")


class Stream:
    """Text that arrives in pieces, wrapped at words behind a margin."""

    def __init__(self, terminal: Terminal, margin: str, *styles: str) -> None:
        self._terminal = terminal
        self._margin = margin
        self._styles = styles
        self._column = 0
        self._word = ""
        self._space = False

    def feed(self, text: str) -> None:
        """Write what has arrived: whole words at once, the last one when it is whole or ``end`` is called."""
        for character in text:
            if character.isspace():
                self._put()
                if character == "\n":
                    self._break()
                elif self._column:
                    self._space = True
            else:
                self._word += character

    def end(self) -> None:
        """Write what is left and end the line."""
        self._put()
        if self._column:
            self._break()

    @property
    def _limit(self) -> int:
        return self._terminal.width - len(self._margin) - 1

    def _put(self) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        if self._column and self._column + self._space + len(word) > self._limit:
            self._break()
        self._show(" " + word if self._space else word)
        self._space = False

    def _show(self, text: str) -> None:
        if not self._column:
            self._terminal.write(self._margin)
        self._column += len(text)
        self._terminal.write(self._terminal.style(text, *self._styles))

    def _break(self) -> None:
        self._terminal.write(self._margin.rstrip() + "\n" if not self._column else "\n")
        self._column = 0
        self._space = False


def when(instant: float | None) -> str:
    """An instant in local time, or a dash."""
    from datetime import datetime

    return "-" if instant is None else f"{datetime.fromtimestamp(instant):%Y-%m-%d %H:%M:%S}"
