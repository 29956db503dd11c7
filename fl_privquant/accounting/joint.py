"""The joint choice of bits and kept coordinates: fewest bytes for an error, or least error for a size.

Errors are measured in units of the error of a *central Gaussian*: a trusted server that adds normal noise to
the mean. If k of d rotated coordinates are kept, and all updates are equal and at the L2 clip, the squared
error of their mean is

    E(b, k) + (d / k - 1) s.

E(b, k) is the error of the mechanism with b bits for k coordinates. The second term is the error by
coordinates that are not sent; s is the squared norm of an update, divided by the error of a central Gaussian.
(The clip of the kept norm adds a little: :func:`~fl_privquant.design.spread.error_of_kept`.) A client sends k
times as many bits as the sum of a coordinate takes. With more bits the mechanism has less error, so that
fewer coordinates are enough, but their sums are wider.

Mechanisms that can estimate their error and width (:meth:`~fl_privquant.mechanisms.registry.Spec.estimate`)
are compared by these estimates. The chosen one is then designed and certified, and k is changed until the
certified plan keeps the requested error or size. No estimate is ever stated as a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError, counted
from fl_privquant.mechanisms.wish import Estimate

if TYPE_CHECKING:
    from fl_privquant.accounting.target import Plan

# The most plans that are made for one number of bits.
_MOST_STEPS = 5
# The most estimates for one number of bits; few are enough, as the error is nearly a straight line in d / k.
_MOST_ESTIMATES = 4
# By how much a certified error may exceed its estimate, in units of the central error.
_ROOM = 0.003
# A plan that uses this share of the allowed error or size is not improved further.
_CLOSE = 0.98
_BYTES = 1000
# Typical bits of a sum of integer noise, for mechanisms that give no estimate.
_USUAL_WIDTH = 16


@dataclass(frozen=True)
class _Guess:
    """Bits and kept coordinates, and the estimates for them."""

    bits: int
    kept: int
    ratio: float
    """Estimated error, divided by that of a central Gaussian."""
    sum_bits: float
    """Estimated bits of a coordinate in the secure sum."""


_Wanted = Callable[[int, Estimate, Estimate], int]
"""A better number of kept coordinates, from a number with its estimate and the estimate for all of them."""


@dataclass(frozen=True)
class JointSearch:
    """Plans for updates of ``dimension`` coordinates, by bits and kept coordinates."""

    dimension: int
    bits: range
    """The numbers of bits of a code, before it is masked, to choose from."""
    signal: float
    """Squared norm of an update at the L2 clip, divided by the error of a central Gaussian."""
    planned: Callable[[int, int | None], Plan]
    """Makes the certified plan with at most that many bits and that many coordinates, None for all."""
    estimated: Callable[[int, int], Estimate | None]
    """Estimates that plan; None where the mechanism has no estimate."""
    progress: Callable[[str], None]
    """Called with what is being designed and certified."""
    fewest: int = 1
    """How many coordinates are kept at least."""

    def within_error(self, most_error: float) -> Iterator[Plan]:
        """For each number of bits the plan with the fewest bytes within that error, the best first.

        The error is in units of a central Gaussian's, and the order is that of the estimates. Raises
        InfeasibleDesignError if no number of bits reaches it.
        """
        # Without an estimate, assume that the mechanism has the error of a central Gaussian.
        unknown = self.dimension / (1.0 + max(most_error - 1.0, 0.0) / self.signal)

        def enough(kept: int, estimate: Estimate, every: Estimate) -> int:
            # Except for a constant, the mechanism's error is proportional to 1 / k, or falls more slowly.
            own = (estimate.ratio_to_central - every.ratio_to_central) * kept
            room = most_error - _ROOM - every.ratio_to_central + self.signal
            return math.ceil((own + self.dimension * self.signal) / room) if room > 0.0 else self.dimension

        guesses = self._guesses(enough, 0.005, unknown)
        guesses.sort(key=lambda guess: guess.kept * guess.sum_bits)
        return _feasible(lambda guess: self._fewest_kept(guess, most_error), guesses)

    def within_size(self, most_kilobytes: float) -> Iterator[Plan]:
        """For each number of bits the plan with the least error within that size, the best first.

        The size is what a client sends in a round, and the order is that of the estimates. Raises
        InfeasibleDesignError if no number of bits fits.
        """
        unknown = 8 * _BYTES * most_kilobytes / _USUAL_WIDTH

        def fitting(kept: int, estimate: Estimate, every: Estimate) -> int:
            return int(8 * _BYTES * most_kilobytes / estimate.sum_bits)

        guesses = self._guesses(fitting, 0.0, unknown)
        guesses.sort(key=lambda guess: guess.ratio)
        return _feasible(lambda guess: self._most_kept(guess, most_kilobytes), guesses)

    def _guesses(self, wanted: _Wanted, tolerance: float, unknown: float) -> list[_Guess]:
        """A guess for each number of bits; one of ``unknown`` coordinates where nothing can be estimated."""
        guesses = [self._guess(bits, wanted, tolerance) for bits in self.bits]
        kept = min(max(int(unknown), self.fewest), self.dimension)
        return [guess for guess in guesses if guess is not None] or [
            _Guess(self.bits[-1], kept, math.nan, math.nan)
        ]

    def _guess(self, bits: int, wanted: _Wanted, tolerance: float) -> _Guess | None:
        """Coordinates to keep with that many bits, from the estimate for all and those for better guesses."""
        kept, every = self.dimension, self.estimated(bits, self.dimension)
        if every is None:
            return None
        estimate = every
        for _ in range(_MOST_ESTIMATES):
            better = min(max(wanted(kept, estimate, every), self.fewest), self.dimension)
            estimated = None if abs(better - kept) <= tolerance * kept else self.estimated(bits, better)
            if estimated is None:
                break
            kept, estimate = better, estimated
        ratio = estimate.ratio_to_central + (self.dimension / kept - 1.0) * self.signal
        return _Guess(bits, kept, ratio, estimate.sum_bits)

    def _plan(self, bits: int, kept: int) -> Plan:
        self.progress(f"{bits} of {self.bits[-1]} bits, {counted(kept, 'coordinate')}")
        return self.planned(bits, None if kept >= self.dimension else kept)

    def _fewest_kept(self, guess: _Guess, most_error: float) -> Plan:
        """The certified plan with that error, from a guess of how many coordinates it takes."""
        kept, best = guess.kept, None
        slope = self.signal
        before: tuple[float, float] | None = None
        for _ in range(_MOST_STEPS):
            plan = self._plan(guess.bits, kept)
            ratio, share = _ratio_of(plan), self.dimension / kept
            if ratio <= most_error and (best is None or kept < best.encoding.kept(self.dimension)):
                best = plan
            if before is not None and share != before[0]:
                slope = max((ratio - before[1]) / (share - before[0]), self.signal)
            before = (share, ratio)
            aim = most_error - (1.0 - _CLOSE) * 0.5 * max(most_error - 1.0, 0.0)
            wanted = math.ceil(self.dimension / max(share + (aim - ratio) / slope, 1.0))
            wanted = min(max(wanted, self.fewest), self.dimension)
            if wanted == kept or (ratio <= most_error and wanted > _CLOSE * kept):
                break
            kept = wanted
        if best is None:
            raise InfeasibleDesignError(
                f"most_error: {most_error:g}, but with {_coordinates(plan)} the error is "
                f"{_ratio_of(plan):.4g} times a central Gaussian's; raise most_error or max_bits"
            )
        return best

    def _most_kept(self, guess: _Guess, most_kilobytes: float) -> Plan:
        """The certified plan of at most that size, with as many coordinates as fit, from a guess."""
        kept, too_many, best = guess.kept, self.dimension + 1, None
        for _ in range(_MOST_STEPS):
            plan = self._plan(guess.bits, kept)
            over = plan.bytes_per_round / (_BYTES * most_kilobytes)
            if over > 1.0:
                too_many = kept
            else:
                best = plan
            kept = min(int(kept / over), too_many - 1)
            enough = best is not None and kept * _CLOSE <= best.encoding.kept(self.dimension)
            if enough or kept < self.fewest:
                break
        if best is not None:
            return best
        raise InfeasibleDesignError(
            f"most_kilobytes: {most_kilobytes:g} kB are too few for a coordinate of "
            f"{plan.encoding.mechanism.name}; raise most_kilobytes"
        )


def _feasible(plan: Callable[[_Guess], Plan], guesses: list[_Guess]) -> Iterator[Plan]:
    """The plans that can be made; an estimate may be a little better than the certified plan."""
    failures: list[InfeasibleDesignError] = []
    for guess in guesses:
        try:
            feasible = plan(guess)
        except InfeasibleDesignError as error:
            failures.append(error)
        else:
            yield feasible
    if len(failures) == len(guesses):
        raise failures[-1]


def _ratio_of(plan: Plan) -> float:
    if plan.ratio_to_central is None:
        raise InvalidSpecError("most_error: only for secure sums; give keep, or aggregation=SecureSum()")
    return plan.ratio_to_central


def _coordinates(plan: Plan) -> str:
    kept = plan.encoding.kept(plan.dimension)
    return "all coordinates" if kept == plan.dimension else counted(kept, "coordinate")
