"""The paper's example of an output distribution: p(x, 3) and p(x, 6) of ERM on eight bins.

The paper prints neither bins nor gamma. Its text says that B_3 to B_6 lie inside [-1, 1]; uniform bins with
a margin of 0.75 do that, and gamma = 2 makes every jump visible. Beside it is shown the free design on the
same bins and at the same epsilon, whose distribution has no jumps.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl_privquant.mechanisms.base import TableMechanism
from simulations.studies._pages import Compute
from simulations.studies.paper.scalar import design_table

BINS = tuple(np.linspace(-1.75, 1.75, 8).tolist())
GAMMA = 2.0


def mechanisms() -> dict[str, TableMechanism]:
    """ERM, and the design with the least absolute error on the same bins at the same epsilon."""
    erm = design_table("erm", gamma=GAMMA, bins=BINS)
    free = design_table("optm", epsilon=erm.epsilon, bins=BINS, objective="mae")
    return {"ERM": erm, "OPTM free (ours)": free}


def distribution_pieces() -> pd.DataFrame:
    """Every piece of both distributions: its ends, and the probability of outputs 1 to 8 at either end."""
    parts = []
    for label, mechanism in mechanisms().items():
        distribution = mechanism.distribution
        ends = {
            "mechanism": label,
            "certified_epsilon": mechanism.epsilon,
            "mae": distribution.mae(),
            "mse": distribution.mse(),
        }
        frame = pd.DataFrame({**ends, "start": distribution.starts, "end": distribution.ends})
        for i in range(distribution.num_levels):
            frame[f"start_{i + 1}"] = distribution.start_rows[:, i]
            frame[f"end_{i + 1}"] = distribution.end_rows[:, i]
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


PARTS: dict[str, Compute] = {"figure-distribution": distribution_pieces}
"""By name, the function that computes the table."""
