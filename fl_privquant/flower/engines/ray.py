"""The Ray engine: Flower's own simulation, made to ask the same clients in the same order as inline."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.engines.engine import (
    Federation,
    GridWrapper,
    RunResult,
    load_app,
    seeded_sampling,
)

_REGISTRATION_SECONDS = 120.0
_START_SECONDS = 300.0
_CONNECT_SECONDS = 5.0
_NICENESS = "RAY_worker_niceness"
_READY = "query.privquant_ready"
# Flower passes a client's resources on to Ray as options of its actors. It also keeps a worker that has died,
# and gives it message after message, which all fail at once. With these options Ray starts the worker again,
# and messages wait for it. The message during which it died is tried once more, as no answer to it was sent.
_RESTARTED = {"max_restarts": -1, "max_task_retries": 1}


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
    """

    address: str | None = None
    client_cpus: float = 1.0
    client_gpus: float = 0.0

    def __post_init__(self) -> None:
        checks.inside("client_cpus", self.client_cpus, "(0, inf)")
        checks.inside("client_gpus", self.client_gpus, "[0, inf)")

    def run(
        self, server_app: ServerApp | str, client_app: ClientApp | str, federation: Federation
    ) -> RunResult:
        """Run the app, to its end."""
        _check_reachable(self.address)
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        from flwr.simulation import run_simulation

        server, client = load_app(server_app, ServerApp), load_app(client_app, ClientApp)
        state = RecordDict()
        wrapped = ServerApp()

        @wrapped.main()
        def main(grid: Grid, context: Context) -> None:
            run_context = federation.context(context.run_id, context.node_id, state=state)
            ordered = _OrderedGrid(grid, federation.num_clients)
            # Ray draws from Python's random while it starts: seeding has to wait for that.
            ordered.wait_until_ready()
            with seeded_sampling(federation.seed):
                server(ordered, run_context)
            # The app may have put another object in its place.
            state.update(run_context.state)

        # Without an address Ray would join any cluster that was started on this machine, even a dead one.
        init: dict[str, Any] = {"address": "local" if self.address is None else self.address}
        start = time.perf_counter()
        with _environment_kept("PYTHONPATH"), _environment_kept(_NICENESS):
            # Ray gives its workers the least priority: beside anything else they would hardly run.
            os.environ.setdefault(_NICENESS, "0")
            run_simulation(
                server_app=wrapped,
                client_app=_ConfiguredClientApp(client, federation),
                num_supernodes=federation.num_clients,
                backend_config={
                    "client_resources": {
                        "num_cpus": self.client_cpus,
                        "num_gpus": self.client_gpus,
                        **_RESTARTED,
                    },
                    "init_args": init,
                },
            )
        return RunResult("ray", state, time.perf_counter() - start)


class _ConfiguredClientApp(ClientApp):
    """The client app with the federation's configs, which Flower's simulation has no way to pass."""

    def __init__(self, app: ClientApp, federation: Federation) -> None:
        super().__init__()
        self._app = app
        self._federation = federation

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == _READY:
            return Message(RecordDict(), reply_to=message)
        partition = int(context.node_config["partition-id"])
        # A context of its own: Flower refuses one whose run config was changed.
        own = self._federation.context(context.run_id, context.node_id, partition, context.state)
        reply = self._app(message, own)
        context.state = own.state
        return reply


class _OrderedGrid(GridWrapper):
    """A grid with nodes in the order of partitions, and replies in the order of nodes.

    Flower's simulation gives nodes random ids and replies as they come. Sums of floats depend on
    the order, so without this no two runs would agree to the last bit.
    """

    def __init__(self, grid: Grid, num_nodes: int) -> None:
        super().__init__(grid)
        self._nodes = _registered_nodes(grid, num_nodes)

    def wait_until_ready(self) -> None:
        """Return when a first client answers: the engine has started."""
        message = Message(RecordDict(), self._nodes[0], _READY)
        # The wait has a limit: if Ray fails to start, Flower stops its own thread but not that of the server.
        if not list(self._grid.send_and_receive([message], timeout=_START_SECONDS)):
            raise TimeoutError(f"Ray did not run a first client in {_START_SECONDS:g} s; its log says why")

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._in_order(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._in_order(self._grid.send_and_receive(messages, timeout=timeout))

    def _in_order(self, replies: Iterable[Message]) -> list[Message]:
        place = {node: number for number, node in enumerate(self._nodes)}
        return sorted(replies, key=lambda reply: place.get(reply.metadata.src_node_id, len(place)))


def _registered_nodes(grid: Grid, num_nodes: int) -> list[int]:
    """All nodes, in the order in which they were registered: that of their partitions."""
    deadline = time.monotonic() + _REGISTRATION_SECONDS
    while len(nodes := list(grid.get_nodes())) < num_nodes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(nodes)} of {num_nodes} nodes registered in {_REGISTRATION_SECONDS:g} s")
        time.sleep(0.01)
    return [node.node_id for node in sorted(nodes, key=lambda node: node.registered_at)]


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
            f"address: no Ray cluster answers at {address} ({error}); give host:port of its head, or leave "
            "the address out"
        ) from None


@contextlib.contextmanager
def _environment_kept(name: str) -> Iterator[None]:
    """Undo what the block does to one environment variable: Flower lets it grow with each run."""
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
