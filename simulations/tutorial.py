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
# We begin with what a whole training run may cost a client, and let a *plan* follow from it. Then we look at the
# mechanism inside, try to break it, train on Flower through secure aggregation, read what was spent, compare
# mechanisms in a sweep, and open its report. It runs in any folder, with what `make run` or
# `pip install 'PATH_OF_THE_REPOSITORY[simulation]'` installs. `make tutorial` runs this page again; seeds are fixed
# so that it comes out the same.

# %%
import dataclasses
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.accounting import Release, View, empirical_bound, statement_levels
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.plotting import draw_distribution, draw_error
from simulations.examples.scikit_learn.task import load_data, load_test_data

logging.getLogger("flwr").setLevel(logging.ERROR)

# %% [markdown]
# ## A budget, and the plan that follows
#
# The model is softmax regression on scikit-learn's digits: 650 coordinates. 40 clients train it together in 8
# rounds. The budget is ε = 8 and δ = 1e-5 for *everything that a client sends in the whole run*, against a server
# that sees only sums over the clients, which is what secure aggregation shows it. By default a plan takes a tenth
# of the clients to work for the server and another tenth to drop out, so that 32 honest ones remain.

# %%
CLIENTS, ROUNDS, DIMENSION = 40, 8, 650
target = pq.Target(epsilon=8.0, delta=1e-5, rounds=ROUNDS, num_clients=CLIENTS)
plan = target.plan(DIMENSION, l2_clip=0.7)
print(plan)

# %% [markdown]
# Its line about noise states the price: the noise hides each client in every round, and averages out over rounds.
# More clients in each sum reduce it fastest, as a second plan shows.

# %%
more = pq.Target(epsilon=8.0, delta=1e-5, rounds=ROUNDS, num_clients=400).plan(DIMENSION, l2_clip=0.7)
for name, planned in (("40 clients", plan), ("400 clients", more)):
    print(f"{name}: noise of {planned.noise_to_signal:.2f} times the energy of an update at the L2 clip")

# %% [markdown]
# ## What a mechanism is
#
# A mechanism turns one coordinate into one of a few integers, at random. The simplest one to look at is designed for
# one coordinate and one release by itself: two bits, ε = 2. A linear program finds the best unbiased distribution on four
# output values, and a search finds the values. What comes back is *certified*: its ε was computed in exact
# arithmetic from the integers that are sampled from, and it is never above what was asked.

# %%
mechanism = pq.design("optm", epsilon=2.0, bits=2)
print(f"certified        {mechanism.statement.brief}")
print(f"output values    {np.round(mechanism.values, 4)}")
print(f"their codes      {mechanism.codes}: a sum of codes decodes to the sum of the values")
print(f"squared error    {mechanism.mse():.4f}   (uniform input in [-1, 1])")

# %% [markdown]
# Left: the probability of each output against the input. Differential privacy means that no line is more than e² times
# as high at one place as at another; unbiasedness means that the outputs average to the input at every x. Right: the
# squared error, next to two other mechanisms with the same ε.

# %%
peers = {name: pq.design(name, epsilon=2.0) for name in ("one_bit", "rqm")}
figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), dpi=80, layout="constrained")
draw_distribution(left, mechanism)
draw_error(right, {**peers, "optm": mechanism}, power=2)

# %% [markdown]
# ## Try to break it
#
# A client certifies what the server sends. A mechanism that claims less than it loses is refused, however well
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
# An attacker draws from the encoder and tries to tell two inputs apart. That gives a lower bound on ε: one above
# the claim would refute it. Here it comes close from below, so the certificate is also tight.

# %%
print(empirical_bound(mechanism, rng=pq.RandomStream.seeded(2)))

# %% [markdown]
# The ε of a design is for *one coordinate and one release, seen by the server*. For 650 coordinates in 8 rounds it is far
# larger. Each line names its unit (what is protected) and its view (what the adversary sees).

# %%
release = Release(mechanism, DIMENSION, view=View.aggregate(CLIENTS))
for statement in statement_levels(release, rounds=ROUNDS, delta=1e-5):
    print(f"{statement.brief}  [{statement.method}]")

# %% [markdown]
# So large an ε protects nobody. This is why we began with the budget: the plan's mechanism was designed so that the *last*
# line is 8.
#
# ## Train with the plan, through secure aggregation
#
# This is an ordinary Flower app with two lines of ours: the client's mod and the server's strategy. `PrivQuantMod`
# encodes and masks each update, so that the server can open the sum of a round and no single update. The client sets
# limits for itself: with those of the plan it refuses mechanisms with a larger ε for one coordinate. The inline
# engine runs the app in this process; the same app runs on Ray and on a SuperLink.

