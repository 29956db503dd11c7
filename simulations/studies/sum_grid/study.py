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
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.registry import default_mechanisms
from fl_privquant.plotting import color_of, import_pyplot
from fl_privquant.statement import PrivacyStatement, StatedView, Unit, ViewKind
from simulations.studies._pages import Compute, ReadTable, compute_rows, join_tables

ROUNDS, DELTA = 50, 1e-5
DIMENSIONS, CLIENTS, EPSILONS = (650, 7850, 1_000_000), (50, 100, 1000, 10_000), (1.0, 4.0, 10.0)
OURS = default_mechanisms(in_sum=True)[0]
PEERS = ("pbm", "discrete_gaussian", "skellam")
OTHERS: dict[str, int | None] = {
    "csgm": 3,
    "one_bit": None,
    "optm": 4,
    "rqm": 4,
    "erm": 4,
    "grr": 2,
}
"""Further mechanisms for 7850 coordinates, and their numbers of levels."""
CODE_BITS = (1, 2, 3, 4, 5)
"""Peers round a coordinate to 2^bits levels, before noise is added."""
ALLOWED = 1.01
"""Largest error over the central Gaussian's, where mechanisms are compared by the bits that they send."""

_SETTING = ["dimension", "num_clients", "run_epsilon"]


@dataclass(frozen=True)
class Setting:
    """The sizes and the budget of a run."""

    dimension: int
    num_clients: int
    run_epsilon: float
    rounds: int = ROUNDS


def plan_cells(setting: Setting, code_bits: tuple[int, ...] = CODE_BITS) -> list[dict[str, Any]]:
    """All plans that are certified in one setting, ours first."""
    wanted = [(OURS, None), *((peer, 2**bits) for peer in PEERS for bits in code_bits)]
    cells = [plan_cell(setting, name, levels) for name, levels in wanted]
    return [cell for cell in cells if cell is not None]


def plan_cell(setting: Setting, mechanism: str, levels: int | None) -> dict[str, Any] | None:
    """The row of the certified plan of a mechanism; None if no plan is certified.

    The mechanism rounds to so many levels, or chooses them.
    """
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
    return {
        "dimension": setting.dimension,
        "num_clients": setting.num_clients,
        "run_epsilon": setting.run_epsilon,
        "mechanism": mechanism,
        "levels": lattice.get("levels", math.nan),
        "bits_in_sum": plan.encoding.mechanism.sum_ring(setting.num_clients, setting.dimension).bits,
        "spread": round(plan.encoding.clip, 3),
        "ratio_to_central": plan.ratio_to_central or math.nan,
        "epsilon_reached": plan.statement.epsilon,
    }


def _others_row(num_clients: int, run_epsilon: float, mechanism: str) -> dict[str, Any] | None:
    return plan_cell(Setting(7850, num_clients, run_epsilon), mechanism, OTHERS[mechanism])


def cell_rows(dimension: int, num_clients: int, run_epsilon: float) -> list[dict[str, Any]]:
    """The rows of one setting."""
    return plan_cells(Setting(dimension, num_clients, run_epsilon))


def _compute_grid(dimension: int, num_clients: int) -> pd.DataFrame:
    return compute_rows(cell_rows, [(dimension, num_clients, epsilon) for epsilon in EPSILONS])


GRID: dict[str, Compute] = {
    f"sums-{dimension}-{num_clients}": partial(_compute_grid, dimension, num_clients)
    for dimension, num_clients in itertools.product(DIMENSIONS, CLIENTS)
}
"""By name, the functions that compute the grid: one for each number of coordinates and of clients."""

PARTS: dict[str, Compute] = GRID | {
    "sums-others": lambda: compute_rows(_others_row, itertools.product((100, 1000), EPSILONS, OTHERS)),
}
"""By name, the functions that compute all tables."""


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    cells = join_tables(read, GRID)
    return {
        "rounds": ROUNDS,
        "delta": DELTA,
        "ours_name": OURS,
        "peers": PEERS,
        "close": ALLOWED,
        "ours": cells[cells["mechanism"] == OURS],
        "in_as_many_bits": partial(best_in_as_many_bits, cells),
        "least": lambda ours, peer: next(peer_rows(cells, ours, peer).itertuples(), None),
        "others": read("sums-others").groupby("mechanism", sort=False),
    }


def peer_rows(cells: pd.DataFrame, ours: Any, peer: str) -> pd.DataFrame:
    """The cells of a peer in the setting of one of ours, the one of least error first."""
    same = (cells[_SETTING] == [getattr(ours, key) for key in _SETTING]).all(axis=1)
    rows = cells[same & (cells["mechanism"] == peer)]
    return rows.sort_values(["ratio_to_central", "bits_in_sum"])


def best_in_as_many_bits(cells: pd.DataFrame, ours: Any, peer: str) -> Any | None:
    """The cell of least error of a peer that sends no more bits than ours; None if it needs more."""
    rows = peer_rows(cells, ours, peer)
    return next(rows[rows["bits_in_sum"] <= ours.bits_in_sum].itertuples(), None)


_STYLES = {1.0: ":", 4.0: "--", 10.0: "-"}


def _draw_errors(read: ReadTable) -> Any:
    """Errors against bits: a row of panels for each number of coordinates, a column for each of clients."""
    cells = join_tables(read, GRID)
    sizes = (len(DIMENSIONS), len(CLIENTS))
    figure, axes = import_pyplot().subplots(
        *sizes, figsize=(11.0, 7.6), sharex=True, sharey=True, layout="constrained"
    )
    for row, dimension in zip(axes, DIMENSIONS, strict=True):
        for axis, num_clients in zip(row, CLIENTS, strict=True):
            here = cells[(cells["dimension"] == dimension) & (cells["num_clients"] == num_clients)]
            _draw(axis, here)
            axis.set_title(f"{dimension:,} coordinates, {num_clients:,} clients")
    for axis in axes[-1]:
        axis.set_xlabel("bits that a client sends for a coordinate")
    for row in axes:
        row[0].set_ylabel("error over the central\nGaussian's, less 1")
    _draw_legend(figure)
    return figure


def _draw(axis: Any, cells: pd.DataFrame) -> None:
    for mechanism in (OURS, *PEERS):
        for run_epsilon in EPSILONS:
            rows = cells[(cells["mechanism"] == mechanism) & (cells["run_epsilon"] == run_epsilon)]
            rows = rows[rows["ratio_to_central"] < 3.0].sort_values("bits_in_sum")
            axis.plot(
                rows["bits_in_sum"],
                rows["ratio_to_central"] - 1.0,
                _STYLES[run_epsilon],
                marker=".",
                color=color_of(mechanism),
            )
    axis.set(yscale="log", ylim=(1e-4, 2.0), xticks=range(6, 22, 2))


def _draw_legend(figure: Any) -> None:
    lines = import_pyplot().Line2D
    handles = [lines([], [], color=color_of(name), marker=".", label=name) for name in (OURS, *PEERS)]
    handles += [
        lines(
            [],
            [],
            color="#777777",
            linestyle=style,
            label=PrivacyStatement(run_epsilon, DELTA, Unit.TOTAL, StatedView(ViewKind.AGGREGATE)).brief,
        )
        for run_epsilon, style in _STYLES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


FIGURES = {"errors": _draw_errors}
"""By name, the functions that draw the figures of the page."""
