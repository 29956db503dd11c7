"""What runs of simulations leave in their directories, as tests read it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory

__all__ = ["provenance_of", "rows_of"]


def rows_of(config: RunConfig) -> pd.DataFrame:
    """The rows of a finished run, the one before the first round included."""
    return pd.read_parquet(RunDirectory.of(config).path / "rounds.parquet")


def provenance_of(config: RunConfig) -> dict[str, Any]:
    """What a finished run depends on, and its statements."""
    provenance: dict[str, Any] = json.loads((RunDirectory.of(config).path / "provenance.json").read_text())
    return provenance
