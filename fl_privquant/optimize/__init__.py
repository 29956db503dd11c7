"""The design of mechanisms: linear programs, searches for output values, and clips."""

from fl_privquant.optimize.bin_search import BinSearch, Evaluation
from fl_privquant.optimize.linear_program import LinearProgram
from fl_privquant.optimize.optm.free import FreeFamily, design_free
from fl_privquant.optimize.optm.independent import design_independent
from fl_privquant.optimize.optm.monotone import design_monotone
from fl_privquant.optimize.optm.paired import design_paired

__all__ = [
    "BinSearch",
    "Evaluation",
    "FreeFamily",
    "LinearProgram",
    "design_free",
    "design_independent",
    "design_monotone",
    "design_paired",
]
