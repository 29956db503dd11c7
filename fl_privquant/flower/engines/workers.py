"""Worker processes below the inline engine: clients run on several cores, and the results stay the same.

Workers are forked from the process that runs the server, so that they have the app, its data and everything
that was loaded before. The messages that are sent together (a *push*) are divided into parcels. A worker is
given the next parcel while it works on one, so that it need not wait for the server's process. A worker that
is done early takes parcels that were meant for another.

**States.** The state of a client comes back with its reply, and is kept in the server's process. It goes to
a worker with the next message, unless that worker has it already. So any worker can serve any client, and
what a client remembers does not depend on which one does.

**Failures.** If a worker ends, for example because the system killed it for lack of memory, the parcel that
it was working on is lost: the clients of this parcel get an error reply, and their states stay
what they were, since nothing of what they computed has left the worker. Its other parcels go to the workers
that are left; if there are none, all clients get an error reply. Workers end with the process of the server,
however it ends.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.flower.arrays import read_arrays
from fl_privquant.flower.engines.internals import flattened, set_message_id, unflattened
from fl_privquant.flower.records import bare_message, copied_metadata, made, made_metadata

Deliver = Callable[[Message, str], Message]
"""Delivers a message to its node under an id, and gives the reply."""

_Sent = tuple[dict[str, Any], dict[str, Any], str]
"""A message on its way to a worker: the attributes of its metadata, its records by name, and its id."""

# A parcel has a quarter of the nodes that are left of a worker's share, but at most _MOST_NODES, and at least
# as many as if the whole share were cut into _MOST_PARCELS equal parcels.
_MOST_NODES: Final = 64
_MOST_PARCELS: Final = 64
# Parcels that a worker has at a time: one that it works on, and one that waits.
_GIVEN_AT_ONCE: Final = 2
# How long a worker may take to end, and how often the processes check whether another one has ended.
_PATIENCE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class _Parcel:
    """Some nodes of a push, and the places in it of all messages for them."""

    nodes: list[int]
    places: list[int]


@dataclass(frozen=True)
class _Order:
    """A parcel as a worker gets it."""

    nodes: list[int]
    """The nodes of the parcel."""
    states: dict[int, RecordDict]
    """The states of those nodes whose last state the worker does not have."""
    messages: list[_Sent]
    """The messages to them; a number stands for a record that many messages share."""
    shared: list[Any] | None
    """Records that many messages share; None if the worker has them from an earlier parcel of the push."""


@dataclass(eq=False)
class _Worker:
    """A worker as the server's process sees it."""

    process: ForkProcess
    connection: Connection
    # Parcels that are meant for it, and those that it was given; it works on the first of the latter.
    parcels: deque[_Parcel] = field(default_factory=deque)
    given: deque[_Parcel] = field(default_factory=deque)
    has_shared: bool = False
    # The nodes whose last state it has.
    nodes: set[int] = field(default_factory=set)


class _Push:
    """The messages that are to be answered now, and the replies so far."""

    def __init__(self, messages: Sequence[Message], message_ids: Sequence[str]) -> None:
        self.messages, self.message_ids = messages, message_ids
        self.replies: dict[int, Message] = {}
        self.by_node: dict[int, list[int]] = {}
        for place, message in enumerate(messages):
            self.by_node.setdefault(message.metadata.dst_node_id, []).append(place)
        # Many messages may share their content, and those that do not may share records of it.
        contents = {id(message.content): message.content for message in messages}
        messages_with = Counter(id(message.content) for message in messages)
        records, uses = {}, Counter[int]()
        for key, content in contents.items():
            for record in content.values():
                records[id(record)] = record
                uses[id(record)] += messages_with[key]
        self.shared = [record for key, record in records.items() if uses[key] > 1]
        number_of = {id(record): number for number, record in enumerate(self.shared)}
        self._records_of = {
            key: {name: number_of.get(id(record), record) for name, record in content.items()}
            for key, content in contents.items()
        }

    def parcel(self, nodes: list[int]) -> _Parcel:
        """All messages for some nodes."""
        return _Parcel(nodes, [place for node in nodes for place in self.by_node[node]])

    def order(self, parcel: _Parcel, states: dict[int, RecordDict], with_shared: bool) -> bytes:
        """A parcel as it is sent."""
        messages = []
        for place in parcel.places:
            message = self.messages[place]
            records = self._records_of[id(message.content)]
            messages.append((vars(message.metadata), records, self.message_ids[place]))
        order = _Order(parcel.nodes, states, messages, self.shared if with_shared else None)
        return _dumps(order)

    def fail(self, parcel: _Parcel, reason: str) -> None:
        """Answer all messages of a parcel by an error."""
        for place in parcel.places:
            metadata, message_id = copied_metadata(self.messages[place]), self.message_ids[place]
            request = bare_message(metadata, RecordDict())
            set_message_id(request, message_id)
            reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, reason), reply_to=request)
            set_message_id(reply, f"{message_id}-reply")
            self.replies[place] = reply


