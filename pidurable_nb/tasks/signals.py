"""Signals: named values that reach a task from outside (engine.md, sections 2 and 7).

A *signal* is a name and a JSON value. One that arrives while its task waits for that name ends the wait in the same
commit. Any other is *kept*, in order of arrival, in a document of the task, until the task asks for its name. A request
id makes a signal count once, also after a restart.

What ended the newest wait is the memo ``RECEIVED`` of the task's record, so it is there again when a phase reruns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import DurableError
from ..records import Pending, TaskRecord, Waiting
from ..session import Document, Tx
from ..values import JsonValue, Value, check_json, check_text
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


class KeptSignal(Value):
    """A signal that its task did not ask for yet."""

    name: str
    value: JsonValue = None


class Kept(Document, kind="pi.signals", version=2, scope="task"):
    """The signals that a task did not ask for yet, and the request ids of all it was sent."""

    compact_ = True

    signals: tuple[KeptSignal, ...] = ()
    requests: tuple[str, ...] = ()

    def taken(self, name: str) -> KeptSignal | None:
        """Take out the oldest signal of a name, where there is one."""
        for index, signal in enumerate(self.signals):
            if signal.name == name:
                self.signals = self.signals[:index] + self.signals[index + 1 :]
                return signal
        return None

    @classmethod
    def migrate(cls, value: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Version 1 kept signals as ``[name, value]``."""
        pairs = value.get("signals", ())
        return {**value, "signals": [{"name": name, "value": kept} for name, kept in pairs]}


def received(record: TaskRecord) -> Received | None:
    """What ended the newest wait for a signal; ``None`` when that was its timeout, or there was no wait."""
    found = record.memos.get(RECEIVED)
    return None if found is None else Received(found[0], found[1])


async def take(tx: TaskTx, record: TaskRecord, state: Waiting) -> tuple[TaskRecord, Cause, Pending | Waiting]:
    """A wait for a signal as it is to be stored: over at once when a signal of that name is kept."""
    memos = {name: value for name, value in record.memos.items() if name != RECEIVED}
    if tx._has_kept_signals(record.id):
        kept = await tx.doc(Kept, record.id)
        signal = None if state.signal is None else kept.taken(state.signal)
        if signal is not None:
            memos[RECEIVED] = [signal.name, signal.value]
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
        kept.requests = (*kept.requests, request_id)
    if isinstance(state, Waiting) and waits:
        record = record.replaced(memos=record.memos | {RECEIVED: [name, checked]})
        tx._put_task(await changed(tx, record, "signal", Pending(checkpoint=state.checkpoint)))
        return "delivered"
    kept = await tx.doc(Kept, record.id)
    kept.signals = (*kept.signals, KeptSignal(name, checked))
    return "kept"
