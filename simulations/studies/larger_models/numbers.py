"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simulations.config import CENTRAL
from simulations.studies.page import accuracy, number, one_row, table_or_none
from simulations.studies.study import ReadTable

__all__ = ["BUDGETS", "FASHION", "SHAKESPEARE", "Numbers", "read_setting", "with_series"]

FASHION, SHAKESPEARE = "fashion-cnn", "shakespeare-gru"
BUDGETS = (8, 2, 4)
"""ε of a client's whole run, in the order in which they are computed."""


def read_setting(read: ReadTable, setting: str) -> pd.DataFrame:
    """The tables of a setting at all budgets that were computed, as one."""
    tables = [table_or_none(read, f"{setting}-{budget}") for budget in BUDGETS]
    return pd.concat([table for table in tables if table is not None], ignore_index=True)


def series_of(row: Any) -> str:
    """What a row's mechanism is called beside its like with other bits, or other coordinates kept."""
    if row.mechanism == CENTRAL:
        return "central Gaussian (server trusted)"
    kept = "" if pd.isna(row.keep) else f", {row.keep:.0%} kept"
    bits = "" if pd.isna(row.bits) else f", at most {row.bits:g} bit{'s' if row.bits > 1 else ''}"
    return f"{row.mechanism}{bits}{kept}"


def with_series(table: pd.DataFrame) -> pd.DataFrame:
    """The private rows of a table, with what each one is called."""
    private = table[table["run_epsilon"].notna()]
    return private.assign(series=[series_of(row) for row in private.itertuples()])


class Numbers:
    """What the page's template names; each is read when the template uses it."""

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    def none(self, name: str) -> Any:
        """The row without privacy."""
        return one_row(read_setting(self._read, name), mechanism="none")

    def budgets(self, name: str) -> list[float]:
        """The budgets, ascending."""
        return sorted(with_series(read_setting(self._read, name))["run_epsilon"].unique())

    def rows(self, name: str) -> list[list[str]]:
        """For each mechanism its size on the wire, and its accuracy at each budget."""
        rows = []
        for series, cells in with_series(read_setting(self._read, name)).groupby("series", sort=False):
            by_budget = {row.run_epsilon: row for row in cells.itertuples()}
            accuracies = [accuracy(by_budget[at]) if at in by_budget else "" for at in self.budgets(name)]
            rows.append([str(series), number(float(cells["bits_per_coordinate"].iloc[0]), 2), *accuracies])
        return rows
