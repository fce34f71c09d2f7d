"""``%durable``, ``%%durable`` and ``%%durable_kernel`` in a shell (notebook.md, ``%durable``).

This module registers the magics and turns every failure into one line; ``commands`` holds what they do. It is imported
by ``%load_ext pidurable_nb``, so it imports nothing of the engine: that comes with the first magic.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, no_var_expand

from ..errors import DurableError, NotebookError
from . import questions

__all__ = ["DurableMagics", "MagicError", "MagicInterrupted", "register"]


_log = logging.getLogger("pidurable_nb")


class MagicError(NotebookError):
    """What a failed magic raises: it stops the run of the notebook and shows as its one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31m%durable: {self}\x1b[0m"]


class MagicInterrupted(KeyboardInterrupt):
    """An interrupt of a magic; one that waited for a turn raises ``chat.TurnInterrupted``, which says more."""

    def _render_traceback_(self) -> list[str]:
        return ["interrupted: a turn that was going on goes on; %durable stop stops it"]


@magics_class
class DurableMagics(Magics):
    """The magics of one shell."""

    @no_var_expand  # braces and dollars are ours to read
    @line_cell_magic
    def durable(self, line: str, cell: str | None = None) -> Any:
        """Ask an agent that survives its kernel; ``%durable`` lists the commands."""
        if cell is None:
            return self._guarded(lambda: _commands().run_line(self.shell, line))
        return self._guarded(lambda: _commands().run_cell(self.shell, line, cell))

    @no_var_expand
    @cell_magic
    def durable_kernel(self, line: str, cell: str) -> None:
        """Run the cell in a child kernel: ``%%durable_kernel NAME [--until TEXT] [--timeout S] [--then-kill]``."""
        self._guarded(lambda: _commands().run_in_child(line, cell))

    def _guarded(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except MagicError:
            raise
        except (DurableError, OSError, ImportError, ValueError, TypeError) as error:
            raise MagicError(_one_line(error)) from None
        except Exception as error:
            _log.debug("a magic failed", exc_info=error)
            raise MagicError(
                f"{type(error).__name__}: {_one_line(error)}. This is a fault of pidurable_nb. To see where it is, run "
                "`import logging; logging.basicConfig(level='DEBUG')` and this cell again"
            ) from None
        except KeyboardInterrupt as interrupt:
            if hasattr(interrupt, "_render_traceback_"):
                raise
            raise MagicInterrupted from None


# IPython asks an object for its own documentation first; so `%durable?` shows every command without their being
# imported by %load_ext.
vars(DurableMagics)["durable"].getdoc = lambda: str(_commands().help_text())


def _one_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _commands() -> ModuleType:
    return importlib.import_module(".commands", __package__)


def complete(shell: Any, event: Any) -> list[str]:
    """Tab completion of commands, their options and the names they take."""
    words: list[str] = importlib.import_module(".completing", __package__).complete(shell, event.line)
    return words


def register(shell: Any) -> None:
    """Register the magics and their completion with a shell."""
    shell.register_magics(DurableMagics)
    questions.install(shell.input_transformers_cleanup)
    for name in ("%durable", "%%durable", "%%durable_kernel"):
        shell.set_hook("complete_command", complete, str_key=name)
