"""The Ray engine: simulated nodes in Ray's worker processes, on this machine or on a cluster.

Messages that are sent together are divided into parcels. A parcel has the messages to some nodes, and the
states of these nodes; what comes back are the replies and the new states. So any worker can serve any client,
and what a client remembers does not depend on which one does.

If a worker ends, for example because the system killed it for lack of memory, the clients of the parcels that
are not answered yet count as lost. Their states stay what they were, since nothing of what they computed has
left the worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_privquant import _validation
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.flower._flower_internals import (
    ErrorCode,
    make_delivered_copy,
    receiver_of,
    set_message_id,
    use_server_identity,
)
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower._messages.cohort_replies import Sent
from fl_privquant.flower.simulation._nodes import BATCH, Nodes, group_by_node, make_error_reply
from fl_privquant.flower.simulation.engine import Federation, RunResult, load_app
from fl_privquant.flower.simulation.inline import RUN_IDS, SimulationGrid, run_server

_CONNECT_SECONDS = 5.0
_NICENESS_VARIABLE = "RAY_worker_niceness"
# A parcel whose worker has died is tried once more, as no answer to it was sent.
_MAX_RETRIES = 1
# Each worker gets about so many parcels of a push, so that all workers end at about the same time.
_PARCELS_PER_WORKER = 4


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
        nodes = Nodes(client, federation, next(RUN_IDS), self.batch)
        start = time.perf_counter()
        with _connect(self.address):
            pool = _RayPool(nodes, client_app, self)
            state = run_server(server, SimulationGrid(nodes, pool.answer), federation)
        return RunResult("ray", state, time.perf_counter() - start)


@dataclass(frozen=True)
class Parcel:
    """Messages to some nodes, and the states of these nodes."""

    sent: list[Sent]
    states: dict[int, RecordDict]


@dataclass(frozen=True)
class Answer:
    """The replies to the messages of a parcel, and the new states of its nodes."""

    replies: list[Message]
    states: dict[int, RecordDict]


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
        """The replies to messages, in their order; an error for those that were lost with a worker."""
        import ray

        groups = group_by_node([message for message, _ in sent])
        size = max(1, -(-len(groups) // (_PARCELS_PER_WORKER * self._num_workers)))
        parts = [groups[start : start + size] for start in range(0, len(groups), size)]
        places = [[place for group in part for place in group] for part in parts]
        parts_sent = [[sent[place] for place in chosen] for chosen in places]
        parcels = [Parcel(part, _find_states(self.nodes, part)) for part in parts_sent]
        waiting = [self._serve.remote(self._client, parcel) for parcel in parcels]
        replies: dict[int, Message] = {}
        for chosen, parcel, reference in zip(places, parcels, waiting, strict=True):
            try:
                answer: Answer = ray.get(reference)
            except Exception as error:
                answer = Answer([_report_loss(message, str(error)) for message in parcel.sent], parcel.states)
            replies.update(zip(chosen, answer.replies, strict=True))
            _replace_states(self.nodes, parcel, answer.states)
        return [replies[place] for place in range(len(sent))]


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


def answer_parcel(nodes: Nodes, parcel: Parcel) -> Answer:
    """Answer the messages of a parcel, in a worker."""
    _read_models(parcel)
    _replace_states(nodes, parcel, parcel.states)
    replies = nodes.answer(parcel.sent)
    return Answer(replies, _find_states(nodes, parcel.sent))


def _find_states(nodes: Nodes, sent: Sequence[Sent]) -> dict[int, RecordDict]:
    asked = {receiver_of(message) for message, _ in sent}
    return {node: nodes.states[node] for node in asked if node in nodes.states}


def _replace_states(nodes: Nodes, parcel: Parcel, states: dict[int, RecordDict]) -> None:
    """Give the nodes of a parcel these states, and no other ones."""
    for message, _ in parcel.sent:
        nodes.states.pop(receiver_of(message), None)
    nodes.states.update(states)


def _report_loss(sent: Sent, reason: str) -> Message:
    message, message_id = sent
    lost = make_delivered_copy(message, message_id)
    reply = make_error_reply(lost, ErrorCode.CLIENT_APP_CRASHED, f"the client's worker ended: {reason}")
    set_message_id(reply, f"{message_id}-reply")
    return reply


def _read_models(parcel: Parcel) -> None:
    """Read arrays that the messages share: every copy of them then knows their values."""
    shared = {id(record): record for message, _ in parcel.sent for record in message.content.values()}
    for record in shared.values():
        if isinstance(record, ArrayRecord):
            # What cannot be read is for the client to refuse.
            with contextlib.suppress(InvalidUpdateError):
                read_arrays(record)


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
