"""Wrappers of strategies: what they hand on, what a round tells its listener, and who sends a mean."""

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from fl_privquant.accounting import Budget, SecureSum, SumOfCodes, Unit
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import (
    CheckpointStrategy,
    ClientMetrics,
    NoUsableReplyError,
    PrivQuantMod,
    PrivQuantStrategy,
    StrategyWrapper,
)
from fl_privquant.flower.server.strategy_wrapper import strategy_stack
from fl_privquant.packing.pack import packed_size
from tests.flower.apps import (
    CLIP,
    SEED,
    assert_same_arrays,
    client_app,
    fedavg,
    initial_arrays,
    simulate,
    strategy_for,
)

CLIENTS = 6


def run(strategy, client=None, **options):
    return simulate(strategy, client, CLIENTS, **options)


def test_a_bare_wrapper_changes_nothing(mechanism):
    def private(wrap):
        return wrap(
            PrivQuantStrategy(
                wrap(FedAvg()), Encoding(mechanism, CLIP), metrics=ClientMetrics(clear=["accuracy"])
            )
        )

    def evaluate(server_round, arrays):
        return MetricRecord({"round": server_round})

    mods = [PrivQuantMod(10.0, seed=SEED, metrics=["loss"])]
    expected, found = (
        run(private(wrap), client_app(mods), num_rounds=2, evaluate_fn=evaluate)
        for wrap in (lambda strategy: strategy, StrategyWrapper)
    )
    assert_same_arrays(found.model, expected.model)
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        assert getattr(found.result, name) == getattr(expected.result, name) != {}


def test_wrappers_know_the_names_that_the_innermost_strategy_looks_for():
    outer = StrategyWrapper(StrategyWrapper(FedAvg(weighted_by_key="size", arrayrecord_key="model")))
    assert (outer.weighted_by_key, outer.arrayrecord_key) == ("size", "model")


@pytest.mark.parametrize("given", [None, FedAvg, "fedavg"])
def test_only_strategies_are_wrapped(given):
    with pytest.raises(InvalidSpecError, match=r"expected a flwr\.serverapp Strategy"):
        StrategyWrapper(given)


def test_the_stack_is_walked_from_the_outside_in(mechanism, tmp_path):
    saved = CheckpointStrategy(
        PrivQuantStrategy(StrategyWrapper(fedavg()), Encoding(mechanism, CLIP)), tmp_path / "x"
    )
    names = [type(each).__name__ for each in strategy_stack(saved)]
    assert names == ["CheckpointStrategy", "PrivQuantStrategy", "StrategyWrapper", "FedAvg"]


def test_a_checkpoint_that_would_not_save_the_ledger_is_refused(mechanism, tmp_path):
    """Inside another strategy it saved the model without the ledger, and was never restored."""
    inner = CheckpointStrategy(fedavg(), tmp_path / "x")
    for wrap in (StrategyWrapper, lambda strategy: PrivQuantStrategy(strategy, Encoding(mechanism, CLIP))):
        with pytest.raises(InvalidSpecError, match="CheckpointStrategy must be the outermost"):
            wrap(inner)
    with pytest.raises(InvalidSpecError, match="CheckpointStrategy must be the outermost"):
        CheckpointStrategy(inner, tmp_path / "y")


def test_updates_are_not_encoded_twice(mechanism):
    """Both strategies asked for updates, and neither could read those of the other."""
    inner = StrategyWrapper(strategy_for(mechanism))
    with pytest.raises(InvalidSpecError, match="wraps a PrivQuantStrategy already"):
        PrivQuantStrategy(inner, Encoding(mechanism, CLIP))


class Senders(StrategyWrapper):
    """Notes whom the aggregating strategy asks, and who sent the replies that it sees."""

    def configure_train(self, *arguments):
        messages = list(super().configure_train(*arguments))
        self.asked = {message.metadata.dst_node_id for message in messages}
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.senders = [message.metadata.src_node_id for message in replies]
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("aggregation", [None, SumOfCodes(), SecureSum()])
def test_no_client_is_named_as_the_sender_of_a_mean(mechanism, aggregation):
    inner = Senders(fedavg())
    mods = [PrivQuantMod(10.0, seed=SEED, secure_aggregation=isinstance(aggregation, SecureSum))]
    run(PrivQuantStrategy(inner, Encoding(mechanism, CLIP), aggregation=aggregation), client_app(mods))
    if aggregation is None:
        assert sorted(inner.senders) == sorted(inner.asked)
    else:
        assert inner.senders == [0]


