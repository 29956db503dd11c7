"""OPTM for the secure sum: designed for what the server sees under secure aggregation, the sum of codes.

``pq.design("optm", objective="aggregate", ...)`` is this mechanism.

Guarantee: for updates clipped to the L2 norm ``norm_ratio`` * clip, of which the server sees only the secure
sum over ``num_clients`` clients, of whom the stated fractions may be corrupt or lost: a whole run of
``rounds`` rounds is (``run_epsilon``, ``run_delta``)-private for one client's updates replaced by any others
of that norm. Certified by :mod:`fl_privquant.secure_sum` on the table that is sampled from.
The loss of one coordinate in the local view is certified too, as of any table.
Assumes: secure aggregation; the honest clients that the fractions leave in each round.
Reference: this package (the linear program in :mod:`fl_privquant.design.aggregate`, the proof in
:mod:`fl_privquant.secure_sum`); the blanket is that of Balle, Bell, Gascon, Nissim, CRYPTO 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fl_privquant.cohort import checked_fraction, honest_clients
from fl_privquant.density import Density, UniformDensity
from fl_privquant.design.aggregate import aggregate_table, best_shape, least_error_table
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.lattice import coarse_count
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import (
    Spec,
    checked_delta,
    checked_epsilon,
    checked_levels,
    checked_whole,
    register,
)
from fl_privquant.normal import gaussian_separation
from fl_privquant.secure_sum import NORM_ROUNDING, UpdateBound

__all__ = ["SPREAD", "AggregateSpec", "design_aggregate", "usual_norm_ratio"]

SPREAD = 3.0
"""Coordinate clip of a rotated update, in standard deviations of its coordinates, unless told otherwise."""

_MOST_LEVELS = 16
_MOST_CLIENTS = 1 << 24
_MOST_ROUNDS = 1 << 20
_MOST_COORDINATES = 1 << 31
_MOST_EPSILON = 1e6
# Composition on a grid gives a little away; the design leaves it this much of epsilon.
_GRID_ROOM = 1e-3


def usual_norm_ratio(dimension: int) -> float:
    """L2 clip over coordinate clip, for rotated updates: the square root of the dimension, over 3.

    A rotation spreads an update over its coordinates: at the L2 clip, they have a standard deviation of the
    L2 clip over sqrt(dimension), and 0.27 % of them exceed three of these and are clipped.

    >>> usual_norm_ratio(900)
    10.0
    """
    return math.sqrt(dimension) / SPREAD


@dataclass(frozen=True)
class AggregateSpec(Spec):
    """What OPTM for the secure sum is asked to be: give ``run_epsilon`` or ``mse``.

    Parameters
    ----------
    num_clients
        Clients that are asked in a round.
    dimension
        Number of coordinates.
    run_epsilon, run_delta
        The target: a client, all rounds, aggregate view.
    rounds
        Rounds that a client takes part in.
    mse
        Mean squared error of one client's coordinate, in units of clip^2, instead of a target.
    norm_ratio
        L2 clip over coordinate clip; see :func:`usual_norm_ratio` if not given.
    levels
        Most output values; fewer are used where they serve as well.
    corrupt_fraction, dropout_fraction
        Clients of a round that may collude with the server, and that may be lost.
    density
        How inputs are distributed, for the error.
    """

    num_clients: int
    dimension: int
    run_epsilon: float | None = None
    run_delta: float = 1e-5
    rounds: int = 1
    mse: float | None = None
    norm_ratio: float | None = None
    levels: int = 4
    corrupt_fraction: float = 0.0
    dropout_fraction: float = 0.0
    density: Density = field(default_factory=UniformDensity)

    def __post_init__(self) -> None:
        checked_whole("num_clients", self.num_clients, _MOST_CLIENTS)
        checked_whole("dimension", self.dimension, _MOST_COORDINATES)
        checked_whole("rounds", self.rounds, _MOST_ROUNDS)
        checked_levels(self.levels)
        if self.levels > _MOST_LEVELS:
            raise InvalidSpecError(
                f"levels: {self.levels} is above {_MOST_LEVELS}; for the sum of many clients 4 are enough"
            )
        if (self.run_epsilon is None) == (self.mse is None):
            raise InvalidSpecError(
                f"run_epsilon={self.run_epsilon}, mse={self.mse}: give one of the two, a target for the "
                "whole run or an error"
            )
        if self.run_epsilon is not None:
            checked_epsilon(self.run_epsilon, _MOST_EPSILON)
        checked_delta(self.run_delta)
        if self.mse is not None and not (math.isfinite(self.mse) and self.mse > 0.0):
            raise InvalidSpecError(f"mse: {self.mse} is not a finite number above 0")
        if self.norm_ratio is not None and not (math.isfinite(self.norm_ratio) and self.norm_ratio > 0.0):
            raise InvalidSpecError(f"norm_ratio: {self.norm_ratio} is not a finite number above 0")
        for name in ("corrupt_fraction", "dropout_fraction"):
            checked_fraction(name, getattr(self, name))
        honest = honest_clients(self.num_clients, self.corrupt_fraction, self.dropout_fraction)
        if honest < 2:
            raise InvalidSpecError(
                f"num_clients: {self.num_clients}, of which {self.corrupt_fraction:g} corrupt and "
                f"{self.dropout_fraction:g} lost, leave {max(honest, 0)} honest; a sum needs 2 or more"
            )
        if not self.density.symmetric:
            raise InvalidSpecError("density: must be symmetric around 0, as laws for the sum are")

    @property
    def num_honest(self) -> int:
        """Honest clients whose codes are in the sum, at the least, as coarsely as accountants count them."""
        return coarse_count(honest_clients(self.num_clients, self.corrupt_fraction, self.dropout_fraction))

    @property
    def update(self) -> UpdateBound:
        """How far apart two updates can be."""
        ratio = usual_norm_ratio(self.dimension) if self.norm_ratio is None else self.norm_ratio
        return UpdateBound(2.0 * ratio * NORM_ROUNDING, self.dimension)


@register("optm_aggregate", AggregateSpec, variant_of=("optm", "objective", "aggregate"))
def design_aggregate(spec: AggregateSpec) -> TableMechanism:
    """The certified mechanism with the least error that meets the target, or the safest with that error."""
    nodes, weights = spec.density.quadrature(np.array([-1.0, 1.0]))
    input_variance = float(weights @ nodes**2)
    update = spec.update
    if spec.mse is not None:
        shape, _ = best_shape(spec.levels, spec.mse, input_variance, spec.num_honest, update.rate)
        table = aggregate_table(shape, spec.mse, input_variance)
    else:
        left = spec.run_delta - spec.rounds * update.charge
        if left <= 0.0:
            raise InfeasibleDesignError(
                f"run_delta: {spec.run_delta:g} is not above the {spec.rounds * update.charge:.2g} that the "
                f"certificate of {spec.dimension} coordinates and {spec.rounds} rounds takes; raise it"
            )
        allowed = gaussian_separation((spec.run_epsilon or 0.0) * (1.0 - _GRID_ROOM), left)
        separation = allowed / math.sqrt(spec.rounds) / update.widened
        table = least_error_table(spec.levels, separation, input_variance, spec.num_honest, update.rate)
    return TableMechanism("optm_aggregate", table, table.epsilon, spec.parameters())
