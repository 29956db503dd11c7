"""The report as one HTML file: text, tables, charts to choose from, no script and no request to anywhere."""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fl_privquant.mechanisms.registry import entry, mechanisms
from simulations.config import CENTRAL
from simulations.report.charts import ASKED, Dimension, charts_of, dimensions_of, findings_of
from simulations.report.compared import verdict_of
from simulations.report.drawings import Drawing, laws_of
from simulations.report.marks import marks_of
from simulations.report.study_data import Study, label_of, setting_value
from simulations.report.summary_tables import NOTES, large_total, privacy_table, summary_table

# What the second word of a label adds to the description of the mechanism.
_VARIANTS = {
    "paper": " As the paper prints it.",
    "independent": " Output values on both sides of the input are drawn independently, as in the paper.",
    "paired": " A pair of output values, one on each side of the input, is drawn first.",
}


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.jinja")


def render(study: Study, drawings: Sequence[Drawing]) -> str:
    """The whole page, with the drawings of the study's charts and laws."""
    dimensions, marks = dimensions_of(study), marks_of(study.protects)
    laws, without_law = laws_of(study, dimensions)
    return _template().render(
        study=study,
        facts=_facts(study),
        asked=ASKED,
        notes=NOTES,
        verdict=verdict_of(study),
        marks=marks,
        meanings=_meanings(study),
        privacy=privacy_table(study),
        statements=_statements(study),
        num_simulated=sum(run.simulated for run in study.runs),
        large_total=large_total(study),
        dimensions=dimensions,
        start=_start(dimensions),
        findings=findings_of(study),
        charts=charts_of(study),
        pictures=_pictures(drawings, dimensions),
        laws=laws,
        without_law=without_law,
        bits_of=lambda law: [f"{law.place['bits']:g} bits"] if "bits" in law.place else [],
        summary=summary_table(study),
        settings=_by_room(study.constant),
        partitions=_partitions(study),
        provenance=_provenance(study),
        problems=sorted(study.problems, key=lambda problem: (problem.kind, problem.run)),
        num_left_out=len({problem.run for problem in study.problems if problem.kind != "repaired"}),
        seconds=study.summary["wall_seconds"].sum() if "wall_seconds" in study.summary else None,
        text_of=setting_value,
    )


def _facts(study: Study) -> list[str]:
    """The study in one line."""
    if not study.runs:
        return ["no finished run yet"]
    config = study.constant
    seeds = study.summary["seed"].nunique()
    facts = [
        str(config["task.name"]) if "task.name" in config else "",
        _counted(len(study.runs), "finished run"),
        _counted(len({run.label for run in study.runs}), "mechanism"),
        _counted(seeds, "seed"),
        _counted(config["federation.num_clients"], "client") if "federation.num_clients" in config else "",
        _counted(config["federation.rounds"], "round") if "federation.rounds" in config else "",
    ]
    return [fact for fact in facts if fact]


def _meanings(study: Study) -> dict[str, str]:
    """What the mechanism of each series is, in a line: the first one of its module's documentation."""
    meanings = {}
    for series in study.series:
        name = str(study.runs_of(series)[0].config.get("mechanism", {}).get("name"))
        if name == CENTRAL:
            meanings[series] = (
                "A trusted server, which sees every update and adds Gaussian noise to their mean."
            )
        elif name in mechanisms():
            first = (sys.modules[entry(name).spec.__module__].__doc__ or "").splitlines()[0]
            meanings[series] = f"{first}{_VARIANTS.get(label_of(series).partition(' ')[2], '')}"
    return meanings


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _statements(study: Study) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """The distinct privacy statements of each series, and which of its runs each one is about."""
    statements: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for series in study.series:
        runs_of: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for run in study.runs_of(series):
            last = run.rounds.iloc[-1]
            words = [f"asked {run.asked.brief}"] if math.isfinite(last["epsilon"]) else []
            words += [f"{last['bits']:g} bits"] if math.isfinite(last["bits"]) else []
            words += [study.setting_of(run)] if study.varying else []
            if run.statement and "; ".join(words) not in runs_of[run.statement]:
                runs_of[run.statement].append("; ".join(words))
        # A statement about many runs needs no list of them.
        named = [
            (" | ".join(words) if len(words) <= 3 else "", lines) for lines, words in runs_of.items() if words
        ]
        if named:
            statements[series] = named if len(named) > 1 else [("", named[0][1])]
    return statements


def _start(dimensions: tuple[Dimension, ...]) -> dict[str, int]:
    """The panel that is shown first: the middle of what was swept, the first setting, all rounds."""
    return {
        dimension.key: (len(dimension.values) - 1) // 2 if dimension.key in ("epsilon", "bits") else 0
        for dimension in dimensions
    }


def _indices(place: Mapping[str, Any], dimensions: tuple[Dimension, ...]) -> dict[str, int]:
    """The numbers of a panel's values in their dimensions."""
    return {
        dimension.key: dimension.values.index(place[dimension.key])
        for dimension in dimensions
        if dimension.key in place
    }


def _pictures(drawings: Sequence[Drawing], dimensions: tuple[Dimension, ...]) -> dict[str, list[Any]]:
    """The pictures of each chart, and those of the laws: where each is shown, and what is shown."""
    pictures: dict[str, list[Any]] = defaultdict(list)
    for drawing in drawings:
        pictures[drawing.key].append((_indices(drawing.place, dimensions), Markup(drawing.svg)))
    return pictures


def _partitions(study: Study) -> list[tuple[str, str]]:
    """How the data are divided among clients: a picture for the first seed of each setting, as a data URL."""
    pictures: dict[str, str] = {}
    for run in sorted(
        study.runs, key=lambda run: (study.settings.index(study.setting_of(run)), run.config["seed"])
    ):
        if run.partition_picture is not None and study.setting_of(run) not in pictures:
            encoded = base64.b64encode(run.partition_picture).decode()
            pictures[study.setting_of(run)] = f"data:image/png;base64,{encoded}"
    # Settings that do not touch the partition have the same picture.
    return [
        (setting, picture) for picture, setting in {pictures[key]: key for key in reversed(pictures)}.items()
    ][::-1]


def _by_room(constant: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Constant settings by the group of the config they belong to."""
    rooms: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, value in constant.items():
        room, _, rest = key.partition(".")
        rooms[room if rest else "study"][rest or key] = value
    return dict(sorted(rooms.items(), key=lambda item: item[0] != "study"))


def _provenance(study: Study) -> dict[str, str]:
    """Versions, commit and solver; where runs differ, each value with the number of its runs."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for run in study.runs:
        versions = run.provenance.get("versions")
        origin = {"git commit": run.provenance.get("git_commit"), "solver": run.provenance.get("solver")}
        for key, value in (origin | (versions if isinstance(versions, dict) else {})).items():
            counts[key][setting_value(value)] += 1
    texts = {}
    for key, values in counts.items():
        named = [f"{value} ({_counted(number, 'run')})" for value, number in values.items()]
        texts[key] = next(iter(values)) if len(values) == 1 else ", ".join(named)
    return texts
