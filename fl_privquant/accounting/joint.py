"""The joint choice of bits and kept coordinates: fewest bytes for an error, or least error for a size.

With k of d rotated coordinates kept, the squared error of the mean of equal updates at the L2 clip is, in
units of a central Gaussian's error, E(b, k) + (d / k - 1) s: the error of the mechanism with b bits for k
coordinates, and what is lost with those that are not sent, s being the squared norm over the error of a
central Gaussian (and a little more, by the clip of the kept norm:
:func:`~fl_privquant.design.spread.error_of_kept`). A client sends k times the width of the sum. With more
bits the mechanism errs less, so that fewer coordinates are enough, but the sums are wider.

Mechanisms that estimate their error and width (:meth:`~fl_privquant.mechanisms.registry.Spec.estimate`) are
compared by that. What was chosen is designed and certified, and k is moved until the certified plan keeps to
what was asked for: no estimate is ever stated.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.wish import Estimate

if TYPE_CHECKING:
    from fl_privquant.accounting.target import Plan

# Plans that are made for one number of bits, at the most.
_MOST_STEPS = 5
# Estimates that a number of coordinates is found by; the error is nearly a straight line in d / k.
_MOST_ESTIMATES = 4
# What certificates give away beside the estimate, in units of the central error.
_ROOM = 0.003
# A plan this close to what was asked for, as a share, is not improved on.
_CLOSE = 0.98
_BYTES = 1000
# Bits of a sum of integer noise, about, where a mechanism does not say.
_USUAL_WIDTH = 16


@dataclass(frozen=True)
class _Guess:
    """Bits and kept coordinates; about their error over a central Gaussian's, and their width in the sum."""

    bits: int
    kept: int
    ratio: float
    sum_bits: float


def _silent(doing: str) -> None:
    """Tell nobody what is being done."""


