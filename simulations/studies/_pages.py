"""Functions that all studies share: rows that are computed once, tables, figures, and the page.

A study is a folder with a module ``study.py``, which has

* ``PARTS``: by name, the functions that compute its tables,
* ``FIGURES``: by name, the functions that draw a figure from the tables,
* ``page_numbers``: a function from the tables to what the template ``page.md.jinja`` calls ``numbers``.

Tables are CSV files in ``tables``. Figures and the page are made from these files alone.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import joblib
import pandas as pd
from rich.console import Console
from rich.progress import track

from fl_privquant.errors import MISSING, InvalidSpecError, PrivQuantError
from fl_privquant.plotting import COLORS, STYLE, color_of, import_pyplot, save_figure
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon, gaussian_separation
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind
from simulations.report.statistics import student_interval

Result = TypeVar("Result")
ReadTable = Callable[[str], pd.DataFrame]
"""Reads a table of a study by its name."""
Tables = dict[str, pd.DataFrame]
"""Tables by their names."""
Compute = Callable[[], Tables | pd.DataFrame]
"""Computes one table, which is named as its part, or several."""

DATA_VARIABLES = {"mnist": "FL_PRIVQUANT_MNIST", "fashion_mnist": "FL_PRIVQUANT_FASHION_MNIST"}
"""Environment variables with the directories of the tasks' files."""

CACHE = Path("outputs") / "studies"
"""Where finished rows are kept, so that an interrupted study goes on where it stopped."""

# Few enough digits that all machines agree on them.
_DIGITS = "%.7g"


class MissingDataError(InvalidSpecError):
    """The directory with the files of a task is not known."""


def data_root(task: str) -> str:
    """The directory of a task's files, from its environment variable.

    Raises
    ------
    MissingDataError
        The variable is not set.
    """
    root = os.environ.get(DATA_VARIABLES[task])
    if not root:
        raise MissingDataError(
            task,
            MISSING,
            "no directory given",
            f"pass --{task.replace('_', '-')} DIRECTORY or set {DATA_VARIABLES[task]} to the directory that "
            f"holds its four IDX files",
        )
    return root


def compute_once(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns for these arguments, read from disk if it was called with them before.

    A result is forgotten when the source of the function changes, but not when something changes that it
    calls: then use ``--fresh``.
    """
    result: Result = joblib.Memory(CACHE, verbose=0).cache(function)(*arguments)
    return result


def compute_rows(
    function: Callable[..., Mapping[str, Any] | list[dict[str, Any]] | None],
    cells: Iterable[tuple[Any, ...]],
) -> pd.DataFrame:
    """The table with the rows of each cell; finished cells are read from disk.

    Parameters
    ----------
    function
        Gives the row of a cell, or its rows, or None where it has none.
    cells
        The arguments of each call.
    """
    rows: list[Mapping[str, Any]] = []
    console = Console(file=sys.stderr)
    for cell in track(list(cells), function.__name__, console=console, disable=not console.is_terminal):
        computed = compute_once(function, *cell)
        rows += [computed] if isinstance(computed, Mapping) else computed or []
    return pd.DataFrame(rows)


def tune_by_twos(
    run: Callable[[float], dict[str, Any]],
    first: float,
    max_trials: int,
    score: Callable[[Mapping[str, Any]], float],
) -> list[dict[str, Any]]:
    """The trials of a setting: by factors of two from the first value to where it gets no better.

    Parameters
    ----------
    run
        Gives the row of a trial.
    first
        The value to begin with.
    max_trials
        The most runs that are spent.
    score
        How good a row is.
    """
    trials: dict[float, dict[str, Any]] = {}
    best = first
    while near := [value for value in (best, 0.5 * best, 2.0 * best) if value not in trials]:
        for value in near[: max_trials - len(trials)]:
            trials[value] = run(value)
        best = max(trials, key=lambda value: score(trials[value]))
        if len(trials) == max_trials:
            break
    return list(trials.values())


def forget_rows() -> None:
    """Remove all rows and runs that are kept on disk."""
    shutil.rmtree(CACHE, ignore_errors=True)


def compute_part(home: Path, name: str, compute: Compute) -> None:
    """Compute a part of the study in a folder, and write its tables."""
    computed = compute()
    for table, frame in ({name: computed} if isinstance(computed, pd.DataFrame) else computed).items():
        write_table(home, table, frame)


def write_table(home: Path, name: str, frame: pd.DataFrame) -> None:
    """Write a table of the study in a folder."""
    path = home / "tables" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(frame.to_csv(index=False, float_format=_DIGITS, lineterminator="\n"), encoding="utf-8")


def read_table(home: Path, name: str) -> pd.DataFrame:
    """A table of the study in a folder.

    Raises
    ------
    PrivQuantError
        It was not computed yet.
    """
    path = home / "tables" / f"{name}.csv"
    if not path.exists():
        raise PrivQuantError(f"{path} is missing; python -m simulations.studies {home.name} computes it")
    return pd.read_csv(path, dtype={"view": "string"})


def draw_figures(home: Path, figures: Mapping[str, Callable[[ReadTable], Any]], read: ReadTable) -> None:
    """Draw the figures of the study in a folder."""
    with import_pyplot().rc_context(STYLE):
        for name, draw in figures.items():
            save_figure(draw(read), home / "figures" / f"{name}.png")


def look_of(mechanism: str) -> dict[str, Any]:
    """Color and marker of a mechanism, as matplotlib takes them."""
    place = list(COLORS).index(mechanism) if mechanism in COLORS else 0
    return {"color": color_of(mechanism), "marker": "osD^vpP*X<>hd8"[place % 14]}


def label_values(axis: Any, values: Iterable[float], logarithmic: bool = True) -> None:
    """Label the horizontal axis at these values alone."""
    ticks = sorted(values)
    if logarithmic:
        axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.minorticks_off()


def page_text(
    home: Path, numbers: Mapping[str, Any], read: ReadTable, template: str = "page.md.jinja"
) -> str:
    """The page of the study in a folder, from its template, its numbers and its tables."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(home),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markdown from our own numbers: there is nothing to escape.
        autoescape=False,
    )
    environment.filters |= {
        "number": number,
        "round_up": round_up,
        "cell": lambda text: str(text).replace("|", "\\|"),
        "epsilon": epsilon_cell,
    }
    environment.globals.update(heading=heading, one_row=one_row, both_relations=both_relations)
    return environment.get_template(template).render(read=read, numbers=numbers)


