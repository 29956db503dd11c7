r"""Normal noise plus rounding errors: its tails, and how well it hides a shift.

Let X = N(0, v) + e_1 + ... + e_n, with independent e_i that are uniform on [-1/2, 1/2]. Its density b is
symmetric and log-concave, because the densities of its terms are. Let B(t) = Pr(X > t).

**A shift.** A server sees c + X, and wants to know whether the center is c or c + D. By log-concavity the
best tests are half-lines (Neyman and Pearson), of power B(t - D) and level B(t). With g(t) = -Phi^-1(B(t)) a
test has Phi^-1(power) - Phi^-1(level) = g(t) - g(t - D), which is at most a D if the slope of g is at most a
between t - D and t. Let t0 be such that B(t0) <= s, and a the largest slope of g on [-t0, t0]. Then all
tests, for every real D >= 0, have

    power - s <= H_(a D)(level + s),

which is inequality (1) of :mod:`fl_privquant.privacy_loss.additive.normal_pairs`. Proof: between -t0 and t0
this was just
shown. If t > t0, then the power is at most B(t0) <= s, or, if t - D < t0, at most H_(a D)(B(t0)) <= H_(a
D)(s). The lower end mirrors this, and for a test beyond both ends H_(a D)(s) >= 1 - s.

**The slope of g.** Write W = -log b. From B = Phi(-g) follows g' = b / phi(g), and with f = log g'

    f' = g g' - W',     f'' = g'^2 + g g' f' - W''.

W'' is (1 - V / v) / v, where V is the variance of the sum of the e_i given X = t (Tweedie). So 0 <= W'' <= 1
/ v: the lower bound is log-concavity. Where g' is largest f' is 0 and f'' <= 0, hence g'^2 <= W''. So g' <= 1
/ sqrt(v) everywhere, which is what normal noise alone gives: rounding errors never hurt. (If no largest value
exists, g' tends to its supremum at infinity, where it is 1 / sqrt(v), too.) Between two neighbors of a grid
in t, f is at most its larger value at the ends plus the largest |f''| times the squared distance over 8. To
bound |f''| start with |f'| <= max(g g', W') and improve it: |f'| at a point is at most its value at the
nearest end plus the distance times the largest |f''|.

**Numbers.** b, b' and B follow from the Laplace transform of X, E exp(z X) = exp(K(z)) with K(z) = v z^2 / 2
+ n log(sinh(z / 2) / (z / 2)). With the tilt r and t = K'(r),

    b(t) = exp(K(r) - r t) / (2 pi) * integral of exp(K(r + i w) - K(r) - i w t) dw,

and for b' and B the integrand is multiplied with -(r + i w), or divided by r + i w. The trapezoidal rule with
step q gives exactly the sum of the tilted function over all t + 2 pi k / q (Poisson). The step is so small
that this period is 30 standard deviations, so that other terms than k = 0 are below 1e-20 of it; the
integrand beyond ``_REACH / sqrt(v)`` is below exp(-_REACH^2 / 2). For t close to 0 the tilt is small and the
rule is used for B(t) = 1/2 - 1/pi * integral of sin(w t) exp(K(i w)) / w over w > 0. Rounding makes b and B
wrong by less than 1e-8 of their values for up to 10^7 clients, which is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fl_privquant._array_types import Floats

# The quadrature covers this many standard deviations of the integrand; its period is that many of X.
_REACH, _PERIOD = 9.5, 30.0
# Tails are tilted from this many standard deviations on.
_TILTED = 2.0
# Relative error of densities and tails, from rounding.
_ACCURACY = 1e-8
# Distance of the points of the grid, and its end, in standard deviations.
_STEP, _END = 0.01, 13.5
# Below this absolute value, log(sinh(z / 2) / (z / 2)) is a series.
_SMALL = 0.05


@dataclass(frozen=True)
class RoundingNoise:
    """The sum of normal noise of variance ``variance`` and of ``roundings`` uniform errors of width 1."""

    variance: float
    roundings: int

    @property
    def deviation(self) -> float:
        """Standard deviation of the sum."""
        return math.sqrt(self.variance + self.roundings / 12.0)

    def tail(self, reach: float) -> float:
        """Probability that the absolute value exceeds ``reach``, rounded up; at least about 1e-40.

        >>> round(RoundingNoise(1.0, 0).tail(3.0), 6)
        0.0027
        """
        places = self._grid[0]
        if reach <= places[1]:
            return 1.0
        return (
            2.0 * float(self._grid[2][np.searchsorted(places, reach, side="right") - 1]) * (1.0 + _ACCURACY)
        )

    def reach(self, odds: float) -> float:
        """A bound that the absolute value exceeds with probability at most ``odds``."""
        beyond = 2.0 * self._grid[2] * (1.0 + _ACCURACY) <= odds
        return float(self._grid[0][int(beyond.argmax())]) if beyond.any() else math.inf

    def separation(self, spare: float) -> float:
        """The a of the module's text: the separation of a shift by 1, with slack ``spare``; rounded up.

        >>> round(RoundingNoise(4.0, 0).separation(1e-20), 4)
        0.5
        """
        return _separation(self, spare)

    @cached_property
    def _grid(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Points t from 0 on, and there b(t), B(t) and W'(t)."""
        return _tabulate(self.variance, self.roundings)


