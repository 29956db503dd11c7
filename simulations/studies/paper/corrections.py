"""Where the paper's text needs correcting: there is one check for each point, and one command runs all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from fl_privquant.errors import PrivQuantError
from simulations.studies._pages import Compute, compute_rows
from simulations.studies.paper import experiment_checks, theorem_checks
from simulations.studies.paper.findings import Finding

CHECKS: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("checks.yaml")))
"""The texts of each check, by its name."""

# Random cases in each check of a theorem.
_CONFIGURATIONS = 200
_COLUMNS = ("where", "claim", "finding", "verdict", "confirmed")


def run_check(name: str, configurations: int) -> Finding:
    """What the check of that name finds in ``configurations`` random cases.

    The check ``erm-privacy`` is the function ``erm_privacy`` of one of the two modules of checks.
    """
    functions = vars(experiment_checks) | vars(theorem_checks)
    finding: Finding = functions[name.replace("-", "_")](configurations)
    return finding


def _row(name: str, configurations: int) -> dict[str, Any]:
    words, finding = CHECKS[name], run_check(name, configurations)
    figures = {**finding.measured, "configurations": configurations}
    record = {**words, "finding": words["finding"] % figures, "confirmed": finding.confirmed}
    return {"check": name, **{column: record[column] for column in _COLUMNS}}


def compute_corrections() -> pd.DataFrame:
    """The table of all checks.

    Raises
    ------
    PrivQuantError
        A check does not confirm.
    """
    table = compute_rows(_row, [(name, _CONFIGURATIONS) for name in CHECKS])
    refuted = table[~table["confirmed"]]["check"]
    if len(refuted):
        raise PrivQuantError(f"corrections: {', '.join(refuted)} did not confirm")
    return table


PARTS: dict[str, Compute] = {"corrections": compute_corrections}
"""By name, the function that computes the table."""
