"""Every study of the paper, in its order."""

from __future__ import annotations

from simulations.paper import corrections, dpsgd, example_law, scalar, vector

__all__ = ["STUDIES"]

STUDIES = (
    scalar.TABLE1,
    scalar.TABLE2,
    scalar.FIGURE,
    example_law.STUDY,
    vector.LINF_STUDY,
    vector.L2_STUDY,
    dpsgd.CANCER,
    dpsgd.MNIST,
    corrections.STUDY,
)
