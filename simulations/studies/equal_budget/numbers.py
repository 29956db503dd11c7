"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pandas as pd

from fl_privquant.statement import PrivacyStatement, Unit
from simulations.config import CENTRAL
from simulations.studies.clip_choice import clip_texts
from simulations.studies.equal_budget.secure_sum import PEERS
from simulations.studies.page import one_row, table_or_none, total
from simulations.studies.study import ReadTable

__all__ = ["GRADIENTS", "LABELS", "Numbers", "best_errors"]

GRADIENTS = ("gradients-digits", "gradients-mnist", "gradients-fashion")
"""Tables of training by one gradient of each client a round."""

LABELS = {
    CENTRAL: "central Gaussian (server trusted)",
    "optm_aggregate": "OPTM for the sum",
    "pbm": "Poisson binomial",
    "discrete_gaussian": "discrete Gaussian",
    "skellam": "Skellam",
}
"""What mechanisms are called in figures and tables."""

_CLIPS = (("norm-digits", "digits, softmax: L2 clip"), ("norm-mnist", "MNIST, softmax: L2 clip"))


def best_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """For each mechanism, number of clients and budget the bit-width with the least error."""
    keys = ["num_clients", "run_epsilon", "mechanism"]
    return errors.sort_values("ratio_to_central").groupby(keys, as_index=False).first()


class Numbers:
    """What the page's template names; each is read when the template uses it."""

    heading = PrivacyStatement.heading(Unit.TOTAL, "aggregate")
    peers = PEERS
    labels = LABELS

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
    def gradients(self) -> list[dict[str, Any]]:
        """For each task, number of clients and budget the row of each mechanism."""
        tables = [table_or_none(self._read, name) for name in GRADIENTS]
        keys = ["task", "num_clients", "run_epsilon"]
        return [
            {
                "task": task,
                "num_clients": num_clients,
                "budget": _budget(run_epsilon),
                "rows": {row.mechanism: row for row in rows.itertuples()},
            }
            for table in tables
            if table is not None
            for (task, num_clients, run_epsilon), rows in table.groupby(keys)
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
