"""A target for a whole run: the rest follows, and rounds that lose too many clients do not break it."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fl_privquant.accounting import (
    Accountant,
    Budget,
    PerClient,
    Release,
    SecureSum,
    SimulatedSum,
    SumOfCodes,
    UpdateNorms,
)
from fl_privquant.errors import BudgetExhaustedError, InfeasibleDesignError, InvalidSpecError
from fl_privquant.flower import (
    ClientMetrics,
    NoUsableReplyError,
    PrivQuantMod,
    PrivQuantStrategy,
    StoppedResult,
)
from fl_privquant.planning import Plan, Target
from tests.flower.apps import client_app, fedavg, mod_for, moving_client, simulate

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLIENTS, DIMENSION = 20, 300


def plan(epsilon: float = 6.0, num_clients: int = CLIENTS, **settings: Any) -> Plan:
    return Target(epsilon, rounds=3, num_clients=num_clients).plan(DIMENSION, **settings)


def run(
    planned: Plan, rounds: int = 3, lost: int = 0, max_failed_rounds: int = 1, fraction_train: float = 1.0
) -> tuple[PrivQuantStrategy, np.ndarray]:
    """The strategy after a run in which, in the second round, some clients are lost before they train."""
    strategy = PrivQuantStrategy(
        fedavg(fraction_train=fraction_train),
        planned,
        max_failed_rounds=max_failed_rounds,
        simulated=bool(planned.aggregation.simulated),
    )
    client = moving_client(
        np.ones(DIMENSION, np.float32) / math.sqrt(DIMENSION),
        [mod_for(planned.aggregation)],
        lost_when=lambda partition, number: number == 2 and partition < lost,
    )
    initial = {"model": np.zeros(DIMENSION, np.float32)}
    return strategy, simulate(strategy, client, planned.target.num_clients, rounds, initial).vector


def spent(strategy: PrivQuantStrategy) -> float:
    in_sum = not strategy.aggregation.view(CLIENTS).is_local
    return strategy.ledger.statement(1e-5, in_sum=in_sum).epsilon


def test_a_whole_run_costs_no_more_than_its_target_and_learns() -> None:
    strategy, model = run(plan())
    # Nobody was lost, so that more were honest than the target counts on.
    assert 3.0 < spent(strategy) <= 6.0
    assert strategy.encoding.mechanism.name == "rounded_gaussian"
    # Three steps of norm 1, with the noise that the design says.
    deviation = strategy.encoding.clip * math.sqrt(3 * strategy.encoding.mechanism.mse() / CLIENTS)
    assert abs(model.mean() * math.sqrt(DIMENSION) - 3.0) < 5.0 * deviation
    assert np.std(model) == pytest.approx(deviation, rel=0.3)


@pytest.mark.parametrize(
    ("mechanism", "aggregation", "clients"),
    [
        ("rounded_gaussian", SecureSum(), 25),
        ("one_bit", SecureSum(), 21),
        ("pbm", SecureSum(corrupt_fraction=0.3, dropout_fraction=0.0), 17),
        ("optm", SecureSum(corrupt_fraction=0.0, dropout_fraction=0.26), 19),
        ("one_bit", SumOfCodes(), 7),
        ("discrete_laplace", PerClient(), 3),
    ],
)
def test_a_target_binds_whatever_the_mechanism_aggregation_and_number_of_clients(
    mechanism: str, aggregation: Any, clients: int
) -> None:
    # How many bits the plan may choose from is of no importance here, and each is a search for a design.
    fewer = {"max_bits": 1} if mechanism == "optm" else {}
    planned = plan(40.0, clients, mechanism=mechanism, aggregation=aggregation, force=True, **fewer)
    strategy, _ = run(planned)
    assert all(strategy.survivors[number] == clients for number in (1, 2, 3))
    assert 0.15 * 40.0 < spent(strategy) <= planned.statement.epsilon * (1.0 + 1e-9) <= 40.0


def test_one_round_more_than_planned_is_not_begun(flower_log: Any) -> None:
    everybody = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    strategy, _ = run(plan(aggregation=everybody), rounds=4)
    assert "budget exhausted after 3 of 4 rounds: round 4" in flower_log.text
    assert 5.5 < spent(strategy) <= 6.0


def test_a_round_without_a_sum_says_why_and_not_how_some_clients_failed() -> None:
    """8 of 25 clients are lost. The error once said that all 25 had failed, and named only theirs."""
    planned = plan(num_clients=25)
    with pytest.raises(NoUsableReplyError) as raised:
        run(planned, lost=8, max_failed_rounds=0)
    text = str(raised.value)
    assert "round 2 has no usable reply (8 failed, 0 silent)" in text
    assert "17 masked inputs arrived of 25 clients" in text
    assert "raise dropout_fraction" in text
    assert "\n" not in text


def test_fewer_clients_than_planned_are_warned_of_and_stay_within_the_target(flower_log: Any) -> None:
    """A plan for 20 clients in a round, and a strategy that draws half of them: the budget ends early."""
    strategy, _ = run(plan(), fraction_train=0.5)
    assert "round 1 asks 10 clients, the plan counts on 20" in flower_log.text
    assert "plan with num_clients=10" in flower_log.text
    assert "budget exhausted after 1 of 3 rounds" in flower_log.text
    assert spent(strategy) <= 6.0
    flower_log.lines.clear()
    run(plan())
    assert "the plan counts on" not in flower_log.text


def test_a_target_under_which_nothing_is_learned_is_warned_of(flower_log: Any) -> None:
    good = plan(epsilon=60.0)
    PrivQuantStrategy(FedAvg(), good)
    assert good.verdict in flower_log.text
    assert "nothing will be learned" not in flower_log.text
    hopeless = plan(epsilon=0.001, force=True)
    PrivQuantStrategy(FedAvg(), hopeless)
    assert hopeless.verdict in flower_log.text
    assert "fewer than 2: nothing will be learned. Take more clients or a larger epsilon." in flower_log.text


@pytest.mark.parametrize("options", [{}, {"max_error": 1.5}, {"max_kilobytes": 1.0}])
def test_a_plan_from_which_nothing_is_learned_is_refused_unless_forced(options: dict[str, Any]) -> None:
    words = r"epsilon: 0.01 for 3 rounds of 20 clients: In each.*nothing will be learned.*set force=True"
    with pytest.raises(InvalidSpecError, match=words):
        plan(epsilon=0.01, **options)
    assert plan(epsilon=0.01, force=True, **options).learns_nothing


def test_the_words_about_noise_have_no_cliff() -> None:
    """Targets that hardly differ have sentences that differ in their figures only, down to the refusal."""
    plans = [plan(epsilon=6.0 * 0.97**step, force=True) for step in range(0, 120, 8)]
    shapes = [re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", made.verdict) for made in plans]
    learning = [shape for shape, made in zip(shapes, plans, strict=True) if not made.learns_nothing]
    assert len(set(learning)) == 1
    assert 2 <= len(learning) < len(plans)
    assert all(made.learns_nothing == (made.signal_to_noise < 2.0) for made in plans)
    assert all(("nothing will be learned" in made.verdict) == made.learns_nothing for made in plans)


def test_the_signal_of_a_run_is_what_its_rounds_add_up_to() -> None:
    """By simulation: the sum of all rounds along the updates' direction, over the noise in it."""
    planned = plan(epsilon=60.0)
    _, model = run(planned)
    noise = math.sqrt(3 * planned.mean_squared_error)
    along = float(model.sum()) / math.sqrt(DIMENSION)
    assert along / noise == pytest.approx(planned.signal_to_noise, abs=6.0)
    assert planned.signal_to_noise == pytest.approx(3.0 / noise)


