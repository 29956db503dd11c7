"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy.stats import t as student

from simulations.config import CENTRAL
from simulations.studies.larger_models.training import BUDGETS
from simulations.studies.page import accuracy, number, one_row
from simulations.studies.study import ReadTable

__all__ = ["Numbers", "Setting", "series_of"]


def series_of(row: Any) -> str:
    """What a row's mechanism is called beside its like with other bits, or other coordinates kept."""
    if row.mechanism == CENTRAL:
        return "central Gaussian, server trusted"
    kept = "" if pd.isna(row.keep) else f", {row.keep:.0%} kept"
    return f"{row.mechanism}, {row.bits:g} bit{'s' if row.bits > 1 else ''}{kept}"


@dataclass(frozen=True)
class Setting:
    """One network: its table, and what can be said of it."""

    table: pd.DataFrame

    @property
    def none(self) -> Any:
        """The row without privacy."""
        return one_row(self.table, mechanism="none")

    @property
    def guessing(self) -> float:
        """The accuracy of always saying the commonest label."""
        return float(self.none.guessing)

    @property
    def private(self) -> pd.DataFrame:
        """The rows at a budget, with what each is called, in the order of the table."""
        private = self.table[self.table["run_epsilon"].notna()]
        return private.assign(series=[series_of(row) for row in private.itertuples()])

    @property
    def rows(self) -> list[list[str]]:
        """For each mechanism what a client sends in a round, and its accuracy at each budget."""
        rows = []
        for series, cells in self.private.groupby("series", sort=False):
            sent = cells["bits_per_coordinate"] * cells["dimension"] / 8000.0
            accuracies = [accuracy(one_row(cells, run_epsilon=budget)) for budget in BUDGETS]
            rows.append([str(series), _span(sent, 0), *accuracies])
        return rows

    @property
    def spans(self) -> list[tuple[int, str, str]]:
        """For each budget the accuracies of private variants, and the noise of a trusted server's mean.

        The noise is the L2 norm of what is added to the mean update, over the L2 clip of one update.
        """
        spans = []
        for budget in BUDGETS:
            here = self.private[self.private["run_epsilon"] == budget]
            central = one_row(here, mechanism=CENTRAL)
            noise = math.sqrt(central.noise_error * central.dimension) / central.l2_clip
            spans.append((budget, _span(here["accuracy"], 3), number(noise, 1)))
        return spans

    @property
    def half_widths(self) -> str:
        """Half of the narrowest and of the widest 95 % interval of a private variant, in points."""
        return _span(50.0 * (self.private["accuracy_high"] - self.private["accuracy_low"]), 1)

    @property
    def untaught(self) -> dict[float, list[str]]:
        """By budget, variants whose 95 % interval reaches down to guessing: not shown to learn."""
        low = self.private[~(self.private["accuracy_low"] > self.guessing)]
        return {budget: list(rows["series"]) for budget, rows in low.groupby("run_epsilon")}

    @property
    def compared(self) -> pd.DataFrame:
        """The private rows beside the central Gaussian of the same budget, paired by seed."""
        others = self.private[self.private["mechanism"] != CENTRAL]
        half = student.ppf(0.975, others["seeds"] - 1) * others["accuracy_lost_error"]
        return others.assign(differs=others["accuracy_lost"].abs() > half)

    @property
    def differences(self) -> dict[float, list[str]]:
        """By budget, variants whose paired 95 % interval of what is lost leaves out zero, with their gain."""
        differ = self.compared[self.compared["differs"]]
        return {
            budget: [f"{row.series}: {-100.0 * row.accuracy_lost:+.1f} points" for row in rows.itertuples()]
            for budget, rows in differ.groupby("run_epsilon")
        }

    @property
    def mean_lost(self) -> float:
        """Points that the others lose to the central Gaussian, in the mean over all of them."""
        return 100.0 * float(self.compared["accuracy_lost"].mean())


class Numbers:
    """What the page's template names; each is read when the template uses it."""

    budgets = BUDGETS

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    def setting(self, name: str) -> Setting:
        """The network of a part."""
        return Setting(self._read(name))


def _span(values: pd.Series, digits: int) -> str:
    """The least and the largest value, or the one value that all have."""
    ends = [number(float(value), digits) for value in (values.min(), values.max())]
    return " to ".join(dict.fromkeys(ends))
