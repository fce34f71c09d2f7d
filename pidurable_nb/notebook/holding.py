"""What keeps a session from starting work, and why (notebook.md, Opening before the tools exist).

A session is *held* while it is paused, or while recovered work names tools, models or tasks that this kernel lacks.
What it waits for is looked up again whenever the registry changes; once nothing is missing, the session goes on by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..agent.harness import Harness
from .bridge import Bridge

__all__ = ["Hold", "remedy"]


class Hold:
    """The hold of one session. The coroutines run on the engine thread; ``changed`` is called there when it ends."""

    def __init__(self, bridge: Bridge, harness: Harness, changed: Callable[[], None]) -> None:
        self._bridge = bridge
        self._harness = harness
        self._changed = changed
        self._unsubscribe: Callable[[], None] | None = None
        self.paused = False
        self.waiting_for: tuple[str, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why nothing starts, or ``None`` when it does."""
        if not self._harness.hold:
            return None
        if self.waiting_for:
            return "for " + "; ".join(self.waiting_for)
        return "paused: `%durable resume` starts it"

    @property
    def words(self) -> str | None:
        """The reason in words that go on from "the session"."""
        reason = self.reason
        if reason is None:
            return None
        return f"is {reason}" if reason.startswith("paused") else f"waits {reason}"

    def pause(self) -> None:
        """Start nothing before ``resume``."""
        self.paused = True
        self._harness.hold = True

    async def wait_for_tools(self) -> None:
        """Stay paused while recovered work names something this kernel lacks; go on when the registry has it."""
        self._unsubscribe = self._harness.registry.subscribe(lambda: self._bridge.call_soon(self.look_again))
        self._harness.hold = True
        self.waiting_for = remedy((await self._harness.inspect()).unresolved)
        if not self.waiting_for:
            await self.resume()

    async def look_again(self) -> None:
        """Go on when nothing is missing any more; called whenever the registry has changed."""
        if self.paused or not self._harness.hold or self._harness.end is not None:
            return
        self.waiting_for = remedy((await self._harness.inspect()).unresolved)
        if not self.waiting_for:
            await self.resume()
        else:
            self._changed()

    async def resume(self) -> None:
        """Start what waits, also what is still missing."""
        self.paused = False
        self.waiting_for = ()
        self._harness.hold = False
        self._harness.resume()
        self._changed()

    async def release(self) -> None:
        """Let go what was held back for tools that nothing needs any more."""
        if self._harness.hold and not self.paused:
            await self.resume()

    def end(self) -> None:
        """Look at the registry no more."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None


def remedy(missing: Sequence[str]) -> tuple[str, ...]:
    """What is missing as one line with one remedy, or nothing; each is ``kind name``, such as ``tool weather``."""
    kinds: dict[str, list[str]] = {}
    for item in missing:
        kind, _, name = item.partition(" ")
        kinds.setdefault(kind, []).append(f"`{name}`")
    if not kinds:
        return ()
    models, code = kinds.get("model", []), [name for kind, names in kinds.items() if kind != "model" for name in names]
    remedies = ([f"run {'its cell' if len(code) == 1 else 'their cells'}"] if code else []) + (
        [f"register {'it' if len(models) == 1 else 'them'} or set {'its key' if len(models) == 1 else 'their keys'}"]
        if models and not code
        else ["register the model or set its key"]
        if models
        else []
    )
    what = ", ".join(f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}" for kind, names in kinds.items())
    return (f"{what}: {', '.join(remedies)}, or `%durable resume`",)
