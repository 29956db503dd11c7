"""The paper's scalar experiments: tables 1 and 2, and the figure of the error against the input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from scipy import stats

import fl_privquant as pq
from fl_privquant.codebook import Codebook
from fl_privquant.density import Density, as_density
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.plots import draw_error, pyplot, save
from fl_privquant.table import CertifiedTable
from simulations.paper.authors import design_as_authors

GRID = np.linspace(-1.0, 1.0, 51)
"""The inputs over which the paper averages: its tables are means over this grid, not integrals."""

OPTM_BINS = {
    0.5: (-6.0, -0.4, 0.4, 6.0),
    1.0: (-3.0, -0.5, 0.5, 3.0),
    1.5: (-3.0, -0.5, 0.5, 3.0),
}
RQM = {1.0: {"margin": 1.7, "keep": 0.22}, 1.5: {"margin": 1.6, "keep": 0.498}}
ERM = {
    1.0: {"gamma": 0.026, "bins": (-5.1, -0.1, 0.1, 5.1)},
    1.5: {"gamma": 0.043, "bins": (-2.7, -0.4, 0.4, 2.7)},
}
PRINTED_1 = {
    "optm independent": {0.5: 3.904, 1.0: 1.882, 1.5: 1.179},
    "mvu": {0.5: 3.959, 1.0: 1.930, 1.5: 1.254},
    "rqm": {1.0: 1.993, 1.5: 1.310},
    "erm": {1.0: 2.216, 1.5: 1.304},
}
PRINTED_2 = {
    "optm independent": {0.1: 1.778, 0.2: 1.836, 0.3: 1.972},
    "rqm": {0.1: 2.028, 0.2: 2.010, 0.3: 2.000},
}
GAUSSIAN_BINS = {0.1: (-4.0, 0.2, 0.6, 4.0), 0.2: (-4.0, 0.2, 0.6, 4.0), 0.3: (-4.0, -0.2, 0.6, 4.0)}


@dataclass(frozen=True)
class Row:
    """A mechanism at one setting: what the paper prints for it, and what it does exactly."""

    setting: str
    label: str
    mechanism: TableMechanism | None
    printed: float | None = None
    density: Density | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """The row as text."""
        printed = "N/A" if self.printed is None and self.note != "ours" else f"{self.printed or 0:.3f}"
        printed = "" if self.note == "ours" else printed
        if self.mechanism is None:
            return [self.setting, self.label, printed, *[""] * 3, "", self.note]
        law = self.mechanism.law
        on_grid = f"{law.error_at(GRID).mean():.4f}" if self.density is None else ""
        return [
            self.setting,
            self.label,
            printed,
            on_grid,
            f"{law.mae(self.density):.4f}",
            f"{law.mse(self.density):.4f}",
            f"{self.mechanism.epsilon:.6f}",
            "" if self.note == "ours" else self.note,
        ]


def table1() -> list[Row]:
    """Rows of table 1: uniform inputs, four levels, the paper's parameters and ours."""
    rows = []
    for epsilon, bins in OPTM_BINS.items():
        setting = f"ε = {epsilon:g}"
        common = {"epsilon": epsilon, "objective": "mae", "bins": bins}
        paper = pq.design("optm", family="independent", **common)
        rows.append(Row(setting, "optm independent", paper, PRINTED_1["optm independent"][epsilon]))
        for name, given in (("rqm", RQM.get(epsilon)), ("erm", ERM.get(epsilon))):
            mechanism = pq.design(name, **given) if given else None
            note = "" if given else "no parameters printed"
            rows.append(Row(setting, name, mechanism, PRINTED_1[name].get(epsilon), note=note))
        for family in ("paired", "free"):
            label = f"optm {family}, paper's bins"
            rows.append(Row(setting, label, pq.design("optm", family=family, **common), note="ours"))
        rows.append(Row(setting, "rqm, tuned", _tuned("rqm", epsilon), note="ours"))
        rows.append(Row(setting, "erm, tuned", _tuned("erm", epsilon), note="ours"))
        for objective in ("mae", "mse"):
            best = pq.design("optm", epsilon=epsilon, levels=4, objective=objective, lattice=False)
            rows.append(Row(setting, f"optm free, best for {objective}", best, note="ours"))
    return rows


