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

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

try:
    import hydra
except ModuleNotFoundError:
    sys.exit("simulations need packages that are not here: pip install 'fl-privquant[simulation]'")
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_privquant.accounting import PrivacyStatement, Unit, ViewKind
from fl_privquant.cli import program
from fl_privquant.errors import PrivQuantError
from simulations.runner.apps.user_app import call_in_own_process
from simulations.runner.callback import RunsCallback, read_outcomes
from simulations.runner.config import CONF, RunConfig, configured_app
from simulations.runner.config_errors import explain_refusal
from simulations.runner.progress import format_epsilons, get_position, name_with_seed, set_position
from simulations.runner.results import RunDirectory

_EXIT_BUDGET = 3


def execute(config: RunConfig) -> dict[str, Any]:
    """The summary of a run, which is read if the run is finished; otherwise the run is started or resumed.

    ``summary["stopped"]`` is None, or says why the run's budget ended it before the last round.
    """
    directory = RunDirectory.of(config)
    finished = directory.summary()
    if finished is None:
        with directory.lock():
            # The process that held it before may have finished the run.
            finished = directory.summary()
            if finished is None and config.app is None:
                finished = _run(config, directory)
            elif finished is None:
                finished = call_in_own_process(_run_app, config, directory, get_position())
    # Also for a run that was killed after its summary was written.
    directory.clean_up()
    return finished


def _run_app(config: RunConfig, directory: RunDirectory, position: str) -> dict[str, Any]:
    # What a sweep has set is not known to a process that was spawned, as on macOS.
    set_position(position)
    return _run(config, directory)


def _run(config: RunConfig, directory: RunDirectory) -> dict[str, Any]:
    directory.write_json("config.json", config.to_mapping())
    start = time.perf_counter()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from fl_privquant.flower.simulation import Federation, InlineEngine, RayEngine

    # An invalid task or app is refused before anything starts.
    components = _find_components(config)
    # All nodes are simulated, so that their limits do not forbid seeds.
    limits = {"privquant-max-epsilon": config.privacy.max_epsilon, "privquant-simulated": True}
    if config.privacy.budget is not None and not config.secagg.enabled:
        # With secure aggregation the budget is for the aggregate view, which the server keeps.
        limits |= {"privquant-budget": config.privacy.budget, "privquant-budget-delta": config.privacy.delta}
    federation = Federation(
        num_clients=config.federation.num_clients,
        run_config={"config": config.to_json()},
        node_config={key: value for key, value in limits.items() if value is not None},
        seed=config.seed,
    )
    engine = RayEngine if config.engine.name == "ray" else InlineEngine
    runner = engine(**config.engine.options)
    with _quiet_flower(config.app is not None):
        done = runner.run(*components, federation)
    ending = done.state.config_records["ending"]
    summary = {
        **json.loads(str(ending["row"])),
        "wall_seconds": time.perf_counter() - start,
        "finished": True,
        "stopped": ending["stopped"] or None,
    }
    directory.finish(summary, durable=config.privacy.randomness != "seeded")
    return summary


def _find_components(config: RunConfig) -> tuple[str, str]:
    """Where the server and the client of a run are, once what they work on is known to be usable."""
    if config.app is not None:
        app = configured_app(config)
        app.server()
        app.client()
        return "simulations.runner.apps.app_run:server_app", "simulations.runner.apps.app_run:client_app"
    from simulations.tasks.task import get_task

    get_task(config)
    client = "secure_client_app" if config.secagg.enabled and config.secagg.masked else "client_app"
    return "simulations.runner.app:server_app", f"simulations.runner.app:{client}"


@hydra.main(config_path=str(CONF.resolve()), config_name="config", version_base="1.3")
def job(settings: DictConfig) -> dict[str, Any]:
    """One job of Hydra's: run, and say how it went; mistakes of the user end this run, not its sweep."""
    try:
        config = cast(RunConfig, OmegaConf.to_object(settings))
        # Also where another run of the same sweep differs in nothing that has an effect.
        before = "" if RunDirectory.of(config).summary() is None else " (finished before)"
        summary = execute(config)
        spent = _final_statements(config, summary)
    except PrivQuantError as error:
        return {"error": str(error)}
    except OmegaConfBaseException as error:
        return {"error": str(explain_refusal(error))}
    final = "; ".join(statement.brief for statement in spent)
    protects = any(math.isfinite(statement.epsilon) for statement in spent)
    return {
        "study": str(Path(config.output) / config.study),
        "run": config.run_name,
        "panel": config.panel,
        "name": f"{name_with_seed(config)}{before}",
        "summary": summary,
        "spent": f"final privacy cost: {final}" if protects else final,
        "spent_in_short": format_epsilons([_main_statement(config, spent)]),
    }


