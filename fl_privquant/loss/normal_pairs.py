r"""Bounds of the distance of two laws by that of two normal laws, checked at every likelihood ratio.

A test of P against P' has a level (its probability under P') and a power (under P). Among tests of one level
those that accept the largest likelihood ratios have the greatest power (Neyman and Pearson). For N(m, 1)
against N(0, 1) the greatest power at level t is H_m(t) = Phi(Phi^-1(t) + m), which is concave, with H_m(0) =
0 and H_k(H_m(t)) = H_(k + m)(t).

:func:`pair_separation` gives the least m for which every test of P against P' has

    power - s <= H_m(level + s),                                                                    (1)

with s = ``spare``, a probability that can be spared. Only the sets of largest ratios need to be looked at:
other tests are mixtures of them, and H_m is concave. The same holds for P' against P, because the complement
of a test has level 1 - power and power 1 - level, and 1 - H_m(t) is the inverse of H_m at 1 - t.

**What is spared.** H_m is subadditive, so (1) gives power <= H_m(level) + c with c = s + H_m(s), at most
s (1 + e^(m L)): the logarithm of Phi(-z + m) has the derivative L(z - m), where L(z) = phi(z) / Phi(-z)
grows with z, is at most (z + sqrt(z^2 + 4)) / 2 (Birnbaum 1942), and Phi(-z) = s implies z^2 <= 2
log(1 / (2 s)).

**Chains.** If each of k neighbours in P_0, P_1, ..., P_k has power <= H_m(level) + c, then a test of P_k
against P_0 has power <= H_(k m)(level) + c + H_m(c) + ... + H_((k - 1) m)(c): apply H_m and use that it
is subadditive. This is group privacy (Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022, Theorem
2.14) with what is spared carried along.

**Steps of unequal length.** Now let step i have separation m v_i and spare s v_i, with lengths v_i <= 1 that
are 1 except for the first and the last, and V = v_1 + ... + v_j <= k. What it adds is at most H_M(c_i) <= c_i
e^(M L), with M <= k m and L taken where Phi(-z) = s v_i. The bound v e^(M (z + sqrt(z^2 + 4)) / 2) of this,
z^2 = 2 log(1 / (2 s v)), grows with v as long as z > M, and so does v z: with the values at v = 1 each step
adds at most t = s (1 + e^(m L)) e^(k m L). If V >= 1, there are at most V + 2 <= 3 V steps. If V < 1, there
are at most two, M <= m V, and each adds at most V t. So the chain adds at most 3 V t.

**Hockey sticks.** power <= H_m(level) + c for all tests in both orders gives H_e(P, P') <= H_e(normal) + c
for all e >= 0. With t the total variation distance of the normal pair, this is at most (1 - c') H_e(normal) +
c' for c' = c / (1 - t) (for e >= 1 as H_e(normal) <= t there; e < 1 is the other order): the pair that
reveals everything with probability c', and else is the normal one, dominates (P, P'). Such pairs compose:
normal ones by adding squares, and probabilities add up at most.

:func:`spare_for` turns this around: how much may be spared in each of k steps for a given c'.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

from fl_privquant.array_types import Floats

_UNIT = 2.0**-53
INVERSE_ERROR = 1e-13
"""Largest error of the difference of two values of scipy's inverse normal law, each below 40."""

_CLOSE = 0.999
# Logarithm of the least probability that is spared.
_SMALLEST = -600.0


def pair_separation(first: Floats, second: Floats, relative: float, lost: float, spare: float) -> float:
    """The least m for which all tests of one law against the other obey (1), rounded up; maybe infinite.

    Both laws are on the same outputs, and known as in :class:`~fl_privquant.law.lattice.LatticeLaw`: each is
    a measure within a factor 1 + ``relative``, either way, of the given one, and another of mass ``lost`` at
    most. ``spare`` is the probability that may be spared, above 0.

    >>> round(pair_separation(np.array([0.7, 0.3]), np.array([0.3, 0.7]), 0.0, 0.0, 1e-15), 6)
    1.048801
    """
    order = np.argsort(-first / np.maximum(first + second, np.finfo(np.float64).tiny), kind="stable")
    first, second = first[order], second[order]
    # The sets of largest ratios, and their complements, each summed from its own end.
    power, level = np.cumsum(first)[:-1], np.cumsum(second)[:-1]
    other_power, other_level = np.cumsum(second[::-1])[-2::-1], np.cumsum(first[::-1])[-2::-1]
    upper = power + level <= other_power + other_level
    # Covers the rounding of these sums, and a wrong order of nearly equal ratios.
    relative += (first.size + 8) * _UNIT
    power = np.where(upper, power, other_power) * (1.0 + relative) + (lost - spare)
    level = np.where(upper, level, other_level) * (1.0 - relative) + spare
    above = power > level
    if not above.any():
        return 0.0
    gaps = ndtri(np.minimum(power[above], 1.0)) - ndtri(level[above])
    return float(gaps.max()) + INVERSE_ERROR


def spare_for(rate: float, steps: int, most: float, unequal: bool = False) -> float:
    """The probability that each of so many steps may ignore, so that a chain has c' = ``rate`` at most.

    It is 0 where there is none, and holds for chains whose whole separation is at most ``most``, up to 10.
    With ``unequal``, the first and the last step may be shorter than the others; ``rate`` is then that of a
    chain as long as ``steps`` whole steps, and a shorter one reveals less in proportion.
    """

    def revealed(spare: float) -> float:
        square = 2.0 * math.log(0.5 / spare)
        steepness = 0.5 * (math.sqrt(square) + math.sqrt(square + 4.0))
        one_step = spare * (1.0 + math.exp(most / steps * steepness))
        rest = math.exp(most * (1.0 if unequal else (steps - 1) / steps) * steepness)
        if unequal:
            # The bound grows with the lengths, as the proof needs, if the spared probability is small enough.
            rest *= 3.0 if square > most**2 else math.inf
        # The divisor is 1 minus the total variation distance of N(0, 1) and N(most, 1).
        return steps * one_step * rest / (2.0 * float(ndtr(-0.5 * most)))

    low, high = _SMALLEST, math.log(min(rate, 0.25))
    if revealed(math.exp(low)) > rate:
        return 0.0
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if revealed(math.exp(middle)) <= rate * _CLOSE else (low, middle)
    return math.exp(low)
