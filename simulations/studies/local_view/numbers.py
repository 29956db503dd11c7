"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from simulations.studies.page import one_row, table_or_none
from simulations.studies.study import ReadTable

__all__ = ["EPSILONS", "MECHANISMS", "TASKS", "Numbers"]

EPSILONS = (2.0, 4.0, 8.0)
"""Of a client's update in one round, local view."""

MECHANISMS = ("shared_codebook", "cldp_l2")
"""The private mechanisms that are compared."""

TASKS = {"local-view-digits": "digits", "local-view-mnist": "MNIST", "local-view-fashion": "Fashion-MNIST"}
"""Parts, which are tables, and what their data are called."""


class Numbers:
    """What the page's template names; each is read when the template uses it."""

    mechanisms = MECHANISMS

    def __init__(self, read: ReadTable) -> None:
        tables = {label: table_or_none(read, name) for name, label in TASKS.items()}
        self._tables = {label: table for label, table in tables.items() if table is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The row without privacy of each task."""
        return {label: one_row(table, mechanism="none") for label, table in self._tables.items()}

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """For each task and epsilon of a round the row of each mechanism, and what sets them apart.

        These are the points that the first mechanism loses to no privacy and is ahead of the others, and the
        error of the second one over that of the first.
        """
        lines = []
        for label, none in self.settings.items():
            table = self._tables[label]
            for epsilon in EPSILONS:
                here = table[np.isclose(table["epsilon"], epsilon, rtol=1e-3)]
                rows = [one_row(here, mechanism=mechanism) for mechanism in MECHANISMS]
                lines.append(
                    {
                        "task": label,
                        "epsilon": epsilon,
                        "none": none,
                        "rows": rows,
                        "lost": 100.0 * (none.accuracy - rows[0].accuracy),
                        "ahead": 100.0 * (rows[0].accuracy - max(row.accuracy for row in rows[1:])),
                        "errors": rows[1].mean_squared_error / rows[0].mean_squared_error,
                    }
                )
        return lines

    def span(self, key: str, epsilon: float) -> tuple[float, float]:
        """The least and the largest of a figure over tasks, at an epsilon of a round."""
        values = [line[key] for line in self.lines if line["epsilon"] == epsilon]
        return min(values), max(values)
