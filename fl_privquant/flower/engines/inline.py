"""The inline engine: Flower's own strategy loop in this process, the clients here or in worker processes."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.engines import internals
from fl_privquant.flower.engines.engine import (
    Federation,
    MessageGrid,
    RunResult,
    frozen_objects,
    load_app,
    seeded_sampling,
)
from fl_privquant.flower.engines.workers import WorkerPool

# Each run has an id of its own: clients remember by run and node what they have released.
_RUN_IDS = itertools.count(1)
# Node ids of SuperLinks are large random numbers. Ids begin at 1 here, because some code takes 0 for none.
_FIRST_NODE_ID = 1


class InlineGrid(MessageGrid):
    """A grid whose nodes live in this process, or in workers of it; a message is answered when it is pushed.

    As on a wire, what is sent is copied, an exception of the client becomes an error reply, and a node
    keeps its context from message to message and handles one at a time. Replies come in the order of
    nodes, whatever the order of requests, threads and processes.

    Parameters
    ----------
    client_app
        What the clients run.
    federation
        Number of clients and their configs.
    threads
        Clients that run at once in this process.
    processes
        Worker processes that the clients run in; with 1, they run in this one. Workers are there from
        the beginning until :meth:`close`.
    """

    def __init__(
        self, client_app: ClientApp, federation: Federation, threads: int = 1, processes: int = 1
    ) -> None:
        self._client_app = client_app
        self._threads = threads
        run_id = next(_RUN_IDS)
        self._run = internals.create_run(run_id)
        self._contexts = {
            _FIRST_NODE_ID + partition: federation.context(run_id, _FIRST_NODE_ID + partition, partition)
            for partition in range(federation.num_clients)
        }
        self._locks: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self._replies: dict[str, Message] = {}
        self._sent = 0
        self._pool: WorkerPool | None = None
        self._in_workers = processes > 1
        if self._in_workers:
            with internals.server_identity(run_id):
                self._pool = WorkerPool(self._deliver, self._contexts, processes)

    @property
    def contexts(self) -> dict[int, Context]:
        """The context of each node, with its last state."""
        if self._pool is not None:
            self._pool.restore_states()
        return self._contexts

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._pool is not None:
            self._pool.close()

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer the messages."""
        pushed = list(messages)
        ids = [f"inline-{self._sent + number}" for number in range(len(pushed))]
        self._sent += len(pushed)
        if self._pool is not None:
            replies = self._pool.answer(pushed, ids)
        elif self._threads > 1:
            with ThreadPoolExecutor(self._threads) as pool:
                replies = list(pool.map(self._deliver, pushed, ids))
        else:
            replies = [
                self._deliver(message, message_id) for message, message_id in zip(pushed, ids, strict=True)
            ]
        self._replies.update(zip(ids, replies, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to the messages, in the order of nodes; each is given once."""
        replies = [
            self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies
        ]
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies to the messages; ``timeout`` has no meaning here, as clients run now."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message, message_id: str) -> Message:
        node = message.metadata.dst_node_id
        # The same content object may go to many nodes: each must get its own.
        arrived = internals.delivered(message, message_id)
        context = self._contexts.get(node)
        if context is None:
            reply = Message(
                Error(ErrorCode.NODE_UNAVAILABLE, f"node {node} does not exist"), reply_to=arrived
            )
        else:
            with self._locks[node]:
                reply = self._answer(arrived, context)
        internals.set_message_id(reply, f"{message_id}-reply")
        return reply

    def _answer(self, message: Message, context: Context) -> Message:
        try:
            reply = self._client_app(message, context)
            # What a worker replies is copied for the server's process.
            if reply.has_content() and not self._in_workers:
                reply.content = internals.copied_records(reply.content)
            return reply
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@dataclass(frozen=True)
class InlineEngine:
    """Runs everything in this process: the fastest for many small clients, and easiest to debug.

    Parameters
    ----------
    threads
        Number of clients that run at once. Python runs them in turns, except inside numpy, torch and the
        encoding.
    processes
        Worker processes that clients run in, for machines with several cores: forked from this one, each with
        one thread. The model and all statements are the same, to the last bit, as with one process. A client
        whose worker is killed counts as lost in that round. Not together with ``threads``, and not for
        clients that use a GPU, which no forked process can: use the Ray engine there.
    """

    threads: int = 1
    processes: int = 1

    def __post_init__(self) -> None:
        checks.whole("threads", self.threads, 1)
        checks.whole("processes", self.processes, 1)
        if self.threads > 1 and self.processes > 1:
            raise InvalidSpecError(
                f"threads {self.threads} and processes {self.processes}: use several of one kind, not of both"
            )

    def run(
        self, server_app: ServerApp | str, client_app: ClientApp | str, federation: Federation
    ) -> RunResult:
        """Run the app, to its end."""
        server, client = load_app(server_app, ServerApp), load_app(client_app, ClientApp)
        start = time.perf_counter()
        # Objects are frozen before workers are forked, which then share the memory of these objects.
        with frozen_objects():
            grid = InlineGrid(client, federation, self.threads, self.processes)
            context = federation.context(grid.run.run_id, SUPERLINK_NODE_ID)
            try:
                with internals.server_identity(grid.run.run_id), seeded_sampling(federation.seed):
                    server(grid, context)
            finally:
                grid.close()
        return RunResult("inline", context.state, time.perf_counter() - start)
