"""``python -m simulations.run``: one run, or with ``-m`` a sweep, configured by Hydra.

    python -m simulations.run mechanism=optm mechanism.epsilon=1 mechanism.bits=2 task=digits
    python -m simulations.run -m mechanism=optm,rqm mechanism.epsilon=0.5,1,2 seed=0,1,2
    python -m simulations.run -m experiment=default hydra/launcher=joblib

A run whose results are there is skipped, one that was interrupted goes on from its checkpoint. Results
are in ``outputs/<study>/<run>``, which one process at a time may write to; a sweep ends with a report.

Exit codes: 0 if every run was completed; 3 if a privacy budget ended some of them early, with the model so
far as their result; 2 if there were errors.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from fl_privquant.accounting import LOCAL, PrivacyStatement, Unit, View
from fl_privquant.errors import PrivQuantError
from simulations.config import RunConfig
from simulations.overrides import check_overrides
from simulations.progress import SWEEP_POSITION
from simulations.results import RunDirectory

__all__ = ["execute", "main"]

_SESSION = "FL_PRIVQUANT_SESSION"
_NOTES = "notes"
_SWEEP_TOTAL = "FL_PRIVQUANT_SWEEP_TOTAL"
_EXIT_ERROR = 2
_EXIT_BUDGET = 3


def execute(config: RunConfig) -> dict[str, Any]:
    """The summary of a run: read if it is finished, else run, or gone on with.

    ``summary["stopped"]`` is None, or says why the run's budget ended it before the last round.
    """
    directory = RunDirectory.of(config)
    finished = directory.summary()
    if finished is None:
        with directory.held():
            # Whoever held it before may have finished it.
            finished = directory.summary() or _run(config, directory)
    # Also after a kill between the summary and this.
    directory.tidy()
    return finished


def _run(config: RunConfig, directory: RunDirectory) -> dict[str, Any]:
    directory.write_json("config.json", config.to_mapping())
    start = time.perf_counter()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from fl_privquant.flower.engines import Federation, engine

    options: dict[str, Any] = {"threads": config.engine.threads}
    if config.engine.name == "ray":
        options = {"address": config.engine.address, "client_cpus": config.engine.client_cpus}
    limits = {"privquant-max-epsilon": config.privacy.max_epsilon}
    if config.privacy.budget is not None and not config.secagg.enabled:
        # With secure aggregation the budget is for the aggregate view, which the server keeps.
        limits |= {"privquant-budget": config.privacy.budget, "privquant-budget-delta": config.privacy.delta}
    federation = Federation(
        num_clients=config.federation.num_clients,
        run_config={"config": json.dumps(config.to_mapping())},
        node_config={key: value for key, value in limits.items() if value is not None},
        seed=config.seed,
    )
    client = "secure_client_app" if config.secagg.enabled and config.secagg.masked else "client_app"
    runner = engine(config.engine.name, **options)
    with _quiet_flower():
        done = runner.run("simulations.app:server_app", f"simulations.app:{client}", federation)
    import pandas as pd

    last = pd.read_parquet(directory.path / "rounds.parquet").iloc[-1].to_dict()
    summary = {key: _plain(value) for key, value in last.items()}
    summary |= {
        "wall_seconds": time.perf_counter() - start,
        "finished": True,
        "stopped": done.state.config_records["ending"]["stopped"] or None,
    }
    directory.finish(summary)
    return summary


@hydra.main(config_path="../conf", config_name="config", version_base="1.3")
def job(composed: DictConfig) -> None:
    """One job of Hydra's: run, and note how it went for :func:`main`, whichever process this is."""
    note: dict[str, Any] = {}
    try:
        os.environ[SWEEP_POSITION] = _position()
        values = OmegaConf.to_container(composed, resolve=True)
        config = RunConfig.from_mapping(values)  # type: ignore[arg-type]
        note = {"study": str(Path(config.output) / config.study), "run": config.run_name}
        note["summary"] = execute(config)
    except PrivQuantError as error:
        note["error"] = str(error)
    with (Path(os.environ[_SESSION]) / _NOTES).open("a") as session:
        session.write(json.dumps(note) + "\n")
    _say(note)


