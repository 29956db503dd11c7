"""How a client checks its roster: its own keys, the graph that follows from everyone's, and who signed."""

from __future__ import annotations

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg.graph import neighbors_of, ring_order
from fl_privquant.secagg.messages import Invitation, Roster, RosterEntry
from fl_privquant.secagg.policy import ClientPolicy
from fl_privquant.secagg.transcript import graph_digest, listing_digest, listing_of


def checked_roster(
    roster: Roster,
    invitation: Invitation,
    client_id: int,
    own_keys: tuple[bytes, bytes],
    policy: ClientPolicy,
) -> RosterEntry:
    """The client's own entry, if it has the keys (of the round, of its identity) that the client sent."""
    entries = {entry.client_id: entry for entry in roster.entries}
    own = entries.get(client_id)
    if own is None:
        raise SecureAggregationError(f"client {client_id} is missing from its own roster")
    public = [entry.public_key for entry in roster.entries]
    if len(set(public)) != len(public):
        raise SecureAggregationError("a public key stands twice on the roster: keys must be distinct")
    if (own.public_key, own.identity) != own_keys:
        raise SecureAggregationError(f"the roster has other keys for client {client_id} than it sent")
    holders, invited = len(entries), invitation.num_clients
    if not holders <= roster.num_clients <= invited:
        raise SecureAggregationError(
            f"roster of {holders} among {roster.num_clients} clients of {invited} invited: a sum of more "
            f"could exceed the modulus"
        )
    policy.check_size(roster.num_clients)
    policy.check_graph(roster.num_clients, holders, roster.threshold)
    return own


def checked_graph(
    roster: Roster, round_digest: bytes, client_id: int, policy: ClientPolicy
) -> tuple[bytes, tuple[int, ...]]:
    """The digest of the graph, and the ids of all clients where the client was told, checked.

    On a complete graph the roster is the list of all. On a sparse one a client that takes the server to lie
    needs that list, and finds its own neighbours by it.
    """
    holders = len(roster.entries)
    graph = graph_digest(
        round_digest,
        roster.num_clients,
        holders - 1,
        roster.threshold,
        roster.num_witnesses,
        roster.listing,
    )
    if holders == roster.num_clients:
        if roster.listing != listing_of(roster.entries):
            raise SecureAggregationError("the roster is not the list of clients whose digest it names")
        return graph, tuple(entry.client_id for entry in roster.entries)
    if not roster.everyone:
        if policy.signed:
            raise SecureAggregationError(
                f"a roster of {holders} among {roster.num_clients} clients without the list of all: this "
                f"client checks whether they are its neighbours"
            )
        return graph, ()
    if len(roster.everyone) != roster.num_clients or roster.listing != listing_digest(
        roster.everyone, roster.fingerprints
    ):
        raise SecureAggregationError(
            f"a list of {len(roster.everyone)} clients, expected the {roster.num_clients} whose digest the "
            f"roster names"
        )
    listed = dict(zip(roster.everyone, roster.fingerprints, strict=True))
    for entry in roster.entries:
        if listed.get(entry.client_id) != entry.fingerprint:
            raise SecureAggregationError(
                f"the list of all clients has other keys for client {entry.client_id}"
            )
    expected = {client_id, *neighbors_of(client_id, ring_order(graph, roster.everyone), holders - 1)}
    if expected != {entry.client_id for entry in roster.entries}:
        raise SecureAggregationError(
            f"the neighbours of client {client_id} are not those that follow from the keys of all clients"
        )
    return graph, roster.everyone
