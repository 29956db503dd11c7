"""Messages of a server that would keep a client's processor busy, or fill its memory."""

from __future__ import annotations

import contextlib
import math
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.errors import SecureAggregationError
from fl_privquant.mechanisms.additive.discrete_laplace import DiscreteLaplaceMechanism
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.tables.pbm import PbmMechanism
from fl_privquant.privacy_loss.update_bounds import UpdateNorms, WholeUpdate
from fl_privquant.sampling.integer_noise import DiscreteLaplace
from fl_privquant.secagg import ClientPolicy, ClientRound, draw_session
from fl_privquant.secagg._wire import RoundId
from fl_privquant.secagg.graph.neighbors import Graph
from fl_privquant.secagg.graph.parameters import GraphParameters
from fl_privquant.secagg.messages import Invitation, Roster
from fl_privquant.statement import View

CLIENT = 3


@contextlib.contextmanager
def assert_fewer_bytes(limit: int) -> Iterator[None]:
    """Check that what Python and numpy allocate in the ``with`` block stays below a limit at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


def wide_table() -> Mechanism:
    """Two rows on the codes 0, 1 and 2^20: sums of a thousand have a thousand million points."""
    third = TOTAL_WEIGHT // 3
    low = [third + 1000, third, TOTAL_WEIGHT - 2 * third - 1000]
    weights = np.array([low, [third, third, TOTAL_WEIGHT - 2 * third]])
    codes = np.array([0, 1, 1 << 20])
    means = weights @ codes / TOTAL_WEIGHT
    step = 2.0 / float(means[1] - means[0])
    table = CertifiedTable(
        Codebook(codes, step, -1.0 - step * float(means[0])), weights, np.array([0]), np.array([1])
    )
    return TableMechanism("wide", table, table.epsilon)


def many_bits() -> Mechanism:
    """Sums of 4095 bits: in ten thousand clients 40 million of them."""
    return PbmMechanism.from_bit_weights(4095, TOTAL_WEIGHT // 2 - 1_000_000, {})


def many_pieces(rows: int) -> Mechanism:
    """A continuous distribution of three outputs that bends at every row; pairs of pieces are many."""
    middle = ((0.3 + 0.05 * np.cos(np.arange(rows))) * TOTAL_WEIGHT).astype(np.int64)
    tilt = (0.2 * TOTAL_WEIGHT * np.linspace(-1.0, 1.0, rows)).astype(np.int64)
    high = (TOTAL_WEIGHT - middle) // 2 + tilt
    weights = np.stack([TOTAL_WEIGHT - middle - high, middle, high], axis=1)
    means = weights @ np.arange(3) / TOTAL_WEIGHT
    step = 2.0 / float(means[-1] - means[0])
    codebook = Codebook(np.arange(3), step, -1.0 - step * float(means[0]))
    table = CertifiedTable(codebook, weights, np.arange(rows - 1), np.arange(1, rows))
    return TableMechanism("bent", table, table.epsilon)


def test_a_distribution_of_many_pieces_does_not_fill_the_memory() -> None:
    mechanism = Mechanism.from_bytes(many_pieces(5000).to_bytes())
    with assert_fewer_bytes(1 << 26):
        for named in mechanism.update_losses(WholeUpdate(UpdateNorms(l2=3.0), 100, View())):
            assert not math.isnan(named.loss.log_moment(1.0))


@pytest.mark.parametrize("make", [wide_table, many_bits])
def test_bounds_by_the_norm_stay_within_memory(make: Callable[[], Mechanism]) -> None:
    mechanism = Mechanism.from_bytes(make().to_bytes())
    with assert_fewer_bytes(1 << 29):
        for named in mechanism.update_losses(WholeUpdate(UpdateNorms(l2=30.0), 7850, View(10_000))):
            assert not math.isnan(named.loss.log_moment(1.0))


def test_wide_laplace_noise_is_given_up_before_its_sum_is_listed() -> None:
    noise = DiscreteLaplace(Fraction(3600))
    mechanism = DiscreteLaplaceMechanism("discrete_laplace", noise, 65_536, 1000, 32, 19.0, 0.0, 1e-9)
    with assert_fewer_bytes(1 << 28):
        mechanism.update_losses(WholeUpdate(UpdateNorms(l2=30.0), 7850, View(1000)))


# Rosters that name very many neighbors: a client must not be made to compute with all of them.


def invited(num_clients: int, policy: ClientPolicy, signed: bool = False) -> ClientRound:
    """A client that has sent its key in a round to which so many were invited."""
    invitation = Invitation(RoundId(draw_session(), 1), num_clients, 20, 32, None, signed)
    client = ClientRound.join(invitation.to_bytes(), CLIENT, policy)
    client.advertise_keys()
    return client


@pytest.mark.parametrize("sparse", [0, 2])
def test_neighbors_that_are_not_on_the_roster_take_no_memory(sparse: int) -> None:
    """The odds of a graph need an array of as many numbers as a client has neighbors.

    2^24 of them are enough to see it; the field has room for 2^32, which take 32 GiB.
    """
    n = (1 << 24) + 1
    client, k = invited(n, ClientPolicy()), n - 1 - sparse
    roster = Roster(client.round_id, n, k, 3 * k // 4, 0, False, (), (), ids=(CLIENT,)).to_bytes()
    assert len(roster) == 70
    with assert_fewer_bytes(50 << 20), pytest.raises(SecureAggregationError, match="holders, expected"):
        client.share_keys(roster)


def test_a_signed_client_refuses_a_spread_graph_that_is_costly_to_draw() -> None:
    """A graph of 3000 clients with 2998 neighbors each took 240 MB and more than a second."""
    n, k, identity = 3000, 1026, Ed25519PrivateKey.generate()
    known = {i: i.to_bytes(32, "little") for i in range(n)}
    known[CLIENT] = identity.public_key().public_bytes_raw()
    client = invited(n, ClientPolicy(identity=identity, known_identities=known), signed=True)
    roster = Roster(client.round_id, n, k, k // 2 + 100, 80, True, (), (), ids=tuple(range(n)))
    with pytest.raises(SecureAggregationError, match=f"{k} in a spread graph, expected at most 1024"):
        client.share_keys(roster.to_bytes())


@pytest.mark.parametrize(
    ("graph", "megabytes"),
    [
        (GraphParameters(3000, 2998, 1501), 50),
        (GraphParameters(3000, 1024, 514, True), 50),
        # A ring has more neighbors than can go missing, so no policy refuses one of nearly all clients.
        (GraphParameters(20_000, 19_998, 15_000), 10),
    ],
)
def test_the_largest_graphs_take_little_memory(graph: GraphParameters, megabytes: int) -> None:
    with assert_fewer_bytes(megabytes << 20):
        drawn = Graph(b"seed", graph)
        assert graph.spread or len(drawn.neighbors(7)) == graph.num_neighbors
        assert drawn.min_holders(range(100)) <= 100
