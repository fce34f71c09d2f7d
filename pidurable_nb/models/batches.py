"""Deferred answers through the providers' batch interfaces, by way of pydantic-ai's (engine.md, section 11).

A *batch* is a job of the provider that holds one request and is answered later, for less money. Its *handle* is plain
JSON and is what the engine stores while it sleeps: any process can ask with it, on any later day, as long as it has a
key of the same project. It holds no key and no digest of one.

A check that fails says nothing about the batch, so it is deferred again instead of failing: a new request would be paid
for a second time while the first one still runs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import messages as theirs
from pydantic_ai.models import Model as TheirModel, ModelRequestParameters
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult

from ..errors import ModelError

__all__ = ["batched", "cancel", "check", "checked_again", "decoded", "submit"]

FIRST_CHECK = 30.0
"""Seconds until a batch is asked for the first time."""

LAST_CHECK = 600.0
"""Seconds between checks of a batch that takes hours; the pause grows by half until then."""

_BATCH: TypeAdapter[Batch] = TypeAdapter(Batch)


def batched(model: TheirModel) -> bool:
    """Whether the provider takes batches of this model."""
    return model.batch_max_requests is not None


async def submit(
    model: TheirModel,
    messages: Sequence[theirs.ModelMessage],
    settings: Mapping[str, Any],
    parameters: ModelRequestParameters,
) -> dict[str, Any]:
    """Send the request as a batch of its own and return its handle.

    A batch is sent with one set of headers and no deadline: ``timeout`` has no meaning for it, and headers of the
    request's own raise ``ModelError``. Other errors are the provider's.
    """
    if settings.get("extra_headers"):
        raise ModelError("A deferred request cannot carry headers of its own: leave out headers, or deferred.")
    request = BatchRequest(
        custom_id=uuid.uuid4().hex,
        messages=list(messages),
        model_settings={name: value for name, value in settings.items() if name != "timeout"},  # type: ignore[arg-type]
        model_request_parameters=parameters,
    )
    batch = await model.batch_create([await model.batch_encode(request)])
    return _handle(batch, request.custom_id, 0)


async def check(model: TheirModel, handle: Mapping[str, Any]) -> tuple[dict[str, Any], BatchResult | None]:
    """Ask for a batch: the handle as it is now, and the result once the batch has ended.

    Raises ``ModelError`` where the handle is not one of this module, and the provider's errors.
    """
    batch, id = _batch(handle)
    _retry_nothing(model)
    batch = await model.batch_status(batch)
    if batch.status != "ended":
        return _handle(batch, id, handle.get("checks", 0) + 1), None
    results = {result.custom_id: result for result in await model.batch_results(batch)}
    result = results.get(id)
    if result is None:
        raise ModelError(f"The batch {batch.id} ended without a result for the request.")
    return dict(handle), result


def checked_again(handle: Mapping[str, Any], after: float | None) -> dict[str, Any]:
    """The handle after a check that failed; ``after`` is how many seconds the provider asked to wait."""
    checks = handle.get("checks", 0) + 1
    return {**handle, "checks": checks, "poll_after": max(_pause(checks), after or 0.0)}


async def cancel(model: TheirModel, handle: Mapping[str, Any]) -> None:
    """Ask the provider to cancel the batch. Raises as ``check`` does."""
    batch, _ = _batch(handle)
    _retry_nothing(model)
    await model.batch_cancel(batch)


def decoded(model: TheirModel, result: BatchResult) -> theirs.ModelResponse:
    """The answer in a result. Raises the error that the request would have raised by itself."""
    return model.batch_decode(result, BatchRequest(custom_id=result.custom_id, messages=[]))


def _retry_nothing(model: TheirModel) -> None:
    """Have the vendor's client not repeat a check: the engine does, durably. Each check has a client of its own."""
    client: Any = getattr(model, "client", None)
    if hasattr(client, "max_retries"):
        client.max_retries = 0


def _handle(batch: Batch, id: str, checks: int) -> dict[str, Any]:
    plain = _BATCH.dump_python(batch, mode="json")
    # The digest of the credential is for sharing batches among requests; collecting does not ask for it.
    plain["group"] = json.dumps({**json.loads(batch.group), "credential": ""}, sort_keys=True)
    return {"batch": plain, "request": id, "checks": checks, "poll_after": _pause(checks)}


def _pause(checks: int) -> float:
    return float(min(FIRST_CHECK * 1.5 ** min(checks, 20), LAST_CHECK))


def _batch(handle: Mapping[str, Any]) -> tuple[Batch, str]:
    try:
        id = handle["request"]
        if not isinstance(id, str) or not isinstance(handle.get("checks", 0), int):
            raise ValueError("it names no request")
        return _BATCH.validate_python(handle["batch"]), id
    except (KeyError, ValueError, ValidationError) as error:
        raise ModelError(
            "The handle of a deferred answer is not that of a batch: another version or model made it. Ask again."
        ) from error
