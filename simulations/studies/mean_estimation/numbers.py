"""The numbers of the page, from the tables of the study: errors, and which mechanism has the least."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import pandas as pd

from fl_privquant.mechanisms.sphere import privunit_squared_error
from simulations.studies.mean_estimation.local import (
    CHECK,
    CLIENTS,
    DATA,
    DELTA,
    DIMENSIONS,
    EPSILONS,
    FLOORS,
    PRIVATE,
    local_name,
)
from simulations.studies.mean_estimation.ranked_rounding import ALIKE, CORRELATED
from simulations.studies.mean_estimation.secure import SAMPLED, central_error, secure_name
from simulations.studies.page import table_or_none, together
from simulations.studies.study import ReadTable
from simulations.studies.sum_grid.grid import OURS

WITHIN = 1.02
"""Mechanisms are as good as the best up to this many times the least error; then the fewest bits win."""
_MANY = 30
_ALIKE = 1e-9
_SETTING = ["num_clients", "dimension", "round_epsilon"]


def local_rows(read: ReadTable) -> pd.DataFrame:
    """All rows of the local view that were computed."""
    return together(read, map(local_name, DIMENSIONS))


def secure_rows(read: ReadTable) -> pd.DataFrame:
    """All rows of secure sums that were computed, of the settings in which mechanisms can be compared."""
    rows = together(read, itertools.starmap(secure_name, itertools.product(CLIENTS, DIMENSIONS)))
    sampled = table_or_none(read, SAMPLED)
    if sampled is None or rows.empty:
        return rows
    return pd.concat([rows, sampled.merge(rows[_SETTING].drop_duplicates())], ignore_index=True)


def winners(rows: pd.DataFrame, setting: list[str], bits: str = "bits") -> pd.DataFrame:
    """For each setting the row with the fewest bits among those of nearly the least error."""
    least = rows.groupby(setting)["error"].transform("min")
    near = rows[rows["error"] <= WITHIN * least].sort_values([*setting, bits, "error"])
    return near.drop_duplicates(setting).set_index(setting)


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    clients, dimensions, epsilons, delta = CLIENTS, DIMENSIONS, EPSILONS, DELTA
    data, private, floors, alike = tuple(DATA), PRIVATE, tuple(FLOORS), ALIKE
    within = WITHIN
    lower_bound = staticmethod(privunit_squared_error)
    central_error = staticmethod(central_error)

    def __init__(self, read: ReadTable) -> None:
        self._read = read
        self.check = table_or_none(read, CHECK)

    @cached_property
    def local(self) -> pd.DataFrame:
        """The local view."""
        return local_rows(self._read)

    @property
    def sphere(self) -> pd.DataFrame:
        """The local view, unit vectors."""
        return self.local[self.local["data"] == "sphere"]

    @property
    def certified(self) -> pd.DataFrame:
        """The local view, mechanisms that are certified in integers."""
        return self.local[self.local["certified"]]

    @cached_property
    def secure(self) -> pd.DataFrame:
        """Secure sums."""
        return secure_rows(self._read)

    def data_ratios(self) -> pd.DataFrame:
        """Errors over those for unit vectors, a column for each kind of vectors."""
        errors = self.certified.pivot_table("error", ["dimension", "round_epsilon", "mechanism"], "data")
        return errors.div(errors["sphere"], axis=0)

    def draws(self) -> dict[str, Any]:
        """How near drawn errors are to exact ones, in standard errors, of all mechanisms that are random.

        Cells in which all draws had the same error are counted apart: their standard error is zero because
        rarer outcomes did not occur in so few draws.
        """
        rows = self.local[self.local["mechanism"] != "top_k"]
        spread = rows[rows["drawn_standard_error"] > _ALIKE * rows["error"]]
        away = (spread["drawn"] - spread["error"]).abs() / spread["drawn_standard_error"]
        # A standard error of fewer draws is itself rough.
        many = spread["draws"] >= _MANY
        worst = spread[many].loc[away[many].idxmax()]
        return {
            "cells": len(spread),
            "alike": len(rows) - len(spread),
            "within_two": float((away < 2.0).mean()),
            "many": _MANY,
            "most": float(away[many].max()),
            "where": worst["mechanism"],
        }

    def correlated(self) -> pd.DataFrame:
        """Correlated quantization by size: errors with ranks and without, for each kind of vectors."""
        values = ["error", "error_without_ranks"]
        return self._read(CORRELATED).pivot_table(values, ["num_clients", "dimension"], "data")

    def correlated_draws(self) -> float:
        """How far drawn errors of correlated quantization are from exact ones, in standard errors."""
        table = self._read(CORRELATED).dropna(subset="drawn")
        return float(((table["drawn"] - table["error"]).abs() / table["drawn_standard_error"]).max())

    def secure_table(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """For each setting the row of each mechanism with the fewest bits of nearly its least error."""
        best = winners(self.secure, [*_SETTING, "mechanism"], "bits_in_sum").reset_index()
        return {
            key: {row.mechanism: row for row in rows.itertuples()} for key, rows in best.groupby(_SETTING)
        }

    @property
    def secure_names(self) -> list[str]:
        """Mechanisms for secure sums that appear in the table, the one that plans take first."""
        return sorted(self.secure["mechanism"].unique(), key=lambda name: (name != OURS, name))

    def regimes(self) -> pd.DataFrame:
        """Who wins where: the winner in the secure sum for each size, number of clients and epsilon.

        Columns that end in ``_local`` are those of the winner in the local view, whose error is that of the
        mean here; ``gain`` is its error over the secure sum's.
        """
        size = ["dimension", "round_epsilon"]
        sphere = self.certified[self.certified["data"] == "sphere"]
        secure = winners(self.secure, _SETTING, "bits_in_sum").reset_index()
        both = secure.join(winners(sphere, size).add_suffix("_local"), on=size, how="inner")
        error = both["error_local"] / both["num_clients"]
        return both.assign(error_local=error, gain=error / both["error"])

    def local_winners(self) -> dict[str, int]:
        """In how many settings each mechanism wins in the local view, all kinds of vectors."""
        won = winners(self.certified, ["data", "dimension", "round_epsilon"])
        return dict(won["mechanism"].value_counts())

    def secure_winners(self) -> dict[str, int]:
        """In how many settings each mechanism has the fewest bits of nearly the least error."""
        return dict(winners(self.secure, _SETTING, "bits_in_sum")["mechanism"].value_counts())
