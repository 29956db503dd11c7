r"""How far apart two laws are at most: compared with two normal laws at every likelihood ratio.

The other modules of this room prove that two laws P and P' of an output are no easier to tell apart than
N(0, 1) and N(m, 1), because normal pairs compose exactly and have an epsilon in closed form. The number m is
the *separation* of the pair. This module computes the least separation that holds, except for a small
probability s, the *slack* (``spare`` in code), and proves what the slack costs in the end.

**Tests.** A test of P against P' is a set of outputs that it accepts. It has a level (its probability under
P') and a power (under P). Among tests of one level those that accept the largest likelihood ratios have the
greatest power (Neyman and Pearson). For N(m, 1) against N(0, 1) the greatest power at level t is
H_m(t) = Phi(Phi^-1(t) + m), which is one minus the trade-off function of that pair. H_m is concave with
H_m(0) = 0, hence subadditive, and H_k(H_m(t)) = H_(k + m)(t).

:func:`pair_separation` gives the least m for which every test of P against P' has

    power - s <= H_m(level + s).                                                                    (1)

It is enough to check the sets of largest ratios: no other test has more power than a mixture of them with
the same level, and H_m is concave. Small probabilities are known more precisely than those near 1, so large
sets are checked by their complements. Tests between the last set and the first complement are mixtures of
these two, so one of the two is checked in both forms. The same then holds for P' against P, because the
complement of a test has level 1 - power and power 1 - level, and 1 - H_m(t) is the inverse of H_m at 1 - t.

**What the slack costs.** H_m is subadditive, so (1) gives power <= H_m(level) + c with c = s + H_m(s). This c
is at most s (1 + e^(m L)), as follows. Let Phi(-z) = s. The logarithm of Phi(-z + m) has the derivative
L(z - m) in m, where L(z) = phi(z) / Phi(-z) grows with z, so H_m(s) <= s e^(m L) with L = L(z). Moreover
L(z) is at most (z + sqrt(z^2 + 4)) / 2 (Birnbaum 1942), and Phi(-z) = s implies z^2 <= 2 log(1 / (2 s)).

**Chains.** Suppose that for each two neighbours in P_0, P_1, ..., P_k every test has power <= H_m(level) + c.
Then every test of P_k against P_0 has power <= H_(k m)(level) + c + H_m(c) + ... + H_((k - 1) m)(c): apply
H_m step by step and use that it is subadditive. This is group privacy (Dong, Roth, Su, "Gaussian Differential
Privacy", JRSS B 2022, Theorem 2.14) with the slack carried along.

**Chains of unequal steps.** Now let step i have separation m v_i and slack s v_i. The lengths v_i are at most
1, all but the first and the last are 1, and V = v_1 + ... + v_j <= k. The claim is that such a chain adds at
most 3 V t to the power, with t = s (1 + e^(m L)) e^(k m L) and L taken at slack s.

* With c_i for the c of step i, this step adds at most H_M(c_i) <= c_i e^(M L), where M <= k m is the
  separation of the later steps and L is taken where Phi(-z) = s v_i.
* Put z^2 = 2 log(1 / (2 s v)). Then the bound v e^(M (z + sqrt(z^2 + 4)) / 2) of this grows with v as long as
  z > M, and v z grows with v, too (z > 1, as s <= 1/4). So with the values at v = 1 each step adds at most t.
* If V >= 1, there are at most V + 2 <= 3 V steps, and they add at most 3 V t. If V < 1, there are at most
  two, with M <= m V, and each adds at most V t.

**Hockey-stick divergences.** Write D_e(P, P') for the largest value of P(A) - e P'(A) over sets A of outputs.
If power <= H_m(level) + c for all tests in both orders, then D_e(P, P') <= D_e(normal) + c for all e >= 0.
Let t be the total variation distance of the normal pair. The right side is at most (1 - c') D_e(normal) + c'
for c' = c / (1 - t): for e >= 1 because D_e(normal) <= t there, and for e < 1 by the other order. So the pair
that reveals everything with probability c', and else is the normal one, dominates (P, P'). Dominating pairs
of this kind compose: squared separations add up, and so, at most, do the probabilities c'.

:func:`spare_for` turns this around: it gives the slack that each of k steps may have for a given c'.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

from fl_privquant.array_types import Floats

_UNIT = 2.0**-53
_TINY = float(np.finfo(np.float64).tiny)
INVERSE_ERROR = 1e-13
"""Largest error of the difference of two values of scipy's inverse normal law, each below 40."""

