"""The encoder: from real inputs to random indices with exactly the law of a certified table."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.law.table import CertifiedTable
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.sampling.tables import prepare


class Sampler:
    """Draws indices with the law of a certified table, one 64-bit random word a coordinate.

    For input x in a piece [a, b], the high half of the word chooses the row at b with probability
    (x - a) / (b - a), to the nearest multiple of 2^-32, else the row at a; the low half draws from
    that row's integer weights, exactly.

    Guarantee: the table's certified epsilon, for each coordinate and release. Every output comes
    from one of the certified rows, whatever the input, the clip and the rounding of either.
    Assumes: words that nobody else can predict, each used once; see :class:`RandomStream`.

    Examples
    --------
    >>> from fl_privquant.law.codebook import Codebook
    >>> from fl_privquant.law.law import Law
    >>> law = Law.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
    >>> table = CertifiedTable.from_law(law, Codebook.from_values(law.values), epsilon=1.1)
    >>> Sampler(table).encode([[0.1, -0.1], [0.0, 7.0]], clip=0.1, stream=RandomStream.seeded(1))
    array([[1, 0],
           [0, 1]], dtype=uint8)
    """

    def __init__(self, table: CertifiedTable) -> None:
        self.table = table
        self._tables = prepare(table)

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """Type of the indices: uint8 up to 256 levels, else uint16."""
        return np.dtype(np.uint8) if self.table.codebook.num_levels <= 256 else np.dtype(np.uint16)

    def encode(
        self,
        x: ArrayLike,
        *,
        clip: float = 1.0,
        stream: RandomStream | None = None,
        threads: int = 1,
    ) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Random indices of the shape of ``x``: the values they stand for, times ``clip``, average to ``x``.

        Parameters
        ----------
        x
            Floating-point inputs of any shape and strides, clipped to [-clip, clip]. Integers are
            refused: an update that holds counts or indices is a mistake upstream.
        clip
            Half the width of the input range.
        stream
            Where randomness comes from: by default a stream with a fresh key from the operating
            system. A call takes ``x.size`` words from it. The same words give the same indices,
            however many threads, and in single as in double precision.
        threads
            Threads that share the work; more than one pays off from some 10^5 inputs on.

        Raises
        ------
        InvalidUpdateError
            If an input is not a finite floating-point number; nothing is encoded then.
        """
        return encode_in_chunks(
            x, self._encode_chunk, dtype=self.dtype, clip=clip, stream=stream, threads=threads
        )

    def _encode_chunk(self, chunk: Chunk) -> int:
        from fl_privquant.sampling import loops

        return loops.encode_chunk(chunk.x, chunk.clip, chunk.words, self._tables, chunk.out)
