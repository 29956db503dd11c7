"""Wrong kernels: off by one unit of 2^-32, each must be noticed by an exact reading of what the kernel draws.

No statistics: as the kernel is a function of a 64-bit word, bisection finds the very word at which its answer
changes, and so the integer weight of every output in every row, and the integer odds of the dither.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.sampling import _loops
from fl_privquant.sampling.kernel import Sampler, Tables
from fl_privquant.sampling.stream import RandomStream
from tests.controls.mutation import mutated

Words = NDArray[np.uint64]
Draw = Callable[[Sampler, float, Words], NDArray[np.int64]]


def table() -> CertifiedTable:
    """Five levels and two pieces, with rows whose weights are no round numbers."""
    values = np.linspace(-3.0, 3.0, 5)
    rows = np.array(
        [[0.41, 0.23, 0.19, 0.13, 0.04], [0.1, 0.2, 0.4, 0.2, 0.1], [0.04, 0.13, 0.19, 0.23, 0.41]]
    )
    knots = rows @ values
    distribution = OutputDistribution.from_knots(values / knots[-1], knots / knots[-1], rows)
    return CertifiedTable.from_distribution(
        distribution, Codebook.from_values(distribution.values), distribution.epsilon * 1.001
    )


def draw_with(encode_chunk: Callable[..., int]) -> Draw:
    def draw(sampler: Sampler, x: float, words: Words) -> NDArray[np.int64]:
        out = np.empty(words.size, dtype=np.uint8)
        inputs = np.full(words.size, x)
        # What may be written is another type to numba, and would be compiled for.
        inputs.flags.writeable = False
        # Mutated loops run as Python, where numpy warns of the wrapping that is meant.
        with np.errstate(over="ignore"):
            encode_chunk(inputs, 1.0, words, sampler._tables, out)
        return out.astype(np.int64)

    return draw


def word(high: NDArray[np.int64] | int, low: NDArray[np.int64] | int) -> Words:
    return np.asarray(high, dtype=np.uint64) << np.uint64(32) | np.asarray(low, dtype=np.uint64)


def row_weights(draw: Draw, sampler: Sampler, x: float, high: int) -> NDArray[np.int64]:
    """(m,) of the 2^32 low half-words, how many give each output: in each cell the answer changes once."""
    shift = sampler._tables.shift
    cells = np.arange(TOTAL_WEIGHT >> shift, dtype=np.int64) << shift
    last = (1 << shift) - 1
    first, second = (draw(sampler, x, word(high, cells + rest)) for rest in (0, last))
    # The first rest with the second answer; where both are the same it does not matter.
    below, above = np.zeros(cells.size, np.int64), np.full(cells.size, last)
    while np.any(above - below > 1):
        middle = (below + above) // 2
        same = draw(sampler, x, word(high, cells + middle)) == first
        below, above = np.where(same, middle, below), np.where(same, above, middle)
    # A wrong kernel may give outputs that there are not.
    weights = np.zeros(cells.size, np.int64)
    np.add.at(weights, first, above)
    np.add.at(weights, second, (1 << shift) - above)
    levels = sampler.table.codebook.num_levels
    return weights if weights[levels:].any() else weights[:levels]


def dither_odds(draw: Draw, sampler: Sampler, x: float) -> int:
    """Of the 2^32 high half-words, how many choose the row at the end of the piece."""
    low = np.arange(0, TOTAL_WEIGHT, TOTAL_WEIGHT // 997, dtype=np.int64)
    at_end, at_start = (
        draw(sampler, x, word(np.full(low.size, high), low)) for high in (0, TOTAL_WEIGHT - 1)
    )
    telling = low[np.flatnonzero(at_end != at_start)[:1]]
    answer = draw(sampler, x, word(0, telling))
    below, above = 0, TOTAL_WEIGHT - 1
    while above - below > 1:
        middle = (below + above) // 2
        same = draw(sampler, x, word(middle, telling)) == answer
        below, above = (middle, above) if same else (below, middle)
    return above


def is_exact(draw: Draw, sampler: Sampler) -> bool:
    """Whether every row is drawn with its integer weights, and the dither to the nearest of 2^-32."""
    made = sampler.table
    distribution = made.distribution
    for piece in range(distribution.starts.size):
        inside = distribution.starts[piece] + 0.37 * (distribution.ends[piece] - distribution.starts[piece])
        # The high half-word 0 chooses the end of the piece, the largest one its start.
        at_end = row_weights(draw, sampler, inside, 0)
        at_start = row_weights(draw, sampler, inside, TOTAL_WEIGHT - 1)
        if not np.array_equal(at_end, made.weights[made.end_rows[piece]]):
            return False
        if not np.array_equal(at_start, made.weights[made.start_rows[piece]]):
            return False
        share = (inside - distribution.starts[piece]) * (
            TOTAL_WEIGHT / (distribution.ends[piece] - distribution.starts[piece])
        )
        if dither_odds(draw, sampler, inside) != round(share):
            return False
    return True


def test_the_kernel_is_exact_to_the_last_unit() -> None:
    assert is_exact(draw_with(_loops.encode_chunk), Sampler(table()))


def test_the_loops_as_python_are_the_same_kernel() -> None:
    unchanged = mutated(_loops, "_BLOCK = 1024", "_BLOCK = 512")
    assert is_exact(draw_with(unchanged.encode_chunk), Sampler(table()))


WRONG = {
    "<= for < in the draw": (
        "is_own = np.uint32(np.int32((low & below) - (cell[i] & below)) >> _SIGN)",
        "is_own = np.uint32(0xFFFFFFFF if (low & below) <= (cell[i] & below) else 0)",
    ),
    "the dither rounds up": (
        "nearest multiple of 2^-32.\n        high = np.float64(np.int64(words[i] >> _HALF_WORD)) + 0.5",
        "next multiple of 2^-32.\n        high = np.float64(np.int64(words[i] >> _HALF_WORD)) - 0.5",
    ),
    "rows of a piece exchanged": (
        "np.int32(high < position[i])",
        "np.int32(high >= position[i])",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_noticed(name: str) -> None:
    assert not is_exact(draw_with(mutated(_loops, *WRONG[name]).encode_chunk), Sampler(table()))


def one_unit_up(tables: Tables) -> Tables:
    cells = tables.cells.copy()
    cells[1] += 1
    cells.flags.writeable = False
    return tables._replace(cells=cells)


def test_a_table_that_is_off_by_one_unit_is_noticed() -> None:
    sampler = Sampler(table())
    sampler._tables = one_unit_up(sampler._tables)
    assert not is_exact(draw_with(_loops.encode_chunk), sampler)


def repeats_itself(sampler: Sampler, stream: RandomStream) -> bool:
    x = np.full(1000, 0.1)
    return np.array_equal(sampler.encode(x, stream=stream), sampler.encode(x, stream=stream))


def test_a_stream_that_gives_words_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(table())
    assert not repeats_itself(sampler, RandomStream.secure())
    monkeypatch.setattr(RandomStream, "reserve", lambda self, count: 0)
    assert repeats_itself(sampler, RandomStream.secure())
