"""Where the paper's text needs correcting: one check for each point, run all by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

# Both modules enter their checks when they are imported.
from simulations.studies.paper import experiment_checks, theorem_checks
from simulations.studies.paper.findings import RUNS
from simulations.studies.study import Computed, Scale, Tell

__all__ = ["CHECKS", "CORRECTIONS", "experiment_checks", "theorem_checks"]

CHECKS: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("checks.yaml")))
"""The words of each check by its name."""


def _compute(scale: Scale, tell: Tell) -> pd.DataFrame:
    records = []
    for number, (name, words) in enumerate(CHECKS.items()):
        tell(number / len(CHECKS), name)
        finding = RUNS[name](scale.configurations)
        figures = {**finding.measured, "configurations": scale.configurations}
        record = {**words, "finding": words["finding"] % figures, "confirmed": finding.confirmed}
        columns = ("where", "claim", "finding", "verdict", "confirmed")
        records.append({"check": name, **{column: record[column] for column in columns}})
    return pd.DataFrame(records)


CORRECTIONS = Computed(
    name="corrections",
    title="Where the paper's text needs correcting",
    function=_compute,
    shown=("where", "claim", "finding", "verdict", "confirmed"),
)
