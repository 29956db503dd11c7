# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a privacy budget to a trained model
#
# We design a mechanism, look at its law, attack it, train with it on Flower, and read what was spent.
# `make tutorial` runs this page again; seeds are fixed so that it comes out the same.

# %%
import dataclasses
import logging
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.accounting import Release, View, empirical_bound, statement_levels
from fl_privquant.cli.plots import draw_error, draw_law
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.engines import Federation, InlineEngine
from simulations.examples.scikit_learn.task import load_data, load_test_data

logging.getLogger("flwr").setLevel(logging.ERROR)

# %% [markdown]
# ## Design
#
# Two bits a coordinate, ε = 2 for one coordinate and one release. One linear program finds the best unbiased law
# on four output values, and a search finds the values. What comes back is certified: its ε was computed in exact
# arithmetic from the integers that are sampled from, and it is never above what was asked.

# %%
mechanism = pq.design("optm", epsilon=2.0, bits=2)
print(f"certified        {mechanism.statement.brief}")
print(f"output values    {np.round(mechanism.values, 4)}")
print(f"their codes      {mechanism.codes}: a sum of codes decodes to the sum of the values")
print(f"squared error    {mechanism.mse():.4f}   (uniform input in [-1, 1])")
print(f"absolute error   {mechanism.mae():.4f}")

# %% [markdown]
# ## Look at its law
#
# Left: the probability of each output against the input. Differential privacy is that no line is more than e² times as
# high at one place as at another; unbiasedness is that the outputs average to the input at every x. Right: the
# squared error, next to two other mechanisms with the same ε. One bit is enough at small ε, and wasteful here.

# %%
peers = {name: pq.design(name, epsilon=2.0) for name in ("one_bit", "rqm")}
figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), dpi=80, layout="constrained")
draw_law(left, mechanism)
draw_error(right, {**peers, "optm": mechanism}, power=2)

# %% [markdown]
# ## Encode and decode
#
# Each estimate is one of four values, far from its input. The mean over many clients is close: that is what a
# federated average needs. (Without `rng` randomness comes from the operating system. A seed is for pages like this.)

# %%
updates = np.tile([-0.08, 0.0, 0.03, 0.1], (100_000, 1))
indices = mechanism.encode(updates, clip=0.1, rng=pq.RandomStream.seeded(1))
estimates = mechanism.decode(indices, clip=0.1)
print("inputs             ", updates[0])
print("estimates, client 0", np.round(estimates[0], 4))
print("mean of all clients", np.round(estimates.mean(axis=0), 4))

# %% [markdown]
# ## Audit it
#
# A client *certifies* what the server sends. A mechanism that claims less than it loses is refused, however well
# formed its bytes.

# %%
blob = mechanism.to_bytes()
print(f"{len(blob)} bytes, certified again: {pq.Mechanism.from_bytes(blob).statement.brief}")
forged = dataclasses.replace(mechanism)
object.__setattr__(forged, "claimed_epsilon", 1.0)  # past the checks that a constructor makes
try:
    pq.Mechanism.from_bytes(forged.to_bytes())
except pq.CertificationError as error:
    print("refused:", error)

# %% [markdown]
# An *attacker* draws from the encoder and tries to tell two inputs apart. That gives a lower bound on ε: one above
# the claim would refute it. Here it comes close from below, so the certificate is also tight.

# %%
print(empirical_bound(mechanism, rng=pq.RandomStream.seeded(2)))

# %% [markdown]
# ## Train with it
#
# An ordinary Flower app: softmax regression on the digits, 50 clients. Two lines are PrivQuant's. The client's line
# is a limit that the client sets: it refuses any mechanism above it. The inline engine runs the app in this process;
# the same app runs on Ray and on a SuperLink.

# %%
CLIENTS, ROUNDS, CLIP = 50, 15, 0.1
TEST_IMAGES, TEST_LABELS = load_test_data()
Model = dict[str, np.ndarray]


