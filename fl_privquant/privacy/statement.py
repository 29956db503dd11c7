"""What an epsilon means: its unit, its view, its neighbours, how it was counted, and what that assumes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fl_privquant.errors import InvalidSpecError

__all__ = ["LOCAL", "REPLACE_ONE", "PrivacyStatement", "Unit", "View"]

REPLACE_ONE = "one client's update replaced by any other"
"""The neighbouring relation of every statement of this package."""


class Unit(StrEnum):
    """What is protected: how much of a client's contribution a statement covers."""

    COORDINATE = "coordinate release"
    ROUND = "client round"
    TOTAL = "client total"


@dataclass(frozen=True)
class View:
    """What the adversary sees: each client's codes (local), or only sums of codes over clients.

    Parameters
    ----------
    num_honest
        Number of honest clients whose codes are in the sum, the protected client included: those that
        collude with the adversary add no noise that it does not know, and those that dropped out add
        none at all. None: the local view.

    >>> str(View.aggregate(20, corrupt=1, dropped=2)), str(LOCAL)
    ('aggregate of 17', 'local')
    """

    num_honest: int | None = None

    def __post_init__(self) -> None:
        if self.num_honest is not None and self.num_honest < 1:
            raise InvalidSpecError(
                f"view: {self.num_honest} honest clients in the sum; the protected client itself is one, so "
                "lower corrupt or dropped"
            )

    @classmethod
    def aggregate(cls, num_clients: int, corrupt: int = 0, dropped: int = 0) -> View:
        """The view of whoever sees only the sum over ``num_clients``, some corrupt or dropped."""
        if corrupt < 0 or dropped < 0:
            raise InvalidSpecError(f"view: corrupt {corrupt} and dropped {dropped} must not be negative")
        return cls(num_clients - corrupt - dropped)

    @property
    def is_local(self) -> bool:
        """Whether each client's codes are seen; a sum of one is that too."""
        return self.num_honest is None or self.num_honest == 1

    def __str__(self) -> str:
        return "local" if self.num_honest is None else f"aggregate of {self.num_honest}"


LOCAL = View()
"""The view of whoever sees each client's codes: the server, without secure aggregation."""


@dataclass(frozen=True)
class PrivacyStatement:
    """An (epsilon, delta) that cannot be misread: nothing in this package prints an epsilon without one.

    Guarantee: with P and Q the laws of all that the adversary sees, for two neighbouring inputs,
    P(S) <= e^epsilon Q(S) + delta for every set S. Both figures are upper bounds.

    Parameters
    ----------
    epsilon, delta
        The bound.
    unit
        What is protected.
    view
        What the adversary sees, in words.
    neighbours
        Which inputs are indistinguishable.
    method
        How it was counted: exact, pure, pld, rdp, blanket+pld, ...
    assumptions
        What must hold, in words.
    scope
        Sizes that belong to the unit, such as "650 coordinates, 30 rounds".

    >>> print(PrivacyStatement(1.0, 0.0, Unit.COORDINATE, "local", method="exact"))
    coordinate release, local view: ε = 1, δ = 0 for one client's update replaced by any other [exact]
    """

    epsilon: float
    delta: float
    unit: Unit
    view: str
    neighbours: str = REPLACE_ONE
    method: str = "pld"
    assumptions: tuple[str, ...] = ()
    scope: str = ""

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0.0 and 0.0 <= self.delta <= 1.0):
            raise InvalidSpecError(
                f"epsilon {self.epsilon}, delta {self.delta}: expected epsilon >= 0 and delta in [0, 1]"
            )

    def __str__(self) -> str:
        scope = f" ({self.scope})" if self.scope else ""
        spent = "no privacy (ε is infinite)" if math.isinf(self.epsilon) else self.figures
        assumed = f"; assumes {'; '.join(self.assumptions)}" if self.assumptions else ""
        seen = (
            self.view.replace("aggregate of", "aggregate view of")
            if "of" in self.view
            else f"{self.view} view"
        )
        return f"{self.unit}{scope}, {seen}: {spent} for {self.neighbours} [{self.method}]{assumed}"

    @property
    def figures(self) -> str:
        """Epsilon and delta, rounded up to what is printed."""
        return f"ε = {_rounded_up(self.epsilon)}, δ = {_rounded_up(self.delta)}"


def _rounded_up(value: float, digits: int = 4) -> str:
    """The value with some digits, never below it."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    # A float such as 1e-5 is not that decimal number: what is a few units above it is meant to be it.
    exponent = math.floor(math.log10(abs(value))) - digits + 1
    scaled = value / 10.0**exponent
    return f"{math.ceil(scaled - 1e-9 * scaled) * 10.0**exponent:.{digits}g}"
