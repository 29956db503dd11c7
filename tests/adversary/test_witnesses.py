"""A server that lies about who confirmed what, and corrupt clients that sign twice.

One of these attacks succeeded once, on a protocol in which clients could dispute shares: with two pairs of
keys that a corrupt client gave it, the server showed two lists of clients, and set honest clients apart by
shares that each had sealed for the other list. Shares are no longer sent, so that nothing can be disputed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction

import pytest
from scipy import stats

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.messages import Confirmation, UnmaskRequest
from fl_privquant.secagg.signed.witnesses import min_witnesses, quorum_size
from tests.secagg.driver import Lost, Round, at, open_round

NUM_CLIENTS = 20


def confirmation(round_: Round, client: int, agreement: bytes) -> bytes:
    """The signature of a client that signs whatever the server wants."""
    body = Confirmation(round_.server._round_id, client, b"", agreement).body()
    identity = round_.policies[client].identity
    assert identity is not None
    return keys.sign(identity, round_.server._graph_digest, body)


def make_unmask_request(round_: Round, survivors: Collection[int], signatures: dict[int, bytes]) -> bytes:
    everyone, witnesses = sorted(round_.inputs), round_.server._witnesses
    return UnmaskRequest(
        round_.server._round_id,
        Subset.of(survivors, everyone),
        Subset.of(signatures, witnesses),
        tuple(signatures[i] for i in witnesses if i in signatures),
    ).to_bytes()


def test_two_quorums_share_an_honest_client_and_lost_clients_leave_one() -> None:
    for num_clients in (2, 3, 4, 7, 12, 20, 33, 59):
        for corrupt in range(num_clients):
            for witnesses in range(num_clients + 1):
                quorum = quorum_size(num_clients, witnesses, corrupt, 0.0)
                assert 2 * quorum - witnesses > min(corrupt, witnesses)
            for lost in range((num_clients - corrupt) // 2):
                witnesses = min_witnesses(num_clients, corrupt, lost, 0.0, 0.0)
                assert witnesses - lost >= quorum_size(num_clients, witnesses, corrupt, 0.0)
                assert witnesses == corrupt + 2 * lost + 1


@pytest.mark.parametrize("num_clients", [100, 150, 500, 2000])
def test_the_odds_that_two_quorums_share_corrupt_witnesses_only(num_clients: int) -> None:
    """After 2^40 tries at most 2^-41; with one confirmation less it is more: against scipy."""
    corrupt, tries = num_clients // 10, 2.0**40
    witnesses = min_witnesses(num_clients, corrupt, corrupt, 2.0**-41, 2.0**-21)
    quorum = quorum_size(num_clients, witnesses, corrupt, 2.0**-41)
    distribution = stats.hypergeom(num_clients, corrupt, witnesses)
    assert tries * distribution.sf(2 * quorum - witnesses - 1) <= 2.0**-41
    assert tries * distribution.sf(2 * (quorum - 1) - witnesses - 1) > 2.0**-41
    assert distribution.sf(witnesses - quorum) <= 2.0**-21


@pytest.mark.parametrize(
    "change",
    ["forged", "another list", "another round", "another client's", "no witness", "advertised"],
)
def test_confirmations_that_do_not_count(change: str) -> None:
    """A quorum in which one signature is not that witness's word on this list in this round."""
    round_ = at("unmask", NUM_CLIENTS)
    server, policies = round_.server, round_.policies
    victim = next(i for i in round_.inputs if i not in server._witnesses)
    request = UnmaskRequest.from_bytes(server.unmask_requests()[victim])
    signers = request.signers.select_from(server._witnesses)
    given = dict(zip(signers, request.signatures, strict=True))
    one, other, *_ = signers
    agreement = round_.clients[victim]._agreement
    if change == "forged":
        given[one] = bytes(64)
    elif change == "another list":
        given[one] = confirmation(round_, one, bytes(32))
    elif change == "another round":
        earlier = replace(server._round_id, number=server._round_id.number - 1)
        body = Confirmation(earlier, one, b"", agreement).body()
        given[one] = keys.sign(policies[one].identity, server._graph_digest, body)
    elif change == "another client's":
        given[one] = given[other]
    elif change == "no witness":
        # Witnesses are named by their places among witnesses: another's signature can only stand for one.
        given[one] = confirmation(round_, victim, agreement)
    else:
        # Signed for the invitation, as keys are, and not for the graph.
        body = Confirmation(server._round_id, one, b"", agreement).body()
        given[one] = keys.sign(policies[one].identity, server._digest, body)
    with pytest.raises(SecureAggregationError, match="did not sign the list"):
        round_.clients[victim].unmask(
            make_unmask_request(round_, request.active.select_from(sorted(round_.inputs)), given)
        )


@pytest.mark.parametrize("count", [2, 3])
def test_as_many_witnesses_may_be_lost_as_clients(count: int) -> None:
    round_ = open_round(NUM_CLIENTS, signed=True, until="mask")
    lost = Lost(confirm=sorted(round_.server._witnesses)[:count])
    if count == 3:
        with pytest.raises(
            SecureAggregationError, match="4 of 7 witnesses confirmed the survivors, below the 5"
        ):
            round_.run(lost, since="mask")
        return
    assert (round_.run(lost, since="mask").total == round_.expected(round_.inputs)).all()


@pytest.mark.parametrize(("num_clients", "corrupt"), [(40, 4), (151, 16), (200, 60), (500, 50)])
def test_any_number_of_witnesses_that_a_server_chooses_is_safe(num_clients: int, corrupt: int) -> None:
    """In whole numbers: two quorums share only corrupt witnesses with odds of at most 2^-81 a graph."""
    possible = 0
    for count in (*range(40), *range(40, num_clients, 23), num_clients):
        quorum = quorum_size(num_clients, count, corrupt, 2.0**-41)
        if quorum > count:
            continue
        possible += 1
        ways = sum(
            math.comb(corrupt, x) * math.comb(num_clients - corrupt, count - x)
            for x in range(2 * quorum - count, min(corrupt, count) + 1)
        )
        assert Fraction(ways, math.comb(num_clients, count)) <= Fraction(1, 1 << 81)
    assert possible > 5
