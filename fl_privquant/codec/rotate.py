"""A public random rotation: it spreads an update evenly over its coordinates, and loses nothing.

A quantizer of range [-clip, clip] wastes itself on an update whose few large coordinates set the
clip. After a random rotation every coordinate of an update of norm R is about R / sqrt(d).

**No padding.** The Walsh-Hadamard transform H exists for powers of two only, and padding d = 10^5 to
131072 would send 31 % more. Instead, with p the largest power of two up to d, the first p coordinates
are rotated by H with random signs, then the last p. Both are orthogonal maps of all d coordinates,
so their product is one; as p > d / 2, together they reach every coordinate, and an update of norm R
still has coordinates of about R / sqrt(p). Where d is a power of two, one of them is enough.

**Public.** The signs follow from a seed that everybody knows. They hide nothing and need not: an
orthogonal map of the update is chosen without looking at it, so privacy is neither won nor lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.sampling.stream import RandomStream

__all__ = ["Rotation"]

_WORD_BITS = 64


@dataclass(frozen=True)
class Rotation:
    """A random orthogonal map of vectors of ``dimension`` coordinates, the same for the same seed.

    O(d log d) additions, in place; the inverse undoes it up to the rounding of the additions.

    Parameters
    ----------
    dimension
        Number d of coordinates; any number.
    seed
        Public; a new one for each round, so that no update can be made to fit it.

    Examples
    --------
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

    def forward(self, vector: NDArray[Any]) -> None:
        """Rotate ``vector`` in place."""
        for part, signs in self._parts(vector):
            _flip(part, signs)
            _transform(part)

    def backward(self, vector: NDArray[Any]) -> None:
        """Undo :meth:`forward`, in place."""
        for part, signs in reversed(self._parts(vector)):
            _transform(part)
            _flip(part, signs)

    def _parts(self, vector: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[np.uint64]]]:
        """Each part of the vector that is transformed, and the bits of its signs."""
        if vector.shape != (self.dimension,) or not vector.flags.c_contiguous:
            raise InvalidUpdateError(
                f"rotation: shape {vector.shape}, expected a contiguous vector of {self.dimension}"
            )
        if vector.dtype not in (np.float32, np.float64):
            raise InvalidUpdateError(f"rotation: {vector.dtype}, expected float32 or float64")
        if self.dimension == 0:
            return []
        size = 1 << (self.dimension.bit_length() - 1)
        stream = RandomStream.seeded(self.seed, purpose="rotation")
        count = -(-size // _WORD_BITS)
        parts = [(vector[:size], stream.words(count))]
        if size < self.dimension:
            parts.append((vector[self.dimension - size :], stream.words(count)))
        return parts


def _flip(part: NDArray[Any], signs: NDArray[np.uint64]) -> None:
    from fl_privquant.codec.vector_loops import flip_signs

    flip_signs(part.view(np.uint32 if part.itemsize == 4 else np.uint64), signs)


def _transform(part: NDArray[Any]) -> None:
    """The orthonormal Walsh-Hadamard transform, its own inverse."""
    from fl_privquant.codec.vector_loops import hadamard

    hadamard(part)
    # In the vector's own precision: a power of two is exact, and its root is rounded once.
    part *= part.dtype.type(1.0 / np.sqrt(part.size))
