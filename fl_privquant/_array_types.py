"""Types of numpy arrays that the sub-packages share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike as ArrayLike
from numpy.typing import NDArray

Array = NDArray[Any]
"""Numbers of any type."""

Floats = NDArray[np.float64]
"""Double precision."""

Ints = NDArray[np.int64]
"""Signed integers of 64 bits."""

Bits = NDArray[np.uint8]
"""Bits, one per entry."""

Words = NDArray[np.uint64]
"""Random or packed bits, 64 per entry."""


def smallest_code_type(bits: int) -> np.dtype[Any]:
    """The smallest unsigned integers that hold ``bits`` bits, up to 32."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)
