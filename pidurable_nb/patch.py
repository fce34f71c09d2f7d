"""Deltas of JSON values: JSON Patch (RFC 6902: ``add``, ``remove``, ``replace``) plus ``append``, which extends text.

``diff(old, new)`` compares two values and returns the operations that lead from one to the other; ``apply(value, ops)``
returns the changed value and shares with the old one all that did not change. Neither changes its arguments. Text and
lists that only grew at their end cost what was added (engine.md, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import is_
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from .values import JsonValue


class Op(TypedDict):
    """One operation; ``path`` is a JSON Pointer (RFC 6901), ``""`` for the whole value."""

    op: Literal["add", "remove", "replace", "append"]
    path: str
    value: NotRequired[JsonValue]


Ops: TypeAlias = Sequence[Op]

APPEND_MINIMUM = 16
"""Text shorter than this is replaced: an append would not be smaller."""


def diff(old: JsonValue, new: JsonValue) -> list[Op]:
    """The operations that turn ``old`` into ``new``; none when they are equal."""
    ops: list[Op] = []
    _diff(old, new, "", ops)
    return ops


def _diff(old: JsonValue, new: JsonValue, path: str, ops: list[Op]) -> None:
    if old is new:
        return
    kind = type(new)
    if type(old) is not kind:
        ops.append({"op": "replace", "path": path, "value": new})
        return
    if kind is dict:
        for key in old:
            if key not in new:
                ops.append({"op": "remove", "path": f"{path}/{_escape(key)}"})
        for key, value in new.items():
            if key not in old:
                ops.append({"op": "add", "path": f"{path}/{_escape(key)}", "value": value})
            else:
                _diff(old[key], value, f"{path}/{_escape(key)}", ops)
    elif kind is list:
        diff_lists(old, new, path, ops, *same_ends(old, new))
    elif kind is str:
        if old != new:
            if len(old) >= APPEND_MINIMUM and new.startswith(old):
                ops.append({"op": "append", "path": path, "value": new[len(old) :]})
            else:
                ops.append({"op": "replace", "path": path, "value": new})
    elif old != new:
        ops.append({"op": "replace", "path": path, "value": new})


def diff_lists(old: list[Any], new: list[Any], path: str, ops: list[Op], start: int, end: int) -> None:
    """Add the operations that lead from one list to another; the first ``start`` and last ``end`` items are the same.

    What is equal at both ends is kept; inside, items are changed in place, then the rest is removed or added.
    """
    shared = min(len(old), len(new))
    while start < shared and _same(old[start], new[start]):
        start += 1
    while end < shared - start and _same(old[-1 - end], new[-1 - end]):
        end += 1
    old_middle, new_middle = len(old) - start - end, len(new) - start - end
    in_place = min(old_middle, new_middle)
    for index in range(start, start + in_place):
        _diff(old[index], new[index], f"{path}/{index}", ops)
    for index in range(start + old_middle - 1, start + in_place - 1, -1):
        ops.append({"op": "remove", "path": f"{path}/{index}"})
    for index in range(start + in_place, start + new_middle):
        where = "-" if end == 0 else str(index)
        ops.append({"op": "add", "path": f"{path}/{where}", "value": new[index]})


def same_ends(old: Sequence[Any], new: Sequence[Any]) -> tuple[int, int]:
    """How many items both begin with, and end with, that are the same objects.

    Quick, since long lists mostly hold what they held, but for one item that came, went or was replaced.
    """
    start = _identical(old, new)
    left_old, left_new = len(old) - start, len(new) - start
    end = min(left_old, left_new, max(left_old, left_new) - 1)
    if end > 0 and not all(map(is_, old[-end:], new[-end:])):
        end = min(left_old, left_new, _identical(reversed(old), reversed(new)))
    return start, max(0, end)


def _identical(old: Iterable[Any], new: Iterable[Any]) -> int:
    return len(list(takewhile(bool, map(is_, old, new))))


def _same(old: JsonValue, new: JsonValue) -> bool:
    """Equal, and equal in type: Python holds 1, 1.0 and True equal, JSON does not."""
    if old is new:
        return True
    kind = type(new)
    if type(old) is not kind:
        return False
    if kind is dict:
        return len(old) == len(new) and all(key in old and _same(old[key], value) for key, value in new.items())
    if kind is list:
        return len(old) == len(new) and all(map(_same, old, new))
    return bool(old == new)


def apply(value: JsonValue, ops: Iterable[Op]) -> JsonValue:
    """The value after the operations. Raises ``ValueError`` when an operation does not fit the value."""
    owned: set[int] = set()  # containers made by this call, which may be changed in place
    for op in ops:
        path = op["path"]
        keys = [_unescape(part) for part in path.split("/")[1:]] if path else []
        try:
            value = _apply(value, keys, 0, op, owned)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"the operation {op['op']} at {path!r} does not fit the value") from error
    return value


def _apply(value: JsonValue, keys: list[str], depth: int, op: Op, owned: set[int]) -> JsonValue:
    if depth == len(keys):
        if op["op"] == "append":
            return value + op["value"]
        if op["op"] == "remove":
            raise KeyError("the whole value cannot be removed")
        return op["value"]
    if id(value) not in owned:
        value = value.copy()
        owned.add(id(value))
    key = keys[depth]
    last = depth == len(keys) - 1
    if isinstance(value, dict):
        if last and op["op"] == "remove":
            del value[key]
        elif last and op["op"] == "add":
            value[key] = op["value"]
        else:
            value[key] = _apply(value[key], keys, depth + 1, op, owned)
    else:
        if last and op["op"] == "add":
            value.insert(len(value) if key == "-" else int(key), op["value"])
        elif last and op["op"] == "remove":
            del value[int(key)]
        else:
            value[int(key)] = _apply(value[int(key)], keys, depth + 1, op, owned)
    return value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part
