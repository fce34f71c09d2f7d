"""Tools that come with the package: files, commands, the kernel (docs/toolbox.md).

Each name is a function that makes a tool: ``bash()``, ``python(approval=False)``. They work in the environment that the
harness was opened with.
"""

from __future__ import annotations

from .environment import CommandEnd, Environment, LocalEnvironment
from .files import edit, read, write
from .kernel import python
from .shell import bash

__all__ = ["CommandEnd", "Environment", "LocalEnvironment", "bash", "edit", "python", "read", "write"]
