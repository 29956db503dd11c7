"""The server: ordinary Flower code, and PrivQuant around its strategy."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.flower import PrivQuantStrategy
from simulations.examples.shakespeare.task import accuracy, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and keep the model and its accuracy."""
    config, folder = context.run_config, str(context.run_config["data"])
    mechanism = pq.design("optm", epsilon=float(config["epsilon"]), bits=int(config["bits"]))
    strategy = PrivQuantStrategy(FedAvg(fraction_evaluate=0.0), pq.Encoding(mechanism, float(config["clip"])))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = make_model(folder)
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, folder)})

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model(folder).state_dict()),
        num_rounds=int(config["num-rounds"]),
        evaluate_fn=evaluate,
    )
    context.state["arrays"] = result.arrays
    context.state["metrics"] = result.evaluate_metrics_serverapp[int(config["num-rounds"])]
