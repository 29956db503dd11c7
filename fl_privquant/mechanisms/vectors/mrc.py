"""MRC: PrivUnit compressed by plain importance sampling, to an index into a random codebook.

The mechanism is that of :mod:`fl_privquant.mechanisms.vectors.mmrc` without the modification: near codewords
have weight e^eta, the others weight 1, in proportion to the density of PrivUnit at eta, and chances are
weights divided by their sum.

**Privacy.** That sum depends on how many codewords lie in the cap. So the loss is not eta. The authors prove
that it is at most 2 eta. Exactly, the largest ratio of two chances of an index is e^eta ((N - 1) e^eta + 1) /
(e^eta + N - 1), with all other codewords outside the cap for one update and inside for the other. This ratio
is stated and certified here, in integers, for every codebook; eta is the largest one that keeps it within
``epsilon``, about half of ``epsilon`` when N is large. Errors are therefore three to four times those of
``mmrc``, for which this is the baseline.

``levels`` is N; by default the power of two up to 2^12 with the least error.

Guarantee: ``epsilon``-differential privacy of one client round, local view, for any two updates and every
codebook, certified on the integer weights; unbiased for updates in the ball, to 1e-6 of the length of the
estimate.
Assumes: nothing about the inputs.
Reference: Shah, Chen, Balle, Kairouz, Theis, "Optimal Compression of Locally Differentially Private
Mechanisms", AISTATS 2022, section on minimal random coding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fl_privquant.distributions.certified_table import log_ratio_upper
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.mmrc import USUAL_LEVELS, CapCodebookMechanism, cap_count_probabilities
from fl_privquant.mechanisms.vectors.shared_codebook import SharedCodebookSpec
from fl_privquant.mechanisms.vectors.sphere import best_height, cap_mean, cap_measure


@dataclass(frozen=True, eq=False, repr=False)
class MrcMechanism(CapCodebookMechanism, kind="mrc"):
    """An index by importance sampling: codewords inside the cap around the update have more weight."""

    @property
    def output_norm(self) -> float:
        return 1.0 / _mean_length(self.exponent, self.levels, self.dimension)

    @classmethod
    def best_fields(cls, epsilon: float, dimension: int) -> dict[str, Any]:
        return {"levels": _best_levels(epsilon, dimension)}

    @cached_property
    def exponent(self) -> float:
        return inner_exponent(self._share, self.levels)

    @cached_property
    def epsilon(self) -> float:
        inside, outside = self._weights
        others = self.levels - 1
        most, least = inside * (others * inside + outside), outside * (inside + others * outside)
        return log_ratio_upper(most, least, self.repeats)


register("mrc", SharedCodebookSpec, 198, "#e9c46a")(MrcMechanism.of)


@lru_cache(maxsize=1024)
def inner_exponent(epsilon: float, levels: int) -> float:
    """The exponent of the weights with which an index costs at most epsilon.

    >>> round(inner_exponent(2.0, 2), 9), round(inner_exponent(2.0, 65536), 3)
    (2.0, 1.0)
    """
    low, high = 0.5 * epsilon, epsilon
    for _ in range(60):
        middle = 0.5 * (low + high)
        # log of ((N - 1) e^eta + 1) / (e^eta + N - 1), divided by e^eta above and below.
        rest = math.exp(-middle)
        spent = middle + math.log((levels - 1 + rest) / (1.0 + (levels - 1) * rest))
        low, high = (middle, high) if spent <= epsilon else (low, middle)
    # Room for the rounding of these floats.
    return low * (1.0 - 1e-12)


@lru_cache(maxsize=1024)
def _mean_length(exponent: float, levels: int, dimension: int) -> float:
    """Expected projection of the codeword that is drawn onto a direction."""
    height = np.array(best_height(exponent, dimension))
    share, mean = float(cap_measure(height, dimension)), float(cap_mean(height, dimension))
    inside = np.arange(levels + 1.0)
    outside = levels - inside
    lift = math.exp(-exponent)
    # Means of the projection inside the cap and outside, weighted.
    drawn = mean * (inside / share - outside * lift / (1.0 - share)) / (inside + outside * lift)
    return float(cap_count_probabilities(levels, share) @ drawn)


@lru_cache(maxsize=256)
def _best_levels(epsilon: float, dimension: int) -> int:
    """The usual number of codewords with the least error."""
    return max(
        USUAL_LEVELS, key=lambda levels: _mean_length(inner_exponent(epsilon, levels), levels, dimension)
    )
