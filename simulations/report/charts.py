"""The content of charts, apart from how they are drawn: curves over seeds, and their panels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from simulations.report.compared import comparisons_of
from simulations.report.statistics import (
    BOUNDS,
    LEAST_SEEDS,
    POINT,
    column_interval,
    over_seeds,
    shown_interval,
)
from simulations.report.study_data import GROUP, Study
from simulations.report.verdict import ACCURACY, ERROR, MOST_FINDINGS, Comparison

CERTIFIED = PrivacyStatement.heading(Unit.COORDINATE, word="certified ε")
ASKED = PrivacyStatement.heading(Unit.COORDINATE, word="ε asked")
MEGABYTE = 1e6
FLOOR = 1e-5
LEAST_ROOM = 0.02
ALL_ROUNDS, LATE_ROUNDS = "all", "second half"
_LEAST_TICKS, _MOST_GAPS = 3, 8
_LOG_STEPS: tuple[tuple[float, ...], ...] = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    tuple(step / 10 for step in range(10, 100)),
)

Place = Mapping[str, Any]


@dataclass(frozen=True)
class Dimension:
    """Something that varies and gives each of its values a panel."""

    key: str
    title: str
    values: tuple[Any, ...]

    def text(self, value: Any) -> str:
        """A value with its name, for the title of a panel."""
        if self.key == "epsilon":
            return f"{ASKED}: {PrivacyStatement(value, 0.0, Unit.COORDINATE).epsilon_cell}"
        return f"{value:g} bits" if self.key == "bits" else str(value)

    def slug(self, value: Any) -> str:
        """The part of a file's name that stands for a value."""
        if self.key in ("epsilon", "bits"):
            return f"{self.key}-{value:g}"
        # Files are named by what precedes the first comma, where that is enough to tell them apart.
        beginnings = {text.partition(",")[0] for text in self.values}
        text = value.partition(",")[0] if len(beginnings) == len(self.values) else value
        return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean of one series over seeds: x, mean, low, high, count.

    A curve without a place in a dimension is in all panels of it. ``name`` is that of its row in a chart of
    rows.
    """

    series: str
    place: Place
    points: pd.DataFrame
    flat: bool = False
    name: str = ""


@dataclass(frozen=True, eq=False)
class Chart:
    """Curves with their axes and words."""

    key: str
    title: str
    caption: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    percent: bool = False
    log_x: bool = False
    log_y: bool = False
    # A chart of few points, each from other runs, has markers and error bars instead of a band.
    points: bool = False
    # A chart with one row per series, named on the vertical axis: each curve has one point, its mean.
    rows: bool = False
    # Rows are drawn as bars, which begin at zero.
    bars: bool = False
    # A second line of the title, in files.
    subtitle: str = ""

    @property
    def x_title(self) -> str:
        """The title of the horizontal axis, with "log scale" if it is logarithmic."""
        return f"{self.x} (log scale)" if self.log_x else self.x

    @property
    def y_title(self) -> str:
        """The title of the vertical axis, with "log scale" if it is logarithmic."""
        return f"{self.y} (log scale)" if self.log_y else self.y


def dimensions_of(study: Study) -> tuple[Dimension, ...]:
    """The dimensions of panels: settings, epsilon, bits and the part of the run, each only if it varies."""
    if not study.runs:
        return ()
    summary = study.summary
    epsilons = sorted(summary["epsilon"][np.isfinite(summary["epsilon"])].unique())
    # Some mechanisms always have one bit, or 32; bits vary only where one mechanism has several in a setting.
    in_setting = summary.groupby(["series", "setting"], dropna=False)["bits"]
    swept = [group.dropna().unique() for _, group in in_setting]
    bits = sorted({value for values in swept if len(values) > 1 for value in values})
    candidates = (
        Dimension("setting", "Setting", study.settings),
        Dimension("epsilon", ASKED, tuple(map(float, epsilons))),
        Dimension("bits", "Bits per coordinate", tuple(map(float, bits))),
        Dimension("rounds", "Rounds", (ALL_ROUNDS, LATE_ROUNDS) if summary["round"].max() > 3 else ()),
    )
    return tuple(dimension for dimension in candidates if len(dimension.values) > 1)


def place_of(group: Mapping[str, Any], dimensions: tuple[Dimension, ...]) -> dict[str, Any]:
    """The panel of a group; a group without a value of some dimension appears in all panels of it."""
    return {
        dimension.key: group[dimension.key]
        for dimension in dimensions
        if group.get(dimension.key) in dimension.values
    }


def panels_of(chart: Chart, dimensions: tuple[Dimension, ...]) -> list[tuple[dict[str, Any], Chart]]:
    """The panels of a chart that have curves: the place of each one, and the chart with its curves alone."""
    own = [
        dimension for dimension in dimensions if any(dimension.key in curve.place for curve in chart.curves)
    ]
    panels = []
    for values in itertools.product(*(dimension.values for dimension in own)):
        place = {dimension.key: value for dimension, value in zip(own, values, strict=True)}
        curves = tuple(curve for curve in chart.curves if shown(curve, place))
        if curves:
            panels.append((place, replace(chart, curves=curves)))
    return panels


@lru_cache(maxsize=1)
def findings_of(study: Study) -> tuple[Chart, ...]:
    """A chart for each comparison that the verdict speaks of: one row per series, with its interval."""
    comparisons = comparisons_of(study)[:MOST_FINDINGS]
    charts = [_finding_chart(comparison, number) for number, comparison in enumerate(comparisons, start=1)]
    return tuple(chart for chart in charts if chart.curves)


def _finding_chart(comparison: Comparison, number: int) -> Chart:
    error, accuracy = comparison.measure == ERROR, comparison.measure == ACCURACY
    curves = []
    for name, frame in comparison.runs.groupby("series", sort=False):
        values = frame[comparison.measure]
        bounds = BOUNDS.get(comparison.measure, (-math.inf, math.inf))
        mean, low, high, count = shown_interval(values, logarithmic=error, bounds=bounds)
        series = str(frame["study_series"].iloc[0])
        point = pd.DataFrame([(0.0, mean, low, high, count)], columns=POINT)
        if np.isfinite(mean):
            curves.append(Curve(series, {}, point, name=str(name)))
    question = "Whose mean update has the least error?" if error else "Who learns best?"
    shown = all(curve.points["count"].iloc[0] >= LEAST_SEEDS for curve in curves)
    interval = "with its 95 % interval" if shown else "without an interval, which takes three seeds or more"
    what = (
        "Squared error of the decoded mean update per coordinate, over rounds: geometric mean over seeds"
        if error
        else f"{'Accuracy' if accuracy else 'Loss'} as evaluated after the last round: mean over seeds"
    )
    return Chart(
        f"compared-{number}",
        question,
        f"{comparison.budget}. {what}, {interval}.",
        "squared error of the mean update" if error else f"test {comparison.measure}",
        "",
        tuple(sorted(curves, key=lambda curve: curve.points["mean"].iloc[0], reverse=accuracy)),
        percent=accuracy,
        rows=True,
        bars=error,
        subtitle=comparison.budget,
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis, all labelled: of the coarsest steps that give three, or the finest.

    Neighbours are at least an eighth of the axis apart, so that their labels do not overlap.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in _LOG_STEPS:
        ticks = [step * 10.0**power for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _LEAST_TICKS:
            break
    apart = (high / low) ** (1.0 / _MOST_GAPS)
    shown: list[float] = []
    for tick in ticks:
        if not shown or tick >= shown[-1] * apart:
            shown.append(tick)
    return shown


@lru_cache(maxsize=1)
def charts_of(study: Study) -> tuple[Chart, ...]:
    """All charts that the study has data for."""
    dimensions = dimensions_of(study)
    varied = {dimension.key for dimension in dimensions}
    metric = _Metric.of(study)
    charts = [
        Chart(
            f"{metric.column}-rounds",
            f"How does {metric.column} change with rounds?",
            f"{metric.where}. Round 0 is before training.",
            "round",
            metric.axis,
            _by_round(study, dimensions, metric.column),
            percent=metric.percent,
        ),
        *(_against(study, dimensions, metric, key) for key in ("epsilon", "bits") if key in varied),
        *_against_setting(study, dimensions, metric),
        Chart(
            f"{metric.column}-bytes",
            f"How much {metric.column} for the bytes that are sent?"
            if metric.percent
            else "Which loss for the bytes that are sent?",
            "What all clients together have sent up to then, one point per round.",
            "MB sent by all clients",
            metric.axis,
            _by_round(study, dimensions, metric.column, x="bytes_up"),
            percent=metric.percent,
            log_x=True,
        ),
        Chart(
            "error-rounds",
            "How far is each round's mean update from the true one?",
            "Squared distance of the decoded mean update from the true mean, per coordinate: "
            "geometric mean over seeds.",
            "round",
            "mean squared error",
            _by_round(study, dimensions, "mean_squared_error", logarithmic=True),
            log_y=True,
        ),
        *(
            Chart(f"{column}-rounds", f"{word} against rounds", caption, "round", axis, by_round, log_y=log_y)
            for column, word, caption, axis, log_y in _POLICIES
            if _changes(study, column) and (by_round := _by_round(study, dimensions, column))
        ),
    ]
    return tuple(_with_floor_noted(study, chart) for chart in charts if chart.curves)


_POLICIES = (
    ("clip", "Clip", "Coordinates of updates are clipped to it.", "clip", True),
    (
        "bits_per_coordinate",
        "Bits",
        "What carries one coordinate, without secure aggregation.",
        "bits per coordinate",
        False,
    ),
)


def _changes(study: Study, column: str) -> bool:
    """Whether a policy changes this setting in the course of a run."""
    return any(run.rounds[column].nunique() > 1 for run in study.runs)


def _with_floor_noted(study: Study, chart: Chart) -> Chart:
    """The chart, with a caption that names what a logarithmic axis cannot show: series at or near zero."""
    above = {curve.series for curve in _above_floor(chart)}
    below = [series for series in study.series if series not in above] if chart.log_y else []
    note = f" Below the axis, as good as exact: {', '.join(below)}." if below else ""
    return replace(chart, caption=chart.caption + note)


def _above_floor(chart: Chart) -> tuple[Curve, ...]:
    """The curves that a logarithmic axis has to show; rounding errors of 10⁻¹⁷ would flatten all others."""
    if not chart.log_y:
        return chart.curves
    largest = max(float(curve.points["mean"].max()) for curve in chart.curves)
    return tuple(curve for curve in chart.curves if curve.points["mean"].max() >= FLOOR * largest)


@dataclass(frozen=True)
class _Metric:
    column: str
    where: str
    axis: str
    percent: bool

    @classmethod
    def of(cls, study: Study) -> _Metric:
        """Accuracy, or the loss for tasks such as mean estimation that have no accuracy."""
        app = any(run.config.get("app") for run in study.runs)
        where, kind = ("As the app's clients evaluate it", "") if app else ("On the test set", "test ")
        if not study.runs or study.rounds["accuracy"].notna().any():
            return cls("accuracy", where, f"{kind}accuracy", True)
        return cls("loss", where, f"{kind}loss", False)


def _by_round(
    study: Study,
    dimensions: tuple[Dimension, ...],
    column: str,
    x: str = "round",
    logarithmic: bool = False,
) -> tuple[Curve, ...]:
    curves = []
    for key, frame in study.rounds.groupby(GROUP, dropna=False, sort=True) if study.runs else ():
        group = dict(zip(GROUP, key, strict=True))
        points = over_seeds(frame, "round", column, logarithmic)
        if x == "bytes_up":
            megabytes = frame.groupby("round")["bytes_up"].mean() / MEGABYTE
            points = points.assign(x=points["x"].map(megabytes)).query("x > 0")
        # An app may evaluate nothing, beside runs that do.
        if points["mean"].notna().any():
            whole = Curve(group["series"], place_of({**group, "rounds": ALL_ROUNDS}, dimensions), points)
            curves.append(whole)
            if "rounds" in whole.place:
                late = points.iloc[len(points) // 2 :]
                curves.append(replace(whole, place={**whole.place, "rounds": LATE_ROUNDS}, points=late))
    return _in_order(study, curves)


def _against(study: Study, dimensions: tuple[Dimension, ...], metric: _Metric, key: str) -> Chart:
    """The last value against epsilon or bits; a series without one of these is a horizontal line."""
    words = {
        "epsilon": (
            "privacy",
            "After the last round. Further left is more private; dashed levels have no privacy.",
            CERTIFIED,
        ),
        "bits": (
            "bits",
            "After the last round, by the bits that carry one coordinate.",
            "bits per coordinate",
        ),
    }
    title, caption, axis = words[key]
    return Chart(
        f"{metric.column}-{key}",
        f"How does {metric.column} depend on {title}?",
        caption,
        axis,
        metric.axis,
        _final(study, dimensions, metric, key, "certified_epsilon" if key == "epsilon" else key),
        percent=metric.percent,
        log_x=key == "epsilon",
        points=True,
    )


def _against_setting(study: Study, dimensions: tuple[Dimension, ...], metric: _Metric) -> Iterator[Chart]:
    """The last value against the one number that the settings differ in, if it is one."""
    if len(study.varying) != 1:
        return
    (key,) = study.varying
    values = [config.get(key) for config in study.configs.values()]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values) or {True, False} >= set(values):
        return
    yield Chart(
        f"{metric.column}-{key}",
        f"How does {metric.column} depend on {key}?",
        "After the last round.",
        key,
        metric.axis,
        _final(study, dimensions, metric, "setting", key),
        percent=metric.percent,
        log_x=min(numbers) > 0 and max(numbers) >= 10 * min(numbers),
        points=True,
    )


def _final(
    study: Study, dimensions: tuple[Dimension, ...], metric: _Metric, key: str, x: str
) -> tuple[Curve, ...]:
    own = next(dimension for dimension in dimensions if dimension.key == key)
    others = tuple(dimension for dimension in dimensions if dimension.key != key)
    kept = [name for name in GROUP if name != key]
    # A series that does not have this dimension appears in the panels of the other ones as it is.
    curves = []
    spread = study.summary[study.summary[key].isin(own.values)][x].astype(float)
    ends = float(spread.min()), float(spread.max())
    for values, frame in study.summary.groupby(kept, dropna=False, sort=True):
        place = place_of(dict(zip(kept, values, strict=True)), others)
        inside = frame[key].isin(own.values)
        for part, flat in ((frame[inside], False), (frame[~inside], True)):
            points = over_seeds(part, x, metric.column)
            if flat and len(part):
                level = column_interval(part, metric.column)
                points = pd.DataFrame([(end, *level) for end in ends], columns=POINT).dropna(subset=["mean"])
            if len(points):
                curves.append(Curve(frame["series"].iloc[0], place, points, flat))
    return _in_order(study, curves)


def _in_order(study: Study, curves: list[Curve]) -> tuple[Curve, ...]:
    return tuple(sorted(curves, key=lambda curve: study.series.index(curve.series)))


def shown(curve: Curve, panel: Place) -> bool:
    """Whether a curve belongs into a panel."""
    return all(curve.place.get(key, value) == value for key, value in panel.items())


def extent(chart: Chart) -> tuple[float, float]:
    """Range of the means with some margin; an interval of few seeds may be far larger, and is cut off."""
    points = pd.concat([curve.points for curve in _above_floor(chart)])
    if chart.log_y:
        points = np.log10(points[["mean", "low", "high"]])
    low, high = float(points["mean"].min()), float(points["mean"].max())
    room = max(high - low, LEAST_ROOM)
    reach = points[["mean", "low", "high"]].to_numpy(float)
    low = max(low - 0.35 * room, float(np.nanmin(reach))) - 0.04 * room
    high = min(high + 0.35 * room, float(np.nanmax(reach))) + 0.04 * room
    return (10.0**low, 10.0**high) if chart.log_y else (low, high)


def ticks_of(chart: Chart) -> list[float]:
    """The values that were swept are the ticks; certified epsilons a hair apart are one."""
    if not chart.points:
        return []
    swept = sorted({float(x) for curve in chart.curves if not curve.flat for x in curve.points["x"]})
    return [x for place, x in enumerate(swept) if place == 0 or x > swept[place - 1] * 1.01]
