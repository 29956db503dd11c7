"""One training run through Flower, with cohorts in turn.

Clients take one step on all of their examples. The noise is that of a trusted server, of Flower's own wrapper
or of a secure sum, and is fresh in each round or correlated over rounds.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
    ServerApp,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy
from scipy.optimize import brentq

import fl_privquant as pq
from fl_privquant.accounting import SimulatedSum
from fl_privquant.flower import ModelAverageStrategy, PrivQuantStrategy
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower.client import CohortApp, CohortMod
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.planning import Plan
from fl_privquant.privacy_loss.correlated_noise import (
    LagNoise,
    RoundSchedule,
    error_ratio,
    find_correlation,
)
from simulations.runner.central import CentralGaussianStrategy, calibrate_sum_noise
from simulations.studies._pages import data_root, zero_out_epsilon
from simulations.studies.beyond_trusted_server.models import MODELS, Arrays, Floats, Labels
from simulations.tasks import data

CLIENTS, COHORT, ROUNDS, APART = 1000, 100, 100, 10
DELTA, DECAY = 1e-5, 0.9
VALIDATION = 10_000
"""The last so many training examples are held back for tuning."""


@dataclass(frozen=True)
class Arm:
    """Who adds the noise, and whether it is correlated over rounds."""

    server: str
    """``trusted`` and ``flower`` see all updates and add the noise, ``secure`` sees sums of noisy codes, and
    ``open`` adds none."""
    correlated: bool = False


ARMS = {
    "no privacy": Arm("open"),
    "Flower's wrapper, trusted server": Arm("flower"),
    "trusted server, fresh noise": Arm("trusted"),
    "trusted server, correlated noise": Arm("trusted", correlated=True),
    "secure sum, fresh noise": Arm("secure"),
    "secure sum, correlated noise": Arm("secure", correlated=True),
}
"""What is compared, by name."""


@dataclass(frozen=True)
class Setting:
    """What a run is: the data, one of :data:`ARMS`, and how clients train."""

    task: str
    """The function of :mod:`simulations.tasks.data` that gives the examples."""
    arm: str
    epsilon: float
    """For a client's total, replace-one; infinite without privacy."""
    l2_clip: float
    """Infinite without privacy."""
    seed: int
    model: str = "softmax"
    """One of :data:`~simulations.studies.beyond_trusted_server.models.MODELS`."""
    validate: bool = False
    """Whether to evaluate examples that are held back from training, in place of the test examples."""

    @property
    def noise(self) -> Arm:
        """Who adds the noise, and whether it is correlated."""
        return ARMS[self.arm]


@lru_cache(maxsize=2)
def load_examples(task: str, validate: bool) -> tuple[Floats, Labels, Floats, Labels]:
    """Inputs and labels for training and for evaluation; the last input is 1."""
    examples = getattr(data, task)(data_root=data_root(task))
    train_x, test_x = (
        np.hstack([part.reshape(len(part), -1), np.ones((len(part), 1))]).astype(np.float32)
        for part in (examples.train_x, examples.test_x)
    )
    train_y, test_y = np.asarray(examples.train_y), np.asarray(examples.test_y)
    if validate:
        return train_x[:-VALIDATION], train_y[:-VALIDATION], train_x[-VALIDATION:], train_y[-VALIDATION:]
    return train_x, train_y, test_x, test_y


def run_training(setting: Setting) -> dict[str, Any]:
    """Train, and return accuracies of the last model and of the average of models, and what was planned."""
    _, _, test_x, test_y = load_examples(setting.task, setting.validate)
    model = MODELS[setting.model]
    initial = model.initialize(setting.seed)
    dimension = sum(array.size for array in initial.values())
    plan = _make_plan(setting, dimension) if setting.noise.server == "secure" else None
    correlation = find_correlation(RoundSchedule(ROUNDS, APART)) if setting.noise.correlated else 0.0
    outcome: dict[str, Any] = {}
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        strategy = ModelAverageStrategy(_make_strategy(setting, plan, correlation), DECAY)

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            if number < ROUNDS:
                return None
            return MetricRecord({"accuracy": model.accuracy(read_arrays(arrays), test_x, test_y)})

        result = strategy.start(
            grid,
            ArrayRecord({name: Array(array) for name, array in initial.items()}),
            num_rounds=ROUNDS,
            evaluate_fn=strategy.evaluate_both(evaluate),
        )
        outcome["model"] = read_arrays(result.arrays)
        outcome.update(result.evaluate_metrics_serverapp[ROUNDS])

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Flower draws clients and noise from the global generators.
    random.seed(setting.seed)
    np.random.seed(setting.seed)  # noqa: NPY002
    InlineEngine().run(app, _client_app(setting), Federation(CLIENTS))
    return {
        "accuracy": outcome["accuracy"],
        "average_accuracy": outcome["average-accuracy"],
        "model": outcome["model"],
        **_planned(setting, plan, correlation, dimension),
    }


