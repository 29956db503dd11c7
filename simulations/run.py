"""``python -m simulations.run``: one run, or with ``-m`` a sweep, configured by Hydra.

    python -m simulations.run mechanism=optm mechanism.epsilon=1 mechanism.bits=2 task=digits
    python -m simulations.run -m mechanism=optm,rqm mechanism.epsilon=0.5,1,2 seed=0,1,2
    python -m simulations.run -m experiment=default/whole_run hydra/launcher=joblib

Finished runs are skipped, and interrupted ones go on from their last checkpoint. Results are in
``outputs/<study>/<run>``, which one process at a time may write to; a sweep ends with a report.

Exit codes: 0 if every run was completed; 3 if a privacy budget ended some of them early, with the model so
far as their result; 2 if there were errors; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
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
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape

from fl_privquant.accounting import PrivacyStatement, Unit, ViewKind
from fl_privquant.cli import program
from fl_privquant.errors import PrivQuantError
from simulations.apps.user_app import UserApp
from simulations.config import RunConfig
from simulations.keys.app_keys import configured_app
from simulations.overrides import CONF, AskedRuns, asked_runs, composed
from simulations.progress import SWEEP_POSITION, epsilon_of_lines, name_with_seed, print_line, short_epsilons
from simulations.results import RunDirectory
from simulations.users import with_users

_SESSION = "FL_PRIVQUANT_SESSION"
_NOTES = "notes"
_SWEEP_TOTAL = "FL_PRIVQUANT_SWEEP_TOTAL"
_EXIT_BUDGET = 3


def execute(config: RunConfig) -> dict[str, Any]:
    """The summary of a run, which is read if the run is finished; otherwise the run is started or resumed.

    ``summary["stopped"]`` is None, or says why the run's budget ended it before the last round.
    """
    directory = RunDirectory.of(config)
    finished = directory.summary()
    if finished is None:
        with directory.held():
            # The process that held it before may have finished the run.
            finished = directory.summary() or _run(config, directory)
    # Also for a run that was killed after its summary was written.
    directory.tidy()
    return finished


def _run(config: RunConfig, directory: RunDirectory) -> dict[str, Any]:
    directory.write_json("config.json", config.to_mapping())
    start = time.perf_counter()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from fl_privquant.flower.engines import Federation, engine

    # An invalid task or app is refused before anything starts.
    components = _components(config)
    # All nodes are simulated, so that their limits do not forbid seeds.
    limits = {"privquant-max-epsilon": config.privacy.max_epsilon, "privquant-simulated": True}
    if config.privacy.budget is not None and not config.secagg.enabled:
        # With secure aggregation the budget is for the aggregate view, which the server keeps.
        limits |= {"privquant-budget": config.privacy.budget, "privquant-budget-delta": config.privacy.delta}
    federation = Federation(
        num_clients=config.federation.num_clients,
        run_config={"config": json.dumps(config.to_mapping())},
        node_config={key: value for key, value in limits.items() if value is not None},
        seed=config.seed,
    )
    runner = engine(config.engine.name, **config.engine.options)
    try:
        with _quiet_flower():
            done = runner.run(*components, federation)
    finally:
        UserApp.deactivate()
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


def _components(config: RunConfig) -> tuple[str, str]:
    """Where the server and the client of a run are, once what they work on is known to be usable."""
    if config.app is not None:
        app = configured_app(config)
        app.server()
        app.client()
        return "simulations.apps.app_run:server_app", "simulations.apps.app_run:client_app"
    from simulations.tasks import task_of

    task_of(config)
    client = "secure_client_app" if config.secagg.enabled and config.secagg.masked else "client_app"
    return "simulations.app:server_app", f"simulations.app:{client}"


@hydra.main(config_path=str(CONF.resolve()), config_name="config", version_base="1.3")
def job(config_of_job: DictConfig) -> None:
    """One job of Hydra's: run, and note how it went for :func:`main`, whichever process this is."""
    note: dict[str, Any] = {}
    try:
        os.environ[SWEEP_POSITION] = _position()
        values = OmegaConf.to_container(config_of_job, resolve=True)
        config = RunConfig.from_mapping(with_users(values))  # type: ignore[arg-type]
        study = str(Path(config.output) / config.study)
        note = {"study": study, "run": config.run_name, "panel": config.panel}
        # Also where another run of the same sweep differs in nothing that has an effect.
        before = "" if RunDirectory.of(config).summary() is None else " (finished before)"
        note["named"] = f"{name_with_seed(config)}{before}"
        note["summary"] = execute(config)
        spent = _spent(config, note["summary"])
        final = "; ".join(statement.brief for statement in spent)
        protects = any(math.isfinite(statement.epsilon) for statement in spent)
        note["spent"] = f"final privacy cost: {final}" if protects else final
        note["spent_in_short"] = short_epsilons(spent)
    except PrivQuantError as error:
        note["error"] = str(error)
    except OmegaConfBaseException as error:
        note["error"] = str(error).strip().splitlines()[0]
    notes = Path(os.environ[_SESSION]) / _NOTES
    with notes.open("a") as session:
        session.write(json.dumps(note) + "\n")
    total = os.environ.get(_SWEEP_TOTAL, "")
    _say(note, f"{len(notes.read_text().splitlines())}/{total} " if total else "")


