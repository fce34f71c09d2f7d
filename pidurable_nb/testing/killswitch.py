"""A storage that can die: what a crash looks like to everything above it, without ending the process.

A real crash needs a real process (``crash_sweep`` has them). The switch is for tests that look at both sides in one
process: after ``kill()`` the session above it waits for ever, and the same file can be opened again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ..storage.protocol import Storage


class KillSwitch(Storage):
    """Wraps a storage and passes every call on until ``kill()``.

    From then on every call hangs for ever, those included whose result was under way. The owner lock is free at once
    and the life stays open, as a crash leaves them (engine.md, section 16). A backend takes part by having
    ``abandon()``; without it, only the calls hang.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.killed = False

    def kill(self) -> None:
        """Die now. Commits that were under way are stored or not, as with a crash. Killing twice is allowed."""
        if self.killed:
            return
        self.killed = True
        abandon: Callable[[], None] | None = getattr(self._storage, "abandon", None)
        if abandon is not None:
            abandon()

    def mint_id(self) -> int:
        return self._storage.mint_id()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_storage"], name)


def _gated(name: str) -> Callable[..., Any]:
    async def call(self: KillSwitch, *args: Any, **kwargs: Any) -> Any:
        if not self.killed:
            try:
                result = await getattr(self._storage, name)(*args, **kwargs)
            except Exception:
                if not self.killed:
                    raise
            else:
                if not self.killed:
                    return result
        return await asyncio.get_running_loop().create_future()  # for ever

    call.__name__ = name
    call.__doc__ = getattr(Storage, name).__doc__
    return call


for _name, _member in list(vars(Storage).items()):
    if inspect.iscoroutinefunction(_member):
        setattr(KillSwitch, _name, _gated(_name))