# Share of the given rate that is used; the rest is room for rounding.
_CLOSE = 0.999
# Logarithm of the smallest slack that is tried.
_SMALLEST = -600.0


def pair_separation(first: Floats, second: Floats, relative: float, lost: float, spare: float) -> float:
    """The least m for which all tests of one law against the other obey (1), rounded up; it may be infinite.

    ``first`` and ``second`` list the probabilities of the same outputs, with errors as in
    :class:`~fl_privquant.law.lattice.LatticeLaw`: each true law is the sum of a measure within a factor
    1 + ``relative``, either way, of the listed one, and of another measure of mass at most ``lost``.
    ``spare`` > 0 is the slack s of (1).

    >>> round(pair_separation(np.array([0.7, 0.3]), np.array([0.3, 0.7]), 0.0, 0.0, 1e-15), 6)
    1.048801
    """
    order = (-first / np.maximum(first + second, _TINY)).argsort(kind="stable")
    first, second = first[order], second[order]
    # The sets of largest ratios, and their complements, each summed from its own end.
    power, level = first.cumsum()[:-1], second.cumsum()[:-1]
    other_power, other_level = second[::-1].cumsum()[-2::-1], first[::-1].cumsum()[-2::-1]
    if not power.size:
        return 0.0
    switch = int(np.count_nonzero(power + level <= other_power + other_level))
    # Covers the rounding of these sums, and a wrong order of nearly equal ratios.
    relative += (first.size + 8) * _UNIT

    def gaps(power: Floats, level: Floats) -> Floats:
        power, level = power * (1.0 + relative) + (lost - spare), level * (1.0 - relative) + spare
        above = power > level
        separations = np.zeros(power.size)
        separations[above] = ndtri(np.minimum(power[above], 1.0)) - ndtri(level[above])
        return separations

    upper = gaps(power[: switch + 1], level[: switch + 1])
    lower = gaps(other_power[max(switch - 1, 0) :], other_level[max(switch - 1, 0) :])
    # Tests between the last set and the first complement need both of their neighbors in the same form.
    shared = min(switch, 1)
    between = np.concatenate((upper[switch:], lower[:shared])).min()
    most = float(max(upper[:switch].max(initial=0.0), between, lower[shared:].max(initial=0.0)))
    return most + INVERSE_ERROR if most else 0.0


def spare_for(rate: float, steps: int, most: float, unequal: bool = False) -> float:
    """The slack that each step of a chain of ``steps`` steps may have, so that c' is at most ``rate``.

    It holds for chains whose whole separation is at most ``most``, which may be up to 10, and is 0 where no
    slack is small enough. With ``unequal``, the first and the last step may be shorter than the others.
    ``rate`` is then the c' of a chain as long as ``steps`` whole steps, and the c' of a shorter chain is
    smaller in proportion to its length.
    """

    def revealed(spare: float) -> float:
        square = 2.0 * math.log(0.5 / spare)
        steepness = 0.5 * (math.sqrt(square) + math.sqrt(square + 4.0))
        one_step = spare * (1.0 + math.exp(most / steps * steepness))
        rest = math.exp(most * (1.0 if unequal else (steps - 1) / steps) * steepness)
        if unequal:
            # The proof needs a bound that grows with the lengths, which holds if the slack is small enough.
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
