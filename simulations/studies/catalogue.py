"""Every study that the command knows."""

from __future__ import annotations

from simulations.studies import (
    equal_budget,
    larger_models,
    local_view,
    mean_estimation,
    paper,
    payload,
    side_by_side,
    sum_grid,
)

STUDIES = (
    paper.STUDY,
    side_by_side.STUDY,
    mean_estimation.STUDY,
    local_view.STUDY,
    sum_grid.STUDY,
    payload.STUDY,
    equal_budget.STUDY,
    larger_models.STUDY,
)
