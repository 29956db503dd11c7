"""Mechanisms at an equal budget for a client's whole run, seen through secure aggregation.

Their exact errors in the secure sum, and training with them, beside a central Gaussian with a trusted server.
"""

from simulations.studies.equal_budget.planned_errors import PARTS

__all__ = ["PARTS"]
