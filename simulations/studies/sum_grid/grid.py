"""Mechanisms for secure sums on a grid of settings: error and travelling bits of certified plans.

All clients hold the same rotated update at the norm bound, and all mechanisms have an equal (epsilon, delta)
of the whole run in the aggregate view. Errors are relative to that of a central Gaussian, at unit gain
(:mod:`fl_privquant.optimize.sums.coordinate_clip`): signal that a clip removes counts as additional noise.
Bits are those
that a client sends for a coordinate through secure aggregation. The plan of ``rounded_gaussian`` chooses
them; the others round to several numbers of levels, and each plan chooses its clip.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pandas as pd

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.registry import default_mechanisms
from simulations.studies._pages import Compute, compute_rows

ROUNDS, DELTA = 50, 1e-5
DIMENSIONS, CLIENTS, EPSILONS = (650, 7850, 1_000_000), (50, 100, 1000, 10_000), (1.0, 4.0, 10.0)
OURS = default_mechanisms(in_sum=True)[0]
PEERS = ("pbm", "discrete_gaussian", "skellam")
CODE_BITS = (1, 2, 3, 4, 5)
"""Peers round a coordinate to 2^bits levels, before noise is added."""


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
    wanted = [(OURS, None), *itertools.product(PEERS, code_bits)]
    cells = itertools.starmap(lambda name, bits: _plan_cell(setting, name, bits), wanted)
    return [cell for cell in cells if cell is not None]


def _plan_cell(setting: Setting, mechanism: str, bits: int | None) -> Cell | None:
    target = pq.Target(setting.run_epsilon, setting.rounds, setting.num_clients, DELTA)
    lattice: dict[str, Any] = {} if bits is None else {"levels": 2**bits, "max_bits": bits}
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


def cell_rows(dimension: int, num_clients: int, run_epsilon: float) -> list[dict[str, Any]]:
    """The rows of one setting."""
    return list(map(asdict, plan_cells(Setting(dimension, num_clients, run_epsilon))))


def _compute_grid(dimension: int, num_clients: int) -> pd.DataFrame:
    return compute_rows(cell_rows, [(dimension, num_clients, epsilon) for epsilon in EPSILONS])


PARTS: dict[str, Compute] = {
    f"sums-{dimension}-{num_clients}": partial(_compute_grid, dimension, num_clients)
    for dimension, num_clients in itertools.product(DIMENSIONS, CLIENTS)
}
"""By name, the functions that compute the tables: one for each number of coordinates and of clients."""
