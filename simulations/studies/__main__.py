"""``python -m simulations.studies NAME``: a study or some of its parts, its figures and its page.

``python -m simulations.studies results`` writes the one page with the results of all studies, and
``python -m simulations.studies all`` computes the studies before.

Finished runs and rows are kept under ``outputs``, so that an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import importlib
import os
import resource
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fl_privquant import _validation
from fl_privquant.cli import program
from fl_privquant.errors import InvalidSpecError
from simulations.studies._pages import (
    DATA_VARIABLES,
    MissingDataError,
    compute_part,
    draw_figures,
    forget_rows,
    page_text,
    read_table,
)
from simulations.studies.results import write_results

STUDIES = (
    "paper",
    "mean_estimation",
    "sum_grid",
    "tuned_headline",
    "records",
    "beyond_trusted_server",
)
"""The folders of the studies."""

app = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True, add_completion=False)


def load_study(name: str) -> Any:
    """The module of a study, which has PARTS, FIGURES and page_numbers."""
    return importlib.import_module(f"simulations.studies.{name}.study")


def study_folder(name: str) -> Path:
    """The folder of a study."""
    return Path(__file__).parent / name


def choose_parts(names: list[str]) -> dict[str, list[str]]:
    """By study, the parts that are named: all of a study, or single ones.

    Raises
    ------
    InvalidSpecError
        A name is neither a study nor a part.
    """
    parts = {study: list(load_study(study).PARTS) for study in STUDIES}
    owners = {part: study for study in STUDIES for part in parts[study]}
    chosen: dict[str, list[str]] = {}
    for name in names:
        if name in parts:
            chosen[name] = parts[name]
        elif name in owners:
            chosen.setdefault(owners[name], []).append(name)
        else:
            raise InvalidSpecError(
                "study",
                name,
                f"is neither one of {', '.join(STUDIES)} nor one of their "
                f"parts{_validation.suggest_nearest(name, [*parts, *owners])}",
            )
    return chosen


def write_page(study: str, folder: Path) -> None:
    """Draw the figures of a study and write its page, from its tables in a folder."""
    module, read = load_study(study), partial(read_table, folder)
    draw_figures(folder, module.FIGURES, read)
    text = page_text(study_folder(study), module.page_numbers(read), read)
    (folder / "README.md").write_text(text, encoding="utf-8")


@app.command()
def main(
    names: Annotated[
        list[str], typer.Argument(help=f"all, results, studies ({', '.join(STUDIES)}), or parts.")
    ],
    mnist: Annotated[
        str, typer.Option(envvar=DATA_VARIABLES["mnist"], help="Directory of MNIST's IDX files.")
    ] = "",
    fashion_mnist: Annotated[
        str,
        typer.Option(envvar=DATA_VARIABLES["fashion_mnist"], help="Directory of Fashion-MNIST's IDX files."),
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget all rows that are kept.")] = False,
    only_page: Annotated[
        bool, typer.Option("--page", help="Only draw and write, from the tables that are there.")
    ] = False,
) -> None:
    """Compute studies or parts of them, and write tables, figures and page."""
    for task, directory in (("mnist", mnist), ("fashion_mnist", fashion_mnist)):
        if directory:
            os.environ[DATA_VARIABLES[task]] = directory
    if fresh:
        forget_rows()
    minutes: dict[str, float] = {}
    studies = [*names, *STUDIES] if "all" in names else names
    for study, parts in choose_parts([name for name in studies if name not in ("all", "results")]).items():
        folder = study_folder(study)
        for part in () if only_page else parts:
            before = processor_minutes()
            try:
                compute_part(folder, part, load_study(study).PARTS[part])
                minutes[part] = processor_minutes() - before
            except (MissingDataError, ModuleNotFoundError) as error:
                if len(parts) == 1:
                    raise
                print(f"{part}: skipped ({error}); its tables stay as they are")
        write_page(study, folder)
        print(folder / "README.md")
    if {"all", "results"} & set(names):
        print(write_results())
    for part, spent in minutes.items():
        print(f"{part:>28} {spent:7.2f} processor minutes")
    print(f"{'in all':>28} {processor_minutes():7.2f}")


def processor_minutes() -> float:
    """What this process and those that it has waited for have spent of processors, in minutes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) / 60.0


if __name__ == "__main__":
    program.run(app)
