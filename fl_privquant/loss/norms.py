"""Privacy losses of whole updates of bounded norm, which do not grow with the number of coordinates.

Norms are in units of the clip: an update of L2 norm R, coordinates clipped to [-clip, clip], has norm
R / clip, and two such updates are at most 2 R / clip apart.

Which proof a bound rests on depends on the mechanism and the view:

* a continuous table in the local view: :mod:`fl_privquant.loss.renyi`;
* a continuous table in the secure sum of several clients: the Gaussian guarantee of
  :mod:`fl_privquant.loss.secure_sum`, by a privacy blanket;
* integer noise: :mod:`fl_privquant.loss.integer_noise_norm`.

Every bound here is for one whole update. It holds for any two updates within the norms, each coordinate
clipped to [-1, 1], and for a sum with ``num_honest`` - 1 other clients, whatever their inputs.
``num_honest`` is 1 in the local view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from fl_privquant import checks
from fl_privquant.law.law import Law
from fl_privquant.law.table import CertifiedTable
from fl_privquant.loss.compose import NamedLoss
from fl_privquant.loss.renyi import fisher_information, renyi_per_squared_distance
from fl_privquant.loss.response import gaussian_loss
from fl_privquant.loss.secure_sum import NORM_ROUNDING, SumCertificate, UpdateBound, certify_sum

_FLOAT_ROOM = 1.0 + 1e-9
# Far more than the relative rounding error of a Fisher information.
_ROUNDING_SHARE = 1e-9


@dataclass(frozen=True)
class Norms:
    """Bounds of an update's norms, in units of the clip; None where there is none."""

    l2: float | None = None
    l1: float | None = None

    def __post_init__(self) -> None:
        advice = ", in units of the coordinate clip; leave it out for updates of any norm"
        for name, bound in (("l2 norm", self.l2), ("l1 norm", self.l1)):
            if bound is not None:
                checks.positive(name, bound, advice)


@dataclass(frozen=True, eq=False)
class NormBound:
    """The moments of a whole update's loss, from a bound of its Rényi divergence."""

    renyi: Callable[[float], float]
    infinity: float = 0.0
    slack: float = 0.0

    @property
    def max_loss(self) -> float:
        """Infinite, because moments do not bound the largest loss."""
        return math.inf

    def log_moment(self, rate: float) -> float:
        """Rate times the divergence of order rate + 1."""
        return self._log_moment(rate, self.renyi)

    def _log_moment(self, rate: float, renyi: Callable[[float], float]) -> float:
        return rate * renyi(rate + 1.0) * _FLOAT_ROOM + (2.0 * rate + 1.0) * self.slack


@dataclass(frozen=True, eq=False)
class SlowNormBound(NormBound):
    """A bound that takes long to compute, with divergences ``least`` that it is not below at any order."""

    least: Callable[[float], float] = field(kw_only=True)

    def least_log_moment(self, rate: float) -> float:
        """What :meth:`log_moment` is not below, computed quickly."""
        return self._log_moment(rate, self.least)


NO_NORMS = Norms()
"""Updates of any norm."""


def table_update_losses(table: CertifiedTable, l2: float, dimension: int, num_honest: int) -> list[NamedLoss]:
    """All bounds that apply to the loss of an update of bounded L2 norm whose coordinates a table encodes."""
    bounds = (
        secure_sum_loss(table, l2, dimension, num_honest),
        continuous_law_loss(table, l2, dimension, num_honest),
    )
    return [bound for bound in bounds if bound is not None]


def secure_sum_loss(
    table: CertifiedTable, l2: float, dimension: int, num_honest: int, bits: int = 1
) -> NamedLoss | None:
    """The guarantee by a blanket, if the table has one; a code is the sum of ``bits`` draws from the table.

    The bound gives the adversary a sum over clients for each of these draws, as if it were a coordinate.
    """
    update = UpdateBound(math.sqrt(bits) * (2.0 * l2 * NORM_ROUNDING), bits * dimension)
    certificate = _certificate(table, num_honest)
    if certificate is None:
        return None
    separation = certificate.separation(update.rate)
    if math.isfinite(separation):
        loss = gaussian_loss(separation * update.widened, update.charge)
        return NamedLoss(loss, "l2 gaussian of the sum")

    def renyi(order: float) -> float:
        return certificate.renyi(order) * update.widened**2

    return NamedLoss(NormBound(renyi, update.charge), "l2 renyi of the sum")


def continuous_law_loss(
    table: CertifiedTable, l2: float, dimension: int, num_honest: int
) -> NamedLoss | None:
    """The Rényi bound of the local view, for laws without jumps."""
    if num_honest > 1 and _certificate(table, num_honest) is not None:
        # Where the secure sum is certified, the bound of the local view is no better, and takes longer.
        return None
    law, update = _KnownLaw.of(table.law), UpdateBound(2.0 * l2 * NORM_ROUNDING, dimension)

    def renyi(order: float) -> float:
        return _renyi(law, order) * update.widened**2

    # Each order takes some tenths of a second. In between, the logarithm of a moment is a convex function of
    # its rate (the order less one), and 0 at rate 0, so that it lies below the chord of those on both sides.
    orders = (1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 257.0)

    def by_chord(order: float, renyi: Callable[[float], float] = renyi) -> float:
        if order <= orders[0]:
            return renyi(orders[0])
        above = next((place for place, known in enumerate(orders) if known >= order), None)
        if above is None or math.isinf(renyi(orders[above])):
            return math.inf
        low, high = orders[above - 1], orders[above]
        share = (order - low) / (high - low)
        moment = (1.0 - share) * (low - 1.0) * renyi(low) + share * (high - 1.0) * renyi(high)
        return moment / (order - 1.0)

    if math.isinf(renyi(2.0)):
        return None
    information = fisher_information(table.law)

    def of_close_inputs(order: float) -> float:
        # For inputs that are close, the divergence is given by the Fisher information.
        return order / 2.0 * information * update.widened**2 * (1.0 - _ROUNDING_SHARE)

    bound = SlowNormBound(by_chord, least=lambda order: by_chord(order, of_close_inputs))
    return NamedLoss(bound, "l2 renyi")


@dataclass(frozen=True)
class _KnownLaw:
    """A law identified by its numbers, so that equal laws are bounded once, whatever the norms."""

    numbers: tuple[bytes, ...]
    law: Law = field(compare=False)

    @classmethod
    def of(cls, law: Law) -> _KnownLaw:
        arrays = (law.values, law.starts, law.ends, law.start_rows, law.end_rows)
        return cls(tuple(array.tobytes() for array in arrays), law)


@lru_cache(maxsize=1024)
def _renyi(known: _KnownLaw, order: float) -> float:
    return renyi_per_squared_distance(known.law, order)


@lru_cache(maxsize=64)
def _certificate(table: CertifiedTable, num_honest: int) -> SumCertificate | None:
    return certify_sum(table, num_honest)
