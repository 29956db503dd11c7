"""Limits that sums of honest codes hardly ever exceed, whatever the data of the honest clients.

Secure aggregation hides single codes, so that a hostile client can add any integers to the sum. But the
server can test the *sum*: honest codes are inputs plus noise of a known distribution, and sums of noise
concentrate.

Notation, in units of the clip: for client c of n and coordinate j of d let x_cj in [-1, 1] be the input and
V_cj the value of its code, independent over c and j given the inputs. Let mu_j = sum_c E V_cj and
D_j = sum_c (V_cj - E V_cj). The server decodes S_j = mu_j + D_j. The clients' data may be anything, even
chosen to fail the test, so only bounds over all inputs are used (:class:`CoordinateNoise`): |E V| <= m, |E V
- x| <= bias, Var V <= v and log E exp(±r (V - E V)) <= psi(r), with psi(r) / r^2 not decreasing. Let L =
log(5 / odds).

1. *A coordinate.* By Chernoff, D_j exceeds tail(n, K) = min over r of (n psi(r) + K) / r with odds of e^-K at
   most, and n times the largest noise never. So |D_j| <= b, the smaller of this and tail(n, L + log d), for
   both signs and all coordinates, except with 2 odds / 5. Hence |S_j| <= n m + b.
2. *The energy*, sum_j S_j^2 = |mu|^2 + 2 mu . D + |D|^2.

   * |mu| <= A = n min(m sqrt(d), l2 + bias sqrt(d)), where l2 is the L2 clip in units of the clip.
   * mu . D: with M = min(n m, A) every |mu_j| <= M, so psi(r mu_j) <= (mu_j / M)^2 psi(r M), and Chernoff
     over all coordinates gives mu . D <= M tail(n A^2 / M^2, L), except with odds / 5.
   * |D|^2: E D_j^2 <= n v and Var D_j^2 <= 2 (n v)^2 + n k, where the fourth central moment k of V is at
     most 24 e^psi(r) / r^4 for each r, because cosh y >= y^4 / 24. In step 1, D_j^2 is min(D_j^2, b^2);
     cutting off lowers mean and variance, so that Bernstein's inequality gives
     |D|^2 <= N = n d v + sqrt(2 d (2 (n v)^2 + n k) L) + b^2 L / 3, except with odds / 5.

3. *The sum over rounds.* Let S_1, S_2, ... be the sums of the rounds, in coordinates that all rounds share (a
   rotation changes no norm), and B_t a bound of |S_1 + ... + S_t| that holds for t - 1. Then w = S_1 + ... +
   S_(t - 1) + mu_t has |w| <= B_(t - 1) + A, and is independent of D_t, whatever clients make of earlier
   rounds. As above, w . D_t >= |w| tail(n, L) has odds of e^-L = odds / 5 at most. So honest clients obey

       B_t^2 = (B_(t - 1) + A)^2 + 2 (B_(t - 1) + A) tail(n, L) + N.

   A round of honest clients passes even if earlier sums were not honest, as long as these passed. (The odds
   do not include those of a sum that wraps.)

A sum modulo 2^bits decodes to the representative nearest to the middle, which is never further from the
middle than the sum itself: a wrap cannot fail the test.

**What passes.** The energy is the sharper test: it deviates by some sqrt(2 / d) of itself. The test cannot be
stricter than the bound A of the *signal*, because clients that all hold the same update of norm l2 are
honest; and it cannot see what is less than the deviations of the *noise*, which may be many clips. Let one
client move the mean by a vector s that does not depend on the noise of the others, which it does not see, and
let w = mu + n s in units of sums. The sum passes only if |w|^2 + 2 w . D + |D|^2 <= E, the limit of the
energy. Let u be a lower bound of Var V and K = log(2 / odds) for the odds :data:`MISSED_ODDS`.

* By Chernoff, w . D >= -|w| tail(n, K), except with half of these odds.
* D_j^2 are independent and not negative, with E D_j^2 >= n u and E D_j^4 <= 3 (n v)^2 + n k. Chernoff with
  e^-y <= 1 - y + y^2 / 2 for y >= 0 gives |D|^2 >= d n u - sqrt(2 d (3 (n v)^2 + n k) K), except with the
  other half.

With T = tail(n, K) and R = E minus the larger of 0 and the bound of |D|^2, this gives
|n s| <= A + T + sqrt(T^2 + R), which is :attr:`SumLimits.largest_shift`. (A shift that makes single sums wrap
does depend on the noise. It is then at most twice the root of the energy limit.) The same shift in
each of t rounds adds up to t s, which B_t limits: the most that passes in all of them sinks with t, towards
(2 A + tail(n, L)) / n, which no longer grows with the number of coordinates. Proofs that each single input is
valid (Prio3, ACORN) would divide the signal's part by the number of clients, and leave no room for noise.

For 100 clients, d = 100,000 and two bits of OPTM at epsilon 1, a shift of all coordinates by up to 1.01 clips
passes the test without an L2 clip, and by up to 0.34 clips with l2_clip = sqrt(d) / 3 clips.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fl_privquant import _validation

FALSE_ALARM_ODDS: Final = 1e-9
"""Odds that a round of honest clients is refused, whatever their data."""
MISSED_ODDS: Final = 1e-3
"""Odds at most with which a shift of more than :attr:`SumLimits.largest_shift` passes the test of a round."""

# Rates, in units of 1 / standard deviation, at which Chernoff's bound is tried. Each of them gives a bound.
_RATES = np.geomspace(1e-6, 1e2, 400)
# Covers the rounding of everything here, and of clips and rotations in single precision.
_FLOAT_ROOM = 1.0 + 1e-9
_CLIP_ROOM = 1.0 + 1e-4


@dataclass(frozen=True)
class CoordinateNoise:
    """Bounds on one honest client's decoded value of a coordinate, for *every* input in [-1, 1]."""

    max_mean: float
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
    """Probability that one draw does not follow the distribution for which these bounds are stated."""
    min_variance: float = 0.0
    """Lower bound of its variance. It decides how large a shift may hide in the noise, and nothing else."""

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


