"""Common code of mechanisms whose messages are a seed, which both ends expand, and a few bits per draw.

The seed does not depend on the data, so that the receiver may know it. Messages with seeds of their own have
no sum that means anything: these mechanisms are for the local view.
"""

from __future__ import annotations

from collections.abc import Sequence

from fl_privquant.mechanisms.unsummable import UnsummableMechanism
from fl_privquant.mechanisms.vector import ResponseMechanism
from fl_privquant.sampling.rejection import Continuation

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
    """A :class:`ResponseMechanism` whose message is the bits of a seed, and of what its draws tell."""

    @property
    def message_bits(self) -> int:
        return 1

    def _new_seed(self, source: Continuation) -> int:
        return source.below(1 << SEED_BITS)
