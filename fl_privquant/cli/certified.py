"""The column of what is certified of a mechanism, alike in all tables of the command line."""

from __future__ import annotations

import math

from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, Unit

__all__ = ["certified_cell", "certified_heading"]


def certified_heading() -> str:
    """The heading of a column of epsilons of one coordinate and release."""
    return PrivacyStatement.heading(Unit.COORDINATE, "local", "certified ε").replace(", ", ",\n")


def certified_cell(mechanism: Mechanism) -> str:
    """The certified epsilon, with its unit where that is not the one of the heading."""
    stated = mechanism.statement
    alike = stated.unit is Unit.COORDINATE or math.isinf(stated.epsilon)
    return stated.epsilon_cell if alike else f"{stated.epsilon_cell} ({stated.unit})"
