"""A roster of 70 bytes that names billions of neighbours: a client must refuse it before it computes odds."""

from __future__ import annotations

import pytest

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientPolicy, ClientRound, new_session
from fl_privquant.secagg.messages import Invitation, Roster, RoundId
from tests.adversary.mutation import watched

CLIENT = 3


def invited(num_clients: int) -> ClientRound:
    """A client that has sent its key in a round, not signed, to which so many were invited."""
    round_id = RoundId(new_session(), 1)
    invitation = Invitation(round_id, num_clients, 20, 32, None, signed=False)
    client = ClientRound.join(invitation.to_bytes(), CLIENT, ClientPolicy())
    client.advertise_keys()
    return client


@pytest.mark.parametrize("sparse", [0, 2])
def test_neighbours_that_are_not_on_the_roster_take_no_memory(sparse: int) -> None:
    """The odds of a graph need an array of as many numbers as a client has neighbours.

    2^24 of them are enough to see it; the field has room for 2^32, which take 32 GiB.
    """
    n = (1 << 24) + 1
    client, k = invited(n), n - 1 - sparse
    roster = Roster(client.round_id, n, k, 3 * k // 4, 0, False, (), ids=(CLIENT,)).to_bytes()
    assert len(roster) == 70

    def answer() -> None:
        with pytest.raises(SecureAggregationError, match="holders, expected"):
            client.share_keys(roster)

    assert not watched(answer)
