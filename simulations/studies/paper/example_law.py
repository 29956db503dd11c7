"""The paper's example of an output distribution: p(x, 3) and p(x, 6) of ERM on eight bins.

The paper prints neither bins nor gamma. Its text says that B_3 to B_6 lie inside [-1, 1]; uniform bins with
a margin of 0.75 do that, and gamma = 2 makes every jump visible. Beside it is shown the free design on the
same bins and at the same epsilon, whose law has no jumps.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import fl_privquant as pq
from fl_privquant.mechanisms.base import TableMechanism
from simulations.studies.paper.scalar import COORDINATE
from simulations.studies.study import Computed

BINS = tuple(np.linspace(-1.75, 1.75, 8).tolist())
GAMMA = 2.0


def mechanisms() -> dict[str, TableMechanism]:
    """ERM, and the design with the least absolute error on the same bins at the same epsilon."""
    erm = pq.design("erm", gamma=GAMMA, bins=BINS)
    free = pq.design("optm", epsilon=erm.epsilon, bins=BINS, objective="mae")
    return {"ERM": erm, "OPTM free (ours)": free}


def law_pieces() -> pd.DataFrame:
    """Every piece of both laws: its ends, and the probability of outputs 1 to 8 at either end."""
    parts = []
    for label, mechanism in mechanisms().items():
        law = mechanism.law
        ends = {
            "mechanism": label,
            "certified_epsilon": mechanism.epsilon,
            "mae": law.mae(),
            "mse": law.mse(),
        }
        frame = pd.DataFrame({**ends, "start": law.starts, "end": law.ends})
        for i in range(law.num_levels):
            frame[f"start_{i + 1}"] = law.start_rows[:, i]
            frame[f"end_{i + 1}"] = law.end_rows[:, i]
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


PARTS = (
    Computed(
        name="figure-law",
        title="Figure: an example of an output distribution (ERM, 8 bins)",
        function=lambda scale, tell: law_pieces(),
        note=COORDINATE,
        shown=(
            *("mechanism", "certified_epsilon", "mae"),
            *("start", "end", "start_3", "end_3", "start_6", "end_6"),
        ),
    ),
)
