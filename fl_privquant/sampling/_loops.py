"""Compiled loops of the encoders and of noise.

They have their own module so that numba is imported with the first draw, not with the package.

An update is encoded in blocks that fit the first-level cache, with one simple loop for each stage. The
compiler turns loops without branches into vector instructions, and unpredictable branches would cost more
time than everything else here. So results of comparisons are added, not branched on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Array, Floats, Ints, Words
from fl_privquant._compiled import compile_loop
from fl_privquant.sampling.kernel import Tables

_BLOCK = 1024
_HALF_WORD = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_SIGN = np.int32(31)
_TWO = np.int32(2)


@compile_loop
def alias_cells(weights: Ints, shift: int) -> NDArray[np.uint32]:
    """(R * C,) alias cells, C = 2^(32 - shift) >= m per row, which draw each row's integer weights exactly.

    Cell c of a row stands for 2^shift of its 2^32 units: the first ``threshold`` of them are
    output c, the others are output ``alias``. A cell is stored as ``alias << shift | threshold``. A
    cell whose units are all output c has alias c, so that a threshold below 2^shift is enough.

    This is Walker's method (Vose 1991) in integers. As C cells of 2^shift units are exactly the 2^32
    units that a row sums to, there is a cell with too many units for every cell with too few, and
    nothing is left over.
    """
    num_rows, levels = weights.shape
    row_cells = (1 << 32) >> shift
    capacity = 1 << shift
    cells = np.empty(num_rows * row_cells, np.uint32)
    units = np.empty(row_cells, np.int64)
    # Two stacks in one array: cells below capacity grow from the left, the others from the right.
    order = np.empty(row_cells, np.int64)
    for row in range(num_rows):
        num_short, num_full = 0, 0
        for c in range(row_cells):
            units[c] = weights[row, c] if c < levels else 0
            if units[c] < capacity:
                order[num_short] = c
                num_short += 1
            else:
                num_full += 1
                order[row_cells - num_full] = c
        while num_short > 0:
            num_short -= 1
            short, donor = order[num_short], order[row_cells - num_full]
            cells[row * row_cells + short] = (donor << shift) | units[short]
            units[donor] -= capacity - units[short]
            if units[donor] < capacity:
                num_full -= 1
                order[num_short] = donor
                num_short += 1
        for i in range(row_cells - num_full, row_cells):
            cells[row * row_cells + order[i]] = order[i] << shift
    return cells


@compile_loop
def encode_chunk(x: Array, clip: float, words: Words, tables: Tables, out: Array) -> int:
    """Write a drawn index for each input to ``out``, and return how many inputs are not finite.

    The high half of a word decides between the two rows of the piece, the low half draws from the
    row. An input that is not finite is encoded as -1 or 1, within bounds but without meaning.
    """
    not_finite = 0
    positions = np.empty(_BLOCK, np.float64)
    indices = np.empty(_BLOCK, np.int32)
    drawn = np.empty(_BLOCK, np.uint32)
    for begin in range(0, x.size, _BLOCK):
        end = min(begin + _BLOCK, x.size)
        position, index, cell = positions[: end - begin], indices[: end - begin], drawn[: end - begin]
        block_words = words[begin:end]
        not_finite += _clip(x[begin:end], clip, tables, position, index)
        _find_pieces(tables, position, index)
        _choose_rows(block_words, position, index)
        _load_cells(tables, block_words, index, cell)
        _draw(block_words, cell, tables.shift, out[begin:end])
    return not_finite


@compile_loop
def _scale(value: float, clip: float) -> float:
    """The input in units of the clip, clipped to [-1, 1]; NaN becomes -1."""
    scaled = value / clip
    # Written so that NaN fails the first comparison, and no grid cell is out of bounds.
    scaled = scaled if scaled > -1.0 else -1.0
    return scaled if scaled < 1.0 else 1.0


@compile_loop
def _clip(x: Array, clip: float, tables: Tables, position: Floats, index: NDArray[np.int32]) -> int:
    """Write inputs scaled to [-1, 1], and their grid cells; return how many inputs are not finite."""
    not_finite = 0
    for i in range(x.size):
        value = float(x[i])
        # Infinity minus itself is NaN, which differs from 0.
        not_finite += int(value - value != 0.0)
        scaled = _scale(value, clip)
        position[i] = scaled
        index[i] = np.int32((scaled + 1.0) * tables.cells_per_unit)
    return not_finite


@compile_loop
def _find_pieces(tables: Tables, position: Floats, index: NDArray[np.int32]) -> None:
    """Map grid cells to pieces, and inputs to their position within the piece, in units of 2^-32."""
    grid, starts, scales = tables.grid, tables.starts, tables.scales
    for i in range(index.size):
        index[i] = grid[np.uint64(index[i])]
    step = tables.first_step
    # Each step is done for the whole block, as a search for one input at a time would need branches.
    while step > 1:
        for i in range(index.size):
            index[i] += np.int32(step) * np.int32(position[i] >= starts[np.uint64(index[i] + step)])
        step >>= 1
    for i in range(index.size):
        piece = np.uint64(index[i])
        piece += np.uint64(position[i] >= starts[piece + np.uint64(1)])
        position[i] = (position[i] - starts[piece]) * scales[piece]
        index[i] = np.int32(piece)


@compile_loop
def _choose_rows(words: Words, position: Floats, index: NDArray[np.int32]) -> None:
    """Map pieces to their start (2 piece) or end (2 piece + 1), at random by the high half-words."""
    for i in range(words.size):
        # Half a unit is added so that the probability is rounded to the nearest multiple of 2^-32.
        high = np.float64(np.int64(words[i] >> _HALF_WORD)) + 0.5
        index[i] = _TWO * index[i] + np.int32(high < position[i])


@compile_loop
def _load_cells(tables: Tables, words: Words, index: NDArray[np.int32], cell: NDArray[np.uint32]) -> None:
    """Load the alias cells that the low half-words choose in the chosen rows."""
    rows, cells, shift = tables.rows, tables.cells, np.uint64(tables.shift)
    for i in range(words.size):
        own = np.uint64(np.uint32(words[i])) >> shift
        cell[i] = cells[np.uint64(rows[np.uint64(index[i])]) + own]


@compile_loop
def _draw(words: Words, cell: NDArray[np.uint32], shift: int, out: Array) -> None:
    """Write a cell's own output or its alias, as the rest of the low half-words decide."""
    places = np.uint32(shift)
    below = np.uint32((1 << shift) - 1)
    for i in range(words.size):
        low = np.uint32(words[i])
        own, alias = low >> places, cell[i] >> places
        # Both are below 2^31, so the sign of their difference, spread over all bits, is a mask.
        is_own = np.uint32(np.int32((low & below) - (cell[i] & below)) >> _SIGN)
        out[i] = alias ^ ((own ^ alias) & is_own)


