"""A study: tables that one command computes, and a figure that is drawn from these tables.

Whatever is printed, drawn or written about a study comes from its tables, which are CSV files under
``tables``. Finished studies are also kept under ``outputs/paper``, by a digest of the code and of the scale:
a run of all studies that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fl_privquant
from fl_privquant.errors import InvalidSpecError

__all__ = [
    "HOME",
    "MNIST_VARIABLE",
    "Outcome",
    "Scale",
    "Store",
    "Study",
    "Tables",
    "Tell",
    "cell",
    "print_frame",
    "progress",
]

HOME = Path(__file__).parent
"""Where tables, figures and the page are kept."""

MNIST_VARIABLE = "FL_PRIVQUANT_MNIST"
"""Environment variable with the directory of MNIST's IDX files."""

Tables = dict[str, pd.DataFrame]
Tell = Callable[[float, str], None]
"""Hears the share of a study that is done, and what is being done."""

_DIGITS = "%.7g"


@dataclass(frozen=True)
class Scale:
    """How much is run: by default what the paper ran, and more where that costs little.

    Parameters
    ----------
    trials, vector_trials
        Random vectors for each mechanism and epsilon; the second for mechanisms that encode one at a time.
    cancer_runs, mnist_runs
        Training runs; the paper has 30 and 5. The first 30 on breast cancer are reported on their own.
    mnist_examples
        Training examples of MNIST; all 60,000 if not given.
    mnist
        Directory of MNIST's IDX files.
    configurations
        Random configurations in each check of a theorem.
    """

    trials: int = 10_000
    vector_trials: int = 500
    cancer_runs: int = 1_000
    mnist_runs: int = 5
    mnist_examples: int | None = None
    mnist: Path | None = None
    configurations: int = 200

    @property
    def mnist_root(self) -> str:
        """The directory of MNIST, as given or from the environment.

        Raises
        ------
        InvalidSpecError
            Neither says where it is.
        """
        root = self.mnist or os.environ.get(MNIST_VARIABLE)
        if not root:
            raise InvalidSpecError(
                f"mnist: no directory given; pass --mnist DIRECTORY or set {MNIST_VARIABLE} to the directory "
                "that holds MNIST's four IDX files"
            )
        return str(root)

    def key(self) -> dict[str, Any]:
        """What results depend on: all but where the data lie."""
        return {name: value for name, value in vars(self).items() if name != "mnist"}


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, by one command.

    Parameters
    ----------
    name
        The command.
    title
        What the paper calls it, in a line.
    compute
        The tables, by name.
    draw
        Draws the figure from the tables, where there is one.
    figure
        File name of the figure.
    table_names
        Names of its tables, where it is not one of its own name.
    needs_mnist
        Whether it can run only where MNIST is.
    shown
        Columns of its first table that are printed, where not all are.
    note
        What the printed epsilons are for.
    """

    name: str
    title: str
    compute: Callable[[Scale, Tell], Tables]
    draw: Callable[[Tables, Path], Path] | None = None
    figure: str = ""
    table_names: tuple[str, ...] = ()
    needs_mnist: bool = False
    shown: tuple[str, ...] = ()
    note: str = "certified ε: one coordinate, one release, local view"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of its tables."""
        return self.table_names or (self.name,)

    @property
    def command(self) -> str:
        """What to type."""
        return f"python -m simulations.paper {self.name}"


@dataclass(frozen=True)
class Outcome:
    """What a study gave, in how many seconds of one core."""

    tables: Tables
    seconds: float


