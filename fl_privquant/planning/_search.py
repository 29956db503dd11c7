"""The joint choice of bits and kept coordinates: fewest bytes for an error, or least error for a size.

Errors are measured in units of the error of a *central Gaussian*: a trusted server that adds normal noise to
the mean. If k of d rotated coordinates are kept, and all updates are equal and at the L2 clip, the squared
error of their mean is

    E(b, k) + (d / k - 1) s.

E(b, k) is the error of the mechanism with b bits for k coordinates. The second term is the error by
coordinates that are not sent; s is the squared norm of an update, divided by the error of a central
Gaussian. (The clip of the kept norm adds a little:
:func:`~fl_privquant.optimize.sums.coordinate_clip.error_of_kept`.) A client sends k times as many bits as
the sum of a coordinate takes. With more bits the mechanism has less error, so that fewer coordinates are
enough, but their sums are wider.

Mechanisms that can estimate their error and width (:meth:`~fl_privquant.mechanisms.spec.Spec.estimate`)
are compared by these estimates. The chosen one is then designed and certified, and k is changed until the
certified plan keeps the requested error or size. No estimate is ever stated as a result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError, pluralize
from fl_privquant.optimize.requirements import Estimate

if TYPE_CHECKING:
    from fl_privquant.planning.target import Plan

# The most plans that are made for one number of bits.
_MAX_STEPS = 5
# The most estimates for one number of bits; few are enough, as the error is nearly a straight line in d / k.
_MAX_ESTIMATES = 4
# By how much a certified error may exceed its estimate, in units of the central error.
_ERROR_MARGIN = 0.003
# A plan that uses this share of the allowed error or size is not improved further.
_CLOSE_ENOUGH = 0.98
_BYTES_PER_KILOBYTE = 1000
# Typical bits of a sum of integer noise, for mechanisms that give no estimate.
_TYPICAL_SUM_BITS = 16


@dataclass(frozen=True)
class _Guess:
    """Bits and kept coordinates, and the estimates for them."""

    bits: int
    kept: int
    ratio: float
    """Estimated error, divided by that of a central Gaussian."""
    sum_bits: float
    """Estimated bits of a coordinate in the secure sum."""


_ImproveKept = Callable[[int, Estimate, Estimate], int]
"""A better number of kept coordinates, from a number with its estimate and the estimate for all of them."""


@dataclass(frozen=True)
class JointSearch:
    """Plans for updates of ``dimension`` coordinates, by bits and kept coordinates."""

    dimension: int
    bits: range
    """The numbers of bits of a code, before it is masked, to choose from."""
    signal: float
    """Squared norm of an update at the L2 clip, divided by the error of a central Gaussian."""
    make_plan: Callable[[int, int | None], Plan]
    """Makes the certified plan with at most that many bits and that many coordinates, None for all."""
    estimate_plan: Callable[[int, int], Estimate | None]
    """Estimates that plan; None where the mechanism has no estimate."""
    min_kept: int = 1
    """How many coordinates are kept at least."""

    def within_error(self, max_error: float) -> Plan:
        """The plan with the fewest bytes within that error, in units of a central Gaussian's.

        Raises InfeasibleDesignError if no number of bits reaches it.
        """
        # Without an estimate, assume that the mechanism has the error of a central Gaussian.
        unknown = self.dimension / (1.0 + max(max_error - 1.0, 0.0) / self.signal)

        def enough(kept: int, estimate: Estimate, every: Estimate) -> int:
            # Except for a constant, the mechanism's error is proportional to 1 / k, or falls more slowly.
            own = (estimate.ratio_to_central - every.ratio_to_central) * kept
            room = max_error - _ERROR_MARGIN - every.ratio_to_central + self.signal
            return math.ceil((own + self.dimension * self.signal) / room) if room > 0.0 else self.dimension

        guesses = self._make_guesses(enough, 0.005, unknown)
        guesses.sort(key=lambda guess: guess.kept * guess.sum_bits)
        return _first_feasible(lambda guess: self._find_min_kept(guess, max_error), guesses)

    def within_size(self, max_kilobytes: float) -> Plan:
        """The plan with the least error of which a client sends at most that size in a round.

        Raises InfeasibleDesignError if no number of bits fits.
        """
        unknown = 8 * _BYTES_PER_KILOBYTE * max_kilobytes / _TYPICAL_SUM_BITS

        def fitting(kept: int, estimate: Estimate, every: Estimate) -> int:
            return int(8 * _BYTES_PER_KILOBYTE * max_kilobytes / estimate.sum_bits)

        guesses = self._make_guesses(fitting, 0.0, unknown)
        guesses.sort(key=lambda guess: guess.ratio)
        return _first_feasible(lambda guess: self._find_max_kept(guess, max_kilobytes), guesses)

    def _make_guesses(self, wanted: _ImproveKept, tolerance: float, unknown: float) -> list[_Guess]:
        """A guess for each number of bits; one of ``unknown`` coordinates where nothing can be estimated."""
        guesses = [self._make_guess(bits, wanted, tolerance) for bits in self.bits]
        kept = min(max(int(unknown), self.min_kept), self.dimension)
        return [guess for guess in guesses if guess is not None] or [
            _Guess(self.bits[-1], kept, math.nan, math.nan)
        ]

    def _make_guess(self, bits: int, wanted: _ImproveKept, tolerance: float) -> _Guess | None:
        """Coordinates to keep with that many bits, from the estimate for all and those for better guesses."""
        kept, every = self.dimension, self.estimate_plan(bits, self.dimension)
        if every is None:
            return None
        estimate = every
        for _ in range(_MAX_ESTIMATES):
            better = min(max(wanted(kept, estimate, every), self.min_kept), self.dimension)
            estimated = None if abs(better - kept) <= tolerance * kept else self.estimate_plan(bits, better)
            if estimated is None:
                break
            kept, estimate = better, estimated
        ratio = estimate.ratio_to_central + (self.dimension / kept - 1.0) * self.signal
        return _Guess(bits, kept, ratio, estimate.sum_bits)

    def _plan(self, bits: int, kept: int) -> Plan:
        return self.make_plan(bits, None if kept >= self.dimension else kept)

    def _find_min_kept(self, guess: _Guess, max_error: float) -> Plan:
        """The certified plan with that error, from a guess of how many coordinates it takes."""
        kept, best = guess.kept, None
        slope = self.signal
        before: tuple[float, float] | None = None
        for _ in range(_MAX_STEPS):
            plan = self._plan(guess.bits, kept)
            ratio, share = _require_ratio(plan), self.dimension / kept
            if ratio <= max_error and (best is None or kept < best.encoding.count_kept(self.dimension)):
                best = plan
            if before is not None and share != before[0]:
                slope = max((ratio - before[1]) / (share - before[0]), self.signal)
            before = (share, ratio)
            aim = max_error - (1.0 - _CLOSE_ENOUGH) * 0.5 * max(max_error - 1.0, 0.0)
            wanted = math.ceil(self.dimension / max(share + (aim - ratio) / slope, 1.0))
            wanted = min(max(wanted, self.min_kept), self.dimension)
            if wanted == kept or (ratio <= max_error and wanted > _CLOSE_ENOUGH * kept):
                break
            kept = wanted
        if best is None:
            raise InfeasibleDesignError(
                f"max_error: {max_error:g}, but with {_format_coordinates(plan)} the error is "
                f"{_require_ratio(plan):.4g} times a central Gaussian's; raise max_error or max_bits"
            )
        return best

    def _find_max_kept(self, guess: _Guess, max_kilobytes: float) -> Plan:
        """The certified plan of at most that size, with as many coordinates as fit, from a guess."""
        kept, too_many, best = guess.kept, self.dimension + 1, None
        for _ in range(_MAX_STEPS):
            plan = self._plan(guess.bits, kept)
            over = plan.bytes_per_round / (_BYTES_PER_KILOBYTE * max_kilobytes)
            if over > 1.0:
                too_many = kept
            else:
                best = plan
            kept = min(int(kept / over), too_many - 1)
            enough = best is not None and kept * _CLOSE_ENOUGH <= best.encoding.count_kept(self.dimension)
            if enough or kept < self.min_kept:
                break
        if best is not None:
            return best
        raise InfeasibleDesignError(
            f"max_kilobytes: {max_kilobytes:g} kB are too few for a coordinate of "
            f"{plan.encoding.mechanism.name}; raise max_kilobytes"
        )


def _first_feasible(make_plan: Callable[[_Guess], Plan], guesses: list[_Guess]) -> Plan:
    """The plan of the first guess that can be kept: an estimate may be a little better than its plan."""
    for guess in guesses[:-1]:
        with contextlib.suppress(InfeasibleDesignError):
            return make_plan(guess)
    return make_plan(guesses[-1])


def _require_ratio(plan: Plan) -> float:
    if plan.ratio_to_central is None:
        raise InvalidSpecError(
            "max_error", MISSING, "only for secure sums", "give keep, or aggregation=SecureSum()"
        )
    return plan.ratio_to_central


def _format_coordinates(plan: Plan) -> str:
    kept = plan.encoding.count_kept(plan.dimension)
    return "all coordinates" if kept == plan.dimension else pluralize(kept, "coordinate")
