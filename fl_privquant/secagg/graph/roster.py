"""How a client checks its roster: who takes part, and the graph that follows from everyone's keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg.client_policy import ClientPolicy
from fl_privquant.secagg.graph.neighbors import cached_graph
from fl_privquant.secagg.graph.parameters import GraphParameters
from fl_privquant.secagg.graph.roster_tree import merkle_root, merkle_root_from_path
from fl_privquant.secagg.messages import Invitation, Roster, RosterEntry
from fl_privquant.secagg.signed.transcript import graph_digest, listing_digest


@dataclass(frozen=True)
class CheckedRoster:
    """What a client takes from its roster.

    ``entries`` are the holders of the client's secrets, itself among them, by increasing ids, and
    ``everyone`` all clients of the round, if the client was told.
    """

    entries: tuple[RosterEntry, ...]
    everyone: tuple[int, ...]
    graph_digest: bytes


def check_roster(
    roster: Roster, invitation: Invitation, own: RosterEntry, round_digest: bytes, policy: ClientPolicy
) -> CheckedRoster:
    """What follows from a roster for the client with these keys, if the client agrees to it."""
    listed = _all_clients(roster, policy) if invitation.signed else roster.ids
    if own.client_id not in listed:
        raise SecureAggregationError(f"client {own.client_id} is missing from its own roster")
    if not len(listed) <= roster.num_clients <= invitation.num_clients:
        raise SecureAggregationError(
            f"roster of {len(listed)} among {roster.num_clients} clients, of {invitation.num_clients} "
            f"invited: a sum over more clients than were invited could exceed the modulus"
        )
    if roster.spread and not invitation.signed:
        raise SecureAggregationError("a spread graph, which only clients of signed rounds can draw")
    # Before anything is computed for so many neighbors: no array is then longer than the message.
    if not invitation.signed and len(listed) != roster.num_neighbors + 1:
        raise SecureAggregationError(
            f"{len(listed)} holders, expected {roster.num_neighbors} neighbors and this client"
        )
    policy.check_size(roster.num_clients)
    policy.check_graph(roster.num_clients, roster.num_neighbors, roster.threshold, roster.spread)
    check = _check_signed_roster if invitation.signed else _check_unsigned_roster
    checked = check(roster, listed, own, round_digest, policy)
    public = [entry.public_key for entry in checked.entries]
    if len(set(public)) != len(public):
        raise SecureAggregationError("a public key is on the roster twice: keys must be distinct")
    if len(public) < roster.threshold:
        raise SecureAggregationError(f"{len(public)} holders, below the threshold {roster.threshold}")
    return checked


def graph_parameters(roster: Roster) -> GraphParameters:
    """The parameters of the graph that a roster names."""
    return GraphParameters(roster.num_clients, roster.num_neighbors, roster.threshold, roster.spread)


def _all_clients(roster: Roster, policy: ClientPolicy) -> tuple[int, ...]:
    """All clients of a signed round: each is known, and none can stand in an increasing list twice."""
    everyone = roster.ids or roster.present.select_from(sorted(policy.known_identities or ()))
    if len(everyone) != roster.num_clients:
        raise SecureAggregationError(
            f"a list of {len(everyone)} clients, expected the {roster.num_clients} of the roster"
        )
    policy.check_clients(everyone)
    return everyone


def _check_signed_roster(
    roster: Roster, everyone: tuple[int, ...], own: RosterEntry, round_digest: bytes, policy: ClientPolicy
) -> CheckedRoster:
    """The client draws the graph itself, from the list of all clients and a tree that holds its own key."""
    parameters, place = graph_parameters(roster), everyone.index(own.client_id)
    complete = roster.num_neighbors == roster.num_clients - 1
    if complete:
        if roster.path:
            raise SecureAggregationError("a path of keys on a complete graph, where all keys are known")
        entries = _make_entries([*everyone[:place], *everyone[place + 1 :]], roster, own, policy)
        root = merkle_root([entry.leaf for entry in entries])
    else:
        root = merkle_root_from_path(own.leaf, place, len(everyone), roster.path)
    listing = listing_digest(everyone, root)
    digest = graph_digest(round_digest, parameters, roster.num_witnesses, listing)
    if not complete:
        neighbors = cached_graph(digest, parameters).neighbors(place)
        entries = _make_entries([everyone[at] for at in neighbors], roster, own, policy)
    return CheckedRoster(entries, everyone, digest)


def _check_unsigned_roster(
    roster: Roster, holders: tuple[int, ...], own: RosterEntry, round_digest: bytes, policy: ClientPolicy
) -> CheckedRoster:
    """The client trusts the server to name its neighbors; on a complete graph it knows all clients."""
    entries = _make_entries([holder for holder in holders if holder != own.client_id], roster, own, policy)
    complete = len(holders) == roster.num_clients
    if len(roster.path) != (not complete):
        raise SecureAggregationError(
            f"a path of {len(roster.path)} nodes: expected the digest of the list of all clients"
        )
    listing = (
        listing_digest(holders, merkle_root([entry.leaf for entry in entries]))
        if complete
        else roster.path[0]
    )
    digest = graph_digest(round_digest, graph_parameters(roster), roster.num_witnesses, listing)
    return CheckedRoster(entries, holders if complete else (), digest)


def _make_entries(
    neighbors: Sequence[int], roster: Roster, own: RosterEntry, policy: ClientPolicy
) -> tuple[RosterEntry, ...]:
    """The holders with their keys: those of the neighbors from the roster, and the client's own."""
    if len(roster.public_keys) != len(neighbors):
        raise SecureAggregationError(
            f"{len(roster.public_keys)} public keys on the roster, expected those of {len(neighbors)} "
            f"neighbors"
        )
    identities: dict[int, bytes] = dict.fromkeys(neighbors, b"")
    if own.identity:
        named = dict(zip(roster.identified.select_from(neighbors), roster.identities, strict=True))
        identities = {client: policy.identity_of(client, named.get(client)) for client in neighbors}
    others = [
        RosterEntry(client, key, identities[client])
        for client, key in zip(neighbors, roster.public_keys, strict=True)
    ]
    return tuple(sorted([*others, own], key=lambda entry: entry.client_id))
