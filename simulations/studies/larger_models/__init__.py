"""Networks on non-IID clients, at an equal budget for a client's whole run through a secure sum."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.larger_models.figures import FIGURES
from simulations.studies.larger_models.numbers import Numbers
from simulations.studies.larger_models.training import PARTS
from simulations.studies.study import Study

__all__ = ["STUDY"]

STUDY = Study(
    home=Path(__file__).parent,
    parts=PARTS,
    figures=FIGURES,
    numbers=Numbers,
)
