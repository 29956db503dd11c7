"""The tables, figures and page of what was measured, each made from the tables alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from fl_privquant.cli.plots import pyplot, save
from simulations.benchmarks.growth import Point
from simulations.benchmarks.machine import describe
from simulations.benchmarks.measure import Row
from simulations.studies.page import markdown_environment

FOLDER = Path(__file__).parent
ROWS, POINTS, MACHINE = "results.csv", "growth.csv", "machine.json"
CATALOGUE: Any = OmegaConf.to_container(OmegaConf.load(FOLDER / "catalogue.yaml"))
"""Title and small sizes of each benchmark, in the order of the page."""

_LABELS = {"coordinates": "coordinates d", "clients": "clients n", "levels": "levels m"}


def write_rows(benchmark: str, rows: Sequence[Row], folder: Path = FOLDER) -> None:
    """Keep the rows of one benchmark, in the place of its former ones."""
    kept = {**read_rows(folder), benchmark: list(rows)}
    table = [
        {
            "benchmark": name,
            "what": row.name,
            "measured": row.measured,
            "direction": ">=" if row.at_least else "<=",
            "target": row.target,
            "holds": row.holds,
        }
        for name in CATALOGUE
        for row in kept.get(name, [])
    ]
    _write(pd.DataFrame(table), folder / ROWS)
    (folder / MACHINE).write_text(json.dumps(describe(), indent=2, ensure_ascii=False) + "\n")


def read_rows(folder: Path = FOLDER) -> dict[str, list[Row]]:
    """The rows that were kept, by benchmark."""
    rows: dict[str, list[Row]] = {}
    for line in _read(folder / ROWS):
        row = Row(line.what, float(line.measured), float(line.target), line.direction == ">=")
        rows.setdefault(line.benchmark, []).append(row)
    return rows


def write_points(points: Sequence[Point], folder: Path = FOLDER) -> None:
    """Keep the points of the growth figures."""
    _write(pd.DataFrame(points), folder / POINTS)


def read_points(folder: Path = FOLDER) -> list[Point]:
    """The points that were kept."""
    return [Point(line.against, line.series, line.size, line.cost) for line in _read(folder / POINTS)]


def _write(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")


def _read(path: Path) -> list[Any]:
    return list(pd.read_csv(path).itertuples(index=False)) if path.exists() else []


def write_page(folder: Path = FOLDER) -> None:
    """Draw the figures, and write the page with the tables and the figures."""
    points = read_points(folder)
    for against in {point.against for point in points}:
        _draw(against, [point for point in points if point.against == against], folder)
    (folder / "README.md").write_text(page_text(folder))


def page_text(folder: Path = FOLDER) -> str:
    """The page: every figure in it is in a table beside it."""
    rows = read_rows(folder)
    holds = [row.holds for measured in rows.values() for row in measured]
    return (
        markdown_environment(FOLDER)
        .get_template("page.md.jinja")
        .render(
            rows={name: rows[name] for name in CATALOGUE if name in rows},
            met=sum(holds),
            count=len(holds),
            machine=json.loads((folder / MACHINE).read_text()),
            titles={name: benchmark["title"] for name, benchmark in CATALOGUE.items()},
            figures={point.against for point in read_points(folder)},
        )
    )


def _draw(against: str, points: Sequence[Point], folder: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.6, 4.4), layout="constrained")
    for at, series in enumerate(dict.fromkeys(point.series for point in points)):
        line = sorted((point.size, point.cost) for point in points if point.series == series)
        axes.plot(*zip(*line, strict=True), marker="o", markersize=4, color=f"C{at}", label=series)
    # A dotted line of slope one through the middle, to compare slopes with.
    sizes = sorted({point.size for point in points})
    costs = sorted(point.cost for point in points)
    middle = costs[len(costs) // 2] / (sizes[0] * sizes[-1]) ** 0.5
    ends = [sizes[0], sizes[-1]]
    axes.plot(ends, [middle * end for end in ends], ":", color="#777777", label="proportional")
    axes.set(xscale="log", yscale="log", xlabel=_LABELS[against])
    if against == "levels":
        axes.set_xticks([size for size in sizes if size & (size - 1) == 0])
        axes.xaxis.set_major_formatter(plt.ScalarFormatter())
        axes.xaxis.set_minor_locator(plt.NullLocator())
    axes.set_ylabel("processor time, in draws of 10⁶ float64 by numpy", fontsize=9)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    save(figure, folder / "figures" / f"growth-{against}.png")
