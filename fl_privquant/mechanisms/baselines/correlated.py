"""Correlated quantization: randomized rounding whose errors cancel over clients; without privacy.

**The mechanism.** As in ``stochastic``, a coordinate that lies a share f of the way between two of the evenly
spaced levels is rounded up if a uniform random number is below f, else down. Here the random numbers of n
clients are *stratified*: a public seed gives each coordinate a random permutation of 0..n-1, and the client
with rank i takes the entry at i, adds its private random number from [0, 1) and divides by n. Each client's
number is uniform, so that its estimate is unbiased, and each of n equal parts of [0, 1) contains the number
of exactly one client. Where clients have equal coordinates, the sum is off by about one step, whatever n;
with independent numbers it would be off by sqrt(n) / 2 steps. The published version with more than two levels
also shifts the levels at random.

**What it needs.** The seed of the round, and for each client a different rank among the clients of the
round: :meth:`CorrelatedMechanism.encode_ranked`. Clients of this package's Flower mod have no rank. There,
and wherever ``encode`` is called, a client rounds with independent random numbers, and has the error of
``stochastic``.

**Error.** For two clients with shares f and g, whose numbers are in different ones of n parts, both numbers
are below their shares with probability (n^2 f g - S(f, g)) / (n (n - 1)). Here S is the sum over parts of the
product of the fractions of a part that f and g cover; it is n min(f, g) unless both end in the same part.
Sums over all pairs follow from sorted shares, so :meth:`CorrelatedMechanism.squared_error_of_mean` is exact.

Guarantee: none; ``epsilon`` is infinite. Unbiased.
Assumes: nothing about the inputs; for errors that cancel, ranks that differ and one seed per round.
Reference: Suresh, Sun, Ro, Yu, "Correlated Quantization for Distributed Mean Estimation and Optimization",
ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, smallest_code_type
from fl_privquant._validation import integer_between
from fl_privquant.errors import InvalidUpdateError
from fl_privquant.mechanisms._continuous import words_to_uniforms
from fl_privquant.mechanisms.baselines.stochastic import StochasticMechanism, StochasticSpec
from fl_privquant.mechanisms.registry import register
from fl_privquant.sampling.chunks import check_inputs
from fl_privquant.sampling.stream import Randomness, RandomStream

_CLIENTS = integer_between(1, 1 << 24)
_WORDS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class CorrelatedSpec(StochasticSpec):
    """The specification of correlated quantization."""

    levels: int = 2
    num_clients: Annotated[int, _CLIENTS] = 100
    """Number n of clients whose errors cancel."""


@dataclass(frozen=True, eq=False, repr=False)
class CorrelatedMechanism(StochasticMechanism, kind="correlated"):
    """Randomized rounding with stratified numbers; see :class:`StochasticMechanism`."""

    num_clients: Annotated[int, _CLIENTS] = 100

    def encode_ranked(
        self, x: ArrayLike, rank: int, seed: int, clip: float = 1.0, rng: Randomness = None
    ) -> Array:
        """The indices of the client with that rank, 0 to n - 1, in the round that has the public seed."""
        rank = _validation.check_integer("rank", rank, 0, self.num_clients - 1)
        position, shape = self._positions(x, clip)
        stream = rng if rng is not None else RandomStream.secure()
        part = _draw_permutation_entries(
            RandomStream.seeded(seed, purpose="correlated"), self.num_clients, rank, position.size
        )
        uniforms = (part + words_to_uniforms(stream.words(position.size))) / self.num_clients
        floor = np.minimum(np.floor(position), self.levels - 2)
        codes = floor + (uniforms < position - floor)
        return codes.astype(smallest_code_type((self.levels - 1).bit_length())).reshape(shape)

    def squared_error_of_mean(self, x: ArrayLike, clip: float = 1.0) -> float:
        """Exact mean squared Euclidean error of the mean, for the (n, d) inputs of clients with all ranks."""
        position, shape = self._positions(x, clip)
        if len(shape) != 2 or shape[0] != self.num_clients:
            raise InvalidUpdateError(f"inputs: shape {shape}, expected ({self.num_clients}, coordinates)")
        shares = np.sort(position.reshape(shape) % 1.0, axis=0)
        variance = float(sum(_variance_of_sum(column) for column in shares.T))
        return variance * (clip * self.codebook.step / self.num_clients) ** 2

    def _positions(self, x: ArrayLike, clip: float) -> tuple[Floats, tuple[int, ...]]:
        """Positions among the levels, from 0 to levels - 1, as a vector; and the shape of the inputs."""
        inputs = check_inputs(x)
        scaled = np.clip(inputs.ravel() / _validation.check_positive("clip", clip), -1.0, 1.0)
        return np.asarray((scaled + 1.0) * (0.5 * (self.levels - 1))), inputs.shape


@register("correlated", CorrelatedSpec, 223, "#2a9d8f")
def design_correlated(spec: CorrelatedSpec) -> CorrelatedMechanism:
    """Correlated quantization to that many levels."""
    sizes = (spec.levels, spec.num_clients)
    return CorrelatedMechanism("correlated", *sizes, parameters=spec.parameters())


def _draw_permutation_entries(stream: RandomStream, num_clients: int, rank: int, count: int) -> Floats:
    """(count,) the entries at ``rank`` of random permutations of 0..num_clients - 1, one per coordinate.

    Each coordinate has a random word for every rank. A client's entry is the number of smaller words.
    """
    at_once = max(1, _WORDS_AT_ONCE // num_clients)
    entries = np.empty(count)
    for start in range(0, count, at_once):
        stop = min(start + at_once, count)
        words = stream.words((stop - start) * num_clients).reshape(-1, num_clients)
        own = words[:, rank, None]
        # Ties, which hardly ever occur, are broken by the rank.
        entries[start:stop] = (words < own).sum(axis=1) + (words[:, :rank] == own).sum(axis=1)
    return entries


def _variance_of_sum(shares: Floats) -> float:
    """The variance of how many of n clients round up, for their shares in increasing order."""
    count = shares.size
    if count == 1:
        return float(shares[0] * (1.0 - shares[0]))
    total, squares = float(shares.sum()), float(np.square(shares).sum())
    # Over all ordered pairs of two clients: f g, and S(f, g) / n, first as if it were min(f, g).
    products = total**2 - squares
    overlaps = 2.0 * float(shares @ np.arange(count - 1, -1, -1.0))
    part, inside = np.divmod(shares * count, 1.0)
    # Two shares that end in the same part cover f g of it, not the smaller of them.
    first = np.searchsorted(part, part, side="left")
    later = np.searchsorted(part, part, side="right") - 1 - np.arange(count)
    before = np.concatenate([[0.0], np.cumsum(inside)])
    earlier = before[np.arange(count)] - before[first]
    overlaps -= 2.0 * float(inside @ later - inside @ earlier) / count
    covariances = (count * products - overlaps) / (count - 1) - products
    return total - squares + covariances
