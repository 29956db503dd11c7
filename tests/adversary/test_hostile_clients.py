"""Hostile clients: wrong shares, and masked inputs that are no codes."""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import shamir
from fl_privquant.secagg.messages import SealedShares, UnmaskReply
from tests.secagg.driver import Lost, Round, Wire, open_round


def lying(liars: Collection[int], generator: np.random.Generator, share_of_owners: float = 1.0) -> Wire:
    """A wire on which these clients send wrong shares of most owners' secrets."""

    def changed(share: bytes) -> bytes:
        if generator.random() > share_of_owners:
            return share
        words = np.frombuffer(share, "<u4").copy()
        words[generator.integers(words.size)] ^= 1
        return words.tobytes() if shamir.are_shares(words.tobytes()) else share

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "UnmaskReply" or client not in liars:
            return data
        reply = UnmaskReply.from_bytes(data)
        seeds, keys = (tuple(map(changed, each)) for each in (reply.seed_shares, reply.key_shares))
        return UnmaskReply(reply.round_id, client, b"", seeds, keys).to_bytes()

    return wire


def run_against_liars(round_: Round, num_liars: int, seed: int, share_of_owners: float = 1.0) -> list[int]:
    generator = np.random.default_rng(seed)
    liars = sorted(generator.choice(sorted(round_.inputs), num_liars, replace=False).tolist())
    round_.wire = lying(liars, generator, share_of_owners)
    return liars


def test_wrong_unmask_shares_are_corrected_and_their_senders_named() -> None:
    """150 holders of which 3 send wrong shares: took 11 s of guessing, and failed."""
    round_ = open_round(150, 10, graph=(149, 84), restore=False)
    liars = run_against_liars(round_, 3, seed=4)
    round_.advertise()
    round_.share()
    round_.mask()
    round_.unmask()
    started = time.process_time()
    result = round_.server.finish()
    seconds = time.process_time() - started
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert len(result.survivors) == 150
    assert sorted(round_.server.rejected) == liars
    assert all("broke the protocol" in reason for reason in round_.server.rejected.values())
    # For each of 150 secrets: open, correct, check the commitment, and expand a mask.
    assert seconds < 150 * 0.05


@given(st.data())
@settings(max_examples=25)
def test_any_correctable_liars_with_clients_lost_as_well(data: st.DataObject) -> None:
    num_clients = data.draw(st.sampled_from([5, 8, 13, 25]))
    threshold = data.draw(st.integers(num_clients // 2 + 1, num_clients))
    lost = data.draw(st.integers(0, (num_clients - threshold) // 2))
    most = (num_clients - lost - threshold) // 2
    round_ = open_round(num_clients, 7, graph=(num_clients - 1, threshold), restore=False)
    liars = run_against_liars(
        round_, data.draw(st.integers(0, most)), data.draw(st.integers(0, 99)), share_of_owners=0.8
    )
    honest = [i for i in sorted(round_.inputs) if i not in liars]
    result = round_.run(Lost(mask=honest[:lost]))
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert set(round_.server.rejected) <= set(liars)


def test_more_liars_than_can_be_corrected_end_the_round_with_the_bound() -> None:
    round_ = open_round(13, 7, graph=(12, 8), restore=False)
    run_against_liars(round_, 4, seed=0)
    with pytest.raises(SecureAggregationError, match="more than 3 of 13 are wrong, at threshold 8"):
        round_.run()


def test_a_client_that_deals_wrong_shares_cannot_frame_its_holders_alone() -> None:
    """The owner deals a wrong share to an honest holder: the record names both, and the sum is right."""
    round_ = open_round(9, 7, graph=(8, 5), restore=False)
    round_.advertise()
    dealer, victim = 3, 24
    honest_split = shamir.split

    def crooked(secret: bytes, threshold: int, num_shares: int) -> np.ndarray:
        shares = honest_split(secret, threshold, num_shares)
        shares[sorted(round_.inputs).index(victim), ::4] ^= 1
        return shares

    rosters = round_.server.rosters()
    for i, roster in rosters.items():
        with pytest.MonkeyPatch.context() as patch:
            if i == dealer:
                patch.setattr(shamir, "split", crooked)
            sealed = round_.client(i).share_keys(roster)
        assert SealedShares.from_bytes(sealed).client_id == i
        round_.server.receive_shares(i, sealed)
    round_.mask()
    round_.unmask()
    result = round_.server.finish()
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    reason = round_.server.rejected[victim]
    assert f"it or client {dealer} broke" in reason
