"""Limits that sums of honest codes hardly ever exceed, whatever the data of the honest clients.

Secure aggregation hides single codes, so that a hostile client can add any integers to the sum. But the
server can test the *sum*: honest codes are inputs plus noise of a known law, and sums of noise concentrate.

Notation, in units of the clip: for client c of n and coordinate j of d let x_cj in [-1, 1] be the input and
V_cj the value of its code, independent over c and j given the inputs. Let mu_j = sum_c E V_cj and
D_j = sum_c (V_cj - E V_cj). The server decodes S_j = mu_j + D_j. The clients' data may be anything, even
chosen to fail the test, so only bounds over all inputs are used (:class:`CoordinateNoise`): |E V| <= m, |E V
- x| <= bias, Var V <= v and log E exp(±r (V - E V)) <= psi(r), with psi(r) / r^2 not decreasing. Let L =
log(4 / odds).

1. *A coordinate.* By Chernoff, D_j exceeds tail(n, K) = min over r of (n psi(r) + K) / r with odds of e^-K at
   most, and n times the largest noise never. So |D_j| <= b, the smaller of this and tail(n, L + log d), for
   both signs and all coordinates, except with odds / 2. Hence |S_j| <= n m + b.
2. *The energy*, sum_j S_j^2 = |mu|^2 + 2 mu . D + |D|^2.

   * |mu| <= A = n min(m sqrt(d), l2 + bias sqrt(d)), where l2 is the L2 clip in units of the clip.
   * mu . D: with M = min(n m, A) every |mu_j| <= M, so psi(r mu_j) <= (mu_j / M)^2 psi(r M), and Chernoff
     over all coordinates gives mu . D <= M tail(n A^2 / M^2, L), except with odds / 4.
   * |D|^2: E D_j^2 <= n v and Var D_j^2 <= 2 (n v)^2 + n k, where the fourth central moment k of V is at
     most 24 e^psi(r) / r^4 for each r, because cosh y >= y^4 / 24. In step 1, D_j^2 is min(D_j^2, b^2);
     cutting off lowers mean and variance, so that Bernstein's inequality gives
     |D|^2 <= n d v + sqrt(2 d (2 (n v)^2 + n k) L) + b^2 L / 3, except with odds / 4.

A sum modulo 2^bits decodes to the representative nearest to the middle, which is never further from the
middle than the sum itself: a wrap cannot fail the test.

The energy is the sharper test: it deviates by some sqrt(2 / d) of itself, so that a shift of all coordinates
is noticed as soon as it exceeds what the bound A of the *signal* leaves. The test cannot be stricter, because
clients that all hold the same update of norm l2 are honest. One hostile client can therefore still act as if
it were all clients, and no more. For 100 clients, d = 100,000 and two bits of OPTM at epsilon 1, a shift
of all coordinates by up to 1.01 clips passes the test without an L2 clip, and by up to 0.34 clips with
l2_clip = sqrt(d) / 3 clips. Proofs that each single input is valid (Prio3, ACORN) would divide this by the
number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fl_privquant import checks

# Rates, in units of 1 / standard deviation, at which Chernoff's bound is tried. Each of them gives a bound.
_RATES = np.geomspace(1e-6, 1e2, 400)
# Covers the rounding of everything here, and of clips and rotations in single precision.
_FLOAT_ROOM = 1.0 + 1e-9
_CLIP_ROOM = 1.0 + 1e-4


@dataclass(frozen=True)
class CoordinateNoise:
    """Bounds on one honest client's decoded value of a coordinate, for *every* input in [-1, 1]."""

    largest_mean: float
    """Upper bound of the absolute value of its mean."""
    max_bias: float
    """Upper bound of the distance of the mean to the input."""
    variance: float
    """Upper bound of its variance."""
    log_moment: Callable[[float], float]
    """Upper bound of log E exp(±rate (value - mean)) for each rate > 0, infinite where there is none. Divided
    by rate^2 it must not decrease."""
    largest: float = math.inf
    """Upper bound of the distance of the value to its mean."""
    slip: float = 0.0
    """Probability that one draw does not follow the law for which these bounds are stated."""

    def tail(self, count: float, log_odds: float) -> float:
        """A bound that a sum of ``count`` noises exceeds with probability at most exp(-log_odds)."""
        rates, moments = self._moments()
        return float(np.min((count * moments + log_odds) / rates))

    @property
    def fourth_moment(self) -> float:
        """Upper bound of the fourth central moment."""
        rates, moments = self._moments()
        with np.errstate(over="ignore"):
            return float(np.min(24.0 * np.exp(moments) / rates**4))

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        rates = _RATES / math.sqrt(self.variance)
        return rates, np.array([self.log_moment(rate) for rate in rates.tolist()])


def bounded_noise(largest_mean: float, max_bias: float, variance: float, largest: float) -> CoordinateNoise:
    """Noise of at most that variance and at most that absolute value (Bennett's bound)."""

    def log_moment(rate: float) -> float:
        reach = rate * largest
        return variance / largest**2 * (math.expm1(reach) - reach) if reach < 700.0 else math.inf

    return CoordinateNoise(largest_mean, max_bias, variance * _FLOAT_ROOM, log_moment, largest)


@dataclass(frozen=True)
class SumLimits:
    """Limits, in units of the clip, that the mean of honest codes exceeds with at most these odds."""

    coordinate: float
    """Largest absolute value of a coordinate."""
    energy: float
    """Largest sum of squares over the coordinates."""
    odds: float
    """Odds that a round of honest clients exceeds any of the limits, whatever their data."""
    absolute_sum: float = math.inf
    """Largest sum of absolute values over the coordinates, where it is bounded."""


def sum_limits(
    noise: CoordinateNoise, num_clients: int, dimension: int, l2_bound: float | None, odds: float
) -> SumLimits:
    """The limits of a mechanism that encodes coordinates independently, as proved above.

    There are ``dimension`` sums of ``num_clients`` values. ``l2_bound`` is the largest L2 norm of a client's
    inputs in units of the clip; None if only coordinates are clipped. ``odds`` are those of a false alarm.
    """
    checks.inside("odds", odds, "(0, 1)")
    checks.whole("num_clients", num_clients, 1)
    checks.whole("dimension", dimension, 1)
    n, root = float(num_clients), math.sqrt(dimension)
    log_odds = math.log(4.0 / odds)
    reach = min(noise.tail(n, log_odds + math.log(dimension)), n * noise.largest)
    signal = n * noise.largest_mean * root
    if l2_bound is not None:
        signal = min(signal, n * (l2_bound * _CLIP_ROOM + noise.max_bias * root))
    largest = min(n * noise.largest_mean, signal)
    crossed = largest * noise.tail(n * (signal / largest) ** 2, log_odds) if largest else 0.0
    spread = n * noise.variance
    deviation = dimension * (2.0 * spread**2 + n * noise.fourth_moment)
    noise_energy = dimension * spread + math.sqrt(2.0 * deviation * log_odds) + reach**2 * log_odds / 3.0
    return SumLimits(
        coordinate=(n * noise.largest_mean + reach) / n * _FLOAT_ROOM,
        energy=(signal**2 + 2.0 * crossed + noise_energy) / n**2 * _FLOAT_ROOM,
        odds=odds + n * dimension * noise.slip,
    )
