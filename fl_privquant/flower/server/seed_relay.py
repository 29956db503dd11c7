"""The server's side of correlated noise: it draws the next cohort ahead, and relays one seed to each of it.

In round t the clients of round t + 1 are drawn, and each client of round t is paired with one of them, by a
permutation from public randomness. The paired client's public key goes out with the train message, the seed
that is sealed to it comes back with the update, and is delivered with the train message of round t + 1. Only
seeds of clients whose updates are in an opened sum are delivered; the others are dropped. No seed is
delivered twice, or to another client than its own.

When the sum of round t + 1 is open, the senders whose receivers are not in it are asked for their seeds, at
most as many as the noise was planned for, and the server takes their noise off itself. A round without an
opened sum asks nobody.

Nothing of this is in a checkpoint: after a restart of the server, noise of the round before is not taken off,
which costs accuracy only.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import WARNING

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fl_privquant.accounting.aggregation import Aggregation, SecureSum
from fl_privquant.accounting.release import Release
from fl_privquant.distributions.integer_distribution import round_count_down
from fl_privquant.errors import MISSING, InvalidSpecError, pluralize
from fl_privquant.flower._flower_internals import log
from fl_privquant.flower._messages import stages
from fl_privquant.flower._messages.protocol import RelayedSeed, Reply
from fl_privquant.mechanisms.additive.correlated_gaussian import SEED_BYTES
from fl_privquant.mechanisms.handed_noise import HandedNoise
from fl_privquant.planning.client_sampling import ClientSampling
from fl_privquant.secagg.crypto.sealed_seeds import KEY_BYTES


class SeedRelay:
    """Pairs the clients of successive rounds, and delivers seeds.

    Parameters
    ----------
    aggregation
        What the server sees. Only under a real secure sum are seeds sealed.
    public_seed
        From which pairings are drawn.
    """

    def __init__(self, aggregation: Aggregation, public_seed: int) -> None:
        self._seals = aggregation.masked
        self._timeout = aggregation.timeout if isinstance(aggregation, SecureSum) else None
        self._public_seed = public_seed
        # The round that is paired, the receiver of each of its clients, and the receivers' public keys.
        self._receivers: dict[int, int] = {}
        self._keys: dict[int, bytes] = {}
        # The round whose clients are drawn, these clients, and what is for each of them.
        self._next_round = 0
        self._next_nodes: list[int] = []
        # By receiver, the client of the round before that handed something over to it, and what.
        self._waiting: dict[int, tuple[int, bytes]] = {}
        self._delivered: dict[int, tuple[int, bytes]] = {}
        self._grid: Grid | None = None
        # What the clients of the paired round release.
        self._release: Release | None = None
        self.num_bytes = 0
        """Bytes that were sent and received in the last round for keys and seeds."""

    def drawn_nodes(self, server_round: int) -> list[int]:
        """The clients that were drawn for a round ahead of it; empty if none were."""
        return self._next_nodes if server_round == self._next_round else []

    def pair(
        self,
        server_round: int,
        release: Release,
        nodes: Sequence[int],
        next_nodes: Sequence[int],
        grid: Grid,
    ) -> None:
        """Pair the clients of a round with those of the next one, and ask these for their keys."""
        self.num_bytes = 0
        # Seeds that wait are for this round and release, the one that was paired before is over.
        if server_round != self._next_round or release != self._release:
            self._waiting = {}
        self._release, self._grid = release, grid
        self._next_round, self._next_nodes = server_round + 1, list(next_nodes)
        receivers = sorted(next_nodes)
        random.Random(f"hand-over {self._public_seed}:{server_round}").shuffle(receivers)
        self._receivers = dict(zip(sorted(nodes), receivers, strict=False))
        self._keys = self._ask_for_keys(grid) if self._seals else dict.fromkeys(receivers, b"")

    def deliver(self, messages: Sequence[Message]) -> None:
        """Add to each message the seed that is for its receiver, and the key that its own seed goes to."""
        self._delivered, self._waiting = self._waiting, {}
        for message in messages:
            node = message.metadata.dst_node_id
            key = self._keys.get(self._receivers.get(node, 0))
            _, sealed = self._delivered.get(node, (0, None))
            told = RelayedSeed(sealed, key)
            self.num_bytes += len(told.sealed or b"") + len(key or b"")
            message.content = told.write_to(message.content)

    def keep(self, replies: Mapping[int, Reply], survivors: Iterable[int]) -> None:
        """Keep the seeds of clients whose updates are in the opened sum, for their receivers."""
        self._waiting = {}
        for node in survivors:
            receiver = self._receivers.get(node)
            if receiver is not None and replies[node].handed:
                self._waiting[receiver] = node, replies[node].handed
                self.num_bytes += len(replies[node].handed)

    def open_lost(self, noise: HandedNoise, survivors: Collection[int]) -> list[bytes]:
        """The seeds of the round before whose receivers are not in the opened sum, from their senders.

        They are at most as many as the noise was planned for; none if no sum was opened.
        """
        delivered, self._delivered = self._delivered, {}
        lost = {
            sender: handed
            for receiver, (sender, handed) in sorted(delivered.items())
            if receiver not in survivors
        }
        senders = sorted(lost)[: noise.num_opened]
        if not senders or not survivors or self._grid is None:
            return []
        if not self._seals:
            seeds = [lost[sender] for sender in senders]
        else:
            # Seeds are of the round before the one that was paired last.
            number = self._next_round - 2
            seeds = [*self._ask(self._grid, stages.NOISE_SEED, number, senders).values()]
        return [seed for seed in seeds if len(seed) == SEED_BYTES]

    def _ask_for_keys(self, grid: Grid) -> dict[int, bytes]:
        """The public key of each client of the next round that answers."""
        answers = self._ask(grid, stages.NOISE_KEY, self._next_round, self._next_nodes)
        keys = {node: key for node, key in answers.items() if len(key) == KEY_BYTES}
        if missing := len(self._next_nodes) - len(keys):
            clients = pluralize(missing, "client")
            log(WARNING, "PrivQuant: %s of the next round gave no key, and will take no noise off", clients)
        return keys

    def _ask(self, grid: Grid, stage: str, number: int, nodes: Sequence[int]) -> dict[int, bytes]:
        """What each of these clients answers to a stage for the round of that number."""
        data = number.to_bytes(8, "little")
        content = stages.protocol_content(data, stage)
        group = str(self._next_round - 1)
        messages = [Message(content, node, MessageType.TRAIN, group_id=group) for node in nodes]
        answers: dict[int, bytes] = {}
        for reply in grid.send_and_receive(messages, timeout=self._timeout):
            record = None if reply.has_error() else stages.protocol_record(reply)
            answer = None if record is None else record.get(stages.KEY_DATA)
            if isinstance(answer, bytes):
                answers[reply.metadata.src_node_id] = answer
        self.num_bytes += len(data) * len(messages) + sum(map(len, answers.values()))
        return answers


def check_round(
    noise: HandedNoise, num_asked: int, aggregation: Aggregation, sampling: ClientSampling
) -> None:
    """Raise InvalidSpecError if a round is not one that its noise was planned for."""
    if aggregation.server_lies:
        raise InvalidSpecError("aggregation", MISSING, "correlated noise is not for a server that may lie")
    if sampling.min_rounds_apart < noise.rounds_apart:
        # Clients refuse, too, unless they have lost their state.
        raise InvalidSpecError(
            "sampling",
            MISSING,
            f"a client may take part in rounds {sampling.min_rounds_apart} apart, but noise is correlated "
            f"for rounds {noise.rounds_apart} apart",
            f"use CohortSampling({noise.rounds_apart})",
        )
    honest = round_count_down(aggregation.view(num_asked).honest_count)
    corrupt = aggregation.num_corrupt(num_asked)
    if honest < noise.num_honest or corrupt > noise.num_corrupt:
        raise InvalidSpecError(
            "num_clients",
            MISSING,
            f"a round of {num_asked} has {honest} honest clients at least and {corrupt} "
            f"corrupt ones at most, the noise is planned for {noise.num_honest} and "
            f"{noise.num_corrupt}",
            "ask as many clients in each round as the plan says",
        )
