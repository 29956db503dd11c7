"""Attacks on what the compact handshake rests on: keys of one round, shares that are derived, wrapped roots.

A server replays keys and messages of an earlier round, uses what a dropout revealed in the next one, opens a
round twice, reads corrections, or shows two lists of clients; clients wrap wrong roots.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import ClientRound, ServerRound
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg._answer_log import AnsweredStages
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.crypto.sharing import Seed, holders_to_correct
from fl_privquant.secagg.messages import Roster, SharedSeeds
from tests.secagg.driver import CONTEXT, Lost, Round, open_round, shown

NUM_CLIENTS = 8
LOST = 10


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


def test_a_key_whose_owner_was_lost_is_not_taken_in_a_later_round() -> None:
    """The server shows the lost client's former key: nobody masks with a root that it knows."""
    round_, _, revealed = with_a_dropout(signed=True)
    former = round_.server._entries[LOST].public_key
    later = second_round(round_)
    victim = max(later.inputs)
    roster = Roster.from_bytes(later.server.rosters()[victim])
    stale = shown(roster, list(later.inputs), later.public_keys() | {LOST: former}, victim)
    # The root depends on the victim's own key of this round, and on all keys that it was shown.
    later.clients[victim].share_keys(stale.to_bytes())
    assert bytes(later.clients[victim]._roots[LOST]) not in revealed.values()
    # The former key's owner uses only the key that it drew for this round, whatever a roster shows.
    assert later.clients[LOST]._advertised != former


