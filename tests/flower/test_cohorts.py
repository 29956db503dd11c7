"""Clients that are trained and encoded together give, to the last bit, what they give one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict

import fl_privquant as pq
from fl_privquant.accounting import SumOfCodes
from fl_privquant.codec.encoding import Encoding
from fl_privquant.flower import CheckpointStrategy, ClientMetrics, PrivQuantStrategy, QuantileClip
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower.client.cohort import CohortApp, CohortMod
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.codec.test_update import mechanism_of
from tests.flower.apps import (
    CLIP,
    SEED,
    as_arrays,
    as_record,
    assert_same_arrays,
    fedavg,
    server_app,
    simulate,
    trained,
)

CLIENTS, ROUNDS = 7, 3
Train = Callable[[dict[str, Any], int, int], dict[str, Any]]


def cohort_app(train_with: Train = trained, sizes: list[int] | None = None, **options: Any) -> CohortApp:
    """An app that trains each client by a function, alone or with others; ``sizes`` notes how many."""

    def train(message: Message, context: Context) -> Message:
        arrays = as_arrays(message.content["arrays"])
        number = message.content["config"]["server-round"]
        partition = remember(context)
        metrics = MetricRecord({"num-examples": 5, "loss": 0.1 * partition})
        new = train_with(arrays, partition, number)
        return Message(RecordDict({"arrays": as_record(new), "metrics": metrics}), reply_to=message)

    def train_cohort(message: Message, contexts: Sequence[Context]) -> dict[str, Any]:
        arrays = read_arrays(message.content["arrays"])
        number = message.content["config"]["server-round"]
        updates = [train_with(arrays, remember(each), number) for each in contexts]
        if sizes is not None:
            sizes.append(len(updates))
        return {name: np.stack([update[name] for update in updates]) for name in arrays}

    mod = CohortMod(math.inf, max_delta=1e-3, seed=SEED, **options)
    return CohortApp(mod, train, train_cohort)


def remember(context: Context) -> int:
    """The number of a client, of which some keep a record of how often they trained."""
    partition = int(context.node_config["partition-id"])
    if partition % 3 == 1:
        if "trained" not in context.state:
            context.state["trained"] = MetricRecord({"rounds": 0})
        context.state["trained"]["rounds"] += 1
    return partition


def run(
    batch: int, encoding: Any, app: CohortApp, aggregation: Any = None, inner: Any = None, **options: Any
) -> tuple[dict[str, Any], list[Any], list[str], dict[int, dict[str, Any]]]:
    """The model, what each round did, the statements, and the clients' states with their ledgers.

    A policy of encodings, which learns from round to round, is given as a function that makes it.
    """
    encoding = encoding() if callable(encoding) else encoding
    strategy = PrivQuantStrategy(
        inner or fedavg(), encoding, aggregation=aggregation, simulated=True, max_failed_rounds=9, **options
    )
    done = simulate(strategy, app, CLIENTS, ROUNDS, engine=InlineEngine(batch=batch), seed=2)
    rounds = [
        (each.round, each.asked, each.survivors, each.bytes_up, each.statements) for each in done.records
    ]
    states = {
        node: {name: dict(state[name]) for name in ("privquant-ledger", "trained") if name in state}
        for node, state in done.grid.states.items()
    }
    return done.model, rounds, strategy.privacy_statement(), states


def assert_same(encoding: Any, make_app: Callable[[list[int]], CohortApp], **options: Any) -> list[int]:
    """Run alone and together; how many clients were trained at once."""
    alone = run(1, encoding, make_app([]), **options)
    for batch in (3, 256):
        sizes: list[int] = []
        together = run(batch, encoding, make_app(sizes), **options)
        assert_same_arrays(together[0], alone[0])
        assert together[1:] == alone[1:]
        assert max(sizes, default=0) <= batch
    return sizes


@pytest.mark.parametrize("stages", ["clip", "norm, rotation and part"])
@pytest.mark.parametrize("name", pq.available_mechanisms())
def test_every_mechanism_gives_the_same(name: str, stages: str) -> None:
    mechanism = mechanism_of(name)
    encoding = Encoding(mechanism, CLIP)
    if stages != "clip":
        keep = None if mechanism.encodes_whole_updates else 10
        encoding = Encoding(mechanism, CLIP, l2_clip=0.3, rotate=True, keep=keep)
    sizes = assert_same(encoding, lambda sizes: cohort_app(sizes=sizes))
    assert sizes == [CLIENTS] * ROUNDS


@pytest.mark.parametrize("aggregation", [pq.PerClient(), SumOfCodes()], ids=["alone", "sum"])
def test_private_metrics_and_votes_are_the_same(aggregation: Any) -> None:
    """The app that trains a single client measures its loss; the mod notes whether training failed."""
    encoding = Encoding(mechanism_of("optm"), CLIP)
    failed = ClientMetrics(private={"privquant-failed": (0.0, 1.0)})
    assert assert_same(
        lambda: QuantileClip(encoding),
        lambda sizes: cohort_app(sizes=sizes),
        aggregation=aggregation,
        metrics=failed,
    )
    losses = ClientMetrics(private={"loss": (0.0, 1.0)})
    assert not assert_same(
        encoding, lambda sizes: cohort_app(sizes=sizes), aggregation=aggregation, metrics=losses
    )


def test_metrics_in_clear_and_reports_are_the_same() -> None:
    encoding = Encoding(mechanism_of("optm"), CLIP)
    app = {"metrics": ["loss"], "report_clipping": True}
    assert not assert_same(
        encoding,
        lambda sizes: cohort_app(sizes=sizes, **app),
        aggregation=SumOfCodes(),
        metrics=ClientMetrics(clipping=True),
    )


@pytest.mark.parametrize(
    "mechanism",
    [
        mechanism_of("optm"),
        mechanism_of("cldp_linf"),
        pq.design("skellam", epsilon=2.0, num_clients=CLIENTS),
        pq.design("rounded_gaussian", epsilon=2.0, delta=1e-4, num_clients=CLIENTS),
    ],
    ids=lambda each: each.name,
)
def test_masked_codes_are_the_same(mechanism: Any) -> None:
    encoding = Encoding(mechanism, CLIP)
    assert assert_same(
        encoding, lambda sizes: cohort_app(sizes=sizes, secure_aggregation=True), aggregation=pq.SecureSum()
    )


def test_clients_with_seeds_of_their_own_are_trained_together_with_the_same_result() -> None:
    """With correlated noise each message has another seed, and each client adds other noise."""
    target = pq.Target(8.0, ROUNDS, 3, 1e-5, rounds_apart=2)
    sums = pq.SimulatedSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    plan = target.plan(25, 1.0, aggregation=sums, correlation=0.5, force=True)
    sampling = pq.CohortSampling(2, seed=1, clients=3)
    sizes = assert_same(plan, lambda sizes: cohort_app(sizes=sizes), sampling=sampling, rotation_seed=1)
    # In the last round a client that has counted a release already is trained by itself.
    assert sizes == [3, 3, 2]


def test_a_client_whose_update_is_not_finite_costs_the_others_nothing(flower_log: Any) -> None:
    def train(arrays: dict[str, Any], partition: int, number: int) -> dict[str, Any]:
        new = trained(arrays, partition, number)
        if partition == 3:
            new["weight"][0] = np.nan
        return new

    assert assert_same(Encoding(mechanism_of("optm"), CLIP), lambda sizes: cohort_app(train, sizes))
    assert "are not finite" in flower_log.text


def test_a_client_that_fails_to_train_costs_the_others_nothing(flower_log: Any) -> None:
    def train(arrays: dict[str, Any], partition: int, number: int) -> dict[str, Any]:
        if partition == 3:
            raise ValueError("no data")
        return trained(arrays, partition, number)

    encoding = Encoding(mechanism_of("optm"), CLIP)
    alone, together = (run(batch, encoding, cohort_app(train)) for batch in (1, 256))
    assert_same_arrays(together[0], alone[0])
    assert together[1:] == alone[1:]
    assert "clients could not train together" in flower_log.text


def test_clients_that_refuse_leave_the_cohort() -> None:
    """Every client takes part twice, and only some are asked in a round, so that contents differ."""
    assert assert_same(
        Encoding(mechanism_of("optm"), CLIP),
        lambda sizes: cohort_app(sizes=sizes, max_participations=2),
        inner=fedavg(fraction_train=0.8),
    )


def test_without_a_seed_noise_is_fresh_for_every_client() -> None:
    """With a seed, or one stream for all, equal updates would have equal codes."""

    def still(arrays: dict[str, Any], partition: int, number: int) -> dict[str, Any]:
        return {name: array.copy() for name, array in arrays.items()}

    models = []
    for seed in (None, None, SEED, SEED):
        app = cohort_app(still)
        app._mod.seed = seed
        models.append(run(256, Encoding(mechanism_of("one_bit"), CLIP), app)[0]["weight"])
    assert np.array_equal(models[2], models[3])
    # Odds of equal sums of seven signs in 24 coordinates and three rounds: below 2^-100.
    assert not np.array_equal(models[0], models[1])


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_a_run_that_was_interrupted_in_a_cohort_goes_on(batch: int, tmp_path: Path) -> None:
    """Whoever was asked to train has counted the release; the model is that of a run without interruption."""
    encoding = Encoding(mechanism_of("optm"), CLIP)
    states: dict[int, RecordDict] = {}
    begun: list[int] = []

    def go_on(dies: bool) -> dict[str, Any]:
        def train(arrays: dict[str, Any], partition: int, number: int) -> dict[str, Any]:
            if dies and number == 2:
                begun.append(partition)
                if partition == 3:
                    raise KeyboardInterrupt
            return trained(arrays, partition, number)

        def keep(grid: Any) -> Any:
            grid.states.update(states)
            grids.append(grid)
            return grid

        grids: list[Any] = []
        strategy = PrivQuantStrategy(fedavg(), encoding, simulated=True)
        saved = CheckpointStrategy(strategy, tmp_path / "run.checkpoint")
        server = server_app(lambda: saved, ROUNDS, wrap_grid=keep)
        try:
            result = InlineEngine(batch=batch).run(server, cohort_app(train), Federation(CLIENTS, seed=2))
        finally:
            states.update(grids[0].states)
        return as_arrays(result.arrays)

    with pytest.raises(KeyboardInterrupt):
        go_on(dies=True)
    counted = {
        node - 1: sum(len(str(text).split()) for text in state["privquant-ledger"].values())
        for node, state in states.items()
    }
    assert set(counted.values()) <= {1, 2}
    assert 3 in begun
    assert all(counted[partition] == 2 for partition in begun)
    assert_same_arrays(go_on(dies=False), run(1, encoding, cohort_app())[0])