@dataclass(frozen=True)
class JointSearch:
    """Plans for updates of ``dimension`` coordinates, by bits and kept coordinates."""

    dimension: int
    most_bits: int
    """The most bits of a code before it is masked."""
    signal: float
    """Squared norm of an update at the L2 clip over the error of a central Gaussian."""
    planned: Callable[[int, int | None], Plan]
    """Makes the certified plan with at most so many bits and so many coordinates, None for all of them."""
    estimated: Callable[[int, int], Estimate | None]
    """Estimates that plan; None where the mechanism has no estimate."""
    progress: Callable[[str], None] = _silent
    """Called with what is being designed and certified."""

    def fewest_bytes(self, most_error: float) -> Plan:
        """The plan with the fewest bytes whose error is at most so many central Gaussians'."""
        guesses = self._guesses_for_error(most_error)
        guesses.sort(key=lambda guess: guess.kept * guess.sum_bits)
        for guess in guesses[:-1]:
            # An estimate may promise a little more than a certificate holds.
            with contextlib.suppress(InfeasibleDesignError):
                return self._fewest_kept(guess, most_error)
        return self._fewest_kept(guesses[-1], most_error)

    def least_error(self, most_kilobytes: float) -> Plan:
        """The plan with the least error of which a client sends at most so many kilobytes in a round."""
        guesses = self._guesses_for_size(most_kilobytes)
        best = min(guesses, key=lambda guess: guess.ratio)
        return self._within_size(best, most_kilobytes)

    def each_for_error(self, most_error: float) -> list[Plan]:
        """The plan with the fewest bytes for each number of bits that reaches the error."""
        guesses = self._guesses_for_error(most_error)
        return self._reached(lambda guess: self._fewest_kept(guess, most_error), guesses)

    def each_for_size(self, most_kilobytes: float) -> list[Plan]:
        """The plan with the least error within that size, for each number of bits."""
        guesses = self._guesses_for_size(most_kilobytes)
        return self._reached(lambda guess: self._within_size(guess, most_kilobytes), guesses)

    def _reached(self, plan: Callable[[_Guess], Plan], guesses: list[_Guess]) -> list[Plan]:
        plans: list[Plan] = []
        reason: InfeasibleDesignError | None = None
        for guess in guesses:
            try:
                plans.append(plan(guess))
            except InfeasibleDesignError as error:
                reason = error
        if reason is not None and not plans:
            raise reason
        return plans

    def _guesses(self, guess: Callable[[int], _Guess | None], unknown: float) -> list[_Guess]:
        """One for each number of bits; one of ``unknown`` coordinates where nothing can be estimated."""
        guesses = [guessed for bits in range(1, self.most_bits + 1) if (guessed := guess(bits))]
        kept = min(max(int(unknown), 1), self.dimension)
        return guesses or [_Guess(self.most_bits, kept, math.nan, math.nan)]

    def _guesses_for_error(self, most_error: float) -> list[_Guess]:
        # As if a mechanism had the error of a central Gaussian.
        unknown = self.dimension / (1.0 + max(most_error - 1.0, 0.0) / self.signal)
        return self._guesses(lambda bits: self._for_error(bits, most_error), unknown)

    def _guesses_for_size(self, most_kilobytes: float) -> list[_Guess]:
        unknown = 8 * _BYTES * most_kilobytes / _USUAL_WIDTH
        return self._guesses(lambda bits: self._for_size(bits, most_kilobytes), unknown)

    def _ratio(self, estimate: Estimate, kept: float) -> float:
        return estimate.ratio_to_central + (self.dimension / kept - 1.0) * self.signal

    def _for_error(self, bits: int, most_error: float) -> _Guess | None:
        """How many coordinates are enough, about."""
        dimension, lost = self.dimension, self.dimension * self.signal
        every = self.estimated(bits, dimension)
        if every is None:
            return None
        kept, estimate, aim = dimension, every, most_error - _ROOM
        for _ in range(_MOST_ESTIMATES):
            # Beside a constant, the error of the mechanism is in proportion to 1 / k, or falls more slowly.
            own = (estimate.ratio_to_central - every.ratio_to_central) * kept
            room = aim - every.ratio_to_central + self.signal
            wanted = math.ceil((own + lost) / room) if room > 0.0 else dimension
            wanted = min(max(wanted, 1), dimension)
            if abs(wanted - kept) <= 0.005 * kept:
                break
            estimated = self.estimated(bits, wanted)
            if estimated is None:
                break
            kept, estimate = wanted, estimated
        return _Guess(bits, kept, self._ratio(estimate, kept), estimate.sum_bits)

    def _for_size(self, bits: int, most_kilobytes: float) -> _Guess | None:
        """How many coordinates fit, about."""
        kept, estimate = self.dimension, self.estimated(bits, self.dimension)
        for _ in range(_MOST_ESTIMATES):
            if estimate is None:
                return None
            fitting = int(8 * _BYTES * most_kilobytes / estimate.sum_bits)
            wanted = min(max(fitting, 1), self.dimension)
            if wanted == kept:
                break
            kept, estimate = wanted, self.estimated(bits, wanted)
        if estimate is None:
            return None
        return _Guess(bits, kept, self._ratio(estimate, kept), estimate.sum_bits)

    def _plan(self, bits: int, kept: int) -> Plan:
        self.progress(f"{bits} of {self.most_bits} bits, {kept} coordinates")
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
            wanted = min(max(wanted, 1), self.dimension)
            if wanted == kept or (ratio <= most_error and wanted > _CLOSE * kept):
                break
            kept = wanted
        if best is None:
            raise InfeasibleDesignError(
                f"most_error: {most_error:g}, but with {_coordinates(plan)} the error is "
                f"{_ratio_of(plan):.4g} times a central Gaussian's; raise it, or max_bits"
            )
        return best

    def _within_size(self, guess: _Guess, most_kilobytes: float) -> Plan:
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
            if kept < 1 or (best is not None and kept * _CLOSE <= best.encoding.kept(self.dimension)):
                break
        if best is not None:
            return best
        raise InfeasibleDesignError(
            f"most_kilobytes: {most_kilobytes:g} kB are too few for a coordinate of "
            f"{plan.encoding.mechanism.name}; allow more"
        )


def _ratio_of(plan: Plan) -> float:
    if plan.ratio_to_central is None:
        raise InvalidSpecError("most_error: is about secure sums; give keep, or aggregation=SecureSum()")
    return plan.ratio_to_central


def _coordinates(plan: Plan) -> str:
    kept = plan.encoding.kept(plan.dimension)
    return "all coordinates" if kept == plan.dimension else f"{kept} coordinates"