def test_errors_say_what_they_assume_and_give_both_figures() -> None:
    careful = plan()
    trusting = plan(aggregation=SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0))
    words = (
        f"The plan's squared error is {careful.ratio_to_central:.3f} times that of a trusted server that "
        "adds Gaussian noise, if 2 of 20 clients are corrupt and 2 are lost; planned for nobody corrupt or "
        f"lost, it would be {trusting.ratio_to_central:.3f} times."
    )
    assert words in str(careful)
    assert careful.ratio_to_central > 1.05 * trusting.ratio_to_central
    assert "noise, if nobody is corrupt or lost." in str(trusting)
    assert trusting.if_all_honest is trusting
    assert "trusted server" not in str(plan(40.0, mechanism="one_bit", aggregation=PerClient()))


def test_the_vote_on_the_clip_is_within_the_target() -> None:
    """A plan with room for the vote costs what it says with it, and more than that without room."""
    planned = plan(mechanism="one_bit")
    with_room = planned.with_vote()
    assert with_room.statement.epsilon <= 6.0
    spent = []
    for made in (planned, with_room):
        encoding = made.encoding
        norm = math.hypot((encoding.l2_bound(DIMENSION) or 0.0) / encoding.clip, 1.0)
        view = made.aggregation.view(CLIENTS)
        release = Release(encoding.mechanism, DIMENSION + 1, view, norms=UpdateNorms(l2=norm))
        spent.append(Accountant({release: 3}).statement(1e-5).epsilon)
    assert spent[1] <= 6.0 < spent[0]


