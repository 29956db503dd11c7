"""Flower's own SecAgg+ in this process: its workflow and its client mod, without a network."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from fl_privquant.secagg import GraphParameters
from simulations.benchmarks.secagg_rounds import MAX_CODE, Cost


def flower_round(graph: GraphParameters, dimension: int) -> Cost:
    """A round of Flower's SecAgg+ workflow and client mod, through a grid in this process."""
    from flwr.app import ConfigRecord
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server import SimpleClientManager
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    from fl_privquant.flower.engines.internals import server_identity

    n = graph.num_clients
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    values = np.linspace(-1.0, 1.0, dimension, dtype=np.float32)
    parameters = ndarrays_to_parameters([values])
    grid: Any = _FlowerGrid(parameters)
    clients = SimpleClientManager()
    for node_id in range(1, n + 1):
        clients.register(GridClientProxy(node_id, grid, 1))
    strategy = FedAvg(fraction_fit=1.0, min_fit_clients=n, min_available_clients=n)
    context = LegacyContext(_flower_context(0), strategy=strategy, client_manager=clients)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    record = compat.parameters_to_arrayrecord(parameters, keep_input=True)
    context.state.array_records[MAIN_PARAMS_RECORD] = record
    # The quantizer's levels, the range and the weight change neither its time nor its bytes.
    workflow = SecAggPlusWorkflow(
        graph.num_neighbors + 1,
        graph.threshold,
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=MAX_CODE,
    )
    with server_identity(1):
        start = time.process_time()
        workflow(grid, context)
        seconds = time.process_time() - start
    start = time.process_time()
    # Flower passes float32 as well, whatever its annotation says.
    quantize([values], 1.0, MAX_CODE)  # type: ignore[list-item]
    quantizing = n * (time.process_time() - start)
    mean = parameters_to_ndarrays(
        compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True)
    )[0]
    if not np.allclose(mean, values, atol=2.0 / MAX_CODE):
        raise RuntimeError("Flower's round did not come out")
    return Cost(seconds - quantizing, grid.traffic / n)


class _FlowerGrid:
    """Hands messages to Flower's mod, and counts the keys, shares and vectors in them."""

    def __init__(self, parameters: Any) -> None:
        self.traffic = 0
        self._parameters = parameters
        self._contexts: dict[int, Any] = {}

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.client.mod import secaggplus_mod
        from flwr.common import Code, FitRes, Status
        from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
        from flwr.compat.common import recorddict_compat as compat

        def train(message: Any, context: Any) -> Any:
            result = FitRes(Status(Code.OK, ""), self._parameters, 1, {})
            return Message(compat.fitres_to_recorddict(result, keep_input=True), reply_to=message)

        replies = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            # The mod changes the records that it is given, and the workflow gives all clients the same ones.
            content = RecordDict(
                {
                    key: ConfigRecord(dict(record)) if isinstance(record, ConfigRecord) else record
                    for key, record in message.content.items()
                }
            )
            copied = Message(
                content,
                dst_node_id=node_id,
                message_type=message.metadata.message_type,
                group_id=message.metadata.group_id,
            )
            self.traffic += _content_bytes(content[RECORD_KEY_CONFIGS])
            context = self._contexts.setdefault(node_id, _flower_context(node_id))
            reply = secaggplus_mod(copied, context, train)
            self.traffic += _content_bytes(reply.content[RECORD_KEY_CONFIGS])
            replies.append(reply)
        return replies


def _flower_context(node_id: int) -> Any:
    from flwr.app import Context, RecordDict

    return Context(run_id=1, node_id=node_id, node_config={}, state=RecordDict(), run_config={})


def _content_bytes(record: Any) -> int:
    """Bytes of all keys, shares and vectors in a record; of a number, 8."""
    values = [item for value in record.values() for item in (value if isinstance(value, list) else [value])]
    return sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in values)
