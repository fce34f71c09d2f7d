"""The registry: the extensions installed in this process (engine.md, section 10).

It changes atomically: a *snapshot* is immutable and holds for as long as somebody keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import RegistryError
from ..tasks import Task
from .extension import Extension, Section
from .tool import Tool


@dataclass(frozen=True)
class RegistrySnapshot:
    """The installed extensions, in order of installation."""

    extensions: tuple[Extension, ...] = ()

    @cached_property
    def _tasks(self) -> dict[str, tuple[type[Task[Any, Any]], str]]:
        return {task.name: (task, extension.name) for extension in self.extensions for task in extension.tasks}

    def task(self, name: str) -> type[Task[Any, Any]] | None:
        """The task class of a name."""
        found = self._tasks.get(name)
        return None if found is None else found[0]

    def task_with_extension(self, name: str) -> tuple[type[Task[Any, Any]], str] | None:
        """The task class of a name and the extension it is from."""
        return self._tasks.get(name)

    def extension(self, name: str) -> Extension | None:
        """The extension of a name."""
        return next((extension for extension in self.extensions if extension.name == name), None)

    def selected(self, names: Iterable[str] | None) -> tuple[Extension, ...]:
        """The extensions of these names that are installed, all of them for ``None``."""
        if names is None:
            return self.extensions
        wanted = set(names)
        return tuple(extension for extension in self.extensions if extension.name in wanted)

    def tools(
        self, extensions: Iterable[str] | None = None, on_error: Callable[[str, str, Exception], None] | None = None
    ) -> dict[str, Tool]:
        """The tools of some extensions by name, later ones in place of earlier, wrapped.

        A wrapper that raises drops its target from this resolution and is reported to ``on_error``.
        """
        chosen = self.selected(extensions)
        found = {tool.name: tool for extension in chosen for tool in extension.tools}
        return self._wrapped("tool", chosen, found, on_error)

    def sections(
        self, extensions: Iterable[str] | None = None, on_error: Callable[[str, str, Exception], None] | None = None
    ) -> dict[str, tuple[Section, str]]:
        """The sections of some extensions by key, each with its extension's name, wrapped."""
        chosen = self.selected(extensions)
        origin = {part.key: extension.name for extension in chosen for part in extension.sections}
        found = {part.key: part for extension in chosen for part in extension.sections}
        return {key: (part, origin[key]) for key, part in self._wrapped("section", chosen, found, on_error).items()}

    @staticmethod
    def _wrapped(
        kind: str,
        extensions: Iterable[Extension],
        found: dict[str, Any],
        on_error: Callable[[str, str, Exception], None] | None,
    ) -> dict[str, Any]:
        for extension in extensions:
            for wrap in extension.wraps:
                if wrap.kind == kind and wrap.name in found:
                    try:
                        found[wrap.name] = wrap.wrap(found[wrap.name])
                    except Exception as error:
                        del found[wrap.name]
                        if on_error is not None:
                            on_error(extension.name, f"wrap_{kind}({wrap.name!r})", error)
        return found


@dataclass
class Registry:
    """The extensions of this process; share one between harnesses or give each its own."""

    _snapshot: RegistrySnapshot = field(default_factory=RegistrySnapshot)
    _listeners: list[Callable[[], None]] = field(default_factory=list)

    def install(self, extension: Extension) -> None:
        """Install an extension, in place of one of the same name. It is atomic, also for work that is running.

        Raises ``RegistryError`` and changes nothing when one of its tasks has a name that another extension uses.
        """
        if not isinstance(extension, Extension):
            raise RegistryError(f"{extension!r} is not an Extension: wrap tools as Extension('name', tools=[…])")
        current = self._snapshot.extensions
        for task in extension.tasks:
            taken = self._snapshot.task_with_extension(task.name)
            if task.name.startswith("pi."):
                raise RegistryError(f"the task name {task.name!r} belongs to the engine")
            if taken is not None and taken[1] != extension.name:
                raise RegistryError(
                    f"extension {extension.name}: the task {task.name!r} is already installed by {taken[1]}"
                )
        if any(present.name == extension.name for present in current):
            changed = tuple(extension if present.name == extension.name else present for present in current)
        else:
            changed = (*current, extension)
        self._publish(RegistrySnapshot(changed))

    def uninstall(self, extension: Extension | str) -> None:
        """Take an extension out; nothing happens when it is not there."""
        name = extension if isinstance(extension, str) else extension.name
        self._publish(RegistrySnapshot(tuple(e for e in self._snapshot.extensions if e.name != name)))

    def snapshot(self) -> RegistrySnapshot:
        """What is installed now."""
        return self._snapshot

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change, on the thread that made it. Returns what ends the subscription."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def _publish(self, snapshot: RegistrySnapshot) -> None:
        self._snapshot = snapshot
        for listener in list(self._listeners):
            listener()
