"""The server: ordinary Flower code, and PrivQuant around its strategy."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_privquant.flower import PrivQuantStrategy
from simulations.examples.pytorch.privacy import plan, target
from simulations.examples.pytorch.task import accuracy, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and keep the model and its accuracy."""
    # The server evaluates by itself: what clients would evaluate on their data is not private.
    # Flower asks as many clients as had connected first: with this many it waits for all of them.
    clients = target.num_clients
    strategy = FedAvg(min_available_nodes=clients, min_train_nodes=clients, fraction_evaluate=0.0)
    private = PrivQuantStrategy(strategy, plan)  # PrivQuant

    torch.manual_seed(0)
    initial = ArrayRecord(make_model().state_dict())
    result = private.start(grid, initial, num_rounds=target.rounds, evaluate_fn=evaluate)
    context.state["arrays"] = result.arrays
    context.state["metrics"] = result.evaluate_metrics_serverapp[target.rounds]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy of the global model on test data that the server has."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model)})
