"""The Flower app of the simulations: an ordinary client, an ordinary server, and PrivQuant around them.

Both sides read the whole run from ``run_config["config"]``, as JSON: so the same app runs inline, on
Ray and deployed.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Strategy

from fl_privquant.accounting import Aggregation, Budget, Plan, PrivacyStatement
from fl_privquant.codec.array_choice import ArrayChoice
from fl_privquant.codec.array_layout import Layout
from fl_privquant.encoding import Encoding
from fl_privquant.flower import (
    CheckpointStrategy,
    PrivQuantMod,
    PrivQuantStrategy,
    SecureAggregationMod,
    StoppedResult,
)
from fl_privquant.flower.policies import Policy, as_policy
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.secagg import ClientPolicy
from simulations import progress, trackers
from simulations.central import CentralGaussianStrategy, noise_of_sum
from simulations.config import CENTRAL, FederationConfig, RunConfig
from simulations.planned import aggregation_of, central_statement, central_target, plan_of, run_statement
from simulations.recording import Probe, RecordingStrategy, Row
from simulations.results import RunDirectory, provenance
from simulations.tasks import Task, task_of

__all__ = ["client_app", "secure_client_app", "server_app"]

client_app = ClientApp()
secure_client_app = ClientApp()
server_app = ServerApp()


@lru_cache(maxsize=8)
def _config(text: str) -> RunConfig:
    return RunConfig.from_mapping(json.loads(text))


@lru_cache(maxsize=2)
def _client_side(text: str) -> tuple[Task, Probe]:
    """What every client of a run in this process shares."""
    config = _config(text)
    return task_of(config), _probe(config, RunDirectory.of(config))


def _probe(config: RunConfig, directory: RunDirectory) -> Probe:
    return Probe(directory.probe, same_process=config.engine.name == "inline")


def _seed(context: Context) -> int | None:
    config = _config(str(context.run_config["config"]))
    return config.seed if config.privacy.randomness == "seeded" else None


def _policy(context: Context) -> ClientPolicy:
    """Clients of a simulation insist on what the run is configured for."""
    config = _config(str(context.run_config["config"]))
    return ClientPolicy(
        min_clients=min(3, config.federation.num_clients),
        corrupt_fraction=config.secagg.corrupt_fraction,
        dropout_fraction=config.secagg.dropout_fraction,
    )


# The node config tightens the limits (privacy.max_epsilon, and privacy.budget in the local view): see
# simulations.run.
_PRIVATE = PrivQuantMod(max_epsilon=math.inf, max_delta=1e-3, seed=_seed)


@client_app.train(mods=[_PRIVATE])
@secure_client_app.train(mods=[SecureAggregationMod(_policy), _PRIVATE])
def train(message: Message, context: Context) -> Message:
    """Train on the client's examples, as any Flower client would."""
    task, probe = _client_side(str(context.run_config["config"]))
    client = int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])  # type: ignore[arg-type]
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]
    trained = task.train(arrays, client, server_round)
    probe.leave(server_round, client, trained)
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(np.asarray(value)) for name, value in trained.items()}),
            "metrics": MetricRecord({"num-examples": task.num_examples(client)}),
        }
    )
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are not done yet; results go to the run's directory."""
    config = _config(str(context.run_config["config"]))
    directory = RunDirectory.of(config)
    task = task_of(config)
    initial = task.initial_arrays()
    dimension = Layout.of(ArrayChoice(config.encoding.include, config.encoding.exclude).of(initial)).dimension
    plan, aggregation = plan_of(config, dimension), aggregation_of(config)
    given = _encoding(config) if plan is None else config.encoding.keep_policy.followed(plan)
    # What is recorded is what encodes: under secure aggregation, floats become fixed point.
    policy = as_policy(given.encoding if isinstance(given, Plan) else given)
    mechanism = aggregation.adapted(policy(1).mechanism)
    shown, tracker = progress.rounds(config), trackers.tracker(config, directory)

    def on_row(rows: list[Row], spent: PrivacyStatement | None) -> None:
        policy.observe_metrics(rows[-1]["round"], rows[-1])
        directory.write_rows(rows)
        # The models of the central baseline are what is protected: its updates are not.
        about = central_statement(config) if spent and config.mechanism["name"] == CENTRAL else spent
        shown.update(rows[-1], about)
        tracker.log(rows[-1])

    recording = RecordingStrategy(
        _aggregating(config.federation),
        task,
        _probe(config, directory),
        _constants(config, mechanism),
        on_row,
        secure=config.secagg.enabled,
    )
    configured: dict[str, Any] = {"encoding": given}
    if not isinstance(given, Plan) and policy.plan is None:
        configured = _unplanned(config, given, aggregation)
    private = _private(config, recording, _seed(context), configured)
    saved = CheckpointStrategy(private, directory.checkpoint)
    with shown, tracker:
        if saved.finished_rounds == 0:
            recording.begin(initial)
        result = saved.start(
            grid,
            ArrayRecord({name: Array(np.asarray(value)) for name, value in initial.items()}),
            num_rounds=config.federation.rounds,
        )
    statements, lines = private.statements(), private.privacy_statement()
    if len(private.ledger):
        recording.finish(statements, private.ledger.last_view)
    directory.write_rows(recording.rows)
    directory.write_bytes("mechanism.pqm", mechanism.to_bytes())
    if config.mechanism["name"] == CENTRAL:
        statements.append(run_statement(config, mechanism, dimension))
        lines.append(str(statements[-1]))
    model = {name: array.numpy() for name, array in result.arrays.items()}
    origin = provenance(config, mechanism, dimension, statements, lines, model)
    directory.write_json("provenance.json", origin)
    task.plot_partition(directory.path / "partition.png")
    context.state["arrays"] = result.arrays
    stopped = result.reason if isinstance(result, StoppedResult) else ""
    context.state["ending"] = ConfigRecord({"stopped": stopped})


