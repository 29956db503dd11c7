"""Federated learning in the local view: what can be learnt where every client's message is seen."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.local_view.figures import FIGURES
from simulations.studies.local_view.numbers import Numbers
from simulations.studies.local_view.training import PARTS
from simulations.studies.study import Study

__all__ = ["STUDY"]

STUDY = Study(
    home=Path(__file__).parent,
    title="Federated learning under local privacy",
    parts=PARTS,
    figures=FIGURES,
    numbers=Numbers,
)
