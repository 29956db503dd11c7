"""What a study is: parts that compute tables, figures that are drawn from these tables, and a page.

Whatever is printed, drawn or written about a study comes from its tables, which are CSV files. Finished parts
are also kept under ``outputs``, by a hash of their configuration: a study that was interrupted goes on where
it stopped.
"""

from __future__ import annotations

import io
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant.cli.plots import STYLE, pyplot, save
from fl_privquant.errors import InvalidSpecError
from fl_privquant.files import replace_file
from simulations.config import hash_of
from simulations.results import ResultsError

DATA_VARIABLES = {name: f"FL_PRIVQUANT_{name.upper()}" for name in ("mnist", "fashion_mnist", "shakespeare")}
"""Environment variables that say where the files of a task lie."""

Tables = dict[str, pd.DataFrame]
ReadTable = Callable[[str], pd.DataFrame]
"""Reads a table of a study by its name; raises ResultsError where the table is missing."""
Tell = Callable[[float, str], None]
"""A function that is told which share of a part is done, and what is being done."""

_DIGITS = "%.7g"


@dataclass(frozen=True)
class Scale:
    """How much is computed, and where data and results lie.

    The defaults are what the paper ran, and more where that costs little.

    Parameters
    ----------
    trials, vector_trials
        Random vectors for each mechanism and epsilon; the second for mechanisms that encode one at a time.
    cancer_runs, mnist_runs
        Training runs; the paper has 30 and 5. The first 30 on breast cancer are reported on their own.
    mnist_examples
        Training examples of MNIST in the paper's experiment; all 60,000 if not given.
    configurations
        Random configurations in each check of a theorem.
    overrides
        Overrides of every federated run.
    mnist, fashion_mnist, shakespeare
        Directories of the IDX files of MNIST and of Fashion-MNIST, and of Shakespeare's roles.
    output
        Directory of runs and of finished parts.
    """

    trials: int = 10_000
    vector_trials: int = 500
    cancer_runs: int = 1_000
    mnist_runs: int = 5
    mnist_examples: int | None = None
    configurations: int = 200
    overrides: tuple[str, ...] = ()
    mnist: Path | None = None
    fashion_mnist: Path | None = None
    shakespeare: Path | None = None
    output: Path = Path("outputs")

    def data_root(self, task: str) -> str:
        """The directory of a task's data, as given or from the environment.

        Raises
        ------
        InvalidSpecError
            Neither says where it is.
        """
        variable = DATA_VARIABLES[task]
        root = getattr(self, task) or os.environ.get(variable)
        if not root:
            files = "roles.jsonl.gz" if task == "shakespeare" else "four IDX files"
            raise InvalidSpecError(
                f"{task}: no directory given; pass --{task.replace('_', '-')} DIRECTORY or set {variable} to "
                f"the directory that holds its {files}"
            )
        return str(root)

    def settings(self) -> dict[str, Any]:
        """The settings that results depend on: all but the places of data and results."""
        return {name: value for name, value in vars(self).items() if name not in (*DATA_VARIABLES, "output")}


QUICK = Scale(
    trials=400,
    vector_trials=10,
    cancer_runs=30,
    mnist_runs=2,
    mnist_examples=3_200,
    configurations=40,
    overrides=("federation.rounds=2", "seed=0"),
)
"""A small version of everything, to see whether it works."""


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """One question of a study, and the tables that answer it.

    Parameters
    ----------
    name
        What it is called on the command line.
    title
        The question, or what the paper calls it, in a line.
    needs
        The task whose files it needs (one of :data:`DATA_VARIABLES`), if any.
    shown
        Columns of its first table that are printed, where not all are.
    note
        What is printed with the table: unit and view of its epsilons.
    """

    name: str
    title: str
    needs: str = ""
    shown: tuple[str, ...] = ()
    note: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of its tables, the most important one first."""
        return (self.name,)

    @property
    def command(self) -> str:
        """The command that computes its tables."""
        data = f" --{self.needs.replace('_', '-')} DIRECTORY" if self.needs else ""
        return f"python -m simulations.studies {self.name}{data}"

    def configuration(self, scale: Scale) -> Mapping[str, Any]:
        """Everything that its tables depend on, besides the code."""
        return {"part": self.name, **scale.settings()}

    @abstractmethod
    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Its tables by name."""


@dataclass(frozen=True, kw_only=True)
class Computed(Part):
    """A part whose tables a function of the scale computes.

    ``table_names`` are the names of its tables; without them there is one table, with the part's own name.
    """

    function: Callable[[Scale, Tell], Tables | pd.DataFrame]
    table_names: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of its tables, the most important one first."""
        return self.table_names or (self.name,)

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Its tables by name."""
        computed = self.function(scale, tell)
        return {self.name: computed} if isinstance(computed, pd.DataFrame) else computed


