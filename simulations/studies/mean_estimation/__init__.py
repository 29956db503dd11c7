"""Mean estimation: error, bits and time of every mechanism, in the local view and in secure sums."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.mean_estimation import local, ranked_rounding, secure
from simulations.studies.mean_estimation.figures import FIGURES
from simulations.studies.mean_estimation.numbers import Numbers
from simulations.studies.study import Study

__all__ = ["STUDY"]

PARTS = (*local.PARTS, *ranked_rounding.PARTS, *secure.PARTS)
STUDY = Study(Path(__file__).parent, PARTS, FIGURES, Numbers)