class WorkerPool:
    """Processes that answer the messages to the nodes of an inline grid.

    Parameters
    ----------
    deliver
        Delivers a message to its node, in the process that calls it, and gives the reply.
    contexts
        The contexts of the nodes that ``deliver`` uses. Each worker has copies of them.
    processes
        Number of workers.
    """

    def __init__(self, deliver: Deliver, contexts: dict[int, Context], processes: int) -> None:
        self._contexts = contexts
        # Where the last state of each node is: the serialized states of a parcel, and its place among them.
        self._states: dict[int, tuple[bytes, int]] = {}
        self._workers: list[_Worker] = []
        self._reason = ""
        try:
            for _ in range(processes):
                self._workers.append(self._forked(deliver))
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes that are left."""
        return [int(worker.process.pid or 0) for worker in self._workers]

    def answer(self, messages: Sequence[Message], message_ids: Sequence[str]) -> list[Message]:
        """The replies to messages, in their order; an error for those that were lost with a worker."""
        push = _Push(messages, message_ids)
        self._deal(push)
        for worker in list(self._workers):
            self._hand_over(worker, push)
        while busy := [worker for worker in self._workers if worker.given]:
            ready = wait([worker.connection for worker in busy], _LOOK_SECONDS)
            for worker in busy:
                # Child processes of a worker may keep its connection open after it has ended.
                ended = not worker.process.is_alive()
                if worker in self._workers and (ended or worker.connection in ready):
                    self._take_back(worker, push)
        return [push.replies[place] for place in range(len(messages))]

    def restore_states(self) -> None:
        """Put the last states of the nodes into their contexts in this process."""
        for node, state in self._known_states(list(self._states)).items():
            self._contexts[node].state = state

    def close(self) -> None:
        """End the workers: those that wait for work at once, others after a moment."""
        for worker in self._workers:
            worker.connection.close()
        for end in (None, ForkProcess.terminate, ForkProcess.kill):
            for worker in self._workers:
                if end is not None and worker.process.is_alive():
                    end(worker.process)
            for worker in self._workers:
                worker.process.join(_PATIENCE_SECONDS)
        self._workers = []

    def _forked(self, deliver: Deliver) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        # A worker that kept a copy of these open would never notice that this process has ended.
        not_theirs = [*(worker.connection for worker in self._workers), ours]
        process = context.Process(
            target=_serve, args=(theirs, not_theirs, deliver, self._contexts, os.getpid())
        )
        with warnings.catch_warnings():
            # Python warns of threads, which libraries have from the moment when they are imported.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _deal(self, push: _Push) -> None:
        """Give each worker its share: the nodes whose states it has, but no more than the others."""
        shares: dict[_Worker, list[int]] = {worker: [] for worker in self._workers}
        if not shares:
            push.fail(push.parcel(list(push.by_node)), self._reason)
            return
        most = max(1, -(-len(push.by_node) // len(shares)))
        others: list[int] = []
        holders = {node: worker for worker in self._workers for node in worker.nodes}
        for node in push.by_node:
            share = shares.get(holders[node]) if node in holders else None
            (others if share is None or len(share) >= most else share).append(node)
        for share in shares.values():
            missing = most - len(share)
            share += others[:missing]
            del others[:missing]
        for worker, share in shares.items():
            worker.parcels = deque(push.parcel(part) for part in _parts(share))
            worker.has_shared = False

    def _hand_over(self, worker: _Worker, push: _Push) -> None:
        """Give a worker its next parcels; one without work takes from the worker with the most left to do."""
        while len(worker.given) < _GIVEN_AT_ONCE and worker in self._workers:
            busiest = max(self._workers, key=lambda other: len(other.parcels))
            if worker.parcels:
                self._give(worker, worker.parcels.popleft(), push)
            elif busiest.parcels and not worker.given:
                self._give(worker, busiest.parcels.pop(), push)
            else:
                return

    def _give(self, worker: _Worker, parcel: _Parcel, push: _Push) -> None:
        unknown = [node for node in parcel.nodes if node not in worker.nodes]
        order = push.order(parcel, self._known_states(unknown), not worker.has_shared)
        for other in self._workers:
            other.nodes.difference_update(parcel.nodes)
        worker.given.append(parcel)
        worker.has_shared = True
        worker.nodes.update(parcel.nodes)
        try:
            worker.connection.send_bytes(order)
        except OSError:
            self._remove(worker, push)

    def _take_back(self, worker: _Worker, push: _Push) -> None:
        """Take the replies that a worker has sent, and give it more to do."""
        try:
            # A worker that has ended without an answer has sent nothing.
            if not worker.connection.poll():
                raise EOFError
            replies, states = worker.connection.recv_bytes(), worker.connection.recv_bytes()
        except (EOFError, OSError):
            self._remove(worker, push)
            return
        parcel = worker.given.popleft()
        # This comes first, so that the worker has something to do while its replies are read here.
        self._hand_over(worker, push)
        push.replies.update(zip(parcel.places, map(unflattened, _loads(replies)), strict=True))
        for place, node in enumerate(parcel.nodes):
            if node in self._contexts:
                self._states[node] = states, place

    def _remove(self, worker: _Worker, push: _Push) -> None:
        """Answer for a worker that has ended, and give the parcels that it has not begun to the others."""
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join(_PATIENCE_SECONDS)
        self._reason = _reason_of_exit(worker.process)
        if worker.given:
            push.fail(worker.given.popleft(), self._reason)
        for number, parcel in enumerate([*worker.given, *worker.parcels]):
            if not self._workers:
                push.fail(parcel, self._reason)
            else:
                self._workers[number % len(self._workers)].parcels.append(parcel)
        for other in list(self._workers):
            self._hand_over(other, push)

    def _known_states(self, nodes: list[int]) -> dict[int, RecordDict]:
        """The last states of those nodes that have answered before."""
        read: dict[int, list[RecordDict]] = {}
        states = {}
        for node in nodes:
            if node in self._states:
                blob, place = self._states[node]
                if id(blob) not in read:
                    read[id(blob)] = _loads(blob)
                states[node] = read[id(blob)][place]
        return states


def _parts(share: list[int]) -> Iterator[list[int]]:
    """A worker's share in parts that become smaller, so that all workers end at about the same time."""
    least, start = -(-len(share) // _MOST_PARCELS), 0
    while start < len(share):
        size = max(least, min(_MOST_NODES, (len(share) - start) // 4))
        yield share[start : start + size]
        start += size


def _dumps(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _loads(blob: bytes) -> Any:
    # Unpickling is safe here: the bytes come from a process forked from this one, through a private pipe.
    return pickle.loads(blob)  # noqa: S301


def _reason_of_exit(process: ForkProcess) -> str:
    """Why a worker has ended, as far as its exit code tells."""
    code = process.exitcode
    how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else "ended by itself"
    advice = ", perhaps for lack of memory; use fewer processes" if code == -signal.SIGKILL else ""
    return f"worker process {process.pid} of this client {how} (exit code {code}){advice}"


def _serve(
    connection: Connection,
    not_ours: list[Connection],
    deliver: Deliver,
    contexts: dict[int, Context],
    parent: int,
) -> None:
    """Answer parcels, until the server's process ends or closes the connection."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    for other in not_ours:
        other.close()
    # Ctrl-C reaches all processes, but the server's process decides which of them end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A garbage collection would touch, and so copy, all memory that is shared with the server's process.
    gc.freeze()
    _set_up_libraries()
    orders: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, orders), daemon=True).start()
    shared: list[Any] = []
    while (blob := orders.get()) is not None:
        order: _Order = _loads(blob)
        if order.shared is not None:
            shared = order.shared
            _read_models(shared)
        for node, state in order.states.items():
            contexts[node].state = state
        replies = [flattened(deliver(_message(sent, shared), sent[2])) for sent in order.messages]
        states = [contexts[node].state if node in contexts else RecordDict() for node in order.nodes]
        try:
            connection.send_bytes(_dumps(replies))
            connection.send_bytes(_dumps(states))
        except OSError:
            return


def _receive(connection: Connection, orders: SimpleQueue[bytes | None]) -> None:
    """Receive orders while clients run: the server's process must never wait for a busy worker."""
    try:
        with contextlib.suppress(EOFError, OSError):
            while True:
                orders.put(connection.recv_bytes())
    finally:
        # Whatever ended the loop, such as a lack of memory, the worker must not wait for ever.
        orders.put(None)


def _read_models(records: list[Any]) -> None:
    """Read arrays that many messages share: every copy of them then knows their values."""
    for record in records:
        if isinstance(record, ArrayRecord):
            # What cannot be read is for the client to refuse.
            with contextlib.suppress(InvalidUpdateError):
                read_arrays(record)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, whatever a client is doing here."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _message(sent: _Sent, shared: list[Any]) -> Message:
    metadata, records, _ = sent
    content = {
        name: shared[record] if isinstance(record, int) else record for name, record in records.items()
    }
    return bare_message(made_metadata(metadata), made(RecordDict, content))


def _set_up_libraries() -> None:
    """Give this worker randomness of its own, and one thread: torch's do not survive a fork."""
    # Python's own generator is seeded anew in every process that is forked.
    np.random.seed()  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()
        torch.set_num_threads(1)
