"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from fl_privquant.errors import PrivQuantError
from simulations.config import CENTRAL
from simulations.report.statistics import student_interval
from simulations.studies.equal_budget.planned_errors import ALLOWED, PEERS
from simulations.studies.page import TASKS, table_or_none, together
from simulations.studies.study import ReadTable

GRADIENTS = ("training-digits", "training-mnist", "training-fashion")
"""Tables of training by one gradient of each client per round."""

LABELS = {
    CENTRAL: "central Gaussian (server trusted)",
    "rounded_gaussian": "rounded Gaussian",
    "pbm": "Poisson binomial",
    "discrete_gaussian": "discrete Gaussian",
    "skellam": "Skellam",
}
"""What mechanisms are called in figures and tables."""

CLOSE = 1.05
"""An error counts as close to the central Gaussian's if it is at most this many times as large."""

_SETTING = ["task", "rounds", "run_epsilon"]


def best_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """For each mechanism, number of clients and budget the bit-width with the least error."""
    keys = ["num_clients", "run_epsilon", "mechanism"]
    return errors.sort_values("ratio_to_central").groupby(keys, as_index=False).first()


def series_of(mechanism: str, bits: float) -> str:
    """The label of a mechanism with its bits."""
    label = LABELS.get(mechanism, mechanism)
    return label if math.isnan(bits) else f"{label}, {bits:g} bit{'s' if bits > 1 else ''}"


def with_losses(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with the accuracy that they lose to the central Gaussian, paired by seed, in points.

    Added are the mean of the differences between runs of the same seed (``lost``), its standard error and
    half of its 95 % interval (Student t); whether it is ``within`` one standard error of zero, ``worse`` by
    more, or ``clear``, with zero outside the interval; the odds that the mean is at least this far from zero
    if nothing is lost (``p_value``, two-sided), and that it is more than one standard error away
    (``chance_outside``).
    """
    lost, error = 100.0 * table["accuracy_lost"], 100.0 * table["accuracy_lost_error"]
    freedom = table["seeds"] - 1
    half = student.ppf(0.975, freedom) * error
    # Where all seeds agree, nothing is lost at all.
    distance = (lost.abs() / error).fillna(0.0)
    return table.assign(
        lost=lost,
        error=error,
        half_interval=half,
        within=lost.abs() <= error,
        worse=lost > error,
        clear=lost.abs() > half,
        p_value=2.0 * student.sf(distance, freedom),
        chance_outside=2.0 * student.sf(1.0, freedom),
    )


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """P-values of a joint test (Holm 1979).

    The odds that *any* cell in which nothing is lost has a p-value below some number are at most that number,
    however the cells depend on each other.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    corrected = np.empty_like(values)
    factors = values.size - np.arange(values.size)
    corrected[order] = np.minimum(np.maximum.accumulate(factors * values[order]), 1.0)
    return corrected


def pooled(read: ReadTable, bits: float | None = None) -> dict[str, float]:
    """The mean loss of all cells, or of those with ``bits`` bits, and half of its 95 % interval.

    Cells of one seed share data and noise. So cells are averaged for each seed first, and the interval
    (Student t) is that of these averages.
    """
    lost = together(read, [f"{name}-by-seed" for name in GRADIENTS])
    lost = lost[lost["mechanism"] != CENTRAL]
    lost = lost if bits is None else lost[lost["bits"] == bits]
    mean, low, high, seeds = student_interval(100.0 * lost.groupby("seed")["accuracy_lost"].mean())
    return {"cells": len(lost) // seeds, "mean": mean, "half_interval": 0.5 * (high - low)}


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    peers, labels, close = PEERS, LABELS, CLOSE

    def __init__(self, read: ReadTable) -> None:
        self._read = read
        self.trained = [name for name in GRADIENTS if table_or_none(read, name) is not None]

    @property
    def errors(self) -> Any:
        """The best row of each mechanism, by number of clients and budget."""
        return best_errors(self._read("secure_sum")).groupby(["num_clients", "run_epsilon"])

    @property
    def allowed(self) -> float:
        """By how many per cent errors exceed the central Gaussian's, where bits are compared."""
        return round(100.0 * (ALLOWED - 1.0), 6)

    @property
    def equal_errors(self) -> Any:
        """The fewest levels of each mechanism that are enough for this, by clients and epsilon."""
        return self._read("equal_error").groupby(["num_clients", "run_epsilon"])

    @cached_property
    def by_rounds(self) -> pd.DataFrame:
        """Errors of the mechanism that plans take by default, by coordinates and rounds, and by budget."""
        return self._read("by_rounds").pivot_table("ratio_to_central", ["dimension", "rounds"], "run_epsilon")

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every row of training by gradients, with what it loses to the central Gaussian.

        Raises
        ------
        PrivQuantError
            Not all settings have the same number of seeds.
        """
        table = together(self._read, self.trained)
        if table["seeds"].nunique() > 1:
            raise PrivQuantError(f"seeds: settings have {sorted(set(table['seeds']))}; run the study again")
        series = [series_of(row.mechanism, row.bits) for row in table.itertuples()]
        # Tables are by budget and then by bits, the central Gaussian first.
        return with_losses(table.assign(series=series, task=table["task"].map(TASKS)))

    @property
    def gradients(self) -> Any:
        """The rows of :attr:`cells` by task, number of rounds and budget."""
        return self.cells.groupby(_SETTING, sort=False)

    @property
    def series(self) -> list[str]:
        """Mechanisms with their bits, in the order of the tables: first the central Gaussian."""
        return list(self.cells["series"].unique())

    @cached_property
    def our_losses(self) -> pd.DataFrame:
        """The rows of all others than the central Gaussian, with the p-values of the joint test."""
        ours = self.cells[self.cells["mechanism"] != CENTRAL]
        return ours.assign(joint=holm(ours["p_value"]))

    @property
    def planned_losses(self) -> pd.DataFrame:
        """The row with the fewest bits whose planned error is close to the central one, in each setting."""
        close = self.our_losses[self.our_losses["ratio_to_central"] <= CLOSE]
        return close.sort_values("bits", kind="stable").drop_duplicates(_SETTING)

    @property
    def pooled(self) -> list[tuple[str, dict[str, float]]]:
        """The mean loss with each number of bits, and of all cells."""
        widths = self.our_losses.drop_duplicates("bits").sort_values("bits")
        by_bits = [(row.series, pooled(self._read, row.bits)) for row in widths.itertuples()]
        return [*by_bits, ("all cells", pooled(self._read))]
