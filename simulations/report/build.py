"""Builds the whole report of a study, in order: tables, figures, and the page."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from fl_privquant.errors import PrivQuantError, one_line
from fl_privquant.files import replace_file
from simulations.report.charts import LATE_ROUNDS
from simulations.report.drawings import drawings_of
from simulations.report.html_page import render
from simulations.report.load import Problem, Run, load_runs
from simulations.report.study_data import Study
from simulations.report.summary_tables import privacy_table, summary_table
from simulations.report.terminal import print_summary

# Columns for the report alone; the label and the columns of what varies say the same.
_INTERNAL = ["series", "setting", "private"]


def build_report(study_dir: Path) -> Path:
    """Write tables, figures and ``report.html`` of the study in a directory; the path of the page.

    Nothing of the runs is touched; what was built before is replaced file by file.
    """
    return _report_on(Path(study_dir))[1]


def show_report(study_dir: Path, panels: Collection[str | None] | None = None) -> Path:
    """Build the report, print the table of results and where the page is; its path.

    Of a study that asks several questions, only the results of these ``panels`` are printed, if they are
    given.
    """
    study, path = _report_on(Path(study_dir))
    print_summary(study, panels=panels)
    print(f"report: {path}")
    return path


def _report_on(directory: Path) -> tuple[Study, Path]:
    """The study and the path of its page; runs with a value that no report can show are left out."""
    try:
        study = Study.load(directory)
        return study, _write_report(study)
    except PrivQuantError:
        raise
    except Exception:  # a damaged value can raise any error
        directory = directory.resolve()
        runs, problems = load_runs(directory)
        reasons = _damaged(runs)
        if not reasons:
            raise
        damaged = [Problem(name, "damaged", reason) for name, reason in reasons.items()]
        study = Study.of(directory, [run for run in runs if run.name not in reasons], [*problems, *damaged])
        return study, _write_report(study)


def _damaged(runs: Sequence[Run]) -> dict[str, str]:
    """The runs with which no report can be built, and why; most runs are taken to be sound.

    Each is tried beside one that is sound, as some values cause an error only beside those of other runs.
    """
    for sound in runs:
        reasons = {
            run.name: reason for run in runs if (reason := _failure({sound.name: sound, run.name: run}))
        }
        if 2 * len(reasons) <= len(runs):
            return reasons
    return {}


def _failure(runs: Mapping[str, Run]) -> str:
    """Why no report on these runs can be built; empty if one can."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            _write_report(Study.of(Path(directory), list(runs.values()), []))
        except Exception as error:  # a damaged value can raise any error
            return (
                f"a value of config.json, provenance.json or summary.json cannot be used ({one_line(error)})"
            )
    return ""


def _write_report(study: Study) -> Path:
    drawings = drawings_of(study)
    if study.runs:
        write_tidy_tables(study)
        for table in (privacy_table(study), summary_table(study)):
            _write(study.directory / "tables" / f"{table.name}.md", table.markdown())
            _write(study.directory / "tables" / f"{table.name}.tex", table.latex())
        saved = [drawing for drawing in drawings if drawing.place.get("rounds") != LATE_ROUNDS]
        for drawing in saved:
            drawing.save(study.directory / "figures")
        _remove_outdated(study.directory / "figures", {drawing.name for drawing in saved})
    return _write(study.directory / "report.html", render(study, drawings))


def _remove_outdated(folder: Path, names: Collection[str]) -> None:
    """Remove figures of the same kinds that this report does not have: they show runs that it has moved.

    A second panel gives the first one's figures other names, for example. Files of other kinds are not ours.
    """
    kinds = {name.partition("--")[0] for name in names}
    for path in folder.iterdir():
        is_ours = path.suffix in (".pdf", ".png") and path.stem.partition("--")[0] in kinds
        if is_ours and path.stem not in names:
            path.unlink()


def write_tidy_tables(study: Study) -> None:
    """Write ``rounds`` and ``summary`` of all finished runs, as parquet and as CSV."""
    keys = {"rounds": ["run", "round"], "summary": ["run"]}
    for name, frame in (("rounds", study.rounds), ("summary", study.summary)):
        tidy = frame.drop(columns=_INTERNAL, errors="ignore").drop_duplicates(keys[name], ignore_index=True)
        for ending, write in (("parquet", tidy.to_parquet), ("csv", tidy.to_csv)):
            path = study.directory / f"{name}.{ending}"
            replace_file(path, partial(write, index=False), durable=False)


def _write(path: Path, text: str) -> Path:
    """Write a file so that a reader finds the old or the new one, never a part."""
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"), durable=False)
    return path
