"""The accountant for Flower's own privacy wrappers, and the wrapper that counts adaptive clipping."""

import json
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import AccountedAdaptiveClipping, GaussianAccountant
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon

CLIENTS = 20
DELTA = 1e-5


def config(max_epsilon=None, sampling=SamplingMethod.NO_AMPLIFICATION, delta=DELTA):
    return PrivacyConfig(delta, CLIENTS, NeighboringRelation.ADD_OR_REMOVE_ONE, sampling, max_epsilon)


def release(noise_multiplier=2.0):
    return GaussianPrivacyEvent(noise_multiplier, CLIENTS, CLIENTS)


def accountant(*multipliers, **settings):
    made = GaussianAccountant(config(**settings))
    for each in multipliers:
        made.compose(release(each))
    return made


@pytest.mark.parametrize(
    ("multiplier", "rounds", "exact", "by_rdp"), [(2.0, 10, 7.51, 8.08), (4.0, 50, 8.60, 9.24)]
)
def test_the_exact_epsilon_is_below_the_one_of_flower(multiplier, rounds, exact, by_rdp):
    ours, theirs = GaussianAccountant(config()), RdpAccountant(config())
    for each in (ours, theirs):
        each.compose(release(multiplier), rounds)
    assert ours.get_epsilon(DELTA) == pytest.approx(exact, abs=0.005)
    assert theirs.get_epsilon(DELTA) == pytest.approx(by_rdp, abs=0.01)


def test_epsilon_agrees_with_a_numerical_loss_distribution():
    """Google's accountant composes on a grid: an independent computation of the same number."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    numerical = PLDAccountant(value_discretization_interval=1e-3)
    numerical.compose(SelfComposedDpEvent(GaussianDpEvent(2.0), 7))
    numerical.compose(SelfComposedDpEvent(GaussianDpEvent(3.0), 5))
    ours = accountant(*[2.0] * 7, *[3.0] * 5)
    assert ours.get_epsilon(DELTA) == pytest.approx(numerical.get_epsilon(DELTA), abs=0.02)


def test_delta_is_the_inverse_of_epsilon():
    spent = accountant(2.0, 3.0)
    assert spent.get_delta(spent.get_epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-6)
    assert accountant().get_delta(0.0) == 0.0


@pytest.mark.parametrize(("replace_one", "add_remove"), [(1.0, 0.47), (4.0, 1.83), (8.0, 3.55), (10.0, 4.38)])
def test_both_relations_are_those_of_one_release(replace_one, add_remove):
    low, high = 0.1, 100.0
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        above = accountant(middle).replace_one_epsilon(DELTA) > replace_one
        low, high = (middle, high) if above else (low, middle)
    assert accountant(high).get_epsilon(DELTA) == pytest.approx(add_remove, rel=0.01)


def test_a_limit_is_checked_without_counting():
    spent = accountant(*[2.0] * 9, max_epsilon=7.6)
    assert not spent.would_exceed(release())
    assert spent.would_exceed(release(), count=2)
    assert spent.would_exceed(release(), max_epsilon=7.0)
    assert spent.num_releases == 9


def test_the_state_survives_json():
    spent, other = accountant(2.0, 2.0, 5.0), accountant(1.0)
    other.load_state_dict(json.loads(json.dumps(spent.state_dict())))
    assert other.get_privacy_spent() == spent.get_privacy_spent()
    assert spent.get_privacy_spent().accounting_method == "gaussian-exact"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("method", "rdp"),
        ("config", {}),
        ("releases", None),
        ("releases", [[2.0, 20, 20]]),
        ("releases", [[-2.0, 20, 20, 1]]),
        ("releases", [[2.0, 20, 20, -1]]),
        ("releases", [[2.0, 20, 21, 1]]),
    ],
)
def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(key, value):
    spent = accountant(2.0)
    with pytest.raises(InvalidSpecError):
        spent.load_state_dict({**accountant(9.0).state_dict(), key: value})
    assert spent.get_epsilon(DELTA) == accountant(2.0).get_epsilon(DELTA)


REPLACE_ONE = NeighboringRelation.REPLACE_ONE
SECRET = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON


def sampled(made, method, relation, multiplier, count):
    """An accountant for rounds of 10 of 1000 clients that are drawn in secret."""
    counted = made(PrivacyConfig(1e-6, 1000, relation, method))
    counted.compose(GaussianPrivacyEvent(multiplier, 10, 1000), count)
    return counted


def test_secret_sampling_is_counted_by_the_distribution_of_the_loss():
    """Google's accountant has the same figure, and Flower's a larger one."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    ours, theirs = (sampled(made, *SECRET[::-1], 1.2, 100) for made in (GaussianAccountant, RdpAccountant))
    numerical = PLDAccountant(value_discretization_interval=1e-3)
    numerical.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.2)), 100)
    assert ours.get_epsilon(1e-6) == pytest.approx(numerical.get_epsilon(1e-6), rel=0.01)
    assert ours.get_epsilon(1e-6) < 0.6 * theirs.get_epsilon(1e-6)
    assert ours.get_epsilon(1e-6) < ours.replace_one_epsilon(1e-6) < 2.0 * ours.get_epsilon(1e-6)
    assert ours.get_delta(ours.get_epsilon(1e-6)) == pytest.approx(1e-6, rel=0.01)
    assert ours.get_privacy_spent().accounting_method == "pld"