@dataclass(frozen=True)
class Store:
    """Where a study's tables and figures are written, and where finished ones are kept meanwhile."""

    root: Path = HOME
    kept: Path = field(default_factory=lambda: Path("outputs") / "paper")

    @property
    def page(self) -> Path:
        """The page about all studies."""
        return self.root / "README.md"

    def figure(self, study: Study) -> Path:
        """The file of a study's figure."""
        return self.root / "figures" / study.figure

    def fetch(self, study: Study, scale: Scale, tell: Tell, fresh: bool = False) -> Outcome:
        """The outcome of a study: kept from before, if code and scale are the same, or computed now."""
        path = self.kept / f"{study.name}-{_digest(scale)}.json"
        if path.exists() and not fresh:
            found = json.loads(path.read_text(encoding="utf-8"))
            tables = {name: pd.read_csv(io.StringIO(text)) for name, text in found["tables"].items()}
            return Outcome(tables, found["seconds"])
        started = time.process_time()
        computed = study.compute(scale, tell)
        seconds = time.process_time() - started
        texts = {name: _csv(frame) for name, frame in computed.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file appears whole or not at all, so that what an interruption leaves is never half a result.
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"seconds": seconds, "tables": texts}), encoding="utf-8")
        partial.replace(path)
        return Outcome({name: pd.read_csv(io.StringIO(text)) for name, text in texts.items()}, seconds)

    def write(self, study: Study, outcome: Outcome) -> list[Path]:
        """The files of a study: its tables, its seconds, and its figure."""
        written = []
        directory = self.root / "tables"
        directory.mkdir(parents=True, exist_ok=True)
        for name, frame in outcome.tables.items():
            path = directory / f"{name}.csv"
            path.write_text(_csv(frame), encoding="utf-8")
            written.append(path)
        seconds = {**self.seconds(), study.name: round(outcome.seconds, 1)}
        frame = pd.DataFrame(sorted(seconds.items()), columns=["study", "seconds"])
        (directory / "seconds.csv").write_text(_csv(frame), encoding="utf-8")
        if study.draw is not None:
            written.append(study.draw(outcome.tables, self.figure(study)))
        return written

    def read(self, study: Study) -> Tables | None:
        """The tables of a study as written, or None where one is missing."""
        paths = {name: self.root / "tables" / f"{name}.csv" for name in study.tables}
        if not all(path.exists() for path in paths.values()):
            return None
        return {name: pd.read_csv(path) for name, path in paths.items()}

    def seconds(self) -> dict[str, float]:
        """Seconds of one core that each study took when it was last written."""
        path = self.root / "tables" / "seconds.csv"
        if not path.exists():
            return {}
        frame = pd.read_csv(path)
        return dict(zip(frame["study"], frame["seconds"].astype(float), strict=True))


def cell(value: object, digits: int = 4) -> str:
    """A value as text: nothing for what is missing, ∞ for what is not private."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.{digits}f}"
    return str(value)


def print_frame(frame: pd.DataFrame, title: str, digits: Mapping[str, int] | None = None) -> None:
    """Print a table, with a rule where its first column changes."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
    for name in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[name])
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    previous = None
    for row in frame.itertuples(index=False):
        if previous is not None and row[0] != previous:
            table.add_section()
        previous = row[0]
        shown = (cell(value, (digits or {}).get(name, 4)) for name, value in zip(frame, row, strict=True))
        table.add_row(*shown)
    Console(width=max(110, Console().width)).print(table)


def progress(total: int) -> tuple[Progress, Callable[[str], Tell]]:
    """A display that is silent where there is no terminal, and what gives a study its line there."""
    console = Console(file=sys.stderr)
    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    studies = display.add_task("studies", total=total, doing="", visible=total > 1)
    started = itertools.count()

    def line(name: str) -> Tell:
        task = display.add_task(name, total=1.0, doing="")
        display.update(studies, completed=next(started))

        def tell(share: float, doing: str) -> None:
            display.update(task, completed=share, doing=doing)

        return tell

    return display, line


def _csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, float_format=_DIGITS, lineterminator="\n"))


def _digest(scale: Scale) -> str:
    """What identifies the code that computes, and how much; the code of the page is no part of it."""
    found = hashlib.sha256(json.dumps(scale.key(), sort_keys=True).encode())
    package = Path(fl_privquant.__file__).parent
    for path in sorted([*package.rglob("*.py"), *HOME.glob("*.py")]):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