@pytest.mark.parametrize(("lost", "survivors"), [(0, 20), (2, 18), (4, 0)])
def test_a_simulated_sum_is_a_secure_sum_without_masks(lost: int, survivors: int) -> None:
    """Model, survivors and statements are the same, also where clients are lost.

    As many as planned may be. If more are, no sum is opened in the second round, which leaves two steps of
    three; the target holds all the same.
    """
    secure, model = run(plan(aggregation=SecureSum()), lost=lost)
    simulated, same = run(plan(aggregation=SimulatedSum()), lost=lost)
    assert np.array_equal(model, same)
    assert simulated.survivors == secure.survivors == {1: 20, 2: survivors, 3: 20}
    assert simulated.statements() == secure.statements()
    assert spent(secure) <= 6.0
    assert (model.mean() * math.sqrt(DIMENSION) > 2.5) == (survivors > 0)
    assert any(SimulatedSum.simulated in line for line in simulated.privacy_statement())
    assert not any("simulated: codes" in line for line in secure.privacy_statement())


def test_a_simulated_sum_is_refused_where_privacy_is_not_simulated() -> None:
    with pytest.raises(InvalidSpecError, match=r"SimulatedSum protects nobody.*simulated=True"):
        PrivQuantStrategy(FedAvg(), plan(aggregation=SimulatedSum()))


def test_a_plan_is_for_one_model() -> None:
    strategy = PrivQuantStrategy(FedAvg(), plan())
    with pytest.raises(InvalidSpecError, match="for 300 coordinates, the model has 301"):
        simulate(strategy, initial={"model": np.zeros(DIMENSION + 1, np.float32)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_clients": 2}, "leave no honest client"),
        ({"num_clients": 0}, "num_clients"),
        ({"num_clients": 2.5}, "num_clients"),
        ({"l2_clip": 0.0}, "l2_clip"),
        ({"l2_clip": math.nan}, "l2_clip"),
        ({"clip": -1.0}, "clip"),
        ({"epsilon": -8.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"max_bits": 0}, "bits"),
    ],
)
def test_impossible_targets_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        plan(**changes)


@pytest.mark.parametrize(("name", "value"), [("rounds", 0), ("rounds", -1), ("delta", 0.0), ("delta", 1.0)])
def test_targets_without_meaning_are_refused(name: str, value: float) -> None:
    arguments: dict[str, Any] = {"epsilon": 8.0, "rounds": 3, "num_clients": 20, name: value}
    with pytest.raises(InvalidSpecError, match=name):
        Target(**arguments)


METRICS = {"loss": (0.0, 4.0), "privquant-failed": (0.0, 1.0)}


@pytest.mark.parametrize(
    ("aggregation", "settings"),
    [
        (SecureSum(), {}),
        (SecureSum(), {"keep": 100}),
        (SecureSum(), {"clip": 0.2}),
        (SecureSum(), {"max_error": 2.0, "max_bits": 1}),
        (SecureSum(), {"mechanism": "skellam"}),
        (SumOfCodes(), {"mechanism": "one_bit"}),
    ],
)
def test_private_metrics_are_planned_and_counted(aggregation: Any, settings: dict[str, Any]) -> None:
    """They were refused beside a plan, which a line of the log recommended."""
    epsilon = 6.0 if isinstance(aggregation, SecureSum) else 40.0
    planned = plan(epsilon, aggregation=aggregation, private_metrics=METRICS, **settings)
    strategy, _ = run(planned)
    assert strategy.survivors == dict.fromkeys((1, 2, 3), CLIENTS)
    assert spent(strategy) <= planned.statement.epsilon * (1.0 + 1e-9) <= epsilon * (1.0 + 1e-9)
    release = strategy.ledger.last_release
    assert release is not None
    # What the ledger counts is what the plan was made for: update and metrics, and the norm of both.
    kept = planned.encoding.count_kept(DIMENSION)
    norm = math.hypot(planned.encoding.l2_bound(DIMENSION) or 0.0, math.sqrt(2) * planned.encoding.clip)
    assert release.dimension == kept + 2
    assert release.norms.l2 == pytest.approx(norm / planned.encoding.clip)
    assert "'loss' in [0, 4], 'privquant-failed' in [0, 1]" in "".join(strategy.privacy_statement())
    assert "Clients also release 'loss', clipped to [0, 4], through the mechanism; a round's mean" in (
        str(planned)
    )


