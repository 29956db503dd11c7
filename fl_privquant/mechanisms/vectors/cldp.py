"""CLDP: one bit of the update, along a random direction, reported by randomized response.

**linf** (coordinates in [-1, 1]). A coordinate is chosen uniformly; it is rounded to ±1, unbiased, and the
sign goes through randomized response. The estimate is ± d (e^epsilon + 1) / (e^epsilon - 1) on that
coordinate. A message has 1 + log2(d) bits.

**l2** (Euclidean norm at most 1). A direction V is chosen uniformly on the sphere. The client reports, by
randomized response, the sign of <V, x> with probability |x|, and a fair coin otherwise. The estimate is
± V (e^epsilon + 1) / (e^epsilon - 1) / E|V_1|. This has the distribution of the hemisphere mechanism of
Duchi, Jordan and Wainwright, which CLDP then quantizes to a few bits per coordinate, with a little more
error. Here V comes from a seed of 64 bits, which is sent instead of V, so that a message has 65 bits. V does
not depend on the data, so the server may know it, and nothing is lost by this compression (as Feldman and
Talwar observe).

``repeats`` above 1 is our addition: the average of that many independent draws, each at epsilon / repeats. It
reduces the error where epsilon is large, because a single bit can hardly make use of a large epsilon. With l2
all directions come from the same seed, so a message has 64 bits and one for each draw. The default is the
number of draws with the least error.

Guarantee: ``epsilon``-differential privacy of one client round, local view, for any two updates, certified
on the integer chances of the sign; unbiased for updates in the ball (l2: to 1e-9 of the clip).
Assumes: nothing about the inputs.
Reference: Girgis, Data, Diggavi, Kairouz, Suresh, "Shuffled Model of Differential Privacy in Federated
Learning", AISTATS 2021; Duchi, Jordan, Wainwright, "Minimax Optimal Procedures for Locally Private
Estimation", JASA 2018 (section 4.2); Feldman, Talwar, "Lossless Compression of Efficient Private Local
Randomizers", ICML 2021.
"""

from __future__ import annotations

import hashlib
import math
from typing import ClassVar

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.base import (
    MAX_REPEATS,
    AxisMechanism,
    PrivateAxisSpec,
    PrivateVectorSpec,
    draw_bernoulli,
    respond,
)
from fl_privquant.mechanisms.vectors.bit_messages import SEED_BITS, SeededVectorMechanism
from fl_privquant.mechanisms.vectors.sphere import draw_normals, euclidean_norm, mean_projection
from fl_privquant.privacy_loss.composition.compose import UpdateNorm
from fl_privquant.sampling.stream import Continuation, RandomStream

_DOMAIN = b"fl_privquant direction v1"


class CldpLinfMechanism(AxisMechanism, kind="cldp_linf"):
    """One coordinate's sign, for updates with coordinates in [-clip, clip]; see :class:`VectorMechanism`."""

    norm: ClassVar[UpdateNorm] = UpdateNorm.LINF

    @property
    def output_norm(self) -> float:
        return self.dimension * self._gain

    def _draw(self, x: Floats, source: Continuation) -> list[int]:
        message = []
        for _ in range(self.repeats):
            axis = source.below(self.dimension)
            positive = draw_bernoulli(0.5 * (1.0 + float(x[axis])), source)
            message.append(2 * axis + respond(0 if positive else 1, self._weights, source))
        return message


class CldpL2Mechanism(SeededVectorMechanism, kind="cldp_l2"):
    """The side of a random hyperplane, for updates of norm at most clip; see :class:`SeededVectorMechanism`.

    The answer of a draw is its sign; 1 is negative.
    """

    answer_bits = 1

    @classmethod
    def best_repeats(cls, epsilon: float, dimension: int) -> int:
        """The number of draws with the least error for a unit vector."""
        repeats = np.arange(1, MAX_REPEATS + 1)
        gain = 1.0 / np.tanh(0.5 * epsilon / repeats)
        return int(repeats[np.argmin(((gain / mean_projection(dimension)) ** 2 - 1.0) / repeats)])

    @property
    def output_norm(self) -> float:
        return self._gain / mean_projection(self.dimension)

    def _answer(self, x: Floats, seed: int, draw: int, source: Continuation) -> int:
        length = euclidean_norm(x)
        side = math.copysign(length, float(derive_direction(seed, draw, self.dimension) @ x))
        positive = draw_bernoulli(0.5 * (1.0 + side), source)
        return respond(0 if positive else 1, self._weights, source)

    def _decode_answer(self, answer: int, seed: int, draw: int) -> Floats:
        drawn = derive_direction(seed, draw, self.dimension)
        return -drawn if answer else drawn


register("cldp_linf", PrivateAxisSpec, 180, "#606c38", plans_for_local=True)(CldpLinfMechanism.of)


register("cldp_l2", PrivateVectorSpec, 190, "#8a9a5b", plans_for_local=True)(CldpL2Mechanism.of)


def derive_direction(seed: int, draw: int, dimension: int) -> Floats:
    """The unit vector of a draw that belongs to a seed: uniform on the sphere if the seed is uniform.

    numpy's normal numbers are not used, because they may change with its version, and client and server must
    get the same numbers.
    """
    address = seed.to_bytes(SEED_BITS // 8, "little") + draw.to_bytes(4, "little")
    key = hashlib.sha256(_DOMAIN + address).digest()
    normals = draw_normals(RandomStream(key, simulated=True), dimension)
    return np.asarray(normals / euclidean_norm(normals))
