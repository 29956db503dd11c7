"""Integer codes and the values they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Ints
from fl_privquant.errors import MISSING, CodeOverflowError, InvalidSpecError, InvalidUpdateError

MAX_LEVELS = 1 << 16
"""Largest number of output values: indices are at most 16 bits."""

FINE_MAX_CODE = (1 << 24) - 1
"""Largest code; values that lie on no coarse lattice are rounded to one of 24 bits."""

_COARSE_MAX_CODE = 1 << 16
_SAME_VALUE = 1e-9
_SUM_BITS = 63


@dataclass(frozen=True, eq=False)
class Codebook:
    """Integer codes and the values they stand for: ``value = offset + step * code``.

    Codes are lattice points, not bin indices. Only then does the sum of the codes
    decode to the sum of the values, which is what secure aggregation needs.

    >>> Codebook(codes=np.array([0, 5, 7, 12]), step=0.5, offset=-3.0).values
    array([-3. , -0.5,  0.5,  3. ])
    """

    codes: Ints
    step: float
    offset: float

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes, dtype=np.int64)
        if codes.ndim != 1 or not 2 <= codes.size <= MAX_LEVELS:
            raise InvalidSpecError(
                "codes", codes.size, f"levels, expected 2 to {MAX_LEVELS}", "change bits or levels"
            )
        if codes[0] != 0 or np.any(np.diff(codes) <= 0):
            raise InvalidSpecError("codes", MISSING, "must start at 0 and increase strictly")
        if codes[-1] > FINE_MAX_CODE:
            raise InvalidSpecError(
                "codes",
                MISSING,
                f"largest code {int(codes[-1])} is above {FINE_MAX_CODE}",
                "use a coarser lattice",
            )
        if not (np.isfinite(self.step) and self.step > 0.0 and np.isfinite(self.offset)):
            raise InvalidSpecError(
                "step, offset", (self.step, self.offset), ": the step must be positive, both finite"
            )
        object.__setattr__(self, "codes", codes)

    @classmethod
    def from_values(cls, values: ArrayLike) -> Codebook:
        """The codebook on the coarsest lattice that contains ``values`` to 9 digits, else on one of 24 bits.

        >>> Codebook.from_values([-6.0, -0.4, 0.4, 6.0]).codes
        array([ 0,  7,  8, 15])
        """
        points = np.asarray(values, dtype=np.float64)
        if points.ndim != 1 or not 2 <= points.size <= MAX_LEVELS:
            raise InvalidSpecError(
                "values", MISSING, f"shape {points.shape}, expected a vector of 2 to {MAX_LEVELS} values"
            )
        if not np.all(np.isfinite(points)) or np.any(np.diff(points) <= 0.0):
            raise InvalidSpecError("values", points.tolist(), "must be finite and increase strictly")
        span = float(points[-1] - points[0])
        fractions = (points - points[0]) / span
        max_code = _coarsest_lattice(fractions)
        codes = np.rint(fractions * max_code).astype(np.int64)
        return cls(codes, span / max_code, float(points[0]))

    @cached_property
    def values(self) -> Floats:
        """(m,) the values, increasing."""
        return self.offset + self.step * self.codes.astype(np.float64)

    @property
    def num_levels(self) -> int:
        """Number m of codes."""
        return int(self.codes.size)

    @property
    def max_code(self) -> int:
        """The largest code; the smallest is 0."""
        return int(self.codes[-1])

    def sum_bits(self, num_clients: int) -> int:
        """Bits that hold the sum of the codes of ``num_clients`` clients.

        >>> Codebook(np.array([0, 5, 7, 12]), 0.5, -3.0).sum_bits(100)
        11
        """
        return count_sum_bits(num_clients, self.max_code)

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        """The values of bin indices, scaled to inputs in [-clip, clip]."""
        at = np.asarray(indices)
        if at.dtype.kind not in "ui":
            raise InvalidUpdateError(
                f"indices: {at.dtype}, expected the integers that encode returned; floats are decoded already"
            )
        if at.size and (at.min() < 0 or at.max() >= self.num_levels):
            raise CodeOverflowError(
                f"index {int(at.max() if at.max() >= self.num_levels else at.min())} is outside "
                f"0..{self.num_levels - 1}"
            )
        scaled: Floats = _validation.check_positive("clip", clip) * self.values
        return np.asarray(scaled[at])

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        """The mean value from the sum of the codes of ``num_clients`` clients.

        >>> book = Codebook(np.array([0, 5, 7, 12]), 0.5, -3.0)
        >>> book.decode_sum([5 + 12], num_clients=2)
        array([1.25])
        """
        sums = check_sums(total, num_clients, self.max_code)
        # In place, because the sums of a large model already take twice its memory.
        mean = sums.astype(np.float64)
        mean /= num_clients
        mean *= self.step
        mean += self.offset
        mean *= _validation.check_positive("clip", clip)
        return mean


def count_sum_bits(num_clients: int, max_code: int, most: int = _SUM_BITS) -> int:
    """Bits of the sum of ``num_clients`` codes from 0 to ``max_code``; CodeOverflowError above ``most``.

    >>> count_sum_bits(100, 3)
    9
    """
    num_clients = _validation.check_integer("num_clients", num_clients, 1, 1 << 200)
    bits = (num_clients * max_code).bit_length()
    if bits > most:
        raise CodeOverflowError(
            f"the sum of {num_clients} codes up to {max_code} needs {bits} bits, more than {most}; use a "
            "coarser lattice (max_code, fixed_point_bits) or fewer clients"
        )
    return bits


def check_sums(total: ArrayLike, num_clients: int, max_code: int, most: int = _SUM_BITS) -> Array:
    """The sums, if they are integers that ``num_clients`` codes from 0 to ``max_code`` can add up to."""
    count_sum_bits(num_clients, max_code, most)
    sums: Array = np.asarray(total)
    largest = num_clients * max_code
    if sums.dtype.kind not in "ui":
        raise InvalidUpdateError(f"a sum of codes: {sums.dtype}, expected integers")
    if sums.size and (int(sums.min()) < 0 or int(sums.max()) > largest):
        raise CodeOverflowError(
            f"a sum of {num_clients} codes lies in 0..{largest}, received "
            f"{int(sums.min())}..{int(sums.max())}; the number of clients or the payload is wrong"
        )
    return sums


def _coarsest_lattice(fractions: Floats) -> int:
    """Smallest L such that L * fractions are distinct integers (to rounding), else FINE_MAX_CODE."""
    levels = fractions.size
    block = max(1, (1 << 20) // levels)
    for start in range(levels - 1, _COARSE_MAX_CODE + 1, block):
        candidates = np.arange(start, min(start + block, _COARSE_MAX_CODE + 1))
        scaled = candidates[:, None] * fractions
        nearest = np.rint(scaled)
        fits = np.abs(scaled - nearest).max(axis=1) <= _SAME_VALUE * candidates
        fits &= (np.diff(nearest, axis=1) > 0).all(axis=1)
        if fits.any():
            return int(candidates[int(np.argmax(fits))])
    return FINE_MAX_CODE