def test_metrics_for_which_an_update_leaves_no_room_are_refused() -> None:
    target = Target(6.0, rounds=3, num_clients=CLIENTS)
    many = {f"m{i}": (0.0, 1.0) for i in range(9)}
    with pytest.raises(InfeasibleDesignError, match="metrics and vote take 9 coordinates"):
        target.plan(10, private_metrics=many)
    assert len(target.plan(100, private_metrics={"m": (0.0, 1.0)}).private_metrics) == 1


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ({"aggregation": SecureSum()}, r"say target\.plan\(\.\.\., aggregation=\.\.\.\)"),
        ({"metrics": ClientMetrics(private=METRICS)}, r"say target\.plan\(\.\.\., private_metrics=\.\.\.\)"),
        ({"budget": Budget(6.0, 1e-5)}, r"say it in the plan's pq\.Target\(\.\.\.\)"),
        ({"delta": 1e-6}, r"say it in the plan's pq\.Target\(\.\.\.\)"),
    ],
)
def test_what_a_plan_sets_is_said_where_the_plan_is_made(argument: dict[str, Any], remedy: str) -> None:
    """Users left out identities when they were told to leave out the aggregation."""
    (name,) = argument
    with pytest.raises(InvalidSpecError, match=rf"{name}[a-z.]*: given, but a plan sets it; {remedy}"):
        PrivQuantStrategy(FedAvg(), plan(), **argument)


def test_the_target_of_a_plan_is_no_budget_of_a_client() -> None:
    planned = Target(8.0, rounds=2, num_clients=6).plan(25)

    def ended(**limits: Any) -> Any:
        mods = [PrivQuantMod(**planned.client_limits, **limits, secure_aggregation=True)]
        return simulate(PrivQuantStrategy(FedAvg(), planned), client_app(mods), 6, 2).result

    # The first release is refused, which is a mistake in the settings and no result.
    with pytest.raises(BudgetExhaustedError) as raised:
        ended(budget=8.0)
    text = str(raised.value)
    assert "its own limits (budget or max_participations of PrivQuantMod) allow no further release" in text
    assert "A client's budget counts in the local view" in text
    assert "Leave that budget out" in text
    assert "PrivQuantMod(**plan.client_limits) allows a plan" in text
    # One that lasts for a round ends the run later, with the same advice.
    norm = (planned.encoding.l2_bound(25) or 0.0) / planned.encoding.clip
    release = Release(planned.encoding.mechanism, 25, norms=UpdateNorms(l2=norm))
    costs = [Accountant({release: rounds}).statement(1e-5).epsilon for rounds in (1, 2)]
    stopped = ended(budget=Budget(sum(costs) / 2, 1e-5))
    assert isinstance(stopped, StoppedResult)
    assert stopped.reason.startswith("budget exhausted after 1 of 2 rounds: round 2: every client refuses")
    assert "Leave that budget out" in stopped.reason
    assert "raise the budget, or spend less" not in stopped.reason
    # The limits of the plan allow just the plan.
    assert not isinstance(ended(), StoppedResult)
    assert not isinstance(ended(max_participations=2), StoppedResult)


@pytest.mark.parametrize("keep", [None, 3000])
def test_metrics_of_large_updates_take_several_coordinates_which_are_counted(keep: int | None) -> None:
    target = Target(6.0, rounds=3, num_clients=CLIENTS)
    planned = target.plan(5000, keep=keep, private_metrics=METRICS)
    model = {"model": np.zeros(5000, np.float32)}
    strategy = PrivQuantStrategy(FedAvg(), planned)
    codec, release = strategy.request(1).make_codec_and_release(model)
    kept = keep or 5000
    assert codec.dimension == release.dimension == kept + 2 * (kept // 1000)
    view = planned.aggregation.view(CLIENTS)
    cost = Accountant({release.with_view(view): 3}).statement(1e-5)
    assert cost.epsilon == pytest.approx(planned.statement.epsilon, rel=1e-6)
    assert cost.epsilon <= 6.0
    # They cost what they add to the squared norm that a client may send, which is little.
    alone = target.plan(5000, keep=keep).mean_squared_error
    clip, bound = planned.encoding.clip, planned.encoding.l2_bound(5000) or 0.0
    added = 2 * (kept // 1000) * clip**2 / bound**2
    assert planned.mean_squared_error == pytest.approx(alone * (1.0 + added), rel=0.01)
    assert 0.0 < added < 0.06
