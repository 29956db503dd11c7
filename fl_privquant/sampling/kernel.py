"""The encoder: from real inputs to random indices with exactly the distribution of a certified table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import ArrayLike, Bits, Floats, Ints, smallest_code_type
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import Randomness

_MIN_GRID = 64
_MAX_GRID = 1 << 20


class Sampler:
    """Draws indices with the distribution of a certified table, from one 64-bit random word per coordinate.

    For input x in a piece [a, b], the high half of the word chooses the row at b with probability
    (x - a) / (b - a), to the nearest multiple of 2^-32, else the row at a; the low half draws from
    that row's integer weights, exactly.

    Guarantee: the table's certified epsilon, for each coordinate and release. Every output is drawn
    from one of the certified rows, whatever the input, the clip and the rounding of either.
    Assumes: words that nobody else can predict, each used once; see :class:`RandomStream`.

    >>> from fl_privquant.distributions.codebook import Codebook
    >>> from fl_privquant.distributions.output_distribution import OutputDistribution
    >>> from fl_privquant.sampling.stream import RandomStream
    >>> distribution = OutputDistribution.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
    >>> codebook = Codebook.from_values(distribution.values)
    >>> table = CertifiedTable.from_distribution(distribution, codebook, epsilon=1.1)
    >>> Sampler(table).encode([[0.1, -0.1], [0.0, 7.0]], clip=0.1, stream=RandomStream.seeded(1))
    array([[1, 0],
           [0, 1]], dtype=uint8)
    """

    def __init__(self, table: CertifiedTable) -> None:
        self.table = table
        self._dtype = smallest_code_type((table.codebook.num_levels - 1).bit_length())
        self._tables = _prepare(table)

    def encode(
        self, x: ArrayLike, *, clip: float = 1.0, stream: Randomness = None
    ) -> Bits | NDArray[np.uint16]:
        """Random indices of the shape of ``x``: the values they stand for, times ``clip``, have mean ``x``.

        Arguments and errors are those of :func:`~fl_privquant.sampling.chunks.encode_in_chunks`. A call takes
        ``x.size`` words from the stream. The same words give the same indices, in single as in
        double precision.
        """
        return encode_in_chunks(x, self._encode_chunk, dtype=self._dtype, clip=clip, stream=stream)

    def _encode_chunk(self, chunk: Chunk) -> int:
        from fl_privquant.sampling._loops import encode_chunk

        return encode_chunk(chunk.x, chunk.clip, chunk.words, self._tables, chunk.out)


class Tables(NamedTuple):
    """The arrays of the kernel, in the order in which it reads them."""

    grid: NDArray[np.int32]
    """(G + 1,) for each cell of a uniform grid over [-1, 1], the first piece that it meets."""
    cells_per_unit: float
    """G / 2: input x lies in grid cell floor((x + 1) * cells_per_unit)."""
    first_step: int
    """The first step of a bisection of the pieces that a cell meets, a power of two; 0 if no cell meets more
    than one."""
    starts: Floats
    """(K + padding,) start of each piece, then infinities for the bisection to run into."""
    scales: Floats
    """(K,) 2^32 / length of each piece."""
    rows: Ints
    """(2 K,) for each piece, where in ``cells`` its start row and its end row begin."""
    cells: NDArray[np.uint32]
    """(R * C,) alias cells of all rows, C = 2^(32 - shift) per row; see
    :func:`fl_privquant.sampling._loops.alias_cells`."""
    shift: int
    """The highest 32 - shift bits of a draw choose the cell, the others choose inside it."""


def _prepare(table: CertifiedTable) -> Tables:
    """The kernel's tables for the exact distribution of ``table``; only choosing between rows is rounded."""
    # Imported here because numba takes a second to import.
    from fl_privquant.sampling import _loops

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
        _loops.alias_cells(table.weights, shift),
        shift,
    )
    for array in tables:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return tables


def _search_grid(starts: Floats) -> tuple[NDArray[np.int32], float, int]:
    """The smallest grid of which no cell meets more than two pieces, else the best of limited size."""
    largest = min(max(1024, 4 << starts.size.bit_length()), _MAX_GRID)
    best: tuple[NDArray[np.int32], float, int] | None = None
    size = _MIN_GRID
    while size <= largest and (best is None or best[2] > 1):
        candidate = _grid_of(starts, size)
        if best is None or candidate[2] < best[2]:
            best = candidate
        size *= 2
    return best or _grid_of(starts, _MIN_GRID)


def _grid_of(starts: Floats, size: int) -> tuple[NDArray[np.int32], float, int]:
    cells_per_unit = size / 2
    # Cells are computed as in the kernel. Rounding keeps the order, so an input whose cell is above
    # that of a start is itself above that start: the grid is right to the last bit.
    cell_of_start = np.floor((starts + 1.0) * cells_per_unit)
    cell_of_start[starts <= -1.0] = -1.0
    below = np.searchsorted(cell_of_start, np.arange(size + 2), side="left")
    max_starts = int(np.diff(below).max())
    first_step = (1 << max_starts.bit_length()) >> 1
    return np.maximum(below[:-1] - 1, 0).astype(np.int32), cells_per_unit, first_step
