"""Common code of mechanisms that encode whole updates to messages of bits, which cannot be summed.

*Seeded* messages begin with a seed, from which client and server derive the same random vectors, followed by
a few bits for each draw. The seed does not depend on the data, so that the server may know it. Sums of
messages with different seeds mean nothing, so that these mechanisms are for the local view.

*Quantizers* are not private. Most send a length in double precision before their other bits
(:class:`LengthQuantizer`). So the squared error is that of the direction times the squared length, whatever
the clip. Updates outside of the ball are moved to its surface, as for every mechanism.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Bits, Floats, Ints
from fl_privquant.distributions.input_density import Density
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms._continuous import words_to_uniforms
from fl_privquant.mechanisms.vectors.base import ResponseMechanism, VectorMechanism, VectorSpec
from fl_privquant.sampling.stream import Continuation, RandomStream

SEED_BITS = 64
"""Bits of a seed, which seeded messages begin with."""

_LENGTH_BITS = 64


def int_to_bits(number: int, count: int) -> Bits:
    """(count,) the lowest bits of a number below 2^count, the lowest first.

    >>> int_to_bits(6, 4)
    array([0, 1, 1, 0], dtype=uint8)
    """
    as_bytes = np.frombuffer(number.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
    return np.unpackbits(as_bytes, count=count, bitorder="little")


def bits_to_int(bits: Array) -> int:
    """The number with these bits, the lowest first.

    >>> bits_to_int(np.array([0, 1, 1, 0]))
    6
    """
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


class SeededVectorMechanism(ResponseMechanism):
    """A :class:`ResponseMechanism` whose message is the bits of a seed, then those of each draw's answer."""

    @property
    @abstractmethod
    def answer_bits(self) -> int:
        """Bits that the answer of one draw takes."""

    @abstractmethod
    def _answer(self, x: Floats, seed: int, draw: int, source: Continuation) -> int:
        """The random answer of one draw for an input in the unit ball."""

    @abstractmethod
    def _decode_answer(self, answer: int, seed: int, draw: int) -> Floats:
        """(dimension,) the vector that the answer of a draw stands for, up to a constant."""

    @property
    def message_size(self) -> int:
        return SEED_BITS + self.repeats * self.answer_bits

    def _draw(self, x: Floats, source: Continuation) -> Bits:
        seed = source.below(1 << SEED_BITS)
        answers = np.array([self._answer(x, seed, draw, source) for draw in range(self.repeats)])
        return np.concatenate([int_to_bits(seed, SEED_BITS), numbers_to_bits(answers, self.answer_bits)])

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        bits = self._check_message(indices).astype(np.uint8)
        seed, answers = bits_to_int(bits[:SEED_BITS]), bits_to_numbers(bits[SEED_BITS:], self.answer_bits)
        total = np.zeros(self.dimension)
        for draw, answer in enumerate(answers.tolist()):
            total += self._decode_answer(answer, seed, draw)
        return np.asarray(self._scale(clip) * total)


@dataclass(frozen=True, kw_only=True)
class QuantizerSpec(VectorSpec):
    """The specification of a quantizer; see :class:`VectorSpec`. Its only number of repeats is 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeats not in (None, 1):
            raise InvalidSpecError(
                "repeats", self.repeats, ", but this mechanism encodes an update once", "use 1"
            )


class QuantizerMechanism(VectorMechanism):
    """A quantizer of whole updates; its message is bits."""

    private: ClassVar[bool] = False

    @property
    @abstractmethod
    def unit_error(self) -> float:
        """Mean squared Euclidean error for an input uniform on the unit sphere."""

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Mean squared error of a coordinate, for inputs uniform in the unit ball."""
        if density is not None and self.dimension > 1:
            raise InvalidSpecError(
                "mechanism",
                self.name,
                f": its error depends on all {self.dimension} coordinates together",
                "use squared_error of an input",
            )
        # The squared length of a uniform point of the ball is d / (d + 2) on average.
        return self.unit_error / (self.dimension + 2.0)

    def _mae_of_one(self, density: Density | ArrayLike | None) -> float:
        # A single coordinate is sent unchanged.
        return 0.0


class LengthQuantizer(QuantizerMechanism):
    """A quantizer whose message begins with a length of at most 1; the other bits are relative to it."""

    @property
    @abstractmethod
    def direction_bits(self) -> int:
        """Number of bits after the length."""

    @abstractmethod
    def _quantize(self, x: Floats, source: Continuation) -> tuple[float, Bits]:
        """The length that is sent for an input in the unit ball, and the bits after it."""

    @abstractmethod
    def _estimate(self, length: float, bits: Bits) -> Floats:
        """The estimate that the bits give, for a length that is already multiplied by the clip."""

    @property
    def message_size(self) -> int:
        return _LENGTH_BITS + self.direction_bits

    def _draw(self, x: Floats, source: Continuation) -> Bits:
        length, bits = self._quantize(x, source)
        as_bytes = np.array([length], dtype="<f8").view(np.uint8)
        return np.concatenate([np.unpackbits(as_bytes, bitorder="little"), bits])

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        bits = self._check_message(indices).astype(np.uint8)
        length = float(np.packbits(bits[:_LENGTH_BITS], bitorder="little").view("<f8")[0])
        if not 0.0 <= length <= 1.0 + 1e-9:
            raise InvalidUpdateError(f"message: a length of {length}, expected 0 to 1")
        return self._estimate(_validation.check_positive("clip", clip) * length, bits[_LENGTH_BITS:])


def numbers_to_bits(numbers: Ints, width: int) -> Bits:
    """The lowest ``width`` bits of each number, the lowest first.

    >>> numbers_to_bits(np.array([1, 6]), 3)
    array([1, 0, 0, 0, 1, 1], dtype=uint8)
    """
    places = np.arange(width)
    return ((numbers[:, None] >> places) & 1).astype(np.uint8).reshape(-1)


def bits_to_numbers(bits: Bits, width: int) -> Ints:
    """The numbers whose bits these are.

    >>> bits_to_numbers(np.array([1, 0, 0, 0, 1, 1], dtype=np.uint8), 3)
    array([1, 6])
    """
    return np.asarray(bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width)))


def draw_uniforms(source: Continuation, count: int) -> Floats:
    """(count,) random numbers in (0, 1)."""
    stream = RandomStream(source.below(1 << 256).to_bytes(32, "little"), simulated=True)
    return words_to_uniforms(stream.words(count))
