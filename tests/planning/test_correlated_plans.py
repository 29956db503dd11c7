"""Plans with noise that is correlated over rounds: what they state, and when they are refused."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from fl_privquant.accounting import PerClient, Release, SecureSum
from fl_privquant.accounting.accountant import Accountant
from fl_privquant.errors import BudgetExhaustedError, CertificationError, InvalidSpecError, PrivQuantError
from fl_privquant.mechanisms.additive.correlated_gaussian import CorrelatedGaussianMechanism
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.planning import Target
from fl_privquant.privacy_loss.correlated_noise import LagNoise, RoundSchedule, Workload, error_ratio
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import Unit, View

HONEST = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
TARGET = Target(1.0, rounds=100, num_clients=100, rounds_apart=10)


@pytest.mark.parametrize(("bits", "most"), [(10, 0.24), (11, 0.215)])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_secure_sums_come_close_to_a_trusted_server_with_one_lag(
    epsilon: float, bits: int, most: float
) -> None:
    target = dataclasses.replace(TARGET, epsilon=epsilon)
    plan = target.plan(7850, correlation="auto", aggregation=HONEST, wrap_bits=bits)
    trusted = error_ratio(RoundSchedule(100, 10), LagNoise(0.796875))
    assert plan.prefix_error is not None
    assert trusted < plan.prefix_error <= most
    assert plan.sent_mechanism.sum_bits(100) == bits
    assert plan.statement.epsilon <= epsilon


def test_corrupt_and_lost_clients_are_stated() -> None:
    plan = TARGET.plan(7850, correlation="auto")
    mechanism = plan.encoding.mechanism
    assert isinstance(mechanism, CorrelatedGaussianMechanism)
    assert (mechanism.num_honest, mechanism.num_corrupt, mechanism.num_opened) == (80, 10, 10)
    assert mechanism.shares.num_hidden == 60
    assert plan.prefix_error is not None
    assert plan.if_all_honest.prefix_error is not None
    assert plan.if_all_honest.prefix_error < 0.215 < plan.prefix_error < 0.4
    assert "if 10 of 100 clients are corrupt and 10 are lost" in str(plan)


def test_a_printed_plan_states_correlation_and_error_of_models() -> None:
    plan = TARGET.plan(7850, correlation=0.75, aggregation=HONEST)
    text = str(plan)
    assert plan.correlation == 0.75
    assert "takes off 0.75 of the noise of the last one" in text
    (stated,) = re.findall(r"error of models \(sums of updates\) is ([\d.]+) times", text)
    assert float(stated) == pytest.approx(plan.prefix_error, abs=6e-4)
    (norm,) = re.findall(r"an update of ([\d.]+) times the norm", text)
    assert float(norm) == pytest.approx(plan.sensitivity, rel=5e-3)
    # From the covariance of all rounds: of the first ten, five or any other number of participations.
    mechanism = plan.encoding.mechanism
    assert isinstance(mechanism, CorrelatedGaussianMechanism)
    private = (mechanism.deviation / mechanism.handed_deviation) ** 2
    lag = np.eye(100) - 0.75 * np.eye(100, k=-1)
    inverse = np.linalg.inv(lag @ lag.T + private * np.eye(100))
    costs = [inverse[:last:10, :last:10].sum() / number for number, last in enumerate(range(1, 101, 10), 1)]
    assert plan.sensitivity == pytest.approx(math.sqrt(max(costs)), rel=1e-3)
    assert TARGET.plan(7850, aggregation=HONEST).sensitivity == 1.0


def test_auto_takes_fresh_noise_where_clients_may_take_part_in_every_round() -> None:
    plan = Target(1.0, rounds=20, num_clients=100).plan(7850, correlation="auto", aggregation=HONEST)
    plain = Target(1.0, rounds=20, num_clients=100).plan(7850, aggregation=HONEST)
    assert plan.correlation == 0.0
    assert plan.encoding == plain.encoding
    assert "gains nothing" in str(plan)
    assert plain.prefix_error == plain.ratio_to_central


@pytest.mark.parametrize(("rounds", "apart"), [(1, 2), (2, 2), (3, 2)])
def test_auto_takes_fresh_noise_where_runs_are_too_short_to_gain(rounds: int, apart: int) -> None:
    target = Target(1.0, rounds=rounds, num_clients=100, rounds_apart=apart)
    plan = target.plan(7850, correlation="auto")
    fresh = target.plan(7850)
    assert plan.correlation == 0.0
    assert plan.encoding == fresh.encoding
    assert f"gains nothing in {rounds} round" in str(plan)
    # The control: the best correlation that is not 0 has more error.
    assert target.plan(7850, correlation=0.40625).prefix_error > fresh.prefix_error


@pytest.mark.parametrize("workload", [None, Workload(learning_rates=tuple(1e-3**t for t in range(10)))])
def test_auto_is_never_worse_than_fresh_noise_for_the_models_that_are_made(workload: Workload | None) -> None:
    """If nearly all of a model is its first update, nothing is there that could be taken off."""
    target = Target(1.0, rounds=10, num_clients=100, rounds_apart=5)
    auto = target.plan(7850, correlation="auto", workload=workload)
    assert (auto.correlation == 0.0) == (workload is not None)
    if workload is None:
        assert auto.prefix_error < target.plan(7850).prefix_error


def test_auto_finds_the_correlation_for_the_servers_momentum_and_learning_rates() -> None:
    plain = TARGET.plan(7850, correlation="auto", aggregation=HONEST)
    # A fast decay makes late models depend on single early updates, whose noise nothing takes off.
    decay = Workload(learning_rates=tuple(0.5**t for t in range(100)))
    decayed = TARGET.plan(7850, correlation="auto", aggregation=HONEST, workload=decay)
    momentum = TARGET.plan(7850, correlation="auto", aggregation=HONEST, workload=Workload(momentum=0.9))
    assert decayed.correlation < plain.correlation < momentum.correlation
    assert plain.prefix_error < min(decayed.prefix_error, momentum.prefix_error)
    assert decayed.statement.epsilon <= 1.0
    with pytest.raises(InvalidSpecError, match="learning_rates"):
        TARGET.plan(7850, correlation="auto", workload=Workload(learning_rates=(1.0, 0.5)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"correlation": 0.7}, "multiple of 1/64"),
        ({"correlation": 1.0}, "multiple of 1/64"),
        ({"correlation": "best"}, "correlation"),
        # Not a plan with fresh noise in its place.
        ({"correlation": "auto", "wrap_bits": 6}, "wrap_bits: 6 do not hold"),
        ({"correlation": 0.75, "keep": 0.5}, "coordinate by coordinate"),
        ({"workload": Workload(momentum=0.9)}, "workload: matters to correlated noise alone"),
        ({"correlation": 0.75, "mechanism": "optm_aggregate"}, "mechanism"),
        ({"correlation": 0.75, "aggregation": PerClient()}, "secure sums"),
        ({"correlation": 0.75, "aggregation": SecureSum(server_may_lie=True)}, "server that may lie"),
    ],
)
def test_plans_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises((PrivQuantError, ValueError), match=message):
        TARGET.plan(7850, **given)  # type: ignore[arg-type]


def release(plan_epsilon: float = 1.0) -> Release:
    """What one participation in the run releases, in the view of the sum."""
    plan = dataclasses.replace(TARGET, epsilon=plan_epsilon).plan(7850, correlation="auto")
    l2 = (plan.encoding.l2_clip or 1.0) / plan.encoding.clip
    return Release(plan.sent_mechanism, 7850, View(80), UpdateNorms(l2=l2))


def test_ten_participations_cost_the_target_and_an_eleventh_exceeds_it() -> None:
    planned = release()
    spent = Accountant({planned: 10}).statement(1e-5, Unit.TOTAL)
    assert 0.999 < spent.epsilon <= 1.0
    with pytest.raises(BudgetExhaustedError):
        Accountant({planned: 10}).check(101, planned, [TARGET.budget])


def test_more_honest_clients_than_planned_are_not_counted_and_fewer_are_not_certified() -> None:
    # The noise of a round protects other rounds, too: a large sum does not make up for a small one.
    planned = release()
    more = planned.with_view(View(100))
    fewer = planned.with_view(View(79))
    spent = [Accountant({kind: 10}).statement(1e-5, Unit.TOTAL).epsilon for kind in (planned, more, fewer)]
    assert spent[1] == spent[0]
    assert spent[2] > 50.0 * spent[0]


def test_effects_on_later_rounds_are_counted() -> None:
    # The control: were only the round itself counted, a participation would cost a third.
    mechanism = release().mechanism
    assert isinstance(mechanism, CorrelatedGaussianMechanism)
    shares = mechanism.shares
    alone = 1.0 / (shares.num_hidden**0.5 * shares.deviation)
    assert shares.sensitivity > 1.3 * alone


def test_the_local_view_counts_private_noise_alone() -> None:
    mechanism = release().mechanism
    assert isinstance(mechanism, CorrelatedGaussianMechanism)
    louder = dataclasses.replace(mechanism, handed_deviation=mechanism.handed_deviation * 0.5)
    assert louder.epsilon == mechanism.epsilon
    assert Mechanism.from_bytes(mechanism.to_bytes()).to_bytes() == mechanism.to_bytes()


def test_a_mechanism_that_claims_too_small_a_loss_is_refused() -> None:
    mechanism = release().mechanism
    assert isinstance(mechanism, CorrelatedGaussianMechanism)
    with pytest.raises(CertificationError):
        dataclasses.replace(mechanism, claimed_epsilon=0.5 * mechanism.epsilon)


def test_zero_out_targets_take_less_noise_and_state_their_relation() -> None:
    zero_out = dataclasses.replace(TARGET, relation="zero-out").plan(7850, correlation="auto")
    replace_one = TARGET.plan(7850, correlation="auto")
    assert zero_out.mean_squared_error < 0.5 * replace_one.mean_squared_error
    assert "zero-out" in zero_out.statement.brief
    assert zero_out.statement.epsilon <= 1.0
    # What is stated beside it is the loss for any other update in its place.
    assert zero_out.other_statement.epsilon > 2.0
