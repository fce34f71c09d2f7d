"""A figure, its goal, and how both are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

__all__ = ["Figure", "best_rate", "median"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``goal`` is in words; ``met`` says whether it was reached, ``None`` where there is none."""

    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        shown = f"{self.value:,.0f}" if abs(self.value) >= 100 else f"{self.value:.3g}"
        mark = {True: "ok", False: "MISSED", None: ""}[self.met]
        return f"{self.name:<58} {shown:>10} {self.unit:<10} {mark:<7} {self.goal}".rstrip()

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def best_rate(durations: list[float], count: int) -> float:
    """How many per second, from the median of several runs of ``count`` each."""
    return count / median(durations)
