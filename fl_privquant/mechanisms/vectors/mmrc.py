"""MMRC: PrivUnit compressed by modified importance sampling, to an index into a random codebook.

**The mechanism.** For an update x in the unit ball, N unit vectors are drawn, independent and uniform on
the sphere. Both ends know them. Those inside the cap around x / |x| (around its opposite with probability
(1 - |x|) / 2) are *near*. The index of one vector is drawn, and the estimate is that vector times a constant.
The number k of near vectors is random, unlike in ``shared_codebook``. Plain importance sampling (``mrc``)
gives near vectors e^epsilon times the weight of the others, and divides by the sum of weights, which depends
on k and so costs about as much privacy again. The modification keeps all chances of an index between two
constants instead, t and e^epsilon t. Near vectors have the chance e^epsilon t each, and the others share the
rest. Where k is so large that each of these would be left with less than t, they have the chance t, and the
near ones share the rest. With t = 1 / (N (1 - q + q e^epsilon)), where q is the measure of the cap, this is
the plain mechanism at the expected number of near vectors.

**Privacy.** Given the vectors, which do not depend on the data, the chance of each index lies between the
same two rational numbers for every update and every k. Their ratio, of two integers, is at most e^epsilon.

**Unbiased.** The distribution of the vectors is the same after each rotation, so that the mean of the drawn
one has the direction of x; its length is a sum over k, a binomial variable.

``levels`` is N; by default the smallest power of two whose error is within 5 % of that of 2^12.

Guarantee: ``epsilon``-differential privacy of one client round, local view, for any two updates and every
codebook, certified on the integer weights; unbiased for updates in the ball, to 1e-6 of the length of the
estimate.
Assumes: nothing about the inputs.
Reference: Shah, Chen, Balle, Kairouz, Theis, "Optimal Compression of Locally Differentially Private
Mechanisms", AISTATS 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy import special

from fl_privquant._array_types import Floats, Ints
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.shared_codebook import (
    RARE,
    CodebookMechanism,
    SharedCodebookSpec,
    near_weight,
)
from fl_privquant.mechanisms.vectors.sphere import RandomCodebook, best_height, cap_mean, cap_measure

USUAL_LEVELS = tuple(1 << bits for bits in range(1, 13))
"""The numbers of codewords that a design tries."""

# A smaller codebook may have this many times the error of the largest usual one.
_NEAR_BEST = 1.05


class CapCodebookMechanism(CodebookMechanism):
    """An index into a random codebook, whose near codewords are those inside the best cap of PrivUnit."""

    @cached_property
    def exponent(self) -> float:
        """The logarithm of the ratio of the two weights."""
        return self._share

    @cached_property
    def height(self) -> float:
        """The least inner product with the update's direction in the cap."""
        return best_height(self.exponent, self.dimension)

    @cached_property
    def _weights(self) -> tuple[int, int]:
        return near_weight(self.exponent), RARE

    def _near(self, codebook: RandomCodebook, direction: Floats) -> Ints:
        along = codebook.projections(self.levels, direction)
        # With one coordinate, the only heights are -1 and 1.
        return np.flatnonzero(along >= self.height if self.dimension > 1 else along > 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class MmrcMechanism(CapCodebookMechanism, kind="mmrc"):
    """An index by importance sampling, with chances between two constants; see the module."""

    @property
    def output_norm(self) -> float:
        return 1.0 / _mean_length(self.exponent, self.levels, self.dimension)

    @classmethod
    def best_fields(cls, epsilon: float, dimension: int) -> dict[str, Any]:
        return {"levels": _choose_levels(epsilon, dimension)}

    def _weights_among(self, num_near: int) -> tuple[int, int]:
        return modify_weights(self._weights, self.levels, num_near, self._total)

    @cached_property
    def _total(self) -> int:
        """The sum of weights with the expected number of near codewords."""
        common, rare = self._weights
        share = float(cap_measure(np.array(self.height), self.dimension))
        # Between all far and all near, which is what privacy needs, whatever the floats are.
        return self.levels * rare + self.levels * int(share * 2**53) * (common - rare) // 2**53


register("mmrc", SharedCodebookSpec, 197, "#dda15e")(MmrcMechanism.of)


def modify_weights(weights: tuple[int, int], levels: int, num_near: int, total: int) -> tuple[int, int]:
    """Weights of each near codeword and of each far one, whose shares are between rare and common / total.

    With common and rare the two ``weights``, near codewords have the weight ``common`` each, unless the far
    ones would then have less than ``rare`` each, of a ``total`` between levels * rare and levels * common.

    >>> modify_weights((3, 1), 4, 1, 8), modify_weights((3, 1), 4, 3, 8)  # of 24 each
    ((9, 5), (7, 3))
    """
    common, rare = weights
    num_far = levels - num_near
    if not num_near or not num_far:
        return 1, 1
    near = min(num_near * common, total - num_far * rare)
    # Both multiplied by num_near * num_far, which makes them whole.
    return near * num_far, (total - near) * num_near


def cap_count_probabilities(levels: int, share: float) -> Floats:
    """(levels + 1,) the chance of each number of codewords inside a cap of that measure."""
    inside = np.arange(levels + 1.0)
    outside = levels - inside
    return np.exp(
        special.gammaln(levels + 1.0)
        - special.gammaln(inside + 1.0)
        - special.gammaln(outside + 1.0)
        + inside * math.log(share)
        + outside * math.log1p(-share)
    )


@lru_cache(maxsize=1024)
def _mean_length(exponent: float, levels: int, dimension: int) -> float:
    """Expected projection of the codeword that is drawn onto a direction."""
    height = np.array(best_height(exponent, dimension))
    share, mean = float(cap_measure(height, dimension)), float(cap_mean(height, dimension))
    # Weights divided by that of a near codeword.
    lift = math.exp(-exponent)
    total = levels * (share + (1.0 - share) * lift)
    inside = np.arange(levels + 1.0)
    near = np.minimum(inside, total - (levels - inside) * lift) / total
    # Means of the projection inside the cap and outside, weighted.
    return float(
        cap_count_probabilities(levels, share) @ (mean * (near / share - (1.0 - near) / (1.0 - share)))
    )


@lru_cache(maxsize=256)
def _choose_levels(epsilon: float, dimension: int) -> int:
    """The smallest usual number of codewords whose error is nearly that of the largest one."""
    errors = {levels: _mean_length(epsilon, levels, dimension) ** -2.0 - 1.0 for levels in USUAL_LEVELS}
    allowed = _NEAR_BEST * errors[USUAL_LEVELS[-1]]
    return min(levels for levels, error in errors.items() if error <= allowed)
