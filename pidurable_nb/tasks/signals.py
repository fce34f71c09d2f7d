"""Signals: named values that reach a task from outside (engine.md, sections 2 and 7).

A *signal* is a name and a JSON value. One that arrives while its task waits for that name ends the wait in the same
commit. Any other is *kept*, in order of arrival, in a document of the task, until the task asks for its name. A request
id makes a signal count once, also after a restart.

What ended the newest wait is the memo ``RECEIVED`` of the task's record, so it is there again when a phase reruns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import DurableError
from ..records import Pending, TaskRecord, Waiting
from ..session import Document, Tx
from ..values import JsonValue, check_json, check_text
from .rules import Cause

if TYPE_CHECKING:
    from .runtime import TaskTx

RECEIVED = "pi.received"
"""The memo that holds what the newest wait for a signal was ended by."""

SignalResult: TypeAlias = Literal["delivered", "kept", "duplicate", "terminal"]


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that a task received."""

    name: str
    value: JsonValue


class Kept(Document, kind="pi.signals", scope="task"):
    """The signals that a task did not ask for yet, as ``[name, value]``, and the request ids of all it was sent."""

    signals: list[list[JsonValue]] = []
    requests: list[str] = []


def received(record: TaskRecord) -> Received | None:
    """What ended the newest wait for a signal; ``None`` when that was its timeout, or there was no wait."""
    found = record.memos.get(RECEIVED)
    return None if found is None else Received(found[0], found[1])


async def take(tx: TaskTx, record: TaskRecord, state: Waiting) -> tuple[TaskRecord, Cause, Pending | Waiting]:
    """A wait for a signal as it is to be stored: over at once when a signal of that name is kept."""
    memos = {name: value for name, value in record.memos.items() if name != RECEIVED}
    if tx._has_kept_signals(record.id):
        kept = await tx.doc(Kept, record.id)
        for index, (name, value) in enumerate(kept.signals):
            if name == state.signal:
                del kept.signals[index]
                memos[RECEIVED] = [name, value]
                return record.replaced(memos=memos), "receive", Pending(checkpoint=state.checkpoint)
    return record.replaced(memos=memos), "wait", state


async def deliver(tx: Tx, task: int, name: str, value: JsonValue, request_id: str | None) -> SignalResult:
    """Stage a signal. Raises ``DurableError`` for a task that does not exist."""
    from .runtime import changed  # the layer above: it uses take()

    check_text(name, "the name of a signal")
    checked = check_json(value, f"the signal {name}")
    record = await tx.task(task)
    if record is None:
        raise DurableError(f"there is no task {task} to signal")
    if record.state.status in ("completing", "terminal"):
        return "terminal"
    state = record.state
    waits = isinstance(state, Waiting) and state.signal == name and not record.abort_requested
    if request_id is not None:
        kept = await tx.doc(Kept, record.id)
        if request_id in kept.requests:
            return "duplicate"
        kept.requests.append(request_id)
    if isinstance(state, Waiting) and waits:
        record = record.replaced(memos=record.memos | {RECEIVED: [name, checked]})
        tx._put_task(await changed(tx, record, "signal", Pending(checkpoint=state.checkpoint)))
        return "delivered"
    kept = await tx.doc(Kept, record.id)
    kept.signals.append([name, checked])
    return "kept"