@dataclass(frozen=True, kw_only=True)
class Grid(Part):
    """A part whose table has the rows of each cell of a grid.

    Parameters
    ----------
    cells
        The cells of the grid, which are arguments of ``rows``; a function of the scale.
    rows
        The row of a cell, or its rows; None where a cell has none.
    """

    cells: Callable[[Scale], Iterable[tuple[Any, ...]]]
    rows: Callable[..., Mapping[str, Any] | Iterable[Mapping[str, Any]] | None]

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Its table."""
        cells, table = list(self.cells(scale)), list[Mapping[str, Any]]()
        for place, cell in enumerate(cells):
            tell(place / len(cells), ", ".join(map(str, cell)))
            rows = self.rows(*cell)
            table += [rows] if isinstance(rows, Mapping) else rows or ()
        return {self.name: pd.DataFrame(table)}


@dataclass(frozen=True)
class Figure:
    """A figure: what draws it from tables, and the tables that it cannot do without."""

    name: str
    draw: Callable[[ReadTable], Any]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The tables of a part, the seconds of one core that they took, and whether an earlier run made them."""

    tables: Tables
    seconds: float
    kept: bool = False


@dataclass(frozen=True)
class Study:
    """Parts, figures and a page about one subject.

    Parameters
    ----------
    home
        The study's directory, with its page template, its committed tables, figures and page.
    parts, figures
        What is computed, and what is drawn from it.
    numbers
        What the page template calls ``numbers``, from the tables.
    """

    home: Path
    parts: tuple[Part, ...]
    figures: tuple[Figure, ...]
    numbers: Callable[[ReadTable], object]

    @property
    def name(self) -> str:
        """The name of the study on the command line."""
        return self.home.name

    def part(self, name: str) -> Part:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True)
class Store:
    """Where a study's tables, figures and page are written, and where finished parts are kept meanwhile."""

    root: Path
    kept: Path = field(default_factory=lambda: Path("outputs") / "parts")

    @property
    def page(self) -> Path:
        """The page of the study."""
        return self.root / "README.md"

    def fetch(self, part: Part, scale: Scale, tell: Tell, fresh: bool = False) -> Outcome:
        """The outcome of a part: kept from before, if its configuration is the same, or computed now."""
        path = self.kept / f"{part.name}-{hash_of(part.configuration(scale))}.json"
        kept = None if fresh else _kept(path)
        if kept is not None:
            return kept
        started = time.process_time()
        computed = part.compute(scale, tell)
        seconds = time.process_time() - started
        texts = {name: _csv(frame) for name, frame in computed.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file appears whole or not at all: an interruption never leaves half a result.
        replace_file(path, lambda file: file.write_text(json.dumps({"seconds": seconds, "tables": texts})))
        return Outcome({name: _from_csv(io.StringIO(text)) for name, text in texts.items()}, seconds)

    def write(self, part: Part, outcome: Outcome) -> list[Path]:
        """Write the tables of a part and its seconds; the paths of its tables."""
        directory = self.root / "tables"
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for name, frame in outcome.tables.items():
            written.append(directory / f"{name}.csv")
            written[-1].write_text(_csv(frame), encoding="utf-8")
        seconds = {**self.seconds(), part.name: round(outcome.seconds, 1)}
        frame = pd.DataFrame(sorted(seconds.items()), columns=["part", "seconds"])
        (directory / "seconds.csv").write_text(_csv(frame), encoding="utf-8")
        return written

    def read(self, name: str) -> pd.DataFrame:
        """A table as it was written.

        Raises
        ------
        ResultsError
            There is no such table.
        """
        path = self.root / "tables" / f"{name}.csv"
        if not path.exists():
            raise ResultsError(f"{path} is missing; python -m simulations.studies computes it")
        return _from_csv(path)

    def has(self, names: Iterable[str]) -> bool:
        """Whether all these tables were written."""
        return all((self.root / "tables" / f"{name}.csv").exists() for name in names)

    def seconds(self) -> dict[str, float]:
        """Seconds of one core that each part took when it was last computed."""
        if not self.has(["seconds"]):
            return {}
        frame = self.read("seconds")
        return dict(zip(frame["part"], frame["seconds"].astype(float), strict=True))

    def draw(self, study: Study) -> list[Path]:
        """Draw every figure whose tables are there; the paths of the figures."""
        with pyplot().rc_context(STYLE):
            return [
                save(figure.draw(self.read), self.root / "figures" / f"{figure.name}.png")
                for figure in study.figures
                if self.has(figure.needs)
            ]


def _kept(path: Path) -> Outcome | None:
    """The outcome that was computed before, if its file is there and intact."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        tables = {name: _from_csv(io.StringIO(text)) for name, text in content["tables"].items()}
        return Outcome(tables, float(content["seconds"]), kept=True)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _csv(frame: pd.DataFrame) -> str:
    """The table as CSV, with few enough digits that all machines agree on them."""
    return str(frame.to_csv(index=False, float_format=_DIGITS, lineterminator="\n"))


def _from_csv(source: Path | io.StringIO) -> pd.DataFrame:
    return pd.read_csv(source, dtype={"view": "string"})
