"""Samplings of clients around Flower's strategies, and servers that break what they promise."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from flwr.serverapp.strategy import FedMedian

import fl_privquant as pq
from fl_privquant.accounting import SimulatedSum, ViewKind
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy, StoppedResult
from tests.flower.apps import CLIP, Killed, client_app, fedavg, simulate, strategy_for, trained

MECHANISM = pq.design("one_bit", epsilon=1.0)
CLIENTS = 12


class TrainingLog:
    """Who trained in which round."""

    def __init__(self, dies_in=None):
        self.rounds = Counter()
        self.by_round = {}
        self.dies_in = dies_in

    def __call__(self, arrays, partition, server_round):
        self.rounds[partition] += 1
        self.by_round.setdefault(server_round, []).append(partition)
        if server_round == self.dies_in:
            raise Killed
        return trained(arrays, partition, server_round)


def strategy_of(sampling, aggregation=None, wrapped=None, **options):
    return PrivQuantStrategy(
        wrapped or fedavg(),
        pq.Encoding(MECHANISM, CLIP, l2_clip=CLIP),
        aggregation=aggregation or pq.SumOfCodes(),
        sampling=sampling,
        simulated=True,
        **options,
    )


def run(strategy, asked=None, num_rounds=4, mods=None, **options):
    client = client_app(train_with=asked or TrainingLog(), mods=mods, **options)
    return simulate(strategy, client, CLIENTS, num_rounds, seed=3)


def max_in_a_row(asked, width):
    """The largest number of times that one client was asked in ``width`` rounds in a row."""
    most = 0
    for first in asked.by_round:
        clients = [asked.by_round.get(number, []) for number in range(first, first + width)]
        most = max(most, *Counter(itertools.chain(*clients)).values())
    return most


@pytest.mark.parametrize(
    ("sampling", "sizes"),
    [
        (pq.FixedSampling(0.5, seed=1), {6}),
        (pq.PoissonSampling(0.5, 3, seed=1), set(range(3, CLIENTS + 1))),
        (pq.CohortSampling(3, seed=1), {4}),
    ],
)
def test_clients_are_asked_as_the_sampling_says(sampling, sizes):
    asked = TrainingLog()
    strategy = strategy_of(sampling)
    run(strategy, asked)
    assert {len(clients) for clients in asked.by_round.values()} <= sizes
    statements = strategy.statements()
    assert [statement.view.kind for statement in statements[-2:]] == ["local", "models"]
    # The server trusts nobody with less than all rounds that the worst client was asked in.
    assert statements[-2].scope.endswith(f" {max(asked.rounds.values())} rounds")
    assert statements[-1].epsilon < statements[-2].epsilon
    assert max_in_a_row(asked, sampling.min_rounds_apart) == 1


def test_without_a_sampling_nothing_is_said_of_models():
    strategy = strategy_of(None, wrapped=fedavg(fraction_train=0.5))
    run(strategy, num_rounds=2)
    assert all(statement.view.kind is not ViewKind.MODELS for statement in strategy.statements())
    # Worst case of a plan: who is drawn at random may be drawn each time.
    assert strategy.sampling.max_rounds(30) == 30


def test_a_strategy_that_needs_single_updates_shows_more_than_a_sum():
    strategy = strategy_of(pq.FixedSampling(0.5, seed=1), pq.PerClient(), wrapped=fedavg(FedMedian))
    run(strategy, num_rounds=1)
    statement = strategy.statements()[-1]
    assert str(statement.view) == "models"
    assert statement.epsilon < strategy.statements()[-2].epsilon


def test_a_secure_sum_in_every_view():
    strategy = strategy_of(pq.FixedSampling(0.5, seed=1), SimulatedSum(0.0, 0.1))
    run(strategy, num_rounds=2)
    local, aggregate, models = strategy.statements()[-3:]
    views = tuple(str(each.view) for each in (local, aggregate, models))
    assert views == ("local", "aggregate of 6", "models of 6")
    assert models.epsilon < aggregate.epsilon < local.epsilon
    # 6 asked of the 10 of 12 that stay.
    assert "probability 0.6 at most" in str(models)


def test_corrupt_clients_of_a_secure_sum_tell_who_took_part():
    strategy = strategy_of(pq.FixedSampling(0.5, seed=1), SimulatedSum(0.1, 0.1))
    run(strategy, num_rounds=2)
    _, aggregate, models = strategy.statements()[-3:]
    assert models.epsilon == aggregate.epsilon
    assert "probability" not in str(models)


def test_a_client_that_is_lost_ends_amplification_of_its_round():
    """Who does not answer may tell who was drawn, so only as many may be lost as are assumed to be."""
    strategies = [strategy_of(pq.FixedSampling(8, seed=1)) for _ in range(2)]
    run(strategies[0], num_rounds=1)
    run(strategies[1], num_rounds=1, lost_when=lambda partition, number: partition < 6)
    whole, lossy = (strategy.statements()[-1] for strategy in strategies)
    assert "probability" in str(whole)
    assert "probability" not in str(lossy)
    assert lossy.epsilon > whole.epsilon


def test_a_poisson_round_with_too_few_clients_is_not_run():
    asked, strategy = TrainingLog(), strategy_of(pq.PoissonSampling(0.5, 7, seed=4))
    result = run(strategy, asked, num_rounds=6).result
    assert result.arrays
    assert 0 < len(asked.by_round) < 6
    assert min(len(clients) for clients in asked.by_round.values()) >= 7
    assert len(strategy.ledger) == len(asked.by_round)


def test_a_bound_ends_the_run_before_it_is_exceeded():
    asked, strategy = TrainingLog(), strategy_of(pq.FixedSampling(8, participations=2, seed=1))
    result = run(strategy, asked, num_rounds=9).result
    assert isinstance(result, StoppedResult)
    assert "fewer than 2 rounds, but a round needs 8" in result.reason
    assert max(asked.rounds.values()) == 2


def test_a_plan_for_few_participations_holds_them_without_a_sampling():
    target = pq.Target(epsilon=8.0, rounds=8, num_clients=12, participations=2)
    plan = target.plan(dimension=25, aggregation=SimulatedSum(0.0, 0.0))
    asked = TrainingLog()
    strategy = PrivQuantStrategy(fedavg(), plan, simulated=True)
    mods = [PrivQuantMod(**plan.client_limits, seed=1)]
    result = run(strategy, asked, num_rounds=8, mods=mods).result
    assert isinstance(result, StoppedResult)
    assert set(asked.rounds.values()) == {2}
    assert strategy.ledger.statement(1e-5, in_sum=True).epsilon <= 8.0


@pytest.mark.parametrize("sampling", [pq.CohortSampling(3, seed=1), pq.FixedSampling(4, participations=2)])
def test_a_run_that_was_killed_asks_nobody_too_often(sampling, tmp_path):
    """Killed while round 3 trains: whoever was asked has been asked, answered or not."""
    asked = TrainingLog(dies_in=3)
    with pytest.raises(Killed):
        run(CheckpointStrategy(strategy_of(sampling), tmp_path / "run"), asked, num_rounds=6)
    asked.dies_in = None
    run(CheckpointStrategy(strategy_of(sampling), tmp_path / "run"), asked, num_rounds=6)
    # Without a rest, the repeated round may ask the same clients again, who are then counted twice.
    assert sampling.min_rounds_apart == 1 or max_in_a_row(asked, sampling.min_rounds_apart) == 1
    assert max(asked.rounds.values()) <= sampling.max_rounds(6)


def test_clients_that_were_not_asked_before_a_kill_keep_their_share(tmp_path):
    """They counted as strangers, who may have had all rounds: the resumed run ended after round 3 of 5."""
    sampling = pq.FixedSampling(4, participations=2, seed=1)
    asked = TrainingLog(dies_in=3)
    with pytest.raises(Killed):
        run(CheckpointStrategy(strategy_of(sampling), tmp_path / "run"), asked, num_rounds=5)
    unasked = set(range(CLIENTS)) - set(asked.rounds)
    assert unasked
    asked.dies_in = None
    result = run(CheckpointStrategy(strategy_of(sampling), tmp_path / "run"), asked, num_rounds=5).result
    assert not isinstance(result, StoppedResult)
    assert unasked & set(asked.rounds)


class Forgets(PrivQuantStrategy):
    """A server that asks the same clients in each round, whatever it has promised."""

    def configure_train(self, server_round, arrays, config, grid):
        self.ledger.participation = lambda node: (0, None)
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize(
    ("limits", "most", "reason"),
    [
        ({}, 4, None),
        ({"max_participations": 2}, 2, "takes part in at most 2"),
        ({"rounds_apart": 3}, 2, "takes part in at most one of 3 rounds in a row"),
    ],
)
def test_a_client_holds_a_lying_server_to_its_share(limits, most, reason, caplog):
    asked = TrainingLog()
    strategy = Forgets(fedavg(), pq.Encoding(MECHANISM, CLIP), max_failed_rounds=9)
    result = run(strategy, asked, mods=[PrivQuantMod(max_epsilon=10.0, seed=1, **limits)]).result
    # Once all clients refuse for good, the run ends as a result.
    assert isinstance(result, StoppedResult) == ("max_participations" in limits)
    assert set(asked.rounds.values()) == {most}
    assert reason is None or reason in caplog.text


def test_the_nodes_own_configuration_tightens_the_share():
    asked = TrainingLog()
    strategy = Forgets(fedavg(), pq.Encoding(MECHANISM, CLIP), max_failed_rounds=9)
    limits = {"privquant-max-participations": 1, "privquant-simulated": True}
    simulate(strategy, client_app(train_with=asked), 2, 3, node_config=limits)
    assert set(asked.rounds.values()) == {1}


def test_draws_that_are_known_are_refused_where_privacy_is_real():
    with pytest.raises(InvalidSpecError, match="whoever knows the seed 1 knows who is asked"):
        strategy_for(MECHANISM, sampling=pq.FixedSampling(3, seed=1))
    with pytest.raises(InvalidSpecError, match="min_clients: missing"):
        strategy_for(
            MECHANISM,
            aggregation=pq.SecureSum(),
            sampling=pq.PoissonSampling(0.5),
        )
