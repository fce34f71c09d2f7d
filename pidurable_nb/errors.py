"""Every error that the package raises on purpose, under one base.

::

    DurableError
    ├── SessionClosed                a call on a session that was closed
    ├── SessionFailed                a call on a session that a storage error ended
    ├── SessionForked                a session used in a child made by os.fork()
    ├── SessionInUse                 another process owns the storage
    ├── StorageError                 the storage could not do what was asked
    │   ├── StorageCorrupt           a file holds something that this version cannot read
    │   ├── StorageRequestError      the request itself was wrong
    │   └── SchemaTooNew             a newer version of the package wrote the file
    ├── TransactionClosed            a transaction or a draft used after its commit
    ├── ReadAfterWrite               a scan after the first table write of a transaction
    ├── CommitReentered              something that queues on the line, called inside an open commit
    ├── WouldDeadlock                a wait that only its own end could end
    ├── InvalidValue                 data that is not strict JSON
    │   └── InvalidDocument          the same, in a document
    ├── DocumentMissing              a watch on a document that does not exist
    ├── DocumentVersionError         a document stored by a newer class
    ├── InvocationEnded              a runtime call after its invocation ended
    ├── InvalidTransition            a change of a task's state that no rule allows
    ├── WaitCycle                    a wait that could never end
    ├── OwnerEnded                   new work under an owner that has ended or is being aborted
    ├── StepInterrupted              an unsafe workflow step that was cut off
    ├── WorkflowChanged              a workflow whose steps differ from what is stored
    ├── ConversationBusy             when_busy="reject", and a run is going on
    ├── Unanswered                   ask() got no answer
    ├── RequestIdReused              one request id for two different inputs
    ├── RegistryError                an extension that cannot be installed
    ├── ModelError                   a model could not be made or reached
    │   ├── UnknownModel             no model of that name, or what it needs is missing
    │   ├── ScriptExhausted          a scripted model asked more often than it has steps
    │   └── RecordingMismatch        a replayed model asked what was not recorded
    └── NotebookError                a magic or a notebook call that cannot be done

A message says what happened, whose fault it is and what to do next. All of them survive pickling.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CommitReentered",
    "ConversationBusy",
    "DocumentMissing",
    "DocumentVersionError",
    "DurableError",
    "InvalidDocument",
    "InvalidTransition",
    "InvalidValue",
    "InvocationEnded",
    "ModelError",
    "NotebookError",
    "OwnerEnded",
    "ReadAfterWrite",
    "RecordingMismatch",
    "RegistryError",
    "RequestIdReused",
    "SchemaTooNew",
    "ScriptExhausted",
    "SessionClosed",
    "SessionFailed",
    "SessionForked",
    "SessionInUse",
    "StepInterrupted",
    "StorageCorrupt",
    "StorageError",
    "StorageRequestError",
    "TransactionClosed",
    "Unanswered",
    "UnknownModel",
    "WaitCycle",
    "WorkflowChanged",
    "WouldDeadlock",
]


class DurableError(Exception):
    """The base of every error in this module."""

    def __reduce__(self) -> Any:
        # Subclasses take their own arguments; pickling restores what they made of them instead of calling __init__.
        return (_restore, (type(self), self.args, self.__dict__))


def _restore(cls: type[DurableError], args: tuple[Any, ...], state: dict[str, Any]) -> DurableError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SessionClosed(DurableError):
    """The session was closed; open it again to go on (engine.md, section 15)."""


class SessionFailed(DurableError):
    """A storage error ended the session; its cause is ``__cause__``. Reopening recovers (engine.md, section 15)."""


class SessionForked(DurableError):
    """The session belongs to the parent process; a forked child must open its own (engine.md, section 16)."""


class SessionInUse(DurableError):
    """Another process owns the storage (engine.md, section 16).

    ``path`` is the storage; ``pid``, ``host`` and ``since`` (epoch seconds) say who owns it, or are ``None`` where
    that cannot be read.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        pid: int | None = None,
        host: str | None = None,
        since: float | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.pid = pid
        self.host = host
        self.since = since


