"""What a client of a secure aggregation sends and receives in a round besides its codes, over many rounds.

The handshake is every byte of the protocol in both directions except for the packed codes: keys, shares,
lists, signatures, and the headers of all messages. It is averaged over all clients that are invited and over
the rounds. In each round one client in twenty is lost, before an answer that is drawn for it. Keys are drawn
for every round, so that no round is cheaper for the ones before it. Signed rounds are measured too, and held
to the same target: there clients have more neighbours and are sent the signatures of witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.packing.pack import packed_size
from fl_privquant.secagg import ClientPolicy, ClientRound, RoundConfig, ServerRound, new_session
from simulations.benchmarks.measure import Row, print_rows

CLIENTS = (100, 500)
ROUNDS = 100
SIGNED_ROUNDS = 1
LOST = 0.05
DIMENSION = 4000
MAX_CODE = 15
TARGET = 6e3
STAGES = ("advertise", "share", "mask", "confirm", "unmask")


@dataclass(frozen=True)
class Traffic:
    """Bytes a client and round, both directions together."""

    payload: float
    handshake: float


def run() -> list[Row]:
    """The handshake of each number of clients beside its target, printed as a table."""
    rows = []
    for signed, rounds in ((False, ROUNDS), (True, SIGNED_ROUNDS)):
        for num_clients in CLIENTS:
            traffic = measured(num_clients, rounds, signed)
            kind = "signed" if signed else "unsigned"
            name = (
                f"n = {num_clients}, {kind}, {LOST:.0%} lost, {rounds} rounds: bytes of the handshake a "
                f"client and round (payload: {traffic.payload:.0f})"
            )
            rows.append(Row(name, traffic.handshake, TARGET, False))
    print_rows("secure aggregation: what is sent besides the codes", rows)
    return rows


def measured(num_clients: int, rounds: int, signed: bool) -> Traffic:
    """The mean over rounds of one session, in which clients keep what they know of one another."""
    generator = np.random.default_rng(num_clients)
    identities = {i: Ed25519PrivateKey.generate() for i in range(num_clients)} if signed else {}
    known = {i: key.public_key().public_bytes_raw() for i, key in identities.items()} if signed else None
    policies = {
        i: ClientPolicy(identity=identities.get(i), known_identities=known) for i in range(num_clients)
    }
    session, states, total = new_session(), dict[int, bytes](), 0
    width = (num_clients * MAX_CODE).bit_length()
    for number in range(1, rounds + 1):
        config = RoundConfig(session, number, DIMENSION, width, MAX_CODE, identities=known)
        leaving = generator.choice(num_clients, round(LOST * num_clients), replace=False)
        lost = dict(zip(leaving.tolist(), generator.choice(STAGES, leaving.size).tolist(), strict=True))
        clients = _Clients(policies, states, lost)
        total += _round(ServerRound(config, range(num_clients)), clients, num_clients)
    return Traffic(packed_size(DIMENSION, width=width), total / (rounds * num_clients))


class _Clients:
    """The clients of one round, each restored before it answers and stored after, and what they exchanged."""

    def __init__(
        self, policies: Mapping[int, ClientPolicy], states: dict[int, bytes], lost: Mapping[int, str]
    ) -> None:
        self.traffic = 0
        self._policies = policies
        self._states = states
        self._lost = lost
        self._joined: set[int] = set()
        self._gone: set[int] = set()

    def stage(
        self,
        name: str,
        requests: Mapping[int, bytes],
        answer: Callable[[ClientRound, bytes], bytes],
        receive: Callable[[int, bytes], bool],
    ) -> None:
        """One stage of the protocol, without the clients that are lost before it."""
        self._gone.update(i for i, when in self._lost.items() if when == name)
        for i, request in requests.items():
            self.traffic += len(request)
            if i in self._gone:
                continue
            client = self._client(i, request)
            reply = answer(client, request)
            self._states[i] = client.to_bytes()
            self.traffic += len(reply)
            if not receive(i, reply):
                raise RuntimeError(f"client {i} was not heard at {name}")

    def _client(self, i: int, request: bytes) -> ClientRound:
        policy, stored = self._policies[i], self._states.get(i)
        state = None if stored is None else ClientRound.from_bytes(stored, policy)
        if state is not None and i in self._joined:
            return state
        self._joined.add(i)
        return ClientRound.join(request, i, policy, previous=state)


def _round(server: ServerRound, clients: _Clients, num_clients: int) -> int:
    """Bytes of one round's messages without the packed codes."""
    codes = np.full(DIMENSION, MAX_CODE)

    def mask(client: ClientRound, request: bytes) -> bytes:
        client.settle(request)
        return client.mask(codes)

    def advertise(client: ClientRound, _: bytes) -> bytes:
        return client.advertise_keys()

    invitations = dict.fromkeys(range(num_clients), server.invitation())
    clients.stage("advertise", invitations, advertise, server.receive)
    clients.stage("share", server.rosters(), ClientRound.share_keys, server.receive)
    clients.stage("mask", server.mask_requests(), mask, server.receive)
    clients.stage("confirm", server.survivor_lists(), ClientRound.confirm, server.receive)
    clients.stage("unmask", server.unmask_requests(), ClientRound.unmask, server.receive)
    opened = server.finish()
    if not (opened.total == MAX_CODE * len(opened.survivors)).all():
        raise RuntimeError("the sum is wrong")
    return clients.traffic - len(opened.survivors) * server.payload_bytes
