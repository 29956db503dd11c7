"""Mean estimation by secure sums: only the sum over all clients is seen, and one round is counted.

Cells are those of the study of secure sums (:mod:`simulations.studies.sum_grid.grid`), for one round:
rotated vectors at the norm bound, each mechanism at its own best clip and lattice, the bias of the clip
included. Errors are ratios to a central Gaussian's there; here they are multiplied by it.
"""

from __future__ import annotations

import itertools

import pandas as pd

from fl_privquant.mechanisms.gaussian import analytic_sigma
from simulations.studies.mean_estimation.local import CLIENTS, DELTA, DIMENSIONS, EPSILONS
from simulations.studies.study import Computed, Scale, Tables, Tell
from simulations.studies.sum_grid.grid import Cell, Setting, cells_of

__all__ = ["PARTS", "WIDTHS", "central_error", "secure_name"]

WIDTHS = (2, 8)
"""Bits of a client's codes before they are masked, noise included."""


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
        "code_bits": cell.bits,
        "levels": cell.levels,
        "certified": cell.certified,
        "ratio_to_central": cell.ratio_to_central,
        "error": cell.ratio_to_central * central,
    }


def secure_name(num_clients: int, dimension: int) -> str:
    """The part, and the table, of a number of clients and of coordinates."""
    return f"secure-{num_clients}-{dimension}"


def _secure(num_clients: int, dimension: int) -> Computed:
    name = secure_name(num_clients, dimension)

    def compute(scale: Scale, tell: Tell) -> Tables:
        records = []
        for place, epsilon in enumerate(EPSILONS):
            tell(place / len(EPSILONS), f"budget {place + 1} of {len(EPSILONS)}")
            setting = Setting(dimension, num_clients, epsilon, rounds=1)
            records += [_record(cell) for cell in cells_of(setting, WIDTHS)]
        return {name: pd.DataFrame(records)}

    title = f"Secure sum of {num_clients} clients, {dimension} coordinates: squared error of the mean"
    note = f"round epsilon: one update, one round, aggregate view of all clients, δ = {DELTA:g}"
    return Computed(name=name, title=title, function=compute, note=note)


PARTS = tuple(itertools.starmap(_secure, itertools.product(CLIENTS, DIMENSIONS)))
