"""Metrics that are released through the mechanism, each clipped to a range as coordinates are to a clip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from fl_privquant.errors import InvalidSpecError

NO_METRICS: Final[Mapping[str, Any]] = MappingProxyType({})
"""The metrics of a client that reports none."""


@dataclass(frozen=True)
class MetricRange:
    """The range of a metric, by its name in the app's reply: clients' values are clipped to it.

    A wide range costs accuracy, because the noise is proportional to it.

    >>> loss = MetricRange("loss", 0.0, 4.0)
    >>> loss.position(1.0), loss.position(9), loss.position(None), loss.value(-0.5)
    (-0.5, 1.0, 0.0, 1.0)
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.high - self.low) and self.low < self.high):
            raise InvalidSpecError(
                "private_metrics",
                self.name,
                f"from {self.low} to {self.high}, expected two finite numbers, the smaller first",
            )

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the range."""
        return self.low, self.high

    def position(self, value: Any) -> float:
        """The place of a value in the range, from -1 (low) to 1 (high); 0 for what is not a number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return 0.0
        # An integer may be larger than any float, so that it is clipped before it is converted.
        inside = float(min(max(value, self.low), self.high))
        return min(2.0 * ((inside - self.low) / (self.high - self.low)) - 1.0, 1.0)

    def value(self, position: float) -> float:
        """The value at a position; noise may carry it beyond the range."""
        return self.low + 0.5 * (position + 1.0) * (self.high - self.low)


def check_metrics(metrics: Sequence[MetricRange]) -> None:
    """Raise InvalidSpecError if two metrics have the same name."""
    names = [metric.name for metric in metrics]
    if len(set(names)) < len(names):
        raise InvalidSpecError("private_metrics", sorted(names), "are not different names")
