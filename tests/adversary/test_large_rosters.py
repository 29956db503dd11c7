"""Rosters that name very many neighbors: a client must not be made to compute with all of them."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientPolicy, ClientRound, draw_session
from fl_privquant.secagg._wire import RoundId
from fl_privquant.secagg.graph.neighbors import Graph
from fl_privquant.secagg.graph.parameters import GraphParameters
from fl_privquant.secagg.messages import Invitation, Roster
from tests.adversary.mutation import watched
from tests.memory import assert_fewer_bytes

CLIENT = 3


def invited(num_clients: int) -> ClientRound:
    """A client that has sent its key in a round, not signed, to which so many were invited."""
    round_id = RoundId(draw_session(), 1)
    invitation = Invitation(round_id, num_clients, 20, 32, None, signed=False)
    client = ClientRound.join(invitation.to_bytes(), CLIENT, ClientPolicy())
    client.advertise_keys()
    return client


@pytest.mark.parametrize("sparse", [0, 2])
def test_neighbors_that_are_not_on_the_roster_take_no_memory(sparse: int) -> None:
    """The odds of a graph need an array of as many numbers as a client has neighbors.

    2^24 of them are enough to see it; the field has room for 2^32, which take 32 GiB.
    """
    n = (1 << 24) + 1
    client, k = invited(n), n - 1 - sparse
    roster = Roster(client.round_id, n, k, 3 * k // 4, 0, False, (), (), ids=(CLIENT,)).to_bytes()
    assert len(roster) == 70

    def answer() -> None:
        with pytest.raises(SecureAggregationError, match="holders, expected"):
            client.share_keys(roster)

    assert not watched(answer)


@pytest.mark.parametrize("num_neighbors", [1026, 2998])
def test_a_signed_client_refuses_a_spread_graph_that_is_costly_to_draw(num_neighbors: int) -> None:
    """A graph of 3000 clients with 2998 neighbors each took 240 MB and more than a second."""
    n, identity = 3000, Ed25519PrivateKey.generate()
    known = {i: i.to_bytes(32, "little") for i in range(n)} | {
        CLIENT: identity.public_key().public_bytes_raw()
    }
    round_id = RoundId(draw_session(), 1)
    invitation = Invitation(round_id, n, 20, 32, None, signed=True)
    client = ClientRound.join(
        invitation.to_bytes(), CLIENT, ClientPolicy(identity=identity, known_identities=known)
    )
    client.advertise_keys()
    threshold = num_neighbors // 2 + 100
    roster = Roster(round_id, n, num_neighbors, threshold, 80, True, (), (), ids=tuple(range(n)))
    with pytest.raises(
        SecureAggregationError, match=f"{num_neighbors} in a spread graph, expected at most 1024"
    ):
        client.share_keys(roster.to_bytes())


@pytest.mark.parametrize(("num_neighbors", "spread"), [(2999, False), (2998, False), (1024, True)])
def test_the_largest_graphs_take_little_memory(num_neighbors: int, spread: bool) -> None:
    with assert_fewer_bytes(50 << 20):
        graph = Graph(b"seed", GraphParameters(3000, num_neighbors, num_neighbors // 2 + 2, spread))
        assert graph.min_holders(range(100)) <= 100


def test_a_ring_takes_memory_for_its_clients_only() -> None:
    """A ring has more neighbors than can go missing, so no policy refuses one of nearly all clients."""
    with assert_fewer_bytes(10 << 20):
        graph = Graph(b"seed", GraphParameters(20_000, 19_998, 15_000))
        assert len(graph.neighbors(7)) == 19_998
        assert graph.min_holders(range(100)) in (99, 100)
