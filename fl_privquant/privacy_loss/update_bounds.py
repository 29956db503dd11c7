"""Privacy losses of whole updates of bounded norm, which do not grow with the number of coordinates.

Norms are in units of the clip: an update of L2 norm R, coordinates clipped to [-clip, clip], has norm
R / clip, and two such updates are at most 2 R / clip apart (R / clip, if one of them is zero).

Which proof a bound rests on depends on the mechanism and the view:

* a continuous table in the local view: :mod:`fl_privquant.privacy_loss.tables.renyi_by_distance`;
* a continuous table in the secure sum of several clients: the Gaussian guarantee of
  :mod:`fl_privquant.privacy_loss.sums.gaussian_bound`, by a privacy blanket;
* integer noise: :mod:`fl_privquant.privacy_loss.additive.integer_noise_l2`.

Every bound here is for one whole update. It holds for any two updates within the norms, each coordinate
clipped to [-1, 1], and for a sum with ``num_honest`` - 1 other clients, whatever their inputs.
``num_honest`` is 1 in the local view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from fl_privquant import _validation
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.closed_forms import gaussian_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm
from fl_privquant.privacy_loss.sums.gaussian_bound import (
    NORM_ROUNDING,
    SumCertificate,
    UpdateBound,
    certify_sum,
)
from fl_privquant.privacy_loss.tables.renyi_by_distance import renyi_per_squared_distance
from fl_privquant.statement import LOCAL, Relation, View

_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class UpdateNorms:
    """Bounds of an update's norms, in units of the clip; None where there is none."""

    l2: float | None = None
    l1: float | None = None
    record: float | None = None
    """Largest L2 norm of the part of a single record, where an update is a sum over randomly drawn ones."""
    record_rate: float | None = None
    """The probability with which a record is drawn, if there is such a norm."""

    def __post_init__(self) -> None:
        remedy = "it is in units of the coordinate clip; leave it out for updates of any norm"
        for name, bound in (("l2 norm", self.l2), ("l1 norm", self.l1)):
            if bound is not None:
                _validation.check_positive(name, bound, remedy)
        if (self.record is None) != (self.record_rate is None):
            raise InvalidSpecError(
                "record, record_rate", (self.record, self.record_rate), "", "give both or neither"
            )
        if self.record is not None and self.record_rate is not None:
            _validation.check_positive("record", self.record, remedy)
            _validation.check_in_interval("record_rate", self.record_rate, "(0, 1]")


@dataclass(frozen=True, eq=False)
class NormBound:
    """The moments of a whole update's loss, from a bound of its Rényi divergence."""

    renyi: Callable[[float], float]
    infinity: float = 0.0

    @property
    def max_loss(self) -> float:
        """Infinite, because moments do not bound the largest loss."""
        return math.inf

    def log_moment(self, rate: float) -> float:
        """Rate times the divergence of order rate + 1."""
        return rate * self.renyi(rate + 1.0) * _FLOAT_ROOM


NO_NORMS = UpdateNorms()
"""Updates of any norm."""


@dataclass(frozen=True)
class WholeUpdate:
    """What the loss of a client's whole update depends on, besides the mechanism."""

    norms: UpdateNorms
    dimension: int
    view: View = LOCAL
    relation: Relation = Relation.REPLACE_ONE

    @property
    def num_honest(self) -> int:
        """Honest clients in the sum; 1 in the local view."""
        return self.view.honest_count

    @property
    def l2_distance(self) -> float | None:
        """The largest L2 distance of two neighboring updates, in clips; None where no norm bounds it."""
        return None if self.norms.l2 is None else self.relation.distance * self.norms.l2


def table_update_losses(
    table: CertifiedTable, distance: float, dimension: int, num_honest: int
) -> list[NamedLoss]:
    """All bounds on the loss of an update that moves by an L2 ``distance`` and is encoded by a table."""
    bounds = (
        secure_sum_loss(table, distance, dimension, num_honest),
        continuous_distribution_loss(table, distance, dimension, num_honest),
    )
    return [bound for bound in bounds if bound is not None]


def secure_sum_loss(
    table: CertifiedTable, distance: float, dimension: int, num_honest: int, bits: int = 1
) -> NamedLoss | None:
    """The guarantee by a blanket, if the table has one; a code is the sum of ``bits`` draws from the table.

    The bound gives the adversary a sum over clients for each of these draws, as if it were a coordinate.
    """
    update = UpdateBound(math.sqrt(bits) * (distance * NORM_ROUNDING), bits * dimension)
    certificate = _certificate(table, num_honest)
    if certificate is None:
        return None
    separation = certificate.separation(update.rate)
    if math.isfinite(separation):
        loss = gaussian_loss(separation * update.widened, update.charge)
        return NamedLoss(loss, "l2 gaussian of the sum", norm=UpdateNorm.L2)

    def renyi(order: float) -> float:
        return certificate.renyi(order) * update.widened**2

    return NamedLoss(NormBound(renyi, update.charge), "l2 renyi of the sum", norm=UpdateNorm.L2)


def continuous_distribution_loss(
    table: CertifiedTable, distance: float, dimension: int, num_honest: int
) -> NamedLoss | None:
    """The Rényi bound of the local view, for distributions without jumps."""
    if num_honest > 1 and _certificate(table, num_honest) is not None:
        # Where the secure sum is certified, the bound of the local view is no better, and takes longer.
        return None
    update = UpdateBound(distance * NORM_ROUNDING, dimension)

    def renyi(order: float) -> float:
        return _renyi(table.distribution, order) * update.widened**2

    # Few orders are computed. In between, the logarithm of a moment is a convex function of its rate (the
    # order less one), and 0 at rate 0, so that it lies below the chord of those on both sides.
    orders = (1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 257.0)

    def by_chord(order: float) -> float:
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
    return NamedLoss(NormBound(by_chord), "l2 renyi", norm=UpdateNorm.L2)


_renyi = lru_cache(maxsize=1024)(renyi_per_squared_distance)


@lru_cache(maxsize=64)
def _certificate(table: CertifiedTable, num_honest: int) -> SumCertificate | None:
    return certify_sum(table, num_honest)
