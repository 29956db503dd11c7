"""``python -m simulations.sum_grid``: every mechanism for secure sums at its own best, on a grid of settings.

Rotated updates at the norm bound, the same for all clients, at an equal (epsilon, delta) of the whole run in
the aggregate view; errors are over that of a central Gaussian, and include the bias of the clip. Each
mechanism chooses its clip, of two standard deviations or more, and codes of at most so many bits: what a
client hands to the masks, noise included.

``optm_aggregate`` is designed, and so certified on what it samples. The others are given the benefit of the
doubt: the Poisson binomial mechanism is probed at two cases of the other clients, and integer noise is
counted as normal noise, its rounding by the mean
(:func:`fl_privquant.design.noise_lattice.best_lattice`). Only where ``optm_aggregate`` does not lead by
these figures are they replaced by certified ones.
"""

from __future__ import annotations

import csv
import math
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

import fl_privquant as pq
from fl_privquant.design.bits import bits_for_separation, error_of_bits, numbers_of_trials
from fl_privquant.design.noise_lattice import (
    GAUSSIAN,
    LAPLACE,
    SKELLAM,
    RunTarget,
    best_lattice,
    certified_noise,
)
from fl_privquant.design.spread import LEAST_SPREAD, clipped_moments
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.lattice import coarse_count
from fl_privquant.loss.secure_sum import NORM_ROUNDING, UpdateBound
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.optm_aggregate import AggregateSpec, planned_norm_ratio
from fl_privquant.statement import PrivacyStatement, Unit

__all__ = ["Cell", "behind", "cells_of", "main", "page"]

ROUNDS, DELTA = 50, 1e-5
OURS = "optm_aggregate"
NOISES = {"discrete_gaussian": GAUSSIAN, "skellam": SKELLAM, "discrete_laplace": LAPLACE}
_WITHIN = 1.005
# A standard normal number, as samples.
_NORMAL = ndtri((np.arange(20_001) + 0.5) / 20_001)


@dataclass(frozen=True)
class Cell:
    """One mechanism in one setting: its error over the central Gaussian's, and how it was counted."""

    dimension: int
    clients: int
    run_epsilon: float
    bits: int
    mechanism: str
    levels: int
    spread: float
    ratio_to_central: float
    certified: bool


def cells_of(dimension: int, clients: int, epsilon: float, most_bits: int = 8) -> list[Cell]:
    """All mechanisms in one setting, with codes of 1 to ``most_bits`` bits."""
    target = RunTarget(epsilon, DELTA, ROUNDS, dimension, clients, coarse_count(clients))
    cells = []
    for bits in range(1, most_bits + 1):
        row = [_ours(target, bits), _binomial(target, bits)]
        row += [cell for name in NOISES if (cell := _noise(target, bits, name)) is not None]
        if behind(row):
            row = [_certified(target, cell) if cell.mechanism in NOISES else cell for cell in row]
        cells += row
    return cells


def behind(row: list[Cell]) -> Cell | None:
    """What has clearly less error than ``optm_aggregate`` among the cells of one setting and width."""
    ours = next(cell for cell in row if cell.mechanism == OURS)
    best = min(row, key=lambda cell: cell.ratio_to_central)
    return best if ours.ratio_to_central > _WITHIN * best.ratio_to_central else None


def _cell(target: RunTarget, bits: int, name: str, levels: int, spread: float, error: float) -> Cell:
    """The cell of an error in units of the variance of a coordinate, of one client."""
    # A central Gaussian counts all clients, whatever a mechanism may rely on.
    central = target.central * target.num_honest / target.num_clients
    certified = name == OURS
    where = (target.dimension, target.num_clients, target.epsilon, bits)
    return Cell(*where, name, levels, round(spread, 3), error / central, certified)


def _error(mechanism: Mechanism, target: RunTarget, spread: float) -> float:
    """The exact error of a mechanism whose coordinates are clipped to so many standard deviations."""
    inputs = np.clip(_NORMAL / spread, -1.0, 1.0)
    return spread**2 * mechanism.mse(inputs) + target.num_clients * clipped_moments(spread)[1]


def _ours(target: RunTarget, bits: int) -> Cell:
    levels = numbers_of_trials(2**bits - 1, target.num_honest)[0] + 1
    mechanism, spread = _designed(target, levels)
    error = _error(mechanism, target, spread)
    return _cell(target, bits, OURS, levels, spread, error)


@lru_cache(maxsize=16)
def _designed(target: RunTarget, levels: int) -> tuple[Mechanism, float]:
    wish = {
        "num_clients": target.num_clients,
        "dimension": target.dimension,
        "run_epsilon": target.epsilon,
        "run_delta": target.delta,
        "rounds": target.rounds,
        "levels": levels,
    }
    ratio = planned_norm_ratio(AggregateSpec(**wish))  # type: ignore[arg-type]
    mechanism = pq.design(OURS, **wish, norm_ratio=ratio, cache=False)  # type: ignore[arg-type]
    return mechanism, math.sqrt(target.dimension) / ratio


