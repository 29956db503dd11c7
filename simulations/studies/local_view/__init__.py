"""Federated learning in the local view: what can be learnt where every client's message is seen."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.local_view.figures import FIGURES
from simulations.studies.local_view.numbers import Numbers
from simulations.studies.study import Study
from simulations.studies.sweep import sweeps_of

__all__ = ["STUDY"]

HOME = Path(__file__).parent
STUDY = Study(HOME, sweeps_of(HOME / "sweeps.yaml"), FIGURES, Numbers)
