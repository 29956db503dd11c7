"""Gaussian noise on a fine lattice, in integers, and the rounding of inputs plus noise to a coarse lattice.

The fine lattice has F = 2^20 points per spacing of the coarse one. Noise of deviation s spacings is 2^10 a +
b, where a and b are discrete Gaussians with sigma^2 = s^2 2^20 - 4 and sigma^2 = 2^22. Both have small tables
(:mod:`fl_privquant.sampling._noise_table`), so that a number takes two words and two look-ups. It is as good
as a Gaussian, up to factors of 1 ± 1e-33: see steps 1 to 3 of
:mod:`fl_privquant.privacy_loss.additive.rounded_gaussian`.

An input is rounded *towards zero* to the fine lattice, so that no norm grows. It is added to the noise, and
the sum is rounded to the coarse lattice by floor(v + 1/2), all in integers of 64 bits. The result is reduced
modulo a power of two and never clamped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np

from fl_privquant._array_types import Array, ArrayLike, Ints, smallest_code_type
from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.integer_noise import DiscreteGaussian
from fl_privquant.sampling.stream import Randomness, RandomStream

FINE_BITS: Final = 20
"""Logarithm of the number of fine points per spacing."""

MIN_DEVIATION, MAX_DEVIATION = 1.0, 8.0
"""Deviations of noise in spacings: with less, rounding is no post-processing; more takes large tables."""

# The number of fine points of a step of a, and the variance of b in units of its square.
_STEP_BITS: Final = 10
_FINE_VARIANCE: Final = 4
# Variance, in squared fine points, that proofs take off: 4 for their kernel, 1/12 for rounding errors.
_TAKEN_OFF: Final = 5


@dataclass(frozen=True)
class FineGaussian:
    """Noise of a deviation in spacings of the coarse lattice, drawn as a number of points of the fine one.

    >>> noise = FineGaussian(Fraction(3, 2))
    >>> (noise.sample(3, RandomStream.seeded(1)) / 2**20).round(3)
    array([ 1.973, -3.381, -2.04 ])
    """

    deviation: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "deviation", Fraction(self.deviation))
        if not MIN_DEVIATION <= self.deviation <= MAX_DEVIATION:
            raise InvalidSpecError(
                "deviation",
                float(self.deviation),
                f"spacings of noise are outside {MIN_DEVIATION:g} to {MAX_DEVIATION:g}",
                "1.5 to 2 suit most runs",
            )

    @property
    def proven_deviation(self) -> float:
        """The deviation of the Gaussian noise that proofs count on, rounded down."""
        square = self.deviation**2 - Fraction(_TAKEN_OFF, 1 << 2 * FINE_BITS)
        return math.sqrt(float(square)) * (1.0 - 1e-15)

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance of one number to the ideal noise: that of both tables."""
        return self._coarse.total_variation + self._fine.total_variation

    def sample(self, shape: int | tuple[int, ...], stream: RandomStream) -> Ints:
        """Independent numbers of fine points, of that shape. The same stream gives the same numbers."""
        coarse, fine = self._coarse.sample(shape, stream), self._fine.sample(shape, stream)
        return (coarse << _STEP_BITS) + fine

    def encode(
        self,
        x: ArrayLike,
        spacing: float,
        bits: int,
        *,
        clip: float = 1.0,
        stream: Randomness = None,
        added: Ints | None = None,
    ) -> Array:
        """Codes modulo 2^bits of inputs clipped to [-clip, clip]; ``spacing`` is in units of the clip.

        Code 2^(bits - 1) stands for 0, so that the codes of inputs around 0 hardly ever wrap. ``added`` are
        further numbers of fine points, one for each input, that are added before codes are rounded.
        Other arguments are as for :func:`~fl_privquant.sampling.chunks.encode_in_chunks`. A call takes two
        words per input from the stream: all those of a, then all those of b. So the noise of a call is what
        :meth:`sample` draws.
        """
        # A little fewer points than fit: rounding of this number must not make norms larger.
        points = math.ldexp((1.0 - 2.0**-50) / spacing, FINE_BITS)

        def encode_chunk(chunk: Chunk) -> int:
            # Imported here because numba takes a second to import.
            from fl_privquant.sampling import _loops

            coarse, fine = np.empty((2, chunk.out.size), dtype=np.int64)
            self._coarse.draw(chunk.words, coarse, chunk.stream, chunk.first_word)
            self._fine.fill(fine, chunk.stream, chunk.second_words)
            if added is not None:
                fine += added[chunk.start : chunk.start + fine.size]
            mask = (1 << bits) - 1
            return _loops.round_shares(chunk.x, chunk.clip, points, coarse, fine, mask, chunk.out)

        return encode_in_chunks(
            x,
            encode_chunk,
            dtype=smallest_code_type(bits),
            clip=clip,
            stream=stream,
            words_per_input=2,
        )

    @cached_property
    def _coarse(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.deviation**2 * (1 << 2 * (FINE_BITS - _STEP_BITS)) - _FINE_VARIANCE)

    @cached_property
    def _fine(self) -> DiscreteGaussian:
        return DiscreteGaussian(Fraction(_FINE_VARIANCE << 2 * _STEP_BITS))
