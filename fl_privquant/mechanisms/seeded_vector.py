"""Common code of mechanisms whose messages are a seed, which both ends expand, and a few bits per draw.

The seed does not depend on the data, so that the receiver may know it. Messages with seeds of their own have
no sum that means anything: these mechanisms are for the local view.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fl_privquant.array_types import Floats
from fl_privquant.mechanisms.unsummable import UnsummableMechanism
from fl_privquant.mechanisms.vector import ResponseMechanism
from fl_privquant.sampling.stream import Continuation

SEED_BITS = 64
"""Bits of a seed, which a message begins with."""


def bits_of(number: int, count: int) -> list[int]:
    """The lowest ``count`` bits of a number, the lowest first.

    >>> bits_of(6, 4)
    [0, 1, 1, 0]
    """
    return [number >> place & 1 for place in range(count)]


def number_of(bits: Sequence[int]) -> int:
    """The number with these bits, the lowest first.

    >>> number_of([0, 1, 1, 0])
    6
    """
    return sum(bit << place for place, bit in enumerate(bits))


class SeededVectorMechanism(UnsummableMechanism, ResponseMechanism):
    """A :class:`ResponseMechanism` whose message is the bits of a seed, then those of each draw's answer."""

    @property
    @abstractmethod
    def answer_bits(self) -> int:
        """Bits that the answer of one draw takes."""

    @abstractmethod
    def _answer(self, x: Floats, seed: int, draw: int, source: Continuation) -> int:
        """The random answer of one draw for an input in the unit ball."""

    @abstractmethod
    def _told(self, answer: int, seed: int, draw: int) -> Floats:
        """(dimension,) the vector that the answer of a draw stands for, up to a constant."""

    @property
    def message_size(self) -> int:
        return SEED_BITS + self.repeats * self.answer_bits

    def _draw(self, x: Floats, source: Continuation) -> list[int]:
        seed = source.below(1 << SEED_BITS)
        message = bits_of(seed, SEED_BITS)
        for draw in range(self.repeats):
            message += bits_of(self._answer(x, seed, draw, source), self.answer_bits)
        return message

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        bits = self._checked_message(indices).tolist()
        seed = number_of(bits[:SEED_BITS])
        total = np.zeros(self.dimension)
        for draw in range(self.repeats):
            first = SEED_BITS + draw * self.answer_bits
            total += self._told(number_of(bits[first : first + self.answer_bits]), seed, draw)
        return np.asarray(self._scale(clip) * total)
