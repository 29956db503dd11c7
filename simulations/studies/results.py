"""The results of all studies on one page, ``docs/pages/results.md``, from the studies' tables."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pandas as pd

from fl_privquant.statement import PrivacyStatement, Unit
from simulations.studies._pages import (
    half_interval,
    mean_with_half,
    number,
    page_text,
    read_table,
    round_up,
    zero_out_epsilon,
)
from simulations.studies.beyond_trusted_server.study import COMPARISONS, MAX_TRIALS
from simulations.studies.headline import draw_headline

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "pages" / "results.md"
"""The page with the results of all studies."""

DELTA = 1e-5
"""The δ of the whole runs on the page."""


def write_results() -> Path:
    """Write the page of results, and README's figure; the path of the page."""
    draw_headline()
    PAGE.write_text(results_text(), encoding="utf-8")
    return PAGE


def results_text() -> str:
    """The page of results, as the tables of the studies give it."""
    numbers = {
        "published": published_rows(),
        "one_coordinate": coordinate_rows(),
        "vectors": vector_rows(),
        "sums": sum_rows(),
        "accuracies": accuracy_rows(),
        "turns": turn_rows(),
        "records": record_rows(),
        "markdown": to_markdown,
    }
    return page_text(HERE, numbers, partial(read_table, HERE), "results.md.jinja")


def record_rows() -> pd.DataFrame:
    """Accuracies with ten silos, by who adds the noise, for each ε."""
    tables = [read_table(HERE / "records", name) for name in ("ten-silos", "opacus")]
    rows = []
    for (way, _), runs in pd.concat(tables).groupby(["way", "epsilon"], sort=False):
        first = runs.iloc[0]
        cells = {
            f"ε, {relation}": round_up(first[key], 2)
            for relation, key in (("add-remove", "add_remove"), ("replace-one", "replace_one"))
        }
        accuracy = _mean_with_half(runs["accuracy"])
        size = f"{first['bytes'] / 1000:.1f}"
        rows.append(
            {"who adds the noise": way, **cells, "accuracy, %": accuracy, "kB": size, "seeds": len(runs)}
        )
    return pd.DataFrame(rows)


def to_markdown(table: pd.DataFrame) -> str:
    """A table of texts in Markdown."""
    lines = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def published_rows() -> pd.DataFrame:
    """The numbers that the paper prints, beside the same mechanism here and the best design here."""
    settings = {"table1": ("epsilon", "ours: free, best for MAE"), "table2": ("sigma", _CLIPPED)}
    rows = []
    for name, (key, best) in settings.items():
        table = read_table(HERE / "paper", name)
        ours = table[table["mechanism"] == best].set_index(key)["mae"]
        for row in table.dropna(subset=["printed"]).itertuples():
            value = getattr(row, key)
            setting = (
                f"{_release(value).figures}, uniform inputs"
                if key == "epsilon"
                else f"{_release(1.0).figures}, inputs N(0, {value:g}²)"
            )
            rows.append(
                {
                    "setting": setting,
                    "mechanism": str(row.mechanism).partition(",")[0],
                    "published MAE": f"{row.printed:g}",
                    "here": f"{row.mae:.3f}",
                    "best design here": f"{ours[value]:.3f}",
                    "part": f"`{name}`",
                }
            )
    return pd.DataFrame(rows)


_CLIPPED = "ours: free, best for MAE, clipped"


def coordinate_rows() -> pd.DataFrame:
    """Squared errors of one coordinate with four output values, at ε = 1."""
    table = read_table(HERE / "paper", "table1")
    table = table[table["epsilon"] == 1.0].sort_values("mse")
    return pd.DataFrame(
        {
            "mechanism": table["mechanism"].map(
                lambda name: f"{name}, as in the paper" if name.isupper() else name
            ),
            "MAE": table["mae"].map("{:.3f}".format),
            "MSE": table["mse"].map("{:.3f}".format),
        }
    )


