"""Mechanisms at an equal budget for a client's whole run, seen through secure aggregation.

Their exact errors in the secure sum, and training with them, beside a central Gaussian with a trusted server.
"""

from __future__ import annotations

from pathlib import Path

from simulations.studies.equal_budget.figures import FIGURES
from simulations.studies.equal_budget.numbers import Numbers
from simulations.studies.equal_budget.planned_errors import BY_ROUNDS, SECURE_SUM
from simulations.studies.study import Study
from simulations.studies.sweep import sweeps_of

__all__ = ["STUDY"]

HOME = Path(__file__).parent
STUDY = Study(HOME, (SECURE_SUM, BY_ROUNDS, *sweeps_of(HOME / "sweeps.yaml")), FIGURES, Numbers)
