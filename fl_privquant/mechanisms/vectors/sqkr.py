"""SQKR: signs of a few coordinates in a random frame, reported together by randomized response.

**The mechanism.** Subsampled and quantized Kashin's response represents an update in a frame in which it is
spread evenly, samples k of its coordinates there, rounds each to one bit, and reports the k bits together by
randomized response among 2^k answers. The published frame is Kashin's, with twice as many vectors as
coordinates; here it is a random orthonormal one. The coordinates sampled there are inner products with k
random orthonormal vectors, which come from a seed that the receiver knows.

With such a frame a coordinate need not be rounded without bias: its sign is enough. The distribution of the
frame is invariant under rotations, so that the mean of sum_j sign(<u_j, x>) u_j has the direction of x; its
length is k E|V|, with V a coordinate of a uniform unit vector. Signs are the limit of the published quantizer
for small ranges, which has the least error of all ranges. Lengths below 1 are made right on average by taking
the opposite direction with probability (1 - |x|) / 2.

``sampled`` is k; the default has the least error.

Guarantee: ``epsilon``-differential privacy of one client round, local view, for any two updates, certified
on the integer chances of the answers; unbiased for updates in the ball, to 1e-6 of the length of the
estimate.
Assumes: nothing about the inputs.
Reference: Chen, Kairouz, Ozgur, "Breaking the Communication-Privacy-Accuracy Trilemma", NeurIPS 2020.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Self

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.base import PrivateVectorSpec, draw_bernoulli, respond
from fl_privquant.mechanisms.vectors.bit_messages import SeededVectorMechanism, bits_to_int, int_to_bits
from fl_privquant.mechanisms.vectors.sphere import derive_orthonormal_rows, euclidean_norm, mean_projection
from fl_privquant.sampling.stream import Continuation

_MAX_SAMPLED = 24


@dataclass(frozen=True, kw_only=True)
class SqkrSpec(PrivateVectorSpec):
    """The specification of SQKR; see :class:`PrivateVectorSpec`."""

    sampled: Annotated[int | None, _validation.integer_between(1, _MAX_SAMPLED)] = None
    """Number of coordinates in the random frame that are reported, 1 to 24; by default the best one."""


@dataclass(frozen=True, eq=False, repr=False)
class SqkrMechanism(SeededVectorMechanism, kind="sqkr"):
    """Signs in a random frame, for updates of norm at most clip; see :class:`SeededVectorMechanism`.

    The bits of a draw's answer are its signs; 1 is negative.
    """

    sampled: int = 1

    def __post_init__(self) -> None:
        _validation.check_integer("sampled", self.sampled, 1, min(_MAX_SAMPLED, self.dimension))
        super().__post_init__()

    @classmethod
    def best_fields(cls, epsilon: float, dimension: int) -> dict[str, Any]:
        return {"sampled": best_num_sampled(epsilon, dimension)}

    def for_dimension(self, dimension: int) -> Self:
        fitting = dataclasses.replace(self, sampled=min(self.sampled, dimension))
        return super(SqkrMechanism, fitting).for_dimension(dimension)

    @property
    def num_answers(self) -> int:
        return 1 << self.sampled

    @property
    def output_norm(self) -> float:
        return self._gain / (math.sqrt(self.sampled) * mean_projection(self.dimension))

    @property
    def answer_bits(self) -> int:
        return self.sampled

    def _answer(self, x: Floats, seed: int, draw: int, source: Continuation) -> int:
        positive = draw_bernoulli(0.5 * (1.0 + euclidean_norm(x)), source)
        frame = derive_orthonormal_rows(seed, draw, self.sampled, self.dimension)
        negative = (frame @ x < 0.0) ^ (not positive)
        return respond(bits_to_int(negative), self._weights, source)

    def _decode_answer(self, answer: int, seed: int, draw: int) -> Floats:
        signs = 1.0 - 2.0 * int_to_bits(answer, self.sampled)
        return np.asarray(signs @ derive_orthonormal_rows(seed, draw, self.sampled, self.dimension))

    def _scale(self, clip: float) -> float:
        # Signed orthonormal vectors, as many as are sampled, add up to a vector of this length.
        length = math.sqrt(self.sampled)
        return _validation.check_positive("clip", clip) * (self._draw_norm / (length * self.repeats))


register("sqkr", SqkrSpec, 196, "#bc6c25")(SqkrMechanism.of)


@lru_cache(maxsize=256)
def best_num_sampled(epsilon: float, dimension: int) -> int:
    """The number of signs with the least error, which is about 1 / (k share^2) with k of them.

    >>> [best_num_sampled(epsilon, 1000) for epsilon in (1.0, 4.0, 8.0)]
    [1, 4, 8]
    """
    count = np.arange(1, min(_MAX_SAMPLED, dimension) + 1)
    # The probability of the true answer minus that of another one, both divided by e^epsilon.
    share = -math.expm1(-epsilon) / (1.0 + math.exp(-epsilon) * (2.0**count - 1.0))
    return int(count[np.argmax(count * share**2)])
