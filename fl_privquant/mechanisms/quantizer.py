"""Common code of quantizers of whole updates without privacy.

Each sends the length of the update in double precision before its other bits, so that its error is that of
the direction times the squared length, whatever the clip. Updates outside of the ball are moved to its
surface, as for every mechanism.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.array_types import Floats
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.law.density import Density
from fl_privquant.mechanisms.continuous import open_uniforms
from fl_privquant.mechanisms.unsummable import UnsummableMechanism
from fl_privquant.mechanisms.vector import VectorMechanism, VectorSpec
from fl_privquant.sampling.rejection import Continuation
from fl_privquant.sampling.stream import RandomStream

Bits = NDArray[np.uint8]

LENGTH_BITS = 64
"""Bits of a length, which messages begin with."""


@dataclass(frozen=True, kw_only=True)
class QuantizerSpec(VectorSpec):
    """The specification of a quantizer; see :class:`VectorSpec`. It encodes an update once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeats not in (None, 1):
            raise InvalidSpecError(
                f"repeats: {self.repeats}, but this mechanism encodes an update once; use 1"
            )


class QuantizerMechanism(UnsummableMechanism, VectorMechanism):
    """A quantizer of whole updates; its message is bits, first those of a length of at most 1."""

    norm: ClassVar[str] = "l2"
    private: ClassVar[bool] = False

    @property
    def _epsilon(self) -> float:
        return math.inf

    @property
    def message_bits(self) -> int:
        return 1

    @property
    @abstractmethod
    def unit_error(self) -> float:
        """Mean squared Euclidean error for an input uniform on the unit sphere."""

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Mean squared error of a coordinate, for inputs uniform in the unit ball."""
        if density is not None and self.dimension > 1:
            raise InvalidSpecError(
                f"{self.name}: its error depends on all {self.dimension} coordinates together; use "
                "squared_error of an input"
            )
        # A squared length is d / (d + 2) on average.
        return self.unit_error / (self.dimension + 2.0)

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error of one coordinate that is a whole update: its length tells it."""
        if self.dimension > 1:
            raise InvalidSpecError(
                f"{self.name}: the mean absolute error of one of {self.dimension} coordinates depends on all "
                "of them and has no closed form; use mse, or squared_error of an input"
            )
        return 0.0

    def _split(self, indices: ArrayLike) -> tuple[float, Bits]:
        """The length of a message, and its other bits."""
        bits = self._checked_message(indices).astype(np.uint8)
        length = float(np.packbits(bits[:LENGTH_BITS], bitorder="little").view("<f8")[0])
        if not 0.0 <= length <= 1.0 + 1e-9:
            raise InvalidUpdateError(f"message: a length of {length}, expected 0 to 1")
        return length, bits[LENGTH_BITS:]


def length_bits(length: float) -> Bits:
    """The bits of a length in double precision."""
    return np.unpackbits(np.array([length], dtype="<f8").view(np.uint8), bitorder="little")


def to_bits(numbers: NDArray[np.int64], width: int) -> Bits:
    """The lowest ``width`` bits of each number, the lowest first.

    >>> to_bits(np.array([1, 6]), 3)
    array([1, 0, 0, 0, 1, 1], dtype=uint8)
    """
    places = np.arange(width)
    return ((numbers[:, None] >> places) & 1).astype(np.uint8).reshape(-1)


def from_bits(bits: Bits, width: int) -> NDArray[np.int64]:
    """The numbers whose bits these are.

    >>> from_bits(np.array([1, 0, 0, 0, 1, 1], dtype=np.uint8), 3)
    array([1, 6])
    """
    return np.asarray(bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width)))


def uniforms(source: Continuation, count: int) -> Floats:
    """(count,) random numbers in (0, 1)."""
    stream = RandomStream(source.below(1 << 256).to_bytes(32, "little"), simulated=True)
    return open_uniforms(stream.words(count))
