"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simulations.studies.page import one_row, rounded_up
from simulations.studies.study import ReadTable
from simulations.studies.tuned_headline.arms import DEFAULT, NONE, TRUSTED, TUNED, WARY

HEADLINE_EPSILON = 4.0


def per_cent(row: Any, name: str = "accuracy") -> str:
    """The mean of a row in per cent, and half of its 95 % interval, rounded up: 80.4 ± 0.5."""
    mean, low, high = (100.0 * getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{mean:.1f} ± {rounded_up((high - low) / 2, 1)}"


class Numbers:
    """The values that the page's template uses, besides the tables themselves."""

    none, trusted, default, wary = NONE, TRUSTED, DEFAULT, WARY
    per_cent = staticmethod(per_cent)

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @property
    def arms(self) -> pd.DataFrame:
        """The summary, by ε: first without privacy, then from the laxest to the strictest budget."""
        return self._read("tuned").sort_values("run_epsilon", ascending=False, kind="stable")

    def arm(self, name: str, epsilon: float = HEADLINE_EPSILON) -> Any:
        """The row of an arm."""
        return one_row(self.arms, arm=name, run_epsilon=epsilon)

    @property
    def grid(self) -> dict[str, list[float]]:
        """The values of each setting that were tried."""
        trials = self._read("tuned-trials")
        return {name: sorted(trials[name].unique()) for name in TUNED}

    @property
    def seeds(self) -> tuple[list[int], list[int]]:
        """The seeds of the trials, and those of the runs on the test examples."""
        tuning, testing = (
            sorted(self._read(f"tuned-{kind}")["seed"].unique()) for kind in ("trials", "runs")
        )
        return tuning, testing
