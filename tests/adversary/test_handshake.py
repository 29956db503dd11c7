"""Attacks on what the compact handshake rests on: keys of one round, shares that are derived, wrapped roots.

A server uses in the next round what a dropout revealed, opens a round twice, or has a state put back; clients
wrap wrong roots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientRound, ServerRound
from fl_privquant.secagg._answer_log import AnsweredStages
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.messages import Roster, SharedSeeds
from tests.secagg.driver import CONTEXT, Lost, Round, open_round

NUM_CLIENTS = 8
LOST = 10


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not remember what they have answered."""
    monkeypatch.setattr(AnsweredStages, "claim", lambda *_: True)


def second_round(round_: Round) -> Round:
    """The next round of the same session with the same clients, who kept their states."""
    config = replace(round_.server._config, number=round_.server._config.number + 1)
    later = Round(ServerRound(config, round_.inputs), round_.inputs, round_.policies, restore=False)
    for i in round_.inputs:
        state = ClientRound.from_bytes(round_.clients[i].to_bytes(), round_.policies[i])
        client = ClientRound.join(later.server.invitation(), i, round_.policies[i], previous=state)
        later.clients[i] = client
        assert later.server.receive(i, client.advertise_keys())
    return later


def secrets_of_masks(round_: Round) -> dict[tuple[int, int], bytes]:
    """The roots of all masks that clients have in common, as each of the two has them."""
    return {
        (i, peer): bytes(root) for i, client in round_.clients.items() for peer, root in client._roots.items()
    }


def with_a_dropout(signed: bool) -> tuple[Round, dict[tuple[int, int], bytes], dict[int, bytes]]:
    """A round that opened though one client was lost; its roots, and those that the server opened."""
    round_ = open_round(NUM_CLIENTS, signed=signed, dropout_fraction=0.25, restore=False, until="mask")
    roots, revealed = secrets_of_masks(round_), dict[int, bytes]()
    dealt_roots = round_.server._dealt.roots

    def recorded(*arguments: Any) -> dict[int, bytes]:
        revealed.update(dealt_roots(*arguments))
        return revealed

    round_.server._dealt.roots = recorded  # type: ignore[method-assign]
    assert LOST not in round_.run(Lost(mask=[LOST]), since="mask").survivors
    return round_, roots, revealed


@pytest.mark.parametrize("signed", [False, True])
def test_what_a_dropout_reveals_serves_in_no_other_round(signed: bool) -> None:
    """The server learns the lost client's roots of the round, as it must; in the next one all are others."""
    round_, roots, revealed = with_a_dropout(signed)
    assert revealed == {peer: roots[LOST, peer] for peer in round_.inputs if peer != LOST}
    later = second_round(round_)
    later.share()
    again = secrets_of_masks(later)
    assert again.keys() == roots.keys()
    assert not set(again.values()) & (set(roots.values()) | set(revealed.values()))
    # Both of a pair have the same root, and no other pair has it.
    assert all(again[i, j] == again[j, i] for i, j in again)
    assert len(set(again.values())) == NUM_CLIENTS * (NUM_CLIENTS - 1) // 2
    for stage in (later.mask, later.confirm, later.unmask):
        stage()
    np.testing.assert_array_equal(later.server.finish().total, later.expected(later.inputs))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.usefixtures("forgetful")
def test_a_round_that_is_opened_twice_has_other_masks(signed: bool) -> None:
    """The same invitation again, to clients that were put back and remember nothing: no mask repeats."""
    found = []
    round_ = open_round(5, signed=signed, restore=False)
    for _ in range(2):
        again = Round(
            ServerRound(round_.server._config, round_.inputs), round_.inputs, round_.policies, restore=False
        )
        again.advertise()
        again.share()
        roots = secrets_of_masks(again)
        requests = again.server.mask_requests(CONTEXT)
        masked = {}
        for i, request in requests.items():
            again.clients[i].settle(request, CONTEXT)
            masked[i] = again.clients[i].mask(again.inputs[i])
        found.append((set(roots.values()), masked))
    assert not found[0][0] & found[1][0]
    assert all(found[0][1][i] != found[1][1][i] for i in round_.inputs)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.usefixtures("forgetful")
def test_a_state_that_is_put_back_and_shares_again_says_the_same(signed: bool) -> None:
    """Corrections of two seeds under the same derived shares would tell the difference of the seeds."""
    round_ = open_round(NUM_CLIENTS, signed=signed, restore=False, until="share")
    roster, stored = round_.server.rosters()[LOST], round_.clients[LOST].to_bytes()
    first, again = (
        ClientRound.from_bytes(stored, round_.policies[LOST]).share_keys(roster) for _ in range(2)
    )
    assert first == again
    # For another graph the seeds, and all shares that are derived, are others.
    told = replace(Roster.from_bytes(roster), num_witnesses=3)
    other = ClientRound.from_bytes(stored, round_.policies[LOST]).share_keys(told.to_bytes())
    one, two = SharedSeeds.from_bytes(first), SharedSeeds.from_bytes(other)
    told_by_each = [
        {message.seed_commitment, message.wrapping_commitment, *message.corrections} for message in (one, two)
    ]
    assert not told_by_each[0] & told_by_each[1]


def test_what_is_wrapped_shows_no_root_and_opens_with_the_wrapping_seed_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[bytes] = []
    wrap = keys.wrap

    def recorded(seed: bytearray, *arguments: Any) -> tuple[bytes, ...]:
        seeds.append(bytes(seed))
        return wrap(seed, *arguments)

    monkeypatch.setattr(keys, "wrap", recorded)
    round_ = open_round(NUM_CLIENTS, restore=False, until="mask")
    dealt, graph = round_.server._dealt, round_.server._graph_digest
    roots = {peer: bytes(root) for peer, root in round_.clients[LOST]._roots.items()}
    wrapped = dealt.messages[LOST].sealed_roots
    assert not any(root in b"".join(wrapped) for root in roots.values())
    # It is the second client by id; what others wrapped with, or what it masks with, opens nothing of it.
    assert dealt.roots(LOST, graph, bytearray(seeds[1])) == roots
    for other in (seeds[0], seeds[2], bytes(round_.clients[LOST]._seed)):
        found = dealt.roots(LOST, graph, bytearray(other))
        assert not set(found.values()) & set(roots.values())


def test_a_lost_client_that_wrapped_wrong_roots_spoils_the_sum_and_nothing_else() -> None:
    """As by a wrong input: the sum is not what codes can add up to, and is refused."""
    round_ = open_round(NUM_CLIENTS, dimension=200, max_code=1, width=20, dropout_fraction=0.25)

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "SharedSeeds" or client != LOST:
            return data
        message = SharedSeeds.from_bytes(data)
        return replace(message, sealed_roots=tuple(map(bytes, map(len, message.sealed_roots)))).to_bytes()

    round_.wire = wire
    round_.advertise()
    round_.share()
    round_.mask([LOST])
    round_.confirm()
    round_.unmask()
    with pytest.raises(SecureAggregationError, match="exceeds what the clients' codes can add up to"):
        round_.server.finish()
