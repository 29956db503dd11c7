"""PrivUnit: a random unit vector, drawn with more weight from the cap around the update's direction.

**The mechanism.** For an update x in the unit ball let u be x / |x|, or its opposite with probability (1 -
|x|) / 2, which makes the length right on average. With some probability a unit vector is drawn uniformly
from the cap {v: <v, u> >= h}, otherwise from the rest of the sphere. The estimate is that vector times a
constant. The height h is the one with the least error for epsilon and the number of coordinates. For unit
vectors no unbiased local mechanism has less error than PrivUnit with this height. For shorter vectors others
may have less: the error of PrivUnit grows as they get shorter.

**Privacy.** The density of the drawn vector has two values, whatever the update. Their ratio follows from
the probability of the cap, an integer of 2^128 chances, and from the cap's measure, which is bounded from
below in decimal arithmetic (:mod:`fl_privquant.distributions.sphere_cap`). The stated epsilon is the
logarithm of the largest ratio that these allow. The drawn vector consists of floating-point numbers, whose
last digits can reveal more than exact real numbers do. So this mechanism is for comparison;
``shared_codebook`` has nearly the same error in integers.

**ProjUnit** (``projected`` = k). The update is first projected onto k orthonormal directions that come from
a seed, and the direction of the projection is encoded by PrivUnit of k coordinates. The directions do not
depend on the data and their distribution is the same after each rotation, so that the estimate has the
direction of x on average; its length is divided by the mean length of a projection. A message then consists
of 64 bits and k floats.

Guarantee: ``epsilon``-differential privacy of one client round, local view, for any two updates, for exact
real numbers; unbiased for updates in the ball, to 1e-6 of the length of the estimate.
Assumes: exact arithmetic when vectors are drawn inside and outside the cap.
Reference: Bhowmick, Duchi, Freudiger, Kapoor, Rogers, "Protection Against Reconstruction and Its
Applications in Private Federated Learning", 2018; Asi, Feldman, Talwar, "Optimal Algorithms for Mean
Estimation under Local Differential Privacy", ICML 2022; Asi, Feldman, Nelson, Nguyen, Talwar, "Fast Optimal
Locally Private Mean Estimation via Random Projections", NeurIPS 2023 (ProjUnit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant._validation import integer_between
from fl_privquant.distributions.certified_table import log_ratio_upper
from fl_privquant.distributions.sphere_cap import cap_share_bounds
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.base import CHANCES, PrivateVectorSpec, ResponseMechanism, draw_bernoulli
from fl_privquant.mechanisms.vectors.bit_messages import SEED_BITS
from fl_privquant.mechanisms.vectors.sphere import (
    best_height,
    cap_mean,
    derive_orthonormal_rows,
    draw_normals,
    euclidean_norm,
    mean_projection,
    projection_quantile,
)
from fl_privquant.sampling.stream import Continuation, RandomStream

_WORD = 32
_SEED_WORDS = SEED_BITS // _WORD
# Largest number of entries of a projection that is held in memory.
_MAX_PROJECTED = 1 << 26
_UNIFORMS = 1 << 53


@dataclass(frozen=True, kw_only=True)
class PrivUnitSpec(PrivateVectorSpec):
    """The specification of PrivUnit; see :class:`PrivateVectorSpec`."""

    # One draw is optimal, whatever epsilon.
    default_repeats = 1

    projected: Annotated[int | None, integer_between(1, _MAX_PROJECTED)] = None
    """Number of random directions that an update is projected onto first; None for no projection."""


@dataclass(frozen=True, eq=False, repr=False)
class PrivUnitMechanism(ResponseMechanism, kind="privunit"):
    """A random unit vector, more likely near the update's direction; see :class:`VectorMechanism`.

    A message is the floats of each draw in single precision, as words of 32 bits. Where updates are
    projected, the words of the seed come first. ``projected`` is 0 where they are not.
    """

    outputs_floats: ClassVar[bool] = True
    message_bits = _WORD

    projected: int = 0

    def __post_init__(self) -> None:
        # The dimension is checked before it is a divisor.
        _validation.check_declared(self)
        _validation.check_integer("projected", self.projected, 0, max(_MAX_PROJECTED // self.dimension, 1))
        super().__post_init__()

    @property
    def num_drawn_coordinates(self) -> int:
        """Number of coordinates of a drawn vector: that of the update, or of its projection."""
        return min(self.projected, self.dimension) or self.dimension

    @property
    def output_norm(self) -> float:
        share, inside = self._share, self._weights[0] / CHANCES
        outside = self._weights[1] / CHANCES
        density = inside / share - outside / (1.0 - share)
        mean = density * float(cap_mean(np.array(self.height), self.num_drawn_coordinates))
        # The mean length of the projection of a unit vector.
        kept = mean_projection(self.dimension) / mean_projection(self.num_drawn_coordinates)
        # At least 1, also where the cap is a single point.
        return max(1.0 / (mean * kept), 1.0)

    @cached_property
    def height(self) -> float:
        """The least inner product with the update's direction in the cap."""
        return best_height(self.claimed_epsilon / self.repeats, self.num_drawn_coordinates)

    @cached_property
    def _share(self) -> float:
        """A lower bound of the measure of the cap."""
        return float(cap_share_bounds(self.height, self.num_drawn_coordinates)[0])

    @cached_property
    def _weights(self) -> tuple[int, int]:
        """Chances of the cap and of the rest of the sphere."""
        low, _ = cap_share_bounds(self.height, self.num_drawn_coordinates)
        with localcontext() as context:
            context.prec = 100
            # Slightly below what is allowed, so that rounding stays within it.
            exponent = min(Decimal(self.claimed_epsilon) / self.repeats, Decimal(700))
            odds = exponent.exp() * (1 - Decimal(10) ** -44) * low / (1 - low)
            outside = int(CHANCES / (1 + odds)) + 1
        if odds * (1 - low) <= low:
            raise InvalidSpecError("epsilon", self.claimed_epsilon, "is too small", "raise epsilon")
        return CHANCES - outside, outside

    @cached_property
    def epsilon(self) -> float:
        # The ratio of densities falls as the measure of the cap grows.
        share = Fraction(cap_share_bounds(self.height, self.num_drawn_coordinates)[0])
        inside, outside = self._weights
        dense = inside * (share.denominator - share.numerator)
        return log_ratio_upper(dense, outside * share.numerator, self.repeats)

    @property
    def message_size(self) -> int:
        return (_SEED_WORDS if self.projected else 0) + self.repeats * self.num_drawn_coordinates

    def _draw(self, x: Floats, source: Continuation) -> NDArray[np.uint32]:
        length = euclidean_norm(x)
        words, seed = [], 0
        if self.projected:
            seed = source.below(1 << SEED_BITS)
            words.append(np.array([seed & (1 << _WORD) - 1, seed >> _WORD], dtype=np.uint32))
        for draw in range(self.repeats):
            sign = 1.0 if draw_bernoulli(0.5 * (1.0 + length), source) else -1.0
            seen = x
            if self.projected:
                seen = derive_orthonormal_rows(seed, draw, self.num_drawn_coordinates, self.dimension) @ x
            norm = euclidean_norm(seen)
            # A zero update has no direction; any direction serves, because its sign is a fair coin.
            center = sign / norm * seen if norm else np.eye(1, seen.size)[0] * sign
            words.append(self._near(center, source).astype("<f4").view("<u4"))
        return np.concatenate(words)

    def _near(self, center: Floats, source: Continuation) -> Floats:
        """A unit vector from the cap around a unit vector, or from the rest of the sphere."""
        share = self._share
        uniform = (source.below(_UNIFORMS) + 0.5) / _UNIFORMS
        if source.below(CHANCES) < self._weights[0]:
            along = projection_quantile(share * uniform, center.size)
        else:
            along = -projection_quantile((1.0 - share) * uniform, center.size)
        stream = RandomStream(source.below(1 << 256).to_bytes(32, "little"), simulated=True)
        across = draw_normals(stream, center.size)
        across -= (across @ center) * center
        norm = euclidean_norm(across)
        return along * center + (math.sqrt(1.0 - along**2) / norm * across if norm else 0.0)

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        words = self._check_message(indices)
        first = _SEED_WORDS if self.projected else 0
        with np.errstate(over="ignore", invalid="ignore"):
            # A hostile client may send any bits, such as a signalling NaN.
            floats = words[first:].astype("<u4").view("<f4").astype(np.float64)
            draws = floats.reshape(self.repeats, self.num_drawn_coordinates)
            norms = np.linalg.norm(draws, axis=1)
        if not np.all(np.abs(norms - 1.0) < 1e-3):
            raise InvalidUpdateError("message: its floats are not a unit vector; they are damaged or made up")
        if self.projected:
            seed = int(words[0]) | int(words[1]) << _WORD
            total = np.zeros(self.dimension)
            for draw, drawn in enumerate(draws):
                total += drawn @ derive_orthonormal_rows(
                    seed, draw, self.num_drawn_coordinates, self.dimension
                )
        else:
            total = draws.sum(axis=0)
        return np.asarray(self._scale(clip) * total)


register("privunit", PrivUnitSpec, 194, "#90a955")(PrivUnitMechanism.of)
