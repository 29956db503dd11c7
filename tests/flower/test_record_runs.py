"""Runs that protect records: the opened sum is that of central DP-SGD, and mistakes of an app are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fl_privquant.accounting import PerClient, SecureSum, SimulatedSum, SumOfCodes
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import NoUsableReplyError, PrivQuantMod, PrivQuantStrategy, linear_record_update
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.planning import Plan, Target
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.secagg import ClientPolicy
from fl_privquant.statement import Unit, ViewKind
from fl_privquant.torch import record_update

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SILOS, FEATURES, CLASSES, RECORDS = 5, 12, 4, 400
DIMENSION = CLASSES * (FEATURES + 1)
ALL_HONEST = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
# Silos of very different sizes, one without any record.
SIZES = (200, 100, 60, 40, 0)

Data = tuple[np.ndarray, np.ndarray]
Update = Callable[[Message, np.ndarray, np.ndarray, RandomStream], ArrayRecord]


def make_plan(epsilon: float = 8.0, rate: float = 0.5, rounds: int = 4, **settings: Any) -> Plan:
    target = Target(
        epsilon,
        rounds=rounds,
        num_clients=SILOS,
        delta=1e-5,
        unit="record",
        records=RECORDS,
        sampling_rate=rate,
    )
    return target.plan(DIMENSION, **{"aggregation": ALL_HONEST, **settings})


def silo(partition: int) -> Data:
    generator = np.random.default_rng(partition)
    labels = generator.integers(0, CLASSES, SIZES[partition])
    inputs = generator.normal(0.0, 0.3, (SIZES[partition], FEATURES))
    inputs[np.arange(len(labels)), labels] += 1.0
    return inputs, labels


def draws(partition: int, number: int) -> RandomStream:
    return RandomStream.seeded(99, round=number, client=partition)


def make_update(message: Message, inputs: np.ndarray, labels: np.ndarray, rng: RandomStream) -> ArrayRecord:
    return linear_record_update(message, inputs, labels, rng=rng)


def run(
    planned: Plan,
    rounds: int = 1,
    update: Update = make_update,
    data: Callable[[int], Data] = silo,
    lost: frozenset[int] = frozenset(),
    limits: Mapping[str, Any] | None = None,
    silos: int = SILOS,
) -> tuple[PrivQuantStrategy, dict[str, np.ndarray]]:
    client, server = ClientApp(), ServerApp()
    kept: list[PrivQuantStrategy] = []
    secure = isinstance(planned.aggregation, SecureSum)

    def leaves(message: Message, context: Context, call_next: Any) -> Message:
        training = "config" in message.content and "server-round" in message.content["config"]
        if training and int(context.node_config["partition-id"]) in lost:
            raise ConnectionError("gone")
        return call_next(message, context)

    allowed = planned.client_limits if limits is None else limits
    sums: Any = planned.aggregation
    policy = secure and ClientPolicy(
        corrupt_fraction=sums.corrupt_fraction, dropout_fraction=sums.dropout_fraction
    )
    mod = PrivQuantMod(**{"secure_aggregation": policy, **allowed}, seed=3)

    @client.train(mods=[leaves, mod])
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        number = int(message.content["config"]["server-round"])
        made = update(message, *data(partition), draws(partition, number))
        return Message(RecordDict({"arrays": made}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(
            {
                "coef": Array(np.zeros((CLASSES, FEATURES), np.float32)),
                "intercept": Array(np.zeros(CLASSES, np.float32)),
            }
        )
        inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=silos)
        kept.append(PrivQuantStrategy(inner, planned, simulated=not secure))
        context.state["arrays"] = kept[0].start(grid, start, num_rounds=rounds).arrays

    result = InlineEngine().run(server, client, Federation(num_clients=silos))
    return kept[0], {name: array.numpy() for name, array in result.arrays.items()}


def central_step(planned: Plan, number: int, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The step of central DP-SGD without its noise: all records in one place, one by one."""
    sampling = planned.encoding.records
    total = {name: np.zeros(array.shape) for name, array in weights.items()}
    for partition in range(SILOS):
        inputs, labels = silo(partition)
        for index in sampling.draw(len(labels), draws(partition, number)):
            scores = weights["coef"] @ inputs[index] + weights["intercept"]
            error = np.exp(scores - scores.max())
            error = error / error.sum() - np.eye(CLASSES)[labels[index]]
            gradient = {"coef": np.outer(error, inputs[index]), "intercept": error}
            norm = math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
            for name, part in gradient.items():
                total[name] += part * min(1.0, sampling.clip / norm)
    return {name: -part / (sampling.rate * RECORDS) for name, part in total.items()}


