"""Mechanisms whose code is the number of ones among certified bits, which are all drawn for the same input.

Each bit is drawn from one table of two rows, with integer weights of 2^32: 1 with the weight ``rare`` at the
lower row, and 0 with that weight at the upper row. The mechanisms differ in how the row of a bit is chosen:
:mod:`fl_privquant.mechanisms.pbm` chooses it for each bit at random, with a probability that depends on the
input, and :mod:`fl_privquant.mechanisms.stratified_bits` fixes how many bits are from the upper row.

Guarantee: ``epsilon`` = trials log((1 + 2 theta) / (1 - 2 theta)) for each coordinate and release, local
view, certified in integers. Each bit is randomized response whatever its row, and the output in which all
bits are 1 (or 0) attains this loss.
Assumes: nothing about the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fl_privquant.errors import CertificationError
from fl_privquant.law.codebook import Codebook
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable, log_ratio_upper, rounded_up
from fl_privquant.loss.bit_sums import poisson_binomial_losses, sum_of_bits_loss
from fl_privquant.loss.compose import NamedLoss
from fl_privquant.loss.norms import NO_NORMS, Norms, two_row_loss
from fl_privquant.loss.two_row_sums import TwoRows
from fl_privquant.mechanisms.base import LatticeMechanism
from fl_privquant.mechanisms.registry import checked_levels
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, bounded_noise
from fl_privquant.statement import LOCAL, View

_HALF = TOTAL_WEIGHT // 2


def loss_of_bits(trials: int, rare: int) -> float:
    """The privacy loss of all bits together, rounded up."""
    return rounded_up(trials * Fraction(log_ratio_upper(TOTAL_WEIGHT - rare, rare)))


@dataclass(frozen=True, eq=False, repr=False)
class SumOfBits(LatticeMechanism):
    """Sends, per coordinate, the number of ones among ``trials`` certified bits of randomized response."""

    trials: int
    """Number of bits."""
    rare: int
    """The integer weight, of 2^32, of a 1 at the lower row and of a 0 at the upper; below one half."""
    claimed_epsilon: float

    stratified: ClassVar[bool] = False
    """Whether the input fixes how many bits are from the upper row, except for one of them."""

    def __post_init__(self) -> None:
        checked_levels(self.trials + 1)
        if not 1 <= self.rare < _HALF:
            raise CertificationError(f"weight of the rare bit: {self.rare} is outside 1..{_HALF - 1}")
        if not self.epsilon <= self.claimed_epsilon:
            raise CertificationError(
                f"{self.statement.above(self.claimed_epsilon)}; it is {self.trials} times "
                f"log({TOTAL_WEIGHT - self.rare}/{self.rare})"
            )

    @classmethod
    def of_bits(cls, name: str, trials: int, rare: int, parameters: Mapping[str, Any]) -> Self:
        """The mechanism with these bits, whose claimed loss is the certified one."""
        return cls(name, trials, rare, loss_of_bits(trials, rare), parameters=parameters)

    @property
    def _form(self) -> str:
        return f"{self.num_levels} levels, theta {self.theta:.6g}"

    @cached_property
    def epsilon(self) -> float:
        return loss_of_bits(self.trials, self.rare)

    @property
    def theta(self) -> float:
        """How far the probability of a 1 is from 1/2 at either row; an exact multiple of 2^-32."""
        return (_HALF - self.rare) / TOTAL_WEIGHT

    @cached_property
    def codebook(self) -> Codebook:
        """Codes 0..trials and the estimates they stand for."""
        outer = 0.5 / self.theta
        return Codebook(np.arange(self.trials + 1), 2.0 * outer / self.trials, -outer)

    @cached_property
    def bit(self) -> CertifiedTable:
        """The table that each bit is drawn from."""
        outer = 0.5 / self.theta
        weights = np.array([[TOTAL_WEIGHT - self.rare, self.rare], [self.rare, TOTAL_WEIGHT - self.rare]])
        values = Codebook(np.array([0, 1]), 2.0 * outer, -outer)
        return CertifiedTable(values, weights, np.array([0]), np.array([1]))

    def loss(self, view: View = LOCAL) -> NamedLoss:
        loss = sum_of_bits_loss(self.trials, self.rare, self.epsilon, view.honest_count)
        return NamedLoss(loss, "" if view.is_local else "blanket")

    def update_losses(self, norms: Norms, dimension: int, view: View = LOCAL) -> list[NamedLoss]:
        """The theorem of the Poisson binomial mechanism, and the worst case of the other clients' bits."""
        honest = view.honest_count
        if norms == NO_NORMS:
            return poisson_binomial_losses(self.trials, self.theta, self.epsilon, dimension, honest)
        if norms.l2 is None:
            return []
        law, name = TwoRows.bit(self.rare), "l2 gaussian of bits"
        bound = two_row_loss(law, norms.l2, dimension, honest, self.trials, name, self.stratified)
        return [] if bound is None else [bound]

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        # The value is a mean of independent bits, whose variance is largest if 0 and 1 are equally likely,
        # and smallest if each is from one row.
        outer = 0.5 / self.theta
        noise = bounded_noise(1.0, 0.0, outer**2, 1.0 + outer)
        return CoordinateNoise(
            1.0,
            0.0,
            noise.variance / self.trials,
            lambda rate: self.trials * noise.log_moment(rate / self.trials),
            noise.largest,
            min_variance=max(outer**2 - 1.0, 0.0) / self.trials,
        )
