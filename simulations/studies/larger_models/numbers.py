"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy.stats import t as student

from simulations.config import CENTRAL
from simulations.studies.page import one_row
from simulations.studies.study import ReadTable

BUDGETS = (2, 4, 8)
"""ε of a client's whole run."""


def series_of(row: Any) -> str:
    """The label of a row: its mechanism, with its bits and the share of coordinates that it sends."""
    if row.mechanism == CENTRAL:
        return "central Gaussian, server trusted"
    kept = "" if pd.isna(row.keep) else f", {row.keep:.0%} kept"
    bits = "" if pd.isna(row.bits) else f", {row.bits:g} bit{'s' if row.bits > 1 else ''}"
    return f"{row.mechanism}{bits}{kept}"


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
    def half_widths(self) -> pd.Series:
        """Half of the 95 % interval of each private variant, in points."""
        return 50.0 * (self.private["accuracy_high"] - self.private["accuracy_low"])

    @property
    def untaught(self) -> pd.DataFrame:
        """Private rows that are not shown to learn: their 95 % interval includes the accuracy of guessing."""
        return self.private[~(self.private["accuracy_low"] > self.guessing)]

    @property
    def compared(self) -> pd.DataFrame:
        """The private rows, compared with the central Gaussian of the same budget, paired by seed.

        A row ``differs`` where the 95 % interval (Student t) of what is lost leaves out zero.
        """
        others = self.private[self.private["mechanism"] != CENTRAL]
        half = student.ppf(0.975, others["seeds"] - 1) * others["accuracy_lost_error"]
        return others.assign(differs=others["accuracy_lost"].abs() > half)


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    budgets = BUDGETS

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    def setting(self, name: str) -> Setting:
        """The network of a part."""
        return Setting(self._read(name))
