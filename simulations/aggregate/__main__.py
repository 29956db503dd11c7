"""``python -m simulations.aggregate``: tables, figure and page of the study; it can be resumed."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from joblib import Parallel, delayed
from rich.console import Console

from fl_privquant.errors import PrivQuantError
from fl_privquant.files import replace_file
from simulations.aggregate.designs import design_for, error_rows
from simulations.aggregate.page import FIGURE, PAGE, TABLES, draw, page
from simulations.aggregate.settings import PEERS, TRAINING_BITS, Settings, Training
from simulations.aggregate.training import deal
from simulations.central import noise_of_sum
from simulations.config import CENTRAL, TaskConfig
from simulations.data import load_examples

__all__ = ["main", "train_missing", "train_once", "training_jobs"]


def training_jobs(settings: Settings) -> list[tuple[Training, float, str, int]]:
    """Every run of the study: task, budget, mechanism and seed."""
    return [
        (task, epsilon, name, seed)
        for task in settings.training
        for epsilon in task.epsilons
        for name in (CENTRAL, *PEERS)
        for seed in settings.seeds
    ]


def train_once(
    settings: Settings, task: Training, epsilon: float, name: str, seed: int, mnist: Path | None
) -> dict[str, object]:
    """One row of the table of runs."""
    root = None if task.task != "mnist" or mnist is None else str(mnist)
    federation = deal(load_examples(TaskConfig(name=task.task, data_root=root)), task.clients, seed)
    common = {
        "settings": settings.run_key(task, epsilon, name, seed),
        "task": task.task,
        "clients": task.clients,
        "run_epsilon": epsilon,
        "mechanism": name,
        "seed": seed,
    }
    if name == CENTRAL:
        encoder: object = noise_of_sum(task.l2_clip, settings.rounds, epsilon, settings.delta)
        reached = epsilon
    else:
        found = design_for(
            name,
            TRAINING_BITS,
            task.clients,
            federation.dimension,
            settings.rounds,
            epsilon,
            settings.delta,
        )
        if found is None:
            return common
        encoder, reached = found.mechanism, found.epsilon
    result = federation.train(encoder, settings.rounds, task.l2_clip, task.learning_rate, seed)  # type: ignore[arg-type]
    return {
        **common,
        "epsilon_reached": reached,
        "accuracy": result.accuracy,
        "mean_squared_error": result.mean_squared_error,
        "share_clipped": result.share_clipped,
    }


def _save(path: Path, rows: pd.DataFrame) -> None:
    """Replace a table: a run that is killed leaves whole rows only."""
    replace_file(path, lambda file: rows.to_csv(file, index=False, float_format="%.6g"))


def _rows(path: Path, keys: Collection[str]) -> pd.DataFrame:
    """The rows of a table that were made with these settings; others are stale, and left out."""
    table = pd.read_csv(path, dtype={"settings": str}) if path.exists() else pd.DataFrame()
    if "settings" not in table:
        return pd.DataFrame()
    return table[table["settings"].isin(keys)]


def main(
    mnist: Annotated[Path | None, typer.Option(help="Folder of MNIST's IDX files; else a download.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 2,
    only_page: Annotated[
        bool, typer.Option("--page", help="Only draw and write, from the tables that are there.")
    ] = False,
) -> None:
    """Compute what is missing of the study, then draw the figure and write the page."""
    settings = Settings.load()
    try:
        if not only_page:
            TABLES.mkdir(parents=True, exist_ok=True)
            if _rows(TABLES / "errors.csv", [settings.errors_key]).empty:
                _save(TABLES / "errors.csv", pd.DataFrame(error_rows(settings)))
            train_missing(settings, TABLES / "training.csv", mnist, jobs)
        draw(FIGURE)
        PAGE.write_text(page())
        print(PAGE)
    except PrivQuantError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error


def train_missing(settings: Settings, path: Path, mnist: Path | None, jobs: int) -> None:
    """Run what the table of runs does not have with these settings; rows are written as they come."""
    wanted = {settings.run_key(*job): job for job in training_jobs(settings)}
    table = _rows(path, wanted)
    done = set() if table.empty else set(table["settings"])
    left = [job for key, job in wanted.items() if key not in done]
    # One thread a run: several runs share the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    runs = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(train_once)(settings, *job, mnist) for job in left
    )
    for number, row in enumerate(runs, start=1):
        table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
        _save(path, table)
        Console(stderr=True).print(f"run {number} of {len(left)}", highlight=False)
    if not table.empty:
        _save(path, table.sort_values(["task", "clients", "run_epsilon", "mechanism", "seed"]))


if __name__ == "__main__":
    typer.run(main)
