"""The committed tables of the study of the paper."""

from __future__ import annotations

from simulations.studies.catalogue import study_of
from simulations.studies.study import Figure, Store

STUDY = study_of("paper")
STORE = Store(STUDY.home)


def figure_of(name: str) -> Figure:
    return next(figure for figure in STUDY.figures if figure.name == name)
