"""Documents: typed JSON state beside the transcript (engine.md, section 4).

A *document class* declares what it is; a *draft* is an instance that one transaction may change; an *address* names one
document: its kind, the conversation or task that it belongs to, and its key in a family. What is stored is the JSON
value of the instance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from ..errors import DocumentVersionError, InvalidDocument, InvalidValue, TransactionClosed
from ..patch import Op, diff, diff_lists, same_ends
from ..records import DocumentHistory, DocumentRecord, DocumentScope, ForkPolicy
from ..values import JsonValue, Value, check_json, detached, twin

DELTAS_PER_BASE = 32
"""How many deltas follow a base before the next base, unless a class chooses otherwise."""

ENGINE_PREFIX = "pi."
"""Kinds and names that begin with this belong to the engine."""


def check_name(name: str, what: str, module: str) -> None:
    """Refuse empty names, and the engine's prefix outside the engine. Raises ``ValueError``."""
    if not name:
        raise ValueError(f"{what} needs a name")
    if name.startswith(ENGINE_PREFIX) and not module.startswith("pidurable_nb."):
        raise ValueError(f"{what} cannot be named {name!r}: the prefix 'pi.' belongs to the engine")


class Address(NamedTuple):
    """Where a document lives."""

    kind: str
    scope_id: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentSpec:
    """What a document class declares."""

    kind: str
    version: int
    scope: DocumentScope
    history: DocumentHistory
    fork: ForkPolicy
    family: bool


class Document(BaseModel):
    """The base of document classes::

        class Todos(Document, kind="app.todos", version=2, scope="conversation", history="rewindable", fork="as_of"):
            items: list[str] = []

    ``kind`` is a name unique in the application; ``version`` grows when the fields change meaning; ``scope`` is
    ``session``, ``conversation`` or ``task``. For conversation scope ``history`` is ``latest`` or ``rewindable`` and
    ``fork`` is ``initial``, ``current`` or ``as_of`` (which needs ``rewindable``). ``family=True`` gives one document
    per key. Every field needs a default, except in families that are always created with a ``seed``.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    spec_: ClassVar[DocumentSpec]
    compact_: ClassVar[bool] = False
    """Engine documents leave out fields that are ``None``, and change nothing inside their JSON in place."""

    def __init_subclass__(
        cls,
        kind: str | None = None,
        version: int = 1,
        scope: DocumentScope = "conversation",
        history: DocumentHistory = "latest",
        fork: ForkPolicy = "initial",
        family: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if kind is None:
            return
        check_name(kind, f"the document class {cls.__name__}", cls.__module__)
        if fork == "as_of" and history != "rewindable":
            raise ValueError(f"{cls.__name__}: fork='as_of' needs history='rewindable'")
        if scope != "conversation" and (history != "latest" or fork != "initial"):
            raise ValueError(f"{cls.__name__}: history and fork are for conversation documents only")
        cls.spec_ = DocumentSpec(kind, version, scope, history, fork, family)

    @classmethod
    def migrate(cls, value: dict[str, Any], from_version: int) -> dict[str, Any]:
        """The value of an older version in the form of this one. The default takes it as it is."""
        return value

    @classmethod
    def checkpoint_when(cls, value: dict[str, Any], ops: list[Op], deltas_since_base: int) -> bool:
        """Whether a change is stored as a base. The default bounds replay: a base after 32 deltas."""
        return deltas_since_base >= DELTAS_PER_BASE


D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class DocumentState:
    """One live incarnation as it is in memory. ``value`` is shared and never changed in place.

    ``parsed`` is the instance that ``value`` was dumped from, for engine documents: their parts are immutable, so that
    the next draft and every reader take a copy instead of validating all of it again.
    """

    record: DocumentRecord
    version: int
    value: JsonValue
    deltas: int
    parsed: Document | None = field(default=None, compare=False, repr=False)


def address_of(doc: type[Document], scope_id: int | None, key: str | None) -> Address:
    """The address of a document, with what the class requires checked. Raises ``ValueError``."""
    spec = getattr(doc, "spec_", None)
    if spec is None:
        raise ValueError(f"{doc.__name__} is not a document class: it declares no kind")
    if spec.scope == "session":
        scope_id = None
    elif scope_id is None:
        raise ValueError(f"{doc.__name__} belongs to a {spec.scope}: say which")
    if spec.family and key is None:
        raise ValueError(f"{doc.__name__} is a family: give a key")
    if not spec.family and key is not None:
        raise ValueError(f"{doc.__name__} is not a family: it takes no key")
    return Address(spec.kind, scope_id, key)


def read(doc: type[D], version: int, value: JsonValue) -> D:
    """An instance of a stored value, migrated where it is of an older version.

    Raises ``DocumentVersionError`` when the value is of a newer version, and ``InvalidDocument`` when it does not fit
    the class.
    """
    spec = doc.spec_
    if version > spec.version:
        raise DocumentVersionError(
            f"the document {spec.kind} was stored by version {version} of its class, and this process has version "
            f"{spec.version}: update the code, or open the session with the code that wrote it"
        )
    if not doc.compact_:
        value = detached(value)  # an instance must not share what its owner may change in place
    if version < spec.version:
        value = doc.migrate(value, version)
    try:
        return doc.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise InvalidDocument(f"the document {spec.kind}", where, first["msg"]) from error


def instance_of(doc: type[D], state: DocumentState) -> D:
    """An instance of a document's value, which the caller may change. Raises as ``read``."""
    if type(state.parsed) is not doc:
        return read(doc, state.version, state.value)
    return copied(state.parsed)


