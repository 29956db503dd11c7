"""Attacks on the rounds that hand noise over: corrupt clients, wrong seeds, states that are put back.

What rounds cost is compared in tests/privacy_loss/test_correlated_noise.py with all patterns and cuts, and in
test_covariance_of_runs.py with what real clients drew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fl_privquant.accounting import Accountant, SecureSum, SimulatedSum
from fl_privquant.accounting.release import Release
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError, SecureAggregationError
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._messages.protocol import KEY_SEED, RelayedSeed
from fl_privquant.flower.client.seed_relay import answer_key_request, answer_seed_request, prepare_codec
from fl_privquant.planning import CohortSampling, Target
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.secagg.crypto.sealed_seeds import make_key, seal_seed
from fl_privquant.statement import Relation, View
from tests.flower.apps import client_app, fedavg, simulate
from tests.flower.test_seed_relay import (
    APART,
    COHORT,
    NOBODY_LOST,
    POPULATION,
    ROUNDS,
    SOME_LOST,
    Spy,
    make_plan,
    run,
)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.5, 1.0, True, 0.3, "0.5", [0.5]])
def test_correlations_that_are_none_are_refused(wrong: Any) -> None:
    target = Target(8.0, rounds=ROUNDS, num_clients=COHORT, rounds_apart=APART)
    with pytest.raises(InvalidSpecError, match="correlation"):
        target.plan(64, correlation=wrong, aggregation=SimulatedSum(**NOBODY_LOST), force=True)


def run_with(spy: Spy, encoding: Any, aggregation: Any, sampling: CohortSampling) -> None:
    strategy = PrivQuantStrategy(
        fedavg(), encoding, aggregation=aggregation, sampling=sampling, simulated=True
    )
    client = client_app([spy, PrivQuantMod(math.inf, max_delta=1e-5)])
    simulate(strategy, client, POPULATION, ROUNDS, {"x": np.zeros(64, np.float32)})


class GrowingCohorts(CohortSampling):
    """A sampling that draws twice as many clients from the second round on."""

    def draw_clients(self, server_round: int, eligible: Sequence[int], population: int) -> list[int]:
        return sorted(eligible)[: COHORT if server_round == 1 else 2 * COHORT]


def test_no_seed_is_sealed_to_a_cohort_with_more_corrupt_clients_than_planned() -> None:
    aggregation, spy = SimulatedSum(corrupt_fraction=0.1, dropout_fraction=0.0), Spy()
    plan = make_plan(aggregation)
    with pytest.raises(InvalidSpecError, match="corrupt"):
        run_with(spy, plan.encoding, aggregation, GrowingCohorts(APART, seed=5, clients=COHORT))
    assert not spy.keys
    assert not spy.sent


@pytest.mark.parametrize("apart", [1, APART - 1])
def test_a_server_asks_nobody_in_rounds_that_are_closer_than_noise_is_planned_for(apart: int) -> None:
    """Clients that have lost their state would answer, and what is stated would be too little."""
    aggregation, spy = SimulatedSum(**NOBODY_LOST), Spy()
    encoding = make_plan(aggregation).encoding
    with pytest.raises(InvalidSpecError, match=rf"CohortSampling\({APART}\)"):
        run_with(spy, encoding, aggregation, CohortSampling(apart, seed=5, clients=COHORT))
    assert not spy.sent


@pytest.mark.parametrize("relation", Relation)
def test_sampling_does_not_amplify_rounds_that_noise_ties_together(relation: Relation) -> None:
    """That rounds are amplified one by one is proved for noise that is fresh in each round."""
    encoding = make_plan(SimulatedSum(**NOBODY_LOST)).encoding
    norms = UpdateNorms(l2=(encoding.l2_clip or 1.0) / encoding.clip)

    def spend(view: View, of: Relation) -> float:
        release = Release(encoding.mechanism, 64, view, norms, of)
        return Accountant({release: 2}).statement(1e-5).epsilon

    # A client that was not drawn is replaced by another one.
    certain = spend(View(COHORT), Relation.REPLACE_ONE)
    assert spend(View(COHORT, sampled=0.1), relation) >= 0.999 * certain


class HostileSender(Spy):
    """Half of all clients hand over something that is no seed."""

    def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
        reply = super().__call__(message, context, call_next)
        if not reply.has_error() and context.node_config["partition-id"] % 2:
            info = reply.content.get("privquant-reply", {})
            if KEY_SEED in info:
                info[KEY_SEED] = b"no seed"
        return reply


@pytest.mark.parametrize("aggregation", [SecureSum(**SOME_LOST), SimulatedSum(**NOBODY_LOST)])
def test_a_wrong_seed_does_not_keep_its_receiver_out_of_the_sum(aggregation: Any) -> None:
    spy = HostileSender()
    _, records, _ = run(aggregation, spy=spy)
    assert b"no seed" in spy.got.values()
    assert [record.survivors for record in records] == [COHORT] * ROUNDS


def seed_of_round(number: int) -> bytes:
    return number.to_bytes(8, "little")


def test_a_client_tells_its_seed_once_and_of_its_last_round_alone() -> None:
    layout = Layout.of({"x": np.zeros(64, np.float32)})
    _, receiver = make_key()

    def train(aggregation: Any, context: Context) -> bytes:
        codec = UpdateCodec(layout, make_plan(aggregation).encoding, 0)
        bound, _ = prepare_codec(codec, RelayedSeed(None, receiver), True, 2, context, None)
        return bound.mechanism.__dict__["_seeds"].own

    context = Context(1, 2, {}, RecordDict(), {})
    own = train(SecureSum(**SOME_LOST), context)
    assert answer_seed_request(seed_of_round(2), context) == own
    for number in (2, 2, 1):
        with pytest.raises(SecureAggregationError, match="none is kept"):
            answer_seed_request(seed_of_round(number), context)
    # When another round is asked for, it forgets the seed and tells nothing.
    train(SecureSum(**SOME_LOST), context)
    for number in (3, 2):
        with pytest.raises(SecureAggregationError, match="none is kept"):
            answer_seed_request(seed_of_round(number), context)
    assert not context.state
    # Where nobody is planned to be lost, no seed is kept.
    train(SecureSum(**NOBODY_LOST), context)
    assert not context.state
    for wrong in (b"", b"short", bytes(9)):
        with pytest.raises(SecureAggregationError, match="expected 8"):
            answer_seed_request(wrong, context)


def test_restored_state_uses_no_own_seed_twice_and_a_replayed_seed_is_not_opened() -> None:
    layout = Layout.of({"x": np.zeros(64, np.float32)})
    codec = UpdateCodec(layout, make_plan(SecureSum(**NOBODY_LOST)).encoding, 0)
    context = Context(1, 2, {}, RecordDict(), {})
    public = answer_key_request((2).to_bytes(8, "little"), context)
    (name,) = context.state
    saved = ConfigRecord(dict(context.state[name]))
    sealed = RelayedSeed(seal_seed(bytes(32), public))

    def draw_seeds() -> Any:
        bound, _ = prepare_codec(codec, sealed, True, 2, context, None)
        return bound.mechanism.__dict__["_seeds"]

    first, replayed = draw_seeds(), draw_seeds()
    assert (first.previous, replayed.previous) == (bytes(32), None)
    context.state[name] = saved
    restored = draw_seeds()
    assert len({first.own, replayed.own, restored.own}) == 3
