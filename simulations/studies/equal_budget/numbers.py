"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from scipy.stats import t as student

from fl_privquant.errors import PrivQuantError
from fl_privquant.statement import PrivacyStatement, Unit
from simulations.config import CENTRAL
from simulations.studies.clip_choice import clip_texts
from simulations.studies.equal_budget.planned_errors import PEERS
from simulations.studies.page import one_row, table_or_none, total
from simulations.studies.study import ReadTable

GRADIENTS = tuple(
    f"training-{task}{rounds}" for rounds in ("", "-50") for task in ("digits", "mnist", "fashion")
)
"""Tables of training by one gradient of each client a round."""

TASKS = {"digits": "digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
"""What tasks are called in figures and tables."""

LABELS = {
    CENTRAL: "central Gaussian (server trusted)",
    "optm_aggregate": "OPTM for the sum",
    "pbm": "Poisson binomial",
    "discrete_gaussian": "discrete Gaussian",
    "skellam": "Skellam",
}
"""What mechanisms are called in figures and tables."""

_CLIPS = (("norm-digits", "digits, softmax: L2 clip"), ("norm-mnist", "MNIST, softmax: L2 clip"))


CLOSE = 1.05
"""An error over the central Gaussian's that is close to it."""


def best_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """For each mechanism, number of clients and budget the bit-width with the least error."""
    keys = ["num_clients", "run_epsilon", "mechanism"]
    return errors.sort_values("ratio_to_central").groupby(keys, as_index=False).first()


def series_of(mechanism: str, bits: float) -> str:
    """The label of a mechanism with its bits."""
    if mechanism == CENTRAL:
        return LABELS[CENTRAL]
    return f"{LABELS[mechanism]}, {bits:g} bit{'s' if bits > 1 else ''}"


@dataclass(frozen=True)
class Loss:
    """Accuracy lost to the central Gaussian in one setting, in points, paired by seed.

    Parameters
    ----------
    task, rounds, run_epsilon, series, ours
        The setting: data, rounds, budget, mechanism with its bits; whether it is the one designed for sums.
    mean, error
        Mean of the differences between runs of the same seed, and its standard error.
    seeds
        Number of these differences.
    bits
        Bits of a code.
    ratio
        Squared error of the mean update over the central Gaussian's, as the plan predicts it.
    """

    task: str
    rounds: int
    run_epsilon: float
    series: str
    ours: bool
    mean: float
    error: float
    seeds: int
    bits: int = 0
    ratio: float = math.nan

    @property
    def within(self) -> bool:
        """Whether the mean is within one standard error of zero."""
        return abs(self.mean) <= self.error

    @property
    def is_worse(self) -> bool:
        """Whether the mean is more than one standard error below the central Gaussian."""
        return self.mean > self.error

    @property
    def half_interval(self) -> float:
        """Half of the 95 % interval of the mean (Student t)."""
        return float(student.ppf(0.975, self.seeds - 1)) * self.error

    @property
    def clear(self) -> bool:
        """Whether zero is outside the 95 % interval."""
        return abs(self.mean) > self.half_interval

    @property
    def p_value(self) -> float:
        """Odds of a mean at least so far from zero where nothing is lost (Student t, two-sided)."""
        return float(2.0 * student.sf(abs(self.mean) / self.error, self.seeds - 1)) if self.error else 1.0

    @property
    def chance_outside(self) -> float:
        """Odds that a true difference of zero is found more than one standard error away (Student t)."""
        return float(2.0 * student.sf(1.0, self.seeds - 1))


def losses(read: ReadTable) -> list[Loss]:
    """What each mechanism loses in each setting of training by gradients."""
    cells = []
    for table in (table_or_none(read, name) for name in GRADIENTS):
        for _, rows in [] if table is None else table.sort_values("bits").groupby("run_epsilon"):
            cells += [
                Loss(
                    task=TASKS[row.task],
                    rounds=row.rounds,
                    run_epsilon=row.run_epsilon,
                    series=series_of(row.mechanism, row.bits),
                    ours=row.mechanism == PEERS[0],
                    mean=100.0 * row.accuracy_lost,
                    error=100.0 * row.accuracy_lost_error,
                    seeds=int(row.seeds),
                    bits=int(row.bits),
                    ratio=row.ratio_to_central,
                )
                for row in rows.itertuples()
                if row.mechanism != CENTRAL
            ]
    return cells


def holm(cells: Sequence[Loss]) -> list[tuple[Loss, float]]:
    """Cells with the p-values of a joint test (Holm 1979), the smallest first.

    The odds that *any* cell where nothing is lost comes out below some value are at most that value, however
    the cells depend on each other.
    """
    ordered = sorted(cells, key=lambda cell: cell.p_value)
    adjusted, largest = [], 0.0
    for place, cell in enumerate(ordered):
        largest = max(largest, min((len(ordered) - place) * cell.p_value, 1.0))
        adjusted.append((cell, largest))
    return adjusted


@dataclass(frozen=True)
class Pooled:
    """The mean loss of many cells, in points, and half of its 95 % interval.

    Cells share seeds, and with these data and noise: they are averaged for each seed first, and the interval
    (Student t) is that of these averages.
    """

    cells: int
    mean: float
    half_interval: float


def pooled(read: ReadTable, bits: int | None = None) -> Pooled:
    """All cells of ours, or those of so many bits."""
    by_seed: list[pd.DataFrame] = []
    for name in GRADIENTS:
        table = table_or_none(read, f"{name}-by-seed")
        if table is not None:
            table = table[table["mechanism"] == PEERS[0]]
            by_seed.append(table if bits is None else table[table["bits"] == bits])
    lost = pd.concat(by_seed, ignore_index=True)
    means = 100.0 * lost.groupby("seed")["accuracy_lost"].mean()
    half = float(student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))
    return Pooled(len(lost) // len(means), float(means.mean()), half)


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    heading = PrivacyStatement.heading(Unit.TOTAL, "aggregate")
    peers = PEERS
    labels = LABELS
    close = CLOSE

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @property
    def clips(self) -> list[tuple[str, str]]:
        """What each L2 clip is for, and the accuracies at each value."""
        return clip_texts(self._read, "l2_clip", _CLIPS)

    @cached_property
    def errors(self) -> list[dict[str, Any]]:
        """For each number of clients and budget the best row of each mechanism."""
        best = best_errors(self._read("secure_sum"))
        return [
            {
                "num_clients": num_clients,
                "budget": _budget(run_epsilon),
                "rows": {row.mechanism: row for row in rows.itertuples()},
            }
            for (num_clients, run_epsilon), rows in best.groupby(["num_clients", "run_epsilon"])
        ]

    @cached_property
    def ours(self) -> pd.DataFrame:
        """Errors of ours over the central Gaussian's, by bits (down) and by clients and budget (across)."""
        errors = self._read("secure_sum")
        ours = errors[errors["mechanism"] == PEERS[0]]
        return ours.pivot_table("ratio_to_central", "bits", ["num_clients", "run_epsilon"])

    @cached_property
    def by_rounds(self) -> pd.DataFrame:
        """Our errors by coordinates and rounds (down), and by budget and bits (across)."""
        return self._read("by_rounds").pivot_table(
            "ratio_to_central", ["dimension", "rounds"], ["run_epsilon", "bits"]
        )

    @cached_property
    def gradients(self) -> list[dict[str, Any]]:
        """For each task, number of rounds and budget the row of each mechanism with its bits."""
        tables = [table_or_none(self._read, name) for name in GRADIENTS]
        return [
            {
                "task": TASKS[str(task)],
                "rounds": rounds,
                "run_epsilon": run_epsilon,
                "budget": _budget(run_epsilon),
                "rows": {series_of(row.mechanism, row.bits): row for row in rows.itertuples()},
            }
            for table in tables
            if table is not None
            for (task, rounds, run_epsilon), rows in table.sort_values("bits", na_position="first").groupby(
                ["task", "rounds", "run_epsilon"]
            )
        ]

    @property
    def trained(self) -> list[str]:
        """Parts of training by gradients that were computed."""
        return [name for name in GRADIENTS if table_or_none(self._read, name) is not None]

    @property
    def not_trained(self) -> list[str]:
        """Parts of training by gradients that were not computed."""
        return [name for name in GRADIENTS if name not in self.trained]

    @property
    def setting(self) -> Any:
        """A row of training by gradients, for what all of them share."""
        return next(iter(self.gradients[0]["rows"].values()))

    @property
    def series(self) -> list[str]:
        """Mechanisms with their bits, in the order of the tables."""
        return list(dict.fromkeys(name for line in self.gradients for name in line["rows"]))

    @cached_property
    def losses(self) -> list[Loss]:
        """What each mechanism loses to the central Gaussian in each setting."""
        return losses(self._read)

    @property
    def seeds(self) -> int:
        """Number of seeds of each setting.

        Raises
        ------
        PrivQuantError
            Not all settings have the same number.
        """
        (seeds,) = counts if len(counts := {cell.seeds for cell in self.losses}) == 1 else (0,)
        if not seeds:
            raise PrivQuantError(f"seeds: settings have {sorted(counts)}; run the study again")
        return seeds

    def loss(self, task: str, rounds: int, run_epsilon: float, series: str) -> Loss | None:
        """The loss in one setting, if it was computed."""
        chosen = (task, rounds, run_epsilon, series)
        return next(
            (
                cell
                for cell in self.losses
                if (cell.task, cell.rounds, cell.run_epsilon, cell.series) == chosen
            ),
            None,
        )

    @property
    def our_losses(self) -> list[Loss]:
        """The rows of the mechanism that is designed for the sum."""
        return [cell for cell in self.losses if cell.ours]

    @property
    def planned_losses(self) -> list[Loss]:
        """The row with the fewest bits whose planned error is close to the central one, in each setting."""
        chosen: dict[tuple[str, int, float], Loss] = {}
        for cell in sorted(self.our_losses, key=lambda cell: cell.bits):
            if cell.ratio <= CLOSE:
                chosen.setdefault((cell.task, cell.rounds, cell.run_epsilon), cell)
        return list(chosen.values())

    @property
    def joint(self) -> list[tuple[Loss, float]]:
        """Cells of ours with the p-values of the joint test, the smallest first."""
        return holm(self.our_losses)

    @property
    def pooled(self) -> list[tuple[str, Pooled]]:
        """The mean loss with each number of bits, and of all cells."""
        widths = sorted({cell.series for cell in self.our_losses})
        return [
            *((series, pooled(self._read, place)) for place, series in enumerate(widths, start=1)),
            ("all cells", pooled(self._read)),
        ]

    @cached_property
    def local_training(self) -> list[dict[str, Any]]:
        """For each task and budget every mechanism, the least error first, beside the central Gaussian."""
        lines = []
        for task, label in (("digits", "digits"), ("mnist", "MNIST")):
            for run_epsilon, rows in self._read(f"equal-budget-{task}").groupby("run_epsilon"):
                central = one_row(rows, mechanism=CENTRAL)
                lines += [
                    {
                        "task": label,
                        "budget": _budget(run_epsilon),
                        "row": row,
                        "stated": total(row, "aggregate").epsilon_cell,
                        "ratio": row.mean_squared_error / central.mean_squared_error,
                        "trusted": row.mechanism == CENTRAL,
                    }
                    for row in rows.sort_values("mean_squared_error").itertuples()
                ]
        return lines


def _budget(run_epsilon: float) -> str:
    return PrivacyStatement(run_epsilon, 1e-5, Unit.TOTAL, "aggregate").epsilon_cell
