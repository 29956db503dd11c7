"""Clips and levels that change from round to round; where they settle, cost, and resume."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedMedian

import fl_privquant as pq
from fl_privquant.accounting import PerClient, SecureSum, SumOfCodes
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import (
    CheckpointStrategy,
    PrivQuantStrategy,
    QuantileClip,
    ScheduledMechanism,
)
from fl_privquant.flower._messages.protocol import Request
from tests.flower.apps import (
    Killed,
    Simulated,
    assert_same_arrays,
    client_app,
    fedavg,
    mod_for,
    moving_client,
    simulate,
    strategy_for,
    trained,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLIENTS, DIMENSION = 60, 200
OPTM = pq.design("optm", epsilon=2.0, bits=2)
ENCODING = Encoding(OPTM, 0.1)


def updates_of_all_clients() -> np.ndarray:
    """A vector for each client; their scales differ by a factor of some ten."""
    generator = np.random.default_rng(1)
    scales = np.exp(generator.normal(math.log(0.03), 0.6, (CLIENTS, 1)))
    return (scales * generator.normal(size=(CLIENTS, DIMENSION))).astype(np.float32)


def settled_clip(policy: QuantileClip, vectors: np.ndarray, rounds: int = 90) -> float:
    """The geometric mean of the clip over the last third of the rounds, by sums of codes only."""
    arrays = [{"update": each} for each in vectors]
    layout = Layout.of(arrays[0])
    clips = []
    stream = pq.RandomStream.seeded(3)
    for number in range(1, rounds + 1):
        clips.append(policy(number).clip)
        codec = UpdateCodec(layout, policy(number), rotation_seed=4, clip_quantile=policy.clip_quantile)
        total = np.zeros(codec.dimension, dtype=np.int64)
        for each in arrays:
            codec.add_codes(codec.encode(each, stream), total)
        policy.observe_votes(codec.clip_vote_fraction(total, len(arrays)))
    return float(np.exp(np.mean(np.log(clips[-rounds // 3 :]))))


@pytest.mark.parametrize(
    ("initial", "coordinates", "clients"),
    [(1e-3, 0.99, 0.5), (1.0, 0.99, 0.5), (1.0, 0.5, 0.5), (0.01, 0.9, 0.7)],
)
def test_the_clip_settles_at_the_quantile(initial: float, coordinates: float, clients: float) -> None:
    vectors = updates_of_all_clients()
    wanted = np.quantile(np.quantile(np.abs(vectors), coordinates, axis=1), clients)
    policy = QuantileClip(
        Encoding(OPTM, initial), coordinate_quantile=coordinates, client_quantile=clients, rate=0.3
    )
    found = settled_clip(policy, vectors)
    # A vote of 60 clients has a standard error of 0.1 at most, 0.15 in the logarithm of the clip; over
    # 30 rounds with feedback that is some 0.04 for the mean. The quantiles differ by 0.5 and more.
    assert math.log(found / wanted) == pytest.approx(0.0, abs=0.2)


def test_a_clip_that_ignores_the_votes_does_not_settle_there() -> None:
    """Negative control: the same rounds, with votes that carry nothing."""

    class Deaf(QuantileClip):
        def observe_votes(self, share: float) -> None:
            super().observe_votes(np.random.default_rng(0).random())

    vectors = updates_of_all_clients()
    wanted = np.median(np.quantile(np.abs(vectors), 0.99, axis=1))
    assert abs(math.log(settled_clip(Deaf(Encoding(OPTM, 10.0)), vectors, rounds=30) / wanted)) > 1.0


@pytest.mark.parametrize("keep", [None, 0.5])
@pytest.mark.parametrize("initial", [1e-3, 1e3])
def test_an_l2_clip_settles_at_the_median_norm(initial: float, keep: float | None) -> None:
    """Both clips change by powers of two, so that their ratio, and with it the release, stays the same."""
    vectors = updates_of_all_clients()
    wanted = np.median(np.linalg.norm(vectors, axis=1))
    encoding = Encoding(OPTM, 0.2 * initial, l2_clip=initial, rotate=True, keep=keep)
    policy = QuantileClip(encoding, rate=0.6)
    clip = settled_clip(policy, vectors, rounds=120)
    assert abs(math.log2(5.0 * clip / wanted)) < 0.75
    layout = Layout.of({"update": vectors[0]})
    releases = set()
    for factor in (1.0, 0.37, 3.0, 1e-4, 1e5):
        policy.clip = encoding.clip * factor
        changed = policy(1)
        assert changed.clip / changed.l2_clip == 0.2
        assert math.log2(changed.clip / encoding.clip).is_integer()
        releases.add(Request(1, changed, clip_quantile=0.5).release(layout).text)
    assert len(releases) == 1


@pytest.mark.parametrize("keep", [None, 60])
def test_an_adaptive_clip_follows_norms_within_the_target_of_a_plan(keep: int | None) -> None:
    """The clip starts 1000 times too small; all planned rounds are run, at the planned cost."""
    rounds, clients = 12, 12
    everybody = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    plan = pq.Target(epsilon=80.0, rounds=rounds, num_clients=clients).plan(
        DIMENSION, l2_clip=1e-3, keep=keep, aggregation=everybody
    )
    step = np.full(DIMENSION, 1.0 / math.sqrt(DIMENSION), np.float32)
    client, initial = moving_client(step, [mod_for(everybody)]), {"update": np.zeros(DIMENSION, np.float32)}
    strategy = PrivQuantStrategy(fedavg(), QuantileClip(plan, rate=2.0))
    records = simulate(strategy, client, clients, rounds, initial).records
    clips = [float(record.encoding.l2_clip or 0.0) for record in records]
    assert len(clips) == rounds
    assert clips[0] == 1e-3
    assert 0.1 < np.median(clips[-4:]) < 10.0
    assert strategy.ledger.statement(1e-5, in_sum=True).epsilon <= 80.0
    (line,) = [line for line in strategy.privacy_statement() if "vote" in line]
    assert "whether the norm of its update lies within the clip" in line
    if keep is not None:
        # Most of this plan's error comes from what is not sent, so that it does not need all of its target.
        return
    # Negative control: with the vote, the plan without room for it ends early.
    tight = PrivQuantStrategy(fedavg(), _Voting(plan))
    simulate(tight, client, clients, rounds, initial)
    assert len(tight.survivors) < rounds


class _Voting(QuantileClip):
    """A plan with a vote that it has no room for."""

    def __init__(self, plan: pq.Plan) -> None:
        super().__init__(plan.encoding)
        self._plan = plan


@pytest.mark.parametrize(
    "name", ["optm", "one_bit", "pbm", "discrete_laplace", "skellam", "laplace", "snapping"]
)
def test_a_vote_is_unbiased_and_one_more_release(name: str) -> None:
    mechanism = pq.design(name, epsilon=1.0)
    update = {"update": np.linspace(-0.9, 0.9, 19)}
    layout = Layout.of(update)
    draws = 1_000
    for clip, wanted in ((1.0, 1.0), (0.5, 0.0)):
        codec = UpdateCodec(layout, Encoding(mechanism, clip), clip_quantile=0.9)
        assert codec.dimension == 20
        stream = pq.RandomStream.seeded(8)
        payloads = [codec.encode(update, stream) for _ in range(draws)]
        votes = np.array([codec.clip_vote(each) for each in payloads])
        stated = wanted + 0.5 * float(mechanism.bias(np.array([2 * wanted - 1.0]))[0])
        # 6 standard errors: odds below 1e-7 for all 14 figures together.
        assert votes.mean() == pytest.approx(stated, abs=6 * votes.std() / math.sqrt(draws))
        assert codec.decode(payloads[0])["update"].shape == (19,)
        if mechanism.summable:
            share = codec.clip_vote_fraction(codec.codes(payloads[0]), 1)
            assert share == pytest.approx(votes[0], abs=1e-6)


def test_what_cannot_vote() -> None:
    layout = Layout.of({"update": np.zeros(5)})
    with pytest.raises(InvalidSpecError, match="one epsilon on a whole update"):
        UpdateCodec(layout, Encoding(pq.design("cldp_linf", epsilon=1.0), 0.1), clip_quantile=0.9)
    with pytest.raises(InvalidSpecError, match=r"clip_quantile: 0.0 is outside"):
        UpdateCodec(layout, Encoding(OPTM, 0.1), clip_quantile=0.0)
    # Nothing is clipped, so there is nothing to vote on.
    assert UpdateCodec(layout, Encoding(pq.design("none"), 0.1), clip_quantile=0.9).dimension == 5
    silent = UpdateCodec(layout, Encoding(OPTM, 0.1))
    with pytest.raises(InvalidSpecError, match="did not vote"):
        silent.clip_vote(silent.encode({"update": np.zeros(5)}))


def test_the_bound_of_the_norm_counts_the_vote() -> None:
    layout = Layout.of({"update": np.zeros(5)})
    clipped = Encoding(OPTM, 0.4, l2_clip=0.3)
    assert UpdateCodec(layout, clipped).l2_bound == 0.3
    assert UpdateCodec(layout, clipped, clip_quantile=0.9).l2_bound == pytest.approx(0.5)
    assert UpdateCodec(layout, Encoding(OPTM, 0.4), clip_quantile=0.9).l2_bound is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, "rate"),
        ({"client_quantile": 1.0}, "client_quantile"),
        ({"coordinate_quantile": math.nan}, "coordinate_quantile"),
    ],
)
def test_bad_quantile_clips_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        QuantileClip(Encoding(OPTM, 1.0), **options)


def test_the_clip_stays_inside_its_bounds() -> None:
    policy = QuantileClip(Encoding(OPTM, 1.0))
    for votes, bound in ((1e9, 1e-6), (-1e9, 1e6)):
        policy.observe_votes(votes)
        assert policy(1).clip == pytest.approx(bound)
    with pytest.raises(InvalidSpecError, match=r"clip: 10000000.0 is outside"):
        QuantileClip(Encoding(OPTM, 1e7))


def test_a_schedule_begins_with_the_encodings_own_mechanism() -> None:
    fine = pq.design("optm", epsilon=2.0, bits=3)
    schedule = ScheduledMechanism(QuantileClip(ENCODING), {3: fine, 5: OPTM})
    assert [schedule(number).mechanism for number in (1, 2, 3, 4, 5, 9)] == [
        OPTM,
        OPTM,
        fine,
        fine,
        OPTM,
        OPTM,
    ]
    with pytest.raises(InvalidSpecError, match="round 0 is below 1"):
        ScheduledMechanism(ENCODING, {0: OPTM})


def test_a_function_that_gives_no_encoding_is_refused() -> None:
    wrong = PrivQuantStrategy(fedavg(), lambda number: OPTM)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidSpecError, match="the function gave TableMechanism for round 1"):
        wrong.request(1)


def run(
    secure: bool = False,
    path: Path | None = None,
    stops_in: int | None = None,
    rounds: int = 6,
    sum_codes: bool = True,
    inner: Any = None,
) -> Simulated:
    """A run with both policies."""
    clip = QuantileClip(Encoding(OPTM, 1.0), rate=0.5)
    bits = ScheduledMechanism(clip, {2: pq.design("optm", epsilon=2.0, bits=3)})
    open_sum = SumOfCodes() if sum_codes else PerClient()
    aggregation = SecureSum() if secure else open_sum
    private = PrivQuantStrategy(inner or fedavg(), bits, aggregation=aggregation)
    strategy = private if path is None else CheckpointStrategy(private, path)

    def train(arrays: Any, partition: int, server_round: int) -> Any:
        if server_round == stops_in and partition >= 2:
            raise Killed
        return trained(arrays, partition, server_round)

    client = client_app([mod_for(aggregation)], train)
    return simulate(strategy, client, 6, rounds, seed=3)


def test_both_policies_with_secure_aggregation_and_without_to_the_last_bit() -> None:
    plain, secure = run(), run(secure=True)
    assert_same_arrays(secure.model, plain.model)
    assert secure.private.policy(7).clip == plain.private.policy(7).clip < 1.0


def test_votes_are_counted_by_both_sides_and_stated() -> None:
    done = run(rounds=2)
    # 25 coordinates and the vote, in each of two rounds with their own mechanism.
    assert [release.dimension for _, release in done.ledger.releases] == [26, 26]
    assert done.ledger.statement(0.0).epsilon == pytest.approx(2 * 26 * 2.0, rel=1e-6)
    assert any("vote on the clip" in line for line in done.private.privacy_statement())
    assert len(done.ledgers) == 6
    for ledger in done.ledgers.values():
        assert [release.dimension for _, release in ledger.releases] == [26, 26]
    without = strategy_for(OPTM, clip=0.1).privacy_statement()
    assert not any("vote" in line for line in without)


def test_strategies_that_see_single_updates_have_votes_too() -> None:
    assert run(sum_codes=False, inner=fedavg(FedMedian), rounds=3).private.policy(4).clip < 1.0


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_that_stopped_goes_on_with_the_same_clip_and_levels(secure: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    whole = run(secure)
    with pytest.raises(Killed):
        run(secure, path, stops_in=4)
    resumed = run(secure, path)
    assert_same_arrays(resumed.model, whole.model)
    state = whole.private.policy.checkpoint_state()
    assert (state["policy"], state["base"]["policy"]) == ("ScheduledMechanism", "QuantileClip")
    assert state["base"]["learned"]["clip"] != 1.0
    assert resumed.private.policy.checkpoint_state() == state


def test_a_checkpoint_without_the_policy_is_refused() -> None:
    state = strategy_for(OPTM, clip=0.1).checkpoint_state()
    with pytest.raises(InvalidSpecError, match="is of a Policy, not of this QuantileClip"):
        PrivQuantStrategy(fedavg(), QuantileClip(ENCODING)).restore_state(state)
    forged = state | {"policy": state["policy"] | {"policy": "x\n\x1b[31m" * 99}}
    with pytest.raises(InvalidSpecError) as raised:
        strategy_for(OPTM, clip=0.1).restore_state(forged)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 200
    nested = PrivQuantStrategy(fedavg(), QuantileClip(QuantileClip(ENCODING)))
    with pytest.raises(InvalidSpecError, match="not of this QuantileClip"):
        nested.restore_state(PrivQuantStrategy(fedavg(), QuantileClip(ENCODING)).checkpoint_state())


def test_the_vote_is_in_the_norm_that_is_counted_by() -> None:
    """The vote of +-clip is one more coordinate of the L2-clipped update: without it ε would be too small."""
    layout = Layout.of({"weight": np.zeros(25, np.float32)})
    plain = Request(1, Encoding(OPTM, clip=0.1, l2_clip=0.3))
    voting = dataclasses.replace(plain, clip_quantile=0.9)
    assert plain.release(layout).norms.l2 == pytest.approx(3.0)
    assert voting.release(layout).norms.l2 == pytest.approx(math.hypot(3.0, 1.0))
