"""Randomized rounding to a lattice, followed by integer noise."""

from __future__ import annotations

import numpy as np

from fl_privquant._array_types import Array, ArrayLike, smallest_code_type
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.integer_noise import IntegerNoise
from fl_privquant.sampling.stream import Randomness

# Larger than all noise that is drawn from a table, so that nothing is clamped.
_FAR = 1 << 40


def encode_on_lattice(
    x: ArrayLike,
    max_code: int,
    *,
    noise: IntegerNoise | None = None,
    reach: int | None = None,
    bits: int | None = None,
    clip: float = 1.0,
    stream: Randomness = None,
) -> Array:
    """Random integers of the shape of ``x``: a neighboring lattice point each, plus noise modulo 2^bits.

    Points 0 to ``max_code`` stand for -clip to clip. An input that is a share f of the way to its upper
    neighbor is rounded up with probability f, to the nearest multiple of 2^-32, so rounding is unbiased to
    2^-33 points.

    Privacy is that of the noise alone. Whatever the input, its clip and the rounding of either, the noise is
    added, in integers, to an integer in 0..max_code; the output depends on the input only through that
    integer.

    Parameters
    ----------
    x, clip, stream
        As for :func:`~fl_privquant.sampling.chunks.encode_in_chunks`. A call takes one word per input from
        the stream, two with noise.
    max_code
        The point of an input at the clip.
    noise
        What is added to points.
    reach
        With noise, sums are clamped to -reach..max_code + reach; None for no bound.
    bits
        Sums are reduced modulo 2^bits, at least ``max_code + 1``.

    Returns
    -------
    Array
        The integers.

    >>> from fl_privquant.sampling.stream import RandomStream
    >>> encode_on_lattice([-1.0, 0.0, 0.5, 7.0], 4, stream=RandomStream.seeded(1))
    array([0, 2, 3, 4], dtype=uint8)
    """
    modulus_bits = max_code.bit_length() if bits is None else bits
    beyond = _FAR if reach is None else reach

    def encode_chunk(chunk: Chunk) -> int:
        # Imported here because numba takes a second to import.
        from fl_privquant.sampling import _loops

        not_finite = _loops.round_chunk(chunk.x, chunk.clip, max_code, chunk.words, chunk.out)
        if noise is not None:
            drawn = np.empty(chunk.out.size, dtype=np.int64)
            noise.fill(drawn, chunk.stream, chunk.second_words)
            _loops.add_noise(drawn, -beyond, max_code + beyond, (1 << modulus_bits) - 1, chunk.out)
        return not_finite

    return encode_in_chunks(
        x,
        encode_chunk,
        dtype=smallest_code_type(modulus_bits),
        clip=clip,
        stream=stream,
        words_per_input=1 if noise is None else 2,
    )
