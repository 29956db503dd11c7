"""A server app's own loop, with a private grid in the place of Flower's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting import Aggregation
from fl_privquant.accounting.accountant import Budget
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.flower import (
    ClientMetrics,
    PrivateGrid,
    PrivQuantMod,
    PrivQuantStrategy,
)
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.flower.apps import client_app, fedavg, mod_for, simulate

CLIENTS, SIZE = 6, 50
Main = Callable[[Grid], ArrayRecord]


def moved(message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    record = message.content["model"]
    step = np.random.default_rng(partition).normal(0, 0.05, SIZE).astype(np.float32)
    changed = ArrayRecord({name: Array(array.numpy() + step) for name, array in record.items()})
    metrics = MetricRecord({"num-examples": 1, "train-loss": 0.5})
    return Message(RecordDict({"model": changed, "metrics": metrics}), reply_to=message)


def run(main: Main, private: bool = True, secure: bool = False) -> dict[str, np.ndarray]:
    client, server = ClientApp(), ServerApp()
    mod = PrivQuantMod(max_epsilon=float("inf"), seed=3, secure_aggregation=secure)
    mods = [mod] if private else []
    client.train(mods=mods)(moved)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        assert set(message.content) == {"question"}
        return Message(RecordDict({"answer": MetricRecord({"accuracy": 0.25})}), reply_to=message)

    @server.main()
    def started(grid: Grid, context: Context) -> None:
        context.state["arrays"] = main(grid)

    result = InlineEngine().run(server, client, Federation(num_clients=CLIENTS, seed=1))
    return {name: array.numpy() for name, array in result.arrays.items()}


def loop(grid: Grid, rounds: int = 2) -> ArrayRecord:
    """The loop of an app that uses no strategy."""
    model = ArrayRecord({"weights": Array(np.zeros(SIZE, np.float32))})
    for number in range(rounds):
        messages = [
            Message(RecordDict({"model": model, "mine": ConfigRecord({"n": number})}), node, "train")
            for node in grid.get_node_ids()
        ]
        replies = list(grid.send_and_receive(messages))
        mean = np.mean([reply.content["model"]["weights"].numpy() for reply in replies], axis=0)
        model = ArrayRecord({"weights": Array(mean.astype(np.float32))})
    return model


def privately(aggregation: Aggregation, kept: list[PrivateGrid] | None = None, **settings: Any) -> Main:
    def main(grid: Grid) -> ArrayRecord:
        mechanism = settings.pop("mechanism", pq.design("optm", epsilon=2.0, bits=3))
        private = PrivateGrid(grid, pq.Encoding(mechanism, clip=0.2), aggregation=aggregation, **settings)
        if kept is not None:
            kept.append(private)
        return loop(private)

    return main


@pytest.mark.parametrize("aggregation", [pq.SecureSum(), pq.SumOfCodes()])
def test_a_reply_can_be_sent_on_as_the_next_model(aggregation: Aggregation, flower_log: Any) -> None:
    """Its arrays were never serialized within a process: all clients failed to read them, and sent zeros."""

    def passing_on(grid: Grid) -> ArrayRecord:
        private = PrivateGrid(
            grid, pq.Encoding(pq.design("optm", epsilon=2.0, bits=3), clip=0.2), aggregation=aggregation
        )
        model = ArrayRecord({"weights": Array(np.zeros(SIZE, np.float32))})
        for _ in range(2):
            nodes = grid.get_node_ids()
            (mean,) = private.send_and_receive(
                [Message(RecordDict({"model": model}), node, "train") for node in nodes]
            )
            model = mean.content["model"]
        return model

    secure = isinstance(aggregation, pq.SecureSum)
    averaged = run(privately(aggregation), secure=secure)
    np.testing.assert_array_equal(run(passing_on, secure=secure)["weights"], averaged["weights"])
    assert "zeros are released" not in flower_log.text


def test_without_a_mechanism_it_is_the_loop_itself() -> None:
    mechanism = pq.design("none")
    private = run(privately(pq.PerClient(), mechanism=mechanism))
    assert np.array_equal(private["weights"], run(loop, private=False)["weights"])


def test_the_mean_is_the_same_decoded_one_by_one_summed_and_masked() -> None:
    kept: list[PrivateGrid] = []
    single = run(privately(pq.PerClient(), kept))["weights"]
    summed = run(privately(pq.SumOfCodes()))["weights"]
    masked = run(privately(pq.SecureSum(), kept), secure=True)["weights"]
    np.testing.assert_array_equal(summed, masked)
    np.testing.assert_allclose(single, summed, atol=1e-6)
    assert [len(grid.private.ledger) for grid in kept] == [2, 2]
    views = [str(statement.view) for statement in kept[1].private.statements()]
    assert any("aggregate" in view for view in views)


def test_a_strategy_of_flowers_is_not_touched() -> None:
    """FedAvg on a private grid does what PrivQuantStrategy around FedAvg does."""

    def averaged(grid: Grid, private: bool) -> ArrayRecord:
        mechanism = pq.design("optm", epsilon=2.0, bits=3)
        strategy: Any = FedAvg(
            fraction_evaluate=0.0, min_available_nodes=CLIENTS, arrayrecord_key="model", configrecord_key="c"
        )
        if private:
            grid = PrivateGrid(grid, pq.Encoding(mechanism, clip=0.2))
        else:
            strategy = PrivQuantStrategy(strategy, pq.Encoding(mechanism, clip=0.2))
        start = ArrayRecord({"weights": Array(np.zeros(SIZE, np.float32))})
        return strategy.start(grid, start, num_rounds=2).arrays  # type: ignore[no-any-return]

    ours, theirs = (run(lambda grid, p=p: averaged(grid, p)) for p in (True, False))  # type: ignore[misc]
    assert np.array_equal(ours["weights"], theirs["weights"])


def test_other_messages_pass_as_they_are_if_they_may() -> None:
    def main(grid: Grid) -> ArrayRecord:
        private = PrivateGrid(
            grid,
            pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1),
            metrics=ClientMetrics(clear=["accuracy"]),
        )
        asked = [
            Message(RecordDict({"question": ConfigRecord({"a": 1})}), node, "evaluate")
            for node in private.get_node_ids()
        ]
        replies = list(private.send_and_receive(asked))
        assert [reply.content["answer"]["accuracy"] for reply in replies] == [0.25] * CLIENTS
        assert len(private.private.ledger) == 0
        return ArrayRecord({"none": Array(np.zeros(1, np.float32))})

    run(main)


def test_what_cannot_be_private_is_refused() -> None:
    def main(grid: Grid) -> ArrayRecord:
        private = PrivateGrid(grid, pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))
        one, other = (ArrayRecord({"w": Array(np.full(3, value, np.float32))}) for value in (0, 1))
        nodes = list(private.get_node_ids())

        def to(node: int, kind: str, *models: ArrayRecord) -> Message:
            return Message(RecordDict({f"m{k}": each for k, each in enumerate(models)}), node, kind)

        for messages, reason in (
            ([to(nodes[0], "train", one), to(nodes[1], "train", other)], "are sent different models"),
            ([to(nodes[0], "train", one, other)], "as its only ArrayRecord"),
            ([to(nodes[0], "train")], "as its only ArrayRecord"),
            ([to(nodes[0], "train", one), to(nodes[1], "evaluate", one)], "1 of 2 messages are for training"),
        ):
            with pytest.raises(InvalidSpecError, match=reason):
                list(private.send_and_receive(messages))
        with pytest.raises(InvalidSpecError, match=r"use grid\.send_and_receive"):
            private.push_messages([to(nodes[0], "train.own", one)])
        assert len(private.private.ledger) == 0
        return one

    run(main)


def test_a_budget_ends_the_loop_before_anything_is_sent() -> None:
    kept: list[PrivateGrid] = []
    one_round = 2.0 * SIZE
    with pytest.raises(BudgetExhaustedError, match="round 2"):
        run(privately(pq.PerClient(), kept, budget=Budget(one_round * 1.5), delta=0.0))
    assert len(kept[0].private.ledger) == 1


def test_arrays_that_are_not_sent_stay_as_they_are() -> None:
    """An app that averages everything turns counters to fractions, and may move equal numbers by a bit."""
    seen: list[dict[str, np.ndarray]] = []
    start = {
        "weights": np.zeros(SIZE, np.float32),
        "batches": np.array(7),
        "frozen.mean": np.linspace(0.1, 0.3, 9, dtype=np.float32),
    }

    def more(arrays: dict[str, np.ndarray], partition: int, server_round: int) -> dict[str, np.ndarray]:
        if partition == 0:
            seen.append(arrays)
        return {name: np.asarray(value + 1) for name, value in arrays.items()}

    def private(grid: Grid) -> PrivateGrid:
        encoding = pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1)
        return PrivateGrid(grid, encoding, arrays=pq.ArrayChoice(exclude=["frozen.*"]))

    client = client_app([mod_for()], more, lambda partition: 3)
    done = simulate(fedavg(), client, CLIENTS, 3, start, wrap_grid=private)
    # FedAvg itself has done to the counter what it does without us.
    assert done.model["batches"].dtype == np.float64
    assert len(seen) == 3
    for arrays in seen:
        for name, value in start.items():
            assert arrays[name].dtype == value.dtype
            assert np.array_equal(arrays[name], value) == (name != "weights" or arrays is seen[0])


def test_models_that_change_their_shape_are_refused() -> None:
    def main(grid: Grid) -> ArrayRecord:
        private = PrivateGrid(grid, pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))
        for size, name in ((SIZE, "weights"), (SIZE + 1, "weights"), (SIZE, "other")):
            model = ArrayRecord({name: Array(np.zeros(size, np.float32))})
            messages = [Message(RecordDict({"model": model}), node, "train") for node in grid.get_node_ids()]
            if (size, name) == (SIZE, "weights"):
                list(private.send_and_receive(messages))
                continue
            with pytest.raises(InvalidSpecError, match="arrays have changed since the first round: '"):
                list(private.send_and_receive(messages))
        assert len(private.private.ledger) == 1
        return model

    run(main)
