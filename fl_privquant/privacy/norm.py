"""Updates of bounded norm: what a whole update costs by its norm, whatever its number of coordinates.

Norms are in units of the clip: an update of L2 norm R, coordinates clipped to [-clip, clip], has norm
R / clip, and two such updates are at most 2 R / clip apart.

**Integer noise.** Inputs are rounded at random to integers. Let the two inputs use the same random numbers
for it: a coordinate of difference D, in lattice steps, then gives integers whose difference k is one of the
two whole numbers next to D, with mean D. Given k the noise has divergence at most A k^2 + B |k| of order a,
so by joint convexity of exp((a - 1) D_a) and independence of coordinates

    (a - 1) D_a <= sum over coordinates of g(D_i),     g(D) = log E exp((a - 1) (A k^2 + B |k|)).

The largest value of this sum under sum of D_i^2 <= S is d times the concave hull of g, as a function of
D^2, at S / d. It is bounded on a fine grid, with g at the far end of each cell.

* discrete Gaussian, n clients: A = 1 / (2 n s^2) times a, and d tau beside it (Kairouz, Liu, Steinke 2021,
  Proposition 14, first bound; tau = 0 for one client: Canonne, Kamath, Steinke 2020, Theorem 4);
* Skellam of variance v = n times that of one client, whole orders: A = a / (2 v) + (2 a - 1) / (4 v^2) and
  B = 6 / (4 v^2), or A = a / (2 v) and B = 3 / (2 v) (Agarwal, Kairouz, Liu 2021, the bound
  for vectors).

**Tables.** Continuous laws: in the secure sum of several clients, the Gaussian guarantee of
:mod:`fl_privquant.secure_sum`, by a blanket, and for laws of two rows and sums of bits that of
:mod:`fl_privquant.two_row_sums`, by the worst case of the other clients; local view,
:func:`fl_privquant.renyi.renyi_of_update`. With metric "l1": two updates of L1 norm R cost at most 2 R times
the loss per distance, in all coordinates together (see :mod:`fl_privquant.mechanisms.metric`). Metric
"l2-grid" holds between knots only, and is not counted by; as a continuous law it has the bound above.

A bound for another mechanism is added by :func:`register_norm_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_privquant.mechanisms.additive import AdditiveMechanism
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.gaussian import GaussianMechanism
from fl_privquant.mechanisms.metric import MetricTableMechanism
from fl_privquant.mechanisms.pbm import PbmMechanism
from fl_privquant.privacy.compose import Moments
from fl_privquant.privacy.noise import noise_loss, sum_gap
from fl_privquant.privacy.response import gaussian_loss, response_loss
from fl_privquant.renyi import INPUT_ROUNDING, renyi_of_update
from fl_privquant.sampling.discrete import DiscreteGaussian, Skellam
from fl_privquant.secure_sum import NORM_ROUNDING, SumCertificate, UpdateBound, certify_sum
from fl_privquant.table import CertifiedTable
from fl_privquant.two_row_sums import TwoRows, sum_separation

__all__ = ["NO_NORMS", "NormBound", "Norms", "norm_losses", "register_norm_bound"]

Floats = NDArray[np.float64]

# Beyond this an exponential overflows.
_FAR = 700.0
_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class Norms:
    """Bounds of an update's norms, in units of the clip; None where there is none."""

    l2: float | None = None
    l1: float | None = None


@dataclass(frozen=True, eq=False)
class NormBound:
    """The moments of a whole update's loss, from a bound of its Rényi divergence."""

    renyi: Callable[[float], float]
    infinity: float = 0.0
    slack: float = 0.0

    @property
    def max_loss(self) -> float:
        """Infinite: moments bound no loss."""
        return math.inf

    def log_moment(self, rate: float) -> float:
        """Rate times the divergence of order rate + 1."""
        return rate * self.renyi(rate + 1.0) * _FLOAT_ROOM + (2.0 * rate + 1.0) * self.slack


NO_NORMS = Norms()
"""Updates of any norm."""

Bounder = Callable[[Mechanism, Norms, int, int], "tuple[Moments, str] | None"]

_BOUNDERS: list[Bounder] = []


def register_norm_bound(bounder: Bounder) -> Bounder:
    """Add a bound: a function of mechanism, norms, dimension and honest clients; it gives a loss and a name.

    It gives None where it does not apply. The loss is that of one whole update: a :class:`PrivacyLoss`, or
    anything with :class:`Moments`, such as a :class:`NormBound` around a Rényi divergence. It must hold for
    any two updates within the norms, each coordinate clipped to [-1, 1], and for a sum with ``honest`` - 1
    other clients whose inputs are the worst; ``honest`` is 1 in the local view. The accountant counts by
    every bound that applies, keeps what they give, and states the smallest total with the bound's name.
    """
    _BOUNDERS.append(bounder)
    return bounder


