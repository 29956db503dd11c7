"""A mechanism that the package does not know: its distribution, loss and listing are all in this file.

With one half a client says nothing, which is the code 1. Else it tells the end of [-1, 1] that its input was
rounded to at random, as code 0 or 2, through randomized response.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, log_ratio_upper
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.integer_distribution import IntegerDistribution
from fl_privquant.errors import CertificationError
from fl_privquant.mechanisms.base import LatticeMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.privacy_loss.closed_forms import response_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.sums.blanket import BlanketDraws, bound_covered_loss
from fl_privquant.privacy_loss.update_bounds import WholeUpdate
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.statement import LOCAL, Relation, View

HALF = TOTAL_WEIGHT // 2


@dataclass(frozen=True)
class ToySpec(Spec):
    """The specification of the toy."""

    epsilon: float


@dataclass(frozen=True, eq=False, repr=False)
class ToyMechanism(LatticeMechanism, kind="toy"):
    """Silence with one half, else one end of [-1, 1]; ``rare`` is the weight, of 2^32, of the wrong end."""

    rare: int
    claimed_epsilon: float

    def __post_init__(self) -> None:
        if not (1 <= self.rare < HALF // 2 and self.epsilon <= self.claimed_epsilon):
            raise CertificationError(self.statement.above(self.claimed_epsilon))

    @cached_property
    def epsilon(self) -> float:
        return log_ratio_upper(HALF - self.rare, self.rare)

    @cached_property
    def codebook(self) -> Codebook:
        outer = TOTAL_WEIGHT / (HALF - 2 * self.rare)
        return Codebook(np.arange(3), outer, -outer)

    @property
    def rows(self) -> NDArray[np.float64]:
        """The distributions at -1 and 1."""
        lower = np.array([HALF - self.rare, HALF, self.rare]) / TOTAL_WEIGHT
        return np.stack([lower, lower[::-1]])

    def pmf(self, x: ArrayLike) -> NDArray[np.float64]:
        share = (1.0 + np.asarray(x, dtype=np.float64).ravel()[:, None]) / 2.0
        return np.asarray((1.0 - share) * self.rows[0] + share * self.rows[1])

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        losses = np.array([-self.epsilon, 0.0, self.epsilon])
        local = PrivacyLoss(losses, self.rows[1])
        if view.is_local:
            return NamedLoss(local, "toy")
        # Whatever the inputs of the others, each has drawn from this part of both rows.
        least = self.rows.min(axis=0)
        blanket = IntegerDistribution(0, least / least.sum(), 1e-15)
        draws = BlanketDraws(blanket, view.honest_count - 1, float(least.sum()))
        return NamedLoss(bound_covered_loss(self.rows, np.arange(3), draws, local), "toy sum")

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        if update.l2_distance is None:
            return []
        # A log probability changes by at most this much for each unit of the input.
        slope = (HALF - 2 * self.rare) / (2.0 * self.rare)
        distance = update.l2_distance * math.sqrt(update.dimension) + update.dimension * 2.0**-30
        loss = response_loss(slope * distance * (1.0 + 1e-9))
        return [NamedLoss(loss, "toy norm", relation=update.relation)]

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: RandomStream | None = None) -> NDArray[Any]:
        return encode_in_chunks(x, self._encode_chunk, dtype=np.dtype(np.uint8), clip=clip, stream=rng)

    def _encode_chunk(self, chunk: Chunk) -> int:
        not_finite = int(np.count_nonzero(~np.isfinite(chunk.x)))
        if not_finite:
            return not_finite
        position = np.clip(chunk.x.astype(np.float64) / chunk.clip, -1.0, 1.0)
        upper = (chunk.words >> np.uint64(32)) < ((1.0 + position) * HALF).astype(np.uint64)
        drawn = (chunk.words & np.uint64(0xFFFFFFFF)).astype(np.int64)
        # The lower row on the codes 0, 1, 2; the upper row is its mirror image.
        code = (drawn >= HALF - self.rare).astype(np.uint8) + (drawn >= TOTAL_WEIGHT - self.rare)
        chunk.out[...] = np.where(upper, 2 - code, code)
        return 0

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self._mean_error(density, np.linspace(-1.0, 1.0, 257), power=1)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self._mean_error(density, np.linspace(-1.0, 1.0, 257), power=2)


def design_toy(spec: ToySpec) -> ToyMechanism:
    """The toy at ``epsilon``."""
    rare = math.ceil(HALF / (math.exp(spec.epsilon) + 1.0) * (1.0 + 1e-9))
    return ToyMechanism("toy", rare, float(spec.epsilon), parameters=spec.parameters())


def register_toy() -> Callable[[ToySpec], Any]:
    """What a file in ``mechanisms/`` does when it is imported."""
    return register("toy", ToySpec, color="#123456", plans_for_sums=True, plans_for_local=True)(design_toy)
