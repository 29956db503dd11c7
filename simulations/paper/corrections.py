"""Where the paper's text needs correcting: one check for each point, run all by one command."""

from __future__ import annotations

import pandas as pd

from simulations.paper import experiment_checks, theorem_checks
from simulations.paper.study import Scale, Study, Tables, Tell

__all__ = ["CHECKS", "STUDY"]

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


STUDY = Study("corrections", "Where the paper's text needs correcting", _compute)