def main() -> None:
    """Run what the command line asks for; errors of the user are messages, and the exit code is not 0."""
    console = Console(stderr=True)
    asked = get_args_parser().parse_args()
    try:
        total = check_overrides(asked.overrides)
    except PrivQuantError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(_EXIT_ERROR)
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / _NOTES
        session.touch()
        os.environ[_SESSION] = folder
        os.environ[_SWEEP_TOTAL] = str(total) if asked.multirun else ""
        job()
        notes = [json.loads(line) for line in session.read_text().splitlines()]
    if not notes:
        return  # --help, --cfg and the like
    for study in sorted({note["study"] for note in notes if "summary" in note}):
        if asked.multirun:
            from simulations.report import show_report

            show_report(Path(study))
        else:
            print(
                f"results in {study}/{notes[0]['run']}; python -m simulations.report {study} makes a report"
            )
    if any("error" in note for note in notes):
        sys.exit(_EXIT_ERROR)
    if any(note["summary"].get("stopped") for note in notes):
        sys.exit(_EXIT_BUDGET)


def _position() -> str:
    """Where this run stands in its sweep; in parallel ones nothing is drawn."""
    runtime = HydraConfig.get()
    if "joblib" in str(runtime.launcher.get("_target_", "")).lower():
        return "quiet"
    total = os.environ.get(_SWEEP_TOTAL)
    return (
        f"{runtime.job.num + 1}/{total}"
        if total and runtime.mode is not None and not OmegaConf.is_missing(runtime.job, "num")
        else ""
    )


def _say(note: dict[str, Any]) -> None:
    console = Console(stderr=True)
    if "error" in note:
        console.print(f"[bold red]error:[/] {escape(note['error'])}", soft_wrap=True, highlight=False)
        return
    row = note["summary"]
    quality = f"loss {row['loss']:.4g}" if row["accuracy"] is None else f"accuracy {row['accuracy']:.4f}"
    console.print(
        f"{note['run']}: {quality} after round {row['round']}, {row['wall_seconds']:.1f} s; {_spent(row)}",
        soft_wrap=True,
    )
    if row.get("stopped"):
        console.print(f"[bold]stopped:[/] {escape(row['stopped'])}", soft_wrap=True, highlight=False)


def _spent(row: dict[str, Any]) -> str:
    """What a client has spent, counted in full: the figures that tables and reports show."""
    in_sum = row["epsilon_client_total_sum"]
    epsilon = row["epsilon_client_total"] if in_sum is None else in_sum
    view = LOCAL if in_sum is None or row["num_honest"] is None else View(int(row["num_honest"]))
    spent = PrivacyStatement(epsilon, row["delta_client_total"], Unit.TOTAL, str(view))
    return f"spent, counted in full: {spent.brief}"


@contextlib.contextmanager
def _quiet_flower() -> Iterator[None]:
    """Warnings only of what Flower logs, while a run lasts; the process may do other things after it."""
    logger = logging.getLogger("flwr")
    level, propagate = logger.level, logger.propagate
    # Flower configures logging when it is imported, and Hydra would print every line twice.
    logger.propagate = False
    if not os.environ.get("FL_PRIVQUANT_VERBOSE"):
        logger.setLevel(logging.WARNING)
        logger.addFilter(_worth_saying)
    try:
        yield
    finally:
        logger.removeFilter(_worth_saying)
        logger.setLevel(level)
        logger.propagate = propagate


def _worth_saying(record: logging.LogRecord) -> bool:
    """What the config already says is not a warning: no federated evaluation, seeded randomness.

    Nor is what :func:`main` says itself: that a budget has ended the run.
    """
    known = ("fraction_evaluate is set to 0", "privacy is simulated", "the run ends here as a result")
    return not any(text in record.getMessage() for text in known)


def _plain(value: Any) -> Any:
    """A number as JSON knows it: not a number is null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and value != value else value


if __name__ == "__main__":
    main()
