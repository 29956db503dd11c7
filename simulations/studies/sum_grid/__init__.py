"""Exact errors of mechanisms in the secure sum, each at its own best, over that of a central Gaussian."""

from simulations.studies.sum_grid.grid import PARTS

__all__ = ["PARTS"]
