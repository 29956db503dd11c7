"""Which runs of a study can be compared with each other, and by which measure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from simulations.config import CENTRAL
from simulations.report.study_data import Study
from simulations.report.verdict import (
    ACCURACY,
    ERROR,
    HANDSHAKE,
    KILOBYTES,
    LOSS,
    NAME,
    TOTAL,
    Comparison,
    verdict,
)
from simulations.report.words import bits_text

_TRUSTED = "a trusted server"


def verdict_of(study: Study, settings: Collection[str] | None = None) -> list[str]:
    """The findings of a study, or of some of its settings, as sentences; none where no run has finished."""
    comparisons = comparisons_of(study)
    if settings is not None:
        comparisons = tuple(
            comparison for comparison in comparisons if comparison.runs["setting"].isin(settings).all()
        )
    return verdict(comparisons)


@lru_cache(maxsize=1)
def comparisons_of(study: Study) -> tuple[Comparison, ...]:
    """The comparisons of a study, by setting and then by budget.

    Runs with a budget for the whole run are compared by accuracy with a trusted server; runs at an epsilon
    for one coordinate and one release by the error of the mean update. Runs without privacy are compared with
    each other if a setting has no private runs.
    """
    if not study.runs:
        return ()
    runs = _tidy(study)
    comparisons: list[Comparison] = []
    for setting in study.settings:
        here = runs[runs["setting"] == setting]
        private = here[here["private"]]
        where = f" ({setting})" if len(study.settings) > 1 and not study.panels else ""
        if private.empty:
            comparisons += _by_quality(here, f"Without privacy{where}", None)
        for (epsilon, delta), group in private[private["whole_run"]].groupby(["budget", "delta"]):
            budget = f"At {PrivacyStatement(epsilon, delta, Unit.TOTAL).figures} for a client's whole run"
            comparisons += _by_quality(group, f"{budget}{where}", CENTRAL)
        for epsilon, group in private[~private["whole_run"]].groupby("budget"):
            requested = PrivacyStatement(epsilon, 0.0, Unit.COORDINATE)
            comparisons.append(Comparison(f"{_release_words(group, requested)}{where}", ERROR, group))
    return tuple(comparisons)


def _by_quality(runs: pd.DataFrame, budget: str, baseline: str | None) -> Iterator[Comparison]:
    measure = ACCURACY if runs[ACCURACY].notna().any() else LOSS
    yield Comparison(budget, measure, runs, baseline, _TRUSTED)


def _release_words(runs: pd.DataFrame, asked: PrivacyStatement) -> str:
    units = set(runs["unit"])
    encoded = "what each mechanism encodes at once"
    if units == {Unit.COORDINATE}:
        encoded = "one coordinate and one release"
    elif units == {Unit.ROUND}:
        encoded = "one update in one round"
    return f"At ε = {asked.epsilon_cell} for {encoded}"


def _tidy(study: Study) -> pd.DataFrame:
    """One row per run, with its budget and its measure."""
    rows: list[dict[str, Any]] = []
    by_name = {run.name: run for run in study.runs}
    several_bits = study.summary.groupby(["setting", "series"])["bits"].nunique().gt(1)
    for row in study.summary.to_dict("records"):
        run, config = by_name[row["run"]], study.configs[row["run"]]
        target = config.get("privacy.epsilon")
        with_bits = row["series"]
        if math.isfinite(row["bits"]):
            with_bits = f"{row['series']} with {bits_text(row['bits'])}"
        has_bits = several_bits[row["setting"], row["series"]]
        releases = max(1, row["round"]) * row["num_clients"]
        rows.append(
            {
                "setting": row["setting"],
                "study_series": row["series"],
                "series": with_bits if has_bits else row["series"],
                NAME: with_bits,
                "seed": int(row["seed"]),
                "whole_run": target is not None,
                "budget": target if target is not None else row["epsilon"],
                "delta": config.get("privacy.delta", 0.0),
                "private": target is not None or math.isfinite(row["epsilon"]),
                "unit": run.certified.unit,
                ACCURACY: row["accuracy"],
                LOSS: row["loss"],
                ERROR: row["mean_squared_error_rounds"],
                KILOBYTES: row["bytes_up"] / releases / 1e3,
                HANDSHAKE: row["bytes_handshake"] / releases / 1e3,
                TOTAL: row["epsilon_client_total"],
            }
        )
    return pd.DataFrame(rows)
