"""One bit: Duchi's two-point mechanism, which is randomized response between two values.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table; unbiased. The values are ±(e^epsilon + 1) / (e^epsilon - 1), adjusted to the integer
weights so that both ends of [-1, 1] are met exactly.
Reference: Duchi, Jordan, Wainwright, "Minimax Optimal Procedures for Locally Private Estimation",
JASA 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.mechanisms.tables.grr import make_response_table
from fl_privquant.mechanisms.tables.pbm import epsilon_of_bits, find_rare_weight
from fl_privquant.optimize.requirements import RunRequirements


@dataclass(frozen=True)
class OneBitSpec(Spec):
    """The specification of the two-point mechanism; it has two levels."""

    designed_for_sums = True

    epsilon: float
    levels: int = 2

    @classmethod
    def select_parameters(cls, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The given parameters that this mechanism has, except the number of levels, which is always 2."""
        return {key: value for key, value in super().select_parameters(wanted).items() if key != "levels"}

    @classmethod
    def propose(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The bit whose probabilities differ as much as the target allows: one Poisson binomial bit."""
        rare = find_rare_weight(1, requirements.for_replace_one(epsilon), requirements.norm_ratio)
        return {"epsilon": epsilon_of_bits(1, rare)} | dict(requirements.parameters)

    def __post_init__(self) -> None:
        if self.levels != 2:
            raise InvalidSpecError("levels", self.levels, ", but one_bit has 2", "leave bits and levels out")
        super().__post_init__()


@register("one_bit", OneBitSpec, 80, "#5c5c5c", plans_for_sums=True, plans_for_local=True, is_pilot=True)
def design_one_bit(spec: OneBitSpec) -> TableMechanism:
    """The certified two-point mechanism at ``epsilon``."""
    table = make_response_table(spec.epsilon, 2)
    return TableMechanism("one_bit", table, spec.epsilon, parameters=spec.parameters())
