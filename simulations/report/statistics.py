"""Means over seeds and how far they can be trusted."""

from __future__ import annotations

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


def student_interval(
    values: Any,
    logarithmic: bool = False,
    intervals: int = 1,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    min_seeds: int = 2,
) -> Interval:
    """The mean of some values and its interval by Student's t.

    A value that is not finite makes the mean NaN: leaving out the seeds that diverged would flatter a
    mechanism.

    Parameters
    ----------
    values
        One value for each seed.
    logarithmic
        Whether to take the geometric mean and the interval of the logarithms.
    intervals
        How many intervals are stated side by side; each is so wide that all of them hold together in 95 % of
        all cases (Bonferroni).
    bounds
        The smallest and the largest possible value; no end is outside.
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
    if logarithmic:
        with np.errstate(divide="ignore", invalid="ignore"):
            array = np.log(array)
    if not count or not np.isfinite(array).all():
        return Interval(np.nan, np.nan, np.nan, count)
    mean, half = float(array.mean()), np.nan
    if count >= max(2, min_seeds):
        quantile = stats.t.ppf(1.0 - (1.0 - CONFIDENCE) / (2 * intervals), count - 1)
        half = float(quantile * array.std(ddof=1) / np.sqrt(count))
    ends = np.array([mean, mean - half, mean + half])
    if logarithmic:
        with np.errstate(over="ignore"):
            ends = np.exp(ends)
    mean, low, high = (float(end) for end in np.clip(ends, *bounds))
    return Interval(mean, low, high, count)


def shown_interval(values: Any, **options: Any) -> Interval:
    """:func:`student_interval` where it is narrow enough to be read; fewer seeds have a mean without ends."""
    return student_interval(values, min_seeds=MIN_SEEDS, **options)
