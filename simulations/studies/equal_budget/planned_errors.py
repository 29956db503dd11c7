"""The exact part: errors of mechanisms in the secure sum, relative to that of a central Gaussian.

All clients hold the same rotated update at the norm bound, and all mechanisms have an equal (epsilon, delta)
of the whole run in the aggregate view. Errors are at unit gain
(:mod:`fl_privquant.optimize.sums.coordinate_clip`): noise and
what the clip distorts, divided by the squared share of the signal that the clip leaves. Every design is
certified on what is sampled, and counted by the accountant, except that of the Poisson binomial mechanism in
the comparison of bits (:func:`favored_bits_row`).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy.stats import norm

from fl_privquant.accounting import SecureSum
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms import Mechanism, default_mechanisms, design
from fl_privquant.mechanisms.tables.pbm import theta_of_normal_noise
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.optimize.sums.coordinate_clip import rescale_to_unit_gain
from fl_privquant.planning import Target
from simulations.runner.central import calibrate_sum_noise
from simulations.runner.mechanism_config import has_levels
from simulations.studies._pages import Compute, compute_rows

OURS = default_mechanisms(in_sum=True)[0]
PEERS = (OURS, "pbm", "discrete_gaussian", "skellam")
"""The mechanisms that are compared; the one that plans take by default is the first."""

ROUNDS = 50
"""Rounds of the run whose errors are compared."""

ALLOWED = 1.01
"""Largest error over the central Gaussian's, where mechanisms are compared by the bits that they send."""

_DELTA, _DIMENSION = 1e-5, 7850
# The noise of Skellam on more levels is too wide to be listed at the smallest epsilon.
_MAX_LEVELS = 48
_CLIENTS, _EPSILONS, _BITS = (100, 1000), (1.0, 4.0, 10.0), (1, 2, 3)
# Sizes of the models that are trained; rounds of a short, a medium and a long run.
_DIMENSIONS, _SOME_ROUNDS = (650, 7850), (10, 20, 50)
# Clips of the Poisson binomial mechanism that are tried, in standard deviations of a coordinate.
_SPREADS = tuple(np.arange(2.0, 5.0, 0.1).tolist())
# A standard normal number, as samples.
_NORMAL = norm.ppf((np.arange(20_001) + 0.5) / 20_001)


def error_row(
    mechanism: str,
    dimension: int,
    num_clients: int,
    run_epsilon: float,
    levels: int | None,
    rounds: int = ROUNDS,
    delta: float = _DELTA,
) -> dict[str, Any] | None:
    """One row: the design, what it costs, and its error over the central Gaussian's; None if there is none.

    Coordinates are rounded to at most this number of levels, before integer noise is added; None is for a
    mechanism whose plan chooses the width of its codes. Clips are chosen by the plan.
    """
    # In units of the standard deviation of a coordinate, the L2 clip is the root of the dimension.
    l2_clip = math.sqrt(dimension)
    target = Target(run_epsilon, rounds, num_clients, delta)
    # Otherwise integer noise would choose its own number of lattice points.
    lattice: dict[str, Any] = (
        {} if levels is None else {"levels": levels, "max_bits": _bits_of_levels(levels)}
    )
    try:
        plan = target.plan(
            dimension,
            l2_clip,
            mechanism=mechanism,
            aggregation=SecureSum(0.0, 0.0),
            force=True,
            **lattice,
        )
    except InfeasibleDesignError:
        return None
    spread, encoder = plan.encoding.clip, plan.encoding.mechanism
    inputs = np.clip(_NORMAL / spread, -1.0, 1.0)
    error = rescale_to_unit_gain(spread**2 * encoder.mse(inputs), spread, num_clients) / num_clients
    return {
        "num_clients": num_clients,
        "run_epsilon": run_epsilon,
        "mechanism": mechanism,
        "bits": math.ceil(encoder.bits_per_coordinate) if levels is None else _bits_of_levels(levels),
        "bits_in_sum": encoder.sum_ring(num_clients, dimension).bits,
        "spread": spread,
        "epsilon_reached": plan.statement.epsilon,
        "ratio_to_central": error / _central_error(dimension, num_clients, run_epsilon, rounds, delta),
        "counted_by": plan.statement.method,
    }


