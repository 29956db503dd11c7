"""Mechanisms for secure sums on a grid of settings: error and travelling bits of certified plans.

All clients hold the same rotated update at the norm bound, and all mechanisms have an equal (epsilon, delta)
of the whole run in the aggregate view. Errors are relative to that of a central Gaussian, at unit gain
(:mod:`fl_privquant.optimize.sums.coordinate_clip`): signal that a clip removes counts as additional noise.
Bits are those
that a client sends for a coordinate through secure aggregation. The plan of ``rounded_gaussian`` chooses
them; the others round to several numbers of levels, and each plan chooses its clip. One more table has the
fewest levels with which each mechanism comes close to the central Gaussian, and the bits that these take.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

import fl_privquant as pq
from fl_privquant.accounting import RunRequirements, SecureSum
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms import Mechanism
from fl_privquant.mechanisms.registry import default_mechanisms
from fl_privquant.mechanisms.tables.pbm import theta_of_normal_noise
from fl_privquant.optimize.sums.coordinate_clip import rescale_to_unit_gain
from simulations.runner.central import calibrate_sum_noise
from simulations.studies._pages import Compute, compute_rows

ROUNDS, DELTA = 50, 1e-5
DIMENSIONS, CLIENTS, EPSILONS = (650, 7850, 1_000_000), (50, 100, 1000, 10_000), (1.0, 4.0, 10.0)
OURS = default_mechanisms(in_sum=True)[0]
PEERS = ("pbm", "discrete_gaussian", "skellam")
CODE_BITS = (1, 2, 3, 4, 5)
"""Peers round a coordinate to 2^bits levels, before noise is added."""
ALLOWED = 1.01
"""Largest error over the central Gaussian's, where mechanisms are compared by the bits that they send."""

# The noise of Skellam on more levels is too wide to be listed at the smallest epsilon.
_MAX_LEVELS = 48
# Clips of the Poisson binomial mechanism that are tried, in standard deviations of a coordinate.
_SPREADS = tuple(np.arange(2.0, 5.0, 0.1).tolist())
# A standard normal number, as samples.
_NORMAL = norm.ppf((np.arange(20_001) + 0.5) / 20_001)


@dataclass(frozen=True)
class Setting:
    """The sizes and the budget of a run."""

    dimension: int
    num_clients: int
    run_epsilon: float
    rounds: int = ROUNDS


@dataclass(frozen=True)
class Cell:
    """One certified plan: what a client sends, and the error over the central Gaussian's.

    ``levels`` is not a number for mechanisms that have none.
    """

    dimension: int
    num_clients: int
    run_epsilon: float
    mechanism: str
    levels: float
    bits_in_sum: int
    spread: float
    ratio_to_central: float
    epsilon_reached: float


def plan_cells(setting: Setting, code_bits: tuple[int, ...] = CODE_BITS) -> list[Cell]:
    """All plans that are certified in one setting, ours first."""
    wanted = [(OURS, None), *((peer, 2**bits) for peer in PEERS for bits in code_bits)]
    cells = [plan_cell(setting, name, levels) for name, levels in wanted]
    return [cell for cell in cells if cell is not None]


def plan_cell(setting: Setting, mechanism: str, levels: int | None) -> Cell | None:
    """The certified plan of a mechanism that rounds to so many levels, or chooses them; None if none is."""
    target = pq.Target(setting.run_epsilon, setting.rounds, setting.num_clients, DELTA)
    # Otherwise integer noise would choose its own number of lattice points.
    lattice: dict[str, Any] = (
        {} if levels is None else {"levels": levels, "max_bits": math.ceil(math.log2(levels))}
    )
    try:
        plan = target.plan(
            setting.dimension,
            # In standard deviations of a coordinate.
            math.sqrt(setting.dimension),
            mechanism=mechanism,
            aggregation=SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0),
            force=True,
            **lattice,
        )
    except InfeasibleDesignError:
        return None
    return Cell(
        setting.dimension,
        setting.num_clients,
        setting.run_epsilon,
        mechanism,
        lattice.get("levels", math.nan),
        plan.encoding.mechanism.sum_ring(setting.num_clients, setting.dimension).bits,
        round(plan.encoding.clip, 3),
        plan.ratio_to_central or math.nan,
        plan.statement.epsilon,
    )


