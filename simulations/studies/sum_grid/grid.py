"""Mechanisms for secure sums on a grid of settings: error and travelling bits of certified plans.

All clients hold the same rotated update at the norm bound, and all mechanisms have an equal (epsilon, delta)
of the whole run in the aggregate view. Errors are relative to that of a central Gaussian, at unit gain
(:mod:`fl_privquant.design.spread`): signal that a clip removes counts as additional noise. Bits are those
that a client sends for a coordinate through secure aggregation. The plan of ``rounded_gaussian`` chooses
them; the others round to several numbers of levels, and each plan chooses its clip.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.registry import planned_mechanisms
from simulations.studies.study import Grid

ROUNDS, DELTA = 50, 1e-5
DIMENSIONS, CLIENTS, EPSILONS = (650, 7850, 1_000_000), (50, 100, 1000, 10_000), (1.0, 4.0, 10.0)
OURS = planned_mechanisms(in_sum=True)[0]
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


def cells_of(setting: Setting, code_bits: tuple[int, ...] = CODE_BITS) -> list[Cell]:
    """All plans that are certified in one setting, ours first."""
    wanted = [(OURS, None), *itertools.product(PEERS, code_bits)]
    cells = itertools.starmap(lambda name, bits: _planned(setting, name, bits), wanted)
    return [cell for cell in cells if cell is not None]


def _planned(setting: Setting, mechanism: str, bits: int | None) -> Cell | None:
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


def _rows(*setting: Any) -> Iterator[dict[str, Any]]:
    return map(asdict, cells_of(Setting(*setting)))


def grid_name(dimension: int, num_clients: int) -> str:
    """The part, and the table, of a number of coordinates and of clients."""
    return f"sums-{dimension}-{num_clients}"


def _grid(dimension: int, num_clients: int) -> Grid:
    return Grid(
        name=grid_name(dimension, num_clients),
        title=f"Errors over a central Gaussian's, {dimension} coordinates, {num_clients} clients",
        cells=lambda scale: [(dimension, num_clients, epsilon) for epsilon in EPSILONS],
        rows=_rows,
        note=f"run epsilon, epsilon reached: client total, {ROUNDS} rounds, aggregate view of all clients, "
        f"δ = {DELTA:g}; spread: coordinate clip in standard deviations of a coordinate",
    )


PARTS = tuple(itertools.starmap(_grid, itertools.product(DIMENSIONS, CLIENTS)))
