"""What a client sends through a secure sum, and what that costs in error."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.payload.figures import FIGURES
from simulations.studies.payload.numbers import Numbers
from simulations.studies.payload.sizes import PARTS
from simulations.studies.study import Study

__all__ = ["STUDY"]

STUDY = Study(
    home=Path(__file__).parent,
    title="Error against kilobytes in the secure sum",
    parts=PARTS,
    figures=FIGURES,
    numbers=Numbers,
)
