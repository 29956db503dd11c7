"""Updates of bounded norm: what a whole update costs by its norm, whatever its number of coordinates.

Norms are in units of the clip: an update of L2 norm R, coordinates clipped to [-clip, clip], has norm
R / clip, and two such updates are at most 2 R / clip apart.

**Integer noise**: :mod:`fl_privquant.accounting.noise_norm`.

**Tables.** Continuous laws: in the secure sum of several clients, the Gaussian guarantee of
:mod:`fl_privquant.loss.secure_sum`, by a blanket, and for laws of two rows and sums of bits that of
:mod:`fl_privquant.loss.two_row_sums`, by the worst case of the other clients; local view,
:func:`fl_privquant.loss.renyi.renyi_of_update`. With metric "l1": two updates of L1 norm R cost at most 2 R
times the loss per distance, in all coordinates together (see :mod:`fl_privquant.mechanisms.metric`). Metric
"l2-grid" holds between knots only, and is not counted by; as a continuous law it has the bound above.

A bound for another mechanism is added by :func:`register_norm_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from fl_privquant.errors import InvalidSpecError
from fl_privquant.law.table import CertifiedTable
from fl_privquant.loss.compose import Moments
from fl_privquant.loss.renyi import INPUT_ROUNDING, renyi_of_update
from fl_privquant.loss.response import gaussian_loss, response_loss
from fl_privquant.loss.secure_sum import NORM_ROUNDING, SumCertificate, UpdateBound, certify_sum
from fl_privquant.loss.two_row_sums import TwoRows, sum_separation
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.gaussian import GaussianMechanism
from fl_privquant.mechanisms.metric import MetricTableMechanism
from fl_privquant.mechanisms.pbm import PbmMechanism
from fl_privquant.mechanisms.stratified_bits import StratifiedBits
from fl_privquant.mechanisms.sum_of_bits import SumOfBits

__all__ = ["NO_NORMS", "NormBound", "Norms", "norm_losses", "register_norm_bound"]

_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class Norms:
    """Bounds of an update's norms, in units of the clip; None where there is none."""

    l2: float | None = None
    l1: float | None = None

    def __post_init__(self) -> None:
        for name in ("l2", "l1"):
            bound = getattr(self, name)
            if bound is not None and not (math.isfinite(bound) and bound > 0.0):
                raise InvalidSpecError(
                    f"{name} norm: {bound} is not a finite number above 0, in units of the coordinate clip; "
                    "leave it out for updates of any norm"
                )


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
    elif isinstance(mechanism, SumOfBits):
        table, bits, name = mechanism.bit, mechanism.trials, "l2 gaussian of bits"
    else:
        return None
    update = UpdateBound(2.0 * norms.l2 * NORM_ROUNDING, dimension)
    stratified = isinstance(mechanism, StratifiedBits)
    separation = _two_row_separation(table, num_honest, update.rate, bits, stratified)
    if math.isinf(separation):
        return None
    loss = gaussian_loss(separation * update.widened)
    return replace(loss, infinity=loss.infinity + update.charge), name


@lru_cache(maxsize=64)
def _two_row_separation(
    table: CertifiedTable, num_honest: int, rate: float, bits: int, stratified: bool
) -> float:
    law = TwoRows.of(table)
    return math.inf if law is None else sum_separation(law, num_honest, rate, bits, stratified)


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
