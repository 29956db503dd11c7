"""Uniform directions on the sphere: caps, the least error of local mechanisms, and random codebooks.

With V a coordinate of a uniform unit vector of d coordinates, the *cap* of height h around a direction holds
the unit vectors whose inner product with it is at least h. Its measure is P(V >= h), and the integral of V
over it is (1 - h^2)^((d - 1) / 2) / ((d - 1) B(1/2, (d - 1) / 2)), B being the Beta function.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fl_privquant._array_types import Floats
from fl_privquant.mechanisms._continuous import words_to_uniforms
from fl_privquant.mechanisms.vectors.bit_messages import SEED_BITS
from fl_privquant.sampling.stream import RandomStream

_DOMAIN = b"fl_privquant codebook v1"
# Numbers of a codebook that are in memory at a time.
_AT_ONCE = 1 << 21
# Pairs of normal numbers that are made at a time: all that is computed of them stays in the cache.
_IN_CACHE = 1 << 14
# For a larger epsilon e^epsilon is not a float; caps are then as small as possible.
_MAX_EXPONENT = 700.0
_GRID = 2001
_TRAPEZOIDS = 4001


def cap_measure(height: Floats, dimension: int) -> Floats:
    """The measure of the cap of a height from 0 to 1."""
    if dimension == 1:
        return np.full(np.shape(height), 0.5)
    return np.asarray(0.5 * special.betainc(0.5 * (dimension - 1.0), 0.5, 1.0 - np.square(height)))


def cap_mean(height: Floats, dimension: int) -> Floats:
    """The integral of the inner product over the cap of a height from 0 to 1."""
    if dimension == 1:
        return np.full(np.shape(height), 0.5)
    degrees = dimension - 1.0
    # B(1/2, x) by logarithms would lose digits for large x.
    scale = degrees * special.beta(0.5, 0.5 * degrees)
    return np.asarray(np.exp(0.5 * degrees * np.log1p(-np.square(height))) / scale)


def upper_mean(share: Floats, dimension: int) -> Floats:
    """The integral of the quantiles of a projection over its upper ``share``."""
    share = np.clip(share, 1e-300, 1.0)
    if dimension == 1:
        return np.asarray(np.minimum(share, 1.0 - share))
    degrees = dimension - 1.0
    # sqrt(d - 1) V / sqrt(1 - V^2) has Student's distribution of d - 1 degrees, which is symmetric.
    quantile = special.stdtrit(degrees, np.minimum(share, 1.0 - share))
    log_rest = -0.5 * degrees * np.log1p(quantile**2 / degrees)
    return np.asarray(np.exp(log_rest) / (degrees * special.beta(0.5, 0.5 * degrees)))


def expected_largest_sum(levels: int, count: int, upper: Callable[[Floats], Floats]) -> float:
    """The expected sum of the ``count`` largest of ``levels`` independent numbers of one distribution.

    ``upper`` is the integral of their quantiles over the upper share that it is given.
    """
    if count >= levels:
        return float(levels * upper(np.array([1.0]))[0])
    # The quantile level T of the largest number that is not among them is a Beta variable. On a grid of
    # s with T = 1 / (1 + e^-s) the trapezoidal rule converges exponentially.
    a, b = float(levels - count), float(count)
    center, width = math.log(a / b), math.sqrt(1.0 / a + 1.0 / b)
    s = center + 40.0 * width * np.linspace(-1.0, 1.0, _TRAPEZOIDS)
    log_density = -a * np.log1p(np.exp(-s)) - b * np.log1p(np.exp(s)) - special.betaln(a, b)
    weights = np.exp(log_density) * (s[1] - s[0])
    return float(levels * weights @ upper(special.expit(-s)))


@lru_cache(maxsize=1024)
def best_height(epsilon: float, dimension: int) -> float:
    """The height of the cap with which PrivUnit has the least error."""
    # The best cap does not have a measure far below e^-epsilon.
    most = min(1.0 - 1e-9, (math.sqrt(2.0 * min(epsilon, _MAX_EXPONENT)) + 8.0) / math.sqrt(dimension))
    grid = np.linspace(0.0, most, _GRID)
    for _ in range(4):
        best = int(np.argmax(_mean_length(grid, epsilon, dimension)))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
        grid = np.linspace(low, high, _GRID)
    return float(grid[int(np.argmax(_mean_length(grid, epsilon, dimension)))])


def privunit_squared_error(epsilon: float, dimension: int) -> float:
    """Squared error of PrivUnit with the best cap, for a unit vector: the least of all local mechanisms.

    A uniform direction is drawn with weight e^epsilon from the cap of measure q around the input, and with
    weight 1 from the rest, and scaled to be unbiased. With m the mean inner product of the drawn direction
    and the input, the error is 1 / m^2 - 1, for the cap with which it is least.

    >>> [round(privunit_squared_error(epsilon, 7850) / 7850, 3) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    [6.33, 1.617, 0.435, 0.133]
    """
    height = np.array(best_height(epsilon, dimension))
    return float(1.0 / _mean_length(height, epsilon, dimension) ** 2 - 1.0)


def _mean_length(height: Floats, epsilon: float, dimension: int) -> Floats:
    """The mean inner product of the input and the drawn direction."""
    lift = math.expm1(min(epsilon, _MAX_EXPONENT))
    return np.asarray(lift * cap_mean(height, dimension) / (1.0 + lift * cap_measure(height, dimension)))


class RandomCodebook:
    """Random unit vectors that are derived from a seed; each can be computed without the others.

    Their directions are those of vectors of normal numbers, which are made in pairs (Box and Muller), each
    pair from one word of a :class:`RandomStream`.
    """

    def __init__(self, seed: int, draw: int, dimension: int) -> None:
        self.seed = seed
        self.draw = draw
        self.dimension = dimension

    @property
    def _words(self) -> int:
        """Number of random words per codeword."""
        return -(-self.dimension // 2)

    @cached_property
    def _stream(self) -> RandomStream:
        address = self.seed.to_bytes(SEED_BITS // 8, "little") + self.draw.to_bytes(4, "little")
        return RandomStream(hashlib.sha256(_DOMAIN + address).digest(), simulated=True)

    def normals(self, first: int, count: int) -> NDArray[np.float32]:
        """(count, dimension) normal numbers, whose directions are the codewords from ``first`` on."""
        pairs = np.empty((count * self._words, 2), dtype=np.float32)
        for start in range(0, len(pairs), _IN_CACHE):
            self._fill_normals(pairs[start : start + _IN_CACHE], first * self._words + start)
        return pairs.reshape(count, -1)[:, : self.dimension]

    def _fill_normals(self, pairs: NDArray[np.float32], start: int) -> None:
        words = np.empty(len(pairs), dtype=np.uint64)
        self._stream.fill(words, start)
        halves = words.view(np.uint32).reshape(-1, 2)
        scale = np.float32(2.0**-32)
        radius = halves[:, 0].astype(np.float32)
        radius += np.float32(0.5)
        radius *= scale
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        # The largest words are rounded to 1 in single precision: their radius must not be 0.
        np.maximum(radius, scale, out=radius)
        np.sqrt(radius, out=radius)
        angle = halves[:, 1].astype(np.float32)
        angle *= np.float32(2.0 * math.pi) * scale
        np.multiply(radius, np.cos(angle), out=pairs[:, 0])
        np.multiply(radius, np.sin(angle), out=pairs[:, 1])

    def codeword(self, index: int) -> Floats:
        """(dimension,) the unit vector at an index."""
        normals = self.normals(index, 1)[0].astype(np.float64)
        return np.asarray(normals / euclidean_norm(normals))

    def projections(self, levels: int, x: Floats) -> Floats:
        """(levels,) the inner products of the codewords with ``x``."""
        inputs = x.astype(np.float32)
        rows = max(1, _AT_ONCE // self.dimension)
        products = np.empty(levels)
        for first in range(0, levels, rows):
            part = self.normals(first, min(rows, levels - first))
            lengths = np.sqrt(np.einsum("ij,ij->i", part, part))
            products[first : first + rows] = (part @ inputs) / lengths
        return products


def derive_orthonormal_rows(seed: int, draw: int, count: int, dimension: int) -> Floats:
    """(count, dimension) orthonormal vectors from a seed, whose distribution no rotation changes."""
    normals = RandomCodebook(seed, draw, dimension).normals(0, count).astype(np.float64)
    factor, triangle = np.linalg.qr(normals.T)
    # The signs make the factor unique, and so its distribution uniform.
    return np.asarray((factor * np.sign(np.diagonal(triangle))).T)


def draw_normals(stream: RandomStream, count: int) -> Floats:
    """(count,) normal numbers in pairs (Box and Muller), each from a word of the stream."""
    pairs = -(-count // 2)
    uniforms = words_to_uniforms(stream.words(2 * pairs)).reshape(pairs, 2)
    radius = np.sqrt(-2.0 * np.log(uniforms[:, 0]))
    angle = 2.0 * math.pi * uniforms[:, 1]
    normals = np.empty((pairs, 2))
    np.multiply(radius, np.cos(angle), out=normals[:, 0])
    np.multiply(radius, np.sin(angle), out=normals[:, 1])
    return normals.reshape(-1)[:count]


def euclidean_norm(vector: Floats) -> float:
    """The norm of a vector: the number that numpy's function gives, which takes longer for short vectors."""
    return math.sqrt(float(vector @ vector))


def projection_quantile(share: float, dimension: int) -> float:
    """The height above which an inner product of a uniform direction lies with probability ``share``."""
    if share > 0.5:
        return -projection_quantile(1.0 - share, dimension)
    if dimension == 1:
        return 1.0
    half = 0.5 * (dimension - 1.0)
    # Computed from the square, or from 1 minus the square, whichever is more accurate.
    if share > 0.01:
        return math.sqrt(float(special.betaincinv(0.5, half, 1.0 - 2.0 * share)))
    return math.sqrt(1.0 - float(special.betaincinv(half, 0.5, 2.0 * share)))


def mean_projection(dimension: int) -> float:
    """E|V_1| of a uniform direction: Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2)).

    >>> mean_projection(1), round(mean_projection(2) * math.pi / 2, 12), round(mean_projection(3), 12)
    (1.0, 1.0, 0.5)
    """
    half = dimension / 2.0
    if dimension <= 64:
        return math.gamma(half) / (math.sqrt(math.pi) * math.gamma(half + 0.5))
    # A ratio of large Gammas would lose its digits. This series for it is accurate to 1e-12.
    inverse = 1.0 / half
    series = 1.0 + inverse * (-1 / 8 + inverse * (1 / 128 + inverse * (5 / 1024 - inverse * 21 / 32768)))
    return 1.0 / (math.sqrt(math.pi * half) * series)
