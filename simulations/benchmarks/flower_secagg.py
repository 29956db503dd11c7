"""A round of Flower's own SecAgg+, on the same engine as ours: its workflow and its client mod."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.secagg import choose_parameters

_LEVELS = 16


def flower_seconds(num_clients: int, coordinates: int) -> float:
    """Processor seconds of a round, with as many neighbors and the threshold that this package chooses.

    It is the faster of two rounds, as the first one warms up.
    """
    graph = choose_parameters(num_clients)
    values = np.linspace(-1.0, 1.0, coordinates, dtype=np.float32)
    seconds: list[float] = []
    means: list[NDArrays] = []

    class Client(NumPyClient):
        def fit(
            self, parameters: NDArrays, config: dict[str, Scalar]
        ) -> tuple[NDArrays, int, dict[str, Scalar]]:
            return [values], 1, {}

    workflow = SecAggPlusWorkflow(
        graph.num_neighbors + 1,
        graph.threshold,
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=_LEVELS,
    )

    def timed_workflow(grid: Grid, context: Context) -> None:
        start = time.process_time()
        workflow(grid, context)
        seconds.append(time.process_time() - start)

    def keep_mean(server_round: int, parameters: NDArrays, config: dict[str, Scalar]) -> None:
        means.append(parameters)

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=num_clients,
            min_available_clients=num_clients,
            evaluate_fn=keep_mean,
            initial_parameters=ndarrays_to_parameters([np.zeros_like(values)]),
        )
        legacy = LegacyContext(context, config=ServerConfig(num_rounds=2), strategy=strategy)
        DefaultWorkflow(fit_workflow=timed_workflow)(grid, legacy)

    client = ClientApp(client_fn=lambda context: Client().to_client(), mods=[secaggplus_mod])
    InlineEngine().run(server, client, Federation(num_clients))
    if not np.allclose(means[-1][0], values, atol=2.0 / _LEVELS):
        raise RuntimeError("Flower's round did not give the mean of the updates")
    return min(seconds)
