"""Stratified bits: a sum of bits, a fixed number of which favour 1 while the others favour 0.

For input x in [-1, 1] let m + f = trials (1 + x) / 2, with m a whole number and 0 <= f < 1. The code is the
number of ones among ``trials`` bits, of which m are from the upper row, one is from the upper row with
probability f, and the others are from the lower row. The estimate (code - trials / 2) / (trials theta) is
unbiased, like that of the Poisson binomial mechanism with the same bits. There the number of bits from the
upper row is binomial. Here it is the mean of that binomial, rounded at random to a neighbouring whole number,
which has the least variance of all random whole numbers of that mean. So the variance of the estimate is

    (1 / (4 theta^2) - 1) / trials + 4 f (1 - f) / trials^2    instead of    (1 / (4 theta^2) - x^2) / trials.

It is the same at all inputs, except for the rounding, so that large inputs are hidden as well as small ones.
The certificate of the secure sum is the same (:mod:`fl_privquant.loss.two_row_sums`, step 5).

Guarantee: in the local view, for each coordinate and release, that of every
:class:`~fl_privquant.mechanisms.sum_of_bits.SumOfBits`. In the secure sum of clients whose updates have a
bounded L2 norm, that of ``optm_aggregate``, which designs it.
Assumes: nothing about the inputs. For the sum: clients that follow the protocol; corrupt clients and those
that dropped out do not count.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fl_privquant.array_types import Array, ArrayLike, Floats
from fl_privquant.errors import CertificationError
from fl_privquant.law.density import Density
from fl_privquant.law.law import Law
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.mechanisms.additive import rounding_variance
from fl_privquant.mechanisms.sum_of_bits import SumOfBits
from fl_privquant.sampling.rounding import draw_bit_sums, encode_on_lattice
from fl_privquant.sampling.stream import Randomness, RandomStream

_MOST_TRIALS = 255


class StratifiedBits(SumOfBits, kind="stratified_bits"):
    """The number of bits from the upper row is the input's share of them, rounded; see :class:`SumOfBits`."""

    stratified = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials > _MOST_TRIALS:
            raise CertificationError(f"{self.trials} bits of a code are more than {_MOST_TRIALS}")

    @cached_property
    def law(self) -> Law:
        """The exact law: linear between the inputs with a whole number of bits from the upper row."""
        knots = np.linspace(-1.0, 1.0, self.trials + 1)
        return Law.from_knots(self.values, knots, self._rows)

    def pmf(self, x: ArrayLike) -> Floats:
        return self.law.pmf(np.clip(np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel(), -1.0, 1.0))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self.law.mae(density)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error: the variance in the module's docstring, averaged over inputs."""
        rounding = 4.0 * rounding_variance(self.trials + 1, density) / self.trials**2
        return (0.25 / self.theta**2 - 1.0) / self.trials + rounding

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None, threads: int = 1) -> Array:
        """Random codes; takes a word per coordinate from ``rng``, and half a word for each of its bits."""
        stream = rng if rng is not None else RandomStream.secure()
        upper = encode_on_lattice(x, self.trials, clip=clip, stream=stream, threads=threads)
        return draw_bit_sums(upper, self.trials, self.rare, stream)

    @property
    def _rows(self) -> Floats:
        """(trials + 1, trials + 1) the law of the code with 0, 1, ... bits from the upper row."""
        rare = self.rare / TOTAL_WEIGHT
        lower, upper = [np.ones(1)], [np.ones(1)]
        for _ in range(self.trials):
            lower.append(np.convolve(lower[-1], [1.0 - rare, rare]))
            upper.append(np.convolve(upper[-1], [rare, 1.0 - rare]))
        rows = [np.convolve(upper[m], lower[self.trials - m]) for m in range(self.trials + 1)]
        return np.stack([row / row.sum() for row in rows])
