"""The server: ordinary Flower code, and PrivQuant around its strategy."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_privquant.flower import PrivQuantStrategy
from my_app.privacy import plan, target
from my_app.task import initial_model, load_test_data, predict

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and keep the model and its accuracy."""
    # The server evaluates by itself: what clients would evaluate on their data is not private.
    # Flower asks as many clients as had connected first: with this many it waits for all of them.
    clients = target.num_clients
    strategy = FedAvg(min_available_nodes=clients, min_train_nodes=clients, fraction_evaluate=0.0)
    private = PrivQuantStrategy(strategy, plan)  # PrivQuant
    initial = ArrayRecord({name: Array(array) for name, array in initial_model().items()})
    result = private.start(grid, initial, num_rounds=target.rounds, evaluate_fn=evaluate)
    context.state["arrays"] = result.arrays
    context.state["metrics"] = result.evaluate_metrics_serverapp[target.rounds]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy of the global model on test data that the server has."""
    inputs, labels = load_test_data()
    guesses = predict({name: array.numpy() for name, array in arrays.items()}, inputs) > 0.5
    return MetricRecord({"accuracy": float(np.mean(guesses == labels))})
