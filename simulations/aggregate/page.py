"""The figure and the page of the study, from its tables alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from fl_privquant.cli.plots import colour_of, pyplot, save
from fl_privquant.statement import PrivacyStatement, Unit
from simulations.aggregate.settings import PEERS
from simulations.config import CENTRAL
from simulations.report.statistics import student_interval

__all__ = ["FIGURE", "PAGE", "TABLES", "draw", "page", "read"]

_HERE = Path(__file__).parent
TABLES = _HERE / "tables"
"""Where the committed tables are."""
FIGURE = _HERE / "figures" / "aggregate.png"
PAGE = _HERE / "README.md"

_LABELS = {
    CENTRAL: "central Gaussian (server trusted)",
    "optm_aggregate": "OPTM for the sum",
    "pbm": "Poisson binomial",
    "discrete_gaussian": "discrete Gaussian",
    "skellam": "Skellam",
}


def read(name: str) -> pd.DataFrame:
    """A committed table of the study."""
    return pd.read_csv(TABLES / f"{name}.csv")


def best_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """For each mechanism, number of clients and budget the bit-width with the least error."""
    keys = ["clients", "run_epsilon", "mechanism"]
    return errors.sort_values("mean_squared_error").groupby(keys, as_index=False).first()


def accuracies(training: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy over seeds with its 95 % interval (Student t), and mean errors."""
    rows = []
    for keys, runs in training.groupby(["task", "clients", "run_epsilon", "mechanism"]):
        centre, low, _, _ = student_interval(runs["accuracy"].to_numpy())
        rows.append(
            {
                **dict(zip(("task", "clients", "run_epsilon", "mechanism"), keys, strict=True)),
                "accuracy": centre,
                "half": centre - low,
                "mean_squared_error": runs["mean_squared_error"].mean(),
                "share_clipped": runs["share_clipped"].mean(),
            }
        )
    return pd.DataFrame(rows)


def draw(path: Path) -> Path:
    """Errors against the budget, and accuracies, beside the central Gaussian."""
    plot = pyplot()
    best, trained = best_errors(read("errors")), accuracies(read("training"))
    counts = sorted(best["clients"].unique())
    settings = list(trained.groupby(["task", "clients"]).groups)
    wide = max(len(counts) + 1, len(settings))
    figure, (upper, lower) = plot.subplots(2, wide, figsize=(3.7 * wide, 6.4), squeeze=False)
    for unused in (*upper[len(counts) :], *lower[len(settings) :]):
        unused.axis("off")
    for axis, clients in zip(upper, counts, strict=False):
        for name in (CENTRAL, *PEERS):
            rows = best[(best["clients"] == clients) & (best["mechanism"] == name)].sort_values("run_epsilon")
            axis.plot(
                rows["run_epsilon"],
                rows["ratio_to_central"],
                marker="o",
                ls="--" if name == CENTRAL else "-",
                color=colour_of(name),
                label=_LABELS[name],
            )
        axis.set(
            title=f"{clients} clients, exact",
            xlabel=_HEADING,
            xscale="log",
        )
        axis.set_xticks(
            sorted(best["run_epsilon"].unique()), [f"{e:g}" for e in sorted(best["run_epsilon"].unique())]
        )
        axis.minorticks_off()
    upper[0].set_ylabel("error of the mean update,\ntimes the central Gaussian's")
    upper[len(counts)].legend(*upper[0].get_legend_handles_labels(), loc="center left")
    for axis, (task, clients) in zip(lower, settings, strict=False):
        here = trained[(trained["task"] == task) & (trained["clients"] == clients)]
        epsilons = sorted(here["run_epsilon"].unique())
        width = 0.8 / (1 + len(PEERS))
        for place, name in enumerate((CENTRAL, *PEERS)):
            rows = here[here["mechanism"] == name].sort_values("run_epsilon")
            at = np.array([epsilons.index(each) for each in rows["run_epsilon"]]) + (place - 2) * width
            axis.bar(
                at, 100 * rows["accuracy"], width, yerr=100 * rows["half"], color=colour_of(name), capsize=2
            )
        axis.set_xticks(range(len(epsilons)), [f"{each:g}" for each in epsilons])
        lowest = 100 * float((here["accuracy"] - here["half"]).min())
        axis.set(
            title=f"{task}, {clients} clients",
            xlabel=_HEADING,
            ylim=(max(0.0, lowest - 3.0), None),
        )
    lower[0].set_ylabel("test accuracy, %")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
    return path


_HEADING = PrivacyStatement.heading(Unit.TOTAL, "aggregate")

