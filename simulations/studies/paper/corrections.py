"""Where the paper's text needs correcting: one check for each point, run all by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from simulations.studies.paper import experiment_checks, theorem_checks
from simulations.studies.paper.findings import Finding
from simulations.studies.study import Computed, Scale, Tell, rows_of

CHECKS: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("checks.yaml")))
"""The words of each check by its name."""

_COLUMNS = ("where", "claim", "finding", "verdict", "confirmed")


def run_check(name: str, configurations: int) -> Finding:
    """What the check of that name finds, which looks at so many random cases.

    The check ``erm-privacy`` is the function ``erm_privacy`` of one of the two modules of checks.
    """
    functions = vars(experiment_checks) | vars(theorem_checks)
    finding: Finding = functions[name.replace("-", "_")](configurations)
    return finding


def _compute(scale: Scale, tell: Tell) -> pd.DataFrame:
    def row(name: str) -> dict[str, Any]:
        words, finding = CHECKS[name], run_check(name, scale.configurations)
        figures = {**finding.measured, "configurations": scale.configurations}
        record = {**words, "finding": words["finding"] % figures, "confirmed": finding.confirmed}
        return {"check": name, **{column: record[column] for column in _COLUMNS}}

    return rows_of(((name,) for name in CHECKS), row, tell)


PARTS = (
    Computed(
        name="corrections",
        title="Where the paper's text needs correcting",
        function=_compute,
        shown=_COLUMNS,
    ),
)
