"""Discrete Laplace and Gaussian noise by exact rejection, in integers of any size.

Reference: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy",
NeurIPS 2020, Algorithms 1 to 3. No table and no rounding: the laws are exact for every rational
parameter. The price is a loop in Python of some tens of microseconds a draw, and a running time
that depends on what is drawn. It serves where a table would be too large, and to test the tables.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import Protocol

import numpy as np

from fl_privquant.sampling.stream import RandomStream

_WORDS_AT_ONCE = 32


def continuation_address(word: int) -> int:
    """The part of the stream for a draw that needs more than its own word: 2^64 words for each word.

    Streams hand out addresses from 0 on and have 2^129 of them. So whoever reserved a word below
    2^64 owns these too, and how many of them a draw uses changes no other draw.
    """
    return (word + 1) << 64


class Uniform(Protocol):
    """A source of exactly uniform integers."""

    def below(self, bound: int) -> int:
        """A uniform integer in 0..bound - 1."""


class Continuation:
    """Uniform integers from the words that belong to one word of a stream."""

    def __init__(self, stream: RandomStream, word: int) -> None:
        self._stream = stream
        self._address = continuation_address(word)
        self._pool = 0
        self._pool_bits = 0

    def below(self, bound: int) -> int:
        """A uniform integer in 0..bound - 1, by rejection of what is too large."""
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
        words = np.empty(_WORDS_AT_ONCE, dtype=np.uint64)
        self._stream.fill(words, self._address)
        self._address += words.size
        self._pool |= int.from_bytes(words.astype("<u8").tobytes(), "little") << self._pool_bits
        self._pool_bits += 64 * words.size


def bernoulli_exp(gamma: Fraction, source: Uniform) -> bool:
    """True with probability exp(-gamma), for a rational gamma >= 0 (Algorithm 1)."""
    whole = gamma.numerator // gamma.denominator
    for _ in range(whole):
        if not _bernoulli_exp_fraction(1, 1, source):
            return False
    return _bernoulli_exp_fraction(gamma.numerator - whole * gamma.denominator, gamma.denominator, source)


def draw_laplace(scale: Fraction, source: Uniform) -> int:
    """An integer k with probability proportional to exp(-|k| / scale) (Algorithm 2)."""
    numerator, denominator = scale.numerator, scale.denominator
    while True:
        low = source.below(numerator)
        if not _bernoulli_exp_fraction(low, numerator, source):
            continue
        high = 0
        while _bernoulli_exp_fraction(1, 1, source):
            high += 1
        magnitude = (low + numerator * high) // denominator
        negative = source.below(2) == 1
        # Zero has one sign, or it would be drawn twice as often.
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def draw_gaussian(sigma_squared: Fraction, source: Uniform) -> int:
    """An integer k with probability proportional to exp(-k^2 / (2 sigma^2)) (Algorithm 3)."""
    scale = isqrt(sigma_squared.numerator // sigma_squared.denominator) + 1
    while True:
        k = draw_laplace(Fraction(scale), source)
        if bernoulli_exp((abs(k) - sigma_squared / scale) ** 2 / (2 * sigma_squared), source):
            return k


def _bernoulli_exp_fraction(numerator: int, denominator: int, source: Uniform) -> bool:
    """True with probability exp(-numerator / denominator), for a fraction in [0, 1].

    With g the fraction, trial j succeeds with probability g / j; the first failure is trial j with
    probability g^(j-1) / (j-1)! - g^j / j!, and the odd ones of these add up to exp(-g).
    """
    trial = 1
    while source.below(denominator * trial) < numerator:
        trial += 1
    return trial % 2 == 1
