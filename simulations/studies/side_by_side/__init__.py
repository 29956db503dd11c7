"""Mechanisms side by side in federated learning: slices through one setting, one thing varied at a time."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.side_by_side.figures import FIGURES
from simulations.studies.side_by_side.numbers import Numbers
from simulations.studies.study import Study
from simulations.studies.sweep import sweeps_of

__all__ = ["STUDY"]

HOME = Path(__file__).parent
STUDY = Study(HOME, sweeps_of(HOME / "sweeps.yaml"), FIGURES, Numbers)