@compile_loop
def round_chunk(x: Array, clip: float, max_code: int, words: Words, out: Array) -> int:
    """Write a neighboring lattice point of each input, and return how many inputs are not finite.

    Points 0 to ``max_code`` stand for -clip to clip. An input that is not finite is rounded to an
    end, within bounds but without meaning.
    """
    not_finite = 0
    points_per_unit = 0.5 * max_code
    for i in range(x.size):
        value = float(x[i])
        not_finite += int(value - value != 0.0)
        position = (_scale(value, clip) + 1.0) * points_per_unit
        below = np.int32(position)
        share = (position - below) * 4294967296.0
        high = np.float64(np.int64(words[i] >> _HALF_WORD)) + 0.5
        out[i] = below + np.int32(high < share)
    return not_finite


@compile_loop
def add_noise(noise: Ints, low: int, high: int, mask: int, out: Array) -> None:
    """Add the noise to ``out``, clamped to low..high, then reduced modulo ``mask`` + 1, a power of two."""
    for i in range(noise.size):
        total = np.int64(out[i]) + noise[i]
        out[i] = min(max(total, low), high) & mask


@compile_loop
def round_shares(
    x: Array, clip: float, points: float, coarse: Ints, fine: Ints, mask: int, out: Array
) -> int:
    """Write inputs plus noise, rounded from a fine lattice to a coarse one; return how many are not finite.

    There are ``points`` fine points per clip and 2^20 per coarse point. The noise is 2^10 ``coarse`` +
    ``fine`` fine points. Half of ``mask`` + 1, a power of two, is added to codes, which are then reduced
    modulo it. Conversion to an integer rounds towards zero; a shift rounds down, also below zero. No sum
    overflows: inputs are below 2^52, noise below 2^32.
    """
    not_finite = 0
    middle = (mask + 1) // 2
    for i in range(x.size):
        value = float(x[i])
        not_finite += int(value - value != 0.0)
        total = np.int64(_scale(value, clip) * points) + (coarse[i] << 10) + fine[i]
        out[i] = (((total + 524288) >> 20) + middle) & mask
    return not_finite


@compile_loop
def draw_noise(words: Words, cells: Words, cell_bits: int, out: Ints) -> int:
    """Write a draw for each word, and return how many words tie with a threshold, whose draws are not valid.

    See :class:`fl_privquant.sampling._noise_table.NoiseTable` for the cells. No index is out of
    bounds whatever the words are: there is a cell for every value of the highest bits.
    """
    to_cell = np.uint64(64 - cell_bits)
    rest_bits = np.int64(63 - cell_bits)
    rest_mask = (np.int64(1) << rest_bits) - 1
    loaded = np.empty(_BLOCK, np.int64)
    ties = 0
    for begin in range(0, words.size, _BLOCK):
        block_words, drawn = words[begin : begin + _BLOCK], out[begin : begin + _BLOCK]
        cell = loaded[: drawn.size]
        for i in range(cell.size):
            cell[i] = np.int64(cells[block_words[i] >> to_cell])
        for i in range(cell.size):
            word = block_words[i]
            own, alias = np.int64(word >> to_cell), cell[i] >> rest_bits
            # Both are at least 0, so the sign of their difference, spread over all bits, is a mask.
            beyond = (np.int64(word >> _ONE) & rest_mask) - (cell[i] & rest_mask)
            magnitude = alias ^ ((own ^ alias) & (beyond >> 63))
            ties += int(beyond == 0)
            # -1 in two's complement is all ones: this negates where the sign bit is set.
            sign = -np.int64(word & _ONE)
            drawn[i] = (magnitude ^ sign) - sign
    return ties
