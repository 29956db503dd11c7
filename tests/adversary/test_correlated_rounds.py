"""Attacks on noise that is correlated over rounds, and on the rounds that hand it over.

The separation that is stated for a participation is compared with one that is computed client by client: who
hands noise to whom, who is lost, and who is corrupt. It knows nothing of chains, links or their fractions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from fl_privquant.accounting import Accountant, SecureSum, SimulatedSum
from fl_privquant.accounting.release import Release
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError, SecureAggregationError
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._messages.protocol import KEY_SEED, RelayedSeed
from fl_privquant.flower.client.seed_relay import answer_key_request, answer_seed_request, prepare_codec
from fl_privquant.planning import CohortSampling, Target
from fl_privquant.privacy_loss.additive.correlated_shares import CorrelatedShares
from fl_privquant.privacy_loss.correlated_noise import RoundSchedule
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

HONEST, CORRUPT, LOST = 3, 1, 1
DEVIATION, PRIVATE = 2.0, 1.25


def make_shares(
    rounds: int, apart: int, correlation: float, exposed: int = CORRUPT + LOST
) -> CorrelatedShares:
    schedule = RoundSchedule(rounds, apart)
    return CorrelatedShares(schedule, correlation, HONEST, exposed, DEVIATION, PRIVATE)


def noise_covariance(
    rounds: int, correlation: float, draw: np.random.Generator, times: int = 1
) -> NDArray[np.float64]:
    """The covariance of the sums' noise that the adversary does not know, for random losses and pairs.

    Each round has honest clients, up to ``LOST`` more of which that many are lost, and corrupt ones. What a
    surviving sender handed over is taken off ``times`` times; 1 is what an honest server brings about. A
    sender whose receiver is lost tells the server its seed, unless it is gone.
    """
    covariance = np.zeros((rounds, rounds))
    num = HONEST + LOST + CORRUPT
    lost = [set(draw.choice(num - CORRUPT, draw.integers(0, LOST + 1), replace=False)) for _ in range(rounds)]
    corrupt = set(range(num - CORRUPT, num))
    for number in range(rounds):
        receivers = draw.permutation(num)
        for client in set(range(num)) - corrupt - lost[number]:
            covariance[number, number] += PRIVATE**2
            column = np.zeros(rounds)
            column[number] = 1.0
            if number + 1 < rounds:
                if receivers[client] in corrupt:
                    continue
                if receivers[client] not in lost[number + 1]:
                    column[number + 1] = -times * correlation
                elif draw.integers(2):
                    continue
            covariance += DEVIATION**2 * np.outer(column, column)
    return covariance


def find_largest_distance(covariance: NDArray[np.float64], apart: int) -> float:
    """The largest squared distance of a participation, over all rounds of a client and all directions."""
    rounds = len(covariance)
    inverse, largest = np.linalg.inv(covariance), 0.0
    for many in range(1, rounds + 1):
        for chosen in itertools.combinations(range(rounds), many):
            if all(later - earlier >= apart for earlier, later in itertools.pairwise(chosen)):
                # No directions of changes of length 1 make more of it than this.
                distance = float(np.abs(inverse[np.ix_(chosen, chosen)]).sum())
                largest = max(largest, distance / many)
    return largest


@pytest.mark.parametrize("correlation", [1 / 64, 0.5, 63 / 64])
@pytest.mark.parametrize(("rounds", "apart"), [(1, 1), (1, 3), (2, 1), (4, 2), (6, 1), (7, 3), (8, 4)])
def test_no_losses_pairs_and_participations_cost_more_than_is_stated(
    rounds: int, apart: int, correlation: float
) -> None:
    draw = np.random.default_rng([rounds, apart])
    stated = make_shares(rounds, apart, correlation).sensitivity ** 2
    for _ in range(30):
        covariance = noise_covariance(rounds, correlation, draw)
        assert find_largest_distance(covariance, apart) <= stated


@pytest.mark.parametrize(("exposed", "times"), [(CORRUPT, 1), (LOST, 1), (CORRUPT + LOST, 2)])
def test_the_comparison_finds_what_is_not_covered(exposed: int, times: int) -> None:
    """The control: seeds that are not counted as known, and a server that has noise taken off twice."""
    draw = np.random.default_rng(7)
    stated = make_shares(6, 2, 0.8, exposed).sensitivity ** 2
    found = [find_largest_distance(noise_covariance(6, 0.8, draw, times), 2) for _ in range(100)]
    assert max(found) > stated


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
    # The control: it would cost more than is stated.
    shares = make_shares(6, APART, 0.5)
    covariance = shares.num_hidden * DEVIATION**2 * shares.noise.covariance(6)
    assert find_largest_distance(covariance, APART) <= shares.sensitivity**2
    assert find_largest_distance(covariance, apart) > shares.sensitivity**2


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