def norm_losses(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> list[tuple[Moments, str]]:
    """The losses of one whole update of bounded norm by all bounds that apply, and their names."""
    found = [bounder(mechanism, norms, dimension, num_honest) for bounder in _BOUNDERS]
    return [each for each in found if each is not None]


@register_norm_bound
def _gaussian(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> tuple[Moments, str] | None:
    if norms.l2 is None or not isinstance(mechanism, GaussianMechanism):
        return None
    return gaussian_loss(2.0 * norms.l2 * NORM_ROUNDING / mechanism.scale), "l2 gaussian"


@register_norm_bound
def _integer_noise(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> tuple[Moments, str] | None:
    if norms.l2 is None or not isinstance(mechanism, AdditiveMechanism):
        return None
    noise = mechanism.noise
    # In lattice steps. No coordinate can differ by more than the lattice is wide.
    squared = (2.0 * norms.l2 * NORM_ROUNDING / mechanism.step) ** 2
    grid = _Grid.of(mechanism.max_shift)
    drawn = _drawn(mechanism, dimension, num_honest)
    if isinstance(noise, DiscreteGaussian):
        variance = num_honest * float(noise.sigma_squared)
        gap = sum_gap(noise, num_honest) if num_honest > 1 else 0.0

        def renyi(order: float) -> float:
            return grid.worst(order, order / (2.0 * variance), 0.0, squared, dimension) + gap * dimension

        return NormBound(renyi, *drawn), "l2 discrete gaussian (Kairouz-Liu-Steinke)"
    if isinstance(noise, Skellam):
        variance = num_honest * float(noise.variance)

        def skellam_renyi(order: float) -> float:
            whole = float(math.ceil(order))
            base = whole / (2.0 * variance)
            near = (base + (2.0 * whole - 1.0) / (4.0 * variance**2), 1.5 / variance**2)
            return min(
                grid.worst(whole, *near, squared, dimension),
                grid.worst(whole, base, 1.5 / variance, squared, dimension),
            )

        return NormBound(skellam_renyi, *drawn), "l2 skellam (Agarwal-Kairouz-Liu)"
    return None


@register_norm_bound
def _metric(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> tuple[Moments, str] | None:
    # Not for "l2-grid": its bound is for inputs that are knots. Others are dithered to knots first, and the
    # dithered updates can be further apart than the norm allows, so the norm says nothing about them.
    if not isinstance(mechanism, MetricTableMechanism) or mechanism.metric != "l1":
        return None
    # An L2 norm bounds the L1 norm as well.
    bounds = [] if norms.l1 is None else [norms.l1]
    bounds += [] if norms.l2 is None else [norms.l2 * math.sqrt(dimension)]
    if not bounds:
        return None
    distance = 2.0 * min(bounds) * NORM_ROUNDING + dimension * INPUT_ROUNDING
    return response_loss(mechanism.metric_epsilon * distance * _FLOAT_ROOM), "l1 metric"


@register_norm_bound
def _secure_sum(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> tuple[Moments, str] | None:
    if norms.l2 is None:
        return None
    distance = 2.0 * norms.l2 * NORM_ROUNDING
    if isinstance(mechanism, TableMechanism):
        table, update = mechanism.table, UpdateBound(distance, dimension)
    elif isinstance(mechanism, PbmMechanism):
        # Tell the sum of each trial's bits: as many coordinates of one bit, all with the same input.
        trials = mechanism.trials
        table, update = mechanism.bit, UpdateBound(math.sqrt(trials) * distance, trials * dimension)
    else:
        return None
    certificate = _certificate(table, num_honest)
    if certificate is None:
        return None
    separation = certificate.separation(update.rate)
    if math.isfinite(separation):
        loss = gaussian_loss(separation * update.widened)
        return replace(loss, infinity=loss.infinity + update.charge), "l2 gaussian of the sum"

    def renyi(order: float) -> float:
        return certificate.renyi(order) * update.widened**2

    return NormBound(renyi, update.charge), "l2 renyi of the sum"


@register_norm_bound
def _two_rows(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> tuple[Moments, str] | None:
    if norms.l2 is None or num_honest < 2:
        return None
    if isinstance(mechanism, TableMechanism):
        table, bits, name = mechanism.table, 1, "l2 gaussian of two rows"
    elif isinstance(mechanism, PbmMechanism):
        table, bits, name = mechanism.bit, mechanism.trials, "l2 gaussian of bits"
    else:
        return None
    update = UpdateBound(2.0 * norms.l2 * NORM_ROUNDING, dimension)
    separation = _two_row_separation(table, num_honest, update.rate, bits)
    if math.isinf(separation):
        return None
    loss = gaussian_loss(separation * update.widened)
    return replace(loss, infinity=loss.infinity + update.charge), name


@lru_cache(maxsize=64)
def _two_row_separation(table: CertifiedTable, num_honest: int, rate: float, bits: int) -> float:
    law = TwoRows.of(table)
    return math.inf if law is None else sum_separation(law, num_honest, rate, bits)


@lru_cache(maxsize=64)
def _certificate(table: CertifiedTable, num_honest: int) -> SumCertificate | None:
    return certify_sum(table, num_honest)


@register_norm_bound
def _continuous_law(
    mechanism: Mechanism, norms: Norms, dimension: int, num_honest: int
) -> tuple[Moments, str] | None:
    if norms.l2 is None or not isinstance(mechanism, TableMechanism):
        return None
    if num_honest > 1 and _certificate(mechanism.table, num_honest) is not None:
        # Of a law whose sum is certified the local view says nothing new, and takes longer.
        return None
    law, distance = mechanism.law, 2.0 * norms.l2 * NORM_ROUNDING

    @lru_cache(maxsize=256)
    def renyi(order: float) -> float:
        return renyi_of_update(law, order, distance, dimension)

    # Each order takes some tenths of a second: a few are enough, and any order above the wanted one bounds
    # it.
    orders = (1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 257.0)

    def rounded_up(order: float) -> float:
        return next((renyi(each) for each in orders if each >= order), math.inf)

    if math.isinf(renyi(2.0)):
        return None
    return NormBound(rounded_up), "l2 renyi"


def _drawn(mechanism: AdditiveMechanism, dimension: int, num_honest: int) -> tuple[float, float]:
    """What it costs that noise is drawn from tables: a chance of an infinite loss, and a relative error.

    Where the ideal probabilities can be relied on, those of a table agree with them to 2^-50; the outputs
    where they cannot are those that :func:`fl_privquant.privacy.noise.noise_loss` charges as infinite.
    """
    unknown = noise_loss(mechanism, num_honest)
    outside = unknown.infinity if unknown.infinity > 0.0 else float(unknown.masses[-1])
    return min(dimension * outside, 1.0), dimension * num_honest * 2.0**-49


@dataclass(frozen=True, eq=False)
class _Grid:
    """Differences of inputs, in lattice steps: g is bounded in each cell by its value at the far end."""

    near: Floats
    far: Floats

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, max_shift: int) -> _Grid:
        wide = np.geomspace(1e-9, 1.0, 400)
        rest = np.linspace(1.0, max_shift, 64 * min(max_shift, 64))
        points = np.unique(np.concatenate([[0.0], wide, rest, np.arange(1, min(max_shift, 4096) + 1)]))
        return cls(points[:-1], points[1:])

    def worst(self, order: float, square: float, linear: float, squared: float, dimension: int) -> float:
        """Bound of the divergence of order a: the concave hull of g, in D^2, times d and over a - 1."""
        below = np.floor(self.far)
        share = self.far - below

        def exponent(k: Floats) -> Floats:
            return np.asarray((order - 1.0) * (square * k**2 + linear * k))

        low, high = exponent(below), exponent(below + 1.0)
        # Far apart, the larger one rules, and would overflow; near each other their logarithms cancel.
        with np.errstate(divide="ignore"):
            apart = np.logaddexp(low + np.log1p(-share), high + np.log(share))
        together = low + np.log1p(share * np.expm1(np.minimum(high - low, _FAR)))
        gained = np.where(high - low < _FAR, together, apart)
        at = min(squared / dimension, float(self.far[-1]) ** 2)
        return dimension * _hull_at(self.near**2, gained, at) / (order - 1.0)


def _hull_at(x: Floats, y: Floats, at: float) -> float:
    """The upper concave hull of points with increasing x >= 0 and y, at ``at``; flat beyond the last.

    It is the least of slope * at + max(y - slope * x) over slopes >= 0: each slope gives a bound, and the
    search for the best one, of a convex function, needs no care.
    """

    def bound(log_slope: float) -> float:
        slope = math.exp(log_slope)
        return slope * at + float((y - slope * x).max())

    low, high = -40.0, 40.0
    for _ in range(64):
        third = (high - low) / 3.0
        low, high = (low, high - third) if bound(low + third) <= bound(high - third) else (low + third, high)
    return min(bound(0.5 * (low + high)), float(y[-1])) * _FLOAT_ROOM
