"""Clients in other processes: the messages that are sent together are divided into parcels.

A parcel has the messages to some nodes, and the states of these nodes. What comes back are the replies and
the new states. So any worker can serve any client, and what a client remembers does not depend on which one
does.

If a worker ends, for example because the system killed it for lack of memory, the clients of the parcels that
are not answered yet count as lost. Their states stay what they were, since nothing of what they computed has
left the worker. The next messages find new workers.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.flower._flower_internals import ErrorCode, make_delivered_copy, set_message_id
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower._messages.cohort_replies import Sent
from fl_privquant.flower.simulation._nodes import Nodes, group_by_node, make_error_reply

# Each worker gets about so many parcels of a push, so that all workers end at about the same time.
_PARCELS_PER_WORKER: Final = 4
# How often a worker looks whether the server's process has ended.
_POLL_SECONDS: Final = 1.0


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


Collect = Callable[[], Answer]
"""Waits for the answer to a parcel; raises an exception if its worker has ended."""


def answer_in_parcels(
    nodes: Nodes, sent: Sequence[Sent], num_workers: int, submit: Callable[[Parcel], Collect]
) -> list[Message]:
    """The replies to messages, in their order; an error for those that were lost with a worker.

    Parameters
    ----------
    nodes
        The nodes, whose states are kept here.
    sent
        The messages with their ids.
    num_workers
        How many parcels are worked on at a time.
    submit
        Gives a parcel to a worker.
    """
    groups = group_by_node([message for message, _ in sent])
    size = max(1, -(-len(groups) // (_PARCELS_PER_WORKER * num_workers)))
    parts = [groups[start : start + size] for start in range(0, len(groups), size)]
    places = [[place for group in part for place in group] for part in parts]
    parts_sent = [[sent[place] for place in chosen] for chosen in places]
    parcels = [Parcel(part, _find_states(nodes, part)) for part in parts_sent]
    waiting = [submit(parcel) for parcel in parcels]
    replies: dict[int, Message] = {}
    for chosen, parcel, collect in zip(places, parcels, waiting, strict=True):
        try:
            answer = collect()
        except Exception as error:
            answer = Answer([_report_loss(message, str(error)) for message in parcel.sent], parcel.states)
        replies.update(zip(chosen, answer.replies, strict=True))
        _replace_states(nodes, parcel, answer.states)
    return [replies[place] for place in range(len(sent))]


def answer_parcel(nodes: Nodes, parcel: Parcel) -> Answer:
    """Answer the messages of a parcel, in a worker."""
    _read_models(parcel)
    _replace_states(nodes, parcel, parcel.states)
    replies = nodes.answer(parcel.sent)
    return Answer(replies, _find_states(nodes, parcel.sent))


def _find_states(nodes: Nodes, sent: Sequence[Sent]) -> dict[int, RecordDict]:
    asked = {message.metadata.dst_node_id for message, _ in sent}
    return {node: nodes.states[node] for node in asked if node in nodes.states}


def _replace_states(nodes: Nodes, parcel: Parcel, states: dict[int, RecordDict]) -> None:
    """Give the nodes of a parcel these states, and no other ones."""
    for message, _ in parcel.sent:
        nodes.states.pop(message.metadata.dst_node_id, None)
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


class ProcessPool:
    """Worker processes that are forked from this one, so that they have the app, its data and its libraries.

    Parameters
    ----------
    nodes
        The nodes; workers use their app and their configs.
    processes
        Number of workers.
    """

    def __init__(self, nodes: Nodes, processes: int) -> None:
        self._nodes = nodes
        self._num_workers = processes
        self._executor: ProcessPoolExecutor | None = None
        self._workers: set[multiprocessing.process.BaseProcess] = set()
        self._broken = False

    def answer(self, sent: Sequence[Sent]) -> list[Message]:
        """The replies to messages, in their order."""
        replies = answer_in_parcels(self._nodes, sent, self._num_workers, self._submit)
        if self._broken:
            self.close()
        return replies

    def close(self) -> None:
        """End the workers, also those that are at work."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        executor.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join()
        self._workers = set()
        self._broken = False

    def _submit(self, parcel: Parcel) -> Collect:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self._num_workers,
                multiprocessing.get_context("fork"),
                _start_worker,
                (self._nodes, os.getpid()),
            )
        before = set() if self._workers else set(multiprocessing.active_children())
        try:
            future = self._executor.submit(_serve, parcel)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        if not self._workers:
            self._workers = set(multiprocessing.active_children()) - before
        return functools.partial(self._wait_for, future)

    def _wait_for(self, future: Future[Answer]) -> Answer:
        try:
            return future.result()
        except (BrokenProcessPool, CancelledError) as error:
            self._broken = True
            raise RuntimeError("it was killed, perhaps for lack of memory; use fewer processes") from error


_nodes: Nodes | None = None


def _start_worker(nodes: Nodes, parent: int) -> None:
    """Prepare a worker: it ends with the server's process, and has randomness and threads of its own."""
    global _nodes
    _nodes = nodes
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    # Ctrl-C reaches all processes, but the server's process decides which of them end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A garbage collection would touch, and so copy, all memory that is shared with the server's process.
    gc.freeze()
    # Python's own generator is seeded anew in every process that is forked.
    np.random.seed()  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()
        # Its threads do not survive a fork.
        torch.set_num_threads(1)


def _serve(parcel: Parcel) -> Answer:
    assert _nodes is not None
    return answer_parcel(_nodes, parcel)


def _exit_with_parent(parent: int) -> None:
    """End this process when its parent has ended, whatever a client is doing here."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
