"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simulations.studies.page import TASKS, one_row, together
from simulations.studies.study import ReadTable

EPSILONS = (2.0, 4.0, 8.0)
"""Of a client's update in one round, local view."""

MECHANISMS = ("shared_codebook", "cldp_l2")
"""The private mechanisms that are compared."""

TABLES = ("local-view-digits", "local-view-mnist", "local-view-fashion")
"""Parts, which are tables: one for each task."""


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    mechanisms = MECHANISMS

    def __init__(self, read: ReadTable) -> None:
        self._table = together(read, TABLES)

    @property
    def settings(self) -> dict[str, Any]:
        """The row without privacy of each task."""
        rows = self._table.itertuples()
        return {TASKS[row.task]: row for row in rows if row.mechanism == "none"}

    @cached_property
    def lines(self) -> pd.DataFrame:
        """For each task and epsilon of a round the row of each mechanism, and what sets them apart.

        These are the points that the first mechanism loses to no privacy and is ahead of the others, and the
        error of the second one over that of the first.
        """
        lines = []
        for label, none in self.settings.items():
            for epsilon in EPSILONS:
                near = np.isclose(self._table["epsilon"], epsilon, rtol=1e-3)
                here = self._table[near & self._table["task"].eq(none.task)]
                first, second = (one_row(here, mechanism=mechanism) for mechanism in MECHANISMS)
                lines.append(
                    {
                        "task": label,
                        "epsilon": epsilon,
                        "none": none,
                        "rows": (first, second),
                        "lost": 100.0 * (none.accuracy - first.accuracy),
                        "ahead": 100.0 * (first.accuracy - second.accuracy),
                        "errors": second.mean_squared_error / first.mean_squared_error,
                    }
                )
        return pd.DataFrame(lines)

    def at(self, column: str, epsilon: float) -> pd.Series:
        """A figure of all tasks at an epsilon of a round."""
        return self.lines[self.lines["epsilon"] == epsilon][column]