@pytest.mark.parametrize("aggregation", [ALL_HONEST, SimulatedSum(0, 0), SumOfCodes(), PerClient()])
def test_the_opened_sum_is_the_step_of_central_dp_sgd_with_its_noise(aggregation: Any) -> None:
    planned = make_plan(aggregation=aggregation, l2_clip=0.5)
    strategy, model = run(planned)

    start = {"coef": np.zeros((CLASSES, FEATURES)), "intercept": np.zeros(CLASSES)}
    step = central_step(planned, 1, start)
    noise = np.concatenate([(model[name] - step[name]).ravel() for name in step])
    # In the mean gradient: multiplier times clip over the batch, and the rounding errors of the codes.
    deviation = planned.noise_multiplier * 0.5 / (0.5 * RECORDS) * math.sqrt(1.0 + 1.0 / 48.0)
    # Without secure sums every silo adds that noise.
    deviation *= math.sqrt(SILOS / planned.num_honest)
    # 52 normal numbers: outside of these bounds with odds below 1e-5.
    assert np.std(noise) == pytest.approx(deviation, rel=0.45)
    assert abs(np.mean(noise)) < 4.5 * deviation / math.sqrt(noise.size)
    # Without the step what is left would be larger: the test would notice its absence.
    moved = np.concatenate([array.ravel() for array in model.values()])
    assert np.std(moved) > 1.5 * deviation
    assert strategy.survivors == {1: SILOS}


def test_a_run_spends_its_target_and_then_stops() -> None:
    planned = make_plan(epsilon=3.0, rounds=3)
    strategy, _ = run(planned, rounds=5)
    spent = strategy.ledger.record_statement(1e-5, in_sum=True)
    assert 2.9 < spent.epsilon <= 3.0
    assert len(strategy.ledger) == 3
    lines = "\n".join(strategy.privacy_statement())
    assert "record total (3 rounds, each record drawn with probability 0.5), aggregate view of 5" in lines
    assert "for one record added or removed" in lines
    assert "for one record replaced by any other" in lines
    assert "each person is one record of one silo (one with several is not covered)" in lines
    assert "client total (52 coordinates, 3 rounds), aggregate view of 5, replace-one: no privacy" in lines


def test_a_silo_may_be_lost_if_that_was_planned() -> None:
    planned = make_plan(aggregation=SecureSum(corrupt_fraction=0.0, dropout_fraction=0.2))
    strategy, _ = run(planned, lost=frozenset({1}))
    assert strategy.survivors == {1: SILOS - 1}
    assert strategy.ledger.record_statement(1e-5, in_sum=True).epsilon <= 8.0
    # Without that, a lost silo ends the round: there would be less noise than was counted on.
    with pytest.raises(NoUsableReplyError):
        run(make_plan(), lost=frozenset({1}))


def test_an_app_that_forgets_the_helper_is_refused_and_says_so() -> None:
    def forgets(message: Message, *_: Any) -> ArrayRecord:
        return ArrayRecord(dict(message.content["arrays"].items()))

    with pytest.raises(NoUsableReplyError, match="not made from single records"):
        run(make_plan(aggregation=SimulatedSum(0, 0)), update=forgets)


@pytest.mark.parametrize("aggregation", [ALL_HONEST, SimulatedSum(0, 0)])
def test_a_silo_with_another_model_says_so_and_sends_nothing(aggregation: Any, flower_log: Any) -> None:
    """Zeros in place of its sum, as for other errors of an app, would let the run go on without the silo."""

    def one_has_more_features(partition: int) -> Data:
        inputs, labels = silo(partition)
        return (np.hstack([inputs, inputs[:, :1]]), labels) if partition == 1 else (inputs, labels)

    with pytest.raises(NoUsableReplyError):
        run(make_plan(aggregation=aggregation), data=one_has_more_features)
    problem = "inputs: have 13 columns, but the model has coefficients for 12"
    (line,) = [
        line for line in flower_log.text.splitlines() if "replied with error" in line and problem in line
    ]
    assert "No update was sent, and the round is counted" in line


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES)),
            "layer '1' .BatchNorm1d. mixes",
        ),
        (nn.Linear(FEATURES, CLASSES + 1), "not the one that was received"),
    ],
)
def test_a_model_that_does_not_fit_is_told_to_the_server(model: nn.Module, problem: str) -> None:
    def update(message: Message, inputs: np.ndarray, labels: np.ndarray, rng: RandomStream) -> ArrayRecord:
        return record_update(
            message, model, nn.functional.cross_entropy, torch.tensor(inputs).float(), torch.tensor(labels)
        )

    with pytest.raises(
        NoUsableReplyError, match=f"(?s){problem}.*No update was sent, and the round is counted"
    ):
        run(make_plan(aggregation=SimulatedSum(0, 0)), update=update)


def test_an_update_for_another_message_is_refused() -> None:
    made: list[ArrayRecord] = []

    def keeps_the_first(message: Message, inputs: Any, labels: Any, rng: RandomStream) -> ArrayRecord:
        if not made:
            sampling = message.content["config"]["privquant-records"]
            message.content["config"]["privquant-records"] = [2.0 * sampling[0], *sampling[1:]]
            made.append(linear_record_update(message, inputs, labels, rng=rng))
        return made[0]

    with pytest.raises(NoUsableReplyError, match="another clip, rate or divisor"):
        run(make_plan(aggregation=SimulatedSum(0, 0)), update=keeps_the_first)


