"""Common code of mechanisms that send an index into a random codebook which both ends know.

Some codewords, those near the update, have one weight, all others another: these are integers, so that the
chances of an index are exact. Mechanisms differ in which codewords are near, and in the weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.array_types import Floats
from fl_privquant.errors import CodeOverflowError, InvalidSpecError
from fl_privquant.mechanisms.bit_messages import SeededVectorMechanism
from fl_privquant.mechanisms.sphere import RandomCodebook
from fl_privquant.mechanisms.vector import happens
from fl_privquant.sampling.stream import Continuation

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
    """An index into a random codebook, for updates of norm at most clip; see :class:`SeededVectorMechanism`.

    The answer of a draw is an index.
    """

    levels: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_codebook(self.levels, self.dimension)

    def _chosen_for(self, dimension: int) -> dict[str, Any]:
        given = self.parameters.get("levels") is not None
        return {} if given else {"levels": self._usual_levels(dimension)}

    @property
    def num_answers(self) -> int:
        return self.levels

    @property
    def answer_bits(self) -> int:
        return (self.levels - 1).bit_length()

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
    def _share(self) -> float:
        """Epsilon of one draw; that of all draws together is not above what is claimed."""
        share = self.claimed_epsilon / self.repeats
        if Fraction(share) * self.repeats > Fraction(self.claimed_epsilon):
            share = math.nextafter(share, 0.0)
        return share

    def _answer(self, x: Floats, seed: int, draw: int, source: Continuation) -> int:
        length = float(np.linalg.norm(x))
        sign = 1.0 if happens(0.5 * (1.0 + length), source) else -1.0
        direction = sign / length * x if length else x
        near = self._near(RandomCodebook(seed, draw, self.dimension), direction)
        return subset_response(near, self.levels, self._weights, source)

    def _told(self, answer: int, seed: int, draw: int) -> Floats:
        if answer >= self.levels:
            raise CodeOverflowError(f"message: index {answer} is outside 0..{self.levels - 1}")
        return RandomCodebook(seed, draw, self.dimension).codeword(answer)


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
