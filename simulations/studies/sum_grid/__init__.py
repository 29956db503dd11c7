"""Exact errors of mechanisms in the secure sum, each at its own best, over that of a central Gaussian."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.study import Study
from simulations.studies.sum_grid.figures import FIGURES
from simulations.studies.sum_grid.grid import PARTS
from simulations.studies.sum_grid.numbers import Numbers

__all__ = ["STUDY"]

STUDY = Study(Path(__file__).parent, PARTS, FIGURES, Numbers)
