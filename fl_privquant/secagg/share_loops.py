"""The compiled loop of Shamir's sharing.

Kept apart so that numba is imported when the first secret is shared, not with the package.
"""

from __future__ import annotations

import numpy as np

from fl_privquant.array_types import Words
from fl_privquant.compiled import compiled

__all__ = ["evaluate_polynomials"]

_BITS = np.uint64(31)
_PRIME = np.uint64((1 << 31) - 1)


@compiled
def evaluate_polynomials(coefficients: Words, values: Words) -> None:
    """Write the values of polynomials at 1, 2, ..., of which there are fewer than 2^16, by Horner's rule.

    One reduction a step is enough: a value under 2^32 times a point stays under 2^48.
    """
    degree = coefficients.shape[0] - 1
    for i in range(values.shape[0]):
        point, row = np.uint64(i + 1), values[i]
        row[:] = coefficients[degree]
        for k in range(degree - 1, -1, -1):
            for j in range(row.size):
                value = row[j] * point + coefficients[k, j]
                row[j] = (value & _PRIME) + (value >> _BITS)
        for j in range(row.size):
            row[j] %= _PRIME