def join_tables(read: ReadTable, names: Iterable[str]) -> pd.DataFrame:
    """The tables of these names as one."""
    return pd.concat(map(read, names), ignore_index=True)


def one_row(table: pd.DataFrame, **columns: Any) -> Any:
    """The only row of a table that has these values.

    Raises
    ------
    PrivQuantError
        There is none, or there are several.
    """
    rows = table
    for column, value in columns.items():
        rows = rows[rows[column] == value]
    if len(rows) != 1:
        raise PrivQuantError(f"{len(rows)} rows with {columns}, expected 1; run the study again")
    return next(rows.itertuples())


def heading(unit: str, view: str = "local", relation: str = "replace-one") -> str:
    """The heading of a column of epsilons."""
    return PrivacyStatement.heading(Unit(unit), StatedView(ViewKind(view)), relation=Relation(relation))


def zero_out_epsilon(epsilon: float, delta: float) -> float:
    """The ε for zero-out of Gaussian noise on sums that has this ε for replace-one.

    Replacement by zero moves a sum half as far.

    >>> round(zero_out_epsilon(4.0, 1e-5), 2)
    1.83
    """
    return gaussian_epsilon(gaussian_separation(epsilon, delta) / 2.0, delta)


def both_relations(epsilons: Iterable[float], delta: float = 1e-5) -> str:
    """A sentence that says what the ε of Gaussian sums for replace-one are for zero-out.

    >>> both_relations([1.0, 4.0])
    'In sums with Gaussian noise, ε of 1 / 4 by replace-one are 0.4688 / 1.827 by zero-out.'
    """
    stated = [PrivacyStatement(epsilon, delta, Unit.TOTAL) for epsilon in epsilons]
    zero_out = [replace(one, epsilon=zero_out_epsilon(one.epsilon, delta)) for one in stated]
    figures = [" / ".join(one.epsilon_number for one in several) for several in (stated, zero_out)]
    verb = "is" if len(stated) == 1 else "are"
    return "In sums with Gaussian noise, ε of {0} by replace-one {2} {1} by zero-out.".format(*figures, verb)


def epsilon_cell(epsilon: float) -> str:
    """An epsilon as text, rounded up, for a column whose heading says its unit and view."""
    return PrivacyStatement(epsilon, 0.0, Unit.TOTAL).epsilon_cell


def number(value: float | None, digits: int = 3) -> str:
    """A number with some decimals; nothing where it is missing."""
    if value is None or math.isnan(value):
        return ""
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def half_interval(values: pd.Series) -> float:
    """Half of the 95 % interval of a mean (Student t)."""
    _, low, high, _ = student_interval(values)
    return (high - low) / 2.0


def mean_with_half(row: Any, name: str = "accuracy") -> str:
    """The mean of a row in per cent, and half of its 95 % interval, rounded up: 80.4 ± 0.5."""
    mean, low, high = (100.0 * getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{mean:.1f} ± {round_up((high - low) / 2, 1)}"


def round_up(value: float, digits: int = 4) -> str:
    """An epsilon with some decimals, rounded up."""
    if not math.isfinite(value):
        return number(value)
    scale = 10.0**digits
    # Tables have seven digits: a value that exceeds a rounded figure by less is that figure.
    return f"{math.ceil(value * scale * (1.0 - 1e-7)) / scale:.{digits}f}"
