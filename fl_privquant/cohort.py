"""How many clients of a round are corrupt, lost or honest: counted in one place, on the safe side.

A fraction of clients is rounded *up*: a tenth of 25 clients counts as 3 corrupt ones, because 2 would promise
more honest clients than the fraction allows. All code that plans, masks or accounts uses these functions.
"""

from __future__ import annotations

import math

from fl_privquant import checks

# Fractions that leave hardly anybody need larger rounds than are of any use.
_MOST_TRIED = 100_000


def checked_fraction(name: str, fraction: float) -> float:
    """The fraction of clients, if it is from 0 to below 1."""
    return checks.inside(name, fraction, "[0, 1)")


def count_of(fraction: float, num_clients: int) -> int:
    """How many clients a fraction of them is, rounded up.

    >>> count_of(0.1, 25), count_of(0.07, 100), count_of(0.0, 25)
    (3, 7, 0)
    """
    # In floating point 0.07 * 100 is a little above 7, which must not become 8.
    return math.ceil(fraction * num_clients - 1e-9)


def corrupt_and_lost(num_clients: int, corrupt_fraction: float, dropout_fraction: float) -> tuple[int, int]:
    """How many clients of a round are corrupt, and how many drop out, at most.

    >>> corrupt_and_lost(25, corrupt_fraction=0.1, dropout_fraction=0.0)
    (3, 0)
    """
    checked_fraction("corrupt_fraction", corrupt_fraction)
    checked_fraction("dropout_fraction", dropout_fraction)
    return count_of(corrupt_fraction, num_clients), count_of(dropout_fraction, num_clients)


def assumption(corrupt: int, lost: int, num_clients: int) -> str:
    """What a figure assumes of a round's clients, in words.

    >>> assumption(3, 0, 25), assumption(0, 0, 25)
    ('if 3 of 25 clients are corrupt and 0 are lost', 'if nobody is corrupt or lost')
    """
    if not corrupt and not lost:
        return "if nobody is corrupt or lost"
    return f"if {corrupt} of {num_clients} clients are corrupt and {lost} are lost"


def fewest_clients(corrupt_fraction: float, dropout_fraction: float, num_honest: int = 2) -> int | None:
    """The smallest round of which the fractions leave ``num_honest`` honest clients; None if none does.

    >>> fewest_clients(0.1, 0.1), fewest_clients(0.0, 0.0), fewest_clients(0.5, 0.5)
    (4, 2, None)
    """
    left = 1.0 - corrupt_fraction - dropout_fraction
    if left <= 0.0:
        return None
    # Rounding up takes less than one client for each of the fractions.
    largest = math.ceil((num_honest + 2) / left)
    return next(
        (
            number
            for number in range(num_honest, min(largest, _MOST_TRIED) + 1)
            if honest_clients(number, corrupt_fraction, dropout_fraction) >= num_honest
        ),
        None,
    )


def honest_clients(num_clients: int, corrupt_fraction: float, dropout_fraction: float) -> int:
    """The fewest honest clients whose codes are in a sum; 0 or fewer where the fractions leave none.

    >>> honest_clients(100, corrupt_fraction=0.1, dropout_fraction=0.05)
    85
    """
    return num_clients - sum(corrupt_and_lost(num_clients, corrupt_fraction, dropout_fraction))
