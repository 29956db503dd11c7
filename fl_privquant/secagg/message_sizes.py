"""How many bytes a client of a round sends and receives besides its codes: predicted from the messages."""

from __future__ import annotations

from fl_privquant.secagg import messages
from fl_privquant.secagg._wire import SESSION_BYTES, Message, RoundId, Subset
from fl_privquant.secagg.crypto.keys import DIGEST_BYTES, KEY_BYTES, SEED_BYTES
from fl_privquant.secagg.crypto.shamir import SHARE_BYTES
from fl_privquant.secagg.graph.parameters import GraphParameters

_KEY, _DIGEST, _SEED = bytes(KEY_BYTES), bytes(DIGEST_BYTES), bytes(SEED_BYTES)


def handshake_bytes(graph: GraphParameters) -> float:
    """Bytes of all messages of a round that a client sends or is sent, except for its packed codes.

    This is the mean over the clients of a round that is not signed and in which nobody is lost.

    >>> from fl_privquant.secagg import choose_parameters
    >>> round(handshake_bytes(choose_parameters(500)))
    4270
    """
    holders = graph.num_neighbors + 1
    size = sum(len(message.to_bytes()) for message in _make_messages(graph, holders))
    # Each holder after the first threshold - 1 needs a correction, except the dealer.
    corrected = (holders - graph.threshold + 1) * (1 - 1 / holders)
    return size + corrected * messages.CORRECTION_BYTES


def _make_messages(graph: GraphParameters, holders: int) -> list[Message]:
    """The messages of a round with ``holders`` holders of each secret, without corrections."""
    n, round_id = graph.num_clients, RoundId(bytes(SESSION_BYTES), 1)
    roster = messages.Roster(
        round_id,
        n,
        graph.num_neighbors,
        graph.threshold,
        num_witnesses=0,
        spread=graph.spread,
        # The digest of all clients, which those of a complete graph know by themselves.
        path=() if graph.num_neighbors == n - 1 else (_DIGEST,),
        public_keys=(_KEY,) * (holders - 1),
        ids=tuple(range(holders)),
    )
    return [
        messages.Invitation(round_id, n, 1, 1, None, signed=False),
        messages.KeyAdvertisement(round_id, 0, b"", _KEY),
        roster,
        messages.SharedSeeds(round_id, 0, b"", _SEED, _SEED, (_SEED,) * (holders - 1), ()),
        messages.MaskRequest(round_id, Subset(holders)),
        messages.MaskedInput(round_id, 0, b"", b""),
        messages.UnmaskRequest(round_id, Subset(holders)),
        messages.UnmaskReply(round_id, 0, b"", (bytes(SHARE_BYTES),) * holders, ()),
    ]