def favored_bits_row(
    dimension: int, num_clients: int, run_epsilon: float, levels: int, rounds: int = ROUNDS
) -> dict[str, Any]:
    """The row of the Poisson binomial mechanism if the sum of its bits were normal, at the best clip.

    No count of its bits can be smaller than that of normal noise of the same variance, so that this is to
    its advantage; it is no certificate.
    """
    run = RunRequirements(num_clients, dimension, rounds, run_epsilon, _DELTA)
    central = _central_error(dimension, num_clients, run_epsilon, rounds, _DELTA)

    def at(spread: float) -> tuple[float, Mechanism]:
        theta = theta_of_normal_noise(run, math.sqrt(dimension) / spread, levels - 1)
        mechanism = design("pbm", levels=levels, theta=theta)
        error = rescale_to_unit_gain(
            spread**2 * mechanism.mse(np.clip(_NORMAL / spread, -1.0, 1.0)), spread, num_clients
        )
        return error / num_clients / central, mechanism

    spread = min(_SPREADS, key=lambda spread: at(spread)[0])
    ratio, mechanism = at(spread)
    return {
        "num_clients": num_clients,
        "run_epsilon": run_epsilon,
        "mechanism": mechanism.name,
        "bits": _bits_of_levels(levels),
        "bits_in_sum": mechanism.sum_ring(num_clients, dimension).bits,
        "spread": spread,
        "epsilon_reached": run_epsilon,
        "ratio_to_central": ratio,
        "counted_by": "normal noise, not certified",
    }


def _bits_of_levels(levels: int) -> int:
    return math.ceil(math.log2(levels))


def _central_error(dimension: int, num_clients: int, run_epsilon: float, rounds: int, delta: float) -> float:
    return (calibrate_sum_noise(math.sqrt(dimension), rounds, run_epsilon, delta) / num_clients) ** 2


def _secure_sum_row(num_clients: int, run_epsilon: float, mechanism: str, bits: int) -> dict[str, Any] | None:
    if has_levels(mechanism):
        return error_row(mechanism, _DIMENSION, num_clients, run_epsilon, 2**bits)
    # One row is enough where the plan chooses the bits.
    return error_row(mechanism, _DIMENSION, num_clients, run_epsilon, None) if bits == _BITS[0] else None


def _equal_error_row(num_clients: int, run_epsilon: float, mechanism: str) -> dict[str, Any] | None:
    """The row with the fewest levels whose error is at most :data:`ALLOWED` times the central Gaussian's.

    The more levels, the less error and the more bits: bisection finds them. None if the most levels are not
    enough. The Poisson binomial mechanism is counted to its advantage: by a privacy blanket, with which its
    plans are certified, it would hardly ever come as close.
    """

    def row(levels: int) -> dict[str, Any] | None:
        if mechanism == "pbm":
            errors: dict[str, Any] | None = favored_bits_row(_DIMENSION, num_clients, run_epsilon, levels)
        else:
            errors = error_row(mechanism, _DIMENSION, num_clients, run_epsilon, levels)
        close = errors is not None and errors["ratio_to_central"] <= ALLOWED
        return {**errors, "levels": levels} if errors is not None and close else None

    if not has_levels(mechanism):
        errors = error_row(mechanism, _DIMENSION, num_clients, run_epsilon, None)
        return None if errors is None or errors["ratio_to_central"] > ALLOWED else errors
    too_few, enough = 1, _MAX_LEVELS
    best = row(enough)
    while best is not None and enough - too_few > 1:
        middle = max(too_few + 1, math.isqrt(too_few * enough))
        closer = row(middle)
        too_few, enough, best = (middle, enough, best) if closer is None else (too_few, middle, closer)
    return best


def _rounds_row(dimension: int, rounds: int, run_epsilon: float) -> dict[str, Any] | None:
    errors = error_row(OURS, dimension, _CLIENTS[0], run_epsilon, None, rounds)
    return None if errors is None else {"dimension": dimension, "rounds": rounds, **errors}


PARTS: dict[str, Compute] = {
    "secure_sum": lambda: compute_rows(_secure_sum_row, itertools.product(_CLIENTS, _EPSILONS, PEERS, _BITS)),
    "equal_error": lambda: compute_rows(_equal_error_row, itertools.product(_CLIENTS, _EPSILONS, PEERS)),
    "by_rounds": lambda: compute_rows(_rounds_row, itertools.product(_DIMENSIONS, _SOME_ROUNDS, _EPSILONS)),
}
"""By name, the functions that compute the tables."""
