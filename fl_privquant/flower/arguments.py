"""Arguments that say the same in several ways: a plan, an encoding, or a mechanism with its clips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.accounting.target import Plan
from fl_privquant.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism

__all__ = ["Arguments"]


@dataclass(frozen=True)
class Arguments:
    """How updates are encoded and seen, as a user gave it; None where it was left out."""

    mechanism: Mechanism | Callable[[int], Mechanism] | None
    clip: float | Callable[[int], float] | None
    l2_clip: float | Callable[[int], float | None] | None
    rotate: bool
    aggregation: Aggregation | None
    budget: Budget | None
    delta: float | None

    def with_encoding(
        self, encoding: Plan | Encoding | Mechanism | Callable[[int], Mechanism] | None
    ) -> Arguments:
        """The arguments with what a plan, an encoding or a mechanism decides; refused if given twice."""
        if isinstance(encoding, Plan):
            _refuse("a plan sets it", aggregation=self.aggregation, budget=self.budget, delta=self.delta)
            planned = self.with_encoding(encoding.encoding)
            return replace(
                planned,
                aggregation=encoding.aggregation,
                budget=encoding.budget,
                delta=encoding.target.delta,
            )
        if isinstance(encoding, Encoding):
            rotate = self.rotate or None
            given = {
                "mechanism": self.mechanism,
                "clip": self.clip,
                "l2_clip": self.l2_clip,
                "rotate": rotate,
            }
            _refuse("the encoding sets it", **given)
            chosen = replace(
                self,
                mechanism=encoding.mechanism,
                clip=encoding.clip,
                l2_clip=encoding.l2_clip,
                rotate=encoding.rotate,
            )
        elif encoding is not None:
            _refuse("the second argument is one", mechanism=self.mechanism)
            chosen = replace(self, mechanism=encoding)
        else:
            chosen = self
        if chosen.mechanism is None or chosen.clip is None:
            raise InvalidSpecError(
                "encoding: missing; give a plan or an encoding, or mechanism=... and clip=..."
            )
        if chosen.delta is not None and not 0.0 <= chosen.delta < 1.0:
            raise InvalidSpecError(f"delta: {chosen.delta} is outside [0, 1)")
        return chosen


def _refuse(reason: str, **given: Any) -> None:
    """Refuse arguments that another one decides."""
    for name, value in given.items():
        if value is not None:
            raise InvalidSpecError(f"{name}: given, but {reason}; leave it out")