def favored_bits_cell(setting: Setting, levels: int) -> Cell:
    """The Poisson binomial mechanism at its best clip, if the sum of its bits were normal.

    No count of its bits can be smaller than that of normal noise of the same variance, so that this is to
    its advantage; it is no certificate.
    """
    clients, dimension = setting.num_clients, setting.dimension
    run = RunRequirements(clients, dimension, setting.rounds, setting.run_epsilon, DELTA)
    deviation = calibrate_sum_noise(math.sqrt(dimension), setting.rounds, setting.run_epsilon, DELTA)

    def at(spread: float) -> tuple[float, Mechanism]:
        theta = theta_of_normal_noise(run, math.sqrt(dimension) / spread, levels - 1)
        mechanism = pq.design("pbm", levels=levels, theta=theta)
        error = spread**2 * mechanism.mse(np.clip(_NORMAL / spread, -1.0, 1.0))
        return rescale_to_unit_gain(error, spread, clients) * clients / deviation**2, mechanism

    spread = min(_SPREADS, key=lambda spread: at(spread)[0])
    ratio, mechanism = at(spread)
    bits = mechanism.sum_ring(clients, dimension).bits
    epsilon = setting.run_epsilon
    return Cell(dimension, clients, epsilon, "pbm", levels, bits, round(spread, 3), ratio, epsilon)


def equal_error_row(num_clients: int, run_epsilon: float, mechanism: str) -> dict[str, Any] | None:
    """The row with the fewest levels whose error is at most :data:`ALLOWED` times the central Gaussian's.

    The more levels, the less error and the more bits: bisection finds them. None if the most levels are not
    enough. The Poisson binomial mechanism is counted to its advantage: by a privacy blanket, with which its
    plans are certified, it would hardly ever come as close.
    """
    setting = Setting(7850, num_clients, run_epsilon)

    def close_cell(levels: int | None) -> Cell | None:
        if mechanism == "pbm" and levels is not None:
            cell: Cell | None = favored_bits_cell(setting, levels)
        else:
            cell = plan_cell(setting, mechanism, levels)
        return cell if cell is not None and cell.ratio_to_central <= ALLOWED else None

    best = close_cell(None if mechanism == OURS else _MAX_LEVELS)
    too_few = 1
    while best is not None and best.levels - too_few > 1:
        middle = max(too_few + 1, math.isqrt(too_few * int(best.levels)))
        closer = close_cell(middle)
        too_few, best = (middle, best) if closer is None else (too_few, closer)
    return None if best is None else asdict(best)


def _rounds_row(dimension: int, rounds: int, run_epsilon: float) -> dict[str, Any] | None:
    cell = plan_cell(Setting(dimension, 100, run_epsilon, rounds), OURS, None)
    return None if cell is None else {"rounds": rounds, **asdict(cell)}


def cell_rows(dimension: int, num_clients: int, run_epsilon: float) -> list[dict[str, Any]]:
    """The rows of one setting."""
    return list(map(asdict, plan_cells(Setting(dimension, num_clients, run_epsilon))))


def _compute_grid(dimension: int, num_clients: int) -> pd.DataFrame:
    return compute_rows(cell_rows, [(dimension, num_clients, epsilon) for epsilon in EPSILONS])


GRID: dict[str, Compute] = {
    f"sums-{dimension}-{num_clients}": partial(_compute_grid, dimension, num_clients)
    for dimension, num_clients in itertools.product(DIMENSIONS, CLIENTS)
}
"""By name, the functions that compute the grid: one for each number of coordinates and of clients."""

PARTS: dict[str, Compute] = GRID | {
    "equal_error": lambda: compute_rows(
        equal_error_row, itertools.product((100, 1000), EPSILONS, (OURS, *PEERS))
    ),
    "by_rounds": lambda: compute_rows(_rounds_row, itertools.product(DIMENSIONS[:2], (10, 20, 50), EPSILONS)),
}
"""By name, the functions that compute all tables."""
