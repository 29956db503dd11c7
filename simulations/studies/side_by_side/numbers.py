"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fl_privquant.errors import PrivQuantError
from simulations.studies.page import accuracy, epsilon_cell, one_row, table_or_none, total
from simulations.studies.study import ReadTable

_SETTINGS = (
    ("digits, softmax, IID", "mechanisms-digits", 1.0),
    ("digits, softmax, Dirichlet 0.3", "partition-digits", 1.0),
    ("digits, CNN, IID", "cnn-digits", 1.0),
    ("MNIST, softmax, IID", "epsilon-mnist", 2.0),
    ("MNIST, softmax, Dirichlet 0.3", "partition-mnist", 2.0),
    ("MNIST, CNN, IID", "cnn-mnist", 2.0),
)


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def mechanisms(self) -> dict[str, Any]:
        """Rows of single mechanisms, and how far they lie apart."""
        table = self._read("mechanisms-digits")
        # Those whose error is all noise: a bias does not average away.
        private = table[np.isfinite(table.epsilon) & table.noise_error.notna()]
        worst, best = private.loc[private.noise_error.idxmax()], private.loc[private.noise_error.idxmin()]
        optm = one_row(table, mechanism="optm")
        vectors = self._read("vectors-digits")
        cldp = one_row(vectors, mechanism="cldp_l2")
        return {
            "cldp": cldp,
            "cldp_total": total(cldp, "local").brief,
            "vqsgd": one_row(vectors, mechanism="vqsgd"),
            "vqsgd_private": one_row(vectors, mechanism="vqsgd_private"),
            "none": one_row(table, mechanism="none"),
            "optm": optm,
            "biased": one_row(table, mechanism="biased"),
            "stochastic": one_row(table, mechanism="stochastic"),
            "worst": worst,
            "best": best,
            "ratio": worst.noise_error / best.noise_error,
            "points": 100.0 * (private.accuracy.max() - private.accuracy.min()),
            "total": total(optm, "local").brief,
        }

    @cached_property
    def epsilons(self) -> dict[str, Any]:
        """The rows of the table of epsilons, as text; and the row without privacy."""
        table = self._read("epsilon-mnist")
        rows = []
        for epsilon in sorted(set(table[np.isfinite(table.epsilon)].epsilon.round(3))):
            here = table[np.isclose(table.epsilon, epsilon, rtol=1e-3)]
            optm = one_row(here, mechanism="optm")
            accuracies = [accuracy(one_row(here, mechanism=name)) for name in ("optm", "one_bit", "pbm")]
            totals = [total(optm, view).epsilon_cell for view in ("local", "aggregate")]
            rows.append([epsilon_cell(epsilon), *accuracies, *totals])
        return {"none": one_row(table, mechanism="none"), "rows": rows}

    @cached_property
    def settings(self) -> list[dict[str, Any]]:
        """OPTM beside no privacy, for each task, model and partition."""
        rows = []
        for label, name, epsilon in _SETTINGS:
            table = table_or_none(self._read, name)
            if table is None:
                continue
            none = one_row(table, mechanism="none")
            optm = one_row(table[np.isclose(table.epsilon, epsilon, rtol=1e-3)], mechanism="optm")
            lost = 100.0 * (none.accuracy - optm.accuracy)
            rows.append({"label": label, "wanted": epsilon, "none": none, "optm": optm, "lost": lost})
        return rows

    @cached_property
    def secagg(self) -> dict[str, Any]:
        """The rows with and without secure aggregation, whose model must be the same."""
        table = self._read("secagg-mnist")
        off, on = (one_row(table, secure_aggregation=enabled) for enabled in (False, True))
        if off.model_sha256 != on.model_sha256 or off.accuracy != on.accuracy:
            raise PrivQuantError(
                f"secure aggregation changed the model: {off.model_sha256} without, {on.model_sha256} with"
            )
        totals = [total(off, "local").epsilon_cell, total(on, "aggregate").epsilon_cell]
        return {"off": off, "on": on, "totals": totals}
