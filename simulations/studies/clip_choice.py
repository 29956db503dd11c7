"""How the clips of the studies are chosen: without any private run, by one rule."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from simulations.studies.page import table_or_none
from simulations.studies.study import ReadTable

ALLOWED_LOSS = 0.01
"""What a clip may cost in accuracy, against the widest that was tried."""


def chosen_clip(table: pd.DataFrame, column: str) -> float:
    """The smallest clip that loses at most :data:`ALLOWED_LOSS` of accuracy against the widest."""
    ordered = table.sort_values(column)
    least = ordered.accuracy.iloc[-1] - ALLOWED_LOSS
    return float(ordered[ordered.accuracy >= least][column].iloc[0])


def clip_texts(read: ReadTable, column: str, labels: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The label of each table that is there, and the accuracy at each clip; the chosen one is bold.

    ``labels`` are names of tables with their labels, ``column`` is ``clip`` or ``l2_clip``.
    """
    rows = []
    for name, label in labels:
        table = table_or_none(read, name)
        if table is None:
            continue
        table = table.sort_values(column)
        chosen = chosen_clip(table, column)
        pairs = zip(table[column], table.accuracy, strict=True)
        texts = [(f"{value:g} ({accuracy:.3f})", value == chosen) for value, accuracy in pairs]
        rows.append((label, ", ".join(f"**{text}**" if bold else text for text, bold in texts)))
    return rows
