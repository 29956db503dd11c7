"""What is kept follows the norm of the mean, costs nothing, and never makes a run exceed its target."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release, SimulatedSum, UpdateNorms
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import AdaptiveKeep, PrivQuantStrategy
from fl_privquant.flower.policies.adaptive_keep import estimate_mean_energy
from fl_privquant.planning import Plan
from tests.flower.apps import Simulated, fedavg, mod_for, moving_client, simulate

CLIENTS, DIMENSION, ROUNDS = 40, 1200, 4


@pytest.fixture(scope="module")
def plan() -> Plan:
    # So lax that a single round tells the norm of the mean.
    target = pq.Target(epsilon=15.0, rounds=ROUNDS, num_clients=CLIENTS)
    everybody = SimulatedSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    return target.plan(DIMENSION, max_bits=1, keep=240, aggregation=everybody)


def run(policy: AdaptiveKeep, length: float) -> Simulated:
    """All clients send the same update of that L2 norm."""
    step = np.full(DIMENSION, length / math.sqrt(DIMENSION), dtype=np.float32)
    strategy = PrivQuantStrategy(fedavg(), policy, simulated=True)
    initial = {"model": np.zeros(DIMENSION, np.float32)}
    return simulate(strategy, moving_client(step, [mod_for()]), CLIENTS, ROUNDS, initial)


def test_short_means_are_sent_in_fewer_coordinates_within_the_target(plan: Plan) -> None:
    done = run(AdaptiveKeep(plan, smoothing=0.2), length=0.05)
    strategy, records = done.strategy, done.records
    kept = [record.codec.kept for record in records]
    assert len(kept) == ROUNDS
    assert kept[0] == 240
    assert kept[-1] < 240
    # Each round is another design, certified for what it sends; all together stay within the target.
    assert len({record.encoding.mechanism_bytes for record in records}) > 1
    assert strategy.statements()[-1].epsilon <= plan.target.epsilon
    assert strategy.budget == plan.budget
    assert records[-1].bytes_up < records[0].bytes_up


def test_means_at_the_clip_are_sent_as_planned(plan: Plan) -> None:
    records = run(AdaptiveKeep(plan, smoothing=0.5), length=1.0).records
    assert [record.codec.kept for record in records] == [240] * ROUNDS


@pytest.mark.parametrize("length", [0.0, 0.6, 1.0])
def test_the_norm_of_the_mean_is_estimated_without_bias(plan: Plan, length: float) -> None:
    """Of 80 rounds; odds of a miss by five standard errors are below 1e-5.

    The estimate is for clients at the L2 clip: half of them are there in one direction, half in another.
    """
    rng = np.random.default_rng(7)
    along, across = np.linalg.qr(rng.normal(size=(DIMENSION, 2)))[0].T
    sides = [length * along + math.sqrt(1.0 - length**2) * sign * across for sign in (1.0, -1.0)]
    estimates = []
    for number in range(80):
        codec = UpdateCodec(Layout.of({"update": sides[0]}), plan.encoding, rotation_seed=number)
        total = np.zeros(codec.dimension, np.int64)
        for client in range(CLIENTS):
            stream = pq.RandomStream.seeded(1, round=number, client=client)
            codec.add_codes(codec.encode({"update": sides[client % 2]}, stream), total)
        estimates.append(estimate_mean_energy(codec, total, CLIENTS))
    error = float(np.std(estimates, ddof=1)) / math.sqrt(len(estimates))
    assert error < 0.05
    assert float(np.mean(estimates)) == pytest.approx(length**2, abs=5.0 * error)


def test_a_checkpoint_keeps_what_was_learned(plan: Plan) -> None:
    policy, resumed = AdaptiveKeep(plan, smoothing=0.0), AdaptiveKeep(plan)
    policy.observe_energy(0.01)
    assert policy(2).count_kept(DIMENSION) == 30
    resumed.restore_state(policy.checkpoint_state())
    assert resumed(2) == policy(2)
    with pytest.raises(InvalidSpecError, match="not finite"):
        resumed.restore_state({**policy.checkpoint_state(), "learned": {"energy": math.nan}})


def test_a_policy_brings_what_its_plan_does(plan: Plan) -> None:
    policy = AdaptiveKeep(plan)
    strategy = PrivQuantStrategy(FedAvg(), policy, simulated=True)
    assert (strategy.plan, strategy.aggregation) == (plan, plan.aggregation)
    assert strategy.policy is policy
    with pytest.raises(InvalidSpecError, match="a plan sets it"):
        PrivQuantStrategy(FedAvg(), policy, aggregation=pq.SumOfCodes())


def test_certificates_that_do_not_add_up_are_not_mixed(plan: Plan) -> None:
    """With few clients and a lax target 120 coordinates are counted in another way than 240."""
    lax = pq.Target(epsilon=30.0, rounds=5, num_clients=20)
    bits = {"mechanism": "pbm", "max_bits": 1, "aggregation": plan.aggregation}
    planned = lax.plan(DIMENSION, keep=240, **bits)
    policy = AdaptiveKeep(planned, halvings=1, smoothing=0.0)
    policy.observe_energy(0.01)
    assert lax.plan(DIMENSION, keep=120, **bits).statement.epsilon <= 30.0
    assert policy(2) == planned.encoding


@pytest.mark.parametrize("times", range(1, ROUNDS))
def test_no_mixture_of_rounds_exceeds_the_target(plan: Plan, times: int) -> None:
    """30 coordinates are counted by Rényi divergences: one round of them and three of the plan were 15.05."""
    policy = AdaptiveKeep(plan, smoothing=0.0)
    policy.observe_energy(0.001)
    view, mixture = plan.aggregation.view(CLIENTS), Accountant()
    for encoding, count in ((plan.encoding, ROUNDS - times), (policy(2), times)):
        ratio = (encoding.l2_bound(DIMENSION) or math.inf) / encoding.clip
        mixture.add(
            Release(encoding.mechanism, encoding.count_kept(DIMENSION), view, UpdateNorms(l2=ratio)), count
        )
    assert policy(2) != plan.encoding
    assert mixture.statement(plan.target.delta).epsilon <= plan.target.epsilon


def test_a_client_that_takes_part_in_few_rounds_counts_few(plan: Plan) -> None:
    """All rounds were counted, so that nothing was within the target, and every round was the plan's."""
    target = replace(plan.target, rounds=10 * ROUNDS, participations=ROUNDS)
    few = target.plan(DIMENSION, max_bits=1, keep=240, aggregation=plan.aggregation)
    policy = AdaptiveKeep(few, smoothing=0.0)
    policy.observe_energy(0.001)
    assert policy(2).count_kept(DIMENSION) == 30


def test_a_plan_that_sends_everything_is_refused(plan: Plan) -> None:
    every = plan.target.plan(DIMENSION, max_bits=1, aggregation=plan.aggregation)
    with pytest.raises(InvalidSpecError, match="sends all coordinates"):
        AdaptiveKeep(every)