def main() -> None:
    """Run what the command line asks for; errors of the user are messages, and the exit code is not 0."""
    # Hydra raises its errors, so that they are explained below, in place of printing them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    RunsCallback.directory = RunsCallback.total = None
    try:
        job()
    except KeyboardInterrupt:
        done = sum("summary" in outcome for outcome in read_outcomes())
        finished = f"{done} of {RunsCallback.total} runs are finished; " if RunsCallback.total else ""
        program.exit_interrupted(f"{finished}the same command goes on where this one stopped")
    except (HydraException, OmegaConfBaseException) as error:
        program.fail(explain_refusal(error))
    except (PrivQuantError, OSError) as error:
        program.fail(error)
    except ValueError as error:
        # Hydra refuses some overrides so, before it calls back.
        if RunsCallback.directory is None:
            program.fail(error)
        raise
    _conclude(read_outcomes(), in_sweep=RunsCallback.total is not None)


def _conclude(outcomes: list[dict[str, Any]], in_sweep: bool) -> None:
    """Report on the runs of a command, and end the process with its exit code."""
    finished = [outcome for outcome in outcomes if "summary" in outcome]
    for study in sorted({outcome["study"] for outcome in finished}):
        if in_sweep:
            from simulations.report import show_report

            show_report(Path(study), {run["panel"] for run in finished if run["study"] == study})
        else:
            run = finished[0]["run"]
            print(f"results in {study}/{run}; python -m simulations.report {study} makes a report")
    if len(finished) < len(outcomes):
        sys.exit(program.EXIT_ERROR)
    if any(outcome["summary"].get("stopped") for outcome in finished):
        sys.exit(_EXIT_BUDGET)


def _final_statements(config: RunConfig, row: dict[str, Any]) -> list[PrivacyStatement]:
    """The final cost of a client's run, in the view that the run is about and in the local one.

    With a trusted server that is the view of an adversary who sees the models, with secure aggregation that
    of sums, and else the local view itself. Where clients are drawn in secret, the view of an adversary who
    sees only the models stands beside these. If records are protected, the cost is a record's.
    """
    # In provenance.json each statement has its own delta and view, such as sums of 9 to 18 clients.
    origin = json.loads((RunDirectory.of(config).path / "provenance.json").read_text())
    stated = [PrivacyStatement.from_dict(statement) for statement in origin["statements"]]
    of_records = [statement for statement in stated if statement.unit == Unit.RECORD]
    if of_records:
        return of_records
    totals = {statement.view.kind: statement for statement in stated if statement.unit == Unit.TOTAL}
    epsilon, delta, relation = (
        row["epsilon_client_total"],
        row["delta_client_total"],
        config.privacy.wanted_relation,
    )
    local = PrivacyStatement(epsilon, delta, Unit.TOTAL, relation=relation)
    local, models = totals.pop(ViewKind.LOCAL, local), totals.pop(ViewKind.MODELS, None)
    if not totals and math.isinf(local.epsilon):
        return [local]
    return [*totals.values(), local, *([models] if models else [])]


def _main_statement(config: RunConfig, spent: list[PrivacyStatement]) -> PrivacyStatement:
    """Of the final statements, the one that the run is about; all of them would not fit into a line."""
    if spent[0].unit is not Unit.RECORD:
        return spent[0]
    relation = config.privacy.wanted_relation
    same = [statement for statement in spent if statement.relation is relation] or spent
    return next((total for total in same if total.view.kind is not ViewKind.LOCAL), same[0])


@contextlib.contextmanager
def _quiet_flower(of_app: bool) -> Iterator[None]:
    """Warnings only of what Flower logs, while a run lasts; the process may do other things after it.

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
    if of_app:
        known = (*known, "no usable update, zeros are released")

    def is_worth_logging(record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in known)

    logger = logging.getLogger("flwr")
    level, propagate = logger.level, logger.propagate
    # Flower configures logging when it is imported, and Hydra would print every line twice.
    logger.propagate = False
    if not os.environ.get("FL_PRIVQUANT_VERBOSE"):
        logger.setLevel(logging.WARNING)
        logger.addFilter(is_worth_logging)
    try:
        yield
    finally:
        logger.removeFilter(is_worth_logging)
        logger.setLevel(level)
        logger.propagate = propagate


if __name__ == "__main__":
    main()
