"""What a client sends through a secure sum, and what that costs in error and in accuracy."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.payload import accuracy, sizes
from simulations.studies.payload.figures import FIGURES
from simulations.studies.payload.numbers import Numbers
from simulations.studies.study import Study

__all__ = ["STUDY"]

STUDY = Study(Path(__file__).parent, (*sizes.PARTS, *accuracy.PARTS), FIGURES, Numbers)
