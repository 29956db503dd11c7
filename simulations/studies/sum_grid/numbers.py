"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pandas as pd

from simulations.studies.page import together
from simulations.studies.study import ReadTable
from simulations.studies.sum_grid.grid import (
    BINOMIAL,
    CLIENTS,
    DELTA,
    DIMENSIONS,
    OURS,
    ROUNDS,
    TOLD_APART,
    WIDE,
    WITHIN,
    grid_name,
)

LIMITS = {
    (100, 1.0): (1.03, 1.02, 1.02),
    (100, 4.0): (1.03, 1.02, 1.02),
    (100, 10.0): (1.06, 1.03, 1.02),
    (1000, 1.0): (1.03, 1.02, 1.02),
    (1000, 4.0): (1.06, 1.03, 1.02),
    (1000, 10.0): (1.13, 1.05, 1.03),
}
"""What the error over a central Gaussian's must not exceed with 1, 2 and 3 bits, d = 7850."""

_SETTING = ["dimension", "num_clients", "run_epsilon"]


def computed_cells(read: ReadTable) -> pd.DataFrame:
    """All cells of the grid that were computed."""
    names = [*itertools.starmap(grid_name, itertools.product(DIMENSIONS, CLIENTS)), WIDE]
    return together(read, names)


def wins(cells: pd.DataFrame) -> Iterator[tuple[Any, Any]]:
    """Cells of ours, each with that of a mechanism that has clearly less error at the setting and width."""
    for _, row in cells.groupby([*_SETTING, "bits"]):
        ours = next(row[row["mechanism"] == OURS].itertuples())
        best = next(row.sort_values("ratio_to_central").itertuples())
        if ours.ratio_to_central > WITHIN * best.ratio_to_central:
            yield ours, best


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    rounds, delta, told_apart, limits = ROUNDS, DELTA, TOLD_APART, LIMITS

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All cells of the grid that were computed."""
        return computed_cells(self._read)

    @cached_property
    def errors(self) -> pd.DataFrame:
        """Errors of ours over the central Gaussian's, by setting (down) and bits (across)."""
        return self.ours.pivot_table("ratio_to_central", _SETTING, "bits")

    @cached_property
    def others(self) -> pd.DataFrame:
        """The cell with the least error of any other mechanism, by setting."""
        others = self.cells[self.cells["mechanism"] != OURS].sort_values("ratio_to_central")
        return others.drop_duplicates(_SETTING).set_index(_SETTING)

    @property
    def ours(self) -> pd.DataFrame:
        """The cells of the mechanism that is designed for the sum."""
        return self.cells[self.cells["mechanism"] == OURS]

    def lost(self) -> list[tuple[Any, Any]]:
        """Cells of the grid in which another mechanism has clearly less error, with that mechanism's."""
        return list(wins(self.cells))

    @property
    def absent(self) -> list[tuple[int, int]]:
        """Coordinates and clients of parts that were not computed."""
        there = set(self.cells[_SETTING[:2]].itertuples(index=False, name=None))
        return [sizes for sizes in itertools.product(DIMENSIONS, CLIENTS) if sizes not in there]

    @cached_property
    def beside_binomial(self) -> tuple[int, int, float]:
        """Cells of the Poisson binomial mechanism, those with less error than ours, and by how much at most.

        The last as ours over theirs.
        """
        keys = [*_SETTING, "bits"]
        ours, peers = (
            self.cells[self.cells["mechanism"] == name].set_index(keys)["ratio_to_central"]
            for name in (OURS, BINOMIAL)
        )
        ratios = ours[peers.index] / peers
        return len(ratios), int((ratios > 1.0).sum()), float(ratios.max())
