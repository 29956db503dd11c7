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
enough, but their sums are wider. So each number of bits is tried: certified plans are made, and k is changed
until one keeps the requested error or size.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError, pluralize

if TYPE_CHECKING:
    from fl_privquant.planning.target import Plan

# The most plans that are made for one number of bits.
_MAX_STEPS = 5
# A plan that uses this share of the allowed error or size is not improved further.
_CLOSE_ENOUGH = 0.98
_BYTES_PER_KILOBYTE = 1000
# Typical bits of a coordinate in a sum, to begin with.
_TYPICAL_SUM_BITS = 16


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
    min_kept: int = 1
    """How many coordinates are kept at least."""

    def within_error(self, max_error: float) -> Plan:
        """The plan with the fewest bytes within that error, in units of a central Gaussian's.

        Raises InfeasibleDesignError if no number of bits reaches it.
        """
        # Begin as if the mechanism had the error of a central Gaussian.
        kept = self._within_bounds(self.dimension / (1.0 + max(max_error - 1.0, 0.0) / self.signal))
        plans = self._plan_each(lambda bits: self._find_min_kept(bits, kept, max_error))
        return min(plans, key=lambda plan: (plan.bytes_per_round, plan.mean_squared_error))

    def within_size(self, max_kilobytes: float) -> Plan:
        """The plan with the least error of which a client sends at most that size in a round.

        Raises InfeasibleDesignError if no number of bits fits.
        """
        kept = self._within_bounds(8 * _BYTES_PER_KILOBYTE * max_kilobytes / _TYPICAL_SUM_BITS)
        plans = self._plan_each(lambda bits: self._find_max_kept(bits, kept, max_kilobytes))
        return min(plans, key=lambda plan: plan.mean_squared_error)

    def _within_bounds(self, kept: float) -> int:
        return int(min(max(kept, self.min_kept), self.dimension))

    def _plan_each(self, find: Callable[[int], Plan]) -> list[Plan]:
        """The plans of all numbers of bits that have one; an error if none has."""
        plans, failures = [], []
        for bits in self.bits:
            try:
                plans.append(find(bits))
            except InfeasibleDesignError as error:
                failures.append(error)
        if not plans:
            raise failures[-1]
        return plans

    def _make_plan(self, bits: int, kept: int) -> Plan:
        return self.make_plan(bits, None if kept >= self.dimension else kept)

    def _find_min_kept(self, bits: int, kept: int, max_error: float) -> Plan:
        """The plan with that error, from a guess of how many coordinates it takes."""
        best: Plan | None = None
        slope = self.signal
        before: tuple[float, float] | None = None
        for _ in range(_MAX_STEPS):
            plan = self._make_plan(bits, kept)
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

    def _find_max_kept(self, bits: int, kept: int, max_kilobytes: float) -> Plan:
        """The plan of at most that size, with as many coordinates as fit, from a guess."""
        too_many, best = self.dimension + 1, None
        for _ in range(_MAX_STEPS):
            plan = self._make_plan(bits, kept)
            over = plan.bytes_per_round / (_BYTES_PER_KILOBYTE * max_kilobytes)
            if over > 1.0:
                too_many = kept
            else:
                best = plan
            # A size of 1e308 kilobytes leaves nothing of the ratio.
            kept = int(min(kept / max(over, sys.float_info.min), too_many - 1))
            enough = best is not None and kept * _CLOSE_ENOUGH <= best.encoding.count_kept(self.dimension)
            if enough or kept < self.min_kept:
                break
        if best is not None:
            return best
        raise InfeasibleDesignError(
            f"max_kilobytes: {max_kilobytes:g} kB are too few for a coordinate of "
            f"{plan.encoding.mechanism.name}; raise max_kilobytes"
        )


def _require_ratio(plan: Plan) -> float:
    if plan.ratio_to_central is None:
        raise InvalidSpecError(
            "max_error", MISSING, "only for secure sums", "give keep, or aggregation=SecureSum()"
        )
    return plan.ratio_to_central


def _format_coordinates(plan: Plan) -> str:
    kept = plan.encoding.count_kept(plan.dimension)
    return "all coordinates" if kept == plan.dimension else pluralize(kept, "coordinate")
