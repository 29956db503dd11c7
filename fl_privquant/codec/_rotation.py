"""A public random rotation, which spreads any update evenly over its coordinates and can be undone.

A quantizer of range [-clip, clip] is inaccurate for an update whose few large coordinates determine the clip.
After this rotation the d coordinates of an update of norm R are nearly normal with variance R^2 / d, whatever
the update is: this is what a plan's clips and errors assume.

**How.** The Walsh-Hadamard transform with random signs spreads the energy of an update evenly, but it exists
for powers of two only, and padding d = 10^5 to 131072 coordinates would send 31 % more. Instead there are two
layers of random signs and transforms of many blocks at once:

1. *Blocks*: every run of ``block`` neighbors is transformed. Where the last block would end beyond the last
   coordinate, one more block ends at it, after the others.
2. *Columns*: the coordinates are written in ``rows`` rows of nearly equal length, every row is turned by a
   random number of positions, and every column is transformed. Where some rows are longer by one, the last
   coordinates of all rows are one more column, after the others.

Each step is an orthogonal map, so their product is one.

**Isotropic.** Both sizes are powers of two, with block * rows >= 64 d where d >= 256; for smaller d they are
the largest that fit. Random signs make the expected energy of each output of a transform the mean energy of
its inputs. So the first layer leaves any update in runs of neighbors, each of even expected energy and,
except for what a last block shares with the one before, as long as a block. A column then takes one
coordinate of each row, K = block * rows / d or one more or less from each block, at random positions.

* *Second moments.* The expected square of every rotated coordinate is R^2 / d, up to a relative error of
  about 1 / K: less than 4 % for d >= 32, and less than 17 % for any d, whatever the update.
* *Fourth moments.* A rotated coordinate is a sum of the coordinates v of a column with random signs, so that
  its fourth moment is 3 (sum v^2)^2 - 2 sum v^4, over rows^2. The v^2 of a block have a fixed sum, as
  the first layer keeps norms; so those of K random positions sum up to their expectation with a relative
  variance of at most (k - 1) / K, where k = E v^4 / (E v^2)^2 is at most 3, as for any sum with random signs.
  Together this is 3 + (k - 3) / K times the squared variance: what normal numbers have, or a little less.

The random turns matter for patterns that repeat along a block, as the transform of a few neighboring
coordinates does: without turns, a column would meet the same part of the pattern again and again.

**Public.** Signs and turns follow from a seed that everybody knows. The orthogonal map is chosen
independently of the update, so that privacy is neither gained nor lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from fl_privquant._array_types import Array, Ints, Words
from fl_privquant.errors import InvalidUpdateError
from fl_privquant.sampling.stream import RandomStream

_WORD_BITS = 64
# The least average number of coordinates of a block that meet in a column is 2 to this power.
_LOG_MEETINGS = 6
# Blocks are larger than columns by this power of two: both then fit into a cache, columns 64 at a time.
_LOG_LEAN = 6


@dataclass(frozen=True)
class Rotation:
    """A random orthogonal map of vectors of ``dimension`` coordinates, the same for the same seed.

    It takes O(d log d) additions, in place; the inverse undoes it up to rounding. The seed is public. Each
    round has a new one, so that no update can be prepared for it.

    >>> rotation = Rotation(dimension=5, seed=1)
    >>> vector = np.array([3.0, 0.0, 0.0, 0.0, 4.0])
    >>> rotation.forward(vector)
    >>> round(float(np.linalg.norm(vector)), 12)
    5.0
    >>> rotation.backward(vector)
    >>> vector.round(12) + 0.0
    array([3., 0., 0., 0., 4.])
    """

    dimension: int
    seed: int

    def forward(self, vector: Array) -> None:
        """Rotate ``vector`` in place."""
        self._check(vector)
        for step in _steps(self.dimension, self.seed):
            step.apply(vector, backward=False)

    def backward(self, vector: Array) -> None:
        """Undo :meth:`forward`, in place."""
        self._check(vector)
        for step in reversed(_steps(self.dimension, self.seed)):
            step.apply(vector, backward=True)

    def _check(self, vector: Array) -> None:
        if vector.shape != (self.dimension,) or not vector.flags.c_contiguous:
            raise InvalidUpdateError(
                f"rotation: shape {vector.shape}, expected a contiguous vector of {self.dimension}"
            )
        if vector.dtype not in (np.float32, np.float64):
            raise InvalidUpdateError(f"rotation: {vector.dtype}, expected float32 or float64")


class _Step(NamedTuple):
    """Some of the coordinates, the bits of their random signs, and a transform that is its own inverse."""

    coordinates: slice | Ints
    signs: Words
    transform: Callable[[Array], None]

    def apply(self, vector: Array, backward: bool) -> None:
        """Flip signs and transform, in place; backward, which undoes it, in the other order."""
        from fl_privquant.codec._loops import flip_signs

        part = vector[self.coordinates]
        if backward:
            self.transform(part)
        flip_signs(part.view(np.uint32 if part.itemsize == 4 else np.uint64), self.signs)
        if not backward:
            self.transform(part)
        # A slice was changed in place; coordinates that are picked one by one are a copy.
        if isinstance(self.coordinates, np.ndarray):
            vector[self.coordinates] = part


def _sizes(dimension: int) -> tuple[int, int]:
    """Coordinates of a block, and of a column."""
    most = dimension.bit_length() - 1
    together = (dimension - 1).bit_length() + _LOG_MEETINGS
    block = min(most, (together + _LOG_LEAN + 1) // 2)
    return 1 << block, 1 << min(most, together - block)


# Cached, because the clients of a round in one process, and its server, use the same steps.
@lru_cache(maxsize=4)
def _steps(dimension: int, seed: int) -> tuple[_Step, ...]:
    """The steps: all whole blocks, the block at the end, the columns, and the column of the rows' ends."""
    if dimension == 0:
        return ()
    block, rows = _sizes(dimension)
    whole = dimension - dimension % block
    counts = [-(-number // _WORD_BITS) for number in (whole, block, dimension, rows)]
    words = RandomStream.seeded(seed, purpose="rotation").words(sum(counts) + rows)
    of_blocks, of_last, of_columns, of_ends = (
        words[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)
    )
    starts = np.arange(rows + 1) * dimension // rows
    lengths = starts[1:] - starts[:-1]
    # The upper 32 bits of a word, as a share of the length of a row.
    shifts = ((words[-rows:] >> np.uint64(32)).astype(np.int64) * lengths) >> 32
    blocks, columns = (
        partial(_transform_blocks, size=block),
        partial(_transform_columns, starts=starts, shifts=shifts),
    )
    steps = [_Step(slice(0, whole), of_blocks, blocks)]
    if whole < dimension:
        steps.append(_Step(slice(dimension - block, None), of_last, blocks))
    steps.append(_Step(slice(None), of_columns, columns))
    if dimension % rows:
        ends = starts[:-1] + (shifts - 1) % lengths
        steps.append(_Step(ends, of_ends, partial(_transform_blocks, size=rows)))
    return tuple(steps)


def _transform_blocks(part: Array, size: int) -> None:
    from fl_privquant.codec._loops import hadamard_blocks

    hadamard_blocks(part, size, _scale(part, size))


def _transform_columns(part: Array, starts: Ints, shifts: Ints) -> None:
    from fl_privquant.codec._loops import hadamard_columns

    hadamard_columns(part, starts, shifts, _scale(part, shifts.size))


def _scale(part: Array, size: int) -> Any:
    """The factor that makes a transform of that size orthonormal, rounded once to the vector's precision."""
    return part.dtype.type(1.0 / math.sqrt(size))
