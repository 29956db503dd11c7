"""A whole update as one index into a random codebook that both ends know: local privacy in a few bits.

**The mechanism.** For an update x in the unit ball, a codebook of M unit vectors is drawn, independent and
uniform on the sphere. The client draws the index of one of these codewords. The k codewords nearest to x /
|x| (to its opposite with probability (1 - |x|) / 2, which makes the length right on average) have weight
e^epsilon each, the other M - k have weight 1. The client sends the index. The estimate is the codeword at
that index, times a constant.

**Privacy.** Given the codebook, which does not depend on the data, each index has one of two chances,
whatever the update. Their ratio, of two integers, is at most e^epsilon. So privacy does not depend on which
codewords were taken for the nearest, and floating-point errors cannot harm it.

**Unbiased.** The codebook's distribution is the same after every rotation. So the expectation of the drawn
codeword has the direction of x. Its length is the chance of a near codeword, less that of a far one, times
the expected sum of the k largest of M projections. Let V be a coordinate of a uniform unit vector, F its
distribution function and G(t) the integral of F^-1 from t to 1. That sum is M E[G(T)], where T is a Beta(M -
k, k) variable (the level of the largest projection that is not among the k, integrated by parts); and G(F(v))
is (1 - v^2)^((d - 1) / 2) / ((d - 1) B(1/2, (d - 1) / 2)). The codebook itself is computed in single
precision, which moves the estimate by some 1e-6 of its length.

**Optimal.** As M grows with k / M fixed this becomes PrivUnit, which is optimal among all unbiased local
mechanisms (:mod:`fl_privquant.mechanisms.vectors.privunit`). The design takes the best k; without ``levels``
it takes the smallest power of two whose error is within 1 % of PrivUnit's, up to 2^12.

**The message** is the index, log2 M bits, and the seed of the codebook, 64 bits: each client and round
needs its own codebook, as the mean of updates with a common one would stay in the span of its codewords.

**Many coordinates.** Encoding takes M d normal numbers. ``Encoding(keep=...)`` rotates an update by a fast
transform and keeps a public random part of k coordinates (:mod:`fl_privquant.codec._coordinate_subset`), for
which M k numbers are enough. The noise in the estimate stays the same, as it is in proportion to the number
of coordinates and to the squared norm. The additional error is d / k - 1 times the squared norm of the mean
update.

Guarantee: ``epsilon``-differential privacy of one client round, local view, for any two updates, certified
on the integer chances of an index; unbiased for updates in the ball, to 1e-6 of the length of the estimate.
Assumes: nothing about the inputs.
Reference: Ye, Barg, "Optimal Schemes for Discrete Distribution Estimation under Locally Differential
Privacy", IEEE Transactions on Information Theory 2018 (subset selection); Bhowmick, Duchi, Freudiger,
Kapoor, Rogers, "Protection Against Reconstruction and Its Applications in Private Federated Learning", 2018
(PrivUnit); Asi, Feldman, Talwar, "Optimal Algorithms for Mean Estimation under Local Differential Privacy",
ICML 2022; Isik, Chen, Ozgur, Weissman, No, "Exact Optimality of Communication-Privacy-Utility Tradeoffs in
Distributed Mean Estimation", NeurIPS 2023.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fl_privquant._array_types import Floats, Ints
from fl_privquant.errors import CodeOverflowError, InvalidSpecError
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.base import PrivateVectorSpec, draw_bernoulli
from fl_privquant.mechanisms.vectors.bit_messages import SeededVectorMechanism
from fl_privquant.mechanisms.vectors.sphere import (
    RandomCodebook,
    euclidean_norm,
    expected_largest_sum,
    privunit_squared_error,
    upper_mean,
)
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.sampling.stream import Continuation

_MAX_LEVELS = 1 << 16
# The most numbers in a codebook. They take a core some minutes, and a server must not demand more.
_MAX_NUMBERS = 1 << 34
RARE = 1 << 64
"""Weight of a far codeword."""

# The largest exponent of weights. With it, a far codeword is drawn less than once in 10^26 times.
_MAX_EXPONENT = 60


# Sizes of codebooks that a design tries, and the factor above the optimal error that is accepted.
_USUAL_LEVELS = tuple(1 << bits for bits in range(3, 13))
_NEAR_OPTIMUM = 1.01
# With fewer coordinates hardly any codebook comes near the optimum.
_MIN_COMPARED = 64


@dataclass(frozen=True, kw_only=True)
class SharedCodebookSpec(PrivateVectorSpec):
    """The specification of a mechanism with a shared codebook; see :class:`PrivateVectorSpec`."""

    # One draw is optimal, whatever epsilon.
    default_repeats = 1

    levels: int | None = None
    """Number M of codewords, 2 to 65536; None lets the mechanism choose a power of two up to 2^12."""

    @classmethod
    def candidate(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The number of codewords is left to the design."""
        return super().candidate(requirements, epsilon) | {"levels": None} | dict(requirements.parameters)


