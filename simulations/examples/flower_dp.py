"""Flower's DP wrapper and PrivQuant side by side: the same task, the same seeds, and both ε.

``python -m simulations.examples.flower_dp`` trains a linear model on scikit-learn's digits three times: with
Flower's wrapper, whose server is trusted with every update, and with PrivQuant, whose server sees sums only.
The target of PrivQuant is what the wrapper spends, counted in the wrapper's relation.
"""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
    ServerApp,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.accounting import SimulatedSum
from fl_privquant.flower import GaussianAccountant, PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind
from simulations.examples.scikit_learn.task import (
    load_data,
    load_test_data,
    make_model,
    set_weights,
    train_model,
)

CLIENTS, ROUNDS, NOISE, CLIP, SEEDS = 50, 10, 2.0, 1.0, (0, 1, 2)
CONFIG = PrivacyConfig(
    target_delta=1e-5,
    population_size=CLIENTS,
    neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    sampling_method=SamplingMethod.NO_AMPLIFICATION,
)


def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's own data."""
    data = load_data(int(context.node_config["partition-id"]), CLIENTS)
    received = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    trained = train_model(received, data, epochs=5, rate=0.05)
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message
    )


def run(strategy: Strategy, mods: list[PrivQuantMod], seed: int) -> float:
    """The accuracy of the model that a strategy trains."""
    client, server = ClientApp(mods=list(mods)), ServerApp()
    results: list[ArrayRecord] = []
    client.train()(train)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        initial = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
        model = ArrayRecord({name: Array(array) for name, array in initial.items()})
        results.append(strategy.start(grid, model, num_rounds=ROUNDS).arrays)

    # Flower's wrapper draws from the global generator.
    np.random.seed(seed)  # noqa: NPY002
    InlineEngine().run(server, client, Federation(CLIENTS, seed=seed))
    model = make_model()
    set_weights(model, {name: array.numpy() for name, array in results[0].items()})
    return float(model.score(*load_test_data()))


def average() -> FedAvg:
    """Flower's strategy, which asks all clients in every round."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)


def main() -> None:
    """Print what both cost, in both relations, and how well both learn."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    exact, by_rdp = GaussianAccountant(CONFIG), RdpAccountant(CONFIG)
    accuracies: list[float] = []
    for seed in SEEDS:
        exact = GaussianAccountant(CONFIG)
        wrapper = DifferentialPrivacyServerSideFixedClipping(
            average(), NOISE, CLIP, CLIENTS, accountant=exact
        )
        accuracies.append(run(wrapper, [], seed))
    by_rdp.compose(GaussianPrivacyEvent(NOISE, CLIENTS, CLIENTS), count=ROUNDS)
    spent, bound = exact.get_privacy_spent(), by_rdp.get_privacy_spent()
    central = StatedView(ViewKind.CENTRAL)
    replaced = exact.replace_one_epsilon(spent.delta)
    print("Flower's wrapper, server trusted:")
    for counted_by, epsilon, relation in (
        ("RdpAccountant", bound.epsilon, Relation.ADD_REMOVE),
        ("GaussianAccountant", spent.epsilon, Relation.ADD_REMOVE),
        ("GaussianAccountant", replaced, Relation.REPLACE_ONE),
    ):
        stated = PrivacyStatement(epsilon, spent.delta, Unit.TOTAL, central, relation)
        print(f"  {stated.brief} by {counted_by}")
    print(f"  accuracy {np.mean(accuracies):.3f} (mean of {len(SEEDS)} seeds)")

    target = pq.Target(epsilon=spent.epsilon, rounds=ROUNDS, num_clients=CLIENTS, relation="zero-out")
    plan = target.plan(650, CLIP, aggregation=SimulatedSum())
    scores = [
        run(
            PrivQuantStrategy(average(), plan, rotation_seed=seed, simulated=True),
            [PrivQuantMod(**plan.client_limits, seed=seed)],
            seed,
        )
        for seed in SEEDS
    ]
    print("PrivQuant, server sees sums only:")
    print(f"  {plan.statement.brief}")
    print(f"  {plan.other_statement.brief}")
    print(f"  accuracy {np.mean(scores):.3f} (mean of {len(SEEDS)} seeds)")


if __name__ == "__main__":
    main()
