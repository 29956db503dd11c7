"""CSGM: each coordinate is reported with some probability, as one random bit under normal noise; for sums.

**The mechanism.** A client reports a coordinate x in [-1, 1] with probability ``share``, else nothing (0).
The report is a bit of mean x: 1 with probability (1 + x) / 2, else -1. Normal noise is added, and the result
is rounded to an integer and clamped to the available levels. The distribution is linear in x, a mixture of
the two rows at -1 and 1, so that integers divided by their mean at x = 1 are unbiased. The two rows are a
certified table, and the accountant bounds what a sum of n draws from it reveals by a privacy blanket
(:mod:`fl_privquant.privacy_loss.sums.blanket`, :mod:`fl_privquant.privacy_loss.sums.gaussian_bound`). That
bound includes the effect that the authors count as amplification by sampling, and the rounding, and it holds
for bounded L2 norms too. It is not tight: the exact worst case of the other clients would be about a fifth to
two fifths below it.

**The view.** Sampling helps privacy only against those who do not learn which coordinates a client reported.
In the sum over clients nobody learns it. In the local view the server sees each code. The certified
``epsilon`` is that of a code, noise included, in this view. It is large, because the little noise that
suffices in a sum does not hide a single code well.

**Difference from the publication.** There, the server is trusted to add all the noise, and a client sends
only the bits of the coordinates that it sampled, a ``share`` of them. Here, each client adds its part of the
noise, so that secure aggregation is enough; every coordinate then carries a code.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table; in the sum over clients what the accountant states for that view. Unbiased.
Assumes: nothing about the inputs; for figures of the aggregate view, secure aggregation.
Reference: Chen, Song, Ozgur, Kairouz, "Privacy Amplification via Compression: Achieving the Optimal
Privacy-Accuracy-Communication Trade-off in Distributed Mean Estimation", NeurIPS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from scipy.special import ndtr

from fl_privquant._array_types import Floats
from fl_privquant._validation import integer_between, number_between
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.codebook import MAX_LEVELS, Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec

# The range of standard deviations of the noise that are tried, where a bit is ±1.
_MIN_NOISE, _MAX_NOISE = 0.05, 1e4
_STEPS = 40
# Codes reach at most this many standard deviations of the noise.
_REACHED = 5.0


@dataclass(frozen=True)
class CsgmSpec(Spec):
    """The specification of the coordinate-sampled Gaussian mechanism: give ``epsilon`` or ``noise``."""

    instead_of_epsilon = ("noise",)

    epsilon: float | None = None
    levels: Annotated[int, integer_between(3, MAX_LEVELS)] = 16
    """Largest number of output values, 3 or more. An odd number is used, no larger than the noise needs."""
    share: Annotated[float, number_between("(0, 1]")] = 0.5
    """Probability with which a client reports a coordinate."""
    noise: Annotated[float | None, number_between(f"[{_MIN_NOISE}, {_MAX_NOISE}]")] = None
    """Standard deviation of a client's noise where a bit is ±1, instead of ``epsilon``."""


@register("csgm", CsgmSpec, 76, "#e07a5f")
def design_csgm(spec: CsgmSpec) -> TableMechanism:
    """The certified mechanism, with the least noise within epsilon unless the noise is given."""
    most, share, noise, epsilon = (spec.levels - 1) // 2, spec.share, spec.noise, spec.epsilon
    if noise is None:
        noise = _find_min_noise(most, share, float(epsilon or 0.0))
    table = _build_table(most, share, float(noise))
    if epsilon is not None and table.epsilon > epsilon:
        raise InfeasibleDesignError(
            f"noise: {noise:g} with {spec.levels} levels costs epsilon {table.epsilon:g} per coordinate, "
            f"above {epsilon:g}; raise noise, or leave it out"
        )
    claimed = table.epsilon if epsilon is None else float(epsilon)
    return TableMechanism("csgm", table, claimed, parameters={**spec.parameters(), "noise": noise})


def csgm_distribution(half: int, share: float, noise: float) -> OutputDistribution:
    """The exact distribution with codes from -half to half.

    >>> distribution = csgm_distribution(7, 0.5, 3.0)
    >>> bool(abs(distribution.pmf(0.25) @ distribution.values - 0.25) < 1e-12)
    True
    """
    silent = _clamped_normal(half, 0.0, noise)
    upper = share * _clamped_normal(half, 1.0, noise) + (1.0 - share) * silent
    codes = np.arange(-half, half + 1.0)
    return OutputDistribution.from_knots(codes / float(upper @ codes), [-1.0, 1.0], [upper[::-1], upper])


def _clamped_normal(half: int, mean: float, noise: float) -> Floats:
    """Probabilities of -half..half for a normal number that is rounded and clamped."""
    edges = (np.arange(-half, half) + 0.5 - mean) / noise
    # Tails are computed from the side on which they keep their digits.
    below, above = ndtr(edges), ndtr(-edges)
    inner = np.where(edges[:-1] > 0.0, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], inner, above[-1:]])


def _build_table(most: int, share: float, noise: float) -> CertifiedTable:
    """Integers of the distribution. Values follow from the integers, which makes -1 and 1 unbiased."""
    # Codes further out are too rare for accurate ratios of 32-bit weights.
    half = min(most, max(1, math.floor(1.0 + _REACHED * noise)))
    weights = np.maximum(np.rint(csgm_distribution(half, share, noise).end_rows[-1] * TOTAL_WEIGHT), 1.0)
    weights = weights.astype(np.int64)
    # The largest weight takes the remainder of the rounding, where it matters least.
    weights[int(np.argmax(weights))] += TOTAL_WEIGHT - int(weights.sum())
    step = TOTAL_WEIGHT / float(weights @ np.arange(-half, half + 1))
    codebook = Codebook(np.arange(2 * half + 1), step, -half * step)
    return CertifiedTable(codebook, np.stack([weights[::-1], weights]), np.array([0]), np.array([1]))


def _find_min_noise(most: int, share: float, epsilon: float) -> float:
    """The least noise, by bisection, whose table stays within epsilon."""
    low, high = _MIN_NOISE, _MAX_NOISE
    if _build_table(most, share, high).epsilon > epsilon:
        raise InfeasibleDesignError(
            f"epsilon: {epsilon:g} needs more noise than {_MAX_NOISE:g}; raise epsilon, or lower share"
        )
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _build_table(most, share, middle).epsilon <= epsilon else (middle, high)
    return high
