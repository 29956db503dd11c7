"""The committed tables of the study of the paper."""

from __future__ import annotations

from simulations.studies.paper import STUDY
from simulations.studies.study import Store

STORE = Store(STUDY.home)
