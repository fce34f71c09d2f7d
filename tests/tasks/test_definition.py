"""Task classes: what they declare, and what is stored of it (engine.md, section 7)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from pidurable_nb import Phase, StoredTask, Task
from pidurable_nb.errors import InvalidValue
from pidurable_nb.tasks.definition import snake_case


class Card(pydantic.BaseModel):
    number: str
    limit: float | None = None


@dataclass
class Receipt:
    key: str
    total: int


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("Run", "run"),
        ("AwaitApproval", "await_approval"),
        ("HTTPCall", "http_call"),
        ("Step2Done", "step2_done"),
        ("A", "a"),
    ],
)
def test_a_phase_is_stored_under_its_class_name_in_snake_case(name: str, stored: str) -> None:
    assert snake_case(name) == stored
    assert type(name, (Phase,), {}).phase_name() == stored


class Pay(Task[Card, Receipt], name="t.pay", version=2):
    class Authorize(Phase):
        pass

    class Capture(Phase):
        key: str
        note: str | None = None
        attempt: int = 1
        card: Card | None = None


def test_absent_fields_are_left_out_of_the_checkpoint_and_read_back() -> None:
    assert Pay.Authorize().checkpoint() == {"phase": "authorize"}
    full = Pay.Capture(key="k", card=Card(number="4"))
    assert full.checkpoint() == {"phase": "capture", "key": "k", "attempt": 1, "card": {"number": "4"}}
    assert Pay.load_phase(full.checkpoint()) == full


def test_a_task_starts_in_its_first_phase() -> None:
    assert Pay.initial_checkpoint({"number": "4"}) == {"phase": "authorize"}
    assert list(Pay.phases) == ["authorize", "capture"]


def test_an_input_that_code_changes_in_place_stays_as_it_is_stored() -> None:
    class Loose(Task[Any, None], name="t.loose"):
        class Run(Phase):
            first: str

        @classmethod
        def initial(cls, input: Any) -> Phase:
            return cls.Run(first=input["items"].pop(0))

    stored = Loose.dump_input({"items": ["a", "b"]})
    assert Loose.initial_checkpoint(stored) == {"phase": "run", "first": "a"}
    Loose.load_input(stored)["items"].clear()
    assert stored == {"items": ["a", "b"]}


def test_inputs_and_results_are_validated_and_stored_as_plain_json() -> None:
    assert Pay.dump_input(Card(number="4")) == {"number": "4", "limit": None}
    assert Pay.load_input({"number": "4"}) == Card(number="4")
    assert Pay.dump_result(Receipt("k", 3)) == {"key": "k", "total": 3}
    with pytest.raises(pydantic.ValidationError):
        Pay.dump_input({"limit": 3})
    with pytest.raises(pydantic.ValidationError):
        Pay.dump_result({"key": "k", "total": "many"})


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (None, None, None),
        (int | str, 3, 3),
        (int | str, "3", "3"),
        (Card | None, None, None),
        (list[Receipt], [Receipt("a", 1)], [{"key": "a", "total": 1}]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Colour, Colour.RED, "red"),
        (tuple[int, str], (1, "a"), [1, "a"]),
    ],
)
def test_any_type_that_pydantic_knows_can_be_input_and_result(kind: Any, value: Any, stored: Any) -> None:
    class Any_(Task[kind, kind], name="t.any"):  # type: ignore[valid-type]
        class Run(Phase):
            pass

    assert Any_.dump_input(value) == stored
    assert Any_.load_input(stored) == value
    assert Any_.dump_result(value) == stored


def test_none_as_input_type_refuses_anything_else() -> None:
    class Nothing(Task[None, None], name="t.nothing"):
        class Run(Phase):
            pass

    with pytest.raises(pydantic.ValidationError):
        Nothing.dump_input(3)


def test_what_is_not_strict_json_is_refused_with_its_path() -> None:
    class Loose(Task[Any, Any], name="t.loose"):
        class Run(Phase):
            value: Any = None

    with pytest.raises(InvalidValue, match=r"\$\.a\[1\]"):
        Loose.dump_input({"a": [1, float("nan")]})
    with pytest.raises(InvalidValue, match="the phase Run"):
        Loose.Run(value=float("inf")).checkpoint()


def test_reserved_empty_and_incomplete_declarations_are_refused() -> None:
    with pytest.raises(ValueError, match="belongs to the engine"):

        class Reserved(Task[None, None], name="pi.mine"):
            class Run(Phase):
                pass

    with pytest.raises(ValueError, match="has no phases"):

        class Empty(Task[None, None], name="t.empty"):
            pass

    with pytest.raises(ValueError, match="version from 1 on"):

        class Old(Task[None, None], name="t.old", version=0):
            class Run(Phase):
                pass

    with pytest.raises(ValueError, match="needs a name"):

        class Nameless(Task[None, None], name=""):
            class Run(Phase):
                pass


def test_an_unknown_phase_and_foreign_fields_are_named() -> None:
    with pytest.raises(ValueError, match="no phase 'refund'; it has authorize, capture"):
        Pay.load_phase({"phase": "refund"})
    with pytest.raises(pydantic.ValidationError, match="surprise"):
        Pay.load_phase({"phase": "capture", "key": "k", "surprise": 1})


def test_a_subclass_inherits_phases_and_may_replace_them() -> None:
    class Base(Task[int, int]):
        class Run(Phase):
            n: int = 1

        class End(Phase):
            pass

    class Derived(Base, name="t.derived"):
        class Run(Phase):
            n: int = 2

    assert Derived.input_type is int

    class Renamed(Pay, name="t.renamed"):
        input_type = str

    assert Renamed.input_type is str
    assert Derived.initial_checkpoint(3) == {"phase": "run", "n": 2}
    assert list(Derived.phases) == ["run", "end"]
    assert Base.phases["run"] is Base.Run


def test_the_default_migration_refuses() -> None:
    with pytest.raises(ValueError, match="no migration from version 1 to 2"):
        Pay.migrate(StoredTask(1, None, {"phase": "authorize"}))


def test_a_phase_is_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        Pay.Capture(key="k").key = "other"  # type: ignore[misc]
