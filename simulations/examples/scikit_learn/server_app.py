"""The server: ordinary Flower code, and PrivQuant around its strategy."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.flower import PrivQuantStrategy
from simulations.examples.scikit_learn.task import load_test_data, make_model, set_weights

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and keep the model and its accuracy."""
    config = context.run_config
    strategy: Strategy = FedAvg(fraction_evaluate=0.0)
    mechanism = pq.design("optm", epsilon=float(config["epsilon"]), bits=int(config["bits"]))
    strategy = PrivQuantStrategy(strategy, pq.Encoding(mechanism, float(config["clip"])))  # PrivQuant

    initial = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial.items()}),
        num_rounds=int(config["num-rounds"]),
        evaluate_fn=evaluate,
    )
    context.state["arrays"] = result.arrays
    context.state["metrics"] = result.evaluate_metrics_serverapp[int(config["num-rounds"])]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy of the global model on test data that the server has."""
    model = make_model()
    set_weights(model, {name: array.numpy() for name, array in arrays.items()})
    images, labels = load_test_data()
    return MetricRecord({"accuracy": float(model.score(images, labels))})
