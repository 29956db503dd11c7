"""How many clients of a round are corrupt, lost or honest: counted in one place, on the safe side.

A fraction of clients is rounded *up*: of 25 clients a tenth corrupt are 3, because 2 would promise more
honest clients than the fraction allows. Everything that plans, masks or accounts counts by these functions.
"""

from __future__ import annotations

import math

from fl_privquant import checks


def checked_fraction(name: str, fraction: float) -> float:
    """The fraction of clients, if it is from 0 to below 1."""
    return checks.inside(name, fraction, "[0, 1)")


def count_of(fraction: float, num_clients: int) -> int:
    """How many clients a fraction of them is, rounded up.

    >>> count_of(0.1, 25), count_of(0.07, 100), count_of(0.0, 25)
    (3, 7, 0)
    """
    # 0.07 * 100 is a little above 7.
    return math.ceil(fraction * num_clients - 1e-9)


def honest_clients(num_clients: int, corrupt_fraction: float, dropout_fraction: float) -> int:
    """Honest clients whose codes are in a sum, at the least; 0 or fewer where the fractions leave none.

    >>> honest_clients(100, corrupt_fraction=0.1, dropout_fraction=0.05)
    85
    """
    return num_clients - count_of(corrupt_fraction, num_clients) - count_of(dropout_fraction, num_clients)
