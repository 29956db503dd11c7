"""Rounds of secure aggregation that run whole in this process, client after client, and what they cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fl_privquant.secagg import (
    ClientPolicy,
    ClientRound,
    GraphParameters,
    RoundConfig,
    ServerRound,
    keys,
    new_session,
)

MAX_CODE = 15
"""The largest code of a coordinate."""

STAGES = ("advertise", "share", "mask", "confirm", "unmask")
"""The stages of the protocol in which clients answer."""


@dataclass(frozen=True)
class Cost:
    """Processor time of a round, all clients in turn, and bytes on the wire for each client."""

    processor_seconds: float
    bytes_per_client: float
    steps: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Processor seconds of each answer of a client to a stage, and of each of the server's own steps."""


class Signers:
    """Clients with identity keys, and the state that each keeps from round to round."""

    def __init__(self, num_clients: int) -> None:
        self.identities = {client: Ed25519PrivateKey.generate() for client in range(num_clients)}
        self.known = {client: key.public_key().public_bytes_raw() for client, key in self.identities.items()}
        self.states: dict[int, bytes] = {}

    def policy(self, client: int) -> ClientPolicy:
        """The policy of a client: the defaults."""
        return ClientPolicy(identity=self.identities[client], known_identities=self.known)

    def meet(self) -> Signers:
        """Have every client derive the keys that it shares with each other one, as many rounds would."""
        graph = GraphParameters(len(self.known), len(self.known) - 1, 2 * len(self.known) // 3)
        own_round(graph, 1, signers=self)
        return self


class ProtocolRound:
    """One round: each client is restored before it answers and stored after, as Flower needs it.

    Parameters
    ----------
    config
        The server's configuration of the round.
    policies
        The policy of each client.
    former
        States that clients have stored in earlier rounds.
    lost
        Clients that are lost, and the stage before which each one is.
    verify_once
        Whether a signature that one client has verified is not verified again for the others, as in a
        simulation, where all clients share a process.
    """

    def __init__(
        self,
        config: RoundConfig,
        policies: Mapping[int, ClientPolicy],
        former: Mapping[int, bytes],
        lost: Mapping[int, str],
        verify_once: bool = True,
    ) -> None:
        self.server = ServerRound(config, policies)
        self.states: dict[int, bytes] = {}
        self.steps: dict[str, list[float]] = {}
        self.traffic = 0
        self._policies, self._former = policies, former
        self._lost, self._verify_once = lost, verify_once

    def run(self, codes: NDArray[np.integer]) -> int:
        """Run all stages, with the same codes for every client; the number of clients in the sum."""
        server = self.server

        def mask(client: ClientRound, request: bytes) -> bytes:
            client.settle(request)
            return client.mask(codes)

        self._stage(
            "advertise",
            lambda: dict.fromkeys(self._policies, server.invitation()),
            lambda client, _: client.advertise_keys(),
            server.receive,
        )
        self._stage("share", server.rosters, ClientRound.share_keys, server.receive)
        self._stage("mask", server.mask_requests, mask, server.receive)
        self._stage("confirm", server.survivor_lists, ClientRound.confirm, server.receive)
        self._stage("unmask", server.unmask_requests, ClientRound.unmask, server.receive)
        start = time.process_time()
        opened = server.finish()
        self.steps["finish: server"] = [time.process_time() - start]
        if not np.array_equal(opened.total, len(opened.survivors) * codes.astype(np.int64)):
            raise RuntimeError("the sum is wrong")
        return len(opened.survivors)

    def _stage(
        self,
        name: str,
        ask: Callable[[], Mapping[int, bytes]],
        answer: Callable[[ClientRound, bytes], bytes],
        receive: Callable[[int, bytes], bool],
    ) -> None:
        """One stage of the protocol, without the clients that are lost by then."""
        lost_by_now = STAGES[: STAGES.index(name) + 1]
        start = time.process_time()
        requests = ask()
        self.steps[f"{name}: server"] = [time.process_time() - start]
        times = self.steps[name] = []
        for client_id, request in requests.items():
            self.traffic += len(request)
            if self._lost.get(client_id) in lost_by_now:
                continue
            if not self._verify_once:
                keys.forget_signatures()
            start = time.process_time()
            client = self._restored(client_id, request)
            reply = answer(client, request)
            self.states[client_id] = client.to_bytes()
            received = receive(client_id, reply)
            times.append(time.process_time() - start)
            self.traffic += len(reply)
            if not received:
                raise RuntimeError(f"client {client_id} was not heard at {name}")

    def _restored(self, client_id: int, request: bytes) -> ClientRound:
        policy = self._policies[client_id]
        stored = self.states.get(client_id) or self._former.get(client_id)
        client = None if stored is None else ClientRound.from_bytes(stored, policy)
        if client is not None and client_id in self.states:
            return client
        return ClientRound.join(request, client_id, policy, previous=client)


def own_round(
    graph: GraphParameters,
    dimension: int,
    lost: int = 0,
    signers: Signers | None = None,
    verify_once: bool = True,
) -> Cost:
    """The cost of a round of this package's protocol.

    The last ones of the ids are lost: half before they send their input, half before they help to unmask.
    Clients that sign keep what they know of one another for the next round.
    """
    n = graph.num_clients
    codes = np.random.default_rng(0).integers(0, MAX_CODE, dimension, endpoint=True).astype(np.uint8)
    without_input = range(n - (lost + 1) // 2, n)
    without_reply = range(n - lost, n - (lost + 1) // 2)
    leaving = dict.fromkeys(without_input, "mask") | dict.fromkeys(without_reply, "unmask")
    unsigned = ClientPolicy(2, 0.1, 0.99, math.inf)
    policies = {client: unsigned if signers is None else signers.policy(client) for client in range(n)}
    start = time.process_time()
    config = RoundConfig(
        new_session(),
        1,
        dimension,
        (n * MAX_CODE).bit_length(),
        MAX_CODE,
        num_neighbors=graph.num_neighbors,
        threshold=graph.threshold,
        max_security_failure=math.inf,
        identities=None if signers is None else signers.known,
    )
    protocol = ProtocolRound(config, policies, signers.states if signers else {}, leaving, verify_once)
    protocol.run(codes)
    seconds = time.process_time() - start
    if signers is not None:
        signers.states = protocol.states
    return Cost(seconds, protocol.traffic / n, protocol.steps)
