"""Whom the server leaves out: clients that deal wrong shares, and no honest ones that liars stand around."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import choose_parameters
from fl_privquant.secagg.crypto.sharing import max_wrong_shares
from fl_privquant.secagg.graph.parameters import decoding_failure
from fl_privquant.secagg.messages import UnmaskReply
from fl_privquant.secagg.signed.evidence import Evidence
from tests.secagg.driver import Lost, open_round

CLIENTS, LIARS, LOST = 500, 75, 50


def test_honest_clients_among_liars_are_named_with_their_odds_and_not_left_out() -> None:
    """500 clients, 75 that reveal wrong shares and 50 lost: an honest one was named, and not asked again."""
    clients = [7 * place + 3 for place in range(CLIENTS)]
    order = np.random.default_rng(2).permutation(clients).tolist()
    liars, lost = set(order[:LIARS]), order[LIARS : LIARS + LOST]

    def lie(kind: str, client: int, data: bytes) -> bytes:
        if kind != "UnmaskReply" or client not in liars:
            return data
        reply = UnmaskReply.from_bytes(data)
        wrong = tuple(bytes([share[0] ^ 1]) + share[1:] for share in reply.seed_shares)
        return UnmaskReply(reply.round_id, client, b"", wrong, reply.wrapping_shares).to_bytes()

    round_ = open_round(CLIENTS, 3, wire=lie, restore=False)
    with pytest.raises(SecureAggregationError, match="do not open its secret"):
        round_.run(Lost(unmask=lost))
    named = round_.server.culprits
    # All whose secrets did not open are named, not just the first, and many are honest.
    assert len(named.keys() - liars) > 3
    assert all(1e-4 < odds < 1.0 for odds in named.values())
    assert not Evidence().judge(named, clients)


def test_one_failure_is_enough_where_liars_cannot_bring_it_about() -> None:
    for num_clients in range(13, 40):
        graph = choose_parameters(num_clients)
        # As many are lost as may be, all of them holders of the client's secret.
        revealed = graph.num_neighbors + 1 - math.ceil(num_clients / 10)
        odds = decoding_failure(graph, 0.1, max_wrong_shares(revealed, graph.threshold))
        assert odds == 0.0
        assert Evidence().judge({3: odds}, range(num_clients)) == {3}


def test_a_culprit_is_left_out_in_the_end_and_an_honest_client_is_not() -> None:
    """With odds of 3 % the one fails in every round, the other as often as liars can make it."""
    random, evidence, odds = np.random.default_rng(0), Evidence(), 0.03
    rounds = next(number for number in range(1, 100) if evidence.judge({1: odds}, range(CLIENTS)) == {1})
    assert 2 < rounds < 12
    honest = Evidence()
    for fails in random.random(50_000) < odds:
        assert not honest.judge({1: odds} if fails else {}, range(CLIENTS))
    # Negative control: evidence that forgot the rounds without a failure would convict it.
    convicted = Evidence()
    assert any(convicted.judge({1: odds}, range(CLIENTS)) for _ in range(int(50_000 * odds)))


def test_a_culprit_that_behaved_well_before_is_left_out_as_soon() -> None:
    evidence = Evidence()
    for _ in range(1000):
        assert not evidence.judge({}, range(CLIENTS))
    rounds = next(number for number in range(1, 100) if evidence.judge({1: 0.03}, range(CLIENTS)))
    assert rounds < 12
