"""The Flower app of the simulations: an ordinary client, an ordinary server, and PrivQuant around them.

Both sides read the whole run from ``run_config["config"]``, as JSON: so the same app runs inline, on
Ray and deployed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Strategy
from hydra.utils import instantiate

from fl_privquant.flower import (
    CheckpointStrategy,
    ModelAverageStrategy,
    PrivQuantStrategy,
    StoppedResult,
)
from fl_privquant.flower._flower_internals import make_reply, unchecked_record
from fl_privquant.flower._messages.arrays import DecodedArray, read_arrays
from fl_privquant.flower.client import CohortApp, CohortMod
from fl_privquant.flower.server.strategy_wrapper import Aggregate
from fl_privquant.sampling.stream import RandomStream
from simulations.runner.canary_audit import CanaryScores, CanaryTask, check_audit, plot_audit
from simulations.runner.config import FederationConfig, RunConfig
from simulations.runner.probe import Probe
from simulations.runner.recording import RecordingStrategy, make_ending
from simulations.runner.results import RunDirectory
from simulations.runner.run_setup import (
    PILOT_CLIENTS,
    Outputs,
    PrivateSetup,
    get_probe,
    get_seed,
    load_config,
    make_policy,
)
from simulations.tasks.task import Task, get_task

server_app = ServerApp()


class SeldomCheckpoints(CheckpointStrategy):
    """Saves a simulated run every few seconds, and no run that takes less.

    Seeded clients release the same codes when a round is repeated, so nothing goes uncounted. With 0 seconds
    every release is saved before it is made, as on a real server.
    """

    def __init__(
        self, strategy: Strategy, path: Path, on_saved: Callable[[int], object], seconds: float
    ) -> None:
        super().__init__(strategy, path, on_saved)
        self._seconds, self._last = seconds, time.monotonic()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, and save before the messages are sent if every release is saved."""
        if self._seconds == 0.0:
            return super().configure_train(server_round, arrays, config, grid)
        return super(CheckpointStrategy, self).configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Delegate, and save if the last time is long enough ago."""
        if time.monotonic() - self._last < self._seconds:
            return super(CheckpointStrategy, self).aggregate_train(server_round, replies)
        aggregated = super().aggregate_train(server_round, replies)
        self._last = time.monotonic()
        return aggregated


@lru_cache(maxsize=2)
def _load_client_side(text: str) -> tuple[Task, Probe]:
    """What every client of a run in this process shares."""
    config = RunConfig.from_json(text)
    task = get_task(config)
    if config.audit.canaries:
        task = cast(Task, CanaryTask(task, config))
    return task, get_probe(config)


# The node config tightens the limits (privacy.max_epsilon, and privacy.budget in the local view): see
# simulations.run.
_LIMITS: dict[str, Any] = {"max_epsilon": math.inf, "max_delta": 1e-3, "seed": get_seed}


def train(message: Message, context: Context) -> Message:
    """Train on the client's examples, as any Flower client would."""
    task, probe = _load_client_side(str(context.run_config["config"]))
    client = int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])  # type: ignore[arg-type]
    config = load_config(context)
    record: ArrayRecord
    if config.privacy.unit == "record":
        rng, seed = None, get_seed(context)
        if seed is not None:
            rng = RandomStream.seeded(seed, round=server_round, client=client, purpose="records")
        record = task.train_on_records(message, client, rng)  # type: ignore[attr-defined]
        steps = record.record_sum.arrays  # type: ignore[attr-defined]
        trained = {name: array + steps.get(name, 0.0) for name, array in read_arrays(record).items()}
    else:
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]
        trained = task.train(arrays, client, server_round)
        # Arrays are serialized only if they have to travel; the mod around this function sends codes instead.
        made = {name: DecodedArray.of(value) for name, value in trained.items()}
        record = unchecked_record(ArrayRecord, made)
    probe.store(server_round, client, trained)
    examples = unchecked_record(MetricRecord, {"num-examples": int(task.num_examples(client))})
    return make_reply(message, unchecked_record(RecordDict, {"arrays": record, "metrics": examples}))


def train_cohort(message: Message, contexts: Sequence[Context]) -> dict[str, Any] | None:
    """Train many clients at once, if the task can."""
    task, probe = _load_client_side(str(contexts[0].run_config["config"]))
    if not hasattr(task, "train_batch") or load_config(contexts[0]).privacy.unit == "record":
        return None
    clients = [int(context.node_config["partition-id"]) for context in contexts]
    server_round = int(message.content["config"]["server-round"])  # type: ignore[arg-type]
    arrays = read_arrays(cast(ArrayRecord, message.content["arrays"]))
    trained: dict[str, Any] | None = task.train_batch(arrays, clients, server_round)
    if trained is not None:
        for place, client in enumerate(clients):
            probe.store(server_round, client, {name: array[place] for name, array in trained.items()})
    return trained


client_app = CohortApp(CohortMod(**_LIMITS), train, train_cohort)
secure_client_app = CohortApp(CohortMod(**_LIMITS, secure_aggregation=make_policy), train, train_cohort)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are not done yet; results go to the run's directory."""
    config = load_config(context)
    directory = RunDirectory.of(config)
    task = get_task(config)
    if config.audit.canaries:
        check_audit(config)
    scores = CanaryScores(CanaryTask(task, config), config) if config.audit.canaries else None
    initial = task.initial_arrays()
    dimension = config.encoding.arrays.layout(initial).dimension
    setup = PrivateSetup.of(config, dimension, estimate_update_norm(config, task))
    with Outputs(config, directory, setup) as outputs:
        strategy = _make_strategy(config.federation, config.sampling.name == "flower")
        decay = config.federation.model_average
        recording = RecordingStrategy(
            strategy if decay is None else ModelAverageStrategy(strategy, decay),
            task,
            get_probe(config),
            setup.constants(),
            outputs.on_row,
            secure=config.secagg.enabled,
            scores=scores,
        )
        trusted = setup.add_server_noise(recording, get_seed(context))
        private = PrivQuantStrategy(trusted, on_round=recording.on_round, **setup.settings())
        seconds = config.checkpoint_seconds if config.privacy.randomness == "seeded" else 0.0
        saved = SeldomCheckpoints(private, directory.checkpoint, outputs.on_saved, seconds)
        if saved.finished_rounds == 0:
            recording.begin(initial)
        else:
            outputs.report_resume(saved.finished_rounds)
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in initial.items()})
        del initial
        result = saved.start(grid, arrays, num_rounds=config.federation.rounds)
    statements = private.statements()
    if len(private.ledger):
        recording.finish(statements, private.ledger.last_view)
    lines = private.privacy_statement()
    if scores is not None:
        report = scores.report(statements)
        directory.write_json("audit.json", {"bounds": report})
        privacy = config.privacy
        plot_audit(report, privacy.epsilon, privacy.wanted_relation, directory.path / "audit.png")
        lines = [*lines, *(f"attacked: {bound['text']}" for bound in report)]
    outputs.finish(recording.rows, statements, lines, result.arrays, private)
    context.state["arrays"] = result.arrays
    stopped = result.reason if isinstance(result, StoppedResult) else ""
    context.state["ending"] = make_ending(recording.rows[-1], stopped)


def estimate_update_norm(config: RunConfig, task: Task) -> float | None:
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


def _make_strategy(config: FederationConfig, draws: bool) -> Strategy:
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
