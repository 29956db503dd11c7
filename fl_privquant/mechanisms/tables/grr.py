"""GRR: generalised randomized response among evenly spaced levels.

The input is rounded at random to one of ``levels`` points from -1 to 1, unbiased. That point is reported with
probability e^epsilon / (e^epsilon + levels - 1), each other one with 1 / (e^epsilon + levels - 1). The points
sum to 0, so that values of (e^epsilon + levels - 1) / (e^epsilon - 1) times the points are unbiased.

With two levels this is ``one_bit``. More levels reduce the error only where e^epsilon is well above their
number, because wrong answers are drawn whatever their distance to the input.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table; unbiased.
Assumes: nothing about the inputs.
Reference: Kairouz, Oh, Viswanath, "Extremal Mechanisms for Local Differential Privacy", JMLR 2016
(k-ary randomized response).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fl_privquant._validation import integer_between
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec

# The table has a row for each level.
_LEVELS = integer_between(2, 1024, "its error grows with the levels, use fewer")


@dataclass(frozen=True)
class GrrSpec(Spec):
    """The specification of generalised randomized response."""

    epsilon: float
    levels: Annotated[int, _LEVELS] = 4


@register("grr", GrrSpec, 160, "#bc6c25")
def design_grr(spec: GrrSpec) -> TableMechanism:
    """The certified mechanism at ``epsilon``."""
    table = make_response_table(spec.epsilon, spec.levels)
    return TableMechanism("grr", table, spec.epsilon, parameters=spec.parameters())


def make_response_table(epsilon: float, levels: int) -> CertifiedTable:
    """Randomized response among evenly spaced levels, in integer weights; exact at inputs of -1 and 1."""
    # Rounded up, so that the ratio of the two weights stays below e^epsilon, and at least 1.
    exact = TOTAL_WEIGHT / (math.exp(min(epsilon, 700.0)) + (levels - 1))
    rare = max(math.ceil(exact * (1.0 + 1e-15)), 1)
    common = TOTAL_WEIGHT - (levels - 1) * rare
    if common <= rare:
        raise InvalidSpecError(
            "epsilon",
            epsilon,
            f"is too small for weights of 32 bits among {levels} levels",
            "raise epsilon (2 levels need 1e-8 or more), or lower levels",
        )
    weights = np.full((levels, levels), rare, dtype=np.int64)
    np.fill_diagonal(weights, common)
    outermost = TOTAL_WEIGHT / (common - rare)
    codebook = Codebook(np.arange(levels), 2.0 * outermost / (levels - 1), -outermost)
    rows = np.arange(levels)
    return CertifiedTable(codebook, weights, rows[:-1], rows[1:])
