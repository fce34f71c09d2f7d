"""The tool ``bash``: commands in the environment of a conversation (engine.md, section 12).

Its output is committed as it comes and becomes the result, which keeps the end of it; the whole of a long output lies
in a file that ``read`` takes. An abort, a close and the death of the process end the command's process group. A command
that was cut off does not run again.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import IO, Annotated, Any

from pydantic import Field

from ..agent.context import ToolContext
from ..agent.tool import OutputLimits, Tool, ToolResult, tool
from .environment import Environment
from .files import environment_of

SPILL_BYTES = 100 * 1024 * 1024
"""The most output that one command may give; a command that goes on is stopped."""


def bash(
    *,
    name: str = "bash",
    limits: OutputLimits | None = None,
    approval: bool | Callable[[dict[str, Any]], bool] = False,
) -> Tool:
    """A tool that runs shell commands. Replay is unsafe: one that was cut off is reported as interrupted.

    ``limits`` bound what the model sees of the output, by default its last 50 KiB and 2,000 lines. The longest time is
    the environment's (``LocalEnvironment(timeout=…)``). ``approval`` asks a person first: always, or where a predicate
    of the arguments says so.
    """
    kept = limits or OutputLimits()

    @tool(name=name, output_limits=kept, approval=approval)
    async def bash(
        ctx: ToolContext,
        command: Annotated[str, Field(min_length=1)],
        timeout: Annotated[float | None, Field(gt=0, description="Seconds; shorter than the limit if given")] = None,
    ) -> ToolResult:
        """Run a shell command in the working directory. It gets no input; both of its outputs come back as one.

        What it leaves running in the background ends with it."""
        env = environment_of(ctx.env, (await ctx.agent()).cwd)
        spill = _Spill(env, kept)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def take(data: bytes) -> None:
            spill.write(data)
            ctx.output(decoder.decode(data))

        try:
            end = await env.run(command, take, timeout=timeout)
        finally:
            spill.close()
        ctx.output(decoder.decode(b"", final=True))
        if spill.path is not None:
            ctx.diagnostic(f"The whole output, {spill.size} bytes, is in {spill.path}.", code="spilled")
        if end.timed_out:
            limit = env.timeout if timeout is None else min(timeout, env.timeout)
            ctx.diagnostic(f"The command was stopped after {limit:g} s.", severity="error", code="timeout")
        elif end.exit_code:
            how = f"signal {-end.exit_code}" if end.exit_code < 0 else f"exit code {end.exit_code}"
            ctx.diagnostic(f"The command ended with {how}.", severity="warn", code="exit_code")
        return ToolResult(is_error=end.timed_out, details={"exit_code": end.exit_code})

    return bash


class _Spill:
    """Output, kept in memory until it is longer than the limits, then in a file."""

    def __init__(self, env: Environment, limits: OutputLimits) -> None:
        self._env = env
        self._limits = limits
        self._held: list[bytes] = []
        self._lines = 0
        self._file: IO[bytes] | None = None
        self.size = 0
        self.path: str | None = None

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > SPILL_BYTES:
            raise ValueError(f"the command gave more than {SPILL_BYTES // 1024 // 1024} MB of output and was stopped")
        if self._file is not None:
            self._file.write(data)
            return
        self._held.append(data)
        self._lines += data.count(b"\n")
        if self.size > self._limits.bytes or self._lines > self._limits.lines:
            self.path, self._file = self._env.spill()
            self._file.write(b"".join(self._held))
            self._held = []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


__all__ = ["bash"]