def _make_plan(setting: Setting, dimension: int) -> Plan:
    target = pq.Target(setting.epsilon, ROUNDS, COHORT, DELTA, rounds_apart=APART)
    return target.plan(
        dimension,
        setting.l2_clip,
        aggregation=SimulatedSum(corrupt_fraction=0.0, dropout_fraction=0.0),
        correlation="auto" if setting.noise.correlated else None,
    )


def _planned(setting: Setting, plan: Plan | None, correlation: float, dimension: int) -> dict[str, Any]:
    """Correlation, error of models over the trusted server with fresh noise, and kilobytes sent."""
    if plan is not None:
        return {
            "correlation": plan.correlation,
            "prefix_error": plan.prefix_error,
            "kilobytes": plan.bytes_per_round / 1000.0,
        }
    error = error_ratio(RoundSchedule(ROUNDS, APART), LagNoise(correlation))
    if setting.noise.server == "open":
        error = 0.0
    elif setting.noise.server == "flower":
        error = (flower_multiplier(setting.epsilon) / _sum_noise(setting.epsilon, 1.0, correlation)) ** 2
    return {
        "correlation": correlation,
        "prefix_error": error,
        "kilobytes": 4 * dimension / 1000.0,
    }


def _sum_noise(epsilon: float, l2_clip: float, correlation: float) -> float:
    """The deviation of the noise that a trusted server adds to the sum of updates."""
    cost = LagNoise(correlation).participation_cost(RoundSchedule(ROUNDS, APART))
    return calibrate_sum_noise(l2_clip, math.ceil(ROUNDS / APART), epsilon, DELTA, cost)


def flower_accountant() -> RdpAccountant:
    """Flower's accountant, which counts every round for every client."""
    return RdpAccountant(
        PrivacyConfig(
            target_delta=DELTA,
            population_size=CLIENTS,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
    )


def flower_epsilon(multiplier: float) -> float:
    """What Flower's accountant states for all rounds with that noise, in deviations per clip."""
    accountant = flower_accountant()
    accountant.compose(GaussianPrivacyEvent(multiplier, COHORT, CLIENTS), count=ROUNDS)
    return float(accountant.get_epsilon(DELTA))


@lru_cache
def flower_multiplier(epsilon: float) -> float:
    """The noise with which Flower's accountant states the zero-out ε of a replace-one ε."""
    target = zero_out_epsilon(epsilon, DELTA)
    return float(brentq(lambda multiplier: flower_epsilon(multiplier) - target, 1.0, 1000.0))


def _make_strategy(setting: Setting, plan: Plan | None, correlation: float) -> Strategy:
    if setting.noise.server == "flower":
        drawn = FedAvg(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0)
        multiplier = flower_multiplier(setting.epsilon)
        return DifferentialPrivacyServerSideFixedClipping(
            drawn, multiplier, setting.l2_clip, COHORT, accountant=flower_accountant()
        )
    averaging = FedAvg(fraction_evaluate=0.0)
    sampling = pq.CohortSampling(APART, seed=setting.seed, clients=COHORT)
    if plan is not None:
        return PrivQuantStrategy(
            averaging, plan, sampling=sampling, rotation_seed=setting.seed, simulated=True
        )
    if setting.noise.server == "open":
        return PrivQuantStrategy(
            averaging, pq.Encoding(pq.design("none"), 1.0), sampling=sampling, simulated=True
        )
    scale = _sum_noise(setting.epsilon, setting.l2_clip, correlation)
    central = CentralGaussianStrategy(averaging, scale, setting.seed, ROUNDS, correlation=correlation)
    encoding = pq.Encoding(pq.design("none"), 1.0, setting.l2_clip)
    return PrivQuantStrategy(central, encoding, sampling=sampling, simulated=True)


def _client_app(setting: Setting) -> ClientApp:
    """Clients that take one step on their examples, which are dealt out at random."""
    inputs, labels, _, _ = load_examples(setting.task, setting.validate)
    parts = np.random.default_rng([setting.seed, 1]).permutation(len(labels)).reshape(CLIENTS, -1)
    model, clipped = MODELS[setting.model], setting.noise.server != "open"
    rate = model.learning_rate if clipped else model.unclipped_rate

    def train_cohort(message: Message, contexts: Sequence[Context]) -> Arrays:
        own = parts[[int(context.node_config["partition-id"]) for context in contexts]]
        weights = read_arrays(message.content.array_records["arrays"])
        return model.train(weights, inputs[own], labels[own], rate)

    def train(message: Message, context: Context) -> Message:
        trained = train_cohort(message, [context])
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array[0]) for name, array in trained.items()}),
                "metrics": MetricRecord({"num-examples": parts.shape[1]}),
            }
        )
        return Message(content, reply_to=message)

    if setting.noise.server == "flower":
        app = ClientApp()
        app.train()(train)
        return app
    return CohortApp(CohortMod(math.inf, max_delta=DELTA, seed=setting.seed), train, train_cohort)