@pytest.mark.parametrize("secure", [False, True])
def test_a_record_says_what_the_round_did(mechanism, secure):
    strategy = PrivQuantStrategy(
        fedavg(),
        Encoding(mechanism, CLIP, l2_clip=0.5, rotate=True),
        metrics=ClientMetrics(clipping=True),
        aggregation=SecureSum(corrupt_fraction=0.0, dropout_fraction=0.2) if secure else None,
    )
    mods = [PrivQuantMod(10.0, seed=SEED, report_clipping=True, secure_aggregation=secure)]
    client = client_app(
        mods,
        lost_when=lambda partition, server_round: server_round == 2 and partition == 1,
    )
    records = run(strategy, client, num_rounds=2).records
    assert [(each.round, each.asked, each.survivors) for each in records] == [
        (1, CLIENTS, CLIENTS),
        (2, CLIENTS, CLIENTS - 1),
    ]
    model = sum(each.nbytes for each in initial_arrays().values())
    width = {"width": mechanism.sum_bits(CLIENTS)} if secure else {"num_levels": mechanism.num_levels}
    for each in records:
        assert each.encoding == Encoding(each.codec.mechanism, CLIP, 0.5, True)
        assert each.codec.mechanism.to_bytes() == mechanism.to_bytes()
        assert each.bytes_up == each.survivors * packed_size(each.codec.dimension, **width)
        assert each.bytes_down == CLIENTS * (model + len(mechanism.to_bytes()))
        assert each.view.is_local != secure
        assert 0.0 <= each.share_clipped < 1.0
        # Steps of 25 coordinates with a deviation of 0.05, and an L2 clip of 0.5.
        assert 0.3 < each.norm_to_clip < 0.7
        assert each.wall_seconds >= each.seconds_clients > 0.0
        assert each.seconds_aggregate > 0.0
    assert records[-1].statements == tuple(strategy.statements(refine=False))
    assert records[-1].spent == strategy.ledger.statement(strategy.delta, secure, refine=False)
    assert records[0].spent.epsilon < records[1].spent.epsilon
    assert records[0].spent.unit == Unit.TOTAL


def test_a_share_that_clients_do_not_report_is_not_made_up(mechanism):
    strategy = strategy_for(mechanism, metrics=ClientMetrics(clipping=True))
    records = run(strategy).records
    assert records[0].share_clipped is records[0].norm_to_clip is None


def test_failed_rounds_have_records_too(mechanism):
    records = []
    strategy = strategy_for(mechanism, max_failed_rounds=1, on_round=records.append)
    with pytest.raises(NoUsableReplyError):
        run(strategy, client_app(lost_when=lambda *_: True), num_rounds=2)
    assert [(each.round, each.survivors, each.bytes_up) for each in records] == [(1, 0, 0), (2, 0, 0)]
    # A client that was asked and lost has spent all the same.
    assert records[1].spent.epsilon > records[0].spent.epsilon > 0.0


@pytest.mark.parametrize(("budget_delta", "replaced"), [(1e-5, True), (5e-6, True), (1e-4, False)])
def test_a_budget_bounds_what_was_spent_only_at_its_own_delta(mechanism, budget_delta, replaced):
    """A quick bound above the budget is not what was counted in full; a larger delta says less."""
    rounds, delta = 4, 1e-5
    free = strategy_for(mechanism, delta=delta)
    run(free, num_rounds=rounds)
    exact = free.ledger.statement(budget_delta).epsilon
    quick = free.ledger.statement(delta, refine=False).epsilon
    assert exact < quick
    budget = Budget((exact + quick) / 2, budget_delta)
    limited = strategy_for(mechanism, delta=delta, budget=budget)
    spent = run(limited, num_rounds=rounds).records[-1].spent
    assert (spent.epsilon, spent.delta) == (
        (budget.epsilon, budget.delta) if replaced else (quick, pytest.approx(delta))
    )


def test_a_listener_sees_a_round_before_its_checkpoint_is_written(mechanism, tmp_path):
    saved_rounds = []
    path = tmp_path / "run.checkpoint"

    def on_round(record):
        saved_rounds.append((record.round, strategy.finished_rounds))

    strategy = CheckpointStrategy(strategy_for(mechanism, on_round=on_round), path)
    run(strategy, num_rounds=2)
    assert saved_rounds == [(1, 0), (2, 1)]
    assert strategy.finished_rounds == 2