@lru_cache(maxsize=256)
def _separation(noise: RoundingNoise, spare: float) -> float:
    places, density, beyond, fall = noise._grid
    enough = beyond * (1.0 + _ACCURACY) <= spare
    if not enough.any():
        return 1.0 / math.sqrt(noise.variance)
    end = int(enough.argmax()) + 1
    score = -ndtri(beyond[:end])
    slope = density[:end] / (np.exp(-0.5 * score**2) / math.sqrt(2.0 * math.pi))
    # In units of 1 / sqrt(v), in which slopes are at most 1, and so is W''.
    scale = math.sqrt(noise.variance)
    width = float(np.diff(places[:end]).max()) / scale
    turns = np.abs(score * slope - fall[:end]) * scale
    largest = max(float(score[-1]), float(fall[end - 1]) * scale)
    top = float(score[-1])
    # The largest |f'| in between, and then the largest |f''|, improved step by step.
    for _ in range(20):
        bend = 1.0 + top * largest
        largest = min(largest, float(turns.max()) + 0.5 * width * bend)
    bound = float(slope.max()) * math.exp(bend * width**2 / 8.0) * (1.0 + 10.0 * _ACCURACY)
    return min(bound, (1.0 + 1e-15) / scale)


@lru_cache(maxsize=64)
def _tabulate(variance: float, roundings: int) -> tuple[Floats, Floats, Floats, Floats]:
    deviation = math.sqrt(variance + roundings / 12.0)
    step = 2.0 * math.pi / (_PERIOD * deviation)
    waves = step * np.arange(
        -math.ceil(_REACH / math.sqrt(variance) / step), 1 + math.ceil(_REACH / math.sqrt(variance) / step)
    )
    tilts = np.arange(0.0, _END, _STEP) / deviation
    log_moment, places = _log_moment(tilts + 0j, variance, roundings).real, _mean(tilts, variance, roundings)
    # Rows are tilts, columns are waves.
    z = tilts[:, None] + 1j * waves
    exponents = _log_moment(z, variance, roundings) - log_moment[:, None] - 1j * waves * places[:, None]
    parts = np.exp(exponents)
    peak = np.exp(log_moment - tilts * places) * (step / (2.0 * math.pi))
    density = peak * parts.sum(axis=1).real
    fall = peak * (parts * z).sum(axis=1).real / density
    near = tilts * deviation < _TILTED
    beyond = np.empty_like(density)
    beyond[~near] = peak[~near] * (parts[~near] / z[~near]).sum(axis=1).real
    right = waves[waves > 0.0]
    flat = np.exp(_log_moment(1j * right, variance, roundings)).real / right
    # The term at w = 0 is t, and counts half.
    beyond[near] = 0.5 - step / math.pi * (0.5 * places[near] + np.sin(np.outer(places[near], right)) @ flat)
    fall[0] = 0.0
    return places, density, beyond, fall


def _log_moment(z: NDArray[Any], variance: float, roundings: int) -> NDArray[np.complex128]:
    """K(z), up to multiples of 2 pi i."""
    square = z * z
    small = np.abs(z) < _SMALL
    half = 0.5 * np.where(small, 1.0, z)
    series = square / 24.0 - square**2 / 2880.0 + square**3 / 181440.0
    single = np.where(small, series, np.log(np.sinh(half) / half))
    return np.asarray(0.5 * variance * square + roundings * single)


def _mean(tilt: Floats, variance: float, roundings: int) -> Floats:
    """K'(r), to the accuracy that a tilt needs: any place near the best one will do."""
    safe = np.maximum(tilt, _SMALL)
    single = np.where(tilt < _SMALL, tilt / 12.0 - tilt**3 / 720.0, 0.5 / np.tanh(0.5 * safe) - 1.0 / safe)
    return np.asarray(variance * tilt + roundings * single)
