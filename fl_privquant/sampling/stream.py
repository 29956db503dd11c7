"""Random words that are fit for privacy: an AES-256-CTR keystream, addressable by word.

A privacy proof needs randomness that the adversary cannot predict. General-purpose generators do not give
it: their state can be recovered from their output. Here words are the keystream of AES-256
in counter mode (NIST SP 800-38A, section 6.5), under a key that the operating system draws.

Word i depends on the key and on i only. So the words of an update do not depend on the pieces in which they
are read.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from fl_privquant import _validation
from fl_privquant._array_types import Words
from fl_privquant.errors import MISSING, InvalidSpecError

# Seeds, rounds and clients of a stream are at most so far from 0.
_FAR = 1 << 64
_KEY_BYTES = 32
_BLOCK_BYTES = 16
_WORD_BYTES = 8
# The counter has 128 bits, and a block holds two words.
_MAX_WORDS = 2 << 128
# Zeros, whose encryption is the keystream itself; one call of the cipher encrypts at most this many.
_ZEROS = memoryview(bytes(1 << 18))
_DOMAIN = "fl_privquant random stream v1"
# How many words a continuation takes at a time.
_WORDS_AT_ONCE = 32


class RandomStream:
    """Uniform 64-bit words under one key.

    No word may be used twice: two draws from the same word are not independent, which would void every
    privacy guarantee. So a stream hands out its words through :meth:`reserve`, each once, and refuses to be
    copied or pickled. Do not share a stream across ``os.fork``. Where others can know the key (32 bytes),
    privacy is only ``simulated``.

    >>> stream = RandomStream.seeded(7, round=2, client=5)
    >>> stream.simulated, [hex(word) for word in stream.words(2)]
    (True, ['0x76b3e8979328345b', '0xe24f29c46f5a4a28'])
    """

    def __init__(self, key: bytes, *, simulated: bool) -> None:
        if len(key) != _KEY_BYTES:
            raise InvalidSpecError("key", MISSING, f"{len(key)} bytes, expected {_KEY_BYTES} (AES-256)")
        self._algorithm = algorithms.AES(key)
        self._simulated = simulated
        self._reserved = 0
        # The cipher that has last written words, by the address of the next one.
        self._ready: dict[int, CipherContext] = {}
        self._lock = threading.Lock()

    @classmethod
    def secure(cls) -> RandomStream:
        """A stream with a fresh key from the operating system, as privacy requires."""
        return cls(os.urandom(_KEY_BYTES), simulated=False)

    @classmethod
    def seeded(
        cls,
        seed: int,
        *,
        round: int = 0,  # noqa: A002
        client: int = 0,
        purpose: str = "encode",
    ) -> RandomStream:
        """The stream at this address, which is the same every time: for simulation, never for deployment.

        Different addresses give unrelated streams; anyone who knows the seed knows every word.
        """
        if not isinstance(purpose, str):
            raise InvalidSpecError("purpose", purpose, ", expected a text")
        numbers = [
            _validation.check_integer(name, number, -_FAR, _FAR)
            for name, number in (("seed", seed), ("round", round), ("client", client))
        ]
        # The free text comes last, so that different addresses never give the same text.
        address = "\0".join([_DOMAIN, *map(str, numbers), purpose])
        return cls(hashlib.sha256(address.encode()).digest(), simulated=True)

    @property
    def simulated(self) -> bool:
        """Whether the key was derived from a seed, so that privacy is simulated only."""
        return self._simulated

    def __repr__(self) -> str:
        # The key must never be shown.
        return f"RandomStream({'simulated' if self._simulated else 'secure'})"

    def __reduce__(self) -> str:
        raise TypeError("a RandomStream cannot be copied: the copy would repeat its words")

    def reserve(self, count: int) -> int:
        """Reserve ``count`` words, which are handed out to no one else; the address of the first."""
        if count < 0:
            raise InvalidSpecError("count", count, "words, expected 0 or more")
        with self._lock:
            first_word = self._reserved
            self._reserved += count
        return first_word

    def words(self, count: int) -> Words:
        """(count,) the next words."""
        out = np.empty(count, dtype=np.uint64)
        self.fill(out, self.reserve(count))
        return out

    def fill(self, out: Words, first_word: int) -> None:
        """Write the words from address ``first_word`` on into ``out``; threads may do so at once.

        Nothing is reserved here: the address should come from :meth:`reserve`.
        """
        if out.dtype != np.uint64 or out.ndim != 1 or not out.flags.c_contiguous:
            raise InvalidSpecError(
                "out", MISSING, f"{out.ndim}-d {out.dtype}, expected a contiguous vector of uint64"
            )
        encryptor = self._encryptor(first_word, out.size)
        target = out.view(np.uint8).data if out.size else b""
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            encryptor.update_into(_ZEROS[: len(part)], part)
        self._ready = {first_word + out.size: encryptor}
        # The keystream's bytes are little-endian, on every machine.
        if sys.byteorder == "big":
            out.byteswap(inplace=True)

    def integer(self, first_word: int, count: int) -> int:
        """The ``count`` words from address ``first_word`` on as one integer, the first word lowest.

        Nothing is reserved, as for :meth:`fill`. It is for a few words at a time.
        """
        encryptor = self._encryptor(first_word, count)
        return int.from_bytes(encryptor.update(_ZEROS[: count * _WORD_BYTES]), "little")

    def _encryptor(self, first_word: int, count: int) -> CipherContext:
        """The cipher at the address of a word, of which ``count`` words can be read from there."""
        if not 0 <= first_word <= _MAX_WORDS:
            raise InvalidSpecError("first_word", first_word, "is outside the stream's 2^129 words")
        left = _MAX_WORDS - first_word
        if count > left:
            raise InvalidSpecError("out", count, f"words, with {left} left of the stream's 2^129")
        # To go on is faster than to set up the cipher again. Of several threads that would, one does.
        ready = self._ready.pop(first_word, None)
        if ready is not None:
            return ready
        # Modulo the number of words, as the counter after the last word is the first one again; no word
        # is read from there.
        counter = (first_word % _MAX_WORDS // 2).to_bytes(_BLOCK_BYTES, "big")
        encryptor = Cipher(self._algorithm, modes.CTR(counter)).encryptor()
        if first_word % 2:
            encryptor.update(_ZEROS[:_WORD_BYTES])
        return encryptor


Randomness: TypeAlias = RandomStream | None
"""Where random words come from: a stream, or None for a fresh one with a key from the operating system."""


def continuation_address(word: int) -> int:
    """Where the further words of a draw begin that needs more than its own word: 2^64 words for each word.

    Streams hand out addresses from 0 on and have 2^129 of them. So whoever reserved a word below
    2^64 owns its further words too, and how many of them a draw uses changes no other draw.
    """
    return (word + 1) << 64


class Continuation:
    """Uniform integers from the words that belong to one word of a stream."""

    def __init__(self, stream: RandomStream, word: int) -> None:
        self._stream = stream
        self._next_word = continuation_address(word)
        self._pool = 0
        self._pool_bits = 0

    def below(self, bound: int) -> int:
        """A uniform integer in 0..bound - 1; larger ones are rejected and drawn again."""
        bits = (bound - 1).bit_length()
        while True:
            while self._pool_bits < bits:
                self._refill()
            drawn = self._pool & ((1 << bits) - 1)
            self._pool >>= bits
            self._pool_bits -= bits
            if drawn < bound:
                return drawn

    def _refill(self) -> None:
        self._pool |= self._stream.integer(self._next_word, _WORDS_AT_ONCE) << self._pool_bits
        self._pool_bits += 8 * _WORD_BYTES * _WORDS_AT_ONCE
        self._next_word += _WORDS_AT_ONCE