@pytest.mark.parametrize("signed", [False, True])
def test_a_round_that_is_opened_twice_has_other_masks(signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same invitation again, to clients that were put back and remember nothing: no mask repeats."""

    class Forgetful(AnsweredStages):
        def claim(self, *args: Any, **keywords: Any) -> bool:
            return True

    monkeypatch.setattr(client_module, "answered_stages", Forgetful())
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


# Shares that are derived and corrected


def test_a_threshold_of_holders_opens_a_seed_and_one_less_does_not() -> None:
    """Whichever of them derive right shares, and whichever derive shares that are corrected."""
    round_ = open_round(NUM_CLIENTS, restore=False, until="mask")
    threshold, dealer = round_.server.graph_parameters.threshold, 24
    assert threshold == 5
    seed = bytes(round_.clients[dealer]._seed)
    points = round_.server._dealt.points[dealer]
    revealed = {
        i: bytes(client._held_shares[dealer][: shamir.SHARE_BYTES]) for i, client in round_.clients.items()
    }
    shares = round_.server._dealt.shares(dealer, revealed, Seed.SELF_MASK)
    rows = {point: np.frombuffer(share, np.uint8) for point, share in shares.items()}
    assert {points[i] for i in holders_to_correct(dealer, list(points), threshold)} == {5, 6, 7, 8}

    def opened(taken: tuple[int, ...]) -> bytes | None:
        try:
            return bytes(shamir.combine(taken, np.stack([rows[x] for x in taken])))
        except InvalidUpdateError:
            return None

    assert {opened(taken) for taken in itertools.combinations(rows, threshold)} == {seed}
    assert seed not in {opened(taken) for taken in itertools.combinations(rows, threshold - 1)}


def test_corrections_fit_every_seed_to_whoever_knows_fewer_shares_than_the_threshold() -> None:
    """With the shares of four holders (of a threshold of five), all corrections and any seed there are shares
    that the others could have derived: what is sent says nothing about the seed.
    """
    round_ = open_round(NUM_CLIENTS, restore=False, until="mask")
    dealt, dealer = round_.server._dealt, 24
    points, size = dealt.points[dealer], shamir.SHARE_BYTES
    revealed = {
        i: bytes(client._held_shares[dealer][:size]) for i, client in round_.clients.items() if i != dealer
    }
    # One corrupt holder whose share is corrected, and three whose share is right as it is.
    corrupt = [3, 10, 17, 52]
    known = dealt.shares(dealer, {i: revealed[i] for i in corrupt}, Seed.SELF_MASK)
    corrections = dict(
        zip(dealt._holders_to_correct(dealer), dealt.messages[dealer].corrections, strict=True)
    )
    for other_seed in (bytes(16), bytes(range(16))):
        at_zero = np.array([shamir._to_limbs(other_seed)], dtype=np.uint64)
        values = {point: np.frombuffer(share, "<u4").astype(np.uint64) for point, share in known.items()}
        for holder in revealed.keys() - set(corrupt):
            share = _interpolated({0: at_zero[0], **values}, points[holder])
            derived = (
                shamir.subtract_shares(share, corrections[holder][:size]) if holder in corrections else share
            )
            assert shamir.are_shares(derived)
            if holder in corrections:
                assert shamir.add_corrections(derived, corrections[holder][:size]) == share


def _interpolated(values: dict[int, Any], at: int) -> bytes:
    """The value of the polynomials through these points, in integers of any size."""
    total = [0] * 5
    for x, row in values.items():
        weight = 1
        for y in values:
            if y != x:
                weight = weight * (at - y) * pow(x - y, -1, shamir.PRIME) % shamir.PRIME
        total = [(t + weight * int(v)) % shamir.PRIME for t, v in zip(total, row, strict=True)]
    return np.array(total, dtype="<u4").tobytes()


@pytest.mark.parametrize("lists", [1, 2])
def test_two_lists_of_clients(lists: int) -> None:
    """Twelve clients are shown one list, eight another; all mask, and the server is given every self mask.

    With two lists, which differ in the key of one corrupt client, the masks between the groups do not cancel,
    and the sum stays closed; with one list it opens.
    """
    round_ = open_round(20, dimension=50, max_code=1, width=20, signed=True, restore=False, until="share")
    clients, server = list(round_.inputs), round_.server
    second = clients[12:] if lists == 2 else []
    rosters = {i: Roster.from_bytes(data) for i, data in server.rosters().items()}
    own_keys = round_.public_keys()
    other_keys = own_keys | {clients[0]: keys.public_key(keys.draw_secret())}
    for i in clients:
        told = other_keys if i in second else own_keys
        round_.clients[i].share_keys(shown(rosters[i], clients, told, i).to_bytes())
    roots = secrets_of_masks(round_)
    left = round_.bare_sum(width=20, dimension=50)
    assert (np.count_nonzero(left) > 45) == (lists == 2)
    assert left.any() == (lists == 2)
    between = [(i, j) for i in clients[:12] for j in second]
    assert all(roots[i, j] != roots[j, i] for i, j in between)


@pytest.mark.parametrize("signed", [False, True])
def test_a_state_that_is_put_back_and_shares_again_says_the_same(
    signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Corrections of two seeds under the same derived shares would tell the difference of the seeds."""

    class Forgetful(AnsweredStages):
        def claim(self, *args: Any, **keywords: Any) -> bool:
            return True

    monkeypatch.setattr(client_module, "answered_stages", Forgetful())
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


# Roots that are wrapped


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


def test_a_state_that_is_put_back_and_shown_another_key_tells_one_unknown_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The digest of the graph does not hold keys as they are shown, so that the two answers can differ.

    The seeds are the same. The corrections differ by a multiple of a polynomial that is 0 at 0, namely by
    the difference of two shares that only an honest holder, and nobody at all, can derive.
    """
    round_, victim = open_round(47, signed=True, restore=False), 3
    round_.advertise()
    roster = Roster.from_bytes(round_.server.rosters()[victim])
    state, answers = round_.clients[victim].to_bytes(), []
    invented = (keys.public_key(keys.draw_secret()), *roster.public_keys[1:])
    for public_keys in (roster.public_keys, invented):
        monkeypatch.setattr(client_module, "answered_stages", AnsweredStages())
        client = ClientRound.from_bytes(state, round_.policies[victim])
        shown = replace(roster, public_keys=public_keys).to_bytes()
        answers.append(SharedSeeds.from_bytes(client.share_keys(shown)))
    first, second = answers
    assert (first.seed_commitment, first.wrapping_commitment) == (
        second.seed_commitment,
        second.wrapping_commitment,
    )
    assert first.corrections != second.corrections
    assert first.sealed_roots[0] != second.sealed_roots[0]
    assert first.sealed_roots[1:] == second.sealed_roots[1:]
    holders = sorted([*round_.server._graph[victim], victim])
    threshold, changed = roster.threshold, holders.index(round_.server._graph[victim][0]) + 1
    points = [i + 1 for i in range(threshold - 1, len(holders)) if holders[i] != victim]
    found = set()
    for x, one, other in zip(points, first.corrections, second.corrections, strict=True):
        weight = 1
        for node in set(range(threshold)) - {changed}:
            weight = weight * (x - node) * pow(changed - node, -1, shamir.PRIME) % shamir.PRIME
        words = np.frombuffer(shamir.subtract_shares(one, other), dtype="<u4").tolist()
        found.add(tuple(word * pow(weight, -1, shamir.PRIME) % shamir.PRIME for word in words))
    assert len(found) == 1 < len(points)
