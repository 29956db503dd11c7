"""What runs are compared by, with the words for it: accuracy, loss, and the error of the mean update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simulations.report.statistics import Interval, shown_interval


@dataclass(frozen=True)
class Measure:
    """A column of the results.

    Parameters
    ----------
    key
        The column.
    heading, axis
        What it is called in tables and in figures.
    question, by_rounds
        What a figure of it answers, and the title of one against rounds.
    result
        What one has, with a place for the amount.
    reason
        Why the best one is recommended.
    behind
        How far others are behind, as the heading of a column.
    less, lost
        How far one is behind the best one, and behind a trusted server; with a place for the amount.
    percent
        Whether it is a share, shown in per cent, of which more is better.
    ratio
        Whether two are divided instead of subtracted.
    """

    key: str
    heading: str
    axis: str
    question: str
    by_rounds: str
    result: str
    reason: str
    behind: str
    less: str
    lost: str
    percent: bool = False
    ratio: bool = False

    @property
    def scale(self) -> float:
        """The factor by which it is shown."""
        return 100.0 if self.percent else 1.0

    def interval(self, values: Any) -> Interval:
        """The mean as it is shown, with an interval within what is possible."""
        least, largest = (0.0 if self.percent or self.ratio else -np.inf), (100.0 if self.percent else np.inf)
        return shown_interval(self.scale * values).map(lambda end: np.clip(end, least, largest))

    def text(self, values: Any) -> str:
        """The mean and, from three seeds on, half of its interval."""
        return percent_text(self.interval(values)) if self.percent else number_text(self.interval(values))

    def badness(self, values: Any) -> Any:
        """Values that are the larger the worse, and are subtracted: logarithms, where two are divided."""
        return np.log(values) if self.ratio else -self.scale * values if self.percent else values

    def difference(self, pairs: pd.Series, intervals: int) -> Interval:
        """How much worse one is than the other, from differences of their badness."""
        interval = shown_interval(pairs, intervals)
        if self.ratio:
            return interval.map(np.exp)
        # No two accuracies differ by more than 100 points.
        return interval.map(lambda end: np.clip(end, -100.0, 100.0)) if self.percent else interval

    def is_significant(self, difference: Interval) -> bool:
        """Whether an interval excludes that there is no difference; never with too few seeds."""
        equal = 1.0 if self.ratio else 0.0
        return difference.is_stated and not difference.low <= equal <= difference.high

    def amount(self, difference: Interval) -> str:
        """The mean of a difference."""
        value = difference.mean
        if not self.ratio:
            return _signed(value, 1 if abs(value) >= 0.05 else 2)
        return f"{value:,.{0 if value >= 100.0 else 3 if abs(value - 1.0) < 0.01 else 2}f}"

    def ends(self, difference: Interval) -> str:
        """The interval of a difference, or how few seeds there are."""
        _, low, high, seeds = difference
        if not difference.is_stated:
            return f"{count_seeds(seeds)}, no interval"
        digits = 2 if self.ratio or high - low < 0.2 else 1
        return f"{_signed(low, digits)} to {_signed(high, digits)}"


ACCURACY = Measure(
    "accuracy",
    heading="accuracy, %",
    axis="test accuracy, %",
    question="Who learns best?",
    by_rounds="Accuracy after each round",
    result="an accuracy of {} %",
    reason="it has the highest accuracy",
    behind="points of accuracy below",
    less="{} points of accuracy less",
    lost="it loses {} points of accuracy to a trusted server",
    percent=True,
)
LOSS = Measure(
    "loss",
    heading="loss",
    axis="test loss",
    question="Who learns best?",
    by_rounds="Loss after each round",
    result="a loss of {}",
    reason="it has the lowest loss",
    behind="loss above that of",
    less="{} more loss",
    lost="its loss is {} above that of a trusted server",
)
ERROR = Measure(
    "error",
    heading="squared error",
    axis="squared error of the mean update",
    question="Whose mean update errs least?",
    by_rounds="Error of each round's mean update",
    result="a squared error of the mean update of {}",
    reason="its mean update has the least squared error",
    behind="squared error ÷ that of",
    less="{} times its error",
    lost="the squared error of its mean update is {} times that of a trusted server",
    ratio=True,
)
MEASURES = (ACCURACY, LOSS, ERROR)


def quality_of(rows: pd.DataFrame) -> Measure:
    """How well models are judged: by accuracy where it was evaluated, else by loss."""
    return ACCURACY if rows[ACCURACY.key].notna().any() else LOSS


def number_text(interval: Interval) -> str:
    """A number with three digits, and half of its interval with as many decimal places.

    >>> number_text(Interval(0.00123, 0.00119, 0.00127, 3)), number_text(Interval(2.5, math.nan, math.nan, 1))
    ('0.00123 ± 0.00004', '2.50')
    """
    mean = interval.mean
    places = 2 - math.floor(math.log10(abs(mean))) if mean and math.isfinite(mean) else 2
    return _interval_text(interval, f".{max(places, 0)}f" if places < 8 else ".2e")


def percent_text(interval: Interval) -> str:
    """Per cent, with half of the interval, or with both ends where one was cut at what is possible.

    >>> percent_text(Interval(90.0, 87.5, 92.5, 3)), percent_text(Interval(90.0, 72.0, 100.0, 3))
    ('90.0 ± 2.5', '90.0 (72.0 to 100.0)')
    """
    return _interval_text(interval, ".1f")


def _interval_text(interval: Interval, shape: str) -> str:
    mean, low, high, _ = interval
    if not interval.is_stated:
        return f"{mean:{shape}}" if math.isfinite(mean) else "–"
    if math.isclose(high - mean, mean - low, rel_tol=1e-6, abs_tol=1e-12):
        return f"{mean:{shape}} ± {high - mean:{shape}}"
    return f"{mean:{shape}} ({low:{shape}} to {high:{shape}})"


def count_seeds(count: int) -> str:
    """A number of seeds in a sentence."""
    return "one seed" if count == 1 else f"{count} seeds"


def _signed(value: float, digits: int) -> str:
    return f"{value:z.{digits}f}".replace("-", "−")
