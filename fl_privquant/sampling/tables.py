"""Tables of the encode kernel: a certified table, rearranged so that a draw takes a few loads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable

_MIN_GRID = 64
_MAX_GRID = 1 << 20


class Tables(NamedTuple):
    """The arrays of the kernel, in the order in which it reads them.

    Attributes
    ----------
    grid
        (G + 1,) for each cell of a uniform grid over [-1, 1], the first piece that it meets.
    cells_per_unit
        G / 2: input x lies in grid cell floor((x + 1) * cells_per_unit).
    first_step
        The first step of a bisection of the pieces that a cell meets, a power of two; 0 if no
        cell meets more than one.
    starts
        (K + padding,) start of each piece, then infinities for the bisection to run into.
    scales
        (K,) 2^32 / length of each piece.
    rows
        (2 K,) for each piece, where in ``cells`` its start row and its end row begin.
    cells
        (R * C,) alias cells of all rows, C = 2^(32 - shift) a row; see
        :func:`fl_privquant.sampling.loops.alias_cells`.
    shift
        The highest 32 - shift bits of a draw choose the cell, the other ones choose inside it.
    """

    grid: NDArray[np.int32]
    cells_per_unit: float
    first_step: int
    starts: NDArray[np.float64]
    scales: NDArray[np.float64]
    rows: NDArray[np.int64]
    cells: NDArray[np.uint32]
    shift: int


def prepare(table: CertifiedTable) -> Tables:
    """The kernel's tables for the law of ``table``, exactly: nothing is rounded but the dither."""
    # Numba takes a second to import: only who encodes pays for it.
    from fl_privquant.sampling import loops

    starts, ends = table.knots[table.start_rows], table.knots[table.end_rows]
    grid, cells_per_unit, first_step = _search_grid(starts)
    padding = np.full(2 * first_step + 1, np.inf)
    shift = 32 - (table.codebook.num_levels - 1).bit_length()
    row_cells = TOTAL_WEIGHT >> shift
    rows = np.stack([table.start_rows, table.end_rows], axis=1).ravel() * row_cells
    tables = Tables(
        grid,
        cells_per_unit,
        first_step,
        np.concatenate([starts, padding]),
        TOTAL_WEIGHT / (ends - starts),
        rows,
        loops.alias_cells(table.weights, shift),
        shift,
    )
    for array in tables:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return tables


def _search_grid(starts: NDArray[np.float64]) -> tuple[NDArray[np.int32], float, int]:
    """The smallest grid of which no cell meets more than two pieces, else the best one in bounds."""
    largest = min(max(1024, 4 << starts.size.bit_length()), _MAX_GRID)
    best: tuple[NDArray[np.int32], float, int] | None = None
    size = _MIN_GRID
    while size <= largest and (best is None or best[2] > 1):
        candidate = _grid_of(starts, size)
        if best is None or candidate[2] < best[2]:
            best = candidate
        size *= 2
    return best or _grid_of(starts, _MIN_GRID)


def _grid_of(starts: NDArray[np.float64], size: int) -> tuple[NDArray[np.int32], float, int]:
    cells_per_unit = size / 2
    # Computed as the kernel computes it. Rounding keeps the order, so an input whose cell is above
    # that of a start is itself above that start: the grid is right to the last bit.
    cell_of_start = np.floor((starts + 1.0) * cells_per_unit)
    cell_of_start[starts <= -1.0] = -1.0
    below = np.searchsorted(cell_of_start, np.arange(size + 2), side="left")
    most_starts = int(np.diff(below).max())
    first_step = (1 << most_starts.bit_length()) >> 1
    return np.maximum(below[:-1] - 1, 0).astype(np.int32), cells_per_unit, first_step
