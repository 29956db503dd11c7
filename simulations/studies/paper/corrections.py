"""Where the paper's text needs correcting: one check for each point, run all by one command."""

from __future__ import annotations

import pandas as pd

from simulations.studies.paper import experiment_checks, theorem_checks
from simulations.studies.study import Computed, Scale, Tables, Tell

CHECKS = (*experiment_checks.CHECKS, *theorem_checks.CHECKS)


def _compute(scale: Scale, tell: Tell) -> Tables:
    records = []
    for number, check in enumerate(CHECKS):
        tell(number / len(CHECKS), check.name)
        finding = check.run(scale.configurations)
        records.append(
            {
                "check": check.name,
                "where": check.where,
                "claim": check.claim,
                "finding": finding.text,
                "verdict": check.verdict,
                "confirmed": finding.confirmed,
            }
        )
    return {"corrections": pd.DataFrame(records)}


CORRECTIONS = Computed(
    name="corrections",
    title="Where the paper's text needs correcting",
    function=_compute,
    shown=("where", "claim", "finding", "verdict", "confirmed"),
)