def bounded_noise(
    max_mean: float, max_bias: float, variance: float, largest: float, min_variance: float = 0.0
) -> CoordinateNoise:
    """Noise of at most that variance and at most that absolute value (Bennett's bound)."""

    def log_moment(rate: float) -> float:
        reach = rate * largest
        return variance / largest**2 * (math.expm1(reach) - reach) if reach < 700.0 else math.inf

    return CoordinateNoise(
        max_mean, max_bias, variance * _FLOAT_ROOM, log_moment, largest, min_variance=min_variance
    )


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
    largest_shift: float = math.inf
    """Largest L2 norm by which one client can move the mean of a round: a larger shift, chosen without
    knowing the noise of the others, passes with odds of at most :data:`MISSED_ODDS`."""
    signal: float = math.inf
    """Upper bound of the L2 norm of the mean without noise."""
    drift: float = 0.0
    """Upper bound of the product of the noise and any unit vector that does not depend on it."""
    noise_energy: float = 0.0
    """Upper bound of the sum of squares of the noise."""

    def running_limit(self, before: float, scale: float) -> float:
        """The limit of the norm of a sum over rounds, if before this round it was ``before``.

        ``scale`` is how much this round's unit is in units of the sum.
        """
        norm = before + self.signal * scale
        return math.sqrt(norm**2 + 2.0 * norm * self.drift * scale + self.noise_energy * scale**2)


def sum_limits(
    noise: CoordinateNoise, num_clients: int, dimension: int, l2_bound: float | None, odds: float
) -> SumLimits:
    """The limits of a mechanism that encodes coordinates independently, as proved above.

    There are ``dimension`` sums of ``num_clients`` values. ``l2_bound`` is the largest L2 norm of a client's
    inputs in units of the clip; None if only coordinates are clipped. ``odds`` are those of a false alarm.
    """
    _validation.check_in_interval("odds", odds, "(0, 1)")
    _validation.check_integer("num_clients", num_clients, 1)
    _validation.check_integer("dimension", dimension, 1)
    n, root = float(num_clients), math.sqrt(dimension)
    log_odds = math.log(5.0 / odds)
    reach = min(noise.tail(n, log_odds + math.log(dimension)), n * noise.largest)
    signal = n * noise.max_mean * root
    if l2_bound is not None:
        signal = min(signal, n * (l2_bound * _CLIP_ROOM + noise.max_bias * root))
    largest = min(n * noise.max_mean, signal)
    crossed = largest * noise.tail(n * (signal / largest) ** 2, log_odds) if largest else 0.0
    spread = n * noise.variance
    deviation = dimension * (2.0 * spread**2 + n * noise.fourth_moment)
    noise_energy = dimension * spread + math.sqrt(2.0 * deviation * log_odds) + reach**2 * log_odds / 3.0
    energy = signal**2 + 2.0 * crossed + noise_energy
    return SumLimits(
        coordinate=(n * noise.max_mean + reach) / n * _FLOAT_ROOM,
        energy=energy / n**2 * _FLOAT_ROOM,
        odds=odds + n * dimension * noise.slip,
        largest_shift=_largest_shift(noise, n, dimension, signal, energy * _FLOAT_ROOM) / n,
        signal=signal / n * _FLOAT_ROOM,
        drift=noise.tail(n, log_odds) / n * _FLOAT_ROOM,
        noise_energy=noise_energy / n**2 * _FLOAT_ROOM,
    )


def _largest_shift(noise: CoordinateNoise, n: float, dimension: int, signal: float, energy: float) -> float:
    """The largest norm of what one client can add to the sum, as proved above."""
    log_odds = math.log(2.0 / MISSED_ODDS)
    fourth = 3.0 * (n * noise.variance) ** 2 + n * noise.fourth_moment
    least = dimension * n * noise.min_variance - math.sqrt(2.0 * dimension * fourth * log_odds)
    along = noise.tail(n, log_odds)
    return signal + along + math.sqrt(along**2 + energy - max(least, 0.0))
