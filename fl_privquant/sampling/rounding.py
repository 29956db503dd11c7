"""Randomized rounding to a lattice, with or without integer noise: the encoder of additive mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.discrete import IntegerNoise
from fl_privquant.sampling.stream import RandomStream

# More than any noise that is drawn from a table.
_FAR = 1 << 40


def encode_on_lattice(
    x: ArrayLike,
    max_code: int,
    *,
    noise: IntegerNoise | None = None,
    reach: int | None = None,
    bits: int | None = None,
    clip: float = 1.0,
    stream: RandomStream | None = None,
    threads: int = 1,
) -> NDArray[Any]:
    """Random integers of the shape of ``x``: a neighbouring lattice point each, plus noise modulo 2^bits.

    Points 0 to ``max_code`` stand for -clip to clip. The upper neighbour is chosen with the input's
    share of the way to it, to the nearest multiple of 2^-32, so rounding is unbiased to 2^-33 points.

    Privacy is that of the noise alone. Whatever the input, its clip and the rounding of either, the
    noise is added to an integer in 0..max_code, in integers; so no digit of the input is left in the
    output but through that integer.

    Parameters
    ----------
    x
        Floating-point inputs of any shape and strides, clipped to [-clip, clip].
    max_code
        Number of lattice points less one.
    noise
        What is added; None for rounding alone.
    reach
        With noise, the sum is clamped to -reach..max_code + reach; None for no bound.
    bits
        With noise, the output is reduced modulo 2^bits, at least ``max_code + 1``.
    clip, stream, threads
        As for :meth:`fl_privquant.sampling.kernel.Sampler.encode`. A call takes one word an input
        from the stream, two with noise.

    >>> encode_on_lattice([-1.0, 0.0, 0.5, 7.0], 4, stream=RandomStream.seeded(1))
    array([0, 2, 3, 4], dtype=uint8)
    """
    modulus_bits = max_code.bit_length() if bits is None else bits
    return encode_in_chunks(
        x,
        _rounding(max_code, noise, _FAR if reach is None else reach, mask=(1 << modulus_bits) - 1),
        dtype=code_type(modulus_bits),
        clip=clip,
        stream=stream,
        threads=threads,
        words_per_input=1 if noise is None else 2,
    )


def _rounding(max_code: int, noise: IntegerNoise | None, reach: int, mask: int) -> Callable[[Chunk], int]:
    """A function that encodes a chunk and returns how many of its inputs are not finite."""

    def encode_chunk(chunk: Chunk) -> int:
        # Numba takes a second to import: only who encodes pays for it.
        from fl_privquant.sampling import loops

        not_finite = loops.round_chunk(chunk.x, chunk.clip, max_code, chunk.words, chunk.out)
        if noise is not None:
            drawn = np.empty(chunk.out.size, dtype=np.int64)
            noise.fill(drawn, chunk.stream, chunk.second_words)
            loops.add_noise(drawn, -reach, max_code + reach, mask, chunk.out)
        return not_finite

    return encode_chunk


def code_type(bits: int) -> np.dtype[Any]:
    """The smallest unsigned integers that hold ``bits`` bits, up to 32."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)
