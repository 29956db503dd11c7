"""The runs: softmax regression on MNIST with ten silos, by five ways to protect (or not) their records.

All ways that protect records take the same steps: each record is drawn with the same probability, its
gradient is clipped to the same norm, and the server takes a step with momentum. In each, the run costs a
record the same (ε, δ), add-remove. Flower's wrapper clips the mean gradient of a whole silo instead, and its
ε is for a silo.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvgM, Strategy
from scipy.special import softmax
from torch import nn

import fl_privquant as pq
from fl_privquant.accounting.records import record_statement
from fl_privquant.codec.record_sampling import RecordSampling
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy, linear_record_update
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.planning.record_plan import RecordPlan, plan_records
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon, gaussian_separation
from fl_privquant.statement import Relation
from simulations.studies._pages import data_root
from simulations.tasks.data import mnist

SILOS, RECORDS, ROUNDS, RATE, CLIP, DELTA = 10, 10_000, 100, 0.1, 1.0, 1e-5
MOMENTUM = 0.9
EPSILONS, SEEDS = (1.0, 2.0, 4.0), (0, 1, 2, 3, 4)
CLASSES, FEATURES = 10, 784
DIMENSION = CLASSES * (FEATURES + 1)
FIRST_RATE, MAX_TRIALS = 0.5, 6
"""Where the tuning of a server's learning rate begins, and how many runs it takes at most, for each way."""
TUNING_SEED = 100
"""Its runs are scored on training records that they leave out, and not compared."""
FLOWER_CLIP = 0.1
"""Shorter than nearly all mean gradients here, so that Flower's noise is small next to what it clips."""

Data = tuple[np.ndarray, np.ndarray]
Weights = dict[str, np.ndarray]
ClientUpdate = Callable[[Message, int, int], RecordDict]


@lru_cache(maxsize=1)
def _examples() -> tuple[Data, Data]:
    examples = mnist(data_root("mnist"))
    flat = (split.reshape(len(split), -1).astype(np.float64) for split in (examples.train_x, examples.test_x))
    train, test = flat
    return (train, examples.train_y), (test, examples.test_y)


@lru_cache(maxsize=8)
def _silos(seed: int) -> list[Data]:
    """The records of each silo: equal parts of as many records as the study has."""
    inputs, labels = _examples()[0]
    chosen = _order(seed)[:RECORDS]
    return [(inputs[part], labels[part]) for part in np.array_split(chosen, SILOS)]


