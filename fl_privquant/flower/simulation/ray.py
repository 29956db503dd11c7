"""The Ray engine: simulated nodes in Ray's worker processes, on this machine or on a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_privquant import _validation
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.cohort_replies import Sent
from fl_privquant.flower.simulation._nodes import BATCH, Nodes
from fl_privquant.flower.simulation.engine import Federation, RunResult, load_app
from fl_privquant.flower.simulation.inline import RUN_IDS, SimulationGrid, run_server
from fl_privquant.flower.simulation.workers import Answer, Collect, Parcel, answer_in_parcels, answer_parcel

_CONNECT_SECONDS = 5.0
_NICENESS_VARIABLE = "RAY_worker_niceness"
# A parcel whose worker has died is tried once more, as no answer to it was sent.
_MAX_RETRIES = 1


@dataclass(frozen=True)
class RayEngine:
    """Runs clients in Ray's worker processes, on this machine or on a cluster.

    Parameters
    ----------
    address
        Of an existing Ray cluster, such as ``"127.0.0.1:6379"`` or ``"auto"``; its machines need this package
        and the app's. None: Ray is started on this machine, and stopped after the run.
    client_cpus, client_gpus
        Processors and GPUs that one client takes: as many clients run at once as the machines have room for.
    batch
        As for the inline engine.
    """

    address: str | None = None
    client_cpus: float = 1.0
    client_gpus: float = 0.0
    batch: int = BATCH

    def __post_init__(self) -> None:
        _validation.check_in_interval("client_cpus", self.client_cpus, "(0, inf)")
        _validation.check_in_interval("client_gpus", self.client_gpus, "[0, inf)")
        _validation.check_integer("batch", self.batch, 1)

    def run(
        self, server_app: ServerApp | str, client_app: ClientApp | str, federation: Federation
    ) -> RunResult:
        """Run the app, to its end."""
        _check_reachable(self.address)
        # An app that is given by name is imported by each worker, and need not be sent.
        server, client = load_app(server_app, ServerApp), load_app(client_app, ClientApp)
        run_id = next(RUN_IDS)
        start = time.perf_counter()
        with _connect(self.address):
            pool = _RayPool(Nodes(client, federation, run_id, self.batch), client_app, self)
            state = run_server(server, SimulationGrid(pool.nodes, pool.answer, run_id), federation)
        return RunResult("ray", state, time.perf_counter() - start)


class _RayPool:
    """Gives parcels to Ray's workers; the states of nodes stay in this process."""

    def __init__(self, nodes: Nodes, client_app: ClientApp | str, engine: RayEngine) -> None:
        import ray

        self.nodes = nodes
        # In a list, so that Ray hands the reference to the workers, which read it once.
        self._client = [ray.put((client_app, nodes.federation, nodes.run_id, nodes.batch))]
        self._serve = ray.remote(_serve).options(
            num_cpus=engine.client_cpus, num_gpus=engine.client_gpus, max_retries=_MAX_RETRIES
        )
        self._num_workers = _count_workers(engine)

    def answer(self, sent: list[Sent]) -> list[Message]:
        """The replies to messages, in their order."""
        return answer_in_parcels(self.nodes, sent, self._num_workers, self._submit)

    def _submit(self, parcel: Parcel) -> Collect:
        import ray

        reference = self._serve.remote(self._client, parcel)

        def collect() -> Answer:
            answer: Answer = ray.get(reference)
            return answer

        return collect


# What this worker serves, by the reference to it.
_nodes: dict[Any, Nodes] = {}


def _serve(client: list[Any], parcel: Parcel) -> Answer:
    """Answer a parcel, in a worker of Ray."""
    import ray

    (reference,) = client
    if reference not in _nodes:
        client_app, *rest = ray.get(reference)
        _nodes.clear()
        _nodes[reference] = Nodes(load_app(client_app, ClientApp), *rest)
    nodes = _nodes[reference]
    with use_server_identity(nodes.run_id):
        return answer_parcel(nodes, parcel)


def _count_workers(engine: RayEngine) -> int:
    """How many clients can run at once, as far as Ray knows."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    limits = [resources.get("CPU", 1.0) / engine.client_cpus]
    if engine.client_gpus:
        limits.append(resources.get("GPU", 0.0) / engine.client_gpus)
    if min(limits) < 1.0:
        raise InvalidSpecError(
            "client_cpus, client_gpus",
            (engine.client_cpus, engine.client_gpus),
            f", but Ray has {resources.get('CPU', 0.0):g} processors and {resources.get('GPU', 0.0):g} GPUs",
            "ask for less, or add machines to the cluster",
        )
    return int(min(limits))


@contextlib.contextmanager
def _connect(address: str | None) -> Iterator[None]:
    """Start Ray on this machine, or connect to the cluster at an address, while the block lasts."""
    import ray

    with _restore_environment(_NICENESS_VARIABLE):
        # Ray gives its workers the least priority: beside anything else they would hardly run.
        os.environ.setdefault(_NICENESS_VARIABLE, "0")
        # Without an address Ray would join any cluster that was started on this machine, even a dead one.
        ray.init(address="local" if address is None else address, logging_level=logging.WARNING)
        try:
            yield
        finally:
            ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Refuse a cluster that does not answer at all: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon:
        # None, "local" and "auto": Ray starts a cluster, or finds one on this machine.
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidSpecError(
            "address",
            address,
            f"has no Ray cluster that answers ({error})",
            "give host:port of its head, or leave the address out",
        ) from None


@contextlib.contextmanager
def _restore_environment(name: str) -> Iterator[None]:
    """Undo what the block does to one environment variable."""
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
