"""How many bytes a client of a round sends and receives besides its codes: predicted from the messages."""

from __future__ import annotations

from fl_privquant.secagg.keys import DIGEST_BYTES, KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES
from fl_privquant.secagg.messages import (
    SEALED_BYTES,
    SESSION_BYTES,
    Confirmation,
    Invitation,
    KeyAdvertisement,
    MaskedInput,
    MaskRequest,
    Message,
    Roster,
    RosterEntry,
    RoundId,
    SealedShares,
    ShareDelivery,
    ShareReceipt,
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

    This is the mean over the clients of a round in which nobody is lost and no share is disputed.

    Parameters
    ----------
    graph
        Clients, neighbours of each, and the threshold.
    num_witnesses, quorum
        In signed rounds, whose confirmations count and how many are shown
        (:mod:`fl_privquant.secagg.witnesses`); 0 in rounds that are not signed.

    >>> from fl_privquant.secagg import choose_parameters
    >>> round(handshake_bytes(choose_parameters(500)))
    5725
    """
    messages = _unsigned(graph) if not num_witnesses else _signed(graph, num_witnesses, quorum)
    holders = graph.num_holders
    # Of the holders beyond the threshold - 1 that derive their shares, one may be the dealer itself.
    sealed = (holders - graph.threshold + 1) * graph.num_neighbors / holders
    return sum(len(message.to_bytes()) for message in messages) + 2 * sealed * SEALED_BYTES


def _unsigned(graph: GraphParameters, signature: bytes = b"", identity: bytes = b"") -> list[Message]:
    """The messages of a round without sealed shares, of which senders and receivers have as many."""
    round_id, n, k = RoundId(bytes(SESSION_BYTES), 1), graph.num_clients, graph.num_neighbors
    complete = k == n - 1
    known, told = Subset(k + 1), Subset(n if complete or signature else k + 1)
    entries = tuple(RosterEntry(client, _KEY, identity) for client in range(k + 1))
    everyone = tuple(range(n)) if signature and not complete else ()
    seeds, shares = (_SEED, _SEED), (bytes(SHARE_BYTES),) * (k + 1)
    return [
        Invitation(round_id, n, 1, 1, None, bool(signature)),
        KeyAdvertisement(round_id, 0, signature, _KEY, identity),
        Roster(round_id, n, graph.threshold, 0, entries, _DIGEST, everyone, (_DIGEST,) * len(everyone)),
        SealedShares(round_id, 0, signature, seeds, bytes(SEED_BYTES * k), ()),
        ShareDelivery(round_id, known, known, ()),
        ShareReceipt(round_id, 0, signature, (), ()),
        MaskRequest(round_id, told),
        MaskedInput(round_id, 0, signature, b""),
        UnmaskRequest(round_id, known),
        UnmaskReply(round_id, 0, signature, shares, ()),
    ]


def _signed(graph: GraphParameters, num_witnesses: int, quorum: int) -> list[Message]:
    """The same of a signed round, with the list of all clients and the confirmations of a quorum."""
    signature, everyone = bytes(SIGNATURE_BYTES), Subset(graph.num_clients)
    *others, _, reply = _unsigned(graph, signature, _KEY)
    signers = Subset(graph.num_clients, tuple(range(min(quorum, num_witnesses))))
    shown = (signature,) * len(signers.places)
    return [
        *others,
        SurvivorList(reply.round_id, everyone),
        Confirmation(reply.round_id, 0, signature, _DIGEST),
        UnmaskRequest(reply.round_id, Subset(graph.num_holders), signers, shown),
        reply,
    ]
