"""The experiments of the paper, each table and figure of it, and checks of its text."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from fl_privquant.plotting import color_of, import_pyplot
from simulations.studies._pages import ReadTable
from simulations.studies.paper import corrections, dpsgd, scalar, vector_error

PARTS = scalar.PARTS | vector_error.PARTS | dpsgd.PARTS | corrections.PARTS


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables: constants of the experiments."""
    return {
        "ours": "OPTM free (ours)",
        "budget": dpsgd.BUDGET,
        "delta": dpsgd.DELTA,
        "bins": scalar.EXAMPLE_BINS,
        "gamma": scalar.EXAMPLE_GAMMA,
        "parts": list(PARTS),
    }


# The mechanism whose color a line has; others have that of their own name.
_COLORED_AS = {
    "OPTM": "optm paper",
    "OPTM free (ours)": "optm",
    "one bit": "one_bit",
    "clip only": "none",
    dpsgd.BUDGET_LABEL: "grr",
    "RQM, bins of the appendix": "erm",
    "CLDP, whole vector": "cldp",
    "shared codebook (ours), whole vector": "shared_codebook",
    "PrivUnit, whole vector": "privunit",
    "vqSGD private, whole vector": "vqsgd_private",
}
_OUTPUTS = {3: "#0b5fa5", 6: "#d1495b"}
_PROCEDURES = {
    "logits": "the paper's: logit gradients quantized,\nfeatures used as they are",
    "whole": "whole gradients quantized\nat the same ε per coordinate",
}


def _color(label: str) -> str:
    return color_of(_COLORED_AS.get(label, label.lower()))


def _draw_scalar_error(read: ReadTable) -> Any:
    """The absolute error against the input at three ε: the paper's parameters and our best."""
    figure, axes = import_pyplot().subplots(1, 3, figsize=(12.5, 3.8), layout="constrained")
    handles = {}
    curves = read("figure-scalar-error").groupby("epsilon")
    for axis, (epsilon, at_epsilon) in zip(axes, curves, strict=True):
        lines = list(at_epsilon.groupby("mechanism", sort=False))
        # Tuned peers often coincide: thinner lines on top let the ones below be seen.
        for width, (label, line) in zip(np.linspace(4.0, 1.6, len(lines)), lines, strict=True):
            (handles[label],) = axis.plot(line["x"], line["error"], color=_color(label), linewidth=width)
        axis.set(xlim=(-1, 1), ylim=(0, None), xlabel="input x")
        axis.set_xticks([-1, -0.5, 0, 0.5, 1])
        axis.set_title(f"ε = {epsilon:g} per coordinate release, local view, replace-one", fontsize=10)
    axes[0].set_ylabel("expected absolute error")
    names = ["OPTM as in the paper" if label == "OPTM" else label for label in handles]
    figure.legend(handles.values(), names, loc="outside lower center", ncols=6)
    return figure


def _draw_distribution(read: ReadTable) -> Any:
    """Two output probabilities of both distributions; a gap in a line is a jump."""
    figure, axes = import_pyplot().subplots(1, 2, figsize=(10.5, 4.0), layout="constrained", sharey=True)
    distributions = read("figure-distribution").groupby("mechanism", sort=False)
    for axis, (label, pieces) in zip(axes, distributions, strict=True):
        gaps = np.full(len(pieces), np.nan)
        x = np.column_stack([pieces["start"], pieces["end"], gaps]).ravel()
        for output, color in _OUTPUTS.items():
            probability = np.column_stack([pieces[f"start_{output}"], pieces[f"end_{output}"], gaps]).ravel()
            axis.plot(x, probability, color=color, linewidth=2, label=f"p(x, {output})")
        for number, value in enumerate(scalar.EXAMPLE_BINS, start=1):
            if abs(value) < 1.0:
                axis.axvline(value, color="#bbbbbb", linewidth=0.8, zorder=0)
                axis.text(value, 1.01, f"$B_{number}$", transform=axis.get_xaxis_transform(), ha="center")
        epsilon, mae = pieces["certified_epsilon"].iloc[0], pieces["mae"].iloc[0]
        axis.set(xlim=(-1, 1), xlabel="input x")
        title = f"{label}: MAE {mae:.3f}\nε = {epsilon:.3f} per coordinate release, local view, replace-one"
        axis.set_title(title, fontsize=9, pad=18)
    axes[0].set_ylim(0, None)
    axes[0].set_ylabel("probability of the output")
    axes[0].legend(fontsize=9)
    return figure