def test_a_record_that_is_not_finite_counts_as_nothing_and_an_enormous_one_as_the_clip(
    flower_log: Any,
) -> None:
    """An error, or zeros in place of the whole update, would tell that the record is there."""

    def with_bad_records(partition: int) -> Data:
        inputs, labels = silo(partition)
        if partition == 0:
            inputs = np.vstack([inputs, np.full((2, FEATURES), np.nan), np.full((1, FEATURES), 1e30)])
            labels = np.append(labels, [0, 1, 2])
        return inputs, labels

    planned = make_plan(rate=1.0, aggregation=SimulatedSum(0, 0))
    _, clean = run(planned)
    _, model = run(planned, data=with_bad_records)
    moved = math.sqrt(sum(float(((model[name] - clean[name]) ** 2).sum()) for name in model))
    # The same noise: what is left is one record, and the rounding to the lattice.
    assert 0.0 < moved < 3.0 * (planned.encoding.records.norm / SILOS)
    lines = [line for line in flower_log.text.splitlines() if "not finite" in line]
    # How many were drawn, and how many of them are bad, is a secret of the silo: logs are often collected.
    assert lines
    assert not any(character.isdigit() for line in lines for character in line)


def test_three_silos_sum_securely_with_the_limits_that_their_plan_prints() -> None:
    """Three cannot lose one and still have two honest ones, as clients with the usual limits ask."""
    target = Target(8.0, rounds=1, num_clients=3, unit="record", records=360, sampling_rate=0.5)
    planned = target.plan(DIMENSION)
    (printed,) = re.findall(r"PrivQuantMod\((.*)\)\.", str(planned))
    limits = eval(f"dict({printed})", {"ClientPolicy": ClientPolicy})
    strategy, _ = run(planned, limits=limits, silos=3)
    assert strategy.survivors == {1: 3}
    with pytest.raises(NoUsableReplyError):
        run(planned, limits={**limits, "secure_aggregation": True}, silos=3)


def test_a_client_refuses_less_noise_than_it_allows() -> None:
    planned = make_plan(aggregation=SimulatedSum(0, 0))
    with pytest.raises(NoUsableReplyError):
        run(planned, limits={"max_epsilon": 0.9 * planned.client_limits["max_epsilon"], "max_delta": 1e-5})


def test_the_helper_says_what_is_wrong_with_a_message_or_with_the_data() -> None:
    def another_shape(message: Message, inputs: Any, labels: Any, rng: RandomStream) -> ArrayRecord:
        with pytest.raises(InvalidSpecError, match="inputs, labels: have shapes"):
            linear_record_update(message, inputs[:, 0], labels, rng=rng)
        del message.content["config"]["privquant-records"]
        with pytest.raises(InvalidSpecError, match="not from a run that protects records"):
            linear_record_update(message, inputs, labels, rng=rng)
        asked.append(1)
        raise KeyboardInterrupt

    asked: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(aggregation=SimulatedSum(0, 0)), update=another_shape)
    assert asked


def test_a_plan_for_records_needs_all_it_is_made_of() -> None:
    with pytest.raises(InvalidSpecError, match="records: 0 must be above 0 with unit='record'; give it"):
        Target(1.0, rounds=1, num_clients=3, unit="record", sampling_rate=0.1)
    with pytest.raises(InvalidSpecError, match=r"sampling_rate: .* is given, but the unit is a client"):
        Target(1.0, rounds=1, num_clients=3, sampling_rate=0.1)
    with pytest.raises(InvalidSpecError, match="mechanism: given for a record"):
        make_plan(mechanism="one_bit")
    with pytest.raises(InvalidSpecError, match="from 3 on"):
        Target(1.0, rounds=1, num_clients=2, unit="record", records=100, sampling_rate=0.1).plan(10)


def test_a_plan_says_who_is_protected_and_who_is_not() -> None:
    text = str(make_plan())
    assert "A whole silo (a hospital, say) is not protected: no privacy" in text
    assert "against the server and 2 more silos a record spends ε = " in text
    assert "A person with records in several silos is not covered" in text
    assert make_plan().statement.unit is Unit.RECORD


def test_without_secure_sums_each_silo_adds_all_noise() -> None:
    alone, together = make_plan(aggregation=SumOfCodes()), make_plan()
    assert alone.statement.view.kind is ViewKind.LOCAL
    assert 7.9 < alone.statement.epsilon <= 8.0
    # The same noise hides a record, and only secure sums let silos share it.
    assert alone.noise_multiplier == pytest.approx(together.noise_multiplier, rel=0.03)
    assert alone.mean_squared_error == pytest.approx(SILOS * together.mean_squared_error, rel=0.06)
    assert "Each silo adds all of the noise by itself" in str(alone)
    assert "collude" not in str(alone)
    assert "secure_aggregation" not in str(alone)
    # One silo is enough: it needs no other one.
    target = Target(8.0, rounds=1, num_clients=1, unit="record", records=RECORDS, sampling_rate=0.5)
    assert target.plan(DIMENSION, aggregation=PerClient()).num_honest == 1
