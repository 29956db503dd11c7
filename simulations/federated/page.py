"""The page of the studies: its words are in ``page.md.jinja``, its numbers in the committed tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.errors import PrivQuantError
from simulations.config import CENTRAL
from simulations.federated.collect import read_table, table_or_none
from simulations.federated.studies import STUDIES, study

__all__ = ["ALLOWED_LOSS", "PAGE", "chosen_clip", "page"]

PAGE = Path(__file__).parent / "README.md"
"""The committed page."""

ALLOWED_LOSS = 0.01
"""What a clip may cost in accuracy, against the widest that was tried."""

Tables = Callable[[str], pd.DataFrame]


def page(tables: Tables = read_table) -> str:
    """The page as Markdown; studies without a table are named as such."""
    missing = [each.name for each in STUDIES if table_or_none(tables, each.name) is None]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        # Markdown, written by us from numbers of ours.
        autoescape=False,
    )
    return environment.get_template("page.md.jinja").render(
        missing=missing,
        clips=_clips(tables),
        mechanisms=_mechanisms(tables),
        epsilons=_epsilons(tables),
        bits=list(tables("bits-mnist").sort_values("bits_per_coordinate").itertuples()),
        settings=_settings(tables),
        secagg=_secagg(tables),
        budget=_budget(tables),
        accuracy=_accuracy,
        command=lambda name: f"`{study(name).command}`",
    )


def chosen_clip(table: pd.DataFrame, column: str) -> float:
    """The smallest clip that loses at most :data:`ALLOWED_LOSS` of accuracy against the widest."""
    ordered = table.sort_values(column)
    least = ordered.accuracy.iloc[-1] - ALLOWED_LOSS
    return float(ordered[ordered.accuracy >= least][column].iloc[0])


def _clips(tables: Tables) -> list[tuple[str, str]]:
    """For each clip what it is for, and the accuracies at each value; the chosen one is bold."""
    found = []
    for name, column, label in (
        ("clip-digits", "clip", "digits, softmax: coordinate clip"),
        ("clip-mnist", "clip", "MNIST, softmax: coordinate clip"),
        ("clip-digits-cnn", "clip", "digits, CNN: coordinate clip"),
        ("clip-mnist-cnn", "clip", "MNIST, CNN: coordinate clip"),
        ("norm-digits", "l2_clip", "digits, softmax: L2 clip"),
        ("norm-mnist", "l2_clip", "MNIST, softmax: L2 clip"),
    ):
        table = table_or_none(tables, name)
        if table is None:
            continue
        table = table.sort_values(column)
        chosen = chosen_clip(table, column)
        pairs = zip(table[column], table.accuracy, strict=True)
        texts = [(f"{value:g} ({accuracy:.3f})", value == chosen) for value, accuracy in pairs]
        found.append((label, ", ".join(f"**{text}**" if bold else text for text, bold in texts)))
    return found


def _mechanisms(tables: Tables) -> dict[str, Any]:
    table = tables("mechanisms-digits")
    # Those whose error is all noise: a bias does not average away.
    private = table[np.isfinite(table.epsilon) & table.noise_error.notna()]
    worst, best = private.loc[private.noise_error.idxmax()], private.loc[private.noise_error.idxmin()]
    optm = _one(table, mechanism="optm")
    vectors = tables("vectors-digits")
    cldp = _one(vectors, mechanism="cldp_l2")
    return {
        "cldp": cldp,
        "cldp_total": _total(cldp, "local").brief,
        "vqsgd": _one(vectors, mechanism="vqsgd"),
        "vqsgd_private": _one(vectors, mechanism="vqsgd_private"),
        "none": _one(table, mechanism="none"),
        "optm": optm,
        "biased": _one(table, mechanism="biased"),
        "stochastic": _one(table, mechanism="stochastic"),
        "worst": worst,
        "best": best,
        "ratio": worst.noise_error / best.noise_error,
        "points": 100.0 * (private.accuracy.max() - private.accuracy.min()),
        "total": _total(optm, "local").brief,
    }


def _epsilons(tables: Tables) -> dict[str, Any]:
    table = tables("epsilon-mnist")
    rows = []
    for epsilon in sorted(set(table[np.isfinite(table.epsilon)].epsilon.round(3))):
        here = table[np.isclose(table.epsilon, epsilon, rtol=1e-3)]
        optm = _one(here, mechanism="optm")
        accuracies = [_accuracy(_one(here, mechanism=name)) for name in ("optm", "one_bit", "pbm")]
        totals = [_total(optm, view).epsilon_cell for view in ("local", "aggregate")]
        rows.append([PrivacyStatement(epsilon, 0.0, Unit.COORDINATE).epsilon_cell, *accuracies, *totals])
    return {"none": _one(table, mechanism="none"), "rows": rows}


def _settings(tables: Tables) -> list[dict[str, Any]]:
    found = []
    for label, name, epsilon in (
        ("digits, softmax, IID", "mechanisms-digits", 1.0),
        ("digits, softmax, Dirichlet 0.3", "partition-digits", 1.0),
        ("digits, CNN, IID", "cnn-digits", 1.0),
        ("MNIST, softmax, IID", "epsilon-mnist", 2.0),
        ("MNIST, softmax, Dirichlet 0.3", "partition-mnist", 2.0),
        ("MNIST, CNN, IID", "cnn-mnist", 2.0),
    ):
        table = table_or_none(tables, name)
        if table is None:
            continue
        none = _one(table, mechanism="none")
        optm = _one(table[np.isclose(table.epsilon, epsilon, rtol=1e-3)], mechanism="optm")
        lost = 100.0 * (none.accuracy - optm.accuracy)
        found.append({"label": label, "wanted": epsilon, "none": none, "optm": optm, "lost": lost})
    return found


def _secagg(tables: Tables) -> dict[str, Any]:
    table = tables("secagg-mnist")
    off, on = (_one(table, secure_aggregation=enabled) for enabled in (False, True))
    if off.model_sha256 != on.model_sha256 or off.accuracy != on.accuracy:
        raise PrivQuantError(
            f"secure aggregation changed the model: {off.model_sha256} without, {on.model_sha256} with"
        )
    totals = [_total(off, "local").epsilon_cell, _total(on, "aggregate").epsilon_cell]
    return {"off": off, "on": on, "totals": totals}


def _budget(tables: Tables) -> list[dict[str, Any]]:
    found = []
    for task, label in (("digits", "digits"), ("mnist", "MNIST")):
        table = tables(f"equal-budget-{task}")
        for wanted in sorted(set(table.run_epsilon)):
            here = table[table.run_epsilon == wanted].sort_values("mean_squared_error")
            central = _one(here, mechanism=CENTRAL)
            for row in here.itertuples():
                found.append(
                    {
                        "task": label,
                        "wanted": PrivacyStatement(wanted, 0.0, Unit.TOTAL).epsilon_cell,
                        "row": row,
                        "stated": _total(row, "aggregate").epsilon_cell,
                        "ratio": row.mean_squared_error / central.mean_squared_error,  # type: ignore[operator]
                        "trusted": row.mechanism == CENTRAL,
                    }
                )
    return found


def _total(row: Any, view: str) -> PrivacyStatement:
    """The statement of a client's total in a row of a table."""
    seen = "local" if view == "local" else str(row.view)
    epsilon = float(getattr(row, f"epsilon_total_{view}"))
    return PrivacyStatement(epsilon, float(row.delta_total), Unit.TOTAL, seen)


def _one(table: pd.DataFrame, **where: Any) -> Any:
    found = table
    for column, value in where.items():
        found = found[found[column] == value]
    if len(found) != 1:
        raise PrivQuantError(f"{len(found)} rows with {where}, expected 1; run the study again")
    return next(found.itertuples())


def _accuracy(row: Any) -> str:
    """The mean, and half of its 95 % interval."""
    half = 0.5 * (row.accuracy_high - row.accuracy_low)
    return f"{row.accuracy:.3f}" if np.isnan(half) else f"{row.accuracy:.3f} ± {half:.3f}"
