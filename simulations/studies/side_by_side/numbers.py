"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.errors import PrivQuantError
from simulations.studies.page import one_row, table_or_none
from simulations.studies.study import ReadTable

_SETTINGS = (
    ("digits, softmax, IID", "mechanisms-digits", 1.0),
    ("digits, softmax, Dirichlet 0.3", "partition-digits", 1.0),
    ("digits, CNN, IID", "cnn-digits", 1.0),
    ("MNIST, softmax, IID", "epsilon-mnist", 2.0),
    ("MNIST, softmax, Dirichlet 0.3", "partition-mnist", 2.0),
    ("MNIST, CNN, IID", "cnn-mnist", 2.0),
)


def at_epsilon(table: pd.DataFrame, epsilon: float) -> pd.DataFrame:
    """The rows of mechanisms that were asked for an epsilon, which certified ones miss by a hair."""
    return table[np.isclose(table["epsilon"], epsilon, rtol=1e-3)]


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    at_epsilon = staticmethod(at_epsilon)

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def unbiased(self) -> pd.DataFrame:
        """Private mechanisms for coordinates whose error is all noise: a bias does not average away."""
        table = self._read("mechanisms-digits")
        private = table[np.isfinite(table["epsilon"]) & table["noise_error"].notna()]
        return private.sort_values("noise_error", kind="stable")

    @property
    def epsilons(self) -> list[float]:
        """The epsilons of the table of epsilons, in order."""
        epsilons = self._read("epsilon-mnist")["epsilon"]
        return sorted(epsilons[np.isfinite(epsilons)].round(3).unique())

    @cached_property
    def settings(self) -> list[dict[str, Any]]:
        """OPTM and no privacy, for each task, model and partition."""
        rows = []
        for label, name, epsilon in _SETTINGS:
            table = table_or_none(self._read, name)
            if table is None:
                continue
            none = one_row(table, mechanism="none")
            optm = one_row(at_epsilon(table, epsilon), mechanism="optm")
            lost = 100.0 * (none.accuracy - optm.accuracy)
            rows.append({"label": label, "wanted": epsilon, "none": none, "optm": optm, "lost": lost})
        return rows

    @cached_property
    def secagg(self) -> tuple[Any, Any]:
        """The rows without and with secure aggregation, whose model must be the same."""
        table = self._read("secagg-mnist")
        off, on = (one_row(table, secure_aggregation=enabled) for enabled in (False, True))
        if off.model_sha256 != on.model_sha256 or off.accuracy != on.accuracy:
            raise PrivQuantError(
                f"secure aggregation changed the model: {off.model_sha256} without, {on.model_sha256} with"
            )
        return off, on