_INTRODUCTION = """\
# Mechanisms for the secure sum, at an equal budget of the whole run

`python -m simulations.aggregate --mnist FOLDER` makes everything on this page from
[conf/aggregate.yaml](../../conf/aggregate.yaml); `--page` only draws and writes it.

The server sees secure sums over all clients of a round, for 50 rounds. A client's whole run costs the
same with all mechanisms: ε as stated, δ = 1e-5, one client's updates replaced by any others, aggregate
view of all clients (none corrupt, none lost). Updates are clipped to an L2 norm, rotated, and clipped to
three standard deviations of a coordinate. A central Gaussian, for which the server is trusted, counted
exactly, is the best that can be hoped for.

![errors and accuracies](figures/aggregate.png)

## Error of the mean update, exact

7850 coordinates: the squared error of a coordinate over that of the central Gaussian, for the bit-width
(1 to 3) of each mechanism with the least error; in brackets bits before masking / bits through secure
aggregation.
"""

_COUNTED = """
The tables of this page were made with a certificate that lets the adversary know which clients drew from the
blanket, the part that all laws share. Since then sums of bits are counted by the exact worst case of the
other clients ([two_row_sums.py](../../fl_privquant/two_row_sums.py)), and integer noise by normal pairs.
`python -m simulations.sum_errors` prints the errors of the designs that are made now, which are smaller; the
runs were not repeated yet.

In these tables ours is counted by a normal pair that dominates the sum (the proof is in
[secure_sum.py](../../fl_privquant/loss/secure_sum.py)), and so is the Poisson binomial mechanism, bit by bit:
its own theorem is for coordinates. Skellam and the discrete Gaussian are counted by their authors' Rényi
bounds, which lose in the conversion to (ε, δ). With three bits the Poisson binomial mechanism,
counted so, is as good as ours; with one and two ours has the smaller error ([errors.csv](tables/errors.csv)).

## Accuracy

Softmax regression, one full-batch gradient of each client a round, 2 bits, 5 seeds; clip and learning
rate were chosen with the central Gaussian alone. Mean and 95 % interval (Student t).
"""

_LIMITS = """
What this does not show: clients that collude or are lost (the design then counts on fewer, and its error
grows in proportion), data that differ from client to client, larger models, more local training.
"""


def page() -> str:
    """The page: what was asked, the tables, what they do not show."""
    errors, trained = best_errors(read("errors")), accuracies(read("training"))
    lines = [
        "| clients | " + _HEADING + " | " + " | ".join(_LABELS[name] for name in PEERS) + " |",
        "|---|---|" + "---|" * len(PEERS),
    ]
    compared = errors[errors["mechanism"].isin(PEERS)]
    for (clients, epsilon), rows in compared.groupby(["clients", "run_epsilon"]):
        cells = [_cell(rows, name, _error_cell) for name in PEERS]
        lines.append(f"| {clients} | {_budget(epsilon).epsilon_cell} | " + " | ".join(cells) + " |")
    names = (CENTRAL, *PEERS)
    accuracy = [
        "| task | clients | "
        + _HEADING
        + " | "
        + " | ".join(_LABELS[name] for name in names)
        + " | clipped coordinates, OPTM |",
        "|---|---|---|" + "---|" * (1 + len(names)),
    ]
    for (task, clients, epsilon), rows in trained.groupby(["task", "clients", "run_epsilon"]):
        cells = [_cell(rows, name, _accuracy_cell) for name in names]
        cells.append(_cell(rows, "optm_aggregate", lambda row: f"{100 * row['share_clipped']:.2g} %"))
        accuracy.append(
            f"| {task} | {clients} | {_budget(epsilon).epsilon_cell} | " + " | ".join(cells) + " |"
        )
    return "\n".join([_INTRODUCTION, *lines, _COUNTED, *accuracy, _LIMITS])


def _budget(epsilon: float) -> PrivacyStatement:
    return PrivacyStatement(epsilon, 1e-5, Unit.TOTAL, "aggregate")


def _cell(rows: pd.DataFrame, name: str, write: Callable[[pd.Series], str]) -> str:
    row = rows[rows["mechanism"] == name]
    return "N/A" if row.empty else write(row.iloc[0])


def _error_cell(row: pd.Series) -> str:
    return f"{row['ratio_to_central']:.3f} ({row['bits']:.0f} / {row['bits_in_sum']:.0f})"


def _accuracy_cell(row: pd.Series) -> str:
    return f"{100 * row['accuracy']:.2f} ± {100 * row['half']:.2f}"
