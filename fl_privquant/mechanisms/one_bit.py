"""One bit: Duchi's two-point mechanism, which is randomized response between two values.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table; unbiased. The values are ±(e^epsilon + 1) / (e^epsilon - 1), adjusted to the integer
weights so that both ends of [-1, 1] are met exactly.
Reference: Duchi, Jordan, Wainwright, "Minimax Optimal Procedures for Locally Private Estimation",
JASA 2018.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.grr import response_table
from fl_privquant.mechanisms.pbm import loss_of_bits, rare_for_target
from fl_privquant.mechanisms.registry import Spec, register
from fl_privquant.mechanisms.wish import Wish


@dataclass(frozen=True)
class OneBitSpec(Spec):
    """The specification of the two-point mechanism; it has two levels."""

    designed_for_sums = True

    epsilon: float
    levels: int = 2

    @classmethod
    def accepted(cls, wishes: Mapping[str, Any]) -> dict[str, Any]:
        """The given parameters that this mechanism has, except the number of levels, which is always 2."""
        return {key: value for key, value in super().accepted(wishes).items() if key != "levels"}

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The bit whose probabilities differ as much as the target allows: one Poisson binomial bit."""
        target = dataclasses.replace(wish.run_target, epsilon=epsilon)
        rare = rare_for_target(1, target, wish.norm_ratio)
        return {"epsilon": loss_of_bits(1, rare)} | dict(wish.parameters)

    def __post_init__(self) -> None:
        if self.levels != 2:
            raise InvalidSpecError(f"levels: {self.levels}, but one_bit has 2; leave bits and levels out")
        super().__post_init__()


@register("one_bit", OneBitSpec, 80, "#5c5c5c", plans_for_sums=True, plans_for_local=True, scouts=True)
def design_one_bit(spec: OneBitSpec) -> TableMechanism:
    """The certified two-point mechanism at ``epsilon``."""
    table = response_table(spec.epsilon, 2)
    return TableMechanism("one_bit", table, spec.epsilon, parameters=spec.parameters())
