"""Task classes: a durable state machine written as a class (engine.md, section 7).

A *task class* has a name, a version, an input and a result type, and *phases*: pydantic models whose fields are the
stored checkpoint and whose ``run`` is the code of that state. A phase is stored as ``{"phase": name, ...fields}``; the
name is the class name in snake case, and fields that are ``None`` by default and still are stay out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter

from ..records import Checkpoint, TaskRecord
from ..session.documents import check_name
from ..values import JsonValue, check_json, detached

if TYPE_CHECKING:
    from .runtime import TaskRun, TaskTx

I = TypeVar("I")  # noqa: E741  (input, as in api.md)
R = TypeVar("R")


def snake_case(name: str) -> str:
    """``HTTPCall`` becomes ``http_call``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Phase(BaseModel):
    """One state of a task: its fields are stored, ``run`` is its code.

    ``run`` leads to the next state through its ``TaskRun``: ``next``, ``wait``, ``receive``, ``sleep_until``,
    ``complete``, ``fail``. A phase that returns without a new checkpoint is a fault, since nothing durable happened.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    async def run(self, task: TaskRun[Any, Any]) -> None:
        """The code of this state."""
        raise NotImplementedError(f"the phase {type(self).__name__} has no run method")

    @classmethod
    def phase_name(cls) -> str:
        """The name under which it is stored."""
        return snake_case(cls.__name__)

    def checkpoint(self) -> Checkpoint:
        """What is stored of it. Raises ``InvalidValue`` for fields that are not strict JSON."""
        fields = self.model_dump(mode="json")
        for name, info in type(self).model_fields.items():
            if fields[name] is None and info.default is None:
                del fields[name]
            elif isinstance(value := getattr(self, name), BaseModel):
                fields[name] = value.model_dump(mode="json", exclude_none=True)
        checked: Checkpoint = check_json({"phase": self.phase_name(), **fields}, f"the phase {type(self).__name__}")
        return checked


@dataclass(frozen=True, slots=True)
class StoredTask:
    """What ``migrate`` gets: the stored version, input and checkpoint as plain JSON."""

    version: int
    input: JsonValue
    checkpoint: Checkpoint


class Task(Generic[I, R]):
    """The base of task classes::

        class Payment(Task[Card, Receipt], name="shop.payment", version=1):
            class Authorize(Phase):
                async def run(self, task: TaskRun[Card, Receipt]) -> None: ...

    ``name`` is unique over all extensions, ``version`` grows when stored records need ``migrate``. ``I`` and ``R`` may
    be any types that pydantic can validate and dump as JSON.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    phases: ClassVar[dict[str, type[Phase]]]
    input_type: ClassVar[Any] = Any
    result_type: ClassVar[Any] = Any

    def __init_subclass__(cls, name: str | None = None, version: int = 1, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.phases = dict(getattr(cls, "phases", {}))
        for value in cls.__dict__.values():
            if isinstance(value, type) and issubclass(value, Phase):
                cls.phases[value.phase_name()] = value
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Task:
                input_type, result_type = get_args(base)
                if not isinstance(input_type, TypeVar):
                    cls.input_type = input_type
                if not isinstance(result_type, TypeVar):
                    cls.result_type = result_type
        if name is not None:
            check_name(name, f"the task class {cls.__name__}", cls.__module__)
            if version < 1:
                raise ValueError(f"the task class {cls.__name__} needs a version from 1 on")
            if not cls.phases:
                raise ValueError(f"the task class {cls.__name__} has no phases: give it a nested Phase class")
            cls.name = name
            cls.version = version

    @classmethod
    def initial(cls, input: I) -> Phase:
        """The phase a new task starts in; by default the first one, which then may not have required fields."""
        first = next(iter(cls.phases.values()))
        return first()

    @classmethod
    async def abort(cls, task: TaskRun[I, R]) -> None:
        """Clean up and end the task, once nothing below it is live; by default it just ends ``aborted``."""
        await task.aborted()

    @classmethod
    def migrate(cls, stored: StoredTask) -> tuple[Any, Phase]:
        """The input and the phase of a task that an older version stored. The default refuses."""
        raise ValueError(f"{cls.name} has no migration from version {stored.version} to {cls.version}")

    # -- conversions, for the engine ---------------------------------------------------------------------------------

    @classmethod
    def dump_input(cls, input: Any) -> JsonValue:
        """The stored form of an input, validated first. Raises pydantic's error when it does not fit."""
        known = adapter(cls.input_type)
        return check_json(known.dump_python(known.validate_python(input), mode="json"), f"the input of {cls.name}")

    @classmethod
    def load_input(cls, stored: JsonValue) -> Any:
        """An input from its stored form, with which it shares nothing: the task's code may change it."""
        return adapter(cls.input_type).validate_python(detached(stored))

    @classmethod
    def dump_result(cls, result: Any) -> JsonValue:
        """The stored form of a result, validated first. Raises pydantic's error when it does not fit."""
        known = adapter(cls.result_type)
        value = known.dump_python(known.validate_python(result), mode="json")
        return check_json(value, f"the result of {cls.name}")

    @classmethod
    def initial_checkpoint(cls, stored: JsonValue) -> Checkpoint:
        """The stored form of the initial phase of a task with this stored input."""
        return cls.initial(cls.load_input(stored)).checkpoint()

    @classmethod
    def load_phase(cls, checkpoint: Checkpoint) -> Phase:
        """The phase of a checkpoint. Raises ``ValueError`` when there is no such phase or the fields do not fit."""
        fields = dict(checkpoint)
        name = fields.pop("phase", None)
        phase = cls.phases.get(str(name))
        if phase is None:
            raise ValueError(f"{cls.name} version {cls.version} has no phase {name!r}; it has {', '.join(cls.phases)}")
        return phase.model_validate(fields)

    @classmethod
    async def settle(cls, tx: TaskTx, record: TaskRecord) -> None:
        """Called in the scheduler's own commit that ends a task whose code could not do it: faulted or orphaned."""


@cache
def _cached_adapter(type: Any) -> TypeAdapter[Any]:
    return _make_adapter(type)


def _make_adapter(type: Any) -> TypeAdapter[Any]:
    try:  # floats that JSON lacks stay what they are, for check_json to refuse; the default makes them None
        return TypeAdapter(type, config=ConfigDict(ser_json_inf_nan="constants"))
    except PydanticUserError:  # a model has its own configuration
        return TypeAdapter(type)


def adapter(type: Any) -> TypeAdapter[Any]:
    """pydantic's adapter of a type, made once."""
    try:
        return _cached_adapter(type)
    except TypeError:  # an unhashable annotation
        return _make_adapter(type)