def copied(document: D) -> D:
    """A copy of an engine document that shares its immutable parts."""
    fields = {name: value.copy() if type(value) is dict else value for name, value in document.__dict__.items()}
    return twin(document, fields)


def changes(draft: Document, before: DocumentState) -> tuple[JsonValue, list[Op]]:
    """The stored value of an instance, and the operations that lead to it. Raises as ``dump``.

    What an engine document shares with the one before is neither dumped nor compared again.
    """
    if draft.compact_ and type(before.parsed) is type(draft):
        return _changed_parts(draft, before.parsed, before.value)
    value = dump(draft)
    return value, diff(before.value, value)


def dump(draft: Document) -> JsonValue:
    """The stored value of an instance, as strict JSON. Raises ``InvalidDocument`` with the path of what is not.

    Fields of types that pydantic writes as JSON (dates, enumerations, sets, nested models) are stored in that form.
    """
    if draft.compact_:
        return draft.model_dump(mode="json", exclude_none=True)
    what = f"the document {draft.spec_.kind}"
    try:
        return check_json(draft.model_dump(mode="python", warnings="error"), what)
    except InvalidValue as error:
        if not error.foreign:
            raise InvalidDocument(what, error.path, error.why) from None
    except PydanticSerializationError as error:
        raise InvalidDocument(what, "$", str(error)) from None
    try:
        value = check_json(draft.model_dump(mode="json", warnings="error"), what)
    except InvalidValue as error:
        raise InvalidDocument(what, error.path, error.why) from None
    except PydanticSerializationError as error:
        raise _unserializable(draft, what, error) from None
    again = type(draft).model_validate(value)
    if again != draft:  # as with bytes in a field of any type: it would come back as text
        path, lost = _difference(draft.model_dump(warnings=False), again.model_dump(warnings=False), "$")
        raise InvalidDocument(what, path, f"a {type(lost).__name__} is not JSON, and its field does not say its type")
    return value


def _changed_parts(draft: Document, old: Document, old_value: dict[str, Any]) -> tuple[dict[str, Any], list[Op]]:
    value: dict[str, Any] = {}
    ops: list[Op] = []
    others: set[str] = set()
    for name in type(draft).model_fields:
        item, before = getattr(draft, name), getattr(old, name)
        if item is None:
            continue
        if item is before and type(item) is not dict:
            value[name] = old_value[name]
        elif type(item) is type(before) is tuple and item and isinstance(item[0], Value):
            value[name] = _changed_tuple(item, before, old_value[name], f"/{name}", ops)
        else:
            value[name] = None  # keeps its place among the fields
            others.add(name)
    if others:
        value |= draft.model_dump(mode="json", exclude_none=True, include=others)
    gone = {name: item for name, item in old_value.items() if name in others or name not in value}
    ops.extend(diff(gone, {name: value[name] for name in value if name in others}))
    return value, ops


def _changed_tuple(
    parts: tuple[Value, ...], old: tuple[Value, ...], old_values: list[Any], path: str, ops: list[Op]
) -> list[Any]:
    """The values of a tuple that mostly holds what it held: same objects at both ends are taken over."""
    start, end = same_ends(old, parts)
    middle = [part.to_data() for part in parts[start : len(parts) - end]]
    values = [*old_values[:start], *middle, *old_values[len(old_values) - end :]]
    diff_lists(old_values, values, path, ops, start, end)
    return values


def _unserializable(draft: Document, what: str, error: Exception) -> InvalidDocument:
    """Where that is which pydantic cannot write as JSON."""
    for name in type(draft).model_fields:
        try:
            draft.model_dump(mode="json", include={name})
        except PydanticSerializationError:
            try:
                check_json(draft.model_dump(include={name}, warnings=False), what)
            except InvalidValue as found:
                return InvalidDocument(what, found.path, found.why)
    return InvalidDocument(what, "$", str(error))


def _difference(old: Any, new: Any, path: str) -> tuple[str, Any]:
    """The first place where two values differ, and what the old one has there."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key, item in old.items():
            if item != new[key]:
                return _difference(item, new[key], f"{path}.{key}")
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for index, (item, other) in enumerate(zip(old, new, strict=True)):
            if item != other:
                return _difference(item, other, f"{path}[{index}]")
    return path, old


def close_draft(draft: Document) -> None:
    """End the life of a draft: from now on, using it raises ``TransactionClosed``."""
    object.__setattr__(draft, "__class__", _ClosedDraft)


class _ClosedDraft(BaseModel):
    """What a draft turns into when its transaction ends: using it says so instead of losing the change."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise TransactionClosed(
            f"this draft belongs to a transaction that has ended, so {name!r} cannot be used: "
            "take a new draft with tx.doc() in a new commit, or read a snapshot"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise TransactionClosed(
            f"this draft belongs to a transaction that has ended, so {name!r} cannot be set: "
            "take a new draft with tx.doc() in a new commit"
        )

    def __repr__(self) -> str:
        return "<draft of an ended transaction>"