@lru_cache(maxsize=16)
def _binomial_at_best(target: RunTarget, trials: int) -> tuple[float, float]:
    """The spread and the error of the Poisson binomial mechanism, probed."""

    def error(spread: float) -> float:
        update = UpdateBound(2.0 * math.sqrt(target.dimension) / spread * NORM_ROUNDING, target.dimension)
        asked = target.separation / update.widened
        try:
            rare = bits_for_separation(
                trials, asked, target.num_honest, update.rate, stratified=False, rough=True
            )
        except InfeasibleDesignError:
            return math.inf
        square, cut_off = clipped_moments(spread)
        return spread**2 * error_of_bits(trials, rare, square / spread**2) + target.num_clients * cut_off

    found = minimize_scalar(error, bounds=(LEAST_SPREAD, 6.0), method="bounded", options={"xatol": 0.05})
    return float(found.x), float(found.fun)


def _binomial(target: RunTarget, bits: int) -> Cell:
    trials = numbers_of_trials(2**bits - 1, target.num_honest)[0]
    spread, error = _binomial_at_best(target, trials)
    return _cell(target, bits, "pbm", trials + 1, spread, error)


def _noise(target: RunTarget, bits: int, name: str) -> Cell | None:
    """Integer noise; None where codes of so few bits cannot hold it."""
    try:
        lattice = best_lattice(NOISES[name], target, bits)
    except InfeasibleDesignError:
        return None
    return _cell(target, bits, name, lattice.levels, lattice.spread, lattice.error)


def _certified(target: RunTarget, cell: Cell) -> Cell:
    """The same cell with noise that the accountant certifies."""
    kind = NOISES[cell.mechanism]
    _, error = certified_noise(kind, target, best_lattice(kind, target, cell.bits))
    found = _cell(target, cell.bits, cell.mechanism, cell.levels, cell.spread, error)
    return Cell(**{**asdict(found), "certified": True})


def page(cells: list[Cell]) -> str:
    """The error of ``optm_aggregate`` in each setting, and where another mechanism has clearly less."""
    settings = sorted({(cell.dimension, cell.clients, cell.run_epsilon) for cell in cells})
    widths = sorted({cell.bits for cell in cells})
    titles = ["d", "n", "budget", *(f"{bits} bits" for bits in widths), "best of the others"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lost = []
    for setting in settings:
        here = [cell for cell in cells if (cell.dimension, cell.clients, cell.run_epsilon) == setting]
        ours = {cell.bits: cell for cell in here if cell.mechanism == OURS}
        other = min((cell for cell in here if cell.mechanism != OURS), key=lambda cell: cell.ratio_to_central)
        figures = " | ".join(f"{ours[bits].ratio_to_central:.4f}" for bits in widths)
        best = f"{other.ratio_to_central:.4f} ({other.mechanism}, {other.bits} bits)"
        lines.append(f"| {setting[0]} | {setting[1]} | {_budget(setting[2])} | {figures} | {best} |")
        for bits in widths:
            row = [cell for cell in here if cell.bits == bits]
            if (winner := behind(row)) is not None:
                lost.append(
                    f"- d = {setting[0]}, n = {setting[1]}, {_budget(setting[2])}, {bits} bits: "
                    f"{winner.mechanism} {winner.ratio_to_central:.4f}, {OURS} "
                    f"{ours[bits].ratio_to_central:.4f}"
                )
    verdict = f"{OURS} has the least error, or is within 0.5 % of it, in every setting at every width"
    lines += ["", f"{verdict}, but for:" if lost else f"{verdict}.", *lost]
    return "\n".join(lines) + "\n"


def _budget(run_epsilon: float) -> str:
    """What a client's whole run may cost, seen in the sums."""
    return PrivacyStatement(run_epsilon, DELTA, Unit.TOTAL, "aggregate").brief


def main(
    output: Annotated[Path, typer.Option(help="CSV file of all cells; the page is written beside it.")],
    dimension: Annotated[list[int] | None, typer.Option(help="Numbers of coordinates.")] = None,
    clients: Annotated[list[int] | None, typer.Option(help="Numbers of clients.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Targets of the whole run.")] = None,
    bits: Annotated[int, typer.Option(help="Most bits of a code before masking.")] = 8,
) -> None:
    """Go through the grid, setting by setting."""
    cells: list[Cell] = []
    for size in dimension or [650, 7850, 1_000_000]:
        for number in clients or [50, 100, 1000, 10_000]:
            for target in epsilon or [1.0, 4.0, 10.0]:
                start = time.perf_counter()
                cells += cells_of(size, number, target, bits)
                taken = time.perf_counter() - start
                typer.echo(f"d = {size}, n = {number}, {_budget(target)}: {taken:.0f} s")
                with output.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(asdict(cells[0])))
                    writer.writeheader()
                    writer.writerows(asdict(cell) for cell in cells)
                output.with_suffix(".md").write_text(page(cells))


if __name__ == "__main__":
    typer.run(main)
