"""``python -m simulations.aggregate``: tables, figure and page of the study; it can be resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from joblib import Parallel, delayed
from rich.console import Console

from fl_privquant.errors import PrivQuantError
from simulations.aggregate.designs import design_for, error_rows
from simulations.aggregate.page import FIGURE, PAGE, TABLES, draw, page
from simulations.aggregate.settings import PEERS, Settings, Training
from simulations.aggregate.training import deal
from simulations.central import noise_of_sum
from simulations.config import CENTRAL, TaskConfig
from simulations.data import load_examples

__all__ = ["main", "train_once", "training_jobs"]

_TRAINING_BITS = 2


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
            _TRAINING_BITS,
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


def _append(path: Path, row: dict[str, object]) -> None:
    pd.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.6g")


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
            if not (TABLES / "errors.csv").exists():
                rows = pd.DataFrame(error_rows(settings))
                rows.to_csv(TABLES / "errors.csv", index=False, float_format="%.6g")
            _train(settings, mnist, jobs)
        draw(FIGURE)
        PAGE.write_text(page())
        print(PAGE)
    except PrivQuantError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error


def _train(settings: Settings, mnist: Path | None, jobs: int) -> None:
    """Run what the table of runs does not have; rows are written as they come."""
    path = TABLES / "training.csv"
    columns = ["task", "clients", "run_epsilon", "mechanism", "seed"]
    done = set()
    if path.exists():
        done = set(pd.read_csv(path)[columns].itertuples(index=False, name=None))
    left = [
        job
        for job in training_jobs(settings)
        if (job[0].task, job[0].clients, job[1], job[2], job[3]) not in done
    ]
    # One thread a run: several runs share the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    runs = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(train_once)(settings, *job, mnist) for job in left
    )
    for number, row in enumerate(runs, start=1):
        _append(path, row)
        Console(stderr=True).print(f"run {number} of {len(left)}", highlight=False)
    if path.exists():
        table = pd.read_csv(path).sort_values(columns)
        table.to_csv(path, index=False, float_format="%.6g")


if __name__ == "__main__":
    typer.run(main)
