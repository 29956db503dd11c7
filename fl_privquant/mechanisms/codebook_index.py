"""Common code of mechanisms that send an index into a random codebook which both ends know.

Some codewords, those near the update, have one weight, all others another: these are integers, so that the
chances of an index are exact. Mechanisms differ in which codewords are near, and in the weights.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant import checks
from fl_privquant.array_types import Floats
from fl_privquant.errors import CodeOverflowError, InvalidSpecError
from fl_privquant.mechanisms.seeded_vector import SEED_BITS, SeededVectorMechanism, bits_of, number_of
from fl_privquant.mechanisms.sphere import RandomCodebook
from fl_privquant.mechanisms.vector import happens
from fl_privquant.sampling.rejection import Continuation

_MOST_LEVELS = 1 << 16
# This takes some minutes of one core; a server must not ask clients for more.
_MOST_NUMBERS = 1 << 34
RARE = 1 << 64
"""Weight of a far codeword."""

# The largest exponent for which weights are told apart: beyond, a far codeword is drawn less than once in
# 10^26 times.
_MOST_EXPONENT = 60


@dataclass(frozen=True, eq=False, repr=False)
class CodebookIndexMechanism(SeededVectorMechanism):
    """An index into a random codebook, for updates of norm at most clip; see :class:`VectorMechanism`.

    A message is the bits of the seed and of the index of each draw, lowest first.
    """

    norm: ClassVar[str] = "l2"

    levels: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codebook(self.levels, self.dimension)

    def for_dimension(self, dimension: int) -> Self:
        """The mechanism for another number of coordinates, with as many codewords as it then needs."""
        if dimension == self.dimension:
            return self
        given = self.parameters.get("levels") is not None
        levels = self.levels if given else self._usual_levels(dimension)
        parameters = {**self.parameters, "dimension": dimension}
        return dataclasses.replace(self, dimension=dimension, levels=levels, parameters=parameters)

    @property
    def num_answers(self) -> int:
        return self.levels

    @property
    def message_size(self) -> int:
        return SEED_BITS + self.repeats * self._index_bits

    @abstractmethod
    def _usual_levels(self, dimension: int) -> int:
        """The default number of codewords for so many coordinates."""

    @property
    @abstractmethod
    def _weights(self) -> tuple[int, int]:
        """Weights of each near codeword and of each far one, before they are divided by their sum."""

    @abstractmethod
    def _near(self, codebook: RandomCodebook, direction: Floats) -> NDArray[np.int64]:
        """The indices of the codewords that have more weight, increasing."""

    @property
    def _index_bits(self) -> int:
        return (self.levels - 1).bit_length()

    @property
    def _share(self) -> float:
        """Epsilon of one draw; that of all draws together is not above what is claimed."""
        share = self.claimed_epsilon / self.repeats
        if Fraction(share) * self.repeats > Fraction(self.claimed_epsilon):
            share = math.nextafter(share, 0.0)
        return share

    def _draw(self, x: Floats, source: Continuation) -> list[int]:
        length = float(np.linalg.norm(x))
        seed = self._new_seed(source)
        message = bits_of(seed, SEED_BITS)
        for draw in range(self.repeats):
            sign = 1.0 if happens(0.5 * (1.0 + length), source) else -1.0
            direction = sign / length * x if length else x
            near = self._near(RandomCodebook(seed, draw, self.dimension), direction)
            index = subset_response(near, self.levels, self._weights, source)
            message += bits_of(index, self._index_bits)
        return message

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        bits = self._checked_message(indices).tolist()
        seed = number_of(bits[:SEED_BITS])
        total = np.zeros(self.dimension)
        for draw in range(self.repeats):
            start = SEED_BITS + draw * self._index_bits
            index = number_of(bits[start : start + self._index_bits])
            if index >= self.levels:
                raise CodeOverflowError(f"message: index {index} is outside 0..{self.levels - 1}")
            total += RandomCodebook(seed, draw, self.dimension).codeword(index)
        return np.asarray(checks.positive("clip", clip) * self.output_norm / self.repeats * total)


def check_codebook(levels: int, dimension: int) -> None:
    """Refuse a codebook that cannot be, or that a client should not be made to compute."""
    if not 2 <= levels <= _MOST_LEVELS:
        raise InvalidSpecError(f"levels: {levels} codewords, expected 2 to {_MOST_LEVELS}")
    if levels * dimension > _MOST_NUMBERS:
        raise InvalidSpecError(
            f"levels: {levels} codewords of {dimension} coordinates are {levels * dimension} numbers for "
            f"each update, above {_MOST_NUMBERS}; lower levels, or encode fewer coordinates"
        )


def subset_response(
    near: NDArray[np.int64], levels: int, weights: tuple[int, int], source: Continuation
) -> int:
    """An index: each near one with the first weight, each other one with the second."""
    common, rare = weights
    drawn = source.below(near.size * common + (levels - near.size) * rare)
    if drawn < near.size * common:
        return int(near[drawn // common])
    other = (drawn - near.size * common) // rare
    # The far index of that rank: as many near ones are to be passed as lie before it.
    return int(other + np.searchsorted(near - np.arange(near.size), other, side="right"))


@lru_cache(maxsize=256)
def near_weight(epsilon: float) -> int:
    """The largest weight of a near codeword whose ratio to that of a far one is at most e^epsilon.

    >>> math.isclose(math.log(near_weight(1.0) / RARE), 1.0)
    True
    """
    with localcontext() as context:
        context.prec = 60
        weight = int(min(Decimal(epsilon), Decimal(_MOST_EXPONENT)).exp() * RARE * (1 - Decimal(10) ** -50))
    if weight <= RARE:
        raise InvalidSpecError(f"epsilon: {epsilon} a draw is too small for chances of 64 bits; raise it")
    return weight
