"""Mean estimation by secure sums: only the sum over all clients is seen, and one round is counted.

Cells are those of the study of secure sums (:mod:`simulations.studies.sum_grid.grid`), for one round:
rotated vectors at the norm bound, certified plans, the bias of the clip included.
There errors are ratios to that of a central Gaussian; here they are multiplied by it.

``csgm`` has a table of its own. Its distribution is a mixture of two mirrored rows, so that the mean square
of a decoded code is the same for all inputs: v + 1, v being the variance at an end of [-1, 1]. Counted as
normal noise, a sum needs v to be the noise of a central Gaussian, whatever the levels and the share of
coordinates that are sampled: by that count three levels are as good as more. That v is where the search
begins; noise is added until the accountant certifies the target.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtri

from fl_privquant.accounting import RunRequirements, UpdateNorms
from fl_privquant.mechanisms.additive.gaussian import analytic_sigma
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.tables.csgm import CsgmSpec, csgm_distribution, design_csgm
from fl_privquant.optimize.sums.coordinate_clip import rescale_to_unit_gain
from fl_privquant.planning import run_statement
from fl_privquant.privacy_loss.additive.gaussian import gaussian_separation
from simulations.studies._pages import Compute, compute_rows
from simulations.studies.mean_estimation.local import CLIENTS, DELTA, DIMENSIONS, EPSILONS
from simulations.studies.sum_grid.grid import Cell, Setting, plan_cells

NORMAL = ndtri((np.arange(20_001) + 0.5) / 20_001)
"""A standard normal number, as samples."""

SAMPLED = "secure-csgm"
"""The table of the coordinate-sampled Gaussian mechanism, all settings."""

# The search for the least noise: steps at most, their factors, and how close is close enough.
_MAX_STEPS, _GROWTH, _LEAP, _CLOSE = 12, 1.5, 4.0, 1.04
_MIN_VARIANCE = 1e-3
_MIN_VARIANCE_FOR_HALF = 1.5
_LEVELS = 3


def central_error(num_clients: int, dimension: int, epsilon: float) -> float:
    """Squared error of the mean when a trusted server adds the least normal noise to it."""
    return float(dimension * analytic_sigma(2.0 / num_clients, epsilon, DELTA) ** 2)


def _cell_to_row(cell: Cell) -> dict[str, object]:
    central = central_error(cell.num_clients, cell.dimension, cell.run_epsilon)
    return {
        "num_clients": cell.num_clients,
        "dimension": cell.dimension,
        "round_epsilon": cell.run_epsilon,
        "mechanism": cell.mechanism,
        "bits_in_sum": cell.bits_in_sum,
        "levels": cell.levels,
        "ratio_to_central": cell.ratio_to_central,
        "error": cell.ratio_to_central * central,
    }


def secure_rows(num_clients: int, dimension: int, epsilon: float) -> list[dict[str, object]]:
    """The rows of one setting."""
    return list(map(_cell_to_row, plan_cells(Setting(dimension, num_clients, epsilon, rounds=1))))


def _compute_secure(num_clients: int, dimension: int) -> pd.DataFrame:
    return compute_rows(secure_rows, [(num_clients, dimension, epsilon) for epsilon in EPSILONS])


def sampled_cell(setting: Setting) -> Cell | None:
    """The coordinate-sampled Gaussian mechanism with three levels; None where none that was tried will do."""
    separation = gaussian_separation(setting.run_epsilon, DELTA)
    needed = 4.0 * setting.dimension / (setting.num_clients * separation**2)

    def error(spread: float) -> float:
        return rescale_to_unit_gain(needed + spread**2 - 1.0, spread, setting.num_clients)

    spread = float(minimize_scalar(error, bounds=(0.5, 6.0), method="bounded").x)
    sizes = (setting.num_clients, setting.dimension, setting.rounds)
    norms = UpdateNorms(l2=math.sqrt(setting.dimension) / spread)
    requirements = RunRequirements(*sizes, setting.run_epsilon, DELTA, norms=norms)
    low, high = _MIN_VARIANCE, math.inf
    tried, best = max(needed / spread**2, _MIN_VARIANCE), None
    for _ in range(_MAX_STEPS):
        mechanism = _design_with_variance(tried)
        reached = run_statement(requirements, mechanism).epsilon
        if reached <= setting.run_epsilon:
            high, best = tried, (mechanism, reached)
        else:
            low = tried
        if high <= _CLOSE * low:
            break
        if math.isinf(high):
            tried = (_LEAP if math.isinf(reached) else _GROWTH) * low
        else:
            tried = math.sqrt(low * high)
    if best is None:
        return None
    mechanism, reached = best
    noise = spread**2 * mechanism.mse(np.clip(NORMAL / spread, -1.0, 1.0))
    central = central_error(*sizes[:2], setting.run_epsilon) * setting.num_clients
    return Cell(
        setting.dimension,
        setting.num_clients,
        setting.run_epsilon,
        "csgm",
        _LEVELS,
        mechanism.sum_ring(*sizes[:2]).bits,
        round(spread, 3),
        rescale_to_unit_gain(noise, spread, setting.num_clients) / central,
        reached,
    )


def _design_with_variance(variance: float) -> Mechanism:
    """The mechanism whose decoded codes have that variance at the ends."""
    # Sampling half of the coordinates adds noise too, which must not exceed what is needed.
    share = 0.5 if variance >= _MIN_VARIANCE_FOR_HALF else 1.0
    return design_csgm(CsgmSpec(levels=_LEVELS, share=share, noise=_solve_noise(variance, share)))


def _solve_noise(variance: float, share: float) -> float:
    """The noise of three levels with which a decoded code has that variance at the ends of [-1, 1]."""

    def excess(logarithm: float) -> float:
        distribution = csgm_distribution(1, share, math.exp(logarithm))
        return math.log(float(distribution.end_rows[-1] @ distribution.values**2) - 1.0) - math.log(variance)

    low, high = math.log(0.15), math.log(9e3)
    return math.exp(low if excess(low) >= 0.0 else brentq(excess, low, high, xtol=1e-6))


def _sampled_row(num_clients: int, dimension: int, epsilon: float) -> dict[str, object] | None:
    cell = sampled_cell(Setting(dimension, num_clients, epsilon, rounds=1))
    return None if cell is None else _cell_to_row(cell)


SECURE: dict[str, Compute] = {
    f"secure-{num_clients}-{dimension}": partial(_compute_secure, num_clients, dimension)
    for num_clients, dimension in itertools.product(CLIENTS, DIMENSIONS)
}
"""By name, the functions that compute the tables: one for each number of clients and of coordinates."""

PARTS = SECURE | {
    SAMPLED: lambda: compute_rows(_sampled_row, itertools.product(CLIENTS, DIMENSIONS, EPSILONS))
}
