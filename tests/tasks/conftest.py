"""What all tests of tasks have in common: what is live in memory agrees whenever a healthy session closes."""

from __future__ import annotations

import pytest

from pidurable_nb.tasks import TaskSession


@pytest.fixture(autouse=True)
def _validated(monkeypatch: pytest.MonkeyPatch) -> None:
    close = TaskSession.close

    async def validate_and_close(session: TaskSession) -> None:
        if session.end is None and session._failure is None and session._inside() is None:
            session.validate()
        await close(session)

    monkeypatch.setattr(TaskSession, "close", validate_and_close)
