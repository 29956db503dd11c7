"""How many bytes a client of a round sends and receives besides its codes: predicted from the messages."""

from __future__ import annotations

import math

from fl_privquant.secagg.keys import DIGEST_BYTES, KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES
from fl_privquant.secagg.messages import (
    CORRECTION_BYTES,
    SESSION_BYTES,
    Confirmation,
    Invitation,
    KeyAdvertisement,
    MaskedInput,
    MaskRequest,
    Message,
    Roster,
    RoundId,
    SharedSeeds,
    Subset,
    SurvivorList,
    UnmaskReply,
    UnmaskRequest,
)
from fl_privquant.secagg.parameters import GraphParameters
from fl_privquant.secagg.shamir import SHARE_BYTES

_KEY, _DIGEST, _SEED = bytes(KEY_BYTES), bytes(DIGEST_BYTES), bytes(SEED_BYTES)


def handshake_bytes(graph: GraphParameters, num_witnesses: int = 0, quorum: int = 0) -> float:
    """Bytes of all messages of a round that a client sends or is sent, except for its packed codes.

    This is the mean over the clients of a round in which nobody is lost. In signed rounds everybody on the
    list of known clients takes part, with one key each, and all have the same list.

    Parameters
    ----------
    graph
        Clients, neighbours of each, and the threshold.
    num_witnesses, quorum
        In signed rounds, whose confirmations count and how many are shown
        (:mod:`fl_privquant.secagg.witnesses`); 0 in rounds that are not signed.

    >>> from fl_privquant.secagg import choose_parameters
    >>> round(handshake_bytes(choose_parameters(500)))
    4270
    """
    holders = math.floor(graph.num_holders)
    messages = _messages(graph, holders, num_witnesses, quorum)
    # Each holder after the first threshold - 1 needs a correction, except the dealer.
    corrected = (graph.num_holders - graph.threshold + 1) * (1 - 1 / graph.num_holders)
    # Where the number of holders is a mean, each beyond a whole number has a key, a root and a share.
    part = (graph.num_holders - holders) * (KEY_BYTES + SEED_BYTES + SHARE_BYTES)
    return sum(len(message.to_bytes()) for message in messages) + corrected * CORRECTION_BYTES + part


def _messages(graph: GraphParameters, holders: int, num_witnesses: int, quorum: int) -> list[Message]:
    """The messages of a round, with so many holders of each secret, but without corrections."""
    n, signed = graph.num_clients, num_witnesses > 0
    round_id, signature = RoundId(bytes(SESSION_BYTES), 1), bytes(SIGNATURE_BYTES) if signed else b""
    told, nobody = Subset(n if signed else holders), Subset()
    # The digest of all clients, or a path of the tree of keys: shorter where a leaf has no partner.
    nodes = 0 if graph.num_neighbors == n - 1 else math.ceil(math.log2(n)) if signed else 1
    roster = Roster(
        round_id,
        n,
        graph.num_neighbors,
        graph.threshold,
        num_witnesses,
        graph.spread,
        (_DIGEST,) * nodes,
        (_KEY,) * (holders - 1),
        ids=() if signed else tuple(range(holders)),
        present=told if signed else nobody,
        identified=Subset(holders - 1) if signed else nobody,
    )
    signers = Subset(num_witnesses, tuple(range(quorum)))
    messages = [
        Invitation(round_id, n, 1, 1, None, signed),
        KeyAdvertisement(round_id, 0, signature, _KEY, _DIGEST if signed else b""),
        roster,
        SharedSeeds(round_id, 0, signature, _SEED, _SEED, (_SEED,) * (holders - 1), ()),
        MaskRequest(round_id, told),
        MaskedInput(round_id, 0, signature, b""),
        UnmaskRequest(round_id, Subset(holders), signers, (signature,) * quorum),
        UnmaskReply(round_id, 0, signature, (bytes(SHARE_BYTES),) * holders, ()),
    ]
    if signed:
        messages += [SurvivorList(round_id, told), Confirmation(round_id, 0, signature, _DIGEST)]
    return messages
