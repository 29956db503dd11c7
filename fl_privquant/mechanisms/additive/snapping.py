"""Snapping: Laplace noise whose sum with the input is snapped to a lattice and clamped.

Laplace noise of scale lambda is added to the input, clamped to [-clip, clip]. The sum is rounded to the
nearest multiple of Lambda, the smallest power of two that is not below lambda (except for 1e-6 of it), and
clamped to [-bound, bound]. So the digits of a float do not reveal the input, as those of the usual Laplace
mechanism do.

**How it is drawn.** The published algorithm computes noise as a logarithm in floats, of a full-precision
uniform number, and pays for their rounding with 2^-49 bound / lambda on top of epsilon, given a correctly
rounded logarithm, which numpy does not promise. The same distribution can be drawn without logarithms, as
Laplace noise is memoryless: where the sum leaves the input's own cell of the lattice, up or down, the number
of cells that it goes further is geometric and independent of the input. So

* the cell that the input lies in, and the input's place in it, r in [-1/2, 1/2], determine the chances of
  down, stay and up: with rho = Lambda / lambda, those of down and up are exp(-rho (1/2 ± r)) / 2. These are
  floats, accurate to 2^-50, turned into integer chances of 2^64;
* the number of cells further is drawn with integer chances of 2^64 that are the same for every input. They
  are for blocks of as many cells as 12 scales of the noise, within which chances of 64 bits keep their
  digits.

Privacy does not rest on the input's digits: however the input is rounded, it ends up at one cell and place.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view. It is the exact loss
of the distribution, 2 clip / lambda, plus a bound for the rounding of the chances, computed from these
integers with 50 digits (some 1e-13). *Not* unbiased: rounding to the nearest moves the mean a little towards
the lattice, and the clamp moves it inwards; :meth:`SnappingMechanism.bias` is exact. Assumes: an exponential
function in floats that is accurate to 4 units in the last place. Reference: Mironov, "On Significance of the
Least Significant Bits for Differential Privacy", CCS 2012 (section 5.2).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Annotated

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Ints, Words, smallest_code_type
from fl_privquant._validation import integer_between, number_between
from fl_privquant.distributions.certified_table import round_up
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.input_density import Density
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.mechanisms.base import LatticeMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, bounded_noise
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import Continuation, Randomness

# Largest relative error of the ratio of two of the floating-point chances of down, stay and up.
_FLOAT_ROOM = Decimal(2) ** -46
# If no bound is given, noise beyond this many scales is clamped, which happens once in 10^6 draws.
_DEFAULT_SCALES = 14.0
_PANELS = 256
_BLOCK_SCALES = 12.0
# How far below epsilon to design, so that there is room for the rounding of chances.
_RELATIVE_ROOM, _ABSOLUTE_ROOM = 1e-9, 2e-12
# The step may be slightly below the scale, which avoids a step that is twice as large.
_MIN_RATE = 1.0 - 1e-6
_MAX_REACH = 512
_GRID = 4097
_EXPONENTS = range(-9, 41)


@dataclass(frozen=True)
class SnappingSpec(Spec):
    """The specification of the snapping mechanism."""

    # Larger than for other mechanisms, as no exponential of epsilon is computed.
    max_epsilon = 1e6

    epsilon: float
    bound: Annotated[float | None, number_between("(1, inf)")] = None
    """Outputs are clamped to [-bound, bound] times the clip, or the next multiple of the lattice's step. If
    not given, 14 scales of the noise beyond the inputs."""


@dataclass(frozen=True, eq=False, repr=False)
class SnappingMechanism(LatticeMechanism, kind="snapping"):
    """Laplace noise, snapped and clamped; see the module for guarantee and reference."""

    step_exponent: int
    """The lattice's step is 2^step_exponent, for inputs in [-1, 1]."""
    rate: float
    """The step over the scale of the noise (rho), 1 to 2."""
    reach: Annotated[int, integer_between(1, _MAX_REACH)]
    """Largest output, in steps; there are 2 reach + 1 levels."""
    claimed_epsilon: float

    def __post_init__(self) -> None:
        _validation.check_declared(self)
        if not (self.step_exponent in _EXPONENTS and _MIN_RATE <= self.rate <= 2.0):
            raise CertificationError(
                f"{self.name}: step 2^{self.step_exponent} and rate {self.rate}, expected exponents "
                f"{_EXPONENTS[0]} to {_EXPONENTS[-1]} and rates 1 to 2"
            )
        if self.bound < 1.0:
            raise CertificationError(f"{self.name}: a bound of {self.bound:g} does not hold the inputs")
        if not self.epsilon <= self.claimed_epsilon:
            raise CertificationError(f"{self.name}: {self.statement.above(self.claimed_epsilon)}")

    @property
    def step(self) -> float:
        """Distance of lattice points (Lambda), for inputs in [-1, 1]."""
        return 2.0**self.step_exponent

    @property
    def scale(self) -> float:
        """Scale of the noise (lambda), for inputs in [-1, 1]."""
        return self.step / self.rate

    @property
    def bound(self) -> float:
        """Largest output, for inputs in [-1, 1]."""
        return self.reach * self.step

    @cached_property
    def codebook(self) -> Codebook:
        return Codebook(np.arange(2 * self.reach + 1), self.step, -self.bound)

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, m) output probabilities for inputs in [-1, 1]: the Laplace mass of each cell."""
        inputs = np.clip(np.asarray(x, dtype=np.float64).ravel(), -1.0, 1.0)
        edges = self.values[:-1] + 0.5 * self.step
        distance = (edges - inputs[:, None]) / self.scale
        tail = 0.5 * np.exp(-np.abs(distance))
        below = np.where(distance < 0.0, tail, 1.0 - tail)
        above = np.where(distance < 0.0, 1.0 - tail, tail)
        # Differences of the smaller tail, so that far cells keep their digits.
        cells = np.where(distance[:, 1:] < 0.0, np.diff(below, axis=1), -np.diff(above, axis=1))
        return np.concatenate([below[:, :1], cells, above[:, -1:]], axis=1)

    def bias(self, x: ArrayLike) -> Floats:
        inputs = np.asarray(x, dtype=np.float64)
        means = (self.pmf(inputs) @ self.values).reshape(inputs.shape)
        return np.asarray(means - np.clip(inputs, -1.0, 1.0))

    @cached_property
    def max_bias(self) -> float:
        """Largest bias over inputs in [-1, 1], for a clip of 1, on a fine grid."""
        return float(np.abs(self.bias(np.linspace(-1.0, 1.0, _GRID))).max())

    @cached_property
    def coordinate_noise(self) -> CoordinateNoise:
        # Probabilities, and so variances, change by a factor of e^(distance / scale) at most between grid
        # points.
        inputs = np.linspace(-1.0, 1.0, _GRID)
        rows = self.pmf(inputs)
        variances = rows @ self.values**2 - (rows @ self.values) ** 2
        variance = float(variances.max()) * math.exp(1.0 / ((_GRID - 1) * self.scale))
        bias = self.max_bias + 2.0 / (_GRID - 1)
        return bounded_noise(1.0 + bias, bias, variance, 1.0 + bias + self.bound)

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self._error(density, 1)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self._error(density, 2)

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        dtype = smallest_code_type((self.num_levels - 1).bit_length())
        return encode_in_chunks(x, self._encode_chunk, dtype=dtype, clip=clip, stream=rng, words_per_input=2)

    def _encode_chunk(self, chunk: Chunk) -> int:
        not_finite = int(np.count_nonzero(~np.isfinite(chunk.x)))
        with np.errstate(over="ignore", invalid="ignore"):
            position = np.clip(chunk.x.astype(np.float64) / chunk.clip, -1.0, 1.0) / self.step
        if not_finite:
            return not_finite
        cell = np.rint(position)
        place = position - cell
        down, up = (
            np.floor(0.5 * np.exp(-self.rate * (0.5 + side * place)) * 2.0**64).astype(np.uint64)
            for side in (1.0, -1.0)
        )
        goes_up = chunk.words < up
        # Down uses the upper end of the words 0..2^64 - 1; ~ mirrors a word without overflow.
        goes_down = ~chunk.words < down
        jump = 1 + self._draw_cells_further(chunk)
        moved = cell + np.where(goes_up, jump, np.where(goes_down, -jump, 0))
        chunk.out[...] = (np.clip(moved, -self.reach, self.reach) + self.reach).astype(chunk.out.dtype)
        return 0

    def _draw_cells_further(self, chunk: Chunk) -> Ints:
        rising = self._further_weights[::-1]
        words = np.empty(chunk.x.size, dtype=np.uint64)
        chunk.stream.fill(words, chunk.second_words)
        # The number of cells passed is the number of chances that are above the word.
        cells = rising.size - np.searchsorted(rising, words, side="right")
        for i in np.flatnonzero(cells == rising.size).tolist():
            # The noise is memoryless: after a whole block, which one in 10^5 passes, the count starts anew.
            source = Continuation(chunk.stream, chunk.second_words + i)
            passed = rising.size
            while passed == rising.size and cells[i] <= 2 * self.reach:
                word = np.uint64(source.below(1 << 64))
                passed = rising.size - int(np.searchsorted(rising, word, side="right"))
                cells[i] += passed
        return np.asarray(cells)

    @cached_property
    def _further_weights(self) -> Words:
        """Integer chances of 2^64 to go at least n = 1, 2, ... cells further, exp(-rate n), for one block."""
        return np.array([int(power * 2**64) for power in self._powers[1:]], dtype=np.uint64)

    @cached_property
    def _powers(self) -> list[Decimal]:
        with localcontext() as context:
            context.prec = 50
            rate = Decimal(self.rate)
            return [(-rate * n).exp() for n in range(math.floor(_BLOCK_SCALES / self.rate) + 1)]

    @cached_property
    def epsilon(self) -> float:
        """The loss 2 / scale, plus twice the largest error of the logarithm of a probability.

        The probability of an output is that of down, stay or up, times that of passing a number of whole
        blocks of cells, times that of a number of cells in the next block: of exactly that number, or for the
        outermost level of at least that number.
        """
        with localcontext() as context:
            context.prec = 50
            chances = [Decimal(1), *(Decimal(int(weight)) / 2**64 for weight in self._further_weights)]
            at_least = _max_log_difference(chances, self._powers)
            exactly = _max_log_difference(_steps_down(chances), _steps_down(self._powers))
            # Inputs lie between the outermost levels, so no more cells than these are passed.
            blocks = -(-2 * self.reach // self._further_weights.size)
            off = _FLOAT_ROOM + blocks * at_least + max(exactly, at_least)
            return round_up(2 * Decimal(self.rate) / Decimal(self.step) + 2 * off + Decimal(10) ** -40)

    def _error(self, density: Density | ArrayLike | None, power: int) -> float:
        kinks = np.concatenate([self.values, self.values + 0.5 * self.step])
        breaks = np.union1d(np.linspace(-1.0, 1.0, _PANELS + 1), kinks[np.abs(kinks) < 1.0])
        return self._mean_error(density, breaks, power)


@register("snapping", SnappingSpec, 170, "#dda15e")
def design_snapping(spec: SnappingSpec) -> SnappingMechanism:
    """The certified mechanism at ``epsilon``."""
    # Inputs are at most 2 apart.
    scale = 2.0 / max(spec.epsilon * (1.0 - _RELATIVE_ROOM) - _ABSOLUTE_ROOM, 1e-12)
    exponent = math.ceil(math.log2(scale * _MIN_RATE))
    step = 2.0**exponent
    bound = 1.0 + _DEFAULT_SCALES * scale if spec.bound is None else spec.bound
    reach = math.ceil(bound / step)
    if reach > _MAX_REACH or exponent not in _EXPONENTS:
        raise InvalidSpecError(
            "epsilon",
            spec.epsilon,
            f"with bound {bound:g} takes {2 * reach + 1} levels of step {step:g}",
            f"up to {2 * _MAX_REACH + 1} levels and epsilon between 1e-10 and 900 are possible",
        )
    lattice = (exponent, step / scale, reach)
    return SnappingMechanism("snapping", *lattice, spec.epsilon, parameters=spec.parameters())


def _steps_down(values: list[Decimal]) -> list[Decimal]:
    return [a - b for a, b in itertools.pairwise(values)]


def _max_log_difference(given: list[Decimal], wanted: list[Decimal]) -> Decimal:
    """Largest |log(given / wanted)|."""
    return max(abs((a / b).ln()) for a, b in zip(given, wanted, strict=True))
