"""Mean estimation by secure sums: only the sum over all clients is seen, and one round is counted.

Cells are those of the study of secure sums (:mod:`simulations.studies.sum_grid.grid`), for one round:
rotated vectors at the norm bound, certified plans, the bias of the clip included.
There errors are ratios to that of a central Gaussian; here they are multiplied by it.

``csgm`` has a table of its own. Its law is a mixture of two mirrored rows, so that the mean square of a
decoded code is the same for all inputs: v + 1, v being the variance at an end of [-1, 1]. Counted as normal
noise, a sum needs v to be the noise of a central Gaussian, whatever the levels and the share of coordinates
that are sampled: by that count three levels are as good as more. That v is where the search begins; noise is
added until the accountant certifies the target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtri

from fl_privquant.accounting import Norms, Wish, run_statement
from fl_privquant.design.spread import at_unit_gain
from fl_privquant.loss.normal import gaussian_separation
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.csgm import CsgmSpec, csgm_law, design_csgm
from fl_privquant.mechanisms.gaussian import analytic_sigma
from simulations.studies.mean_estimation.local import CLIENTS, DELTA, DIMENSIONS, EPSILONS
from simulations.studies.study import Grid
from simulations.studies.sum_grid.grid import Cell, Setting, cells_of

NORMAL = ndtri((np.arange(20_001) + 0.5) / 20_001)
"""A standard normal number, as samples."""

SAMPLED = "secure-csgm"
"""The table of the coordinate-sampled Gaussian mechanism, all settings."""

# The search for the least noise: steps at most, their factors, and how close is close enough.
_MOST_TRIED, _GROWTH, _LEAP, _CLOSE = 12, 1.5, 4.0, 1.04
_LEAST_VARIANCE = 1e-3
_LEAST_FOR_HALF = 1.5
_LEVELS = 3


def central_error(num_clients: int, dimension: int, epsilon: float) -> float:
    """Squared error of the mean when a trusted server adds the least normal noise to it."""
    return float(dimension * analytic_sigma(2.0 / num_clients, epsilon, DELTA) ** 2)


def _record(cell: Cell) -> dict[str, object]:
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


def secure_name(num_clients: int, dimension: int) -> str:
    """The part, and the table, of a number of clients and of coordinates."""
    return f"secure-{num_clients}-{dimension}"


def _secure_rows(num_clients: int, dimension: int, epsilon: float) -> Iterator[dict[str, object]]:
    return map(_record, cells_of(Setting(dimension, num_clients, epsilon, rounds=1)))


def _secure(num_clients: int, dimension: int) -> Grid:
    return Grid(
        name=secure_name(num_clients, dimension),
        title=f"Secure sum of {num_clients} clients, {dimension} coordinates: squared error of the mean",
        cells=lambda scale: [(num_clients, dimension, epsilon) for epsilon in EPSILONS],
        rows=_secure_rows,
        note=_NOTE,
    )


def sampled_cell(setting: Setting) -> Cell | None:
    """The coordinate-sampled Gaussian mechanism with three levels; None where none that was tried will do."""
    separation = gaussian_separation(setting.run_epsilon, DELTA)
    needed = 4.0 * setting.dimension / (setting.num_clients * separation**2)

    def error(spread: float) -> float:
        return at_unit_gain(needed + spread**2 - 1.0, spread, setting.num_clients)

    spread = float(minimize_scalar(error, bounds=(0.5, 6.0), method="bounded").x)
    sizes = (setting.num_clients, setting.dimension, setting.rounds)
    norms = Norms(l2=math.sqrt(setting.dimension) / spread)
    wish = Wish(*sizes, setting.run_epsilon, DELTA, norms=norms)
    low, high = _LEAST_VARIANCE, math.inf
    tried, best = max(needed / spread**2, _LEAST_VARIANCE), None
    for _ in range(_MOST_TRIED):
        mechanism = _sampled_at(tried)
        reached = run_statement(wish, mechanism).epsilon
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
        at_unit_gain(noise, spread, setting.num_clients) / central,
        reached,
    )


def _sampled_at(variance: float) -> Mechanism:
    """The mechanism whose decoded codes have that variance at the ends."""
    # Sampling half of the coordinates adds noise too, which must not exceed what is needed.
    share = 0.5 if variance >= _LEAST_FOR_HALF else 1.0
    return design_csgm(CsgmSpec(levels=_LEVELS, share=share, noise=_noise_for(variance, share)))


def _noise_for(variance: float, share: float) -> float:
    """The noise of three levels with which a decoded code has that variance at the ends of [-1, 1]."""

    def excess(logarithm: float) -> float:
        law = csgm_law(1, share, math.exp(logarithm))
        return math.log(float(law.end_rows[-1] @ law.values**2) - 1.0) - math.log(variance)

    low, high = math.log(0.15), math.log(9e3)
    return math.exp(low if excess(low) >= 0.0 else brentq(excess, low, high, xtol=1e-6))


def _sampled_row(num_clients: int, dimension: int, epsilon: float) -> dict[str, object] | None:
    cell = sampled_cell(Setting(dimension, num_clients, epsilon, rounds=1))
    return None if cell is None else _record(cell)


_NOTE = f"round epsilon: one update, one round, aggregate view of all clients, δ = {DELTA:g}"
PARTS = (
    *itertools.starmap(_secure, itertools.product(CLIENTS, DIMENSIONS)),
    Grid(
        name=SAMPLED,
        title="Secure sums of the coordinate-sampled Gaussian mechanism",
        cells=lambda scale: itertools.product(CLIENTS, DIMENSIONS, EPSILONS),
        rows=_sampled_row,
        note=_NOTE,
    ),
)