def _order(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(len(_examples()[0][1]))


def _accuracy(weights: Weights, seed: int) -> float:
    """On the test records; where learning rates are tuned, on as many training records that no silo has."""
    (train_inputs, train_labels), (inputs, labels) = _examples()
    if seed == TUNING_SEED:
        left_out = _order(seed)[-len(labels) :]
        inputs, labels = train_inputs[left_out], train_labels[left_out]
    guesses = (inputs @ weights["coef"].T + weights["intercept"]).argmax(axis=1)
    return float((guesses == labels).mean())


def _start() -> Weights:
    return {"coef": np.zeros((CLASSES, FEATURES), np.float32), "intercept": np.zeros(CLASSES, np.float32)}


@lru_cache(maxsize=8)
def _plan(epsilon: float, honest: bool = False) -> RecordPlan:
    target = pq.Target(epsilon, ROUNDS, SILOS, DELTA, unit="record", records=RECORDS, sampling_rate=RATE)
    corrupt = 0.0 if honest else 0.1
    return plan_records(target, DIMENSION, CLIP, pq.SimulatedSum(corrupt, 0.0))


def _stream(seed: int, number: int, silo: int) -> pq.RandomStream:
    return pq.RandomStream.seeded(seed, round=number, client=silo)


def _run_app(update: ClientUpdate, strategy: Strategy, mods: list[Any]) -> Weights:
    """Run a Flower app on the inline engine; ``update`` is what a client replies with."""
    client, server = ClientApp(), ServerApp()
    logging.getLogger("flwr").setLevel(logging.ERROR)

    @client.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        number: Any = message.content.config_records["config"]["server-round"]
        content = update(message, int(context.node_config["partition-id"]), int(number))
        return Message(content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({name: Array(array) for name, array in _start().items()})
        context.state["arrays"] = strategy.start(grid, start, num_rounds=ROUNDS).arrays

    result = InlineEngine().run(server, client, Federation(num_clients=SILOS))
    return {name: array.numpy() for name, array in result.arrays.items()}


def _server(learning_rate: float) -> FedAvgM:
    return FedAvgM(
        fraction_evaluate=0.0,
        min_available_nodes=SILOS,
        server_learning_rate=learning_rate,
        server_momentum=MOMENTUM,
    )


def _run_ours(epsilon: float, seed: int, learning_rate: float) -> dict[str, float]:
    plan, silos = _plan(epsilon), _silos(seed)

    def update(message: Message, silo: int, number: int) -> RecordDict:
        made = linear_record_update(message, *silos[silo], rng=_stream(seed, number, silo))
        return RecordDict({"arrays": made})

    strategy = PrivQuantStrategy(_server(learning_rate), plan, simulated=True)
    weights = _run_app(update, strategy, [PrivQuantMod(**plan.client_limits, seed=seed)])
    ledger = strategy.ledger
    return {
        "accuracy": _accuracy(weights, seed),
        "bytes": plan.bytes_per_round,
        "multiplier": plan.noise_multiplier,
        "add_remove": ledger.record_statement(DELTA, True).epsilon,
        "replace_one": ledger.record_statement(DELTA, True, Relation.REPLACE_ONE).epsilon,
    }


def _run_central(epsilon: float, seed: int, learning_rate: float) -> dict[str, float]:
    """DP-SGD by a trusted server that has all records, with the noise that is counted in our plan."""
    plan = _plan(epsilon)
    # Rounding errors count as noise, so that the plan's multiplier alone is a little below this.
    honest, deviation = plan.num_honest, 2.0
    shares = math.sqrt((honest * deviation**2 + (honest - 1) / 12.0) / (honest * deviation**2))
    multiplier = plan.noise_multiplier * shares
    return {
        "accuracy": _train_in_one_place(seed, learning_rate, CLIP, multiplier * CLIP),
        "bytes": 4 * DIMENSION,
        "multiplier": multiplier,
        "add_remove": plan.spent(Relation.ADD_REMOVE).epsilon,
        "replace_one": plan.spent(Relation.REPLACE_ONE).epsilon,
    }


def _run_without_privacy(epsilon: float, seed: int, learning_rate: float) -> dict[str, float]:
    """The same steps without clip and noise."""
    accuracy = _train_in_one_place(seed, learning_rate, clip=1e9, noise=0.0)
    nothing = {"multiplier": 0.0, "add_remove": epsilon, "replace_one": epsilon}
    return {"accuracy": accuracy, "bytes": 4 * DIMENSION, **nothing}


def _train_in_one_place(seed: int, learning_rate: float, clip: float, noise: float) -> float:
    """The accuracy after SGD on the records of all silos, with noise of that deviation on each sum."""
    sampling = RecordSampling(clip, RATE, RATE * RECORDS)
    rng = np.random.default_rng([seed, round(1000 * noise)])
    weights = {name: array.astype(np.float64) for name, array in _start().items()}
    velocity = {name: np.zeros(array.shape) for name, array in weights.items()}
    for number in range(1, ROUNDS + 1):
        drawn = [
            (inputs[chosen], labels[chosen])
            for silo, (inputs, labels) in enumerate(_silos(seed))
            for chosen in [sampling.draw(len(labels), _stream(seed, number, silo))]
        ]
        inputs, labels = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        errors = softmax(inputs @ weights["coef"].T + weights["intercept"], axis=1)
        errors[np.arange(len(labels)), labels] -= 1.0
        norms = np.linalg.norm(errors, axis=1) * np.sqrt(1.0 + np.square(inputs).sum(axis=1))
        errors *= sampling.clip_factors(norms)[:, None]
        gradients = {"coef": errors.T @ inputs, "intercept": errors.sum(axis=0)}
        for name, gradient in gradients.items():
            noisy = gradient + rng.normal(0.0, noise, gradient.shape)
            velocity[name] = MOMENTUM * velocity[name] + noisy / sampling.divisor
            weights[name] -= learning_rate * velocity[name]
    return _accuracy(weights, seed)


def _run_opacus(epsilon: float, seed: int, learning_rate: float) -> dict[str, float]:
    """Opacus in each client of an ordinary Flower app: each silo adds all of the noise that it needs."""
    from opacus import PrivacyEngine
    from opacus.accountants import PRVAccountant
    from opacus.accountants.utils import get_noise_multiplier
    from torch.utils.data import DataLoader, TensorDataset

    multiplier = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=DELTA, sample_rate=RATE, steps=ROUNDS, accountant="prv"
    )
    torch.manual_seed(seed)
    trainers = []
    for inputs, labels in _silos(seed):
        model = nn.Linear(FEATURES, CLASSES)
        data = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
        trainers.append(
            PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
                data_loader=DataLoader(data, batch_size=round(RATE * len(labels))),
                noise_multiplier=multiplier,
                max_grad_norm=CLIP,
            )
        )

    def update(message: Message, silo: int, number: int) -> RecordDict:
        model, optimizer, loader = trainers[silo]
        received = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
        linear = model._module
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(received["coef"]))
            linear.bias.copy_(torch.tensor(received["intercept"]))
        inputs, labels = next(iter(loader))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        trained = {"coef": linear.weight, "intercept": linear.bias}
        arrays = ArrayRecord({name: Array(weight.detach().numpy()) for name, weight in trained.items()})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})

    weights = _run_app(update, _server(learning_rate), [])
    accountant = PRVAccountant()
    accountant.history = [(multiplier, RATE, ROUNDS)]
    # The silo's own noise hides a record from everybody: our count of one silo alone, for both relations.
    alone = _count_alone(float(multiplier))
    return {
        "accuracy": _accuracy(weights, seed),
        "bytes": 4 * DIMENSION,
        "multiplier": float(multiplier),
        "add_remove": float(accountant.get_epsilon(DELTA)),
        "replace_one": alone,
    }


