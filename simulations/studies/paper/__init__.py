"""The experiments of the paper, each table and figure of it, and checks of its text."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.paper import corrections, dpsgd, example_law, scalar, vector_error
from simulations.studies.study import Study

__all__ = ["STUDY"]

STUDY = Study(
    home=Path(__file__).parent,
    parts=(
        scalar.TABLE1,
        scalar.TABLE2,
        scalar.CURVES,
        example_law.LAW,
        vector_error.LINF_PART,
        vector_error.L2_PART,
        dpsgd.CANCER,
        dpsgd.MNIST,
        corrections.CORRECTIONS,
    ),
    figures=(
        scalar.FIGURE,
        example_law.FIGURE,
        vector_error.LINF_FIGURE,
        vector_error.L2_FIGURE,
        *dpsgd.FIGURES,
    ),
    numbers=lambda read: {
        "ours": "OPTM free (ours)",
        "budget": dpsgd.BUDGET,
        "delta": dpsgd.DELTA,
        "bins": example_law.BINS,
        "gamma": example_law.GAMMA,
    },
)
