"""The page of a study: its words are in the template ``page.md.jinja``, its numbers in the tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from fl_privquant.errors import PrivQuantError
from fl_privquant.statement import PrivacyStatement, StatedView, Unit, ViewKind
from simulations.results import ResultsError
from simulations.studies.study import ReadTable, Store, Study

ALLOWED_LOSS = 0.01
"""The accuracy that a clip may lose against the widest that was tried; clips are chosen without privacy."""


TASKS = {"digits": "digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
"""What tasks are called in figures and on pages."""


def write_page(study: Study, store: Store) -> Path:
    """Write the page of a study from the tables in a store."""
    store.page.parent.mkdir(parents=True, exist_ok=True)
    store.page.write_text(page_text(study, store.read, store.seconds()), encoding="utf-8")
    return store.page


def markdown_environment(*folders: Path) -> jinja2.Environment:
    """What fills the templates of Markdown pages in these folders."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markdown from our own numbers: there is nothing to escape.
        autoescape=False,
    )


def page_text(study: Study, read: ReadTable, seconds: dict[str, float]) -> str:
    """The page of a study in Markdown, from its tables; parts that were not computed are named as such."""
    environment = markdown_environment(study.home, Path(__file__).parent)
    environment.filters |= {
        "number": number,
        "rounded_up": rounded_up,
        "span": span,
        "cell": _cell,
        "epsilon": epsilon_cell,
    }
    environment.globals |= {
        "accuracy": accuracy,
        "heading": heading,
        "one_row": one_row,
        "total": total,
        "clip_texts": partial(clip_texts, read),
    }
    missing = [part.name for part in study.parts if not _is_there(part.tables, read)]
    return environment.get_template("page.md.jinja").render(
        study=study,
        read=read,
        seconds=seconds,
        missing=missing,
        command=lambda name: f"`{study.part(name).command}`",
        numbers=study.numbers(read),
    )


def table_or_none(read: ReadTable, name: str) -> pd.DataFrame | None:
    """The table of that name, if it was computed."""
    try:
        return read(name)
    except ResultsError:
        return None


def together(read: ReadTable, names: Iterable[str]) -> pd.DataFrame:
    """The tables of these names that were computed, as one; an empty one where there are none."""
    tables = [table for name in names if (table := table_or_none(read, name)) is not None]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


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


def accuracy(row: Any) -> str:
    """The mean accuracy of a row, and half of its 95 % interval."""
    half = 0.5 * (row.accuracy_high - row.accuracy_low)
    return f"{row.accuracy:.3f}" if math.isnan(half) else f"{row.accuracy:.3f} ± {half:.3f}"


def total(row: Any, view: str) -> PrivacyStatement:
    """The statement of a client's total in a row of a table, in the local view or in the aggregate one."""
    seen = StatedView() if view == "local" else StatedView.from_text(row.view)
    epsilon = float(getattr(row, f"epsilon_total_{view}"))
    return PrivacyStatement(epsilon, float(row.delta_total), Unit.TOTAL, seen)


def heading(unit: str, view: str = "local") -> str:
    """The heading of a column of epsilons, of the unit and the view that a page names."""
    return PrivacyStatement.heading(Unit(unit), StatedView(ViewKind(view)))


def epsilon_cell(epsilon: float) -> str:
    """An epsilon as text, rounded up, for a column whose heading says its unit and view."""
    return PrivacyStatement(epsilon, 0.0, Unit.TOTAL).epsilon_cell


def number(value: float | None, digits: int = 3) -> str:
    """A number with some decimals; nothing where it is missing."""
    if value is None or math.isnan(value):
        return ""
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def span(values: pd.Series, digits: int) -> str:
    """The least and the largest value, or the one value that all have."""
    ends = [number(float(value), digits) for value in (values.min(), values.max())]
    return " to ".join(dict.fromkeys(ends))


def rounded_up(value: float, digits: int = 4) -> str:
    """An epsilon with some decimals, rounded up."""
    if not math.isfinite(value):
        return number(value)
    scale = 10.0**digits
    # Tables have seven digits: a value that exceeds a rounded figure by less is that figure.
    return f"{math.ceil(value * scale * (1.0 - 1e-7)) / scale:.{digits}f}"


def chosen_clip(table: pd.DataFrame, column: str) -> float:
    """The smallest clip that loses at most :data:`ALLOWED_LOSS` of accuracy against the widest."""
    ordered = table.sort_values(column)
    least = ordered.accuracy.iloc[-1] - ALLOWED_LOSS
    return float(ordered[ordered.accuracy >= least][column].iloc[0])


def clip_texts(read: ReadTable, column: str, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """The label of each table that is there, and the accuracy at each clip; the chosen one is bold.

    ``labels`` are the labels of tables by their names, ``column`` is ``clip`` or ``l2_clip``.
    """
    rows = []
    for name, label in labels.items():
        table = table_or_none(read, name)
        if table is None:
            continue
        table = table.sort_values(column)
        chosen = chosen_clip(table, column)
        pairs = zip(table[column], table.accuracy, strict=True)
        texts = [(f"{value:g} ({accuracy:.3f})", value == chosen) for value, accuracy in pairs]
        rows.append((label, ", ".join(f"**{text}**" if bold else text for text, bold in texts)))
    return rows


def _cell(text: object) -> str:
    """A text for a cell of a Markdown table: its vertical bars are escaped, as they would end the cell."""
    return str(text).replace("|", "\\|")


def _is_there(names: Iterable[str], read: ReadTable) -> bool:
    return all(table_or_none(read, name) is not None for name in names)
