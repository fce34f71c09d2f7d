"""Settings of a harness: read live, at each use (engine.md, sections 9 to 13; defaults in api.md)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from ..models.protocol import RequestOptions
from ..values import Value

DeliveryMode: TypeAlias = Literal["one_at_a_time", "all"]


class RunLimits(Value):
    """Caps on one run (turns, tokens, cost in US dollars) and on the session's cost; ``None`` is no cap."""

    turns: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    cost: float | None = Field(default=None, ge=0)
    session_cost: float | None = Field(default=None, ge=0)


class RetryPolicy(Value):
    """Back-off after a retryable error: ``base_delay * 2 ** (attempt - 1)`` seconds, at most ``max_delay``."""

    enabled: bool = True
    max_retries: int = 3
    base_delay: float = 2.0
    max_delay: float = 60.0

    def delay(self, attempt: int) -> float:
        """Seconds to sleep after the failed attempt of this number, counted from 1."""
        exponent = min(attempt - 1, 60)
        return float(min(self.base_delay * 2**exponent, self.max_delay))


class CompactionPolicy(Value):
    """When a conversation is summarised, in tokens (engine.md, section 13)."""

    enabled: bool = True
    reserve_tokens: int = 16384
    keep_recent_tokens: int = 20000
    background_tokens: int = 32768


class ProgressPolicy(Value):
    """How often partial answers and tool output are committed at most, in seconds."""

    partial_interval: float = 0.1
    output_interval: float = 0.1


class Settings(Value):
    """What holds for every conversation of a harness unless its agent says otherwise."""

    model: str | None = None
    thinking: str = "off"
    extensions: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    model_tools: tuple[str, ...] | None = None
    instructions: str | None = None
    cwd: str | None = None
    limits: RunLimits = Field(default_factory=RunLimits)
    request: RequestOptions = Field(default_factory=RequestOptions)
    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    compaction: CompactionPolicy = Field(default_factory=CompactionPolicy)
    progress: ProgressPolicy = Field(default_factory=ProgressPolicy)
    tool_execution: Literal["parallel", "sequential"] = "parallel"
    steering_mode: DeliveryMode = "one_at_a_time"
    follow_up_mode: DeliveryMode = "one_at_a_time"
    after_failed_run: Literal["keep", "continue", "withdraw"] = "keep"
    restart_limit: float = 5
    context_retention: float = 600.0
    document_retention: float = 600.0