class StorageError(DurableError):
    """The storage failed. It ends the session (engine.md, section 15)."""


class StorageCorrupt(StorageError):
    """A file holds something that cannot be read. It names the file; nothing in the file was changed."""


class StorageRequestError(StorageError):
    """A read request that makes no sense. It fails only its call (engine.md, section 15)."""


class SchemaTooNew(StorageError):
    """A newer version of the package wrote this file; nothing in it was changed."""


class TransactionClosed(DurableError):
    """A transaction or one of its drafts was used after the commit ended (engine.md, section 3)."""


class ReadAfterWrite(DurableError):
    """A scan after the first table write of a transaction; scan first, or look up by id (engine.md, section 3)."""


class CommitReentered(DurableError):
    """Something that queues on the commit line was called inside an open commit (engine.md, rule 1.8)."""


class WouldDeadlock(DurableError):
    """A wait that could only end after itself (engine.md, rule 1.8)."""


class InvalidValue(DurableError):
    """Data that is not strict JSON (engine.md, section 4). ``path`` is where, as in ``$.items[3]``, ``why`` the reason.

    ``foreign`` says that an object of a type JSON does not have stands there.
    """

    def __init__(self, what: str, path: str, why: str, *, foreign: bool = False) -> None:
        super().__init__(f"{what} cannot be stored: at {path}, {why}. Only strict JSON can be stored.")
        self.path = path
        self.why = why
        self.foreign = foreign


class InvalidDocument(InvalidValue):
    """A document whose value is not strict JSON or does not fit its class (engine.md, section 4)."""


class DocumentMissing(DurableError):
    """A watch on a document that does not exist; create it in a commit first (engine.md, section 4)."""


class DocumentVersionError(DurableError):
    """The stored document is of a newer version than its class (engine.md, section 4)."""


class InvocationEnded(DurableError):
    """A runtime call after its invocation ended: aborted, closed or finished (engine.md, section 7)."""


class InvalidTransition(DurableError):
    """A change of a task's state that no row of the transition table allows (engine.md, section 7)."""


class WaitCycle(DurableError):
    """A wait that closes a cycle over waits and ownership, or names a missing task (engine.md, section 7)."""


class OwnerEnded(DurableError):
    """New owned work needs an owner that is neither completing, terminal nor abort-marked (engine.md, section 7)."""


class StepInterrupted(DurableError):
    """An unsafe workflow step was cut off; whether it took effect is unknown."""


class WorkflowChanged(DurableError):
    """The steps of a workflow differ from the stored ones."""


class ConversationBusy(DurableError):
    """A run is going on and the input asked to be rejected then; nothing was stored (engine.md, section 9)."""


class Unanswered(DurableError):
    """``ask`` got no answer. ``submission`` is the settled record; ``reason`` and ``detail`` are its fields."""

    def __init__(self, message: str, *, submission: Any = None) -> None:
        super().__init__(message)
        self.submission = submission

    @property
    def reason(self) -> str | None:
        return None if self.submission is None else self.submission.reason

    @property
    def detail(self) -> Any:
        return None if self.submission is None else self.submission.detail


class RequestIdReused(DurableError):
    """A request id that was used for another type or other content (engine.md, section 9)."""


class RegistryError(DurableError):
    """An extension that cannot be installed; nothing was changed (engine.md, section 10)."""


class ModelError(DurableError):
    """A model could not be made or reached."""


class UnknownModel(ModelError):
    """No model of that name, or the package or the key that it needs is missing. The message says which."""


class ScriptExhausted(ModelError):
    """A scripted model got more requests than it has steps."""


class RecordingMismatch(ModelError):
    """A replayed model was asked what its recording does not hold; the message says how the request differs."""


class NotebookError(DurableError):
    """A magic or a notebook call that cannot be done; its message is one line that says what to do."""
