"""Random words that are fit for privacy: an AES-256-CTR keystream, addressable by word.

A privacy proof needs randomness that the adversary cannot predict. General-purpose generators do not give
it: their state can be recovered from their output. Here words are the keystream of AES-256
in counter mode (NIST SP 800-38A, section 6.5), under a key that the operating system draws.

Word i depends on the key and on i only. So the words of an update do not depend on the pieces in which they
are read, nor on the number of threads that read them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

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
# Up to this many words are read by a reader that the stream keeps, one thread at a time.
_FEW_WORDS = 1 << 10


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
        self._lock = threading.Lock()
        self._kept_reader: WordReader | None = None
        self._reading = threading.Lock()

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
        if out.size > _FEW_WORDS:
            self.reader(first_word).read(out)
            return
        with self._reading:
            self._move_to(first_word).read(out)

    def integer(self, first_word: int, count: int) -> int:
        """The ``count`` words from address ``first_word`` on as one integer, as :meth:`WordReader.integer`.

        Nothing is reserved, as for :meth:`fill`.
        """
        with self._reading:
            return self._move_to(first_word).integer(count)

    def _move_to(self, first_word: int) -> WordReader:
        """The reader that the stream keeps, at that address; only for the thread that holds its lock."""
        if self._kept_reader is None:
            self._kept_reader = self.reader(first_word)
        else:
            self._kept_reader.move(first_word)
        return self._kept_reader

    def reader(self, first_word: int) -> WordReader:
        """A reader of the words from address ``first_word`` on; nothing is reserved, as for :meth:`fill`."""
        return WordReader(self._algorithm, first_word)


Randomness: TypeAlias = RandomStream | None
"""Where random words come from: a stream, or None for a fresh one with a key from the operating system."""


class WordReader:
    """Reads the words of a stream one after the other, in one thread.

    To set a reader up takes as long as to read thousands of words, so a reader should be kept.
    """

    def __init__(self, algorithm: algorithms.AES, first_word: int) -> None:
        self._encryptor = Cipher(algorithm, modes.CTR(self._counter(first_word))).encryptor()
        self._begin(first_word)

    def move(self, first_word: int) -> None:
        """Go on at another address, which takes a tenth of the time of a new reader."""
        self._encryptor.reset_nonce(self._counter(first_word))
        self._begin(first_word)

    @staticmethod
    def _counter(first_word: int) -> bytes:
        """The counter of the block that a word is in."""
        if not 0 <= first_word <= _MAX_WORDS:
            raise InvalidSpecError("first_word", first_word, "is outside the stream's 2^129 words")
        # Modulo the number of words, as the counter after the last word is the first one again; no word
        # is read from there.
        return (first_word % _MAX_WORDS // 2).to_bytes(_BLOCK_BYTES, "big")

    def _begin(self, first_word: int) -> None:
        self._left = _MAX_WORDS - first_word
        if first_word % 2:
            self._encryptor.update(_ZEROS[:_WORD_BYTES])

    def read(self, out: Words) -> None:
        """Write the next words into ``out``: the keystream's bytes as little-endian, on every machine."""
        if out.dtype != np.uint64 or out.ndim != 1 or not out.flags.c_contiguous:
            raise InvalidSpecError(
                "out", MISSING, f"{out.ndim}-d {out.dtype}, expected a contiguous vector of uint64"
            )
        self._take(out.size)
        if out.size == 0:
            return
        target = out.view(np.uint8).data
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)

    def integer(self, count: int) -> int:
        """The next ``count`` words as one integer, the first word lowest; for a few words at a time."""
        self._take(count)
        return int.from_bytes(self._encryptor.update(_ZEROS[: count * _WORD_BYTES]), "little")

    def _take(self, count: int) -> None:
        if count > self._left:
            raise InvalidSpecError("out", count, f"words, with {self._left} left of the stream's 2^129")
        self._left -= count


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