def _count_alone(multiplier: float) -> float:
    """The replace-one epsilon of DP-SGD with that noise multiplier."""
    mechanism = pq.design("rounded_gaussian", spacing=multiplier / 8.0, deviation=8.0, num_clients=1)
    norms = pq.accounting.UpdateNorms(record=1.0, record_rate=RATE)
    release = pq.Release(mechanism, DIMENSION, norms=norms)
    return record_statement({release: ROUNDS}, DELTA, Relation.REPLACE_ONE).epsilon


def _run_flower(epsilon: float, seed: int, learning_rate: float) -> dict[str, float]:
    """Flower's own wrapper with a trusted server, which protects a silo as a whole."""
    separation = gaussian_separation(epsilon, DELTA)
    multiplier = math.sqrt(ROUNDS) / separation
    silos = _silos(seed)

    def update(message: Message, silo: int, number: int) -> RecordDict:
        inputs, labels = silos[silo]
        weights = {
            name: array.numpy().copy() for name, array in message.content.array_records["arrays"].items()
        }
        errors = softmax(inputs @ weights["coef"].T + weights["intercept"], axis=1)
        errors[np.arange(len(labels)), labels] -= 1.0
        weights["coef"] -= (errors.T @ inputs / len(labels)).astype(np.float32)
        weights["intercept"] -= errors.mean(axis=0).astype(np.float32)
        arrays = ArrayRecord({name: Array(array) for name, array in weights.items()})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})

    np.random.seed(seed)  # noqa: NPY002  (Flower draws from it)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        _server(learning_rate), multiplier, FLOWER_CLIP, num_sampled_clients=SILOS
    )
    # A record more, or another one, is another update of its silo, which is clipped: at most two clips apart.
    of_record = gaussian_epsilon(2.0 * separation, DELTA)
    return {
        "accuracy": _accuracy(_run_app(update, strategy, []), seed),
        "bytes": 4 * DIMENSION,
        "multiplier": multiplier,
        "add_remove": of_record,
        "replace_one": of_record,
    }


OURS, CENTRAL = "secure sum, shared noise", "central DP-SGD, trusted server"
OPACUS, FLOWER = "Opacus in each silo", "Flower's wrapper, trusted server"
NO_PRIVACY = "no privacy"
WAYS: dict[str, Callable[[float, int, float], dict[str, float]]] = {
    OURS: _run_ours,
    CENTRAL: _run_central,
    NO_PRIVACY: _run_without_privacy,
    FLOWER: _run_flower,
    OPACUS: _run_opacus,
}
"""By name, the functions that run them; that of Opacus needs ``pip install opacus``."""


def run_way(way: str, epsilon: float, seed: int, learning_rate: float) -> dict[str, Any]:
    """The row of one run."""
    row = WAYS[way](epsilon, seed, learning_rate)
    return {"way": way, "epsilon": epsilon, "seed": seed, "learning_rate": learning_rate, **row}
