"""Hostile clients: wrong shares, and masked inputs that are no codes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import SecureAggregationError
from fl_privquant.flower import PrivQuantStrategy
from fl_privquant.flower._messages.protocol import Reply
from fl_privquant.packing.pack import pack_codes, unpack_codes
from fl_privquant.secagg.crypto import shamir
from fl_privquant.secagg.messages import MaskedInput, UnmaskReply
from tests.flower.apps import fedavg, mod_for, moving_client, simulate
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
        seeds, keys = (tuple(map(changed, each)) for each in (reply.seed_shares, reply.wrapping_shares))
        return UnmaskReply(reply.round_id, client, b"", seeds, keys).to_bytes()

    return wire


def run_against_liars(round_: Round, num_liars: int, seed: int, share_of_owners: float = 1.0) -> list[int]:
    generator = np.random.default_rng(seed)
    liars = sorted(generator.choice(sorted(round_.inputs), num_liars, replace=False).tolist())
    round_.wire = lying(liars, generator, share_of_owners)
    return liars


def test_wrong_unmask_shares_are_corrected_and_their_senders_named() -> None:
    """150 holders of which 3 send wrong shares: guessing which ones failed."""
    round_ = open_round(150, 10, graph=(149, 84), restore=False)
    liars = run_against_liars(round_, 3, seed=4)
    round_.advertise()
    round_.share()
    result = round_.run(since="mask")
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert len(result.survivors) == 150
    assert sorted(round_.server.rejected) == liars
    assert all("broke the protocol" in reason for reason in round_.server.rejected.values())


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


CLIENTS = 40


class AddsToItsMaskedInput:
    """The outermost mod: one client adds the same integer to every masked code, modulo 2^width."""

    def __init__(self, hostile: int, shift: int, rounds: Collection[int], width: int) -> None:
        self.hostile, self.shift, self.rounds, self.width = hostile, shift, rounds, width

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        out = call_next(message, context)
        if "secagg" in message.content or int(context.node_config["partition-id"]) != self.hostile:
            return out
        reply = Reply.from_content(out.content)
        if reply.round in self.rounds:
            masked = MaskedInput.from_bytes(reply.payload)
            codes = unpack_codes(masked.payload, self.width, 1030).astype(np.int64) + self.shift
            payload = pack_codes(codes % (1 << self.width), self.width)
            changed = MaskedInput(masked.round_id, masked.client_id, b"", payload)
            out.content = replace(reply, payload=changed.to_bytes()).to_content()
        return out


def train(
    mod: Any, rounds: int, mechanism: Any, max_failed_rounds: int = 1, **clipping: Any
) -> tuple[np.ndarray, Any]:
    """The model after some rounds of clients whose updates are all zero, and the strategy."""
    encoding = pq.Encoding(mechanism, clip=0.1, **clipping)
    strategy = PrivQuantStrategy(
        fedavg(), encoding, aggregation=SecureSum(), max_failed_rounds=max_failed_rounds
    )
    client = moving_client(np.float32(0.0), [mod, mod_for(SecureSum())])
    done = simulate(strategy, client, CLIENTS, rounds, {"weight": np.zeros(1030, np.float32)})
    return done.vector, strategy


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("mechanism", "settings", "clips"),
    [
        (pq.design("one_bit", epsilon=0.25), {}, 2.5),
        (pq.design("stochastic", levels=16), {"l2_clip": 0.8, "rotate": True}, 0.5),
    ],
    ids=["coordinate clip", "L2 clip"],
)
def test_one_client_cannot_move_the_mean_of_all_beyond_what_all_could(
    mechanism: Any, settings: dict[str, Any], clips: float, caplog: pytest.LogCaptureFixture
) -> None:
    """One of 40 clients moved the mean far beyond what any honest clients could, and nobody noticed."""
    shift, width = math.ceil(clips * CLIENTS / mechanism.codebook.step), mechanism.sum_bits(CLIENTS)
    honest, _ = train(AddsToItsMaskedInput(7, 0, (), width), 1, mechanism, **settings)
    with caplog.at_level("ERROR"):
        hostile = AddsToItsMaskedInput(7, shift, (2,), width)
        model, strategy = train(hostile, 2, mechanism, **settings)
    np.testing.assert_array_equal(model, honest)
    assert strategy.survivors == {1: CLIENTS, 2: 0}
    assert re.search(r"round 2, the sum of 40 clients is not one of honest codes: its energy is", caplog.text)
    assert "once in 1e+09 rounds" in caplog.text
    # The refused sum was open all the same: its privacy is spent.
    _, plain = train(AddsToItsMaskedInput(7, 0, (), width), 2, mechanism, **settings)
    spent, without = (each.statements(refine=False)[-1].epsilon for each in (strategy, plain))
    assert spent >= without > 0.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_shift_of_every_round_is_refused_once_it_exceeds_what_rounds_of_noise_add_up_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each round's sum alone passes: it was applied in every round, and moved the model without end."""
    mechanism, width, rounds = pq.design("one_bit", epsilon=0.25), 6, 8
    shift, settings = (
        math.ceil(0.6 * CLIENTS / mechanism.codebook.step),
        {"l2_clip": 0.1, "max_failed_rounds": 99},
    )
    assert mechanism.sum_bits(CLIENTS) == width
    with caplog.at_level("ERROR"):
        _, honest = train(AddsToItsMaskedInput(7, 0, (), width), rounds, mechanism, **settings)
        assert set(honest.survivors.values()) == {CLIENTS}
        _, attacked = train(AddsToItsMaskedInput(7, shift, range(99), width), rounds, mechanism, **settings)
    assert attacked.survivors[1] == CLIENTS
    assert 0 in attacked.survivors.values()
    assert "its energy is" not in caplog.text
    assert "with it the mean updates of all rounds add up to an L2 norm of" in caplog.text
