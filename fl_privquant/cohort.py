"""How many clients of a round are corrupt, lost or honest: counted in one place, on the safe side.

A fraction of clients is rounded *up*: a tenth of 25 clients counts as 3 corrupt ones, because 2 would promise
more honest clients than the fraction allows. All code that plans, masks or accounts uses these functions.
"""

from __future__ import annotations

import math

from fl_privquant import _validation

# Fractions that leave hardly anybody need larger rounds than are of any use.
_MAX_TRIED = 100_000


def check_fraction(name: str, fraction: float) -> float:
    """The fraction of clients, if it is from 0 to below 1."""
    return _validation.check_in_interval(name, fraction, "[0, 1)")


def count_clients(fraction: float, num_clients: int) -> int:
    """How many clients a fraction of them is, rounded up.

    >>> count_clients(0.1, 25), count_clients(0.07, 100), count_clients(0.0, 25)
    (3, 7, 0)
    """
    # In floating point 0.07 * 100 is a little above 7, which must not become 8.
    return math.ceil(fraction * num_clients - 1e-9)


def count_corrupt_and_dropped(
    num_clients: int, corrupt_fraction: float, dropout_fraction: float
) -> tuple[int, int]:
    """How many clients of a round are corrupt, and how many drop out, at most.

    >>> count_corrupt_and_dropped(25, corrupt_fraction=0.1, dropout_fraction=0.0)
    (3, 0)
    """
    check_fraction("corrupt_fraction", corrupt_fraction)
    check_fraction("dropout_fraction", dropout_fraction)
    return count_clients(corrupt_fraction, num_clients), count_clients(dropout_fraction, num_clients)


def describe_assumption(corrupt: int, lost: int, num_clients: int) -> str:
    """What a figure assumes of a round's clients, in words.

    >>> describe_assumption(3, 0, 25), describe_assumption(0, 0, 25)
    ('if 3 of 25 clients are corrupt and 0 are lost', 'if nobody is corrupt or lost')
    """
    if not corrupt and not lost:
        return "if nobody is corrupt or lost"
    return f"if {corrupt} of {num_clients} clients are corrupt and {lost} are lost"


def min_clients(corrupt_fraction: float, dropout_fraction: float, num_honest: int = 2) -> int | None:
    """The smallest round of which the fractions leave ``num_honest`` honest clients; None if none does.

    >>> min_clients(0.1, 0.1), min_clients(0.0, 0.0), min_clients(0.5, 0.5)
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
            for number in range(num_honest, min(largest, _MAX_TRIED) + 1)
            if min_honest_clients(number, corrupt_fraction, dropout_fraction) >= num_honest
        ),
        None,
    )


def min_honest_clients(num_clients: int, corrupt_fraction: float, dropout_fraction: float) -> int:
    """The fewest honest clients whose codes are in a sum; 0 or fewer where the fractions leave none.

    >>> min_honest_clients(100, corrupt_fraction=0.1, dropout_fraction=0.05)
    85
    """
    return num_clients - sum(count_corrupt_and_dropped(num_clients, corrupt_fraction, dropout_fraction))
