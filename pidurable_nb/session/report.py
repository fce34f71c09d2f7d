"""Reports: what went wrong without failing a caller (engine.md, section 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

ReportKind: TypeAlias = Literal[
    "session_failed",
    "task_faulted",
    "migration_failed",
    "task_outdated",
    "task_error",
    "extension_error",
    "host_error",
    "listener_error",
]


class ReportedTask(NamedTuple):
    """The task that a report is about."""

    id: int
    kind: str
    conversation_id: int


@dataclass(frozen=True, slots=True)
class Report:
    """One report. ``task`` and ``extension`` are given where they are known; ``callback`` names the hook or listener.

    ``reason`` says more where one kind has several causes.
    """

    kind: ReportKind
    error: BaseException | None = None
    task: ReportedTask | None = None
    extension: str | None = None
    conversation_id: int | None = None
    reason: str | None = None
    callback: str | None = None

    def __str__(self) -> str:
        parts = [self.kind.replace("_", " ")]
        if self.task is not None:
            parts.append(f"task {self.task.id} ({self.task.kind})")
        if self.extension is not None:
            parts.append(f"extension {self.extension}")
        if self.callback is not None:
            parts.append(self.callback)
        if self.reason is not None:
            parts.append(self.reason)
        if self.error is not None:
            parts.append(f"{type(self.error).__name__}: {self.error}")
        return " · ".join(parts)
