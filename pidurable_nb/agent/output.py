"""Tool output: bounded, clean of control characters, committed as it grows (engine.md, section 12)."""

from __future__ import annotations

import re

from ..values import valid_text
from .tool import OutputLimits

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_CUT = re.compile(r"(?:\r|\x1b(?:\[[0-9;?]*[ -/]*|\][^\x07\x1b]*\x1b?)?)\Z")

LONGEST_CUT = 4096
"""The longest beginning of an escape that is held back; a longer one is no escape."""


def clean(text: str) -> str:
    """Text without terminal escapes and control characters; line ends become ``\\n``, lone surrogates ``\\ufffd``."""
    return valid_text(_CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


class OutputBuffer:
    """Text within limits. What does not fit is dropped and counted, at the end that the limits do not keep."""

    def __init__(self, limits: OutputLimits) -> None:
        self.limits = limits
        self.text = ""
        self._cut = ""
        self.dropped_chars = 0
        self.dropped_lines = 0

    def append(self, chunk: str) -> int:
        """Take text in; returns how many characters it was after cleaning.

        A line end or a terminal escape may be cut between two chunks: its beginning waits for the rest.
        """
        chunk = self._cut + chunk
        cut = _CUT.search(chunk)
        self._cut = "" if cut is None or len(chunk) - cut.start() > LONGEST_CUT else chunk[cut.start() :]
        chunk = clean(chunk[: len(chunk) - len(self._cut)])
        if self.limits.keep == "head" and self.dropped_chars:
            self._drop(chunk)
            return len(chunk)
        self.text += chunk
        if len(self.text) > self.limits.bytes // 4 or self.text.count("\n") > self.limits.lines:
            self._trim()
        return len(chunk)

    def _drop(self, text: str) -> None:
        self.dropped_chars += len(text)
        self.dropped_lines += text.count("\n")

    def _trim(self) -> None:
        head = self.limits.keep == "head"
        lines = self.text.count("\n") - self.limits.lines
        if lines > 0:
            parts = self.text.split("\n")
            kept, rest = (
                (parts[: self.limits.lines], parts[self.limits.lines :]) if head else (parts[lines:], parts[:lines])
            )
            self._drop("\n".join(rest) + "\n")
            self.text = "\n".join(kept)
        encoded = self.text.encode()
        if len(encoded) > self.limits.bytes:
            kept_bytes = encoded[: self.limits.bytes] if head else encoded[-self.limits.bytes :]
            kept_text = kept_bytes.decode("utf-8", "ignore")
            rest_text = self.text[len(kept_text) :] if head else self.text[: len(self.text) - len(kept_text)]
            self._drop(rest_text)
            self.text = kept_text

    @property
    def truncated(self) -> bool:
        return self.dropped_chars > 0