def main() -> None:
    """Run what the command line asks for; errors of the user are messages, and the exit code is not 0."""
    _open_app_config(sys.argv)
    asked = _asked()
    try:
        own = None if asked.config_dir is None else Path(asked.config_dir)
        runs = asked_runs(asked.overrides, asked.multirun, own)
        if asked.help:
            _print_help(asked.overrides, own)
            return
    except PrivQuantError as error:
        program.fail(error)
    with tempfile.TemporaryDirectory() as folder:
        notes = _notes_of_jobs(Path(folder) / _NOTES, runs if asked.multirun else None)
    if not notes:
        return  # --cfg and the like
    for study in sorted({note["study"] for note in notes if "summary" in note}):
        if asked.multirun:
            from simulations.report import show_report

            show_report(Path(study), {note["panel"] for note in notes if note.get("study") == study})
        else:
            print(
                f"results in {study}/{notes[0]['run']}; python -m simulations.report {study} makes a report"
            )
    if any("error" in note for note in notes):
        sys.exit(program.EXIT_ERROR)
    if any(note["summary"].get("stopped") for note in notes):
        sys.exit(_EXIT_BUDGET)


def _notes_of_jobs(session: Path, sweep: AskedRuns | None) -> list[dict[str, Any]]:
    """Run the jobs, those of a ``sweep`` or one; what each has noted.

    Ctrl-C ends the process with one line: every run that has begun has a checkpoint of its last round.
    """
    session.touch()
    os.environ[_SESSION] = str(session.parent)
    total = None if sweep is None else sweep.total
    os.environ[_SWEEP_TOTAL] = "" if total is None else str(total)
    if sweep is not None:
        _open(sweep)
    try:
        job()
    except KeyboardInterrupt:
        done = sum("summary" in json.loads(line) for line in session.read_text().splitlines())
        finished = f"{done} of {total} runs are finished; " if total else ""
        program.interrupted(f"{finished}the same command goes on where this one stopped")
    return [json.loads(line) for line in session.read_text().splitlines()]


def _open(sweep: AskedRuns) -> None:
    """Say which question a sweep answers, how many runs it has, and what the epsilon of their lines is."""
    console = Console(stderr=True)
    if sweep.first.panel is not None:
        print_line(console, escape(str(sweep.first.panel)))
    print_line(
        console, f"sweep of {sweep.total} runs; a line for each that ends, and a report after the last"
    )
    # Parallel sweeps show no rounds, only what a run costs when it has ended.
    print_line(
        console,
        epsilon_of_lines(float(sweep.first.privacy.delta), rounds=not _in_parallel(sweep.first.hydra)),
    )


def _open_app_config(arguments: list[str]) -> None:
    """Let any key of an app's config be set: only the app knows which it has, and Hydra asks for the ++."""
    for place, argument in enumerate(arguments):
        if argument.startswith("app_config."):
            arguments[place] = f"++{argument}"