def scores(model: Model, images: np.ndarray) -> np.ndarray:
    """(n, 10) what the model gives each class of each image."""
    return images @ model["weights"] + model["bias"]


def train_model(model: Model, images: np.ndarray, labels: np.ndarray) -> Model:
    """The model after some steps of gradient descent."""
    for _ in range(5):
        odds = np.exp(scores(model, images))
        gradient = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
        model = {
            "weights": model["weights"] - 0.3 * images.T @ gradient,
            "bias": model["bias"] - 0.3 * gradient.sum(axis=0),
        }
    return model


def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's own data."""
    images, labels = load_data(int(context.node_config["partition-id"]), CLIENTS)
    received = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    trained = train_model(received, images, labels)
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy of the global model on test data that the server has."""
    model = {name: array.numpy() for name, array in arrays.items()}
    guesses = scores(model, TEST_IMAGES).argmax(axis=1)
    return MetricRecord({"accuracy": float(np.mean(guesses == TEST_LABELS))})


private_client, plain_client = ClientApp(), ClientApp()
private_client.train(mods=[PrivQuantMod(max_epsilon=2.0, seed=0)])(train)  # without the seed: secure
plain_client.train()(train)


def accuracies(client: ClientApp, chosen: pq.Mechanism | None) -> list[float]:
    """Test accuracy after each round, plain or with a mechanism."""
    server = ServerApp()
    curve: list[Any] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy: Strategy = FedAvg(fraction_evaluate=0.0)
        if chosen is not None:
            strategy = PrivQuantStrategy(strategy, mechanism=chosen, clip=CLIP)
        zeros = {"weights": np.zeros((64, 10)), "bias": np.zeros(10)}
        initial = ArrayRecord({name: Array(array) for name, array in zeros.items()})
        result = strategy.start(grid, initial, num_rounds=ROUNDS, evaluate_fn=evaluate)
        curve.extend(metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values())

    InlineEngine().run(server, client, Federation(CLIENTS, seed=0))
    return curve


curves = {"float32, no privacy": accuracies(plain_client, None)}
for name, design in {"optm": mechanism, "one_bit": peers["one_bit"]}.items():
    curves[f"{name}, bits a coordinate: {design.bits_per_coordinate:g}"] = accuracies(private_client, design)

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.4), dpi=80, layout="constrained")
for label, curve in curves.items():
    axes.plot(curve, marker=".", label=f"{label}: {curve[-1]:.3f}")
axes.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1), title=f"{mechanism.statement.brief}, one seed")
legend = axes.legend(fontsize=8, title="after the last round", title_fontsize=8)

# %% [markdown]
# One seed: differences of a few hundredths between mechanisms mean nothing here.
#
# ## Read the privacy statement
#
# The ε of a design is for *one coordinate and one release, seen by the server*. A client sent 650 coordinates in 15
# rounds. What that composes to is printed with its unit and its view, for whoever sees each update, and for whoever
# sees only the sum over all clients (secure aggregation).

# %%
release = Release(mechanism, dimension=650, view=View.aggregate(CLIENTS))
for statement in statement_levels(release, rounds=ROUNDS, delta=1e-5):
    print(f"{statement.brief}  [{statement.method}]")

# %% [markdown]
# The last lines are no formal protection. What helps: more clients in each sum, a smaller ε, fewer coordinates,
# fewer rounds. The same run with 20 000 clients behind secure aggregation, at ε = 0.5:

# %%
small = pq.design("optm", epsilon=0.5, bits=2)
release = Release(small, dimension=650, view=View.aggregate(20_000))
for statement in statement_levels(release, rounds=ROUNDS, delta=1e-5):
    print(f"{statement.brief}  [{statement.method}]")

# %% [markdown]
# `fl-privquant plan` searches for designs that meet a target for the whole run, and the README says what each view
# assumes.
