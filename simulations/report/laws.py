"""The laws of a study's mechanisms, each one once."""

from __future__ import annotations

from dataclasses import dataclass

from fl_privquant.law.law import Law
from fl_privquant.mechanisms.base import Mechanism
from simulations.report.charts import Dimension, place_of
from simulations.report.study_data import Study


@dataclass(frozen=True, eq=False)
class DrawnLaw:
    """A mechanism of the study, its law, where it is shown, and its series."""

    series: str
    place: dict[str, float | str]
    title: str
    mechanism: Mechanism
    law: Law


def laws_of(study: Study, dimensions: tuple[Dimension, ...]) -> tuple[list[DrawnLaw], list[str]]:
    """Each law once, in the order of the series; and the series that have no law to draw."""
    own = tuple(dimension for dimension in dimensions if dimension.key != "setting")
    drawn: dict[tuple[object, ...], DrawnLaw] = {}
    for series in study.series:
        for run in study.runs_of(series):
            if run.mechanism is None or (law := run.mechanism.law) is None:
                continue
            last = run.rounds.iloc[-1]
            # Equal laws in several settings, or with and without secure aggregation, are one picture.
            key = (run.label, run.mechanism.to_bytes())
            if key not in drawn:
                drawn[key] = DrawnLaw(series, place_of(last, own), run.label, run.mechanism, law)
    with_law = {picture.title for picture in drawn.values()}
    ordered = sorted(
        drawn.values(),
        key=lambda picture: (study.series.index(picture.series), sorted(picture.place.items())),
    )
    return ordered, [series for series in study.series if study.runs_of(series)[0].label not in with_law]
