"""Types of numpy arrays that the rooms share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Double precision."""

Ints = NDArray[np.int64]
"""Signed integers of 64 bits."""

Bits = NDArray[np.uint8]
"""Bits, one in each."""

Words = NDArray[np.uint64]
"""Random or packed bits, 64 in each."""
