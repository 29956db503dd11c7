"""Loads compiled loops where it is imported: numba takes a third of a second for the first one in a process.

For a process that forks others, which then have them: see :mod:`tests.preloaded`.
"""

from __future__ import annotations

import numpy as np

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.encoding import Encoding

for dtype in (np.float32, np.float64):
    update = {"weight": np.full(300, 0.05, dtype)}
    for rotate in (False, True):
        coder = UpdateCodec(
            Layout.of(update), Encoding(pq.design("one_bit", epsilon=1.0), 0.1, rotate=rotate), 0
        )
        coder.decode(coder.encode(update, pq.RandomStream.seeded(0)))
