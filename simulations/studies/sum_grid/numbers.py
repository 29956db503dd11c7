"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import pandas as pd

from simulations.studies.page import together
from simulations.studies.study import ReadTable
from simulations.studies.sum_grid.grid import CLIENTS, DELTA, DIMENSIONS, OURS, PEERS, ROUNDS, grid_name

CLOSE = 1.01
"""An error counts as close to the central Gaussian's if it is at most this many times as large."""

# Errors are told apart if they differ by more than this factor.
_TOLD_APART = 1.005
_SETTING = ["dimension", "num_clients", "run_epsilon"]


def computed_cells(read: ReadTable) -> pd.DataFrame:
    """All cells of the grid that were computed."""
    return together(read, list(itertools.starmap(grid_name, itertools.product(DIMENSIONS, CLIENTS))))


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    rounds, delta, ours_name, peers, close = ROUNDS, DELTA, OURS, PEERS, CLOSE

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All cells of the grid that were computed."""
        return computed_cells(self._read)

    @property
    def ours(self) -> pd.DataFrame:
        """The cells of the mechanism that plans take by default."""
        return self.cells[self.cells["mechanism"] == OURS]

    def peer_rows(self, ours: Any, peer: str) -> pd.DataFrame:
        """The cells of a peer in the setting of one of ours, the one of least error first."""
        same = (self.cells[_SETTING] == [getattr(ours, key) for key in _SETTING]).all(axis=1)
        rows = self.cells[same & (self.cells["mechanism"] == peer)]
        return rows.sort_values(["ratio_to_central", "bits_in_sum"])

    def in_as_many_bits(self, ours: Any, peer: str) -> Any | None:
        """The cell of least error of a peer that sends no more bits than ours; None if it needs more."""
        rows = self.peer_rows(ours, peer)
        return next(rows[rows["bits_in_sum"] <= ours.bits_in_sum].itertuples(), None)

    def least(self, ours: Any, peer: str) -> Any | None:
        """The cell of least error of a peer, whatever it sends; None if no plan is certified."""
        return next(self.peer_rows(ours, peer).itertuples(), None)

    @cached_property
    def behind(self) -> list[tuple[Any, Any]]:
        """Settings in which a peer has clearly less error in no more bits: our cell and the peer's."""
        pairs = [
            (ours, other)
            for ours, peer in itertools.product(list(self.ours.itertuples()), PEERS)
            if (other := self.in_as_many_bits(ours, peer)) is not None
        ]
        return [pair for pair in pairs if pair[0].ratio_to_central > _TOLD_APART * pair[1].ratio_to_central]

    @property
    def absent(self) -> list[tuple[int, int]]:
        """Coordinates and clients of parts that were not computed."""
        there = set(self.cells[_SETTING[:2]].itertuples(index=False, name=None))
        return [sizes for sizes in itertools.product(DIMENSIONS, CLIENTS) if sizes not in there]
