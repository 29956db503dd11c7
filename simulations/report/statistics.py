"""Means over seeds and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
MIN_SEEDS = 3
"""Intervals are shown from this number of seeds on: those of two are too wide to be read."""


class Interval(NamedTuple):
    """A mean, both ends of its 95 % interval (NaN where there are too few seeds), and how many seeds."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def is_stated(self) -> bool:
        """Whether there are enough seeds for an interval."""
        return not np.isnan(self.low)

    def map(self, function: Callable[[Any], Any]) -> Interval:
        """The same on another scale."""
        mean, low, high = (float(function(value)) for value in self[:3])
        return Interval(mean, low, high, self.seeds)


def student_interval(values: Any, intervals: int = 1, min_seeds: int = 2) -> Interval:
    """The mean of some values and its interval by Student's t.

    A value that is not finite makes the mean NaN: leaving out the seeds that diverged would flatter a
    mechanism.

    Parameters
    ----------
    values
        One value for each seed.
    intervals
        How many intervals are stated side by side; each is so wide that all of them hold together in 95 % of
        all cases (Bonferroni).
    min_seeds
        With fewer values the ends are NaN.

    Returns
    -------
    Interval
        Mean, low, high and count.

    >>> mean, low, high, count = student_interval([0.90, 0.92, 0.94])
    >>> round(mean, 4), round(low, 4), round(high, 4), count
    (0.92, 0.8703, 0.9697, 3)
    """
    array = np.asarray(values, dtype=float)
    count = array.size
    if not count or not np.isfinite(array).all():
        return Interval(np.nan, np.nan, np.nan, count)
    mean, half = float(array.mean()), np.nan
    if count >= max(2, min_seeds):
        quantile = stats.t.ppf(1.0 - (1.0 - CONFIDENCE) / (2 * intervals), count - 1)
        half = float(quantile * array.std(ddof=1) / np.sqrt(count))
    return Interval(mean, mean - half, mean + half, count)


def shown_interval(values: Any, intervals: int = 1) -> Interval:
    """:func:`student_interval` where it is narrow enough to be read; fewer seeds have a mean without ends."""
    return student_interval(values, intervals, MIN_SEEDS)