def test_a_replaced_client_moves_the_sum_by_two_clipping_norms():
    """Flower's accountant takes the distance itself for one clipping norm, so half the noise compares."""
    ours, theirs = (
        sampled(made, SamplingMethod.WITHOUT_REPLACEMENT, REPLACE_ONE, multiplier, 10)
        for made, multiplier in ((GaussianAccountant, 3.0), (RdpAccountant, 1.5))
    )
    poisson = sampled(GaussianAccountant, *SECRET[::-1], 1.5, 10)
    assert ours.get_epsilon(1e-6) < theirs.get_epsilon(1e-6)
    assert ours.get_epsilon(1e-6) == pytest.approx(poisson.get_epsilon(1e-6), rel=0.1)
    assert ours.relation == REPLACE_ONE.value
    assert ours.get_epsilon(1e-6) == ours.replace_one_epsilon(1e-6)


def test_what_is_not_a_number_of_that_kind_is_refused():
    spent = accountant(2.0)
    for ask in (
        lambda: spent.would_exceed(release(), max_epsilon=True),
        lambda: spent.get_delta(True),
        lambda: spent.get_epsilon(True),
        lambda: spent.would_exceed(release()),
    ):
        with pytest.raises(InvalidSpecError, match=r"^(max_)?epsilon|^delta"):
            ask()
    assert spent.num_releases == 1
    assert GaussianAccountant(PrivacyConfig(1e-6, 1000, *SECRET)).get_epsilon(1e-6) == 0.0


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_a_count_must_be_a_positive_whole_number(count):
    with pytest.raises(InvalidSpecError, match="count"):
        accountant().compose(release(), count)


def test_an_event_of_another_population_is_refused():
    with pytest.raises(InvalidSpecError, match="population_size: 30"):
        accountant().compose(GaussianPrivacyEvent(1.0, 10, 30))


class NodeGrid:
    """The part of a grid that FedAvg needs to choose clients, some of whom never reply."""

    lost = 0

    def get_node_ids(self):
        return list(range(1, CLIENTS + 1))


def replies_to(requests, step, weight=1.0):
    for number, request in enumerate(requests):
        arrays = [array + step for array in request.content["arrays"].to_numpy_ndarrays()]
        content = {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"num-examples": weight if number else 1.0}),
        }
        yield Message(RecordDict(content), reply_to=request)


def play_round(strategy, server_round=1, step=0.5, weight=1.0):
    arrays = ArrayRecord([np.zeros(50, dtype=np.float32)])
    with use_server_identity(1):
        requests = list(strategy.configure_train(server_round, arrays, ConfigRecord(), NodeGrid()))
        replies = list(replies_to(requests, step, weight))[NodeGrid.lost :]
    assert all(each.metadata.message_type == MessageType.TRAIN for each in requests)
    return strategy.aggregate_train(server_round, replies)[0]


def play_until_the_budget_is_spent(strategy):
    for number in range(1, 100):
        play_round(strategy, number)


@pytest.mark.parametrize(
    "wrapper", [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping]
)
@pytest.mark.parametrize("made", [GaussianAccountant, RdpAccountant])
def test_fixed_clipping_of_flower_counts_with_either_accountant(wrapper, made):
    spent = made(config(max_epsilon=5.0))
    strategy = wrapper(FedAvg(fraction_evaluate=0.0), 2.0, 1.0, CLIENTS, accountant=spent)
    with pytest.raises(PrivacyBudgetExhausted):
        play_until_the_budget_is_spent(strategy)
    assert spent.num_releases > 2
    assert strategy.privacy_spent().epsilon <= 5.0
    assert spent.would_exceed(release())


def adaptive(max_epsilon=None, noise_multiplier=0.8, **settings):
    inner = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier, CLIENTS, clipped_count_stddev=1.0, **settings
    )
    return AccountedAdaptiveClipping(inner, GaussianAccountant(config(max_epsilon=max_epsilon)))


@pytest.mark.parametrize("lost", [0, 15])
def test_adaptive_clipping_is_counted_with_the_noise_that_was_added(lost, monkeypatch):
    """Flower's noise follows the new clipping norm, while updates were clipped at the old one.

    It is also that of a mean over all clients, although one of few clients moves further.
    """
    strategy = adaptive(initial_clipping_norm=100.0)
    inner = strategy.strategy
    monkeypatch.setattr(NodeGrid, "lost", lost)
    assert play_round(strategy) is not None
    assert inner.clipping_norm != 100.0
    added = inner.noise_multiplier * inner.clipping_norm / 100.0 * (CLIENTS - lost) / CLIENTS
    expected = math.hypot(1.0 / inner.clipped_count_stddev, 1.0 / added)
    assert strategy.accountant.get_epsilon(DELTA) == pytest.approx(gaussian_epsilon(expected, DELTA))
    assert strategy.accountant.num_releases == 2


def test_a_budget_stops_adaptive_clipping_before_it_is_exceeded():
    strategy = adaptive(max_epsilon=20.0)
    with pytest.raises(PrivacyBudgetExhausted, match="one client added or removed"):
        play_until_the_budget_is_spent(strategy)
    assert strategy.accountant.num_releases > 2
    assert strategy.accountant.get_epsilon(DELTA) <= 20.0


def test_unequal_weights_are_refused_as_they_move_the_mean_further():
    strategy = adaptive()
    with pytest.raises(InvalidSpecError, match="num-examples"):
        play_round(strategy, weight=50.0)
    assert strategy.accountant.num_releases == 0


def test_adaptive_clipping_without_noise_or_of_another_kind_is_refused():
    with pytest.raises(InvalidSpecError, match="no noise"):
        adaptive(noise_multiplier=0.0)
    with pytest.raises(InvalidSpecError, match="fixed clipping takes the accountant"):
        AccountedAdaptiveClipping(FedAvg(), GaussianAccountant(config()))
