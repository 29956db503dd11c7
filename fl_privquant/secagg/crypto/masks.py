"""Masks: a key expanded to one word per coordinate with AES-256 in counter mode, added modulo a power of two.

The keystream is that of GCM with a nonce of zeros (each key is used once): the counters 2, 3, ... It is read
as little-endian words of 8, 16 or 32 bits, the fewest that hold the width of the sum: words of half the width
take half as much AES. Words are added in integers of that size, which wrap around at 2^8, 2^16 or 2^32. Since
2^width divides these, the low ``width`` bits are right at the end, and uniform if the words are.

Why GCM, although its tag is not used: on processors with vector instructions for AES (VAES) OpenSSL uses them
for GCM and not for plain counter mode. Even with the tag, GCM takes two thirds of the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fl_privquant.secagg.crypto import keys as round_keys

# Small enough to stay in the fast caches beside the part of the vector that it is added to.
_CHUNK_BYTES: Final = 1 << 18
_ZEROS: Final = memoryview(bytes(_CHUNK_BYTES))
_COUNTER: Final = modes.GCM(bytes(12))


def mask_dtype(width: int) -> np.dtype[Any]:
    """The little-endian words of the masks of sums of ``width`` bits.

    >>> [mask_dtype(width).itemsize for width in (1, 8, 9, 16, 17, 32)]
    [1, 1, 2, 2, 4, 4]
    """
    return np.dtype("<u1" if width <= 8 else "<u2" if width <= 16 else "<u4")


def apply_masks(vector: NDArray[Any], keys: Iterable[tuple[bytes, bool]]) -> None:
    """Add to the vector, in place, the mask of each key, or subtract it where the flag is False.

    ``vector`` has the words of :func:`mask_dtype`.

    >>> vector = np.zeros(3, dtype=mask_dtype(12))
    >>> apply_masks(vector, [(bytes(32), True)])
    >>> vector.tobytes().hex()
    'cea7403d4d60'
    """
    buffer = np.zeros(min(vector.size, _CHUNK_BYTES // vector.itemsize), dtype=vector.dtype)
    octets = buffer.view(np.uint8).data
    parts = [vector[start : start + buffer.size] for start in range(0, vector.size, buffer.size or 1)]
    # For each part: the zeros that are encrypted, where the keystream is written, and its words. They are the
    # same for all keys.
    views = [(_ZEROS[: part.nbytes], octets[: part.nbytes], buffer[: part.size]) for part in parts]
    for key, added in keys:
        combine = np.add if added else np.subtract
        expand = Cipher(algorithms.AES(key), _COUNTER).encryptor().update_into
        for part, (zeros, written, words) in zip(parts, views, strict=True):
            expand(zeros, written)
            combine(part, words, out=part)
    buffer.fill(0)


def reduce_modulo(vector: NDArray[Any], width: int) -> None:
    """Reduce the vector modulo 2^width, in place."""
    if width < 8 * vector.itemsize:
        vector &= vector.dtype.type((1 << width) - 1)


def derive_pair_mask_key(root: bytes | bytearray, masks_digest: bytes, one: bytes, other: bytes) -> bytes:
    """The key of the mask that two clients with these public keys have in common, from its root."""
    return round_keys.derive(root, masks_digest, round_keys.PAIRWISE_MASK, *sorted((one, other)))
