"""The tables, figures and page of what was measured, each made from the tables alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_privquant.cli.plots import pyplot, save
from simulations.benchmarks.growth import Point
from simulations.benchmarks.machine import describe
from simulations.benchmarks.measure import Row

FOLDER = Path(__file__).parent
ROWS, POINTS, MACHINE = "results.csv", "growth.csv", "machine.json"

TITLES = {
    "encode": "Encoding an update, 10⁷ float32, one thread, secure randomness",
    "design": "Designing a mechanism",
    "wire": "Packing integers for the wire",
    "kept": "Sending few of many coordinates, and planning for it",
    "privacy": "Accounting",
    "flower": "A Flower round",
    "secagg": "Secure aggregation",
    "handshake": "What secure aggregation sends besides the codes",
    "sweep": "A sweep of runs",
    "peers": "Simulated clients a second",
    "memory": "Memory of a private round, in models",
}
LABELS = {"coordinates": "coordinates d", "clients": "clients n", "levels": "levels m"}
NOTES = {
    "coordinates": "Below some 10⁵ coordinates what a call or a key agreement costs outweighs them.",
    "clients": "Costs are for one client. In a secure sum it pays for its neighbours: 8 of them, or as many "
    "as keep the odds of a failure below those that were asked for. A statement is made once a run.",
    "levels": "Encoding draws from alias tables, whatever the number of levels. A program has 2 m + 1 rows "
    "of m probabilities; a design solves many, for the bins.",
}

_INTRODUCTION = """\
# Benchmarks

`python -m simulations.benchmarks all` measures, and writes this page, its tables and figures (`--quick` shows
that all runs, and keeps nothing). Nearly everything is a ratio to a baseline in the same process, in turns
with it: absolute times say more about the machine than about the code. What each benchmark counts, and what
it leaves to the peer's advantage, is in its module.

**{met} targets are met.** A ratio says nothing about another machine's caches, cores or network. What takes
long (secure aggregation at 100 clients, the sweep, Ray) is measured once.
"""
_GROWTH = """\
## Growth

Processor time in units of numpy's draw of 10⁶ float64, measured in turns with it. Both axes are logarithmic;
the dotted line is proportional growth."""


def write_rows(benchmark: str, rows: Sequence[Row], folder: Path = FOLDER) -> None:
    """Keep the rows of one benchmark, in the place of its former ones."""
    kept = {**read_rows(folder), benchmark: list(rows)}
    with (folder / ROWS).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["benchmark", "what", "measured", "direction", "target", "holds"])
        for name in (title for title in TITLES if title in kept):
            for row in kept[name]:
                direction = ">=" if row.at_least else "<="
                measured = [f"{row.measured:.4g}", direction, f"{row.target:.4g}", row.holds]
                writer.writerow([name, row.name, *measured])
    (folder / MACHINE).write_text(json.dumps(describe(), indent=2, ensure_ascii=False) + "\n")


def read_rows(folder: Path = FOLDER) -> dict[str, list[Row]]:
    """The rows that were kept, by benchmark."""
    rows: dict[str, list[Row]] = {}
    if (folder / ROWS).exists():
        with (folder / ROWS).open(newline="") as file:
            for line in csv.DictReader(file):
                row = Row(
                    line["what"], float(line["measured"]), float(line["target"]), line["direction"] == ">="
                )
                rows.setdefault(line["benchmark"], []).append(row)
    return rows


def write_points(points: Sequence[Point], folder: Path = FOLDER) -> None:
    """Keep the points of the growth figures."""
    with (folder / POINTS).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["against", "series", "size", "cost"])
        writer.writerows([point.against, point.series, point.size, f"{point.cost:.4g}"] for point in points)


def read_points(folder: Path = FOLDER) -> list[Point]:
    """The points that were kept."""
    if not (folder / POINTS).exists():
        return []
    with (folder / POINTS).open(newline="") as file:
        return [
            Point(line["against"], line["series"], int(line["size"]), float(line["cost"]))
            for line in csv.DictReader(file)
        ]


def write_page(folder: Path = FOLDER) -> None:
    """Draw the figures, and write the page with the tables and the figures."""
    points = read_points(folder)
    for against in {point.against for point in points}:
        _draw(against, [point for point in points if point.against == against], folder)
    (folder / "README.md").write_text(page_text(folder))


def page_text(folder: Path = FOLDER) -> str:
    """The page: every figure in it is in a table beside it."""
    rows = read_rows(folder)
    every = [row for measured in rows.values() for row in measured]
    machine = json.loads((folder / MACHINE).read_text())
    met = f"{sum(row.holds for row in every)} of {len(every)}"
    lines = [
        _INTRODUCTION.format(met=met),
        "| measured on | |",
        "|---|---|",
        *[f"| {key} | {value} |" for key, value in machine.items()],
    ]
    for name in (title for title in TITLES if title in rows):
        lines += ["", f"## {TITLES[name]}", "", "| what | measured | target | |", "|---|---:|---:|---|"]
        for row in rows[name]:
            verdict = "met" if row.holds else "**missed**"
            bound = row.bound.replace(">=", "≥").replace("<=", "≤")
            what = row.name.replace("|", "\\|")
            lines.append(f"| {what} | {row.measured:.3g} | {bound} | {verdict} |")
    present = {point.against for point in read_points(folder)}
    if present:
        lines += ["", _GROWTH]
    for against in (label for label in LABELS if label in present):
        lines += ["", f"![Cost against {against}](figures/growth-{against}.png)", "", NOTES[against]]
    return "\n".join(lines) + "\n"


def _draw(against: str, points: Sequence[Point], folder: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.6, 4.4), layout="constrained")
    for at, series in enumerate(dict.fromkeys(point.series for point in points)):
        line = sorted((point.size, point.cost) for point in points if point.series == series)
        axes.plot(*zip(*line, strict=True), marker="o", markersize=4, color=f"C{at}", label=series)
    _proportional(axes, points)
    axes.set(xscale="log", yscale="log", xlabel=LABELS[against])
    if against == "levels":
        sizes = sorted({point.size for point in points})
        axes.set_xticks([size for size in sizes if size & (size - 1) == 0])
        axes.xaxis.set_major_formatter(plt.ScalarFormatter())
        axes.xaxis.set_minor_locator(plt.NullLocator())
    axes.set_ylabel("processor time, in draws of 10⁶ float64 by numpy", fontsize=9)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    save(figure, folder / "figures" / f"growth-{against}.png")


def _proportional(axes: Any, points: Sequence[Point]) -> None:
    """A dotted line of slope one through the middle, to compare slopes with."""
    sizes = [point.size for point in points]
    costs = sorted(point.cost for point in points)
    middle = costs[len(costs) // 2]
    centre = (min(sizes) * max(sizes)) ** 0.5
    ends = [min(sizes), max(sizes)]
    axes.plot(ends, [middle * end / centre for end in ends], ":", color="#777777", label="proportional")
