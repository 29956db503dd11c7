"""The command ``clip``: a pilot of a Flower app, which measures the norms of its updates."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_privquant.cli.layout import Column, output_console, print_sentence, print_table
from fl_privquant.errors import pluralize
from fl_privquant.flower.simulation.pilot import run_app_pilot

_Round = tuple[int, NDArray[np.float64]]

_QUANTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9, "largest": 1.0}


def _quantile_cell(share: float, row: _Round) -> str:
    return f"{np.quantile(row[1], share):.3g}"


def measure_and_print(folder: Path, clients: int, rounds: int, run_config: str, node_config: str) -> None:
    """Train an app's clients without protection, and print the norms of their updates and a usual clip."""
    console = output_console()
    trained = f"{pluralize(clients, 'simulated client')} of the app for {pluralize(rounds, 'round')}"
    print_sentence(
        console,
        f"This trains {trained} WITHOUT PROTECTION: nothing is encoded, and no ε counts it. Use it with "
        "public data, or with your own.",
    )
    pilot = run_app_pilot(folder, clients, rounds, run_config, node_config)
    columns = [Column("round", lambda row: str(row[0]))]
    for heading, share in _QUANTILES.items():
        columns.append(Column(heading, partial(_quantile_cell, share)))
    title = f"L2 norms of updates ({pluralize(pilot.dimension, 'coordinate')}), quantiles over clients"
    print_table(console, columns, enumerate(pilot.norms, 1), title)
    print_sentence(
        console,
        f"The median of all is {pilot.l2_clip:g}. Plan with it: target.plan(dimension={pilot.dimension}, "
        f"l2_clip={pilot.l2_clip:g}). A smaller clip cuts more updates, and a larger one adds noise in "
        "proportion.",
    )
