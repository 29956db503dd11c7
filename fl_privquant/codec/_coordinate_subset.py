"""A public random subset of rotated coordinates, for updates whose full size is not worth its bytes.

In a private mean of d coordinates nearly all of the error is noise, as long as the noise has far more
energy than the update. Then there is little use in sending all d coordinates: a random subset of k of them
carries k / d of the energy of the signal *and* of the noise. The server scales the coordinates that it
receives by d / k and sets the others to zero.

**Unbiased.** Each coordinate is in the subset with probability k / d, so that the expectation of the server's
estimate of an update, over the subset, is the update. (Places are 64-bit words modulo d, so that the relative
error of each probability is at most d / 2^64.)

**Error.** With P the projection onto the subset and x the mean of the updates, the error that the subset
adds is E|(d / k) P x - x|^2 = (d / k - 1) |x|^2, for each x. The noise adds as much as without a subset: the
coordinates that are kept are clipped to about sqrt(k / d) times the norm of an update, so that k / d of the
variance per coordinate gives the same privacy, and there are k instead of d coordinates. Together this is
(k / d)^2 of the squared error, which scaling by d / k undoes.

**After the rotation only.** There all coordinates of an update have nearly the same energy, so that what is
kept has a norm of nearly sqrt(k / d) times the update's. The relative standard deviation of that norm is 1 /
sqrt(2 k). The noise is chosen for the largest norm that may be sent, so a clip just below the usual norm is
best: it is two standard deviations below (:func:`~fl_privquant.codec.encoding.kept_norm`). An update at the
norm bound becomes shorter by a share of 1.4 / sqrt(k), and keeps its direction; a shorter update is hardly
clipped. Plans count what is lost (:func:`~fl_privquant.optimize.sums.coordinate_clip.error_of_kept`).

**Public.** The subset follows from the seed of the round's rotation, is the same for all clients and is
chosen independently of all updates. It neither hides nor reveals anything; privacy depends on the number of
coordinates that are encoded, and on the norm that they are clipped to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fl_privquant._array_types import Array, Ints
from fl_privquant.sampling.stream import RandomStream


@dataclass(frozen=True)
class Subset:
    """A random choice of ``kept`` (k) of ``dimension`` (d) coordinates, the same for the same public seed.

    >>> subset = Subset(dimension=6, kept=2, seed=1)
    >>> vector = np.arange(6.0)
    >>> subset.take(vector).shape, np.flatnonzero(subset.restore(np.ones(2))).size
    ((2,), 2)
    """

    dimension: int
    kept: int
    seed: int

    @cached_property
    def places(self) -> Ints:
        """(k,) the places of the coordinates that are kept, in the order in which they are sent."""
        from fl_privquant.codec._loops import draw_places

        words = RandomStream.seeded(self.seed, purpose="subset").words(self.kept)
        return draw_places(words, self.dimension)

    def take(self, vectors: Array) -> Array:
        """(..., k) the coordinates of a vector, or of each row of a matrix, that are kept."""
        return np.take(vectors, self.places, axis=-1)

    def restore(self, kept: Array) -> Array:
        """(d,) the unbiased estimate of a vector: the kept coordinates scaled, and all others zero."""
        vector = np.zeros(self.dimension, dtype=kept.dtype)
        vector[self.places] = kept * kept.dtype.type(self.dimension / self.kept)
        return vector
