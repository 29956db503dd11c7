"""The numbers of the page, from the tables of the study: errors, and who has the least where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pandas as pd

from fl_privquant.mechanisms.sphere import privunit_squared_error
from fl_privquant.statement import PrivacyStatement, Unit
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
from simulations.studies.mean_estimation.secure import SAMPLED, WIDTHS, central_error, secure_name
from simulations.studies.page import table_or_none
from simulations.studies.study import ReadTable

_WITHIN = 1.02
"""Times the least error: up to this a mechanism is said to be as good, and the fewest bits decide."""
_MANY = 30
_ALIKE = 1e-9


def local_rows(read: ReadTable) -> pd.DataFrame:
    """All rows of the local view that were computed."""
    return _together(read, [local_name(dimension) for dimension in DIMENSIONS])


def secure_rows(read: ReadTable) -> pd.DataFrame:
    """All rows of secure sums that were computed, of the settings in which mechanisms can be compared."""
    rows = _together(read, list(itertools.starmap(secure_name, itertools.product(CLIENTS, DIMENSIONS))))
    sampled = table_or_none(read, SAMPLED)
    if sampled is None or "num_clients" not in rows:
        return rows
    settings = rows[["num_clients", "dimension", "round_epsilon"]].drop_duplicates()
    return pd.concat([rows, sampled.merge(settings)], ignore_index=True)


def winner(rows: pd.DataFrame, bits: str = "bits") -> Any:
    """The row with the fewest bits among those of nearly the least error."""
    near = rows[rows["error"] <= _WITHIN * rows["error"].min()]
    return next(near.sort_values([bits, "error"]).itertuples())


def budget(epsilon: float, view: str) -> str:
    """An epsilon of one update and round, as it is put before people."""
    return PrivacyStatement(epsilon, 0.0 if view == "local" else DELTA, Unit.ROUND, view).epsilon_cell


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    clients, dimensions, data, delta, private, widths = (
        CLIENTS,
        DIMENSIONS,
        tuple(DATA),
        DELTA,
        PRIVATE,
        WIDTHS,
    )
    within, nothing, alike = _WITHIN, math.nan, ALIKE
    local_epsilons = tuple(budget(epsilon, "local") for epsilon in EPSILONS)
    local_heading = PrivacyStatement.heading(Unit.ROUND)
    secure_heading = PrivacyStatement.heading(Unit.ROUND, "aggregate")

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def local(self) -> pd.DataFrame:
        """The local view."""
        return local_rows(self._read)

    @cached_property
    def secure(self) -> pd.DataFrame:
        """Secure sums."""
        return secure_rows(self._read)

    def local_table(self) -> Iterator[dict[str, Any]]:
        """For unit vectors, each mechanism at each size: exact and drawn errors by epsilon."""
        sphere = self.local[self.local["data"] == "sphere"]
        for dimension in DIMENSIONS:
            here = sphere[sphere["dimension"] == dimension]
            if here.empty:
                continue
            bounds = [privunit_squared_error(epsilon, dimension) for epsilon in EPSILONS]
            yield {"dimension": dimension, "mechanism": "", "errors": bounds}
            for name in PRIVATE:
                rows = here[here["mechanism"] == name].sort_values("round_epsilon")
                yield {"dimension": dimension, "mechanism": name, "rows": list(rows.itertuples())}

    def floors(self) -> Iterator[dict[str, Any]]:
        """Quantizers without privacy: bits, and errors by the kind of vectors."""
        for dimension in DIMENSIONS:
            for name in FLOORS:
                here = self.local[(self.local["mechanism"] == name) & (self.local["dimension"] == dimension)]
                if here.empty:
                    continue
                errors = [float(here[here["data"] == data]["error"].iloc[0]) for data in DATA]
                yield {
                    "dimension": dimension,
                    "mechanism": name,
                    "bits": int(here["bits"].iloc[0]),
                    "errors": errors,
                }

    def data_effect(self) -> Iterator[dict[str, Any]]:
        """By the kind of vectors: the best integer mechanism's error over that for unit vectors, at worst."""
        own = self.local[self.local["certified"]]
        for data in DATA:
            ratios = [
                float(one["error"].iloc[0]) / float(one["reference"].iloc[0])
                for _, one in own[own["data"] == data]
                .merge(
                    own[own["data"] == "sphere"].rename(columns={"error": "reference"})[
                        ["dimension", "round_epsilon", "mechanism", "reference"]
                    ],
                    on=["dimension", "round_epsilon", "mechanism"],
                )
                .groupby(["dimension", "round_epsilon", "mechanism"])
            ]
            yield {"data": data, "least": min(ratios), "most": max(ratios)}

    def draws(self) -> dict[str, Any]:
        """How near drawn errors are to exact ones, in standard errors, of all mechanisms that are random.

        Where all draws erred alike, rarer ones were not met, and there is no standard error to speak of.
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

    def correlated(self) -> Iterator[dict[str, Any]]:
        """Correlated quantization by size: errors with ranks, and how many times less than without."""
        table = self._read(CORRELATED)
        for (num_clients, dimension), rows in table.groupby(["num_clients", "dimension"]):
            by_data = rows.set_index("data")
            yield {
                "num_clients": num_clients,
                "dimension": dimension,
                "cells": [(row.error, row.error_without_ranks / row.error) for row in _ordered(by_data)],
            }

    def correlated_draws(self) -> float:
        """How far drawn errors of correlated quantization are from exact ones, in standard errors."""
        table = self._read(CORRELATED).dropna(subset="drawn")
        return float(((table["drawn"] - table["error"]).abs() / table["drawn_standard_error"]).max())

    @property
    def check(self) -> pd.DataFrame | None:
        """Whole means."""
        return table_or_none(self._read, CHECK)

    def secure_table(self) -> Iterator[dict[str, Any]]:
        """For each setting the central Gaussian's error and the mechanisms' ratios to it."""
        groups = self.secure.groupby(["num_clients", "dimension", "round_epsilon"])
        for (num_clients, dimension, epsilon), here in groups:
            best = {
                (name, bits): float(rows["ratio_to_central"].iloc[0])
                for (name, bits), rows in here.groupby(["mechanism", "code_bits"])
            }
            yield {
                "num_clients": num_clients,
                "dimension": dimension,
                "budget": budget(epsilon, "aggregate"),
                "central": central_error(num_clients, dimension, epsilon),
                "ratios": best,
            }

    @property
    def secure_names(self) -> list[str]:
        """Mechanisms for secure sums that appear in the table."""
        return sorted(self.secure["mechanism"].unique(), key=lambda name: (name != "optm_aggregate", name))

    def regimes(self) -> Iterator[dict[str, Any]]:
        """Who wins where: for each size, number of clients and epsilon, in both views."""
        sphere = self.local[(self.local["data"] == "sphere") & self.local["certified"]]
        for num_clients in CLIENTS:
            for dimension in DIMENSIONS:
                for epsilon in EPSILONS:
                    here = _at(sphere, dimension=dimension, round_epsilon=epsilon)
                    sums = _at(
                        self.secure, num_clients=num_clients, dimension=dimension, round_epsilon=epsilon
                    )
                    if here.empty or sums.empty:
                        continue
                    local, summed = winner(here), winner(sums, "code_bits")
                    yield {
                        "num_clients": num_clients,
                        "dimension": dimension,
                        "epsilon": budget(epsilon, "local"),
                        "local": local,
                        "local_error": local.error / num_clients,
                        "secure": summed,
                        "gain": local.error / num_clients / summed.error,
                    }

    def local_winners(self) -> dict[str, int]:
        """In how many settings each mechanism wins in the local view, all kinds of vectors."""
        own = self.local[self.local["certified"]]
        names = [winner(rows).mechanism for _, rows in own.groupby(["data", "dimension", "round_epsilon"])]
        return dict(pd.Series(names).value_counts())

    @cached_property
    def _secure_groups(self) -> list[pd.DataFrame]:
        """The rows of each setting and number of bits in secure sums."""
        keys = ["num_clients", "dimension", "round_epsilon", "code_bits"]
        return [rows for _, rows in self.secure.groupby(keys)]

    def secure_winners(self) -> dict[str, int]:
        """In how many settings each mechanism has the least error in secure sums, at each number of bits."""
        names = [rows.loc[rows["error"].idxmin(), "mechanism"] for rows in self._secure_groups]
        return dict(pd.Series(names).value_counts())

    def certified_near(self) -> int:
        """In how many of them a certified figure is within the margin of the least one."""
        return sum(
            bool((rows[rows["certified"]]["error"] <= _WITHIN * rows["error"].min()).any())
            for rows in self._secure_groups
        )

    def runners_up(self) -> Iterator[dict[str, Any]]:
        """In the local view by epsilon: ratios to the bound of all mechanisms, over all sizes, at most."""
        sphere = self.local[self.local["data"] == "sphere"]
        for epsilon in EPSILONS:
            here = sphere[sphere["round_epsilon"] == epsilon]
            ratios = here.groupby("mechanism")["ratio_to_bound"].max()
            bits = here.groupby("mechanism")["bits"].max()
            yield {
                "epsilon": budget(epsilon, "local"),
                "ratios": {name: float(ratios[name]) for name in PRIVATE},
                "bits": {name: int(bits[name]) for name in PRIVATE},
            }

    def times(self) -> Iterator[dict[str, Any]]:
        """Seconds of encoding over those of randomized rounding, by mechanism and size, the median."""
        for name in (*PRIVATE, *FLOORS):
            here = self.local[self.local["mechanism"] == name]
            yield {
                "mechanism": name,
                "ratios": [
                    float(here[here["dimension"] == dimension]["time_ratio"].median())
                    for dimension in DIMENSIONS
                ],
            }


def _ordered(by_data: pd.DataFrame) -> list[Any]:
    return [by_data.loc[data] for data in (*DATA, ALIKE)]


def _at(table: pd.DataFrame, **columns: float) -> pd.DataFrame:
    for column, value in columns.items():
        table = table[table[column] == value]
    return table


def _together(read: ReadTable, names: list[str]) -> pd.DataFrame:
    tables = [table for name in names if (table := table_or_none(read, name)) is not None]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"error": [math.nan]})
