"""The inline engine: Flower's own strategy loop and the clients, in this process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_privquant import _validation
from fl_privquant.flower._flower_internals import (
    SUPERLINK_NODE_ID,
    Run,
    create_run,
    use_server_identity,
)
from fl_privquant.flower._messages.cohort_replies import Sent, source_of
from fl_privquant.flower._messages.grids import MessageGrid
from fl_privquant.flower.simulation._nodes import BATCH, Nodes
from fl_privquant.flower.simulation.engine import (
    Federation,
    RunResult,
    freeze_objects,
    load_app,
    seed_sampling,
)

# Each run has an id of its own: clients remember by run and node what they have released.
RUN_IDS = itertools.count(1)


class SimulationGrid(MessageGrid):
    """A grid whose nodes are simulated; a message is answered when it is pushed.

    As on a wire, what is sent is copied, an exception of the client becomes an error reply, and a node
    keeps its state from message to message and handles one at a time. Replies come in the order of
    nodes, whatever the order of requests.

    Parameters
    ----------
    nodes
        The simulated nodes.
    answer
        Answers messages with their ids, in their order; by default the nodes themselves, in this process.
    """

    def __init__(self, nodes: Nodes, answer: Callable[[list[Sent]], list[Message]] | None = None) -> None:
        self._nodes = nodes
        self._answer = answer or nodes.answer
        self._run = create_run(nodes.run_id)
        self._replies: dict[str, Message] = {}
        self._sent = 0

    @property
    def contexts(self) -> dict[int, Context]:
        """A context for each node, with its state.

        It changes as the node is served, except by a
        :class:`~fl_privquant.flower.client.cohort.CohortApp`, whose clients may share states.
        """
        states = self._nodes.states
        for node in self._nodes.ids:
            states.setdefault(node, RecordDict())
        return {node: self._nodes.context(node) for node in self._nodes.ids}

    @property
    def states(self) -> dict[int, RecordDict]:
        """The states of those nodes that have one."""
        return self._nodes.states

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes.ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer the messages."""
        pushed = list(messages)
        ids = [f"inline-{self._sent + number}" for number in range(len(pushed))]
        self._sent += len(pushed)
        replies = self._answer(list(zip(pushed, ids, strict=True)))
        self._replies.update(zip(ids, replies, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to the messages, in the order of nodes; each is given once."""
        replies = [
            self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies
        ]
        return sorted(replies, key=source_of)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies to the messages; ``timeout`` has no meaning here, as clients run now."""
        return self.pull_messages(self.push_messages(messages))


@dataclass(frozen=True)
class InlineEngine:
    """Runs everything in this process: the fastest for many small clients, and easiest to debug.

    Parameters
    ----------
    batch
        The most clients that are trained at once, where the app is a
        :class:`~fl_privquant.flower.client.cohort.CohortApp`; with 1, each client is served by itself. Codes
        are the same as long as the trained models are, to the last bit.
    """

    batch: int = BATCH

    def __post_init__(self) -> None:
        _validation.check_integer("batch", self.batch, 1)

    def run(
        self, server_app: ServerApp | str, client_app: ClientApp | str, federation: Federation
    ) -> RunResult:
        """Run the app, to its end."""
        server, client = load_app(server_app, ServerApp), load_app(client_app, ClientApp)
        start = time.perf_counter()
        nodes = Nodes(client, federation, next(RUN_IDS), self.batch)
        with freeze_objects():
            state = run_server(server, SimulationGrid(nodes), federation)
        return RunResult("inline", state, time.perf_counter() - start)


def run_server(server: ServerApp, grid: SimulationGrid, federation: Federation) -> RecordDict:
    """Run a server app on simulated nodes, to its end; the state that it leaves."""
    context = federation.context(grid.run.run_id, SUPERLINK_NODE_ID)
    with use_server_identity(grid.run.run_id), seed_sampling(federation.seed):
        server(grid, context)
    return context.state
