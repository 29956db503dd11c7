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
    messages = _unsigned(graph) if not num_witnesses else _signed(graph, num_witnesses, quorum)
    holders, whole = graph.num_holders, math.floor(graph.num_holders)
    # Of the holders beyond the threshold - 1, each needs a correction but the dealer itself.
    corrections = (holders - graph.threshold + 1) * (1 - 1 / holders) * CORRECTION_BYTES
    # Where the number of holders is a mean, each beyond a whole number has a key, a root and a share.
    part = (holders - whole) * (KEY_BYTES + SEED_BYTES + SHARE_BYTES)
    return sum(len(message.to_bytes()) for message in messages) + corrections + part


def _unsigned(graph: GraphParameters) -> list[Message]:
    """The messages of a round without corrections."""
    n, k = graph.num_clients, graph.num_neighbors
    told = Subset(k + 1)
    path = () if k == n - 1 else (_DIGEST,)
    invitation, advertisement, *others = _common(graph, k + 1, b"", told)
    roster = Roster(
        invitation.round_id, n, k, graph.threshold, 0, False, path, (_KEY,) * k, tuple(range(k + 1))
    )
    return [invitation, advertisement, roster, *others, UnmaskRequest(invitation.round_id, told)]


def _signed(graph: GraphParameters, num_witnesses: int, quorum: int) -> list[Message]:
    """The same of a signed round, with a path of the tree of keys and the confirmations of a quorum."""
    n, holders, signature = graph.num_clients, math.floor(graph.num_holders), bytes(SIGNATURE_BYTES)
    everyone = Subset(n)
    # A place whose leaf has no partner on some level has a shorter path.
    levels = math.ceil(math.log2(n)) if graph.num_neighbors < n - 1 else 0
    invitation, advertisement, *others = _common(graph, holders, signature, everyone)
    round_id = invitation.round_id
    signers = Subset(num_witnesses, tuple(range(quorum)))
    return [
        invitation,
        advertisement,
        Roster(
            round_id,
            n,
            graph.num_neighbors,
            graph.threshold,
            num_witnesses,
            graph.spread,
            (_DIGEST,) * levels,
            (_KEY,) * (holders - 1),
            present=everyone,
            identified=Subset(holders - 1),
        ),
        *others,
        SurvivorList(round_id, everyone),
        Confirmation(round_id, 0, signature, _DIGEST),
        UnmaskRequest(round_id, Subset(holders), signers, (signature,) * quorum),
    ]


def _common(graph: GraphParameters, holders: int, signature: bytes, told: Subset) -> list[Message]:
    """The messages that all rounds have, but for the roster and the request to unmask."""
    round_id = RoundId(bytes(SESSION_BYTES), 1)
    shares = (bytes(SHARE_BYTES),) * holders
    known = _DIGEST if signature else b""
    return [
        Invitation(round_id, graph.num_clients, 1, 1, None, bool(signature)),
        KeyAdvertisement(round_id, 0, signature, _KEY, known),
        SharedSeeds(round_id, 0, signature, _SEED, _SEED, (_SEED,) * (holders - 1), ()),
        MaskRequest(round_id, told),
        MaskedInput(round_id, 0, signature, b""),
        UnmaskReply(round_id, 0, signature, shares, ()),
    ]
