"""Table mechanisms whose privacy loss is bounded by the distance of the inputs, in exact arithmetic.

Guarantee, ``metric="l1"``: for all inputs x, x' in [-clip, clip] and every output i, P[M(x) = i] <=
exp(metric_epsilon |x - x'| / clip) P[M(x') = i], up to
:data:`fl_privquant.privacy_loss.tables.renyi_by_distance.INPUT_ROUNDING` in |x
- x'| / clip (the sampler rounds inputs at random with 32 bits). For two updates at L1 distance D the losses
of all coordinates together are at most metric_epsilon * D / clip, which is 2 R metric_epsilon / clip where
updates are clipped to L1 norm R.

Guarantee, ``metric="l2-grid"``: P[M(x) = i] <= exp(metric_epsilon |x - x'|^2 / clip^2) P[M(x') = i] for
inputs that are knots. The loss of two grid updates at L2 distance D is at most metric_epsilon * D^2 /
clip^2. *Knots* are the inputs at which a table has rows. Inputs between knots are first rounded at random to
knots; the bound then holds for the rounded updates, whose norm can exceed that of the update. For a bound
without that gap see :mod:`fl_privquant.privacy_loss.tables.renyi_by_distance`.

In either case ``epsilon``, the loss between any two inputs of one coordinate, holds as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from fl_privquant._array_types import Ints
from fl_privquant.distributions.certified_table import (
    TOTAL_WEIGHT,
    CertifiedTable,
    log_ratio_upper,
    round_up,
)
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.optimize.metric_privacy import diameter
from fl_privquant.privacy_loss.closed_forms import response_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING
from fl_privquant.privacy_loss.tables.renyi_by_distance import INPUT_ROUNDING
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, WholeUpdate
from fl_privquant.statement import PrivacyStatement, Unit

# Floats, with a relative error below 1e-6, select the candidates that are then compared exactly.
_SHORTLIST = 1e-5
_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class MetricTableMechanism(TableMechanism, kind="metric-table"):
    """A table mechanism that also claims a loss per distance; the module states the guarantee.

    ``metric`` is "l1" or "l2-grid".
    """

    metric: str = "l1"
    claimed_metric_epsilon: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.metric_epsilon <= self.claimed_metric_epsilon:
            raise CertificationError(
                f"per unit of {_UNITS[self.metric]}: "
                + self.metric_statement.above(self.claimed_metric_epsilon)
            )

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, metric: {self.metric_statement.brief} per {_UNITS[self.metric]}>"

    @property
    def metric_statement(self) -> PrivacyStatement:
        """The privacy loss of one coordinate in the local view, per unit of distance between inputs."""
        return PrivacyStatement(self.metric_epsilon, 0.0, Unit.COORDINATE, method="exact")

    @cached_property
    def metric_epsilon(self) -> float:
        """Certified loss per unit of distance, for one coordinate and release; never below the exact one."""
        return certify_metric_epsilon(self.table, self.metric)

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        """The usual bounds and, with metric "l1", the loss by the L1 distance of whole updates."""
        losses = super().update_losses(update)
        # With "l2-grid" the bound is for inputs that are knots only. Other inputs are rounded to knots first,
        # and the rounded updates can be further apart than the norm allows.
        norms, dimension = update.norms, update.dimension
        if self.metric != "l1" or norms == NO_NORMS:
            return losses
        # An L2 norm bounds the L1 norm as well.
        bounds = [] if norms.l1 is None else [norms.l1]
        bounds += [] if norms.l2 is None else [norms.l2 * math.sqrt(dimension)]
        distance = update.relation.distance * min(bounds) * NORM_ROUNDING + dimension * INPUT_ROUNDING
        by_metric = response_loss(self.metric_epsilon * distance * _FLOAT_ROOM)
        return [NamedLoss(by_metric, "l1 metric", norm=UpdateNorm.L1, relation=update.relation), *losses]


def certify_distribution(
    name: str,
    distribution: OutputDistribution,
    codebook: Codebook,
    epsilon: float,
    parameters: Mapping[str, Any],
    metric: str,
) -> TableMechanism:
    """The certified mechanism with that distribution; with ``metric="none"`` it claims epsilon alone."""
    table = CertifiedTable.from_distribution(distribution, codebook, epsilon)
    if metric == "none":
        return TableMechanism(name, table, epsilon, parameters=parameters)
    claims = (epsilon, metric, epsilon / diameter(metric))
    return MetricTableMechanism(name, table, *claims, parameters=parameters)


_UNITS = {"l1": "|x - x'| / clip", "l2-grid": "|x - x'|^2 / clip^2, x and x' knots"}


def certify_metric_epsilon(table: CertifiedTable, metric: str) -> float:
    """The least loss per distance of the integer table, rounded up; infinite where its distribution jumps."""
    if metric not in _UNITS:
        raise InvalidSpecError("metric", metric, f"is not one of {', '.join(_UNITS)}")
    if np.any(table.start_rows[1:] != table.end_rows[:-1]):
        return math.inf
    path = np.concatenate([table.start_rows[:1], table.end_rows])
    weights = table.weights[path]
    weights = weights[:, weights.max(axis=0) > 0]
    if np.any(weights == 0):
        return math.inf
    # Knots are row means: exact rationals, as weights and codes are integers and floats are rationals.
    steps = Fraction(table.codebook.step) / TOTAL_WEIGHT
    means = [int(mean) for mean in (table.weights[path] @ table.codebook.codes).tolist()]
    return _l1_slope(weights, means, steps) if metric == "l1" else _l2_rate(weights, means, steps)


def _l1_slope(weights: Ints, means: list[int], step: Fraction) -> float:
    """Largest |w_b - w_a| / (min(w_a, w_b) h) over neighboring rows, which is the largest slope of log p."""
    lengths = float(step) * np.diff(np.array(means, dtype=np.float64))
    slopes = np.abs(np.diff(weights, axis=0)) / np.minimum(weights[1:], weights[:-1]) / lengths[:, None]
    worst = Fraction(0)
    for k, i in zip(*np.nonzero(slopes >= slopes.max() * (1.0 - _SHORTLIST)), strict=True):
        low, high = sorted((int(weights[k, i]), int(weights[k + 1, i])))
        worst = max(worst, Fraction(high - low, low) / (step * (means[k + 1] - means[k])))
    return round_up(worst)


def _l2_rate(weights: Ints, means: list[int], step: Fraction) -> float:
    """Largest log(w_a / w_b) / h^2 over all pairs of rows."""
    knots = float(step) * np.array(means, dtype=np.float64)
    logs = np.log(weights.astype(np.float64))
    worst = 0.0
    for gap in range(1, len(means)):
        rates = np.abs(logs[gap:] - logs[:-gap]) / ((knots[gap:] - knots[:-gap]) ** 2)[:, None]
        if rates.max() < worst * (1.0 - _SHORTLIST):
            continue
        for k, i in zip(*np.nonzero(rates >= max(rates.max(), worst) * (1.0 - _SHORTLIST)), strict=True):
            low, high = sorted((int(weights[k, i]), int(weights[k + gap, i])))
            distance = (step * (means[k + gap] - means[k])) ** 2
            worst = max(worst, round_up(Fraction(log_ratio_upper(high, low)) / distance))
    return worst
