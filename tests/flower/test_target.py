"""A target for a whole run: the rest follows, and rounds that lose too many clients do not break it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.flower import PrivQuantMod, RunTarget, SecureAggregationMod, SecureAggregationStrategy
from fl_privquant.flower.engines import Federation, InlineEngine
from tests.flower.apps import LostWhen

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLIENTS, DIMENSION = 20, 300


def target(**changes: Any) -> RunTarget:
    wish = {"epsilon": 6.0, "rounds": 3, "num_clients": CLIENTS, "l2_clip": 1.0}
    return RunTarget(**(wish | changes))


def run(wished: RunTarget, rounds: int = 3, lost: int = 0) -> tuple[SecureAggregationStrategy, np.ndarray]:
    """The strategy after a run in which, in the second round, some clients are gone before they train."""
    client, server = ClientApp(), ServerApp()
    kept: list[SecureAggregationStrategy] = []
    direction = np.ones(DIMENSION, np.float32) / math.sqrt(DIMENSION)

    gone = LostWhen(lambda partition, server_round: server_round == 2 and partition < lost)

    @client.train(mods=[gone, SecureAggregationMod(), PrivQuantMod(max_epsilon=math.inf, seed=3)])
    def train(message: Message, context: Context) -> Message:
        moved = message.content["arrays"]["model"].numpy() + direction
        content = {
            "arrays": ArrayRecord({"model": Array(moved)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({"model": Array(np.zeros(DIMENSION, np.float32))})
        inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        kept.append(SecureAggregationStrategy.for_target(inner, wished, start, max_failed_rounds=1))
        context.state["arrays"] = kept[0].start(grid, start, num_rounds=rounds).arrays

    result = InlineEngine().run(server, client, Federation(num_clients=CLIENTS))
    return kept[0], result.arrays["model"].numpy()


def spent(strategy: SecureAggregationStrategy) -> float:
    found = strategy.strategy.ledger.statement(1e-5, in_sum=True)
    assert found.view.startswith("aggregate")
    return found.epsilon


def test_a_whole_run_costs_no_more_than_its_target_and_learns() -> None:
    strategy, model = run(target())
    # Nobody was lost, so that more were honest than the target counts on.
    assert 3.0 < spent(strategy) <= 6.0
    assert strategy.strategy.mechanism.name == "optm_aggregate"
    # Three steps of norm 1, with the noise that the design says.
    deviation = strategy.strategy.clip * math.sqrt(3 * strategy.strategy.mechanism.mse() / CLIENTS)
    assert abs(model.mean() * math.sqrt(DIMENSION) - 3.0) < 5.0 * deviation
    assert np.std(model) == pytest.approx(deviation, rel=0.3)


def test_one_round_more_than_planned_is_not_begun() -> None:
    with pytest.raises(BudgetExhaustedError):
        run(target(corrupt_fraction=0.0, dropout_fraction=0.0), rounds=4)


def test_a_round_that_loses_too_many_is_refused_or_stated() -> None:
    refused, model = run(target(), lost=4)
    assert spent(refused) <= 6.0
    # Two steps of three: no sum was opened in the second round.
    assert model.mean() * math.sqrt(DIMENSION) < 2.6
    stated, _ = run(target(shortfall="state"), lost=4)
    assert spent(refused) < spent(stated)


def test_as_many_as_planned_may_be_lost() -> None:
    strategy, model = run(target(), lost=2)
    assert spent(strategy) <= 6.0
    assert model.mean() * math.sqrt(DIMENSION) > 2.4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_clients": 2}, "a sum needs 2 or more"),
        ({"l2_clip": 0.0}, "l2_clip"),
        ({"shortfall": "ignore"}, "shortfall"),
        ({"dropout_fraction": -0.1}, "dropout_fraction"),
    ],
)
def test_impossible_targets_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        target(**changes)
