"""OPTM for the secure sum: designed for what the server sees under secure aggregation, the sum of codes.

``pq.design("optm", objective="aggregate", ...)`` is this mechanism.

Guarantee: Let updates be clipped to the L2 norm ``norm_ratio`` * clip, and let the server see only their
secure sum over ``num_clients`` clients, of whom the stated fractions may be corrupt or lost. Then a whole run
of ``rounds`` rounds is (``run_epsilon``, ``run_delta``)-private for one client's updates replaced by any
others of that norm. This is certified by :mod:`fl_privquant.loss.two_row_sums` on the table, or the bits,
that are sampled. The loss of one coordinate in the local view is certified too, as for any table. Assumes:
secure aggregation, and in each round the honest clients that the fractions leave.

It is the best of three kinds: sums of up to ``levels - 1`` stratified bits
(:mod:`fl_privquant.mechanisms.stratified_bits`), which are the bits of the Poisson binomial mechanism (Chen,
Özgür, Kairouz, ICML 2022) with less randomness in how many favour 1; tables by linear program
(:mod:`fl_privquant.design.aggregate`); and the bits of the Poisson binomial mechanism themselves
(:mod:`fl_privquant.mechanisms.pbm`) where their certificate allows a larger theta, above all with few clients
or a large budget. So its error never exceeds that of the Poisson binomial mechanism with as many levels and
the same clip, certified for the same target, except for the tolerance of the search for theta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from fl_privquant import checks
from fl_privquant.cohort import checked_fraction, honest_clients
from fl_privquant.design.aggregate import best_shape, least_error_table
from fl_privquant.design.bits import (
    SumOfBitsDesign,
    error_of_bits,
    error_of_strata,
    least_error_bits,
    least_error_of_tables,
    numbers_of_trials,
)
from fl_privquant.design.spread import RunTarget, best_spread, usual_norm_ratio
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.law.density import Density, UniformDensity
from fl_privquant.law.lattice import coarse_count
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.loss.secure_sum import NORM_ROUNDING, UpdateBound
from fl_privquant.loss.two_row_sums import TwoRows, sum_separation
from fl_privquant.mechanisms.additive import rounding_variance
from fl_privquant.mechanisms.base import LatticeMechanism, TableMechanism
from fl_privquant.mechanisms.pbm import PbmMechanism, binomial_bits
from fl_privquant.mechanisms.registry import Spec, checked_delta, checked_epsilon, register
from fl_privquant.mechanisms.stratified_bits import StratifiedBits
from fl_privquant.mechanisms.wish import Estimate, Wish, estimate_bits
from fl_privquant.statement import Unit

_NAME = "optm_aggregate"
_MOST_LEVELS = 256
_LEVELS = checks.whole_in(2, _MOST_LEVELS, "; for the sum of many clients 8 are enough")
_MOST_EPSILON = 1e6
# Independent bits are tried if the error is more than this many times that of a central Gaussian.
_LAX = 1.1
# Tables are tried if they could reduce the error by more than this factor, because the search takes long.
_WORTH = 1.005


@dataclass(frozen=True)
class AggregateSpec(Spec):
    """The specification of OPTM for the secure sum."""

    spends_on: ClassVar[Unit] = Unit.TOTAL

    num_clients: Annotated[int, checks.whole_in(1, 1 << 24)]
    """Clients that are sampled in a round."""
    dimension: Annotated[int, checks.whole_in(1, 1 << 31)]
    """Number of coordinates."""
    run_epsilon: float
    """The target, with ``run_delta``: the epsilon that all rounds may cost a client in the aggregate view."""
    run_delta: float = 1e-5
    rounds: Annotated[int, checks.whole_in(1, 1 << 20)] = 1
    """Rounds that a client takes part in."""
    norm_ratio: Annotated[float | None, checks.positive] = None
    """L2 clip over coordinate clip; if not given, :func:`~fl_privquant.design.spread.usual_norm_ratio`."""
    levels: Annotated[int, _LEVELS] = 4
    """Largest number of output values, 2 to 256; fewer are used where they serve as well."""
    corrupt_fraction: Annotated[float, checked_fraction] = 0.0
    """Share of a round's clients that may collude with the server."""
    dropout_fraction: Annotated[float, checked_fraction] = 0.0
    """Share of a round's clients that may be lost."""
    density: Density = field(default_factory=UniformDensity)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_epsilon(self.run_epsilon, _MOST_EPSILON, "whole run")
        checked_delta(self.run_delta)
        honest = honest_clients(self.num_clients, self.corrupt_fraction, self.dropout_fraction)
        if honest < 2:
            raise InvalidSpecError(
                f"num_clients: {self.num_clients}, of which {self.corrupt_fraction:g} corrupt and "
                f"{self.dropout_fraction:g} lost, leave {max(honest, 0)} honest; a sum needs 2 or more"
            )
        if not self.density.symmetric:
            raise InvalidSpecError("density: must be symmetric around 0, as laws for the sum are")

    @classmethod
    def proposes(cls, wish: Wish) -> bool:
        """True: this mechanism is always designed for a target."""
        return True

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The design whose whole run costs that epsilon."""
        if not wish.in_sum:
            raise InvalidSpecError(
                "is made for secure sums with two or more honest clients; use secure aggregation, with more "
                "clients or with lower fractions of them that may be corrupt or lost"
            )
        if not wish.counts_norms:
            raise InvalidSpecError(
                "counts whole updates in the secure sum, by their L2 norm; give that, in units of the "
                f"coordinate clip: {usual_norm_ratio(wish.dimension):.3g} suits rotated updates"
            )
        return {
            "run_epsilon": epsilon,
            "run_delta": wish.delta,
            "rounds": wish.rounds if wish.unit is Unit.TOTAL else 1,
            "levels": min(2**wish.bits, _MOST_LEVELS),
            "num_clients": wish.num_clients,
            "dimension": wish.dimension,
            "norm_ratio": wish.norms.l2,
            "corrupt_fraction": wish.corrupt / wish.num_clients,
            "dropout_fraction": wish.dropped / wish.num_clients,
            **dict(wish.parameters),
        }

    @classmethod
    def estimate(cls, wish: Wish) -> Estimate | None:
        """The estimate for stratified bits."""
        return estimate_bits(wish, stratified=True)

    @property
    def num_honest(self) -> int:
        """The least number of honest clients in the sum, rounded down as accountants do."""
        return coarse_count(honest_clients(self.num_clients, self.corrupt_fraction, self.dropout_fraction))

    @property
    def clip_ratio(self) -> float:
        """L2 clip over coordinate clip, as given or the usual one."""
        return usual_norm_ratio(self.dimension) if self.norm_ratio is None else self.norm_ratio

    @property
    def planned_norm_ratio(self) -> float:
        """L2 clip over coordinate clip with about the least error for the target and rotated updates.

        >>> spec = AggregateSpec(num_clients=1000, dimension=7850, run_epsilon=10.0, rounds=50)
        >>> 3.0 < math.sqrt(7850) / spec.planned_norm_ratio < 3.5
        True
        """
        trials = numbers_of_trials(self.levels - 1, self.num_honest)[0]
        return math.sqrt(self.dimension) / best_spread(trials, self.target)

    @property
    def target(self) -> RunTarget:
        """The privacy target of the run."""
        cost = (self.run_epsilon, self.run_delta, self.rounds)
        return RunTarget(*cost, self.dimension, self.num_clients, self.num_honest)

    @property
    def rate(self) -> float:
        """The rate b of :func:`~fl_privquant.loss.two_row_sums.sum_separation` for these updates."""
        return UpdateBound(2.0 * self.clip_ratio * NORM_ROUNDING, self.dimension).rate


@register(
    _NAME,
    AggregateSpec,
    10,
    "#f77f00",
    cached=True,
    variant_of=("optm", "objective", "aggregate"),
    plans_for_sums=True,
)
def design_aggregate(spec: AggregateSpec) -> LatticeMechanism:
    """The certified mechanism with the least error that meets the target."""
    nodes, weights = spec.density.quadrature(np.array([-1.0, 1.0]))
    input_variance = float(weights @ nodes**2)
    return _least_error(spec, spec.target.coordinate_separation(spec.clip_ratio), input_variance)


def _least_error(spec: AggregateSpec, separation: float, input_variance: float) -> LatticeMechanism:
    """The sum of bits with the least error at that separation, or a table if one has less."""
    honest, rate = spec.num_honest, spec.rate

    def error_of(trials: int, rare: int) -> float:
        return error_of_strata(trials, rare, rounding_variance(trials + 1, spec.density))

    best = least_error_bits(spec.levels - 1, separation, honest, rate, error_of, stratified=True)
    lax = best is None or best.error > _LAX / (honest * separation**2)
    if best is None or lax or _independent_bits_may_lead(spec, best, input_variance):
        # With few clients or a large budget, independent bits have a certificate that stratified ones lack.
        binomial = binomial_bits(spec.target, spec.clip_ratio, spec.levels - 1)
        least = math.inf if best is None else best.error
        if binomial and error_of_bits(binomial.trials, binomial.rare, input_variance) < least:
            return PbmMechanism.of_bits(_NAME, binomial.trials, binomial.rare, spec.parameters())
    if best is None:
        return _of_table(spec, least_error_table(spec.levels, separation, input_variance, honest, rate))
    if best.trials > 1 and best.error > _WORTH * least_error_of_tables(separation, input_variance, honest):
        try:
            _, reached = best_shape(spec.levels, best.error, input_variance, honest, rate)
        except InfeasibleDesignError:
            reached = math.inf
        if reached < separation:
            table = least_error_table(spec.levels, separation, input_variance, honest, rate)
            if table.law.mse(spec.density) < best.error:
                return _of_table(spec, table)
    return _of_bits(spec, best.trials, best.rare)


def _independent_bits_may_lead(spec: AggregateSpec, best: SumOfBitsDesign, input_variance: float) -> bool:
    """Whether the bits of the Poisson binomial mechanism may have less error, by a quick estimate.

    With the same theta their error is not less. But the certificate of stratified bits, a chain of unequal
    steps (:mod:`fl_privquant.loss.normal_pairs`), is a little weaker, so that independent bits may be allowed
    a larger theta.
    """
    if best.trials == 1:
        return False
    law, honest = TwoRows.bit(best.rare), spec.num_honest
    of_strata, independent = (
        sum_separation(law, honest, spec.rate, best.trials, stratified, probed=True)
        for stratified in (True, False)
    )
    further = 1.0 if independent == 0.0 else of_strata / independent
    theta = min((TOTAL_WEIGHT // 2 - best.rare) * further, TOTAL_WEIGHT // 2 - 1)
    rare = TOTAL_WEIGHT // 2 - int(theta)
    return error_of_bits(best.trials, rare, input_variance) < best.error


def _of_table(spec: AggregateSpec, table: CertifiedTable) -> TableMechanism:
    return TableMechanism(_NAME, table, table.epsilon, parameters=spec.parameters())


def _of_bits(spec: AggregateSpec, trials: int, rare: int) -> LatticeMechanism:
    bits = StratifiedBits.of_bits(_NAME, trials, rare, spec.parameters())
    # One bit is a table, which is encoded faster.
    return bits if trials > 1 else _of_table(spec, bits.bit)