@dataclass(frozen=True, eq=False, repr=False)
class CodebookMechanism(SeededVectorMechanism):
    """An index into a random codebook, for updates of norm at most clip; see :class:`SeededVectorMechanism`.

    The answer of a draw is an index. Codewords near the update have one weight, all others another: these are
    integers, so that the chances of an index are exact. Mechanisms differ in which codewords are near, and in
    the weights.
    """

    levels: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.levels <= _MAX_LEVELS:
            raise InvalidSpecError("levels", self.levels, f"codewords, expected 2 to {_MAX_LEVELS}")
        numbers = self.levels * self.dimension
        if numbers > _MAX_NUMBERS:
            raise InvalidSpecError(
                "levels",
                self.levels,
                f"codewords of {self.dimension} coordinates are {numbers} numbers for each update, "
                f"above {_MAX_NUMBERS}",
                "lower levels, or encode fewer coordinates",
            )

    @property
    def num_answers(self) -> int:
        return self.levels

    @property
    def answer_bits(self) -> int:
        return (self.levels - 1).bit_length()

    @property
    @abstractmethod
    def _weights(self) -> tuple[int, int]:
        """Weights of each near codeword and of each far one, before they are divided by their sum."""

    def _weights_among(self, num_near: int) -> tuple[int, int]:
        """Those weights with that many near codewords, for mechanisms where they depend on it."""
        return self._weights

    @abstractmethod
    def _near(self, codebook: RandomCodebook, direction: Floats) -> Ints:
        """The indices of the codewords that have more weight, increasing."""

    @property
    def _share(self) -> float:
        """Epsilon of one draw, rounded so that all draws together stay within the claimed epsilon."""
        share = self.claimed_epsilon / self.repeats
        if Fraction(share) * self.repeats > Fraction(self.claimed_epsilon):
            share = math.nextafter(share, 0.0)
        return share

    def _answer(self, x: Floats, seed: int, draw: int, source: Continuation) -> int:
        length = euclidean_norm(x)
        sign = 1.0 if draw_bernoulli(0.5 * (1.0 + length), source) else -1.0
        direction = sign / length * x if length else x
        near = self._near(RandomCodebook(seed, draw, self.dimension), direction)
        return draw_subset_response(near, self.levels, self._weights_among(near.size), source)

    def _decode_answer(self, answer: int, seed: int, draw: int) -> Floats:
        if answer >= self.levels:
            raise CodeOverflowError(f"message: index {answer} is outside 0..{self.levels - 1}")
        return RandomCodebook(seed, draw, self.dimension).codeword(answer)


