"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fl_privquant.accounting import PrivacyStatement, Unit
from simulations.studies.local_view.training import EPSILONS, MECHANISMS, TASKS
from simulations.studies.page import accuracy, one_row, table_or_none, total
from simulations.studies.study import ReadTable

__all__ = ["Numbers"]


class Numbers:
    """What the page's template names; each is read when the template uses it."""

    mechanisms = MECHANISMS
    round_heading = PrivacyStatement.heading(Unit.ROUND)
    total_heading = PrivacyStatement.heading(Unit.TOTAL)

    def __init__(self, read: ReadTable) -> None:
        self._read = read
        tables = {name: table_or_none(read, name) for name in TASKS}
        self._tables = {name: table for name, table in tables.items() if table is not None}

    def rows(self) -> Iterator[dict[str, Any]]:
        """For each task and epsilon of a round: accuracies, and what all rounds cost."""
        for name, table in self._tables.items():
            none = one_row(table, mechanism="none")
            for epsilon in EPSILONS:
                here = table[np.isclose(table["epsilon"], epsilon, rtol=1e-3)]
                rows = {mechanism: one_row(here, mechanism=mechanism) for mechanism in MECHANISMS}
                first = rows[MECHANISMS[0]]
                yield {
                    "task": TASKS[name],
                    "dimension": int(none.dimension),
                    "round": PrivacyStatement(epsilon, 0.0, Unit.ROUND).epsilon_cell,
                    "total": total(first, "local").epsilon_cell,
                    "cells": [accuracy(row) for row in rows.values()],
                    "bits": [round(row.bits_per_coordinate * row.dimension / 8.0) for row in rows.values()],
                    "none": accuracy(none),
                    "lost": 100.0 * (none.accuracy - first.accuracy),
                    "ahead": 100.0 * (first.accuracy - max(row.accuracy for row in list(rows.values())[1:])),
                    "errors": rows[MECHANISMS[1]].mean_squared_error / first.mean_squared_error,
                    "seeds": int(first.seeds),
                }

    def span(self, key: str, epsilon: str) -> tuple[float, float]:
        """The least and the largest of a figure over tasks, at an epsilon of a round."""
        values = [row[key] for row in self.rows() if row["round"] == epsilon]
        return min(values), max(values)

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Clip, rounds, clients and seeds of each task."""
        rows = []
        for name, table in self._tables.items():
            row = one_row(table, mechanism="none")
            rows.append({"task": TASKS[name], "row": row})
        return rows