def _draw_vector_error(setting: vector_error.Setting, read: ReadTable) -> Any:
    """Mean and standard deviation of the error against epsilon, a line for each mechanism."""
    figure, axes = import_pyplot().subplots(figsize=(7.2, 4.6), layout="constrained")
    lines = list(read(setting.table).groupby("mechanism", sort=False))
    for position, (label, own) in enumerate(lines):
        # Side by side, so that error bars of mechanisms at the same epsilon can be told apart.
        x = own["epsilon"] + 0.024 * (position - (len(lines) - 1) / 2.0)
        axes.errorbar(
            x,
            own["mean"],
            yerr=own["deviation"],
            label=label,
            linestyle="--" if own["whole_vector"].iloc[0] else "-",
            linewidth=2.4 if "ours" in label else 1.4,
            marker="osD^v<>P"[position % 8],
            markersize=5,
            capsize=2.5,
            color=_color(label),
        )
        axes.plot(x, own["reference"], "x", color="black", markersize=7, zorder=5)
    axes.plot([], [], "x", color="black", markersize=7, label="reference")
    axes.set_xticks(vector_error.EPSILONS)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("ε per coordinate release, local view, replace-one (dashed: a vector at d times this)")
    axes.set_ylabel("Euclidean error, mean ± std")
    axes.set_title(setting.title, fontsize=10)
    axes.legend(fontsize=8)
    return figure


def _draw_dpsgd(name: str, read: ReadTable) -> Any:
    """The running accuracy against batches: the paper's procedure, and whole gradients."""
    curves, paper_runs = read(f"{name}-curves"), dpsgd.PAPER_RUNS[name]
    figure, axes = import_pyplot().subplots(1, 2, figsize=(11.5, 4.6), layout="constrained", sharey=True)
    handles = {}
    for axis, (procedure, title) in zip(axes, _PROCEDURES.items(), strict=True):
        shown = curves[(curves["procedure"] == "logits") == (procedure == "logits")]
        for label, line in shown.groupby("mechanism", sort=False):
            color, style = _color(label), ":" if label == dpsgd.BUDGET_LABEL else "-"
            width = 2.0 if "ours" in label else 1.3
            x, mean = line["batches"], line["mean"]
            (handles[label],) = axis.plot(x, mean, style, color=color, linewidth=width)
            if label == "OPTM":
                scatter = line["deviation"] / math.sqrt(paper_runs)
                axis.fill_between(x, mean - scatter, mean + scatter, color=color, alpha=0.35, linewidth=0)
        axis.set(xlabel="batches", ylim=(0.0 if name == "dpsgd-mnist" else 0.35, 1.0))
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel("running training accuracy")
    runs = read(name)["runs"].iloc[0]
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=4,
        fontsize=9,
        title=f"means of {runs} runs; band: standard error of a mean of {paper_runs} runs, as many as "
        "the paper has; ε = 1 per coordinate release, local view, replace-one, unless said",
        title_fontsize=9,
    )
    return figure


FIGURES = {
    "scalar-error": _draw_scalar_error,
    "distribution": _draw_distribution,
    "vector-linf": partial(_draw_vector_error, vector_error.LINF),
    "vector-l2": partial(_draw_vector_error, vector_error.L2),
    "dpsgd-cancer": partial(_draw_dpsgd, "dpsgd-cancer"),
    "dpsgd-mnist": partial(_draw_dpsgd, "dpsgd-mnist"),
}
"""By name, the functions that draw the figures of the page."""