def _asked() -> argparse.Namespace:
    """The parsed command line; one line of error for what Hydra's parser does not understand."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return get_args_parser().parse_args()
    except SystemExit as end:
        if end.code:
            reason = said.getvalue().rstrip().rpartition("error: ")[2]
            program.fail(f"{reason}; options such as -m stand before all KEY=VALUE, see --help")
        raise


def _print_help(overrides: list[str], own: Path | None) -> None:
    from simulations.run_help import print_help

    config = composed(overrides, own)
    shown = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    values = OmegaConf.to_container(shown, resolve=True)
    chosen = {str(group): str(name) for group, name in config.hydra.runtime.choices.items()}
    print_help(values, chosen, CONF)  # type: ignore[arg-type]


def _position() -> str:
    """The position of this run in its sweep; "quiet" in parallel sweeps, which draw no bars."""
    runtime = HydraConfig.get()
    if _in_parallel(runtime):
        return "quiet"
    total = os.environ.get(_SWEEP_TOTAL)
    return (
        f"{runtime.job.num + 1}/{total}"
        if total and runtime.mode is not None and not OmegaConf.is_missing(runtime.job, "num")
        else ""
    )


def _in_parallel(hydra_config: Any) -> bool:
    """Whether runs of a sweep share the terminal."""
    return "joblib" in str(hydra_config.launcher.get("_target_", "")).lower()


def _say(note: dict[str, Any], position: str) -> None:
    if "error" in note:
        program.print_error(note["error"])
        return
    console = Console(stderr=True)
    row = note["summary"]
    quality = "nothing evaluated" if row["loss"] is None else f"loss {row['loss']:.4g}"
    if row["accuracy"] is not None:
        quality = f"accuracy {row['accuracy']:.4f}"
    if position:
        print_line(console, f"{position}{note['named']}: {quality}, {note['spent_in_short']}")
    else:
        seconds = f"{row['wall_seconds']:.1f} s"
        print_line(
            console, f"{note['named']}: {quality} after round {row['round']}, {seconds}; {note['spent']}"
        )
    if row.get("stopped"):
        print_line(console, f"[bold]stopped:[/] {escape(row['stopped'])}")


def _spent(config: RunConfig, row: dict[str, Any]) -> list[PrivacyStatement]:
    """The final cost of a client's run, in the view that the run is about and in the local one.

    With a trusted server that is the view of an adversary who sees the models, with secure aggregation that
    of sums, and else the local view itself. Where clients are drawn in secret, the view of an adversary who
    sees only the models stands beside these.
    """
    # In provenance.json each statement has its own delta and view, such as sums of 9 to 18 clients.
    origin = json.loads((RunDirectory.of(config).path / "provenance.json").read_text())
    stated = [PrivacyStatement.from_dict(statement) for statement in origin["statements"]]
    totals = {statement.view.kind: statement for statement in stated if statement.unit == Unit.TOTAL}
    local = PrivacyStatement(row["epsilon_client_total"], row["delta_client_total"], Unit.TOTAL)
    local, models = totals.pop(ViewKind.LOCAL, local), totals.pop(ViewKind.MODELS, None)
    if not totals and math.isinf(local.epsilon):
        return [local]
    return [*totals.values(), local, *([models] if models else [])]


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
    """Whether a log record tells the user something new.

    Left out are consequences of the configuration (no federated evaluation, seeded randomness), the end of a
    run by its budget, which :func:`main` prints itself, and what single clients log of failures that the
    server reports for all of them.
    """
    known: tuple[str, ...] = (
        "fraction_evaluate is set to 0",
        "privacy is simulated",
        "the run ends here as a result",
        "PrivQuantMod refused",
    )
    if UserApp.active() is not None:
        known = (*known, "no usable update, zeros are released")
    return not any(text in record.getMessage() for text in known)


def _plain(value: Any) -> Any:
    """A number as JSON knows it: not a number is null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and value != value else value


if __name__ == "__main__":
    main()