def vector_rows() -> pd.DataFrame:
    """The error of the mean of 1000 unit vectors, and the bits of a message, in the local view."""
    table = read_table(HERE / "mean_estimation", "local-1000")
    cells = table.assign(
        cell=[f"{row.ratio_to_bound:.4g} ({row.bits:g})" for row in table.itertuples()],
        epsilon=table["round_epsilon"].map("ε = {:g}".format),
    )
    wide = cells.pivot_table("cell", ["mechanism", "round_delta"], "epsilon", aggfunc="first").reset_index()
    return wide.rename(columns={"round_delta": "δ"}).assign(δ=wide["round_delta"].map("{:g}".format))


def sum_rows() -> pd.DataFrame:
    """The least error of each mechanism in the secure sum, and the bits that travel."""
    rows = []
    for clients in (100, 1000):
        grid, others = (
            read_table(HERE / "sum_grid", f"sums-{name}") for name in (f"7850-{clients}", "others")
        )
        table = pd.concat([grid, others[others["num_clients"] == clients]])
        best = (
            table.sort_values("ratio_to_central")
            .groupby(["mechanism", "run_epsilon"], as_index=False)
            .first()
        )
        for mechanism, own in best.groupby("mechanism"):
            cells = {
                _total(row.run_epsilon).figures: f"{row.ratio_to_central:.4f} ({row.bits_in_sum:g})"
                for row in own.itertuples()
            }
            rows.append({"clients": clients, "mechanism": mechanism, **cells})
    return pd.DataFrame(rows).fillna("–")


def accuracy_rows() -> pd.DataFrame:
    """Accuracies on MNIST of arms that were tuned alike."""
    table = read_table(HERE / "tuned_headline", "tuned")
    rows = []
    for row in table.sort_values(["run_epsilon", "accuracy"], ascending=[False, False]).itertuples():
        finite = math.isfinite(row.run_epsilon)
        trusted = row.mechanism == "central_gaussian"
        rows.append(
            {
                "arm": row.arm,
                "mechanism": row.mechanism,
                "ε, replace-one": _total(row.run_epsilon).epsilon_number,
                "ε, zero-out": round_up(row.zero_out_epsilon, 2) if finite else number(math.inf),
                "accuracy, %": mean_with_half(row, "accuracy"),
                "points below a trusted server": mean_with_half(row, "lost_to_trusted")
                if finite and not trusted
                else "",
                "kB": f"{row.kilobytes:.1f}",
                "tuning": f"{row.trials} settings",
                "seeds": row.seeds,
            }
        )
    return pd.DataFrame(rows)


def turn_rows() -> pd.DataFrame:
    """Accuracies with 1000 clients in turns, of the average of models."""
    tables = {
        compared.name: read_table(HERE / "beyond_trusted_server", name)
        for name, compared in COMPARISONS.items()
    }
    rows = []
    for (name, epsilon, arm), runs in pd.concat(tables, names=["name"]).groupby(
        ["name", "epsilon", "arm"], sort=False
    ):
        private = math.isfinite(epsilon)
        rows.append(
            {
                "data and model": name,
                "arm": arm,
                "ε, replace-one": _total(epsilon).epsilon_number,
                "ε, zero-out": round_up(zero_out_epsilon(epsilon, DELTA), 2) if private else number(math.inf),
                "accuracy, %": _mean_with_half(runs["average_accuracy"]),
                "kB": f"{runs['kilobytes'].iloc[0]:.1f}",
                "tuning": f"up to {MAX_TRIALS} clips" if private else "none",
                "seeds": len(runs),
            }
        )
    return pd.DataFrame(rows)


def _mean_with_half(values: pd.Series) -> str:
    return f"{100.0 * values.mean():.1f} ± {round_up(half_interval(100.0 * values), 1)}"


def _release(epsilon: float) -> PrivacyStatement:
    return PrivacyStatement(epsilon, 0.0, Unit.COORDINATE)


def _total(epsilon: float) -> PrivacyStatement:
    return PrivacyStatement(epsilon, DELTA, Unit.TOTAL)
