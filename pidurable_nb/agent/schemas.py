"""Arguments against a JSON Schema that was written by hand (engine.md, section 12).

The draft is the one that ``$schema`` names, 2020-12 without it. Nothing is fetched: a ``$ref`` leads into the schema
itself or to a published draft. ``format`` says something to the model and is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import RegistryError

SHOWN = 5
"""How many misfits a message names."""

LONGEST = 300
"""How many characters of one misfit it says: a value that does not fit may be long."""


def schema_checker(schema: dict[str, Any], name: str) -> Callable[[Any], str | None]:
    """A function that says what of a value does not fit, in words for a model; ``None`` when all of it does.

    ``name`` is that of the tool. Raises ``RegistryError`` for what is no JSON Schema. The first call loads the library
    that checks, which takes a moment.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        where = ".".join(str(part) for part in error.absolute_path) or "the schema"
        raise RegistryError(
            f"the parameters of the tool {name} are no JSON Schema: {where}: {_short(error.message)}"
        ) from error
    validator = kind(schema, registry=REGISTRY)

    def misfits(value: Any) -> str | None:
        try:
            found = sorted(
                validator.iter_errors(value), key=lambda misfit: [str(part) for part in misfit.absolute_path]
            )
        except Unresolvable as error:
            raise RegistryError(
                f"the parameters of the tool {name} refer to {error.ref!r}, which is not in the schema: "
                "put it into $defs"
            ) from error
        words = []
        for misfit in found[:SHOWN]:
            deepest = best_match([misfit]) or misfit  # of several alternatives, why the likeliest does not fit
            where = ".".join(str(part) for part in deepest.absolute_path) or "arguments"
            words.append(f"{where}: {_short(deepest.message)}")
        if len(found) > SHOWN:
            words.append(f"and {len(found) - SHOWN} more")
        return "; ".join(words) or None

    return misfits


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} […] {text[-LONGEST // 2 :]}"
