"""One bit: Duchi's two-point mechanism, randomized response between two far values.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table; unbiased. The values are ±(e^epsilon + 1) / (e^epsilon - 1), adjusted to the integer
weights so that both ends of [-1, 1] are met exactly.
Reference: Duchi, Jordan, Wainwright, "Minimax Optimal Procedures for Locally Private Estimation",
JASA 2018.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_privquant.design.spread import usual_norm_ratio
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.law.codebook import Codebook
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.pbm import binomial_bits
from fl_privquant.mechanisms.registry import Listing, Spec, checked_epsilon, register
from fl_privquant.mechanisms.sum_of_bits import loss_of_bits
from fl_privquant.mechanisms.wish import Wish


@dataclass(frozen=True)
class OneBitSpec(Spec):
    """The specification of the two-point mechanism; it has two levels."""

    designed_for_sums = True

    epsilon: float
    levels: int = 2

    @classmethod
    def accepted(cls, wishes: Mapping[str, Any]) -> dict[str, Any]:
        """All but the number of levels, which is 2."""
        return {key: value for key, value in super().accepted(wishes).items() if key != "levels"}

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The bit that leans as far as the target allows: one Poisson binomial bit."""
        target = dataclasses.replace(wish.run_target, epsilon=epsilon)
        ratio = usual_norm_ratio(wish.dimension) if wish.norms.l2 is None else wish.norms.l2
        best = binomial_bits(target, ratio, 1)
        if best is None:
            raise InfeasibleDesignError(f"no bit meets epsilon {epsilon:g}")
        return {"epsilon": loss_of_bits(1, best.rare)} | dict(wish.parameters)

    def __post_init__(self) -> None:
        checked_epsilon(self.epsilon)
        if self.levels != 2:
            raise InvalidSpecError(f"levels: {self.levels}, but one_bit has 2; leave bits and levels out")


@register(
    "one_bit",
    OneBitSpec,
    cached=False,
    listing=Listing(80, "#5c5c5c", plans_for_sums=True, plans_for_local=True, scouts=True),
)
def design_one_bit(spec: OneBitSpec) -> TableMechanism:
    """The certified two-point mechanism at ``epsilon``."""
    # Rounded up, so that the ratio of the two weights stays below e^epsilon; at least 1, for it to exist.
    rare = max(math.ceil(TOTAL_WEIGHT / (math.exp(spec.epsilon) + 1.0) * (1.0 + 1e-15)), 1)
    common = TOTAL_WEIGHT - rare
    if common <= rare:
        raise InvalidSpecError(
            f"epsilon: {spec.epsilon} is too small for weights of 32 bits; use 1e-8 or more"
        )
    value = TOTAL_WEIGHT / (common - rare)
    codebook = Codebook(np.array([0, 1]), 2.0 * value, -value)
    table = CertifiedTable(codebook, np.array([[common, rare], [rare, common]]), np.array([0]), np.array([1]))
    return TableMechanism("one_bit", table, spec.epsilon, spec.parameters())
