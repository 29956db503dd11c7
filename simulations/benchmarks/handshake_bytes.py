"""What a client of a secure aggregation sends and receives in a round besides its codes, over many rounds.

The handshake is every byte of the protocol in both directions except for the packed codes: keys, shares,
lists, signatures, and the headers of all messages. It is averaged over all clients that are invited and over
the rounds. In each round one client in twenty is lost, before an answer that is drawn for it. Keys are drawn
for every round, so that no round is cheaper for the ones before it. Signed rounds are measured too, and held
to the same target: there clients have more neighbours and are sent the signatures of witnesses.
"""

from __future__ import annotations

import numpy as np

from fl_privquant.packing.pack import packed_size
from fl_privquant.secagg import ClientPolicy, RoundConfig, new_session
from simulations.benchmarks.measure import Row, at_most
from simulations.benchmarks.secagg_rounds import MAX_CODE, STAGES, ProtocolRound, Signers

CLIENTS = (100, 500)
ROUNDS = 100
SIGNED_ROUNDS = 1
LOST = 0.05
DIMENSION = 4000
TARGET = 6e3


def run() -> list[Row]:
    """The handshake of each number of clients beside its target."""
    rows = []
    for kind, rounds in (("unsigned", ROUNDS), ("signed", SIGNED_ROUNDS)):
        for num_clients in CLIENTS:
            payload = packed_size(DIMENSION, width=_width(num_clients))
            name = (
                f"n = {num_clients}, {kind}, {LOST:.0%} lost, {rounds} rounds: bytes of the handshake a "
                f"client and round (payload: {payload:.0f})"
            )
            rows.append(at_most(name, _handshake(num_clients, rounds, kind == "signed"), TARGET))
    return rows


def _width(num_clients: int) -> int:
    return (num_clients * MAX_CODE).bit_length()


def _handshake(num_clients: int, rounds: int, signed: bool) -> float:
    """Bytes a client and round in one session, in which clients keep what they know of one another."""
    generator = np.random.default_rng(num_clients)
    signers = Signers(num_clients) if signed else None
    policies = {
        client: signers.policy(client) if signers else ClientPolicy() for client in range(num_clients)
    }
    session, states, total = new_session(), dict[int, bytes](), 0
    for number in range(1, rounds + 1):
        config = RoundConfig(
            session,
            number,
            DIMENSION,
            _width(num_clients),
            MAX_CODE,
            identities=signers.known if signers else None,
        )
        leaving = generator.choice(num_clients, round(LOST * num_clients), replace=False)
        lost = dict(zip(leaving.tolist(), generator.choice(STAGES, leaving.size).tolist(), strict=True))
        protocol = ProtocolRound(config, policies, states, lost)
        survivors = protocol.run(np.full(DIMENSION, MAX_CODE))
        total += protocol.traffic - survivors * protocol.server.payload_bytes
        states |= protocol.states
    return total / (rounds * num_clients)
