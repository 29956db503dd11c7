"""Mechanisms whose codes are integers modulo a power of two: the common code of integer noise.

The codes of several clients are added up in the ring of integers modulo 2^wrap_bits. A sum is decoded to the
right integer unless noise carries it out of the room that the ring has for it; the probability of that is
bounded when the mechanism is made, before anything is sent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Ints
from fl_privquant._validation import integer_between, number_between
from fl_privquant.distributions.codebook import MAX_LEVELS
from fl_privquant.errors import CertificationError, CodeOverflowError, InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.packing.wire_format import PackedIndices, WireFormat

MAX_WRAP_BITS = 32
"""Widest ring: codes are at most uint32."""

NumClients = Annotated[int, integer_between(1, 1 << 31)]
WrapBits = Annotated[int, integer_between(1, MAX_WRAP_BITS)]
OptionalWrapBits = Annotated[int | None, integer_between(1, MAX_WRAP_BITS)]
OverflowProbability = Annotated[float, number_between("(0, 0.01]", "typical values are 1e-9 to 1e-6")]

# Widest ring whose output probabilities are listed one by one.
_MAX_LISTED_BITS = 20


class ResidueMechanism(Mechanism):
    """A mechanism with codes modulo 2^wrap_bits, certified when made. Subclasses declare these fields."""

    num_clients: int
    wrap_bits: int
    claimed_epsilon: float
    claimed_delta: float
    claimed_overflow_probability: float

    def __post_init__(self) -> None:
        _validation.check_declared(self)
        if not (self.epsilon <= self.claimed_epsilon and self.delta <= self.claimed_delta):
            raise CertificationError(self.statement.above(self.claimed_epsilon, self.claimed_delta))
        if not self.overflow_probability <= self.claimed_overflow_probability:
            raise CertificationError(
                f"overflow probability {self.overflow_probability:.9g} of {self.num_clients} clients in "
                f"{self.wrap_bits} bits is above the claimed {self.claimed_overflow_probability:.9g}"
            )

    @property
    @abstractmethod
    def overflow_probability(self) -> float:
        """Bound of the probability that noise carries a coordinate of the clients' sum out of the ring."""

    @abstractmethod
    def delta_at(self, epsilon: float) -> float:
        """The certified delta of one coordinate, one release, local view, at another epsilon."""

    @property
    def epsilon(self) -> float:
        return self._privacy[0]

    @property
    def delta(self) -> float:
        """The certified delta at :attr:`epsilon`: never below the exact one."""
        return self._privacy[1]

    @cached_property
    def _privacy(self) -> tuple[float, float]:
        """The certified epsilon and delta."""
        return self.claimed_epsilon, self.delta_at(self.claimed_epsilon)

    @property
    def num_levels(self) -> int:
        """Number of codes: 2^wrap_bits."""
        return 1 << self.wrap_bits

    @property
    def values(self) -> Floats:
        """(2^wrap_bits,) the value that each code of one client stands for, for inputs in [-1, 1]."""
        return self.decode(np.arange(self._check_listed_levels()))

    @property
    def bits_per_coordinate(self) -> float:
        return float(self.wrap_bits)

    def wire_format(self, dimension: int, clip: float, dtype: np.dtype[Any]) -> WireFormat:
        if self.num_levels > MAX_LEVELS:
            return super().wire_format(dimension, clip, dtype)
        return PackedIndices(self, dimension, clip, dtype, self.num_levels)

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        return self.decode_sum(indices, 1, clip)

    def to_codes(self, indices: Array) -> Ints:
        return np.asarray(indices).astype(np.int64)

    def sum_bits(self, num_clients: int) -> int:
        """Bits of the ring; it holds the codes of as many clients as it was designed for."""
        if num_clients < 1:
            raise InvalidSpecError("num_clients", num_clients, "is below 1")
        if num_clients > self.num_clients:
            raise CodeOverflowError(
                f"{self.name}: its {self.wrap_bits} bits were designed for the sum of {self.num_clients} "
                f"codes, not of {num_clients}; design it with num_clients={num_clients}"
            )
        return self.wrap_bits

    def _representatives(self, sums: Array, lowest: int) -> Floats:
        """The integers from ``lowest`` on that have the residues ``sums``, as floats."""
        # Computed in place, as new memory for every step would cost more time than the arithmetic.
        above = sums.astype(np.int64)
        above -= lowest
        above &= (1 << self.wrap_bits) - 1
        numbers = above.astype(np.float64)
        numbers += lowest
        return numbers

    def _check_listed_levels(self) -> int:
        if self.wrap_bits > _MAX_LISTED_BITS:
            raise InvalidSpecError(
                "wrap_bits",
                self.wrap_bits,
                f"gives {self.name} too many codes to list",
                f"at most {_MAX_LISTED_BITS} is possible",
            )
        return self.num_levels


def choose_ring_bits(wanted: int | None, overflow: Callable[[int], float], allowed: float, noise: str) -> int:
    """The bits of a ring: those that are wanted, if they are enough, or by default the fewest that are.

    ``overflow`` gives the probability of an overflow for a number of bits, and ``noise`` says in error texts
    whose noise it is.
    """
    enough = (bits for bits in range(1, MAX_WRAP_BITS + 1) if overflow(bits) <= allowed)
    least = next(enough, MAX_WRAP_BITS + 1)
    bits = least if wanted is None else wanted
    if bits < least or bits > MAX_WRAP_BITS:
        needed = f"more than {MAX_WRAP_BITS}" if least > MAX_WRAP_BITS else least
        raise InfeasibleDesignError(
            f"{noise} needs {needed} bits to overflow with probability {allowed:g} at most, not "
            f"{min(bits, MAX_WRAP_BITS)}; raise wrap_bits or overflow_probability, or lower num_clients"
        )
    return bits
