"""The Flower app of the simulations: an ordinary client, an ordinary server, and PrivQuant around them.

Both sides read the whole run from ``run_config["config"]``, as JSON: so the same app runs inline, on
Ray and deployed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Strategy
from hydra.utils import instantiate

from fl_privquant.flower import (
    CheckpointStrategy,
    PrivQuantMod,
    PrivQuantStrategy,
    SecureAggregationMod,
    StoppedResult,
)
from fl_privquant.flower.arrays import DecodedArray
from fl_privquant.flower.records import made, reply_to
from simulations.config import FederationConfig, RunConfig
from simulations.probe import Probe
from simulations.recording import RecordingStrategy
from simulations.results import RunDirectory
from simulations.run_setup import (
    PILOT_CLIENTS,
    Outputs,
    PrivateSetup,
    config_of,
    policy_of,
    probe_of,
    seed_of,
)
from simulations.tasks import Task, task_of

client_app = ClientApp()
secure_client_app = ClientApp()
server_app = ServerApp()


@lru_cache(maxsize=2)
def _client_side(text: str) -> tuple[Task, Probe]:
    """What every client of a run in this process shares."""
    config = config_of(text)
    return task_of(config), probe_of(config)


# The node config tightens the limits (privacy.max_epsilon, and privacy.budget in the local view): see
# simulations.run.
_PRIVATE = PrivQuantMod(max_epsilon=math.inf, max_delta=1e-3, seed=seed_of)


@client_app.train(mods=[_PRIVATE])
@secure_client_app.train(mods=[SecureAggregationMod(policy_of), _PRIVATE])
def train(message: Message, context: Context) -> Message:
    """Train on the client's examples, as any Flower client would."""
    task, probe = _client_side(str(context.run_config["config"]))
    client = int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])  # type: ignore[arg-type]
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]
    trained = task.train(arrays, client, server_round)
    probe.leave(server_round, client, trained)
    # Arrays are serialised only if they have to travel; the mod around this function sends codes instead.
    record = made(ArrayRecord, {name: DecodedArray.of(value) for name, value in trained.items()})
    examples = made(MetricRecord, {"num-examples": int(task.num_examples(client))})
    return reply_to(message, made(RecordDict, {"arrays": record, "metrics": examples}))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are not done yet; results go to the run's directory."""
    config = config_of(context)
    directory = RunDirectory.of(config)
    task = task_of(config)
    initial = task.initial_arrays()
    dimension = config.encoding.arrays.layout(initial).dimension
    setup = PrivateSetup.of(config, dimension, usual_norm(config, task))
    with Outputs(config, directory, setup) as outputs:
        recording = RecordingStrategy(
            _aggregating(config.federation, config.sampling.name == "flower"),
            task,
            probe_of(config),
            setup.constants(),
            outputs.on_row,
            secure=config.secagg.enabled,
        )
        trusted = setup.trusted(recording, seed_of(context))
        private = PrivQuantStrategy(trusted, on_round=recording.on_round, **setup.settings())
        saved = CheckpointStrategy(private, directory.checkpoint, outputs.on_saved)
        if saved.finished_rounds == 0:
            recording.begin(initial)
        else:
            outputs.resumes(saved.finished_rounds)
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in initial.items()})
        del initial
        result = saved.start(grid, arrays, num_rounds=config.federation.rounds)
    statements = private.statements()
    if len(private.ledger):
        recording.finish(statements, private.ledger.last_view)
    outputs.finish(recording.rows, statements, private.privacy_statement(), result.arrays)
    task.plot_partition(directory.path / "partition.png")
    context.state["arrays"] = result.arrays
    stopped = result.reason if isinstance(result, StoppedResult) else ""
    context.state["ending"] = ConfigRecord({"stopped": stopped})


def usual_norm(config: RunConfig, task: Task) -> float | None:
    """The L2 clip that a pilot finds, where there is one: it trains some clients without protection."""
    if config.encoding.clip_policy.name != "pilot":
        return None
    initial = task.initial_arrays()
    layout = config.encoding.arrays.layout(initial)
    updates = (
        layout.difference(task.train(initial, client, 1), initial)
        for client in range(min(config.federation.num_clients, PILOT_CLIENTS))
    )
    return float(f"{np.median([np.linalg.norm(np.asarray(update)) for update in updates]):.2g}")


def _aggregating(config: FederationConfig, draws: bool) -> Strategy:
    """The strategy that aggregates; it draws the clients itself, or would ask all of them."""
    sampling = config.drawing(draws)
    if config.server_strategy:
        return cast(Strategy, instantiate(config.server_strategy, **sampling))
    rate, momentum = config.server_learning_rate, config.server_momentum
    if config.strategy == "fedavgm":
        return FedAvgM(**sampling, server_learning_rate=rate, server_momentum=momentum)
    if config.strategy == "fedadam":
        return FedAdam(**sampling, eta=rate, beta_1=momentum)
    if config.strategy == "fedprox":
        return FedProx(**sampling, proximal_mu=config.proximal)
    if config.strategy == "fedmedian":
        return FedMedian(**sampling)
    if rate != 1.0:
        return FedAvgM(**sampling, server_learning_rate=rate, server_momentum=0.0)
    return FedAvg(**sampling)
