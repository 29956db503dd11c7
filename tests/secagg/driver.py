"""One round in one process: every message passes through here, and can be lost or changed on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.cohort import count_corrupt_and_dropped
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError, SecureAggregationError
from fl_privquant.packing.pack import unpack_codes
from fl_privquant.secagg import ClientPolicy, ClientRound, RoundConfig, ServerRound, UnmaskedSum, draw_session
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.crypto.masks import apply_masks
from fl_privquant.secagg.graph.parameters import GraphParameters, needs_cycles
from fl_privquant.secagg.messages import MaskedInput, MaskRequest, Roster

CONTEXT = b"what is asked for"

Wire = Callable[[str, int, bytes], bytes]

SESSION = bytes(range(16))
STAGES = ("advertise", "share", "mask", "confirm", "unmask")


@dataclass(frozen=True)
class Lost:
    """Clients that are lost just before they send the message of a stage."""

    advertise: Collection[int] = ()
    share: Collection[int] = ()
    mask: Collection[int] = ()
    confirm: Collection[int] = ()
    unmask: Collection[int] = ()


@dataclass
class Round:
    """A round as it runs: the two sides, and what went over the wire."""

    server: ServerRound
    inputs: Mapping[int, np.ndarray]
    policies: Mapping[int, ClientPolicy]
    wire: Wire = lambda kind, client, data: data
    restore: bool = True
    clients: dict[int, ClientRound] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    sent: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def client(self, i: int) -> ClientRound:
        """The client's state, after it was stored and restored as a Flower client's would be."""
        if self.restore:
            self.clients[i] = ClientRound.from_bytes(self.clients[i].to_bytes(), self.policies[i])
        return self.clients[i]

    def stage(
        self,
        request_kind: str,
        requests: Mapping[int, bytes],
        lost: Collection[int],
        answer: Callable[[int, bytes], bytes],
        reply_kind: str,
        receive: Callable[[int, bytes], bool],
    ) -> None:
        for i, request in requests.items():
            self.sent.setdefault(request_kind, {})[i] = request
            if i in lost or i in self.refusals:
                continue
            try:
                reply = answer(i, self.wire(request_kind, i, request))
            except (SecureAggregationError, InvalidUpdateError) as error:
                self.refusals[i] = str(error)
                continue
            self.sent.setdefault(reply_kind, {})[i] = reply
            receive(i, self.wire(reply_kind, i, reply))

    def advertise(self, lost: Collection[int] = ()) -> None:
        def answer(i: int, request: bytes) -> bytes:
            self.clients[i] = ClientRound.join(request, i, self.policies[i])
            return self.client(i).advertise_keys()

        invitations = dict.fromkeys(self.inputs, self.server.invitation())
        receive = self.server.receive
        self.stage("Invitation", invitations, lost, answer, "KeyAdvertisement", receive)

    def share(self, lost: Collection[int] = ()) -> None:
        self.stage(
            "Roster",
            self.server.rosters(),
            lost,
            lambda i, request: self.client(i).share_keys(request),
            "SharedSeeds",
            self.server.receive,
        )

    def mask(self, lost: Collection[int] = ()) -> None:
        def answer(i: int, request: bytes) -> bytes:
            self.client(i).settle(request, CONTEXT)
            return self.client(i).mask(self.inputs[i])

        requests = self.server.mask_requests(CONTEXT)
        receive = self.server.receive
        self.stage("MaskRequest", requests, lost, answer, "MaskedInput", receive)

    def confirm(self, lost: Collection[int] = ()) -> None:
        self.stage(
            "SurvivorList",
            self.server.survivor_lists(),
            lost,
            lambda i, request: self.client(i).confirm(request),
            "Confirmation",
            self.server.receive,
        )

    def unmask(self, lost: Collection[int] = ()) -> None:
        self.stage(
            "UnmaskRequest",
            self.server.unmask_requests(),
            lost,
            lambda i, request: self.client(i).unmask(request),
            "UnmaskReply",
            self.server.receive,
        )

    def run(self, lost: Lost | None = None, since: str = STAGES[0]) -> UnmaskedSum:
        """Run all stages from ``since`` on, and open the sum."""
        for stage in STAGES[STAGES.index(since) :]:
            getattr(self, stage)(getattr(lost or Lost(), stage))
        return self.server.finish()

    def run_until(self, end: str) -> None:
        """Run the stages before ``end``, with nobody lost."""
        for stage in STAGES[: STAGES.index(end)]:
            getattr(self, stage)()

    def bare_sum(self, width: int, dimension: int) -> np.ndarray:
        """What is left of the masked inputs and the right sum for whoever knows every self mask.

        Every client is told that all have shared; this is for rounds at the stage "mask".
        """
        everyone = Subset(len(self.inputs), tuple(range(len(self.inputs))))
        request = MaskRequest(self.server._round_id, everyone).to_bytes()
        total = np.zeros(dimension, dtype="<u4")
        for i, client in self.clients.items():
            client.settle(request, CONTEXT)
            self_mask = keys.derive(client._seed, client._masks_digest, keys.SELF_MASK, client._round_keys[i])
            payload = MaskedInput.from_bytes(client.mask(self.inputs[i])).payload
            bare = unpack_codes(payload, width, dimension).astype("<u4")
            apply_masks(bare, [(self_mask, False)])
            total += bare
        return (total - self.expected(self.inputs).astype("<u4")) & ((1 << width) - 1)

    def public_keys(self) -> dict[int, bytes]:
        """The keys that clients sent for this round."""
        return {i: entry.public_key for i, entry in self.server._entries.items()}

    def expected(self, survivors: Collection[int]) -> np.ndarray:
        return sum((self.inputs[i].astype(np.int64) for i in survivors), np.int64(0))


@dataclass(frozen=True)
class GivenGraph(RoundConfig):
    """A round with given numbers of neighbors and of shares that open a secret, whatever they protect."""

    given: tuple[int, int] = (0, 0)

    def graph(self, num_clients: int) -> GraphParameters:
        neighbors, threshold = self.given
        neighbors = min(neighbors, num_clients - 1)
        gone = sum(count_corrupt_and_dropped(num_clients, self.corrupt_fraction, self.dropout_fraction))
        spread = self.signed and needs_cycles(num_clients, neighbors, gone)
        return GraphParameters(num_clients, neighbors, threshold, spread)

    def min_survivors(self, num_clients: int) -> int:
        return 0


class AnyGraphPolicy(ClientPolicy):
    """Accepts every graph that there can be."""

    def check_graph(self, num_clients: int, num_neighbors: int, threshold: int, spread: bool = False) -> None:
        try:
            GraphParameters(num_clients, num_neighbors, threshold, spread)
        except InvalidSpecError as error:
            raise SecureAggregationError(str(error)) from None


def open_round(
    num_clients: int = 5,
    dimension: int = 20,
    *,
    max_code: int | None = 15,
    width: int | None = None,
    graph: tuple[int, int] | None = None,
    signed: bool = False,
    seed: int = 0,
    number: int = 1,
    wire: Wire | None = None,
    restore: bool = True,
    corrupt_fraction: float | None = None,
    dropout_fraction: float = 0.1,
    until: str = STAGES[0],
) -> Round:
    """A round with ids that are no range, random inputs and (neighbors, threshold) if given.

    Clients take any graph that is given, and any number of them may be lost there. Of three clients one may
    be lost but none corrupt, unless said otherwise. Stages before ``until`` are run.
    """
    if corrupt_fraction is None:
        corrupt_fraction = 0.1 if num_clients > 3 else 0.0
    generator = np.random.default_rng(seed)
    ids = [7 * i + 3 for i in range(num_clients)]
    if width is None:
        width = 12 if max_code is None else (num_clients * max_code).bit_length()
    largest = (1 << width) - 1 if max_code is None else max_code
    inputs = {i: generator.integers(0, largest, dimension, endpoint=True) for i in ids}
    identities = {i: Ed25519PrivateKey.generate() for i in ids} if signed else {}
    known = {i: key.public_key().public_bytes_raw() for i, key in identities.items()} if signed else None
    protected = graph is None
    make_config = RoundConfig if graph is None else partial(GivenGraph, given=graph)
    config = make_config(
        draw_session(),
        number,
        dimension,
        width,
        max_code,
        corrupt_fraction=corrupt_fraction,
        dropout_fraction=dropout_fraction,
        identities=known,
    )
    make_policy = ClientPolicy if protected else AnyGraphPolicy
    policies = {
        i: make_policy(
            min_clients=3 if protected else 2,
            corrupt_fraction=corrupt_fraction,
            dropout_fraction=dropout_fraction if protected else 0.99,
            identity=identities.get(i),
            known_identities=known,
        )
        for i in ids
    }
    made = Round(ServerRound(config, ids), inputs, policies, restore=restore)
    if wire is not None:
        made.wire = wire
    made.run_until(until)
    return made


def shown(roster: Roster, clients: Sequence[int], public_keys: Mapping[int, bytes], own: int) -> Roster:
    """A roster of a complete graph with these clients and keys, as a lying server could send it."""
    neighbors = [client for client in sorted(clients) if client != own]
    return replace(
        roster,
        ids=tuple(sorted(clients)),
        present=Subset(),
        public_keys=tuple(public_keys[client] for client in neighbors),
        identified=Subset(len(neighbors)),
        identities=(),
        num_clients=len(clients),
        num_neighbors=len(neighbors),
    )


def at(stage: str, num_clients: int, **options: Any) -> Round:
    """A signed round up to a stage, which is still open."""
    return open_round(num_clients, **{"signed": True, "restore": False, "until": stage} | options)
