"""The compiled loop of the blanket bound, in its own module so that numba is imported late."""

from __future__ import annotations

from fl_privquant._array_types import Floats, Ints
from fl_privquant._compiled import compile_loop


@compile_loop
def gather_cells(
    spread: Floats, place: Floats, pairs: Ints, weight: float, first: Floats, second: Floats
) -> None:
    """Add the atoms of pairs of rows, times ``weight``, to the cells of their losses.

    ``spread`` has the (rows, outputs) probabilities and ``place`` their logarithms, in widths of a cell; a
    loss of 0 is in the middle of the cells. ``pairs`` names the two rows of each pair, of which ``first`` and
    ``second`` take the (pairs, cells) masses.
    """
    cells = first.shape[1]
    middle = 0.5 * cells
    for k in range(pairs.shape[0]):
        i, j = pairs[k, 0], pairs[k, 1]
        for y in range(spread.shape[1]):
            cell = int(place[i, y] - place[j, y] + middle)
            cell = min(max(cell, 0), cells - 1)
            first[k, cell] += weight * spread[i, y]
            second[k, cell] += weight * spread[j, y]
