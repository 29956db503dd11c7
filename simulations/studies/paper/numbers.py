"""The numbers of the page: each part's lines of the table at its beginning, and what its text quotes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from simulations.studies.page import number, one_row, rounded_up
from simulations.studies.paper.dpsgd import BUDGET, DELTA
from simulations.studies.paper.example_law import BINS, GAMMA
from simulations.studies.study import ReadTable

_OURS = "OPTM free (ours)"


@dataclass(frozen=True)
class Glance:
    """One line of the first table."""

    what: str
    paper: str
    reproduced: str
    ours: str
    epsilon: str


class Numbers:
    """What the page's template names."""

    budget, delta = BUDGET, DELTA
    bins, gamma = BINS, GAMMA
    ours = _OURS

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    def glances(self, part: str) -> list[Glance]:
        """The lines of a part in the first table."""
        return list(_GLANCES[part](self._read))

    def mean(self, part: str, procedure: str, mechanism: str) -> float:
        """The mean accuracy of a mechanism in one procedure of training."""
        return float(one_row(self._read(part), procedure=procedure, mechanism=mechanism).mean)

    def budget_row(self, part: str) -> Any:
        """The row of training at a budget that protects an example."""
        return one_row(self._read(part), procedure="budget")


def _table1(read: ReadTable) -> Iterator[Glance]:
    table = read("table1")
    for epsilon in table["epsilon"].unique():
        optm = one_row(table, epsilon=epsilon, mechanism="OPTM")
        ours = one_row(table, epsilon=epsilon, mechanism="ours: free, best for MAE")
        yield Glance(
            f"Table 1, OPTM, MAE at ε = {epsilon:g}",
            number(optm.printed),
            f"{number(optm.grid_mae, 4)} (exact {number(optm.mae, 4)})",
            f"{number(ours.grid_mae, 4)} (exact {number(ours.mae, 4)})",
            rounded_up(ours.certified_epsilon),
        )


def _table2(read: ReadTable) -> Iterator[Glance]:
    table = read("table2")
    for sigma in table["sigma"].unique():
        optm = one_row(table, sigma=sigma, mechanism="OPTM, clipped")
        ours = one_row(table, sigma=sigma, mechanism="ours: free, best for MAE, clipped")
        yield Glance(
            f"Table 2, OPTM, MAE at σ = {sigma:g}",
            number(optm.printed),
            number(optm.mae, 4),
            number(ours.mae, 4),
            rounded_up(ours.certified_epsilon),
        )


def _curve_value(table: pd.DataFrame, mechanism: str, x: float) -> float:
    line = table[(table["epsilon"] == 1.0) & (table["mechanism"] == mechanism)]
    return float(line.loc[(line["x"] - x).abs().idxmin(), "error"])


def _scalar(read: ReadTable) -> Iterator[Glance]:
    table = read("figure-scalar-error")
    optm, ours = (
        ", ".join(number(_curve_value(table, mechanism, x)) for x in (0.0, 0.75, 1.0))
        for mechanism in ("OPTM", _OURS)
    )
    yield Glance("Scalar figure, OPTM, error at x = 0, 0.75, 1; ε = 1", "curve", optm, ours, "1.0000")


def _law(read: ReadTable) -> Iterator[Glance]:
    table = read("figure-law")
    erm, ours = (table[table["mechanism"] == mechanism] for mechanism in ("ERM", _OURS))
    jump = f"p(x, 3) jumps at B_3 from {number(erm['end_3'].iloc[0])} to {number(erm['start_3'].iloc[1])}"
    yield Glance(
        "Law figure, ERM, m = 8",
        "curve",
        f"{jump}; MAE {number(erm['mae'].iloc[0])}",
        f"no jump; MAE {number(ours['mae'].iloc[0])}",
        rounded_up(ours["certified_epsilon"].iloc[0]),
    )


def _vector(name: str, what: str, read: ReadTable) -> Iterator[Glance]:
    table = read(name)
    for epsilon in table["epsilon"].unique():
        optm = one_row(table, epsilon=epsilon, mechanism="OPTM")
        ours = one_row(table, epsilon=epsilon, mechanism=_OURS)
        yield Glance(
            f"{what}, OPTM, error at ε = {epsilon:g}",
            f"{optm.reference:g} (ref)",
            f"{number(optm.mean, 2)} ± {number(optm.deviation, 2)}",
            f"{number(ours.mean, 2)} ± {number(ours.deviation, 2)}",
            f"{epsilon:.4f}; vector: {rounded_up(ours.vector_epsilon, 2)}",
        )


def _training(name: str, what: str, read: ReadTable) -> Iterator[Glance]:
    table = read(name)
    for procedure, label in (("logits", "the paper's procedure"), ("whole", "whole gradients")):
        optm = one_row(table, procedure=procedure, mechanism="OPTM")
        ours = one_row(table, procedure=procedure, mechanism=_OURS)
        in_clear = procedure == "logits"
        example = f"example: {rounded_up(ours.epsilon_example, 1)}, δ = {DELTA:g}"
        yield Glance(
            f"{what}, {label}, accuracy",
            f"{optm.reference:g} (ref)" if in_clear else "not in it",
            f"{number(optm.mean)} ± {number(optm.standard_error)}",
            f"{number(ours.mean)} ± {number(ours.standard_error)}",
            f"{rounded_up(ours.epsilon_coordinate)}; "
            + ("features of an example: ∞" if in_clear else example),
        )
    budget = one_row(table, procedure="budget")
    yield Glance(
        f"{what}, whole gradients, example ε = {BUDGET:g}",
        "not in it",
        "",
        f"{number(budget.mean)} ± {number(budget.standard_error)} (one bit)",
        f"{rounded_up(budget.epsilon_coordinate)}; example: {rounded_up(budget.epsilon_example, 1)}, "
        f"δ = {DELTA:g}",
    )


def _corrections(read: ReadTable) -> Iterator[Glance]:
    confirmed = read("corrections")["confirmed"]
    yield Glance("Corrections", "", f"{int(confirmed.sum())} of {len(confirmed)} checks confirm", "", "")


_GLANCES: dict[str, Callable[[ReadTable], Iterator[Glance]]] = {
    "table1": _table1,
    "table2": _table2,
    "figure-scalar-error": _scalar,
    "figure-law": _law,
    "figure-vector-linf": partial(_vector, "figure-vector-linf", "Vector figure a"),
    "figure-vector-l2": partial(_vector, "figure-vector-l2", "Vector figure b"),
    "dpsgd-cancer": partial(_training, "dpsgd-cancer", "Breast cancer"),
    "dpsgd-mnist": partial(_training, "dpsgd-mnist", "MNIST"),
    "corrections": _corrections,
}
