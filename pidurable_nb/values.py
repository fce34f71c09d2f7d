"""What every stored value shares: immutability, strictness and one JSON form.

A *value* is a frozen pydantic model that refuses unknown fields. It can be made with positional arguments in the order
of its fields (``TextBlock("hi")``). Its stored form is compact JSON without the fields that are ``None``.

``check_json`` is the edge where a user's data becomes stored data: strict JSON (engine.md, section 4), with the path of
the first thing that is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field

from .errors import InvalidValue

JsonValue: TypeAlias = Any
"""Strict JSON: ``None``, ``bool``, ``int``, finite ``float``, ``str``, ``list`` and ``dict`` with string keys."""

MAX_DEPTH = 150
"""The deepest nesting that is stored: pydantic's JSON parser stops at 200, and records add levels of their own."""

M = TypeVar("M", bound=BaseModel)

_set = object.__setattr__  # past the refusal of frozen models

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    @dataclass_transform(kw_only_default=False, field_specifiers=(Field,))
    class _Positional(ModelMetaclass):
        pass

else:

    class _Positional(type(BaseModel)):
        """Accept positional arguments in field order. Validation does not come through here, so reading stays fast."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if args:
                names = list(cls.__pydantic_fields__)
                if len(args) > len(names):
                    raise TypeError(f"{cls.__name__}() takes at most {len(names)} positional arguments")
                for name, value in zip(names, args, strict=False):
                    if name in kwargs:
                        raise TypeError(f"{cls.__name__}() got two values for {name!r}")
                    kwargs[name] = value
            return super().__call__(**kwargs)


class Value(BaseModel, metaclass=_Positional):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())

    def to_json(self) -> str:
        """The stored form."""
        return self.model_dump_json(exclude_none=True)

    def to_data(self) -> dict[str, Any]:
        """The stored form as plain JSON values."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the stored form. Raises ``pydantic.ValidationError`` where it does not fit."""
        return cls.model_validate_json(text)

    def replaced(self, **changes: Any) -> Self:
        """A copy with some fields changed. The changes are taken as they are: callers pass validated values."""
        return twin(self, self.__dict__ | changes)


def twin(model: M, fields: dict[str, Any]) -> M:
    """Another instance of a model, with these fields as they are: ``model_copy`` at a quarter of its price."""
    copy = object.__new__(type(model))
    _set(copy, "__dict__", fields)
    _set(copy, "__pydantic_fields_set__", model.__pydantic_fields_set__)
    _set(copy, "__pydantic_extra__", None)
    _set(copy, "__pydantic_private__", None)
    return copy


def check_json(value: Any, what: str) -> JsonValue:
    """Return a detached copy of ``value`` as strict JSON: tuples become lists, nothing is shared with the original.

    ``what`` names the value in the error. Raises ``InvalidValue`` with the path of the first thing that is not
    strict JSON: a float that is not finite, a key that is not text, text that is not valid Unicode, any other object,
    or nesting deeper than ``MAX_DEPTH`` (engine.md, section 4).
    """
    return _check(value, what, "$", 0)


def _check(value: Any, what: str, path: str, depth: int) -> JsonValue:
    kind = type(value)
    if kind is str:
        return check_text(value, what, path)
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise InvalidValue(what, path, f"{value!r} is not a JSON number")
        return value
    if depth >= MAX_DEPTH:
        raise InvalidValue(what, path, f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is dict:
        result = {}
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidValue(what, path, f"the key {key!r} is not a string")
            check_text(key, what, path)
            result[key] = _check(item, what, f"{path}.{key}", depth + 1)
        return result
    if kind is list or kind is tuple:
        return [_check(item, what, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    for base in (bool, int, str):  # subclasses (enums of text, numpy bools are not among them) become the plain type
        if isinstance(value, base):
            return _check(base(value.value if hasattr(value, "value") else value), what, path, depth)
    raise InvalidValue(what, path, f"a {kind.__name__} is not JSON", foreign=True)


def detached(value: JsonValue) -> JsonValue:
    """A copy of strict JSON that its owner may change in place."""
    if type(value) is dict:
        return {key: detached(item) for key, item in value.items()}
    if type(value) is list:
        return [detached(item) for item in value]
    return value


def valid_text(value: str) -> str:
    """Text that JSON can hold: surrogates that belong together are joined, lone ones become ``\\ufffd``."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def check_text(value: str, what: str, path: str = "$") -> str:
    """Return ``value``, or raise ``InvalidValue`` when it holds a lone surrogate, which no JSON file can hold."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(
                what, path, f"character {error.start} is a lone surrogate, which is not valid Unicode"
            ) from None
    return value
