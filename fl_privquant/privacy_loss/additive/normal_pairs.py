r"""Pairs that are as hard to tell apart as normal ones except for a small probability: its cost.

The other modules of this package prove that two distributions P and P' of an output are no easier to tell
apart than N(0, 1) and N(m, 1), because normal pairs compose exactly and have an epsilon in closed form. The
number m is the *separation* of the pair. They prove it except for a small probability s, the *slack*
(``spare`` in code). This module proves what the slack costs in the end.

**Tests.** A test of P against P' is a set of outputs that it accepts. It has a level (its probability under
P') and a power (under P). For N(m, 1) against N(0, 1) the greatest power at level t is
H_m(t) = Phi(Phi^-1(t) + m), which is one minus the trade-off function of that pair. H_m is concave with
H_m(0) = 0, hence subadditive. What is proved elsewhere is that every test of P against P' has

    power - s <= H_m(level + s).                                                                    (1)

The same then holds for P' against P, because the complement of a test has level 1 - power and power
1 - level, and 1 - H_m(t) is the inverse of H_m at 1 - t.

**What the slack costs.** H_m is subadditive, so (1) gives power <= H_m(level) + c with c = s + H_m(s). This c
is at most s (1 + e^(m L)), as follows. Let Phi(-z) = s. The logarithm of Phi(-z + m) has the derivative
L(z - m) in m, where L(z) = phi(z) / Phi(-z) grows with z, so H_m(s) <= s e^(m L) with L = L(z). Moreover
L(z) is at most (z + sqrt(z^2 + 4)) / 2 (Birnbaum 1942), and Phi(-z) = s implies z^2 <= 2 log(1 / (2 s)).

**Hockey-stick divergences.** Write D_e(P, P') for the largest value of P(A) - e P'(A) over sets A of outputs.
If power <= H_m(level) + c for all tests in both orders, then D_e(P, P') <= D_e(normal) + c for all e >= 0.
Let t be the total variation distance of the normal pair. The right side is at most (1 - c') D_e(normal) + c'
for c' = c / (1 - t): for e >= 1 because D_e(normal) <= t there, and for e < 1 by the other order. So the pair
that reveals everything with probability c', and else is the normal one, dominates (P, P'). Dominating pairs
of this kind compose: squared separations add up, and so, at most, do the probabilities c'.

:func:`spare_for` turns this around: it gives the slack that a pair may have for a given c'.
"""

from __future__ import annotations

import math

from scipy.special import ndtr

INVERSE_ERROR = 1e-13
"""Largest error of the difference of two values of scipy's inverse normal distribution, each below 40."""

# Fraction of the given rate that is used; the rest is room for rounding.
_CLOSE = 0.999
# Logarithm of the smallest slack that is tried.
_SMALLEST = -600.0


def spare_for(rate: float, most: float) -> float:
    """The slack that a pair of separation at most ``most`` may have, so that c' is at most ``rate``.

    The separation may be up to 10. The result is 0 where no slack is small enough.
    """

    def bound_revealed(spare: float) -> float:
        square = 2.0 * math.log(0.5 / spare)
        steepness = 0.5 * (math.sqrt(square) + math.sqrt(square + 4.0))
        # The divisor is 1 minus the total variation distance of N(0, 1) and N(most, 1).
        return spare * (1.0 + math.exp(most * steepness)) / (2.0 * float(ndtr(-0.5 * most)))

    low, high = _SMALLEST, math.log(min(rate, 0.25))
    if bound_revealed(math.exp(low)) > rate:
        return 0.0
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if bound_revealed(math.exp(middle)) <= rate * _CLOSE else (low, middle)
    return math.exp(low)
