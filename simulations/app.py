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
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Strategy

from fl_privquant.flower import (
    CheckpointStrategy,
    PrivQuantMod,
    PrivQuantStrategy,
    SecureAggregationMod,
    SecureAggregationStrategy,
)
from simulations import progress, trackers
from simulations.config import FederationConfig, RunConfig
from simulations.recording import Probe, RecordingStrategy
from simulations.results import RunDirectory, provenance
from simulations.tasks import task_of

__all__ = ["client_app", "secure_client_app", "server_app"]

client_app = ClientApp()
secure_client_app = ClientApp()
server_app = ServerApp()

# They compare single updates, which a sum of codes does not have.
_NEED_SINGLE_UPDATES = ("fedmedian",)


@lru_cache(maxsize=8)
def _config(text: str) -> RunConfig:
    return RunConfig.from_mapping(json.loads(text))


def _seed(context: Context) -> int | None:
    config = _config(str(context.run_config["config"]))
    return config.seed if config.privacy.randomness == "seeded" else None


# The node config tightens the limits (privacy.max_epsilon, privacy.budget): see simulations.run.
_PRIVATE = PrivQuantMod(max_epsilon=math.inf, max_delta=1e-3, seed=_seed)


@client_app.train(mods=[_PRIVATE])
@secure_client_app.train(mods=[SecureAggregationMod(), _PRIVATE])
def train(message: Message, context: Context) -> Message:
    """Train on the client's examples, as any Flower client would."""
    config = _config(str(context.run_config["config"]))
    task = task_of(config)
    client = int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])  # type: ignore[index, arg-type]
    arrays = {name: each.numpy() for name, each in message.content["arrays"].items()}  # type: ignore[union-attr]
    trained = task.train(arrays, client, server_round)
    Probe(RunDirectory.of(config).probe).leave(server_round, client, trained)
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
    # What is recorded is what encodes: under secure aggregation, floats become fixed point.
    mechanism = config.design().for_sums() if config.secagg.enabled else config.design()
    initial = task.initial_arrays()
    shown, tracker = progress.rounds(config), trackers.tracker(config, directory)

    def on_row(rows: list[dict[str, Any]]) -> None:
        directory.write_rows(rows)
        shown.update(rows[-1])
        tracker.log(rows[-1])

    constants = {
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
    recording = RecordingStrategy(
        _aggregating(config.federation),
        task,
        Probe(directory.probe),
        constants,
        on_row,
        secure=config.secagg.enabled,
    )
    private = PrivQuantStrategy(
        recording,
        mechanism=mechanism,
        clip=config.codec.clip,
        l2_clip=config.codec.l2_clip,
        rotate=config.codec.rotate,
        rotation_seed=config.seed,
        sum_codes=config.federation.strategy not in _NEED_SINGLE_UPDATES,
        simulated=config.privacy.randomness == "seeded",
    )
    recording.attach(private)
    outermost: Strategy = private
    if config.secagg.enabled:
        outermost = SecureAggregationStrategy(
            private,
            corrupt_fraction=config.secagg.corrupt_fraction,
            dropout_fraction=config.secagg.dropout_fraction,
        )
    saved = CheckpointStrategy(outermost, directory.checkpoint)
    with shown, tracker:
        if saved.finished_rounds == 0:
            recording.begin(initial)
        result = saved.start(
            grid,
            ArrayRecord({name: Array(np.asarray(value)) for name, value in initial.items()}),
            num_rounds=config.federation.rounds,
        )
    dimension = private.codec.dimension if recording.rows[-1]["round"] else 0
    directory.write_bytes("mechanism.pqm", mechanism.to_bytes())
    directory.write_json(
        "provenance.json", provenance(config, mechanism, dimension, private.privacy_statement())
    )
    task.plot_partition(directory.path / "partition.png")
    directory.write_rows(recording.rows)
    context.state["arrays"] = result.arrays


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