@dataclass(frozen=True, eq=False, repr=False)
class SharedCodebookMechanism(CodebookMechanism, kind="shared_codebook"):
    """An index, drawn with more weight for a fixed number of codewords that are nearest to the update."""

    @cached_property
    def num_near(self) -> int:
        """How many of the nearest codewords are drawn with more weight: the best number."""
        return _best_num_near(self._share, self.levels, self.dimension)

    @property
    def output_norm(self) -> float:
        return 1.0 / _mean_length(self._share, self.levels, self.num_near, self.dimension)

    @classmethod
    def best_fields(cls, epsilon: float, dimension: int) -> dict[str, Any]:
        return {"levels": _choose_levels(epsilon, dimension)}

    @cached_property
    def _weights(self) -> tuple[int, int]:
        return near_weight(self._share), RARE

    def _near(self, codebook: RandomCodebook, direction: Floats) -> Ints:
        projections = codebook.projections(self.levels, direction)
        return np.sort(np.argpartition(-projections, self.num_near - 1)[: self.num_near])


register("shared_codebook", SharedCodebookSpec, 195, "#31572c", plans_for_local=True)(
    SharedCodebookMechanism.of
)


def draw_subset_response(near: Ints, levels: int, weights: tuple[int, int], source: Continuation) -> int:
    """An index: each near one with the first weight, each other one with the second."""
    common, rare = weights
    drawn = source.below(near.size * common + (levels - near.size) * rare)
    if drawn < near.size * common:
        return int(near[drawn // common])
    other = (drawn - near.size * common) // rare
    # The far index of that rank is the rank plus the number of near indices before it.
    return int(other + np.searchsorted(near - np.arange(near.size), other, side="right"))


@lru_cache(maxsize=256)
def near_weight(epsilon: float) -> int:
    """The largest weight of a near codeword whose ratio to that of a far one is at most e^epsilon.

    >>> math.isclose(math.log(near_weight(1.0) / RARE), 1.0)
    True
    """
    with localcontext() as context:
        context.prec = 60
        weight = int(min(Decimal(epsilon), Decimal(_MAX_EXPONENT)).exp() * RARE * (1 - Decimal(10) ** -50))
    if weight <= RARE:
        raise InvalidSpecError(
            "epsilon", epsilon, "per draw is too small for 64-bit chances", "raise epsilon"
        )
    return weight


@lru_cache(maxsize=4096)
def expected_near_sum(levels: int, count: int, dimension: int) -> float:
    """The expected sum of the ``count`` largest of ``levels`` independent projections of a uniform direction.

    >>> round(expected_near_sum(2, 1, 3), 9)  # the larger of two uniform numbers in [-1, 1]
    0.333333333
    """
    return expected_largest_sum(levels, count, lambda share: upper_mean(share, dimension))


def _mean_length(epsilon: float, levels: int, count: int, dimension: int) -> float:
    """Expected projection of the codeword that is drawn onto a direction."""
    common, rare = near_weight(epsilon), RARE
    total = count * common + (levels - count) * rare
    return (common - rare) / total * expected_near_sum(levels, count, dimension)


@lru_cache(maxsize=1024)
def _best_num_near(epsilon: float, levels: int, dimension: int) -> int:
    """The number of near codewords with the least error: the mean length has a single maximum in it."""
    low, high = 1, levels - 1
    while low < high:
        middle = (low + high) // 2
        here, after = (_mean_length(epsilon, levels, count, dimension) for count in (middle, middle + 1))
        low, high = (middle + 1, high) if after > here else (low, middle)
    return low


def _choose_levels(epsilon: float, dimension: int) -> int:
    """The smallest usual codebook that is nearly optimal, or the largest one."""
    dimension = max(dimension, _MIN_COMPARED)
    best = privunit_squared_error(epsilon, dimension)
    for levels in _USUAL_LEVELS:
        length = _mean_length(epsilon, levels, _best_num_near(epsilon, levels, dimension), dimension)
        if 1.0 / length**2 - 1.0 <= _NEAR_OPTIMUM * best:
            return levels
    return _USUAL_LEVELS[-1]