def table2() -> list[Row]:
    """Rows of table 2: inputs from N(0.5, σ), four levels, ε = 1."""
    rows = []
    for sigma, bins in GAUSSIAN_BINS.items():
        clipped = as_density(stats.norm(0.5, sigma))
        truncated = as_density(stats.truncnorm(-1.5 / sigma, 0.5 / sigma, 0.5, sigma))
        setting = f"σ = {sigma:g}"
        book = Codebook.from_values(bins)
        law = design_as_authors(book.values, 1.0 - 1e-7, clipped)
        authors = TableMechanism("optm", CertifiedTable.from_law(law, book, 1.0), 1.0)
        printed = PRINTED_2["optm independent"][sigma]
        rows.append(Row(setting, "optm, the authors' program", authors, printed, clipped, "clipped"))
        rows.append(
            Row(setting, "rqm", pq.design("rqm", **RQM[1.0]), PRINTED_2["rqm"][sigma], clipped, "clipped")
        )
        common = {"epsilon": 1.0, "objective": "mae"}
        for label, density, shape in (("clipped", clipped, "clipped"), ("truncated", truncated, "truncated")):
            for family in ("independent", "free"):
                ours = pq.design("optm", family=family, bins=bins, density=density, **common)
                text = f"optm {family}, paper's bins, {shape}"
                rows.append(Row(setting, text, ours, None, density, "ours"))
            best = pq.design("optm", levels=4, density=density, lattice=False, **common)
            rows.append(Row(setting, f"optm free, best bins, {label}", best, None, density, "ours"))
    return rows


def print_rows(rows: list[Row], title: str) -> None:
    """Print rows as a table."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
    headings = ("", "mechanism", "paper", "51-point", "exact MAE", "exact MSE", "certified ε", "")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i in (0, 1, 7) else "right", no_wrap=i != 7)
    previous = ""
    for row in rows:
        if previous and row.setting != previous:
            table.add_section()
        previous = row.setting
        table.add_row(*row.cells())
    Console(width=110).print(table)


def figure_scalar_error(path: Path) -> Path:
    """Draw the absolute error against the input at three ε: the paper's parameters and our best."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.8), layout="constrained")
    for each, (epsilon, bins) in zip(axes, OPTM_BINS.items(), strict=True):
        paper = pq.design("optm", family="independent", epsilon=epsilon, objective="mae", bins=bins)
        shown = {
            "optm independent": paper,
            **({"rqm": pq.design("rqm", **RQM[epsilon])} if epsilon in RQM else {}),
            **({"erm": pq.design("erm", **ERM[epsilon])} if epsilon in ERM else {}),
            "one_bit": pq.design("one_bit", epsilon=epsilon),
            "optm": pq.design("optm", epsilon=epsilon, levels=4, objective="mae", lattice=False),
        }
        draw_error(each, shown)
        each.set_title(f"ε = {epsilon:g} per coordinate, one release, local view", fontsize=10)
    handles, labels = axes[-1].get_legend_handles_labels()
    for each in axes:
        each.get_legend().remove()
    names = {"optm independent": "OPTM as in the paper", "optm": "OPTM free (ours)", "one_bit": "one bit"}
    figure.legend(
        handles, [names.get(label, label.upper()) for label in labels], loc="outside lower center", ncols=5
    )
    return save(figure, path)


def _tuned(name: str, epsilon: float) -> TableMechanism | None:
    try:
        mechanism: TableMechanism = pq.design(name, epsilon=epsilon, levels=4, objective="mae")
    except InfeasibleDesignError:
        return None
    return mechanism
