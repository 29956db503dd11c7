"""The paper's example of an output distribution: p(x, 3) and p(x, 6) of ERM on eight bins.

The paper prints neither bins nor gamma. Its text says that B_3 to B_6 lie inside [-1, 1]; uniform bins with
a margin of 0.75 do that, and gamma = 2 makes every jump visible. Beside it the free design on the same bins
and at the same epsilon, whose law has no jumps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import fl_privquant as pq
from fl_privquant.cli.plots import pyplot
from fl_privquant.mechanisms.base import TableMechanism
from simulations.studies.paper.scalar import COORDINATE
from simulations.studies.study import Computed, Figure, ReadTable

BINS = tuple(np.linspace(-1.75, 1.75, 8).tolist())
GAMMA = 2.0
_NAME = "figure-law"
_DRAWN = {3: "#0b5fa5", 6: "#d1495b"}


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


def draw(read: ReadTable) -> Any:
    """Draw two output probabilities of both laws; a gap in a line is a jump."""
    frame = read(_NAME)
    figure, axes = pyplot().subplots(1, 2, figsize=(10.5, 4.0), layout="constrained", sharey=True)
    for axis, (label, pieces) in zip(axes, frame.groupby("mechanism", sort=False), strict=True):
        gaps = np.full(len(pieces), np.nan)
        x = np.column_stack([pieces["start"], pieces["end"], gaps]).ravel()
        for output, colour in _DRAWN.items():
            probability = np.column_stack([pieces[f"start_{output}"], pieces[f"end_{output}"], gaps]).ravel()
            axis.plot(x, probability, color=colour, linewidth=2, label=f"p(x, {output})")
        for number, value in enumerate(BINS, start=1):
            if abs(value) < 1.0:
                axis.axvline(value, color="#bbbbbb", linewidth=0.8, zorder=0)
                axis.text(value, 1.01, f"$B_{number}$", transform=axis.get_xaxis_transform(), ha="center")
        epsilon, mae = pieces["certified_epsilon"].iloc[0], pieces["mae"].iloc[0]
        axis.set(xlim=(-1, 1), xlabel="input x")
        axis.set_title(
            f"{label}: ε = {epsilon:.3f} per coordinate release, local view; MAE {mae:.3f}",
            fontsize=9,
            pad=18,
        )
    axes[0].set_ylim(0, None)
    axes[0].set_ylabel("probability of the output")
    axes[0].legend(fontsize=9)
    return figure


LAW = Computed(
    name=_NAME,
    title="Figure: an example of an output distribution (ERM, 8 bins)",
    function=lambda scale, tell: law_pieces(),
    note=COORDINATE,
    shown=("mechanism", "certified_epsilon", "mae", "start", "end", "start_3", "end_3", "start_6", "end_6"),
)
FIGURE = Figure("law", draw, (_NAME,))