# %%
TEST_IMAGES, TEST_LABELS = load_test_data()
Model = dict[str, np.ndarray]


def scores(model: Model, images: np.ndarray) -> np.ndarray:
    """(n, 10) what the model gives each class of each image."""
    return images @ model["weights"] + model["bias"]


def train_model(model: Model, images: np.ndarray, labels: np.ndarray) -> Model:
    """The model after one step of gradient descent on all examples of a client."""
    odds = np.exp(scores(model, images))
    gradient = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
    return {
        "weights": model["weights"] - 4.0 * images.T @ gradient,
        "bias": model["bias"] - 4.0 * gradient.sum(axis=0),
    }


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


# Without the seed the noise comes from the operating system, as protection needs; a seed is for pages like this.
private_client = ClientApp(mods=[PrivQuantMod(**plan.client_limits, seed=0, secure_aggregation=True)])
private_client.train()(train)
plain_client = ClientApp()
plain_client.train()(train)


def accuracies(client: ClientApp, strategy: Strategy) -> list[float]:
    """Test accuracy after each round."""
    server = ServerApp()
    curve: list[Any] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        zeros = {"weights": np.zeros((64, 10)), "bias": np.zeros(10)}
        initial = ArrayRecord({name: Array(array) for name, array in zeros.items()})
        result = strategy.start(grid, initial, num_rounds=ROUNDS, evaluate_fn=evaluate)
        curve.extend(metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values())

    InlineEngine().run(server, client, Federation(CLIENTS, seed=0))
    return curve


private = PrivQuantStrategy(FedAvg(fraction_evaluate=0.0), plan, simulated=True)
curves = {
    "float32, no privacy": accuracies(plain_client, FedAvg(fraction_evaluate=0.0)),
    f"{plan.encoding.mechanism.name}, as planned": accuracies(private_client, private),
}

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.4), dpi=80, layout="constrained")
for label, curve in curves.items():
    axes.plot(curve, marker=".", label=f"{label}: {curve[-1]:.3f}")
axes.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1), title="one seed", xticks=range(ROUNDS + 1))
legend = axes.legend(fontsize=8, title="after the last round", title_fontsize=8)

# %% [markdown]
# ## Read what was spent
#
# The strategy keeps a ledger and counts every client that it asks, before anything is sent. The plan's target is its
# budget: a ninth round would not begin.

# %%
for line in private.privacy_statement():
    print(line)

# %% [markdown]
# ## Sweep
#
# One seed tells little. The simulations run the same thing for several mechanisms and seeds from the shell. Here the
# baseline is a server that is trusted with every update and adds the noise itself (`central_gaussian`).
# `secagg=simulated` adds codes up without masks, which gives the same models and figures in less time.

# %%
folder = tempfile.TemporaryDirectory()
command = (
    "-m simulations.run -m mechanism=rounded_gaussian,central_gaussian privacy.epsilon=8 secagg=simulated "
    "seed=0,1,2 federation.num_clients=40 federation.rounds=8 federation.batch_size=100000 "
    "federation.learning_rate=4 encoding.l2_clip=0.7 study=tutorial"
)
done = subprocess.run(
    [sys.executable, *command.split(), f"output={folder.name}"],
    check=True,
    capture_output=True,
    text=True,
    env=os.environ | {"COLUMNS": "110", "FORCE_COLOR": ""},
)
print("$ python", command)
print(done.stdout[: done.stdout.index("report: ")])

# %% [markdown]
# With 40 clients and three seeds the intervals are wide. `make run` does the same with more of both.
#
# ## The report
#
# The sweep ended with a table, with a verdict in sentences, and with a report: one HTML file, with figures and tables
# beside it. `python -m simulations.report outputs/tutorial` makes it again.

# %%
study = Path(folder.name) / "tutorial"
for path in sorted(study.rglob("*")):
    if path.is_file() and path.relative_to(study).parts[0] in ("report.html", "figures", "tables"):
        print(path.relative_to(study))
folder.cleanup()

# %% [markdown]
# Read on: [what ε means](../docs/pages/concepts.md), [how to choose parameters](../docs/pages/plan.md),
# [how to make a Flower app private](../docs/pages/flower.md), [who learns what](../docs/pages/threat_model.md).
