"""Every study that the command knows."""

from __future__ import annotations

from simulations.studies import equal_budget, paper, secure_sum, side_by_side

__all__ = ["STUDIES"]

STUDIES = (paper.STUDY, side_by_side.STUDY, secure_sum.STUDY, equal_budget.STUDY)
