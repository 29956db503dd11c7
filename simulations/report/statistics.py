"""Means over seeds and how far they can be trusted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

CONFIDENCE = 0.95
LEAST_SEEDS = 3
"""Intervals are shown from this number of seeds on: those of two are too wide to be read."""

BOUNDS = {
    "accuracy": (0.0, 1.0),
    "mean_squared_error": (0.0, np.inf),
    "mean_squared_error_rounds": (0.0, np.inf),
}
"""What is possible, by the column of the values; any number in others. No interval reaches further."""

POINT = ["x", "mean", "low", "high", "count"]
"""Columns of the points of a curve: where they are, and what :func:`student_interval` gives."""


def student_interval(
    values: Any,
    logarithmic: bool = False,
    intervals: int = 1,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[float, float, float, int]:
    """Mean, both ends of its 95 % interval (Student t), and the number of values.

    One value has no interval (NaN). A value that is not finite makes the mean NaN: leaving out the
    seeds that diverged would flatter a mechanism. With ``logarithmic`` the mean is geometric and the
    interval that of the logarithms, as a logarithmic axis needs. If several ``intervals`` are stated
    side by side, each is so wide that all of them hold together in 95 % of all cases (Bonferroni). No end
    is outside ``bounds``, which are what is possible.

    >>> mean, low, high, count = student_interval([0.90, 0.92, 0.94])
    >>> round(mean, 4), round(low, 4), round(high, 4), count
    (0.92, 0.8703, 0.9697, 3)
    """
    array = np.asarray(values, dtype=float)
    if logarithmic:
        with np.errstate(divide="ignore", invalid="ignore"):
            array = np.log(array)
    count = array.size
    if not count or not np.isfinite(array).all():
        return np.nan, np.nan, np.nan, count
    mean, half = float(array.mean()), np.nan
    if count > 1:
        quantile = stats.t.ppf(1.0 - (1.0 - CONFIDENCE) / (2 * intervals), count - 1)
        half = float(quantile * array.std(ddof=1) / np.sqrt(count))
    low, high = mean - half, mean + half
    if logarithmic:
        with np.errstate(over="ignore"):
            mean, low, high = float(np.exp(mean)), float(np.exp(low)), float(np.exp(high))
    return mean, float(np.clip(low, *bounds)), float(np.clip(high, *bounds)), count


def shown_interval(values: Any, **options: Any) -> tuple[float, float, float, int]:
    """:func:`student_interval` where it is narrow enough to be read; fewer seeds have a mean without ends."""
    mean, low, high, count = student_interval(values, **options)
    return (mean, low, high, count) if count >= LEAST_SEEDS else (mean, np.nan, np.nan, count)


def column_interval(frame: pd.DataFrame, column: str) -> tuple[float, float, float, int]:
    """:func:`shown_interval` of a column, within what is possible there."""
    return shown_interval(frame[column], bounds=BOUNDS.get(column, (-np.inf, np.inf)))


def over_seeds(frame: pd.DataFrame, by: str, column: str, logarithmic: bool = False) -> pd.DataFrame:
    """The means of ``column`` over seeds, as points at each value of ``by``; without those that are NaN."""
    rows = [
        (
            float(key),
            *(
                shown_interval(part[column], logarithmic=True)
                if logarithmic
                else column_interval(part, column)
            ),
        )
        for key, part in frame.groupby(by, sort=True)
    ]
    return pd.DataFrame(rows, columns=POINT).dropna(subset=["mean"])
