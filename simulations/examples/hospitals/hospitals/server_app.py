"""The server: ordinary Flower code, and PrivQuant around its strategy."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from fl_privquant.flower import PrivQuantStrategy
from hospitals.privacy import plan, target
from hospitals.task import NUM_FEATURES, load_test_patients

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and keep the model and its accuracy."""
    print(plan)
    # The update is a mean gradient, so that the server chooses the learning rate.
    strategy = FedAvgM(
        # Flower asks as many clients as had connected first: with this many it waits for all of them.
        min_available_nodes=target.num_clients,
        min_train_nodes=target.num_clients,
        fraction_evaluate=0.0,
        server_learning_rate=float(context.run_config["learning-rate"]),
        server_momentum=0.5,
    )
    private = PrivQuantStrategy(strategy, plan)  # PrivQuant
    start = {"coef": np.zeros((1, NUM_FEATURES)), "intercept": np.zeros(1)}
    initial = ArrayRecord({name: Array(array) for name, array in start.items()})
    result = private.start(grid, initial, num_rounds=target.rounds, evaluate_fn=evaluate)
    context.state["arrays"] = result.arrays
    context.state["metrics"] = result.evaluate_metrics_serverapp[target.rounds]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy of the model on patients that take part in no hospital's training."""
    features, labels = load_test_patients()
    model = {name: array.numpy() for name, array in arrays.items()}
    malignant = features @ model["coef"][0] + model["intercept"][0] > 0.0
    return MetricRecord({"accuracy": float(np.mean(malignant == labels))})
