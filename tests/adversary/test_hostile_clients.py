"""Hostile clients: wrong shares, masked inputs that are no codes, and who is blamed for them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import SecureAggregationError
from fl_privquant.flower import PrivQuantStrategy
from fl_privquant.flower._messages.protocol import Reply
from fl_privquant.packing.pack import pack_codes, unpack_codes
from fl_privquant.secagg import choose_parameters
from fl_privquant.secagg.crypto import shamir
from fl_privquant.secagg.crypto.sharing import max_wrong_shares
from fl_privquant.secagg.graph.parameters import decoding_failure
from fl_privquant.secagg.messages import MaskedInput, SharedSeeds, UnmaskReply
from fl_privquant.secagg.signed.evidence import Evidence
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


@given(st.data())
@settings(max_examples=15)
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


def deals_wrongly(round_: Round, culprit: int, wrong: Collection[int]) -> None:
    """The client gives these holders corrections by which their shares open nothing, and signs them."""

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "SharedSeeds" or client != culprit:
            return data
        message, corrected = SharedSeeds.from_bytes(data), round_.server._dealt._holders_to_correct(culprit)
        corrections = [
            shamir.subtract_shares(correction, bytes([1, 0, 0, 0] * 10)) if holder in wrong else correction
            for holder, correction in zip(corrected, message.corrections, strict=True)
        ]
        commitments = message.seed_commitment, message.wrapping_commitment
        return round_.clients[culprit]._sign_message(
            SharedSeeds, *commitments, message.sealed_roots, tuple(corrections)
        )

    round_.wire = wire


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_garbage_for_some_neighbors(signed: bool, count: int) -> None:
    """Up to half of the shares beyond the threshold are corrected; with more, the dealer is named."""
    round_ = open_round(20, signed=signed)
    clients = list(round_.inputs)
    # At a threshold of twelve the first eleven of twenty derive shares that are right as they are.
    deals_wrongly(round_, clients[4], clients[11 : 11 + count])
    if count > 4:
        with pytest.raises(SecureAggregationError, match="more than 4 of 20 are wrong"):
            round_.run()
        assert set(round_.server.culprits) == {clients[4]}
        return
    result = round_.run()
    assert not round_.server.culprits
    assert set(round_.server.rejected) == set(clients[11 : 11 + count])
    np.testing.assert_array_equal(result.total, round_.expected(round_.inputs))


# Whom the server leaves out: dealers of wrong shares, and no honest clients that liars stand around.
MANY, LIARS, LOST = 500, 75, 50


def test_honest_clients_among_liars_are_named_with_their_odds_and_not_left_out() -> None:
    """500 clients, 75 that reveal wrong shares and 50 lost: an honest one was named, and not asked again."""
    round_ = open_round(MANY, 3, restore=False)
    liars = run_against_liars(round_, LIARS, seed=2)
    lost = [i for i in round_.inputs if i not in liars][::9][:LOST]
    with pytest.raises(SecureAggregationError, match="do not open its secret"):
        round_.run(Lost(unmask=lost))
    named = round_.server.culprits
    # All whose secrets did not open are named, not just the first, and many are honest.
    assert len(named.keys() - set(liars)) > 3
    assert all(1e-4 < odds < 1.0 for odds in named.values())
    assert not Evidence().judge(named, list(round_.inputs))


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
    rounds = next(number for number in range(1, 100) if evidence.judge({1: odds}, range(MANY)) == {1})
    assert 2 < rounds < 12
    honest = Evidence()
    for fails in random.random(50_000) < odds:
        assert not honest.judge({1: odds} if fails else {}, range(MANY))
    # Negative control: evidence that forgot the rounds without a failure would convict it.
    convicted = Evidence()
    assert any(convicted.judge({1: odds}, range(MANY)) for _ in range(int(50_000 * odds)))


def test_a_culprit_that_behaved_well_before_is_left_out_as_soon() -> None:
    evidence = Evidence()
    for _ in range(1000):
        assert not evidence.judge({}, range(MANY))
    rounds = next(number for number in range(1, 100) if evidence.judge({1: 0.03}, range(MANY)))
    assert rounds < 12


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


DEALER = 7


def deals_garbage(message: Message, context: Context, call_next: Any) -> Message:
    """A mod outside all others: the shares that the client deals fit to no secret."""
    record = message.content.get("secagg")
    reply = call_next(message, context)
    stage = record["secagg-stage"] if isinstance(record, ConfigRecord) else "train"
    if stage == "share" and int(context.node_config["partition-id"]) == DEALER:
        sent = SharedSeeds.from_bytes(reply.content["secagg"]["secagg-data"])
        garbage = replace(sent, corrections=tuple(bytes(len(block)) for block in sent.corrections))
        reply.content["secagg"]["secagg-data"] = garbage.to_bytes()
    return reply


def test_a_client_that_deals_garbage_is_left_out_of_later_rounds() -> None:
    """Its secret does not open: one round ends without a sum, and the client is not asked again."""
    asked: list[int] = []

    def counts(message: Message, context: Context, call_next: Any) -> Message:
        record = message.content.get("secagg")
        if isinstance(record, ConfigRecord) and record["secagg-stage"] == "advertise":
            asked.append(int(context.node_config["partition-id"]))
        return call_next(message, context)

    client = moving_client(np.float32(0.05), [counts, deals_garbage, mod_for(SecureSum())])
    # At the default settings no round may fail, but one that names a culprit does not count.
    strategy = PrivQuantStrategy(
        fedavg(), pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1), aggregation=SecureSum()
    )
    simulate(strategy, client, CLIENTS, 2, {"weight": np.zeros(37, np.float32)})
    assert strategy.survivors == {1: 0, 2: CLIENTS - 1}
    assert asked.count(DEALER) == 1
    assert len(asked) == 2 * CLIENTS - 1
