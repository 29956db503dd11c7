"""Quick estimates of a sum of bits in a run, to choose among designs before one is made.

Nothing here is a guarantee. A caller that chooses by an estimate designs and certifies what was chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fl_privquant.design.bits import bits_for_separation, numbers_of_trials
from fl_privquant.design.spread import RunTarget, best_spread, error_at_norm_bound
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.codebook import bits_of_sum
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.loss.kept_numbers import kept_numbers
from fl_privquant.mechanisms.sum_ring import bits_of_reach, honest_reach, log_wrap_odds
from fl_privquant.mechanisms.wish import Wish


@dataclass(frozen=True)
class Estimate:
    """A rough forecast of a design for a run."""

    ratio_to_central: float
    """Squared error of the mean of rotated updates at the norm bound, over that of a central Gaussian."""
    sum_bits: int
    """Bits of a coordinate in the secure sum."""


def estimate_bits(wish: Wish, stratified: bool) -> Estimate | None:
    """The sum of at most 2^bits - 1 bits at its best clip; None where none is known to meet the target."""
    if not wish.in_sum or wish.delta == 0.0:
        return None
    return _estimate(wish.run_target, wish.survivors, wish.bits, wish.exact_sums, stratified)


@lru_cache(maxsize=1024)
def _estimate(
    target: RunTarget, survivors: int, most_bits: int, exact_sums: bool, stratified: bool
) -> Estimate | None:
    ratio, width = kept_numbers(
        "estimate_bits",
        f"{target!r}, {survivors} survivors, {most_bits} bits, {exact_sums}, {stratified}",
        lambda: np.array(_estimated(target, survivors, most_bits, exact_sums, stratified)),
        np.zeros(2),
    )
    return None if math.isinf(ratio) else Estimate(float(ratio), int(width))


def _estimated(
    target: RunTarget, survivors: int, most_bits: int, exact_sums: bool, stratified: bool
) -> tuple[float, float]:
    """The fields of the estimate; infinite where there is none."""
    trials = numbers_of_trials(2**most_bits - 1, target.num_honest)[0]
    spread = best_spread(trials, target, stratified)
    error = error_at_norm_bound(spread, trials, target, stratified)
    update = target.update(math.sqrt(target.dimension) / spread)
    try:
        rare = bits_for_separation(
            trials,
            target.separation / update.widened,
            target.num_honest,
            update.rate,
            stratified=stratified,
            rough=True,
        )
    except InfeasibleDesignError:
        return math.inf, math.inf
    width = bits_of_sum(target.num_clients, trials)
    if not exact_sums:
        share = rare / TOTAL_WEIGHT
        rows = np.array([[1.0 - share, share], [share, 1.0 - share]])
        # The sum of all clients' bits, however they are grouped into codes.
        odds = log_wrap_odds(target.dimension)
        reach = honest_reach(np.array([-0.5, 0.5]), rows, target.num_clients * trials, odds)
        width = min(width, bits_of_reach(reach))
    central = 4.0 * target.dimension / (target.separation**2 * survivors)
    return error / central, width
