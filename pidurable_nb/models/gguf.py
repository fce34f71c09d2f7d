"""What the head of a GGUF file says of its model: how long its context may be, and how much memory it takes.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = ["Head", "read_head"]

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

_LONGEST = 1 << 20
"""No text that matters here is longer; a longer one means that the file is damaged."""


@dataclass(frozen=True, slots=True)
class Head:
    """``context`` is how many tokens the model was made for; ``per_token`` the bytes that each one of them takes.

    Both are ``None`` where the file does not say.
    """

    size: int
    context: int | None = None
    per_token: int | None = None

    def memory(self, context: int) -> int:
        """About how many bytes the model takes with so many tokens of context."""
        return self.size + (self.per_token or 0) * context


def read_head(path: Path) -> Head | None:
    """The head of the file, ``None`` where it is not a GGUF file. Raises ``OSError``.

    What cannot be understood further on is left out: llama.cpp decides what it can load.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            return None
        found: dict[str, Any] = {}
        try:
            version, _, count = struct.unpack("<IQQ", file.read(20))
            if version < 2:
                return Head(size)
            for _ in range(count):
                key = _text(file)
                if key.startswith("tokenizer."):
                    break  # the model's own facts come first, and these are long
                found[key] = _value(file, _number(file, "I"))
        except (struct.error, ValueError, KeyError):
            pass  # damaged, or a newer form: llama.cpp will say so
    return Head(size, _whole(_fact(found, "context_length")), _per_token(found))


def _fact(found: dict[str, Any], name: str) -> Any:
    return found.get(f"{found.get('general.architecture')}.{name}")


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _per_token(found: dict[str, Any]) -> int | None:
    """A key and a value of two bytes for each layer and each head that has its own."""
    layers, width = _whole(_fact(found, "block_count")), _whole(_fact(found, "embedding_length"))
    heads = _whole(_fact(found, "attention.head_count"))
    own = _fact(found, "attention.head_count_kv")
    own = _whole(max(own) if isinstance(own, list) and own else own) or heads
    if layers is None or width is None or heads is None or own is None:
        return None
    return 2 * 2 * layers * own * (width // heads)


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _ARRAY:
        inner = _number(file, "I")
        return [_value(file, inner) for _ in range(_number(file, "Q"))]
    return _number(file, _NUMBERS[kind])


def _number(file: IO[bytes], form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _text(file: IO[bytes]) -> str:
    length = _number(file, "Q")
    if length > _LONGEST:
        raise ValueError(f"a text of {length} bytes")
    return file.read(length).decode("utf-8", "replace")
