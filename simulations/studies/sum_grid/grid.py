"""Every mechanism for secure sums at its own best, on a grid of settings.

All clients hold the same rotated update at the norm bound, and all mechanisms have an equal (epsilon, delta)
of the whole run in the aggregate view. Errors are relative to that of a central Gaussian, at unit gain
(:mod:`fl_privquant.design.spread`): signal that a clip removes counts as additional noise. Each mechanism
chooses its clip and uses codes of at most a given number of bits: these are the codes that a client masks,
noise included.

``optm_aggregate`` is designed, and so certified on what it samples; the accountant counts its run. The others
are first counted in their favour: the loss of the Poisson binomial mechanism is computed for two cases of the
other clients only, and integer noise is counted as normal noise, with the mean of its rounding
(:func:`fl_privquant.design.noise_lattice.best_lattice`). Where such a figure is clearly below that of
``optm_aggregate``, it is replaced by a certified one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtri

import fl_privquant as pq
from fl_privquant.accounting import Norms, Wish, run_statement
from fl_privquant.design.bits import numbers_of_trials
from fl_privquant.design.noise_lattice import best_lattice, certified_lattice
from fl_privquant.design.spread import RunTarget, at_unit_gain, best_spread, error_at_norm_bound
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.lattice import coarse_count
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.optm_aggregate import AggregateSpec
from fl_privquant.mechanisms.pbm import binomial_bits
from fl_privquant.sampling.discrete import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam
from simulations.studies.study import Grid

ROUNDS, DELTA = 50, 1e-5
DIMENSIONS, CLIENTS, EPSILONS = (650, 7850, 1_000_000), (50, 100, 1000, 10_000), (1.0, 4.0, 10.0)
OURS, BINOMIAL = "optm_aggregate", "pbm"
NOISES: dict[str, type[IntegerNoise]] = {
    "discrete_gaussian": DiscreteGaussian,
    "skellam": Skellam,
    "discrete_laplace": DiscreteLaplace,
}
WIDTHS, WIDEST = (1, 2, 3), 8
"""Bits of a code before masking, in all settings; and in those of the last part."""

WIDE_CLIENTS = (100, 1000)
"""Numbers of clients of the last part."""

WITHIN = 1.005
"""A mechanism is said to be as good as the best if its error is at most this many times the least error."""

TOLD_APART = 1.001
"""An uncertified figure is replaced by a certified one if ours is more than this many times as large."""

NORMAL = ndtri((np.arange(20_001) + 0.5) / 20_001)
"""A standard normal number, as samples."""


@dataclass(frozen=True)
class Setting:
    """The sizes and the budget of a run."""

    dimension: int
    num_clients: int
    run_epsilon: float
    rounds: int = ROUNDS

    @property
    def target(self) -> RunTarget:
        """What the run may cost; all clients are honest."""
        sizes = (self.dimension, self.num_clients, coarse_count(self.num_clients))
        return RunTarget(self.run_epsilon, DELTA, self.rounds, *sizes)


@dataclass(frozen=True)
class Cell:
    """One mechanism in one setting: its error over the central Gaussian's, and how it was counted.

    ``epsilon_reached`` is what the accountant states, where it was asked.
    """

    dimension: int
    num_clients: int
    run_epsilon: float
    bits: int
    mechanism: str
    levels: int
    spread: float
    ratio_to_central: float
    certified: bool
    epsilon_reached: float = math.nan


def cells_of(setting: Setting, widths: Iterable[int] = WIDTHS) -> list[Cell]:
    """All mechanisms in one setting, with codes of each of these widths in bits."""
    cells = []
    for bits in widths:
        ours = _ours(setting, bits)
        others = [_binomial(setting, bits)]
        others += [cell for name in NOISES if (cell := _noise(setting, bits, name)) is not None]
        cells.append(ours)
        for cell in others:
            leads = TOLD_APART * cell.ratio_to_central < ours.ratio_to_central
            cells.append(_certified(setting, cell) if leads else cell)
    return cells


def central_cell(setting: Setting, bits: int, name: str, levels: int, spread: float, error: float) -> Cell:
    """The cell of an error in units of the variance of a coordinate, of one client."""
    # A central Gaussian counts all clients, whatever a mechanism may rely on.
    target = setting.target
    central = target.central * target.num_honest / target.num_clients
    where = (setting.dimension, setting.num_clients, setting.run_epsilon, bits)
    return Cell(*where, name, levels, round(spread, 3), error / central, certified=False)


def _ours(setting: Setting, bits: int) -> Cell:
    levels = numbers_of_trials(2**bits - 1, setting.target.num_honest)[0] + 1
    mechanism, spread, epsilon = _designed(setting, levels)
    inputs = np.clip(NORMAL / spread, -1.0, 1.0)
    error = at_unit_gain(spread**2 * mechanism.mse(inputs), spread, setting.num_clients)
    cell = central_cell(setting, bits, OURS, levels, spread, error)
    return replace(cell, certified=True, epsilon_reached=epsilon)


@lru_cache(maxsize=16)
def _designed(setting: Setting, levels: int) -> tuple[Mechanism, float, float]:
    """The design, its clip in standard deviations of a coordinate, and what its run costs."""
    spec = AggregateSpec(
        num_clients=setting.num_clients,
        dimension=setting.dimension,
        run_epsilon=setting.run_epsilon,
        run_delta=DELTA,
        rounds=setting.rounds,
        levels=levels,
    )
    ratio = spec.planned_norm_ratio
    mechanism = pq.design(OURS, **{**vars(spec), "norm_ratio": ratio}, cache=False)
    sizes = (setting.num_clients, setting.dimension, setting.rounds)
    wish = Wish(*sizes, setting.run_epsilon, DELTA, norms=Norms(l2=ratio))
    epsilon = run_statement(wish, mechanism).epsilon
    return mechanism, math.sqrt(setting.dimension) / ratio, epsilon


@lru_cache(maxsize=16)
def _binomial_at_best(setting: Setting, trials: int) -> tuple[float, float]:
    """The spread and the error of the Poisson binomial mechanism, probed."""
    spread = best_spread(trials, setting.target, stratified=False)
    return spread, error_at_norm_bound(spread, trials, setting.target, stratified=False)


def _binomial(setting: Setting, bits: int) -> Cell:
    trials = numbers_of_trials(2**bits - 1, setting.target.num_honest)[0]
    spread, error = _binomial_at_best(setting, trials)
    return central_cell(setting, bits, BINOMIAL, trials + 1, spread, error)


def _noise(setting: Setting, bits: int, name: str) -> Cell | None:
    """Integer noise; None where codes of so few bits cannot hold it."""
    try:
        lattice = best_lattice(NOISES[name], setting.target, bits)
    except InfeasibleDesignError:
        return None
    return central_cell(setting, bits, name, lattice.levels, lattice.spread, lattice.error)


def _certified(setting: Setting, cell: Cell) -> Cell:
    """The same cell with bits or noise that are certified; the cell itself if none can be."""
    error_of = _certified_bits if cell.mechanism == BINOMIAL else _certified_noise
    try:
        levels, error = error_of(setting, cell)
    except InfeasibleDesignError:
        return cell
    sure = central_cell(setting, cell.bits, cell.mechanism, levels, cell.spread, error)
    return replace(sure, certified=True)


def _certified_bits(setting: Setting, cell: Cell) -> tuple[int, float]:
    """Levels and error of the Poisson binomial mechanism at the clip of a cell."""
    best = binomial_bits(setting.target, math.sqrt(setting.dimension) / cell.spread, cell.levels - 1)
    if best is None:
        raise InfeasibleDesignError(f"no sum of {cell.levels - 1} bits is certified for the target")
    return best.trials + 1, at_unit_gain(cell.spread**2 * best.error, cell.spread, setting.num_clients)


def _certified_noise(setting: Setting, cell: Cell) -> tuple[int, float]:
    """Levels and error of a lattice with noise that the accountant certifies."""
    kind, target = NOISES[cell.mechanism], setting.target
    lattice = best_lattice(kind, target, cell.bits)
    return lattice.levels, certified_lattice(kind, target, lattice).error


def _rows(widths: Iterable[int], *setting: Any) -> Iterator[dict[str, Any]]:
    return map(asdict, cells_of(Setting(*setting), widths))


def grid_name(dimension: int, num_clients: int) -> str:
    """The part, and the table, of a number of coordinates and of clients."""
    return f"sums-{dimension}-{num_clients}"


def _grid(dimension: int, num_clients: int) -> Grid:
    return Grid(
        name=grid_name(dimension, num_clients),
        title=f"Errors over a central Gaussian's, {dimension} coordinates, {num_clients} clients",
        cells=lambda scale: [(WIDTHS, dimension, num_clients, epsilon) for epsilon in EPSILONS],
        rows=_rows,
        note=_NOTE,
    )


_NOTE = (
    f"run epsilon, epsilon reached: client total, {ROUNDS} rounds, aggregate view of all clients, "
    f"δ = {DELTA:g}; spread: coordinate clip in standard deviations of a coordinate"
)
WIDE = f"sums-{WIDEST}-bits"
PARTS = (
    *itertools.starmap(_grid, itertools.product(DIMENSIONS, CLIENTS)),
    Grid(
        name=WIDE,
        title=f"The same with {WIDEST} bits",
        cells=lambda scale: itertools.product([(WIDEST,)], DIMENSIONS, WIDE_CLIENTS, EPSILONS),
        rows=_rows,
        note=_NOTE,
    ),
)