def _constants(config: RunConfig, mechanism: Mechanism) -> Row:
    """Columns that are the same in every row of a run."""
    return {
        "study": config.study,
        "run": config.run_name,
        "label": config.label,
        "mechanism": config.mechanism["name"],
        "epsilon": float(config.mechanism.get("epsilon", math.nan)),
        "bits": float(mechanism.bits_per_coordinate),
        "seed": config.seed,
        "num_clients": config.federation.num_clients,
        "epsilon_coordinate": mechanism.epsilon,
    }


def _private(
    config: RunConfig, recording: RecordingStrategy, seed: int | None, configured: dict[str, Any]
) -> PrivQuantStrategy:
    """PrivQuant around the strategy that records."""
    return PrivQuantStrategy(
        _trusted(config, recording, seed),
        include=config.encoding.include,
        exclude=config.encoding.exclude,
        rotation_seed=config.seed,
        simulated=config.privacy.randomness == "seeded",
        on_round=recording.on_round,
        **configured,
    )


def _trusted(config: RunConfig, strategy: Strategy, seed: int | None) -> Strategy:
    """The strategy, with the noise of a trusted server around it in the central baseline."""
    if config.mechanism["name"] != CENTRAL:
        return strategy
    l2_clip, epsilon, delta = central_target(config)
    scale = noise_of_sum(l2_clip, config.federation.rounds, epsilon, delta)
    return CentralGaussianStrategy(strategy, scale, seed)


def _encoding(config: RunConfig) -> Encoding | Policy:
    """The encoding of each round of a run without a plan: as configured."""
    return config.encoding.built(config.design(), config.l2_clip, config.design)


def _unplanned(config: RunConfig, encoding: Encoding | Policy, aggregation: Aggregation) -> dict[str, Any]:
    limit = config.privacy.budget
    return {
        "encoding": encoding,
        "aggregation": aggregation,
        "budget": None if limit is None else Budget(limit, config.privacy.delta),
        "delta": config.privacy.delta,
    }


def _aggregating(config: FederationConfig) -> Strategy:
    """The strategy that aggregates, with the federation's sampling."""
    sampling: dict[str, Any] = {
        "fraction_train": config.fraction,
        "fraction_evaluate": 0.0,
        "min_train_nodes": 1,
        "min_evaluate_nodes": 1,
        "min_available_nodes": config.num_clients,
    }
    rate = config.server_learning_rate
    if config.strategy == "fedavgm":
        return FedAvgM(**sampling, server_learning_rate=rate, server_momentum=config.server_momentum)
    if config.strategy == "fedadam":
        return FedAdam(**sampling, eta=rate)
    if config.strategy == "fedprox":
        return FedProx(**sampling, proximal_mu=config.proximal)
    if config.strategy == "fedmedian":
        return FedMedian(**sampling)
    if rate != 1.0:
        return FedAvgM(**sampling, server_learning_rate=rate, server_momentum=0.0)
    return FedAvg(**sampling)
